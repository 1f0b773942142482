//! The startup message: where the server listens, where its data is, and commands to try.

use std::fmt;
use std::io::{self, IsTerminal};

use tidings_server::{Config, Server};

/// Prints the startup message to stdout, with colours if that is a terminal.
pub fn greet(config: &Config, server: &Server) {
    let address = server.address();
    let scheme = if config.tls().is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{address}");
    let style = TerminalStyle::of_stdout();
    println!("{} {} serves on {}", style.bold("tidings"), env!("CARGO_PKG_VERSION"), style.bold(&url));
    println!("data: {}", config.data.display());
    if let Some(address) = config.observe.metrics_listen {
        println!("metrics: http://{address}/metrics");
    }
    println!("try:");
    let commands = if config.dev { open_commands(&url) } else { guarded_commands(&url, server) };
    for command in commands {
        println!("  {}", style.hint(&command));
    }
}

fn open_commands(url: &str) -> [String; 3] {
    [
        format!("curl -i -X PUT {url}/v1/stream/hello -H 'content-type: text/plain'"),
        format!("curl -i -X POST {url}/v1/stream/hello -H 'content-type: text/plain' -d 'good tidings'"),
        format!("curl -N '{url}/v1/stream/hello?offset=-1&live=sse'"),
    ]
}

/// Commands for a server that requires credentials: create a token, then use it.
fn guarded_commands(url: &str, server: &Server) -> [String; 3] {
    let projects = server.projects().list();
    let project = projects.first().map_or("NAME", |listed| listed.project.as_str());
    let token = "-H \"authorization: Bearer $TIDINGS_TOKEN\"";
    let mint = format!("tidings token --project {project} --scope write --server {url}");
    [
        format!("export TIDINGS_TOKEN=$(TIDINGS_ADMIN_KEY=KEY {mint})"),
        format!(
            "curl -i -X PUT {url}/v1/{project}/stream/hello {token} -H 'content-type: text/plain' -d 'good tidings'"
        ),
        format!("curl -N '{url}/v1/{project}/stream/hello?offset=-1&live=sse' {token}"),
    ]
}

/// Terminal styles, if stdout is a terminal.
pub struct TerminalStyle {
    on: bool,
}

impl TerminalStyle {
    /// Creates styles for stdout. They are off if stdout is no terminal or `NO_COLOR` is set and not empty.
    pub fn of_stdout() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|text| !text.is_empty());
        Self { on: io::stdout().is_terminal() && !unwanted }
    }

    /// Creates styles that are off.
    #[cfg(test)]
    pub fn off() -> Self {
        Self { on: false }
    }

    /// Renders text in bold.
    pub fn bold<'a>(&self, text: &'a str) -> Styled<'a> {
        self.styled("1", text)
    }

    /// Renders text in the colour of suggested commands.
    pub fn hint<'a>(&self, text: &'a str) -> Styled<'a> {
        self.styled("36", text)
    }

    fn styled<'a>(&self, style: &'static str, text: &'a str) -> Styled<'a> {
        Styled { style: self.on.then_some(style), text }
    }
}

/// Text with an optional terminal style.
pub struct Styled<'a> {
    style: Option<&'static str>,
    text: &'a str,
}

impl fmt::Display for Styled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.style {
            Some(style) => write!(f, "\x1b[{style}m{}\x1b[0m", self.text),
            None => f.write_str(self.text),
        }
    }
}
