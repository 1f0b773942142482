//! Follows a room and prints its events to stdout, one per line; state changes of the client go to stderr.
//!
//! ```text
//! follow SERVER PROJECT ROOM [--websocket] [--last-seen FILE]
//! ```
//!
//! The token, if needed, is read from `TIDINGS_TOKEN`. With `--last-seen` it resumes where it stopped.

use std::convert::Infallible;
use std::process::ExitCode;

use tidings_client::rooms::{
    Client, ConnectionState, Credential, Event, Handler, InFile, InMemory, LastSeen, MissedEvents,
    NoCredential, Stopped, Target, Token, Wire,
};

struct Print;

impl Handler for Print {
    type Error = Infallible;

    async fn event(&mut self, event: &Event) -> Result<(), Infallible> {
        println!("{} {} {} {}", event.cursor, event.emitted_at, event.kind.name(), event.payload);
        Ok(())
    }

    fn skipped(&mut self, skip: &MissedEvents) {
        eprintln!("events are lost ({}): continuing with later ones", skip.name);
    }

    fn state(&mut self, state: &ConnectionState) {
        match state {
            ConnectionState::Disconnected => eprintln!("disconnected"),
            ConnectionState::Connecting => eprintln!("connecting"),
            ConnectionState::Streaming => eprintln!("streaming"),
            ConnectionState::Backoff { wait, why } => eprintln!("waiting {} ms: {why:?}", wait.as_millis()),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let (mut words, mut wire, mut last_seen) = (Vec::new(), Wire::Sse, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--websocket" => wire = Wire::WebSocket,
            "--last-seen" => last_seen = arguments.next(),
            _ => words.push(argument),
        }
    }
    let [server, project, room] = &words[..] else {
        eprintln!("usage: follow SERVER PROJECT ROOM [--websocket] [--last-seen FILE]");
        return ExitCode::from(2);
    };
    let target = match Target::new(server, project, room) {
        Ok(target) => target.on(wire),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let stopped = match last_seen {
        Some(file) => follow(target, InFile::at(file)).await,
        None => follow(target, InMemory::default()).await,
    };
    eprintln!("{stopped}");
    ExitCode::FAILURE
}

async fn follow(target: Target, last_seen: impl LastSeen) -> Stopped {
    match std::env::var("TIDINGS_TOKEN") {
        Ok(token) => run(target, last_seen, Token(token)).await,
        Err(_) => run(target, last_seen, NoCredential).await,
    }
}

async fn run(target: Target, last_seen: impl LastSeen, credential: impl Credential) -> Stopped {
    Client::new(target, Print, last_seen).with_credential(credential).run().await
}
