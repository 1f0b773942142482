//! The endpoints: a process that answers every POST with as little work as possible, on every loopback address.
//!
//! | path | |
//! |---|---|
//! | `/ok` | 200 |
//! | `/timed` | 200; the time of the first byte is noted beside the number `n` of the event |
//! | `/busy` | 503 |
//! | `/hole` | no answer |
//! | `GET /count` | number of answered requests so far |
//! | `GET /times` | the noted numbers and times in nanoseconds since 1970, which are then forgotten |

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memchr::memmem;
use tidings_bench::Failed;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

const OK: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{\"ok\":true}";
const BUSY: &[u8] = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n";

/// Nanoseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

#[derive(Default)]
struct Seen {
    count: AtomicU64,
    times: Mutex<Vec<(u64, u64)>>,
}

/// Serves until the standard input ends.
pub fn run() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.bind(([0, 0, 0, 0], 0).into())?;
        let listener: TcpListener = socket.listen(4096)?;
        println!("{}", listener.local_addr()?.port());
        std::thread::spawn(|| {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            std::process::exit(0);
        });
        let seen = Arc::<Seen>::default();
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            tokio::spawn(serve(socket, seen.clone()));
        }
    })
}

async fn serve(mut socket: tokio::net::TcpStream, seen: Arc<Seen>) {
    let mut buffer = vec![0; 16 * 1024];
    let (mut filled, mut first) = (0, 0);
    while let Ok(count @ 1..) = socket.read(&mut buffer[filled..]).await {
        if filled == 0 && buffer.starts_with(b"POST /timed") {
            first = now();
        }
        filled += count;
        let Some(end) = request_end(&buffer[..filled]) else { continue };
        if filled < end {
            continue;
        }
        let request = &buffer[..end];
        let answer = if request.starts_with(b"POST /ok") {
            seen.count.fetch_add(1, Ordering::Relaxed);
            socket.write_all(OK).await
        } else if request.starts_with(b"POST /timed") {
            seen.times.lock().expect("nobody panics").push((number(request), first));
            seen.count.fetch_add(1, Ordering::Relaxed);
            socket.write_all(OK).await
        } else if request.starts_with(b"POST /busy") {
            seen.count.fetch_add(1, Ordering::Relaxed);
            socket.write_all(BUSY).await
        } else if request.starts_with(b"GET /count") {
            text(&mut socket, seen.count.load(Ordering::Relaxed).to_string()).await
        } else if request.starts_with(b"GET /times") {
            let times = std::mem::take(&mut *seen.times.lock().expect("nobody panics"));
            let lines: Vec<String> = times.iter().map(|(n, at)| format!("{n} {at}")).collect();
            text(&mut socket, lines.join("\n")).await
        } else {
            std::future::pending().await
        };
        filled = 0;
        if answer.is_err() {
            return;
        }
    }
}

async fn text(socket: &mut tokio::net::TcpStream, body: String) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    socket.write_all(head.as_bytes()).await?;
    socket.write_all(body.as_bytes()).await?;
    socket.shutdown().await
}

/// Length of a request, if its head is complete. Requests are not pipelined.
fn request_end(bytes: &[u8]) -> Option<usize> {
    let head = memmem::find(bytes, b"\r\n\r\n")?;
    const NAME: &[u8] = b"content-length: ";
    let length = match memmem::find(&bytes[..head], NAME) {
        None => 0,
        Some(at) => digits(&bytes[at + NAME.len()..]),
    };
    Some(head + 4 + length as usize)
}

fn number(request: &[u8]) -> u64 {
    memmem::find(request, b"\"n\":").map_or(0, |at| digits(&request[at + 4..]))
}

fn digits(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0, |sum, byte| sum * 10 + u64::from(byte - b'0'))
}

/// The process of the endpoints. It ends with this.
pub struct Sink {
    child: Child,
    pub port: u16,
}

impl Sink {
    pub fn start() -> Result<Self, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg("--sink").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("it is piped")?).read_line(&mut line)?;
        Ok(Self { child, port: line.trim().parse()? })
    }

    /// URL of one of many hosts, all of them this process.
    pub fn url(&self, host: usize, path: &str) -> String {
        format!("http://127.1.{}.{}:{}{path}", host / 250, host % 250 + 1, self.port)
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// Requests that were answered.
    pub fn count(&self) -> Result<u64, Failed> {
        Ok(self.get("/count")?.parse()?)
    }

    /// Numbers of events with the times at which they came.
    pub fn times(&self) -> Result<Vec<(u64, u64)>, Failed> {
        let text = self.get("/times")?;
        let pair = |line: &str| {
            let (n, at) = line.split_once(' ')?;
            Some((n.parse().ok()?, at.parse().ok()?))
        };
        Ok(text.lines().filter_map(pair).collect())
    }

    fn get(&self, path: &str) -> Result<String, Failed> {
        let mut socket = TcpStream::connect(self.address())?;
        write!(socket, "GET {path} HTTP/1.1\r\nhost: sink\r\n\r\n")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer.split_once("\r\n\r\n").ok_or("no head")?.1.to_owned())
    }

    /// Waits until so many requests more than `before` are answered.
    pub fn reaches(&self, count: u64, within: Duration) -> Result<(), Failed> {
        let begun = std::time::Instant::now();
        loop {
            let now = self.count()?;
            if now >= count {
                return Ok(());
            }
            if begun.elapsed() > within {
                return Err(format!("the endpoints have seen {now} of {count} requests").into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
