//! Benchmark of requests to endpoints: CPU time of a POST by `tidings-egress`, beside a bare loop over connections of the
//! same HTTP library, which has no pool, no time limits and no guard. The endpoint is a process of its own and does as
//! little as possible. Rounds alternate. Prints a table in Markdown.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Parser;
use hyper::Method;
use hyper::header::{HeaderMap, HeaderValue};
use tidings_bench::{Cost, Posts, grouped, report};
use tidings_egress::{AllowList, Egress, EgressOptions, Guard, Outgoing, SystemResolver, Target};
use tidings_engine::{Metrics, WallClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// CPU time of a POST that egress may cost, in microseconds.
const GOAL_MICROS: f64 = 12.0;
const BODY_BYTES: usize = 400;
const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{\"ok\":true}";
/// Bytes of the body of an answer.
const ANSWER_BODY_BYTES: usize = 11;
/// Bytes of the body of an answer that are kept, as hooks do.
const KEEP: usize = 1024;

/// POSTs to an endpoint on this machine.
#[derive(Debug, Parser)]
struct Arguments {
    /// Seconds of each round.
    #[arg(long, env = "SECS", default_value_t = 2.0)]
    secs: f64,
    /// Rounds of each sender.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Requests at a time.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Run only this sender.
    #[arg(long, env = "ONLY")]
    only: Option<Sender>,
    /// Be the endpoint.
    #[arg(long, hide = true)]
    endpoint: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sender {
    /// A loop over connections of the HTTP library.
    Bare,
    /// To a literal address.
    Egress,
    /// To a host name.
    Named,
}

fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    if arguments.endpoint {
        return runtime.block_on(endpoint());
    }
    let (mut process, address) = start_endpoint()?;
    let measured = runtime.block_on(measure(&arguments, address));
    process.kill()?;
    process.wait()?;
    print(&arguments, &measured?);
    Ok(())
}

fn start_endpoint() -> io::Result<(Child, SocketAddr)> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut process = command.arg("--endpoint").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(process.stdout.take().expect("it is piped")).read_line(&mut line)?;
    Ok((process, line.trim().parse().map_err(io::Error::other)?))
}

/// Answers every request alike. Ends when its standard input does.
async fn endpoint() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    std::thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(0);
    });
    loop {
        let (mut socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        tokio::spawn(async move {
            let mut buffer = vec![0; 64 * 1024];
            let mut filled = 0;
            while let Ok(count @ 1..) = socket.read(&mut buffer[filled..]).await {
                filled += count;
                let Some(head) = buffer[..filled].windows(4).position(|four| four == b"\r\n\r\n") else {
                    continue;
                };
                if filled >= head + 4 + BODY_BYTES {
                    filled = 0;
                    if socket.write_all(ANSWER).await.is_err() {
                        break;
                    }
                }
            }
        });
    }
}

async fn measure(arguments: &Arguments, address: SocketAddr) -> io::Result<[Cost; 3]> {
    let mut costs = [Cost::default(); 3];
    for _ in 0..arguments.rounds {
        for (cost, sender) in costs.iter_mut().zip([Sender::Bare, Sender::Egress, Sender::Named]) {
            if arguments.only.is_some_and(|only| only != sender) {
                continue;
            }
            *cost += round(arguments, sender, address).await?;
        }
    }
    Ok(costs)
}

async fn round(arguments: &Arguments, sender: Sender, address: SocketAddr) -> io::Result<Cost> {
    let posts = Posts::default();
    let mut senders = JoinSet::new();
    let egress = egress();
    let host = if sender == Sender::Named { "localhost".to_owned() } else { address.ip().to_string() };
    let target = Target::parse(&format!("http://{host}:{}/hooks/orders", address.port()));
    let target = target.map_err(io::Error::other)?;
    for _ in 0..arguments.connections {
        let body = Bytes::from(vec![b'x'; BODY_BYTES]);
        let posts = posts.clone();
        match sender {
            Sender::Bare => {
                let headers = || Ok(headers());
                senders.spawn(posts.send_bare(address, "/hooks/orders", body, ANSWER_BODY_BYTES, headers))
            }
            Sender::Egress | Sender::Named => {
                senders.spawn(by_egress(egress.clone(), target.clone(), body, posts))
            }
        };
    }
    posts.measure(senders, Duration::from_secs_f64(arguments.secs)).await
}

fn egress() -> Egress {
    Egress::new(
        EgressOptions::default(),
        Guard::new(AllowList::loopback()),
        Arc::new(SystemResolver),
        Arc::new(WallClock),
        &Metrics::new(),
    )
}

async fn by_egress(egress: Egress, target: Target, body: Bytes, posts: Posts) -> io::Result<()> {
    while posts.go_on() {
        let outgoing = Outgoing {
            method: Method::POST,
            target: &target,
            headers: headers(),
            body: body.clone(),
            timeout: Duration::from_secs(30),
            keep: KEEP,
        };
        let answer = egress.send(outgoing).await.map_err(io::Error::other)?;
        assert_eq!(answer.body.len(), ANSWER_BODY_BYTES);
        posts.count();
    }
    Ok(())
}

/// Headers as those of a webhook.
fn headers() -> HeaderMap {
    let all = [
        ("user-agent", "tidings"),
        ("content-type", "application/json"),
        ("webhook-id", "01K2M9Q1G7V3W8XH4ZB6N5T0RC"),
        ("webhook-timestamp", "1763497634"),
        ("webhook-signature", "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="),
    ];
    all.into_iter()
        .map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_static(value)))
        .collect()
}

fn print_row(name: &str, cost: &Cost) {
    if cost.posts > 0 {
        let rate = grouped(cost.rate() as usize);
        println!("| {name} | {:.1} | {rate} | {:.2} |", cost.micros(), cost.cpu / cost.time);
    }
}

fn print(arguments: &Arguments, [bare, egress, named]: &[Cost; 3]) {
    println!("{} requests at a time, {BODY_BYTES} bytes each\n", arguments.connections);
    println!("| sender | µs of CPU per POST | POST/s | cores |\n|---|---|---|---|");
    print_row("bare loop", bare);
    print_row("egress, literal address", egress);
    print_row("egress, host name", named);
    let worst = egress.micros().max(named.micros());
    if worst.is_finite() {
        println!("\n| what | measured | goal | |\n|---|---|---|---|");
        let (measured, goal) = (format!("{worst:.1} µs"), format!("at most {GOAL_MICROS} µs"));
        report("CPU of a POST", &measured, &goal, worst <= GOAL_MICROS);
    }
}
