//! A client of a running server, for commands. It waits for its answers, so it stays off the server's own runtime.

use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::outgoing::{Outgoing, OutgoingError};

/// Bytes of an answer that are read. A server sends a chunk, or one message that may be larger than a chunk.
const ANSWER_BYTES: usize = 256 * 1024 * 1024;
/// How long an answer may take, all of it, unless it waits for what comes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A server, and who asks it.
pub struct Client {
    http: Outgoing,
    runtime: Runtime,
    answer_timeout: Duration,
    server: String,
    credential: Option<String>,
    /// Where that was, or could be.
    variable: &'static str,
}

/// Why there is no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// It cannot be reached, or does not speak as a server does.
    #[error("no answer from {server}: {error}")]
    Unreachable {
        /// Its URL.
        server: String,
        /// What happened.
        error: OutgoingError,
    },
    /// The command itself cannot send requests.
    #[error("cannot send requests: {0}")]
    Setup(#[from] std::io::Error),
    /// The credential cannot be sent in a header.
    #[error("the credential in {0} is not plain text in one line")]
    Credential(&'static str),
    /// It says no.
    #[error("{server} refuses: {message} ({status}){hint}")]
    Refused {
        /// What to do, perhaps.
        hint: String,
        /// Its URL.
        server: String,
        /// Its words.
        message: String,
        /// And its status.
        status: StatusCode,
    },
    /// It says something else than was to be expected.
    #[error("{0} does not answer as a tidings server does")]
    Strange(String),
}

/// What to ask.
pub struct Ask<'a> {
    pub method: Method,
    /// The path and query.
    pub path: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub body: Option<&'a [u8]>,
    pub patience: Patience,
}

/// How long to wait for an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Not for ever.
    Some,
    /// For as long as the server keeps it.
    Endless,
}

impl<'a> Ask<'a> {
    /// Without headers and body.
    pub fn new(method: Method, path: &'a str) -> Self {
        Self { method, path, headers: &[], body: None, patience: Patience::Some }
    }
}

/// A good answer.
pub struct Answer {
    response: Response<Bytes>,
}

impl Client {
    /// A client of the server at a URL, with what was in the variable of that name, if anything.
    pub fn new(server: &str, variable: &'static str) -> Result<Self, ClientError> {
        Self::with_timeout(server, variable, ANSWER_TIMEOUT)
    }

    fn with_timeout(
        server: &str,
        variable: &'static str,
        answer_timeout: Duration,
    ) -> Result<Self, ClientError> {
        let credential = std::env::var_os(variable).filter(|credential| !credential.is_empty());
        let credential = match credential {
            None => None,
            Some(text) => match text.into_string() {
                Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => Some(text),
                _ => return Err(ClientError::Credential(variable)),
            },
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let server = server.trim_end_matches('/').to_owned();
        Ok(Self { http: Outgoing::new()?, runtime, answer_timeout, server, credential, variable })
    }

    /// Asks, and waits for the answer. What is not 2xx is an error.
    pub fn ask(&self, ask: &Ask<'_>) -> Result<Answer, ClientError> {
        let mut request = Request::builder().method(&ask.method).uri(format!("{}{}", self.server, ask.path));
        if let Some(credential) = &self.credential {
            request = request.header("authorization", format!("Bearer {credential}"));
        }
        for (name, value) in ask.headers {
            request = request.header(*name, *value);
        }
        let unreachable = |error| ClientError::Unreachable { server: self.server.clone(), error };
        let body = Bytes::copy_from_slice(ask.body.unwrap_or_default());
        let request = request.body(body).map_err(|error| unreachable(OutgoingError::of(error)))?;
        let answering = self.http.send(request, ANSWER_BYTES);
        let answered = self.runtime.block_on(async {
            match ask.patience {
                Patience::Endless => answering.await,
                Patience::Some => tokio::time::timeout(self.answer_timeout, answering)
                    .await
                    .unwrap_or_else(|_| Err(OutgoingError::timed_out(self.answer_timeout))),
            }
        });
        let answer = Answer { response: answered.map_err(unreachable)? };
        if answer.status().is_success() { Ok(answer) } else { Err(self.refused(&answer)) }
    }

    /// The JSON of an answer.
    pub fn json(&self, answer: &Answer) -> Result<Value, ClientError> {
        serde_json::from_slice(answer.body()).map_err(|_| self.strange())
    }

    /// The answer is not as it should be.
    pub fn strange(&self) -> ClientError {
        ClientError::Strange(self.server.clone())
    }

    fn refused(&self, answer: &Answer) -> ClientError {
        let told: Option<Value> = serde_json::from_slice(answer.body()).ok();
        let message = told.as_ref().and_then(|told| told["error"]["message"].as_str());
        let message = message.unwrap_or("it does not say why").to_owned();
        let hint = match (answer.status(), &self.credential) {
            (StatusCode::UNAUTHORIZED, None) => format!("; {} is not set", self.variable),
            (StatusCode::UNAUTHORIZED, Some(_)) => format!("; it was sent what {} holds", self.variable),
            _ => String::new(),
        };
        ClientError::Refused { hint, server: self.server.clone(), message, status: answer.status() }
    }
}

impl Answer {
    /// Its status.
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// A header, if it is there and text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// Its body.
    pub fn body(&self) -> &[u8] {
        self.response.body()
    }
}

/// A name as a part of a path or the value of a query. Slashes stay.
pub fn percent_encoded(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(char::from(byte))
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_does_not_come_is_not_waited_for_unless_it_is_to_be() {
        // Takes connections, as the system does, and answers only when told.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let server = format!("http://{}", silent.local_addr().expect("an address"));
        let soon = Duration::from_millis(50);
        let client = || Client::with_timeout(&server, "TIDINGS_TOKEN", soon).expect("a client");
        let endless = client();
        let asking = std::thread::spawn(move || {
            let ask = Ask { patience: Patience::Endless, ..Ask::new(Method::GET, "/health") };
            endless.ask(&ask).map(|answer| answer.status())
        });
        let mut waits = silent.accept().expect("the one that waits").0;
        let Err(told) = client().ask(&Ask::new(Method::GET, "/health")) else { panic!("nobody answered") };
        assert!(told.to_string().starts_with(&format!("no answer from {server}: timeout")), "{told}");
        // The other has waited for longer than that, and is answered after all.
        let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        std::io::Write::write_all(&mut waits, ok).expect("it listens");
        assert_eq!(asking.join().expect("no panic").expect("an answer"), StatusCode::OK);
    }

    #[test]
    fn what_has_a_meaning_in_a_path_is_encoded() {
        assert_eq!(percent_encoded("a/b-c_d.e~f"), "a/b-c_d.e~f");
        assert_eq!(percent_encoded("50% ?#ü"), "50%25%20%3F%23%C3%BC");
    }
}
