//! Blocking client of a running server, for commands. It has its own runtime, so it must not be used on the server's
//! runtime.

use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::outgoing::{Outgoing, OutgoingError};

/// Maximum size of a response body, in bytes. A server sends one chunk, or a single message, which may be larger than
/// a chunk.
const ANSWER_BYTES: usize = 256 * 1024 * 1024;
/// Timeout for a complete response, except for requests that wait for new records.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A server, and the credential to use with it.
pub struct Client {
    http: Outgoing,
    runtime: Runtime,
    answer_timeout: Duration,
    server: String,
    credential: Option<String>,
    /// Environment variable the credential is read from.
    variable: &'static str,
}

/// Why a request has no successful response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server cannot be reached, or the response is not valid HTTP.
    #[error("no answer from {server}: {error}")]
    Unreachable {
        /// URL of the server.
        server: String,
        /// Cause of the failure.
        error: OutgoingError,
    },
    /// The client itself could not be set up.
    #[error("cannot send requests: {0}")]
    Setup(#[from] std::io::Error),
    /// The credential cannot be sent in a header.
    #[error("the credential in {0} is not plain text in one line")]
    Credential(&'static str),
    /// The server refused the request.
    #[error("{server} refuses: {message} ({status}){hint}")]
    Refused {
        /// Advice on what to do, or empty.
        hint: String,
        /// URL of the server.
        server: String,
        /// Error message from the server.
        message: String,
        /// HTTP status of the response.
        status: StatusCode,
    },
    /// The response is not what a tidings server sends.
    #[error("{0} does not answer as a tidings server does")]
    Unexpected(String),
}

/// A request to the server.
pub struct Ask<'a> {
    pub method: Method,
    /// Path and query.
    pub path: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub body: Option<&'a [u8]>,
    pub wait: Wait,
}

/// How long to wait for a response.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Until the client's timeout expires.
    UntilTimeout,
    /// Until the server ends the response.
    UntilAnswered,
}

impl<'a> Ask<'a> {
    /// Creates a request without headers or a body.
    pub fn new(method: Method, path: &'a str) -> Self {
        Self { method, path, headers: &[], body: None, wait: Wait::UntilTimeout }
    }
}

/// A successful (2xx) response.
pub struct Answer {
    response: Response<Bytes>,
}

impl Client {
    /// Creates a client of the server at the URL `server`. The credential is read from the environment variable
    /// `variable`, if that is set.
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

    /// Sends a request and waits for the response. A status other than 2xx is an error.
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
            match ask.wait {
                Wait::UntilAnswered => answering.await,
                Wait::UntilTimeout => tokio::time::timeout(self.answer_timeout, answering)
                    .await
                    .unwrap_or_else(|_| Err(OutgoingError::timed_out(self.answer_timeout))),
            }
        });
        let answer = Answer { response: answered.map_err(unreachable)? };
        if answer.status().is_success() { Ok(answer) } else { Err(self.refused(&answer)) }
    }

    /// Parses the body of a response as JSON.
    pub fn json(&self, answer: &Answer) -> Result<Value, ClientError> {
        serde_json::from_slice(answer.body()).map_err(|_| self.unexpected_answer())
    }

    /// Returns the error for a response that is not what a tidings server sends.
    pub fn unexpected_answer(&self) -> ClientError {
        ClientError::Unexpected(self.server.clone())
    }

    fn refused(&self, answer: &Answer) -> ClientError {
        let told: Option<Value> = serde_json::from_slice(answer.body()).ok();
        let message = told.as_ref().and_then(|told| told["error"]["message"].as_str());
        let mut message = message.unwrap_or("it does not say why").to_owned();
        // Of several things that are wrong, the first.
        if let Some(detail) = told.as_ref().and_then(|told| told["error"]["details"][0]["message"].as_str()) {
            message.push_str(": ");
            message.push_str(detail);
        }
        let hint = match (answer.status(), &self.credential) {
            (StatusCode::UNAUTHORIZED, None) => format!("; {} is not set", self.variable),
            (StatusCode::UNAUTHORIZED, Some(_)) => format!("; it was sent what {} holds", self.variable),
            _ => String::new(),
        };
        ClientError::Refused { hint, server: self.server.clone(), message, status: answer.status() }
    }
}

impl Answer {
    /// HTTP status.
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// Returns the value of a header, if it is present and valid text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// Body of the response.
    pub fn body(&self) -> &[u8] {
        self.response.body()
    }
}

/// Percent-encodes a name for a path or a query value. Slashes are kept.
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
        // The listener's backlog accepts connections, but no response is sent until the test writes one.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let server = format!("http://{}", silent.local_addr().expect("an address"));
        let soon = Duration::from_millis(50);
        let client = || Client::with_timeout(&server, "TIDINGS_TOKEN", soon).expect("a client");
        let endless = client();
        let asking = std::thread::spawn(move || {
            let ask = Ask { wait: Wait::UntilAnswered, ..Ask::new(Method::GET, "/health") };
            endless.ask(&ask).map(|answer| answer.status())
        });
        let mut waits = silent.accept().expect("the one that waits").0;
        let Err(told) = client().ask(&Ask::new(Method::GET, "/health")) else { panic!("nobody answered") };
        assert!(told.to_string().starts_with(&format!("no answer from {server}: timeout")), "{told}");
        // The other request has waited for longer than the timeout and still gets its response.
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
