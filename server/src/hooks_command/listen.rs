//! `tidings hooks listen`: a receiver of deliveries on this machine, for trying hooks.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::ffi::OsStr;
use std::io::{self, ErrorKind, Write};
use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::Bytes;
use clap::builder::TypedValueParser;
use clap::error::ErrorKind as ArgumentError;
use clap::{Arg, Args, Command};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tidings_engine::{Clock, WallClock};
use tidings_hooks::Secret;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::received::{Received, parse_secret};
use crate::command::CommandError;
use crate::greeting::TerminalStyle;

/// Connections at a time.
const CONNECTIONS: usize = 512;
/// Bytes of a body. An event has at most 10 KiB when it is ingested; a message of a stream may be larger.
const BODY_BYTES: usize = 16 * 1024 * 1024;
/// Time for the head of a request, and for its body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests that wait to be printed.
const WAITING: usize = 16;
/// Ids of deliveries that are remembered.
const IDS: usize = 10_000;
/// Body of each response.
const ANSWER: &str = "answered by tidings hooks listen\n";

/// Receive deliveries on this machine, print them and verify their signatures.
///
/// Listens on 127.0.0.1 only, until it is interrupted (Ctrl-C). A server calls it only if its configuration allows this
/// target; with --dev it does.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings hooks listen --port 9000\n  \
    tidings hooks listen --port 9000 --secret whsec_… --status 503")]
pub struct Listen {
    /// Port to listen on; 0 for any that is free.
    #[arg(long, default_value_t = 9000)]
    port: u16,
    /// Secret of the hook, to verify signatures with.
    #[arg(long, env = "TIDINGS_HOOK_SECRET", hide_env_values = true, value_parser = SecretParser)]
    secret: Option<Secret>,
    /// Status of each response, from 200 to 599.
    #[arg(long, default_value = "200", value_parser = status)]
    status: StatusCode,
    /// Print JSON, one delivery per line.
    #[arg(long)]
    json: bool,
}

fn status(text: &str) -> Result<StatusCode, &'static str> {
    let status = text.parse().ok().filter(|status| (200..600).contains(status));
    status.and_then(|status| StatusCode::from_u16(status).ok()).ok_or("a status is a number from 200 to 599")
}

/// Parses a secret. What is wrong with it is told without the text, which may be nearly a secret.
#[derive(Clone)]
struct SecretParser;

impl TypedValueParser for SecretParser {
    type Value = Secret;

    fn parse_ref(&self, command: &Command, _: Option<&Arg>, text: &OsStr) -> Result<Secret, clap::Error> {
        parse_secret(text.to_str().unwrap_or_default()).map_err(|why| {
            clap::Error::raw(ArgumentError::ValueValidation, format!("--secret: {why}\n")).with_cmd(command)
        })
    }
}

impl Listen {
    /// Receives deliveries until it is interrupted.
    pub fn run(self) -> Result<(), CommandError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let out = &mut io::stdout();
        runtime.block_on(async {
            let (listener, url) = self.bind().await?;
            eprintln!("listening on {url}, answering {}; Ctrl-C ends it", self.status);
            if self.secret.is_none() {
                eprintln!("signatures are not verified; give the secret of the hook with --secret");
            }
            tokio::select! {
                interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
                failed = self.receive(listener, out) => Ok(failed?),
            }
        })
    }

    async fn bind(&self) -> Result<(TcpListener, String), CommandError> {
        let address = (Ipv4Addr::LOCALHOST, self.port);
        let port = self.port;
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|error| CommandError::Listen { port, error })?;
        let url = format!("http://{}/", listener.local_addr()?);
        Ok((listener, url))
    }

    /// Receives and prints deliveries. Returns only if that fails.
    async fn receive(&self, listener: TcpListener, out: &mut impl Write) -> io::Result<()> {
        // Dropped with this future, which ends them.
        let mut connections = JoinSet::new();
        let (sender, mut waiting) = mpsc::channel(WAITING);
        let mut ids = SeenIds::default();
        let style = TerminalStyle::of_stdout();
        loop {
            tokio::select! {
                accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                    Ok((socket, _)) => drop(connections.spawn(serve(socket, sender.clone(), self.status))),
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                    Err(error) => return Err(error),
                },
                Some(_) = connections.join_next() => {}
                Some(mut received) = waiting.recv() => {
                    received.times = ids.count(received.webhook_id());
                    let verification = received.verify(self.secret.as_ref());
                    let text = match self.json {
                        true => received.json(&verification),
                        false => received.text(&verification, &style),
                    };
                    out.write_all(text.as_bytes())?;
                    out.flush()?;
                }
            }
        }
    }
}

async fn serve(socket: TcpStream, sender: mpsc::Sender<Received>, status: StatusCode) {
    let service = service_fn(move |request| answer(request, sender.clone(), status));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
    // A client that breaks off has its reasons.
    let _ = http.serve_connection(TokioIo::new(socket), service).await;
}

