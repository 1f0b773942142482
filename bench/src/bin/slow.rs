//! Benchmark of readers that stop reading, beside healthy ones: what stopped readers cost the server, whether
//! it disconnects them, and whether healthy readers and the publisher are affected. The server runs on core
//! 0, the client on core 1. Prints a table in Markdown.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Parser;
use tidings_bench::{Channel, Failed, Measured, Response, STAMP_BYTES, Scope, Served, Setup, Stamps, Times};
use tidings_bench::{Wire, grouped, open_files, ratio, socket_memory, stamped};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{sleep, sleep_until, timeout};

const TOPIC: &str = "t0";
const HEALTHY: usize = 100;
const STOPPED: usize = 1_000;
/// Bytes of a message; large enough to fill the kernel's buffers of stopped readers soon.
const MESSAGE_BYTES: usize = 8 << 10;
/// Rate of publishing; low enough that the server can serve all readers until the stopped ones' sockets are
/// full.
const MESSAGES_PER_SECOND: u32 = 50;
/// Time before the measurement; long enough for the sockets of stopped readers to fill up.
const WARM_UP: Duration = Duration::from_secs(6);
/// Receive buffer of a stopped reader, in bytes.
const STOPPED_BUFFER: u32 = 4 << 10;
/// Time that the last messages may take to arrive.
const STRAGGLERS: Duration = Duration::from_secs(2);
/// Bytes after which reading from a disconnected reader is given up: more than the kernel buffers.
const LAST_BYTES_MAX: usize = 16 << 20;

/// Readers that stop reading, beside healthy ones.
#[derive(Debug, Parser)]
#[command(mut_arg("only", |only| only.help(
    "Run only servers whose row's name contains this, such as \"slow, tidings\""
)))]
struct Arguments {
    /// Seconds to measure each run; long enough for the server to disconnect slow readers.
    #[arg(long, env = "SLOW_SECS", default_value_t = 10.0)]
    secs: f64,
    #[command(flatten)]
    scope: Scope,
}

/// Results of one run.
struct Run {
    publisher: Times,
    healthy: Times,
    published: usize,
    /// Messages received by all healthy readers together.
    received: usize,
    /// Peak of the server's memory beyond that with only healthy readers, in bytes.
    growth: f64,
    /// Peak of the kernel's socket memory, in bytes.
    kernel: f64,
    /// Stopped readers that the server has disconnected.
    cut: usize,
    /// Last bytes that one of them could still read.
    last_bytes: Option<String>,
}

/// State shared by the tasks of a run.
struct Progress {
    began: Instant,
    measuring: bool,
    /// Whether the publisher is to end.
    over: bool,
    healthy: Times,
    publisher: Times,
    published: usize,
    received: usize,
}

fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let (_folder, setup) = arguments.scope.setup("slow")?;
    let setup = setup.apart()?;
    println!(
        "\n## Slow readers\n\n{} readers that stop reading beside {HEALTHY} that do not; {MESSAGES_PER_SECOND} messages of \
         {MESSAGE_BYTES} bytes a second,\n{} s a run. Each time: without the stopped ones, then with them.\n",
        grouped(STOPPED),
        arguments.secs
    );
    println!(
        "| server | publisher p50 / p99 ms | with stopped | p99 ratio | healthy p50 / p99 ms | with stopped | p99 ratio \
         | server's memory | kernel's sockets | let go | lost by the healthy |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut last_bytes = Vec::new();
    let channels = arguments.scope.channels(&Channel::ALL, "slow");
    for channel in channels.into_iter().filter(|channel| channel.peer.has_streams()) {
        let measure =
            |stopped| LocalSet::new().block_on(&runtime, run(channel, &setup, stopped, arguments.secs));
        match (measure(0)?, measure(STOPPED)?) {
            (Ok(mut without), Ok(mut with)) => {
                print_row(channel, &mut without, &mut with);
                last_bytes.extend(with.last_bytes.map(|words| (channel, words)));
            }
            (Err(why), _) | (_, Err(why)) => println!("| {} | {why} | | | | | | | | | |", channel.name()),
        }
    }
    for (channel, words) in last_bytes {
        println!("\nWhat a reader of {} that was let go found last: `{words}`", channel.name());
    }
    Ok(())
}

