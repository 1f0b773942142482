//! A private NATS server.

use tokio::process::Command;

/// The command of a NATS server without JetStream.
pub(super) fn command(port: u16) -> Command {
    let mut command = Command::new("nats-server");
    command.args(["--addr", "127.0.0.1", "--port", &port.to_string()]);
    command
}
