//! What is measured.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidings_bench::{Cost, Failed, Profile, Times, Usage, grouped, report};

use super::Arguments;
use super::bare;
use super::server::{Server, event, timestamp};
use super::sink::{self, Sink};

/// Endpoints of the row with many, each a destination of its own.
const ENDPOINTS: usize = 1000;
const BATCH: usize = 100;
const CONNECTIONS: usize = 16;
/// Connections of the bare loop, and attempts at a time of the only hook.
const AT_A_TIME: usize = 64;
const PATIENCE: Duration = Duration::from_secs(600);
/// Events per second of the rows about time.
const PACE: u64 = 200;
/// Endpoints of the part about those that never answer, and such among them.
const HEALTHY: usize = 90;
const HOLES: usize = 10;
/// Events per second that all of these endpoints hear.
const HOLES_PACE: u64 = 20;
/// Waiting retries of one hook.
const PARKED_EACH: usize = 5000;

/// Deliveries per second and what they cost, beside the bare loop.
pub fn throughput(arguments: &Arguments) -> Result<(), Failed> {
    let sink = Sink::start()?;
    let mut limit = bare::run(sink.address(), AT_A_TIME, Duration::from_secs(4))?;
    let replayed = replayed(arguments, &sink)?;
    let published = published(arguments, &sink)?;
    let many = many(arguments, &sink)?;
    limit += bare::run(sink.address(), AT_A_TIME, Duration::from_secs(4))?;
    println!("| what | deliveries/s | of the bare loop | µs of CPU per delivery |\n|---|---|---|---|");
    row("bare loop of signed POSTs", limit, limit);
    row("one endpoint, replayed", replayed, limit);
    row("one endpoint, while published", published, limit);
    row(&format!("{} endpoints, each event to all", grouped(ENDPOINTS)), many, limit);
    println!("\n| what | measured | goal | |\n|---|---|---|---|");
    let cpu = |what: &str, cost: Cost| {
        report(what, &format!("{:.1} µs", cost.micros()), "<= 20 µs", cost.micros() <= 20.0);
    };
    cpu("CPU per delivery, one endpoint", replayed);
    cpu("CPU per delivery, 1,000 endpoints", many);
    let rate = |what: &str, cost: Cost, goal: usize| {
        let met = cost.rate() >= goal as f64;
        report(what, &grouped(cost.rate() as usize), &format!(">= {}", grouped(goal)), met);
    };
    rate("deliveries/s, one endpoint", replayed, 25_000);
    rate("deliveries/s, 1,000 endpoints", many, 20_000);
    let share = replayed.rate() / limit.rate();
    report("of the bare loop, one endpoint", &format!("{:.0} %", share * 100.0), ">= 60 %", share >= 0.6);
    println!();
    Ok(())
}

fn row(what: &str, cost: Cost, limit: Cost) {
    let share = cost.rate() / limit.rate() * 100.0;
    println!("| {what} | {} | {share:.0} % | {:.1} |", grouped(cost.rate() as usize), cost.micros());
}

/// Measures the server until the endpoints have answered so many requests more.
fn until_delivered(
    server: &Server,
    sink: &Sink,
    deliveries: usize,
    run: impl FnOnce() -> Result<(), Failed>,
) -> Result<Cost, Failed> {
    let (first, before, began) = (sink.count()?, server.usage(), Instant::now());
    run()?;
    sink.reaches(first + deliveries as u64, PATIENCE)?;
    let time = began.elapsed().as_secs_f64();
    // Until everything is recorded.
    std::thread::sleep(Duration::from_millis(300));
    Ok(Cost { posts: sink.count()? - first, cpu: server.usage().cpu - before.cpu, time })
}

/// Events of the past go to one endpoint: queueing and delivering, without accepting them.
fn replayed(arguments: &Arguments, sink: &Sink) -> Result<Cost, Failed> {
    let server = Server::start(&arguments.root)?;
    server.publish(|_| "load.one".into(), arguments.deliveries, BATCH, CONNECTIONS)?;
    let hook = server
        .hook(&json!({ "pattern": "load.one", "url": sink.url(0, "/ok"), "concurrency": AT_A_TIME }))?;
    let profile = Profile::of(server.process()?, Duration::from_secs(1), Duration::from_secs(4))?;
    let cost = until_delivered(&server, sink, arguments.deliveries, || {
        let from = json!({ "from": "1970-01-01T00:00:00Z" });
        server.call("POST", &format!("/hooks/{hook}/replay"), &from).map(|_| ())
    })?;
    drop(profile);
    server.stat_reaches(&hook, "delivered", arguments.deliveries as u64, PATIENCE)?;
    Ok(cost)
}

