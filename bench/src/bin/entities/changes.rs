//! How long changes take to the sockets, and how many there may be.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use tidings_bench::{Failed, Times, grouped, report};
use tokio::task::{JoinHandle, JoinSet};
use tokio_postgres::{AsyncMessage, NoTls};
use uuid::Uuid;

use super::Arguments;
use super::database::Database;
use super::server::{Server, prepare};
use super::watchers::{Clock, Watchers};

/// Connections on which the writer of a steady rate sends statements in turn.
const STEADY_WRITERS: usize = 16;
/// Rows that one transaction changes in the part about throughput.
const ROWS_A_COMMIT: usize = 20;

/// Latency at a steady rate, beside a bare `LISTEN`.
pub async fn latency(arguments: &Arguments, database: &Database) -> Result<(), Failed> {
    println!(
        "## Latency: {} changes/s, one a commit; {} subscriptions over {} connections, {} rows\n",
        grouped(arguments.rate as usize),
        grouped(arguments.subscriptions * arguments.connections),
        arguments.connections,
        grouped(arguments.entities)
    );
    println!("| from the statement, ms | changes/s made | times | p50 | p99 |\n|---|---|---|---|---|");
    bare_listen(arguments, database).await?;
    prepare(&arguments.binary, &database.url())?;
    let server = Server::start(arguments, database)?;
    let (clock, last) = (Arc::new(Clock::new(&database.ids)), Uuid::new_v4());
    let watchers = Watchers::open(
        server.address,
        arguments.connections,
        arguments.subscriptions,
        &database.ids,
        last,
        &clock,
    )
    .await?;
    let before = server.usage();
    let mut made = steady(arguments, database, "captured", &clock).await?;
    let cpu = server.usage().cpu - before.cpu;
    end_with(database, last).await?;
    watchers.finish().await?;
    let mut heard = clock.take();
    row("tidings, to a socket", made.rate, &mut heard.from_statement);
    row("the commits alone, captured", made.rate, &mut made.commits);
    let (half, most) = (heard.from_commit.quantile(0.5) / 1e3, heard.from_commit.quantile(0.99) / 1e3);
    println!("\n| what | measured | goal | |\n|---|---|---|---|");
    report("from the answer to the commit, p50", &format!("{half:.2} ms"), "< 5 ms", half < 5.0);
    report("from the answer to the commit, p99", &format!("{most:.2} ms"), "< 50 ms", most < 50.0);
    println!("| CPU of the server per change | {:.0} µs | | |\n", cpu * 1e6 / made.count as f64);
    Ok(())
}

/// What a steady writer did.
struct Made {
    count: usize,
    rate: f64,
    /// Times from sending a statement to the answer.
    commits: Times,
}

fn row(what: &str, rate: f64, times: &mut Times) {
    let (half, most) = (times.quantile(0.5) / 1e3, times.quantile(0.99) / 1e3);
    println!("| {what} | {rate:.0} | {} | {half:.2} | {most:.2} |", grouped(times.count()));
}

/// The rows change in turn, each in a commit of its own, at the rate that is asked for.
async fn steady(
    arguments: &Arguments,
    database: &Database,
    table: &str,
    clock: &Arc<Clock>,
) -> Result<Made, Failed> {
    let writers = database.writers(table, STEADY_WRITERS).await?;
    let writers: Vec<_> = writers.into_iter().map(Arc::new).collect();
    let count = (arguments.rate * arguments.secs) as usize;
    let (began, mut running) = (Instant::now(), JoinSet::new());
    for n in 0..count {
        let due = Duration::from_nanos(1_000_000_000 / arguments.rate * n as u64);
        if let Some(wait) = due.checked_sub(began.elapsed()) {
            tokio::time::sleep(wait).await;
        }
        let (writer, clock) = (writers[n % writers.len()].clone(), clock.clone());
        let (row, id) = (n % database.ids.len(), database.ids[n % database.ids.len()]);
        running.spawn(async move {
            let sent = Instant::now();
            clock.sends(row);
            writer.update(&[id]).await?;
            clock.answers(row);
            Ok::<_, tokio_postgres::Error>(sent.elapsed())
        });
    }
    let mut commits = Times::default();
    while let Some(ended) = running.join_next().await {
        commits.add(ended??);
    }
    Ok(Made { count, rate: count as f64 / began.elapsed().as_secs_f64(), commits })
}

