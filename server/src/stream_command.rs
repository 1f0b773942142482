//! `tidings stream`: create, list, append to, read and delete the streams of a running server.

use std::io::{self, Read, Write};

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::Value;
use serde_json::value::RawValue;
use tidings_model::{ProjectId, StreamId};

use crate::client::{Answer, Ask, Client, Wait, percent_encoded};
use crate::command::CommandError;
use tidings_server::duration;

/// Create, list, append to, read and delete the streams of a running server.
///
/// The token in TIDINGS_TOKEN is sent as the credential.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    export TIDINGS_TOKEN=$(tidings token --project shop --scope write --data ./tidings-data)\n  \
    tidings stream create orders --project shop --content-type application/json\n  \
    tidings stream append orders '{\"id\":1}' --project shop\n  \
    tidings stream read orders --follow --project shop")]
pub struct StreamCommand {
    #[command(subcommand)]
    verb: Verb,
    /// URL of the server.
    #[arg(
        long,
        env = "TIDINGS_SERVER",
        default_value = "http://127.0.0.1:4437",
        global = true,
        value_name = "URL"
    )]
    server: String,
    /// Project of the streams.
    #[arg(long, default_value = "_default", global = true, value_parser = ProjectId::parse)]
    project: ProjectId,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List streams.
    List(List),
    /// Create a stream. Succeeds without a change if it exists with the same configuration.
    Create(Create),
    /// Append an argument or standard input to a stream.
    Append(Append),
    /// Print the content of a stream; JSON messages one per line.
    Read(ReadVerb),
    /// Delete a stream.
    Delete(Named),
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidings stream list --prefix orders/ --project shop")]
struct List {
    /// List only streams whose id has this prefix.
    #[arg(long, default_value = "")]
    prefix: String,
    /// Print JSON, one stream per line.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidings stream create orders --content-type application/json --ttl 7d")]
struct Create {
    /// Stream id.
    #[arg(value_parser = StreamId::parse)]
    name: StreamId,
    /// Content type of the stream.
    #[arg(long, default_value = "application/octet-stream", value_name = "TYPE")]
    content_type: String,
    /// Time after its last use until the stream expires, such as 90s, 30m, 1h or 7d.
    #[arg(long, value_parser = duration::parse)]
    ttl: Option<std::time::Duration>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tidings stream append orders '{\"id\":1}'\n  gzip -dc old.gz | tidings stream append archive"
)]
struct Append {
    /// Stream id.
    #[arg(value_parser = StreamId::parse)]
    name: StreamId,
    /// Content to append [default: standard input].
    data: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tidings stream read orders\n  tidings stream read orders --offset now --follow"
)]
struct ReadVerb {
    /// Stream id.
    #[arg(value_parser = StreamId::parse)]
    name: StreamId,
    /// Offset to read from: -1 for the beginning, now for the tail, or an offset from the server.
    #[arg(long, default_value = "-1", allow_hyphen_values = true)]
    offset: String,
    /// Keep printing new messages until the stream is closed.
    #[arg(long, short)]
    follow: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidings stream delete orders")]
struct Named {
    /// Stream id.
    #[arg(value_parser = StreamId::parse)]
    name: StreamId,
}

impl StreamCommand {
    /// Runs the command.
    pub fn run(self) -> Result<(), CommandError> {
        let client = Client::new(&self.server, "TIDINGS_TOKEN")?;
        let streams = Streams { client, project: self.project };
        match self.verb {
            Verb::List(list) => streams.list(&list),
            Verb::Create(create) => streams.create(&create),
            Verb::Append(append) => streams.append(append),
            Verb::Read(read) => streams.read(&read),
            Verb::Delete(Named { name }) => {
                streams.client.ask(&Ask::new(Method::DELETE, &streams.path(&name)))?;
                println!("deleted {name}");
                Ok(())
            }
        }
    }
}

/// Client for the streams of one project.
struct Streams {
    client: Client,
    project: ProjectId,
}

impl Streams {
    fn path(&self, name: &StreamId) -> String {
        format!("/v1/{}/stream/{}", self.project, percent_encoded(name.as_str()))
    }

