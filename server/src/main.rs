//! The `tidings` command.

mod command;
mod logs;
#[cfg(feature = "otlp")]
mod otlp;
mod store_command;

use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    match command::Command::parse().run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidings: {error}");
            ExitCode::FAILURE
        }
    }
}
