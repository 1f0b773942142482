//! The `tidings` command.

mod admin;
mod client;
mod command;
mod entities_command;
mod greeting;
mod hooks_command;
mod logs;
#[cfg(feature = "otlp")]
mod otlp;
mod outgoing;
mod project_command;
mod serve_command;
mod store_command;
mod stream_command;
mod token_command;

use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Parser;

use crate::command::CommandError;

/// Every append allocates on one thread what another frees; this one is made for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match command::Command::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has had enough.
        Err(CommandError::Stopped(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidings: {error}");
            ExitCode::FAILURE
        }
    }
}