async fn run(channel: Channel, setup: &Setup, stopped: usize, secs: f64) -> Result<Measured<Run>, Failed> {
    let served = channel.peer.start(setup)?;
    if let Err(refused) = channel.open(&served, TOPIC)? {
        return Ok(Err(refused));
    }
    let progress = Rc::new(RefCell::new(Progress::new()));
    let mut readers = Vec::new();
    for _ in 0..HEALTHY {
        let socket = listen(channel, served.address, None).await?;
        readers.push(spawn_local(read_all(socket, Rc::clone(&progress))));
    }
    sleep(Duration::from_millis(500)).await;
    let (pid, before) = (served.process.pid(), served.process.usage().resident);
    let files = open_files(pid);
    let mut silent = Vec::new();
    for _ in 0..stopped {
        silent.push(listen(channel, served.address, Some(STOPPED_BUFFER)).await?);
    }
    let peak = Rc::new(RefCell::new((0.0, 0.0)));
    let watcher = spawn_local(watch(pid, Rc::clone(&peak)));
    let publisher = spawn_local(publish(channel, served.address, Rc::clone(&progress)));
    sleep(WARM_UP).await;
    let lasting = Duration::from_secs_f64(secs);
    let profile = if stopped > 0 { channel.peer.profile(&served, Duration::ZERO, lasting)? } else { None };
    progress.borrow_mut().measuring = true;
    sleep(lasting).await;
    progress.borrow_mut().measuring = false;
    drop(profile);
    let broken = publisher.is_finished() || readers.iter().any(JoinHandle::is_finished);
    progress.borrow_mut().over = true;
    sleep(STRAGGLERS).await;
    publisher.abort();
    watcher.abort();
    if broken {
        return Ok(Err("the publisher or a healthy reader was cut".to_owned()));
    }
    // The publisher's connection is the only one that was opened since.
    let cut = (files + stopped).saturating_sub(open_files(pid)).min(stopped);
    let last_bytes = if cut > 0 { last_bytes(&mut silent).await } else { None };
    readers.iter().for_each(JoinHandle::abort);
    let (resident, kernel) = *peak.borrow();
    let progress = std::mem::replace(&mut *progress.borrow_mut(), Progress::new());
    drop::<Served>(served);
    Ok(Ok(Run {
        publisher: progress.publisher,
        healthy: progress.healthy,
        published: progress.published,
        received: progress.received,
        growth: resident - before,
        kernel,
        cut,
        last_bytes,
    }))
}

impl Progress {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            measuring: false,
            over: false,
            healthy: Times::default(),
            publisher: Times::default(),
            published: 0,
            received: 0,
        }
    }
}

/// Connects and waits for the head of the response.
async fn listen(channel: Channel, address: SocketAddr, buffer: Option<u32>) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if let Some(bytes) = buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    let mut socket = socket.connect(address).await?;
    socket.write_all(channel.request(address, TOPIC).as_bytes()).await?;
    let mut status = [0; 12];
    socket.read_exact(&mut status).await?;
    let expected: &[u8] = if channel.wire == Wire::Sse { b"200" } else { b"101" };
    if &status[9..] == expected { Ok(socket) } else { Err(io::Error::other("a reader was refused")) }
}

async fn read_all(mut socket: TcpStream, progress: Rc<RefCell<Progress>>) -> io::Result<()> {
    let (mut stamps, mut buffer) = (Stamps::default(), vec![0; 64 << 10]);
    loop {
        let count = socket.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let progress = &mut *progress.borrow_mut();
        stamps.feed(&buffer[..count], progress.began, |took| {
            progress.received += 1;
            if progress.measuring {
                progress.healthy.add(took);
            }
        });
    }
}

