//! What is said when the server serves: where, on what data, and what to try.

use std::fmt;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;

use tidings_server::Config;

/// Says it on stdout: with some emphasis to people, plainly to programs.
pub fn greet(config: &Config, address: SocketAddr) {
    let scheme = if config.tls().is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{address}");
    let ink = Ink::of_stdout();
    println!("{} {} serves on {}", ink.bold("tidings"), env!("CARGO_PKG_VERSION"), ink.bold(&url));
    println!("data: {}", config.data.display());
    if let Some(address) = config.observe.metrics_listen {
        println!("metrics: http://{address}/metrics");
    }
    println!("try:");
    for command in commands(&url) {
        println!("  {}", ink.faint(&command));
    }
}

fn commands(url: &str) -> [String; 3] {
    [
        format!("curl -i -X PUT {url}/v1/stream/hello -H 'content-type: text/plain'"),
        format!("curl -i -X POST {url}/v1/stream/hello -H 'content-type: text/plain' -d 'good tidings'"),
        format!("curl -N '{url}/v1/stream/hello?offset=-1&live=sse'"),
    ]
}

/// Emphasis, where there is somebody to see it.
pub struct Ink {
    on: bool,
}

impl Ink {
    /// For what goes to stdout. `NO_COLOR` with any text in it turns it off.
    pub fn of_stdout() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|text| !text.is_empty());
        Self { on: io::stdout().is_terminal() && !unwanted }
    }

    /// What matters.
    pub fn bold<'a>(&self, text: &'a str) -> Inked<'a> {
        self.ink("1", text)
    }

    /// What can be read later.
    pub fn faint<'a>(&self, text: &'a str) -> Inked<'a> {
        self.ink("36", text)
    }

    fn ink<'a>(&self, style: &'static str, text: &'a str) -> Inked<'a> {
        Inked { style: self.on.then_some(style), text }
    }
}

/// Text with or without emphasis.
pub struct Inked<'a> {
    style: Option<&'static str>,
    text: &'a str,
}

impl fmt::Display for Inked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.style {
            Some(style) => write!(f, "\x1b[{style}m{}\x1b[0m", self.text),
            None => f.write_str(self.text),
        }
    }
}