    fn list(&self, list: &List) -> Result<(), CommandError> {
        let mut out = io::stdout().lock();
        let first = format!("/v1/{}/streams?prefix={}", self.project, percent_encoded(&list.prefix));
        let mut path = first.clone();
        loop {
            let page = self.client.json(&self.client.ask(&Ask::new(Method::GET, &path))?)?;
            for stream in page["streams"].as_array().into_iter().flatten() {
                if list.json {
                    writeln!(out, "{stream}")?;
                } else {
                    let text = |key: &str| stream[key].as_str().unwrap_or_default();
                    let closed = if stream["closed"] == Value::Bool(true) { "  closed" } else { "" };
                    writeln!(out, "{}  {}{closed}", text("id"), text("contentType"))?;
                }
            }
            match page["nextCursor"].as_str() {
                Some(cursor) => path = format!("{first}&cursor={}", percent_encoded(cursor)),
                None => return Ok(()),
            }
        }
    }

    fn create(&self, create: &Create) -> Result<(), CommandError> {
        let ttl = create.ttl.map(|ttl| ttl.as_secs().to_string());
        let mut headers = vec![("content-type", create.content_type.as_str())];
        headers.extend(ttl.as_deref().map(|ttl| ("stream-ttl", ttl)));
        let path = self.path(&create.name);
        let answer = self.client.ask(&Ask { headers: &headers, ..Ask::new(Method::PUT, &path) })?;
        let done = if answer.status() == 201 { "created" } else { "was there:" };
        println!("{done} {}", create.name);
        Ok(())
    }

    fn append(&self, append: Append) -> Result<(), CommandError> {
        let path = self.path(&append.name);
        let data = match append.data {
            Some(data) => data.into_bytes(),
            None => {
                let mut data = Vec::new();
                io::stdin().lock().read_to_end(&mut data)?;
                data
            }
        };
        let known = self.client.ask(&Ask::new(Method::HEAD, &path))?;
        let headers = [("content-type", known.header("content-type").unwrap_or("application/octet-stream"))];
        let body = Some(data.as_slice());
        let answer = self.client.ask(&Ask { headers: &headers, body, ..Ask::new(Method::POST, &path) })?;
        println!("{}", answer.header("stream-next-offset").unwrap_or_default());
        Ok(())
    }

    fn read(&self, read: &ReadVerb) -> Result<(), CommandError> {
        let mut out = io::stdout().lock();
        let path = self.path(&read.name);
        let mut offset = read.offset.clone();
        let mut live = String::new();
        loop {
            let asked = format!("{path}?offset={}{live}", percent_encoded(&offset));
            // How long a server lets a reader wait is set there.
            let wait = if live.is_empty() { Wait::UntilTimeout } else { Wait::UntilAnswered };
            let answer = self.client.ask(&Ask { wait, ..Ask::new(Method::GET, &asked) })?;
            self.print(&answer, &mut out)?;
            out.flush()?;
            let is = |name: &str| answer.header(name) == Some("true");
            let at_tail = is("stream-up-to-date");
            if at_tail && (!read.follow || is("stream-closed")) {
                return Ok(());
            }
            let next = answer.header("stream-next-offset");
            offset = next.ok_or_else(|| self.client.unexpected_answer())?.to_owned();
            if at_tail {
                let cursor = answer.header("stream-cursor").map(|cursor| format!("&cursor={cursor}"));
                live = format!("&live=long-poll{}", cursor.unwrap_or_default());
            }
        }
    }

    fn print(&self, answer: &Answer, out: &mut impl Write) -> Result<(), CommandError> {
        let kind = answer.header("content-type").unwrap_or_default();
        if kind.split(';').next().map(str::trim) != Some("application/json") {
            return Ok(out.write_all(answer.body())?);
        }
        let messages: Vec<&RawValue> =
            serde_json::from_slice(answer.body()).map_err(|_| self.client.unexpected_answer())?;
        for message in messages {
            writeln!(out, "{message}")?;
        }
        Ok(())
    }
}
