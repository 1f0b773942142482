//! What is said to Redis, and what it says.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use tidings_broker::{Command, Event, Protocol};

use crate::resp::{self, Value};

/// The protocol of a connection.
pub(crate) struct Resp3 {
    prefix: String,
    /// Whether Redis has not accepted us yet.
    is_greeting: bool,
    /// What Redis will answer, in order.
    expected: VecDeque<Expected>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// A value.
    Value,
    /// That a subscription is in effect, which is pushed.
    Subscribed,
}

impl Resp3 {
    /// Begins a connection. The greeting is written.
    pub(crate) fn greeting(
        prefix: String,
        user: Option<&str>,
        password: Option<&str>,
        out: &mut BytesMut,
    ) -> Self {
        let mut words = vec!["HELLO", "3"];
        if let Some(password) = password {
            words.extend(["AUTH", user.unwrap_or("default"), password]);
        }
        words.extend(["SETNAME", "tidings"]);
        write(out, &words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
        Self { prefix, is_greeting: true, expected: VecDeque::new() }
    }

    fn channel(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// What a value means; `None` if nothing.
    fn event(&mut self, value: &Value<'_>) -> Result<Option<Event>, String> {
        if let Value::Push(values) = value {
            return self.pushed(values);
        }
        if self.is_greeting {
            self.is_greeting = false;
            return match value {
                Value::Error(error) => Err(refused(&text(error))),
                _ => Ok(Some(Event::Ready)),
            };
        }
        match (self.expected.pop_front(), value) {
            (Some(_), Value::Error(error)) => Ok(Some(Event::Refused(text(error)))),
            (None, Value::Error(error)) => Err(text(error)),
            (Some(Expected::Value), _) => Ok(Some(Event::Done(1))),
            (Some(Expected::Subscribed) | None, _) => Err(out_of_order()),
        }
    }

    fn pushed(&mut self, values: &[Value<'_>]) -> Result<Option<Event>, String> {
        match values {
            [Value::Text(b"message"), Value::Text(channel), Value::Text(message)] => {
                let Some(channel) = channel.strip_prefix(self.prefix.as_bytes()) else { return Ok(None) };
                let (channel, message) = (Bytes::copy_from_slice(channel), Bytes::copy_from_slice(message));
                Ok(Some(Event::Message { channel, message }))
            }
            [Value::Text(b"subscribe"), ..] => match self.expected.pop_front() {
                Some(Expected::Subscribed) => Ok(Some(Event::Done(1))),
                Some(Expected::Value) | None => Err(out_of_order()),
            },
            _ => Ok(None),
        }
    }
}

impl Protocol for Resp3 {
    fn begin(&mut self, command: Command<'_>, out: &mut BytesMut) {
        match command {
            Command::Publish(channel, message) => {
                write(out, &[b"PUBLISH", self.channel(channel).as_bytes(), message]);
                self.expected.push_back(Expected::Value);
            }
            Command::Subscribe(channel) => {
                write(out, &[b"SUBSCRIBE", self.channel(channel).as_bytes()]);
                self.expected.push_back(Expected::Subscribed);
            }
            Command::Unsubscribe(channel) => write(out, &[b"UNSUBSCRIBE", self.channel(channel).as_bytes()]),
            Command::Ping => {
                write(out, &[b"PING"]);
                self.expected.push_back(Expected::Value);
            }
        }
    }

    fn read(&mut self, input: &mut BytesMut, _out: &mut BytesMut) -> Result<Option<Event>, String> {
        while let Some((value, bytes)) = resp::read(input)? {
            let event = self.event(&value)?;
            input.advance(bytes);
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }
}

fn write(out: &mut BytesMut, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// An error as text. Redis does not repeat credentials in it.
fn text(error: &[u8]) -> String {
    String::from_utf8_lossy(error).into_owned()
}

fn refused(error: &str) -> String {
    if error.starts_with("NOPROTO") || error.contains("unknown command") {
        format!("Redis 6 or newer is needed, which has RESP3: {error}")
    } else {
        error.to_owned()
    }
}

fn out_of_order() -> String {
    "Redis has answered out of order".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected() -> Resp3 {
        let mut protocol = Resp3::greeting("p/".to_owned(), None, None, &mut BytesMut::new());
        assert_eq!(heard(&mut protocol, "%1\r\n+proto\r\n:3\r\n"), Ok(vec![Event::Ready]));
        protocol
    }

    fn heard(protocol: &mut Resp3, input: &str) -> Result<Vec<Event>, String> {
        let (mut input, mut out) = (BytesMut::from(input), BytesMut::new());
        let mut heard = Vec::new();
        while let Some(event) = protocol.read(&mut input, &mut out)? {
            heard.push(event);
        }
        Ok(heard)
    }

    #[test]
    fn credentials_are_sent_with_the_greeting() {
        let mut out = BytesMut::new();
        Resp3::greeting(String::new(), None, Some("pw"), &mut out);
        let expected = "*7\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$7\r\ndefault\r\n$2\r\npw\r\n$7\r\nSETNAME\r\n$7\r\ntidings\r\n";
        assert_eq!(out, expected.as_bytes());
    }

    #[test]
    fn a_redis_that_is_too_old_or_refuses_says_so() {
        for (answer, expected) in [
            ("-ERR unknown command `HELLO`\r\n", "Redis 6 or newer"),
            ("-NOPROTO sorry\r\n", "Redis 6 or newer"),
            ("-WRONGPASS no\r\n", "WRONGPASS no"),
        ] {
            let mut protocol = Resp3::greeting(String::new(), None, None, &mut BytesMut::new());
            let error = heard(&mut protocol, answer).expect_err("it is refused");
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn answers_belong_to_commands_in_their_order() {
        let mut protocol = connected();
        let mut out = BytesMut::new();
        let message = Bytes::from_static(b"m");
        for command in [
            Command::Publish("a", &message),
            Command::Subscribe("a"),
            Command::Unsubscribe("b"),
            Command::Subscribe("secret"),
            Command::Ping,
        ] {
            protocol.begin(command, &mut out);
        }
        assert!(out.starts_with(b"*3\r\n$7\r\nPUBLISH\r\n$3\r\np/a\r\n$1\r\nm\r\n"));
        let events = heard(
            &mut protocol,
            ":1\r\n>3\r\n$9\r\nsubscribe\r\n$3\r\np/a\r\n:1\r\n>3\r\n$7\r\nmessage\r\n$3\r\np/a\r\n$1\r\nm\r\n\
             >3\r\n$11\r\nunsubscribe\r\n$3\r\np/b\r\n:1\r\n-NOPERM no\r\n>3\r\n$7\r\nmessage\r\n$1\r\nz\r\n$1\r\nm\r\n+PONG\r\n",
        );
        let a = Event::Message { channel: Bytes::from_static(b"a"), message };
        let refused = Event::Refused("NOPERM no".to_owned());
        assert_eq!(events, Ok(vec![Event::Done(1), Event::Done(1), a, refused, Event::Done(1)]));
    }

    #[test]
    fn an_answer_that_nothing_asked_for_ends_the_connection() {
        assert!(heard(&mut connected(), ":1\r\n").is_err());
        assert!(heard(&mut connected(), "-ERR max number of clients reached\r\n").is_err());
        let mut protocol = connected();
        protocol.begin(Command::Subscribe("a"), &mut BytesMut::new());
        assert!(heard(&mut protocol, ":1\r\n").is_err());
    }
}
