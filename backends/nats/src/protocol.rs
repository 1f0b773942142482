//! What is said to NATS, and what it says.

use std::collections::{HashMap, VecDeque};

use bytes::{Buf, Bytes, BytesMut};
use serde_json::{Value, json};
use tidings_broker::{Command, Event, Protocol};
use tidings_model::limits;

use crate::subject;

/// Bytes of a line of a server.
const LINE_BYTES: usize = 64 * 1024;

/// What a server says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Info {
    /// Whether the connection has to be secured.
    pub(crate) wants_tls: bool,
    /// Bytes that a message may have.
    pub(crate) message_bytes_max: usize,
}

impl Info {
    /// Parses the line that a server begins with.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, String> {
        let no_nats = || "it does not begin as NATS does".to_owned();
        let json = line.strip_prefix(b"INFO ").ok_or_else(no_nats)?;
        let info: Value = serde_json::from_slice(json).map_err(|_| no_nats())?;
        let bytes = info["max_payload"].as_u64().and_then(|bytes| usize::try_from(bytes).ok());
        Ok(Self {
            wants_tls: info["tls_required"].as_bool().unwrap_or_default(),
            message_bytes_max: bytes.unwrap_or(crate::MESSAGE_BYTES),
        })
    }
}

/// With what we authenticate ourselves. A password without a user is a token.
pub(crate) struct Credentials<'a> {
    pub(crate) user: Option<&'a str>,
    pub(crate) password: Option<&'a str>,
}

/// The client's side of a connection.
pub(crate) struct Client {
    prefix: String,
    is_greeting: bool,
    /// Number of the next subscription.
    next: u64,
    /// Names of channels and numbers of subscriptions.
    numbers: HashMap<String, u64>,
    names: HashMap<u64, Bytes>,
    /// Commands since the last `PING`.
    begun: Vec<Begun>,
    /// Commands before each `PING` that is not answered.
    asked: VecDeque<Vec<Begun>>,
    /// Subjects that were refused since the last `PONG`, with the reason.
    refused: Vec<Denied>,
    /// Events that follow.
    ready: VecDeque<Event>,
}

/// A command that NATS will have taken when it answers the next `PING`.
struct Begun {
    verb: Verb,
    subject: String,
    /// Number of the subscription, of which nothing is kept if it is refused.
    number: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Publish,
    Subscribe,
    Ping,
}

struct Denied {
    verb: Verb,
    subject: String,
    why: String,
}

impl Client {
    /// Begins a connection. The greeting is written.
    pub(crate) fn greeting(
        prefix: String,
        credentials: &Credentials<'_>,
        is_secured: bool,
        out: &mut BytesMut,
    ) -> Self {
        let mut connect = json!({
            "verbose": false,
            "pedantic": false,
            "tls_required": is_secured,
            "name": "tidings",
            "lang": "rust",
            "version": env!("CARGO_PKG_VERSION"),
            "protocol": 1,
            "echo": true,
        });
        match (credentials.user, credentials.password) {
            (Some(user), password) => {
                connect["user"] = user.into();
                connect["pass"] = password.unwrap_or_default().into();
            }
            (None, Some(token)) => connect["auth_token"] = token.into(),
            (None, None) => {}
        }
        out.extend_from_slice(format!("CONNECT {connect}\r\nPING\r\n").as_bytes());
        Self {
            prefix,
            is_greeting: true,
            next: 1,
            numbers: HashMap::new(),
            names: HashMap::new(),
            begun: Vec::new(),
            asked: VecDeque::new(),
            refused: Vec::new(),
            ready: VecDeque::new(),
        }
    }

    fn subject(&self, channel: &str) -> String {
        format!("{}{}", self.prefix, subject::token(channel))
    }

