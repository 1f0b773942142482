//! What capturing changes costs those who commit them.

use tidings_bench::{Failed, grouped, report};

use super::Arguments;
use super::database::Database;
use super::server::{Server, prepare};

/// Rounds, in which the tables take turns.
const ROUNDS: u32 = 3;

/// Commits per second of single rows: without capture, with it, with a server that reads, and with a trigger that notifies.
pub async fn measure(arguments: &Arguments, database: &Database) -> Result<(), Failed> {
    prepare(&arguments.binary, &database.url())?;
    let cases = ["bare", "captured", "notified"];
    let mut sums = [0.0; 4];
    let lasting = arguments.lasting() / ROUNDS;
    for _ in 0..ROUNDS {
        for (sum, table) in sums.iter_mut().zip(cases) {
            *sum += database.commits(table, arguments.writers, 1, lasting).await?.rate;
        }
        // It wants the cores, too, so it runs only here.
        let server = Server::start(arguments, database)?;
        sums[3] += database.commits("captured", arguments.writers, 1, lasting).await?.rate;
        drop(server);
    }
    let rates = sums.map(|sum| sum / f64::from(ROUNDS));
    println!(
        "## Capture: commits of one row, {} writers\n\n| table | commits/s | of those without |\n|---|---|---|",
        arguments.writers
    );
    let names = ["without capture", "captured", "a trigger that notifies", "captured, and a server reads"];
    for (name, rate) in names.iter().zip(rates) {
        println!("| {name} | {} | {:.0} % |", grouped(rate as usize), rate / rates[0] * 100.0);
    }
    let share = rates[1] / rates[0];
    println!("\n| what | measured | goal | |\n|---|---|---|---|");
    report("commits/s with capture", &format!("{:.0} %", share * 100.0), ">= 90 %", share >= 0.9);
    println!();
    Ok(())
}
