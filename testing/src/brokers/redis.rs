//! A private Redis.

use std::path::Path;

use tokio::process::Command;

/// The command of a Redis that stores nothing.
pub(super) fn command(port: u16, folder: &Path) -> Command {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(folder);
    command
}