/// Publishes at a fixed rate. The latency of a late message counts from when it was due.
async fn publish(channel: Channel, address: SocketAddr, progress: Rc<RefCell<Progress>>) -> io::Result<()> {
    let mut socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {address}\r\nContent-Type: text/plain\r\nContent-Length: {MESSAGE_BYTES}\r\n\r\n",
        channel.publish_path(TOPIC)
    );
    let (began, mut response, mut buffer) = (progress.borrow().began, Response::default(), vec![0; 4096]);
    let mut due = Instant::now();
    while !progress.borrow().over {
        due += Duration::from_secs(1) / MESSAGES_PER_SECOND;
        sleep_until(due.into()).await;
        let message = stamped(due - began, MESSAGE_BYTES);
        debug_assert!(message.len() > STAMP_BYTES);
        progress.borrow_mut().published += 1;
        socket.write_all(format!("{head}{message}").as_bytes()).await?;
        response.clear();
        while !response.is_complete() {
            let count = socket.read(&mut buffer).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            response.feed(&buffer[..count]).map_err(|error| io::Error::other(format!("{error:?}")))?;
        }
        if !matches!(response.head.status, 200 | 204) {
            return Err(io::Error::other(format!(
                "an append was answered with status {}",
                response.head.status
            )));
        }
        let progress = &mut *progress.borrow_mut();
        if progress.measuring {
            progress.publisher.add(due.elapsed());
        }
    }
    Ok(())
}

/// Records the peaks of the server's memory and the kernel's socket memory.
async fn watch(pid: u32, peak: Rc<RefCell<(f64, f64)>>) -> io::Result<()> {
    loop {
        let (resident, kernel) = (tidings_bench::Usage::of(pid).resident, socket_memory());
        peak.replace_with(|peak| (peak.0.max(resident), peak.1.max(kernel)));
        sleep(Duration::from_millis(100)).await;
    }
}

/// Last bytes that a disconnected reader can still read; `None` if none of the first ten is disconnected.
async fn last_bytes(silent: &mut [TcpStream]) -> Option<String> {
    let mut buffer = vec![0; 64 << 10];
    for socket in silent.iter_mut().take(10) {
        let (mut tail, mut total) = (Vec::new(), 0);
        while total < LAST_BYTES_MAX {
            match timeout(Duration::from_secs(1), socket.read(&mut buffer)).await {
                Ok(Ok(0)) => return Some(printable(&tail)),
                Ok(Err(error)) => return Some(format!("{} ({})", printable(&tail), error.kind())),
                Ok(Ok(count)) => {
                    total += count;
                    tail.extend_from_slice(&buffer[..count]);
                    let extra = tail.len().saturating_sub(120);
                    tail.drain(..extra);
                }
                Err(_) => break,
            }
        }
    }
    None
}

fn printable(bytes: &[u8]) -> String {
    let text = bytes
        .iter()
        .map(|&byte| if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '.' });
    text.collect::<String>().replace('`', "'")
}

fn print_row(channel: Channel, without: &mut Run, with: &mut Run) {
    let lost = (without.published + with.published) * HEALTHY;
    let lost = lost.saturating_sub(without.received + with.received);
    println!(
        "| {} | {} | {} | {:.1} MB | {:.1} MB | {} | {lost} |",
        channel.name(),
        compared(&mut without.publisher, &mut with.publisher),
        compared(&mut without.healthy, &mut with.healthy),
        (with.growth - without.growth) / 1e6,
        (with.kernel - without.kernel) / 1e6,
        grouped(with.cut),
    );
}

/// Three columns: without, with, and the ratio of the 99th percentiles.
fn compared(without: &mut Times, with: &mut Times) -> String {
    let slowest = [&mut *without, &mut *with].map(|times| (times.count() > 0).then(|| times.quantile(0.99)));
    let columns = [without, with].map(|times| match times.count() {
        0 => "none in time".to_owned(),
        _ => format!("{:.2} / {:.2}", times.quantile(0.5) / 1000.0, times.quantile(0.99) / 1000.0),
    });
    format!("{} | {} | {}", columns[0], columns[1], ratio(slowest[1], slowest[0]))
}
