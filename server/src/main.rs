//! The `tidings` command.

mod command;
mod greeting;
mod serve_command;
mod store_command;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match command::Command::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidings: {error}");
            ExitCode::FAILURE
        }
    }
}