/// Events go to one endpoint while they are published: all that the server does, on cores that publisher and endpoint share.
fn published(arguments: &Arguments, sink: &Sink) -> Result<Cost, Failed> {
    let server = Server::start(&arguments.root)?;
    let settings = json!({ "pattern": "load.one", "url": sink.url(0, "/ok"), "concurrency": AT_A_TIME });
    server.hook(&settings)?;
    until_delivered(&server, sink, arguments.deliveries, || {
        server.publish(|_| "load.one".into(), arguments.deliveries, BATCH, CONNECTIONS)
    })
}

/// Each event goes to many endpoints.
fn many(arguments: &Arguments, sink: &Sink) -> Result<Cost, Failed> {
    let server = Server::start(&arguments.root)?;
    server.hooks(ENDPOINTS, |n| json!({ "pattern": "load.*", "url": sink.url(n, "/ok") }))?;
    let events = arguments.deliveries / ENDPOINTS;
    // A first event opens the connections.
    let first = sink.count()?;
    server.publish(|_| "load.all".into(), 1, 1, 1)?;
    sink.reaches(first + ENDPOINTS as u64, PATIENCE)?;
    until_delivered(&server, sink, events * ENDPOINTS, || server.publish(|_| "load.all".into(), events, 4, 2))
}

/// Publishes one event at a time at a pace, and returns when each was answered.
fn paced(
    server: &Server,
    pace: u64,
    lasting: Duration,
    event_type: &str,
) -> Result<HashMap<u64, u64>, Failed> {
    use std::io::{Read, Write};
    let mut socket = std::net::TcpStream::connect(server.address)?;
    socket.set_nodelay(true)?;
    let (mut answered, began, mut buffer) = (HashMap::new(), Instant::now(), [0; 4096]);
    for n in 0..pace * lasting.as_secs() {
        let due = Duration::from_nanos(1_000_000_000 / pace * n);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        let body = format!("{{\"events\":[{}]}}", event(event_type, n as usize, &timestamp()));
        let text = tidings_bench::request("POST /v1/bench/events", "application/json", &body);
        socket.write_all(text.as_bytes())?;
        let length = socket.read(&mut buffer)?;
        answered.insert(n, sink::now());
        if !buffer[..length].starts_with(b"HTTP/1.1 200") {
            return Err("an event was refused".into());
        }
    }
    Ok(answered)
}

/// Times from the answer to the first byte at an endpoint. Those that came before the answer did count as zero.
fn added(answered: &HashMap<u64, u64>, came: &[(u64, u64)]) -> Times {
    let mut times = Times::default();
    for (n, at) in came {
        if let Some(answered) = answered.get(n) {
            times.add(Duration::from_nanos(at.saturating_sub(*answered)));
        }
    }
    times
}

/// Time that the server adds between its answer and the first byte of the delivery.
pub fn latency(arguments: &Arguments) -> Result<(), Failed> {
    let (sink, server) = (Sink::start()?, Server::start(&arguments.root)?);
    server.hook(&json!({ "pattern": "load.one", "url": sink.url(0, "/timed") }))?;
    let answered = paced(&server, PACE, Duration::from_secs(arguments.secs), "load.one")?;
    sink.reaches(answered.len() as u64, PATIENCE)?;
    let mut times = added(&answered, &sink.times()?);
    let (half, most) = (times.quantile(0.5) / 1e3, times.quantile(0.99) / 1e3);
    println!("| from the answer to the first byte, {PACE} events/s | p50 | p99 |\n|---|---|---|");
    println!(
        "| one endpoint | {half:.2} ms | {most:.2} ms |\n\n| what | measured | goal | |\n|---|---|---|---|"
    );
    report("added latency, p50", &format!("{half:.2} ms"), "< 3 ms", half < 3.0);
    println!();
    Ok(())
}