    /// All that came before a `PING` has been taken, or refused.
    fn answered(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.is_greeting) {
            self.ready.push_back(Event::Ready);
            return Ok(());
        }
        let begun = self.asked.pop_front().ok_or("NATS has answered what it was not asked")?;
        let refused = std::mem::take(&mut self.refused);
        if refused.is_empty() {
            self.ready.push_back(Event::Done(begun.len()));
            return Ok(());
        }
        for Begun { verb, subject, number } in begun {
            let denied = refused.iter().find(|denied| (denied.verb, &denied.subject) == (verb, &subject));
            if denied.is_some()
                && let Some(name) = number.and_then(|number| self.names.remove(&number))
                && let Ok(name) = std::str::from_utf8(&name)
                && self.numbers.get(name).copied() == number
            {
                self.numbers.remove(name);
            }
            self.ready.push_back(denied.map_or(Event::Done(1), |denied| Event::Refused(denied.why.clone())));
        }
        Ok(())
    }

    /// An error. All but refused permissions end the connection.
    fn error(&mut self, text: &str) -> Result<(), String> {
        let text = text.trim().trim_matches('\'');
        let rest = text.strip_prefix("Permissions Violation for ");
        let denied = rest.and_then(|rest| {
            let (verb, rest) = rest.split_once(" to \"")?;
            let verb = match verb {
                "Publish" => Verb::Publish,
                "Subscription" => Verb::Subscribe,
                _ => return None,
            };
            let subject = rest.split('"').next()?.to_owned();
            Some(Denied { verb, subject, why: text.to_owned() })
        });
        match denied {
            Some(denied) => {
                self.refused.push(denied);
                Ok(())
            }
            None => Err(text.to_owned()),
        }
    }

    /// Takes one thing that NATS says, with its bytes. `None` if it is not complete.
    fn take(&mut self, input: &mut BytesMut, out: &mut BytesMut) -> Result<Option<()>, String> {
        let Some(end) = input.iter().take(LINE_BYTES).position(|&byte| byte == b'\n') else {
            return if input.len() >= LINE_BYTES {
                Err("NATS has sent a line that is too long".to_owned())
            } else {
                Ok(None)
            };
        };
        let line =
            std::str::from_utf8(&input[..end]).map_err(|_| "NATS has sent what is not text")?.trim_end();
        let (word, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        match word {
            "MSG" => {
                let (number, bytes) = message(rest)?;
                let all = end + 1 + bytes + 2;
                if input.len() < all {
                    input.reserve(all - input.len());
                    return Ok(None);
                }
                let message = Bytes::copy_from_slice(&input[end + 1..end + 1 + bytes]);
                // A subscription that has ended may still have messages on their way.
                if let Some(channel) = self.names.get(&number) {
                    self.ready.push_back(Event::Message { channel: channel.clone(), message });
                }
                input.advance(all);
                return Ok(Some(()));
            }
            "PING" => out.extend_from_slice(b"PONG\r\n"),
            "PONG" => self.answered()?,
            "-ERR" => {
                let text = rest.to_owned();
                self.error(&text)?;
            }
            "+OK" | "INFO" => {}
            _ => return Err("NATS has said what is not known".to_owned()),
        }
        input.advance(end + 1);
        Ok(Some(()))
    }
}

/// Number of the subscription and bytes of a message, from `subject number [reply] bytes`.
fn message(rest: &str) -> Result<(u64, usize), String> {
    let words: Vec<&str> = rest.split_ascii_whitespace().collect();
    let parsed = match words[..] {
        [_, number, bytes] | [_, number, _, bytes] => number.parse().ok().zip(bytes.parse().ok()),
        _ => None,
    };
    let (number, bytes) = parsed.ok_or("NATS has sent a message without a length")?;
    if bytes > limits::BUS_MESSAGE_BYTES {
        return Err(format!("NATS has sent a message of {bytes} bytes"));
    }
    Ok((number, bytes))
}

impl Protocol for Client {
    fn begin(&mut self, command: Command<'_>, out: &mut BytesMut) {
        match command {
            Command::Publish(channel, message) => {
                let subject = self.subject(channel);
                out.extend_from_slice(format!("PUB {subject} {}\r\n", message.len()).as_bytes());
                out.extend_from_slice(message);
                out.extend_from_slice(b"\r\n");
                self.begun.push(Begun { verb: Verb::Publish, subject, number: None });
            }
            Command::Subscribe(channel) => {
                let (number, subject) = (self.next, self.subject(channel));
                self.next += 1;
                out.extend_from_slice(format!("SUB {subject} {number}\r\n").as_bytes());
                self.names.insert(number, Bytes::copy_from_slice(channel.as_bytes()));
                self.numbers.insert(channel.to_owned(), number);
                self.begun.push(Begun { verb: Verb::Subscribe, subject, number: Some(number) });
            }
            Command::Unsubscribe(channel) => {
                if let Some(number) = self.numbers.remove(channel) {
                    self.names.remove(&number);
                    out.extend_from_slice(format!("UNSUB {number}\r\n").as_bytes());
                }
            }
            Command::Ping => {
                self.begun.push(Begun { verb: Verb::Ping, subject: String::new(), number: None })
            }
        }
    }

    fn flush(&mut self, out: &mut BytesMut) {
        if !self.begun.is_empty() {
            out.extend_from_slice(b"PING\r\n");
            self.asked.push_back(std::mem::take(&mut self.begun));
        }
    }