async fn answer(
    request: Request<Incoming>,
    sender: mpsc::Sender<Received>,
    status: StatusCode,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = match timeout(REQUEST_TIMEOUT, Limited::new(body, BODY_BYTES).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return Ok(response(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large\n"));
        }
        Ok(Err(_)) => return Ok(response(StatusCode::BAD_REQUEST, "the body is not complete\n")),
        Err(_) => return Ok(response(StatusCode::REQUEST_TIMEOUT, "the body takes too long\n")),
    };
    let (method, uri, headers) = (head.method, head.uri, head.headers);
    let received = Received { method, uri, headers, body, at: WallClock.now(), times: 1 };
    // Fails only when the command ends.
    let _ = sender.send(received).await;
    Ok(response(status, ANSWER))
}

fn response(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let has_body =
        !matches!(status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED);
    let mut response = Response::new(Full::from(if has_body { text } else { "" }));
    *response.status_mut() = status;
    response
}

/// Counts requests by the ids of their deliveries. Forgets the ids that came first.
#[derive(Default)]
struct SeenIds {
    times: HashMap<String, usize>,
    order: VecDeque<String>,
}

impl SeenIds {
    fn count(&mut self, id: Option<&str>) -> usize {
        let Some(id) = id else { return 1 };
        if let Some(times) = self.times.get_mut(id) {
            *times += 1;
            return *times;
        }
        if self.order.len() == IDS
            && let Some(first) = self.order.pop_front()
        {
            self.times.remove(&first);
        }
        self.times.insert(id.to_owned(), 1);
        self.order.push_back(id.to_owned());
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outgoing::Outgoing;

    fn listen(status: StatusCode) -> Listen {
        Listen { port: 0, secret: None, status, json: true }
    }

    /// Sends requests one after the other, and returns the statuses of the responses and what was printed.
    async fn send(listen: Listen, bodies: Vec<Bytes>) -> (Vec<u16>, String) {
        let (listener, url) = listen.bind().await.expect("a free port");
        let mut printed = Vec::new();
        let sending = async {
            let http = Outgoing::new().expect("a client");
            let mut statuses = Vec::new();
            for body in bodies {
                let request = Request::post(format!("{url}in")).header("webhook-id", "D1").body(body);
                let answer = http.send(request.expect("a request"), 1000).await.expect("an answer");
                statuses.push(answer.status().as_u16());
            }
            statuses
        };
        let statuses = tokio::select! {
            biased;
            ended = listen.receive(listener, &mut printed) => panic!("{ended:?}"),
            statuses = sending => statuses,
        };
        (statuses, String::from_utf8(printed).expect("text"))
    }

    #[tokio::test]
    async fn each_request_is_answered_and_printed() {
        let bodies = vec!["{\"type\":\"a.b\"}".into(), Bytes::new()];
        let (statuses, printed) = send(listen(StatusCode::SERVICE_UNAVAILABLE), bodies).await;
        assert_eq!(statuses, [503, 503]);
        let lines: Vec<serde_json::Value> =
            printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let [first, second] = &lines[..] else { panic!("two lines, not {printed}") };
        assert_eq!(
            (&first["type"], &first["times"], &first["path"]),
            (&"a.b".into(), &1.into(), &"/in".into())
        );
        assert_eq!((&second["body"], &second["times"]), (&"".into(), &2.into()));
    }

    #[tokio::test]
    async fn a_status_without_a_body_has_none() {
        assert_eq!(send(listen(StatusCode::NO_CONTENT), vec!["{}".into()]).await.0, [204]);
    }

    #[tokio::test]
    async fn a_body_that_is_too_large_is_refused_and_not_printed() {
        let bodies = vec![Bytes::from(vec![b'x'; BODY_BYTES + 1])];
        let (statuses, printed) = send(listen(StatusCode::OK), bodies).await;
        assert_eq!((statuses, printed.as_str()), (vec![413], ""));
    }

    #[tokio::test]
    async fn a_port_in_use_is_told() {
        let (taken, _) = listen(StatusCode::OK).bind().await.expect("a free port");
        let port = taken.local_addr().expect("an address").port();
        let error = Listen { port, ..listen(StatusCode::OK) }.bind().await.expect_err("in use");
        assert!(error.to_string().starts_with(&format!("cannot listen on 127.0.0.1:{port}: ")), "{error}");
    }

    #[test]
    fn a_status_is_a_number_from_200_to_599() {
        assert_eq!(status("599"), Ok(StatusCode::from_u16(599).expect("a status")));
        for bad in ["", "199", "600", "ok", "-1"] {
            assert!(status(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_are_counted_and_those_that_came_first_are_forgotten() {
        let mut ids = SeenIds::default();
        assert_eq!([None, None, Some("a"), Some("a")].map(|id| ids.count(id)), [1, 1, 1, 2]);
        for n in 0..IDS {
            ids.count(Some(&n.to_string()));
        }
        assert_eq!((ids.count(Some("a")), ids.times.len(), ids.order.len()), (1, IDS, IDS));
    }
}