/// What endpoints that never answer do to the others.
pub fn holes(arguments: &Arguments) -> Result<(), Failed> {
    let mut measured = Vec::new();
    for holes in [0, HOLES] {
        let (sink, server) = (Sink::start()?, Server::start(&arguments.root)?);
        let url = |n: usize| sink.url(n, if n < HEALTHY { "/timed" } else { "/hole" });
        server.hooks(HEALTHY + holes, |n| json!({ "pattern": "load.*", "url": url(n) }))?;
        let answered = paced(&server, HOLES_PACE, Duration::from_secs(arguments.secs), "load.all")?;
        sink.reaches((answered.len() * HEALTHY) as u64, PATIENCE)?;
        let mut times = added(&answered, &sink.times()?);
        measured.push([0.5, 0.99].map(|share| times.quantile(share) / 1e3));
    }
    let pace = grouped(HOLES_PACE as usize * HEALTHY);
    println!("| {HEALTHY} endpoints that answer, {pace} deliveries/s to them | p50 | p99 |\n|---|---|---|");
    println!("| alone | {:.2} ms | {:.2} ms |", measured[0][0], measured[0][1]);
    println!("| beside {HOLES} that never answer | {:.2} ms | {:.2} ms |", measured[1][0], measured[1][1]);
    let factor = measured[1][1] / measured[0][1];
    println!("\n| what | measured | goal | |\n|---|---|---|---|");
    report("p99 beside endpoints that never answer", &format!("{factor:.2}x"), "< 2x", factor < 2.0);
    println!();
    Ok(())
}

/// Retries that wait: their memory, and a restart with them.
pub fn parked(arguments: &Arguments) -> Result<(), Failed> {
    let (sink, mut server) = (Sink::start()?, Server::start(&arguments.root)?);
    let hooks = arguments.parked.div_ceil(PARKED_EACH);
    let settings = |n: usize| {
        let retries = json!([7 * 24 * 3600 * 1000u64]);
        json!({ "pattern": "load.*", "url": sink.url(n, "/busy"), "retrySchedule": retries, "concurrency": 256 })
    };
    server.hooks(hooks, settings)?;
    let last = server.hook(&settings(hooks))?;
    let before = server.usage().resident;
    server.publish(|_| "load.all".into(), PARKED_EACH, 10, 1)?;
    let count = (hooks + 1) * PARKED_EACH;
    sink.reaches(count as u64, PATIENCE)?;
    server.stat_reaches(&last, "failed", PARKED_EACH as u64, PATIENCE)?;
    std::thread::sleep(Duration::from_secs(2));
    let grown = server.usage().resident - before;
    server.kill()?;
    let began = Instant::now();
    server.launch()?;
    server.call("GET", &format!("/hooks/{last}"), &Value::Null)?;
    let restart = began.elapsed().as_secs_f64();
    server.stat_reaches(&last, "failed", PARKED_EACH as u64, PATIENCE)?;
    std::thread::sleep(Duration::from_secs(3));
    let Usage { resident, cpu } = server.usage();
    let megabytes = |bytes: f64| format!("{:.0} MB", bytes / 1e6);
    println!("| {} waiting retries of {} hooks | |\n|---|---|", grouped(count), grouped(hooks + 1));
    println!("| memory of the process before | {} |", megabytes(before));
    println!("| growth of memory while they came | {} |", megabytes(grown));
    println!("| memory of the whole process after a kill and a restart | {} |", megabytes(resident));
    println!("| restart until the first answer | {restart:.2} s |");
    println!("| CPU time of the first seconds | {cpu:.2} s |");
    println!("\n| what | measured | goal | |\n|---|---|---|---|");
    let (most, seconds) = (300e6 * count as f64 / 1e6, 3.0 * (count as f64 / 1e6).max(0.1));
    report(
        "memory of waiting retries",
        &megabytes(resident),
        &format!("< {}", megabytes(most)),
        resident < most,
    );
    report("restart", &format!("{restart:.2} s"), &format!("< {seconds:.1} s"), restart < seconds);
    println!();
    Ok(())
}