    fn read(&mut self, input: &mut BytesMut, out: &mut BytesMut) -> Result<Option<Event>, String> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.take(input, out)?.is_none() {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn connected() -> Client {
        let nobody = Credentials { user: None, password: None };
        let mut client = Client::greeting("p.".to_owned(), &nobody, false, &mut BytesMut::new());
        assert_eq!(heard(&mut client, "+OK\r\nPONG\r\n"), Ok((vec![Event::Ready], String::new())));
        client
    }

    fn heard(client: &mut Client, input: &str) -> Result<(Vec<Event>, String), String> {
        let (mut input, mut out) = (BytesMut::from(input), BytesMut::new());
        let mut heard = Vec::new();
        while let Some(event) = client.read(&mut input, &mut out)? {
            heard.push(event);
        }
        Ok((heard, String::from_utf8(out.to_vec()).expect("text")))
    }

    fn said(client: &mut Client, commands: &[Command<'_>]) -> String {
        let mut out = BytesMut::new();
        for &command in commands {
            client.begin(command, &mut out);
        }
        client.flush(&mut out);
        String::from_utf8(out.to_vec()).expect("text")
    }

    #[test]
    fn credentials_are_a_user_and_a_password_or_a_token() {
        for (user, password, expected) in [
            (Some("u"), Some("p"), r#""pass":"p""#),
            (Some("u"), None, r#""user":"u""#),
            (None, Some("t"), r#""auth_token":"t""#),
        ] {
            let mut out = BytesMut::new();
            Client::greeting(String::new(), &Credentials { user, password }, false, &mut out);
            let text = String::from_utf8(out.to_vec()).expect("text");
            assert!(text.contains(expected) && text.ends_with("}\r\nPING\r\n"), "{text}");
        }
    }

    #[test]
    fn a_server_says_what_it_wants() {
        let info = Info::parse(br#"INFO {"tls_required":true,"max_payload":99}"#);
        assert_eq!(info, Ok(Info { wants_tls: true, message_bytes_max: 99 }));
        assert_eq!(Info::parse(b"INFO {}").map(|info| info.message_bytes_max), Ok(1024 * 1024));
        assert!(Info::parse(b"HTTP/1.1 400\r\n").is_err() && Info::parse(b"INFO x").is_err());
    }

    #[test]
    fn one_answer_is_asked_for_all_that_is_said_at_once() {
        let mut client = connected();
        let message = Bytes::from_static(b"m");
        let text = said(&mut client, &[Command::Subscribe("a b"), Command::Publish("a", &message)]);
        assert_eq!(text, "SUB p.a=20b 1\r\nPUB p.a 1\r\nm\r\nPING\r\n");
        assert_eq!(said(&mut client, &[Command::Ping]), "PING\r\n");
        assert_eq!(said(&mut client, &[]), "");
        let (events, answer) =
            heard(&mut client, "MSG p.a=20b 1 2\r\nhi\r\nPONG\r\nPING\r\nPONG\r\n").expect("NATS");
        let hi = Event::Message { channel: Bytes::from_static(b"a b"), message: Bytes::from_static(b"hi") };
        assert_eq!(events, [hi, Event::Done(2), Event::Done(1)]);
        assert_eq!(answer, "PONG\r\n");
        assert!(heard(&mut client, "PONG\r\n").is_err(), "nothing was asked");
    }

    #[test]
    fn what_is_not_permitted_is_refused_alone() {
        let mut client = connected();
        let message = Bytes::new();
        let commands =
            [Command::Publish("a", &message), Command::Subscribe("b"), Command::Publish("b", &message)];
        said(&mut client, &commands);
        let errors = "-ERR 'Permissions Violation for Publish to \"p.b\"'\r\nPONG\r\n";
        let (events, _) = heard(&mut client, errors).expect("NATS");
        let refused = Event::Refused("Permissions Violation for Publish to \"p.b\"".to_owned());
        assert_eq!(events, [Event::Done(1), Event::Done(1), refused]);
        assert_eq!(heard(&mut client, "-ERR 'Slow Consumer'\r\n"), Err("Slow Consumer".to_owned()));
    }

    #[test]
    fn messages_of_a_subscription_that_has_ended_are_dropped() {
        let mut client = connected();
        said(&mut client, &[Command::Subscribe("a")]);
        assert_eq!(said(&mut client, &[Command::Unsubscribe("a"), Command::Unsubscribe("b")]), "UNSUB 1\r\n");
        assert_eq!(said(&mut client, &[Command::Subscribe("a")]), "SUB p.a 2\r\nPING\r\n");
        let (events, _) = heard(&mut client, "MSG p.a 1 0\r\n\r\nMSG p.a 2 reply 1\r\nx\r\n").expect("NATS");
        assert_eq!(events.len(), 1);
    }

    #[test]
    fn what_is_not_complete_is_waited_for() {
        let text = "MSG p.a 1 4\r\na\r\nb\r\nPONG\r\n";
        for bytes in 0..text.len() - 6 {
            let mut client = connected();
            said(&mut client, &[Command::Subscribe("a")]);
            let (events, _) = heard(&mut client, &text[..bytes]).expect("NATS");
            assert_eq!(events, [], "{bytes}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_reading_panic(text in "(MSG|PING|PONG|-ERR|INFO|[ a-z0-9'\"]{0,9}|\r\n){0,12}", bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = heard(&mut connected(), &text);
            let _ = connected().read(&mut BytesMut::from(&bytes[..]), &mut BytesMut::new());
        }
    }
}
