//! What is said to each server: to subscribe, to publish, to change subscriptions.

use tidings_bench::{Channel, Peer, Served, Wire, text_frame};

/// All that are measured, tidings first.
pub const CHANNELS: [Channel; 5] = [
    Channel { peer: Peer::Tidings, wire: Wire::WebSocket },
    Channel { peer: Peer::Bun, wire: Wire::WebSocket },
    Channel { peer: Peer::WsKit, wire: Wire::WebSocket },
    Channel { peer: Peer::Nchan, wire: Wire::WebSocket },
    Channel { peer: Peer::Nats, wire: Wire::Nats },
];

/// Connections that publish by HTTP when many messages are in flight.
const HTTP_PUBLISHERS: &str = "32";

/// What a subscriber of tidings receives, and of every server that forwards what it is given.
const MESSAGE: &str = r#"{"type":"HEARD","meta":{"topic":"{topic}"},"payload":{"m":"{payload}"}}"#;

/// How a topic is subscribed to.
#[derive(Clone, Copy, Debug)]
pub struct Subscribing {
    /// Path of the connection.
    pub path: &'static str,
    /// Message that subscribes, if the path does not, and the end of its answer: the load generator takes what
    /// follows it for the first message.
    pub message: Option<(&'static str, &'static str)>,
}

/// How messages are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publishing {
    /// By messages on one connection, in order.
    InOrder,
    /// By several connections, or one request each. Topics may differ.
    ToMany,
}

/// How a server is subscribed to. `{topic}` is replaced by the topic.
pub fn subscribing(peer: Peer) -> Subscribing {
    let (path, message) = match peer {
        Peer::Tidings => (
            "/v1/bench/topics",
            Some((
                r#"{"type":"$subscribe","meta":{"correlationId":"s"},"payload":{"topic":"{topic}"}}"#,
                r#""total":1}}"#,
            )),
        ),
        Peer::WsKit => ("/", Some((r#"{"type":"JOIN","meta":{},"payload":{"topic":"{topic}"}}"#, r#""}}"#))),
        Peer::Nats => ("/{topic}", None),
        _ => ("/subscribe/{topic}", None),
    };
    Subscribing { path, message }
}

impl Subscribing {
    /// Arguments of `liveload` for the message that subscribes.
    pub fn arguments(self) -> Vec<String> {
        let Some((message, answer)) = self.message else { return Vec::new() };
        ["--sub-msg", message, "--sub-ack", answer].map(str::to_owned).into()
    }
}

impl Publishing {
    /// Arguments of `liveload` to publish.
    pub fn arguments(self, peer: Peer, served: &Served) -> Vec<String> {
        let address = served.address;
        let by_http = match self {
            // It drops messages in flight when a publisher's WebSocket ends, and they would count as lost.
            Self::InOrder => peer == Peer::Nchan,
            // On the others' sockets, the message says to which topic it goes.
            Self::ToMany => matches!(peer, Peer::Tidings | Peer::Nchan | Peer::Bun),
        };
        let (path, body) = match (peer, by_http) {
            (Peer::Tidings, true) => {
                ("/v1/bench/topics/{topic}", r#"{"type":"HEARD","payload":{"m":"{payload}"}}"#)
            }
            (Peer::Tidings, false) => (
                "/v1/bench/topics",
                r#"{"type":"$publish","payload":{"topic":"{topic}","message":{"type":"HEARD","payload":{"m":"{payload}"}}}}"#,
            ),
            (Peer::WsKit, _) => {
                ("/", r#"{"type":"SAY","meta":{},"payload":{"topic":"{topic}","m":"{payload}"}}"#)
            }
            (Peer::Nats, _) => ("/{topic}", MESSAGE),
            _ => ("/publish/{topic}", MESSAGE),
        };
        let scheme = match (peer, by_http) {
            (_, true) => "http",
            (Peer::Nats, _) => "nats",
            _ => "ws",
        };
        let mut all = vec![
            "--pub".to_owned(),
            format!("{scheme}://{address}{path}"),
            "--pub-body".to_owned(),
            body.to_owned(),
        ];
        if by_http {
            all.extend(["--pub-header", "Content-Type: application/json"].map(str::to_owned));
        }
        if by_http || self == Self::ToMany {
            all.extend(["--pub-conns", HTTP_PUBLISHERS].map(str::to_owned));
        }
        all
    }
}

/// A change of subscriptions.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    Subscribe(&'a str),
    Unsubscribe(&'a str),
}

/// What an answer to a change contains, once; `None` for a server without such requests.
pub fn changed(peer: Peer) -> Option<&'static str> {
    match peer {
        Peer::Tidings => Some(r#""$reply""#),
        Peer::Bun => Some("done"),
        Peer::WsKit => Some("TOPIC_"),
        Peer::Nats => Some("PONG"),
        _ => None,
    }
}

/// The bytes of a request that changes subscriptions.
pub fn change(peer: Peer, change: Change<'_>) -> Vec<u8> {
    let (name, topic) = match change {
        Change::Subscribe(topic) => (["$subscribe", "JOIN", "+", "SUB"], topic),
        Change::Unsubscribe(topic) => (["$unsubscribe", "LEAVE", "-", "UNSUB"], topic),
    };
    match peer {
        Peer::Tidings => text_frame(&format!(
            r#"{{"type":"{}","meta":{{"correlationId":"c"}},"payload":{{"topic":"{topic}"}}}}"#,
            name[0]
        )),
        Peer::WsKit => {
            text_frame(&format!(r#"{{"type":"{}","meta":{{}},"payload":{{"topic":"{topic}"}}}}"#, name[1]))
        }
        Peer::Nats => match change {
            Change::Subscribe(_) => format!("SUB {topic} 1\r\nPING\r\n").into_bytes(),
            Change::Unsubscribe(_) => b"UNSUB 1\r\nPING\r\n".to_vec(),
        },
        _ => text_frame(&format!("{}{topic}", name[2])),
    }
}