/// Changes the row that ends a run: it is new, and in the captured table.
async fn end_with(database: &Database, last: Uuid) -> Result<(), Failed> {
    let client = database.client().await?;
    client.execute("INSERT INTO captured (id, text) VALUES ($1, '')", &[&last]).await?;
    client.execute("DELETE FROM captured WHERE id = $1", &[&last]).await?;
    Ok(())
}

/// The baseline: one connection that listens to what a trigger notifies of the same changes.
async fn bare_listen(arguments: &Arguments, database: &Database) -> Result<(), Failed> {
    let clock = Arc::new(Clock::new(&database.ids));
    let listener = Listener::start(database, &clock).await?;
    let mut made = steady(arguments, database, "notified", &clock).await?;
    listener.finish(database).await?;
    let mut heard = clock.take();
    row("bare LISTEN, to a connection of the database", made.rate, &mut heard.from_statement);
    row("the commits alone, which notify", made.rate, &mut made.commits);
    Ok(())
}

/// A connection that hears notifications until it is told to end.
struct Listener {
    task: JoinHandle<Result<(), tokio_postgres::Error>>,
    /// Kept, since the connection ends without it.
    _client: tokio_postgres::Client,
}

impl Listener {
    async fn start(database: &Database, clock: &Arc<Clock>) -> Result<Self, Failed> {
        let (client, mut connection) = tokio_postgres::connect(&database.url(), NoTls).await?;
        let clock = clock.clone();
        let task = tokio::spawn(async move {
            let mut messages = stream::poll_fn(move |cx| connection.poll_message(cx));
            while let Some(message) = messages.next().await {
                match message? {
                    AsyncMessage::Notification(heard) if heard.payload() == "end" => break,
                    AsyncMessage::Notification(heard) => clock.hears(heard.payload()),
                    _ => {}
                }
            }
            Ok(())
        });
        client.batch_execute("LISTEN bare").await?;
        Ok(Self { task, _client: client })
    }

    async fn finish(self, database: &Database) -> Result<(), Failed> {
        database.client().await?.batch_execute("NOTIFY bare, 'end'").await?;
        Ok(self.task.await??)
    }
}

/// Changes as fast as writers commit them, until the last one is heard.
pub async fn throughput(arguments: &Arguments, database: &Database) -> Result<(), Failed> {
    prepare(&arguments.binary, &database.url())?;
    let rows = ROWS_A_COMMIT.min(database.ids.len() / arguments.writers).max(1);
    println!(
        "## Throughput: {} writers, {rows} rows a commit; {} subscriptions over {} connections\n",
        arguments.writers,
        grouped(arguments.subscriptions * arguments.connections),
        arguments.connections
    );
    let alone = database.commits("bare", arguments.writers, rows, arguments.lasting()).await?;
    let server = Server::start(arguments, database)?;
    let (clock, last) = (Arc::new(Clock::new(&database.ids)), Uuid::new_v4());
    let watchers = Watchers::open(
        server.address,
        arguments.connections,
        arguments.subscriptions,
        &database.ids,
        last,
        &clock,
    )
    .await?;
    let (before, began) = (server.usage(), Instant::now());
    let made = database.commits("captured", arguments.writers, rows, arguments.lasting()).await?;
    let (committed, total) = (began.elapsed(), (made.count * rows as u64) as f64);
    end_with(database, last).await?;
    let heard = watchers.finish().await?;
    let (all, usage) = (began.elapsed(), server.usage());
    let (behind, sustained) = (all.saturating_sub(committed), total / all.as_secs_f64());
    let changed = |rate: f64| grouped((rate * rows as f64) as usize);
    println!("| what | measured | goal | |\n|---|---|---|---|");
    println!("| rows changed/s without capture | {} | | |", changed(alone.rate));
    println!("| rows changed/s, captured and told | {} | | |", changed(made.rate));
    let goal = 20_000.0;
    let figure = grouped(sustained as usize);
    report("changes/s until the last was heard by all", &figure, ">= 20,000", sustained >= goal);
    println!("| the last heard after the last commit | {:.0} ms | | |", behind.as_secs_f64() * 1e3);
    let each = arguments.subscriptions * arguments.connections;
    let owed = total * each as f64 / database.ids.len() as f64;
    println!("| deliveries/s | {} | | |", grouped((heard as f64 / all.as_secs_f64()) as usize));
    println!(
        "| changes that were joined to a newer one | {:.0} % | | |",
        (1.0 - heard as f64 / owed).max(0.0) * 100.0
    );
    println!("| CPU of the server per change | {:.0} µs | | |", (usage.cpu - before.cpu) * 1e6 / total);
    println!("| memory of the server | {:.0} MB | | |\n", usage.resident / 1e6);
    Ok(())
}
