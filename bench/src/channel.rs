//! A server and a protocol of live delivery: how to subscribe and how to publish.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::{Measured, Peer, Served};

/// Protocol of live delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Server-sent events.
    Sse,
    /// WebSocket messages.
    WebSocket,
}

impl Wire {
    /// Request that subscribes to a path.
    pub fn request(self, address: SocketAddr, path: &str) -> String {
        let wire = match self {
            Self::Sse => "Accept: text/event-stream\r\n",
            Self::WebSocket => {
                "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: AAECAwQFBgcICQoLDA0ODw==\r\n"
            }
        };
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{wire}\r\n")
    }

    /// Tries to subscribe to a path. The inner error says what the server answered instead.
    pub fn subscribe(self, address: SocketAddr, path: &str) -> io::Result<Measured<()>> {
        let status = status_of(address, &self.request(address, path))?;
        Ok(if status == self.status() { Ok(()) } else { Err(format!("not served: answered with {status}")) })
    }

    /// Status of a successful response.
    pub fn status(self) -> &'static str {
        match self {
            Self::Sse => "200",
            Self::WebSocket => "101",
        }
    }
}

/// A server and the protocol by which it is subscribed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// The server.
    pub peer: Peer,
    /// The protocol.
    pub wire: Wire,
}

impl Channel {
    /// All combinations that are measured, tidings first.
    pub const ALL: [Self; 6] = [
        Self { peer: Peer::Tidings, wire: Wire::Sse },
        Self { peer: Peer::Tidings, wire: Wire::WebSocket },
        Self { peer: Peer::OfficialRust, wire: Wire::Sse },
        Self { peer: Peer::Nchan, wire: Wire::Sse },
        Self { peer: Peer::Nchan, wire: Wire::WebSocket },
        Self { peer: Peer::Bun, wire: Wire::WebSocket },
    ];

    /// Name in reports.
    pub fn name(self) -> String {
        let wire = match self.wire {
            Wire::Sse => "SSE",
            Wire::WebSocket => "WebSocket",
        };
        format!("{} {wire}", self.peer.name())
    }

    /// Path to subscribe to a topic.
    pub fn subscribe_path(self, topic: &str) -> String {
        match (self.peer.has_streams(), self.wire) {
            (true, Wire::Sse) => format!("/v1/stream/{topic}?offset=now&live=sse"),
            (true, Wire::WebSocket) => format!("/v1/stream/{topic}?offset=now&live=websocket"),
            (false, _) => format!("/subscribe/{topic}"),
        }
    }

    /// Path to publish to a topic.
    pub fn publish_path(self, topic: &str) -> String {
        if self.peer.has_streams() { format!("/v1/stream/{topic}") } else { format!("/publish/{topic}") }
    }

    /// Request that subscribes to a topic.
    pub fn request(self, address: SocketAddr, topic: &str) -> String {
        self.wire.request(address, &self.subscribe_path(topic))
    }

    /// Creates the topic and tries to subscribe. The inner error says what the server answered instead.
    pub fn open(self, served: &Served, topic: &str) -> io::Result<Measured<()>> {
        if self.peer.has_streams() {
            let path = self.publish_path(topic);
            let head = "Host: localhost\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n";
            let status = status_of(served.address, &format!("PUT {path} HTTP/1.1\r\n{head}"))?;
            if !matches!(status.as_str(), "200" | "201") {
                return Ok(Err(format!("PUT {path} is answered with {status}")));
            }
        }
        self.wire.subscribe(served.address, &self.subscribe_path(topic))
    }
}

/// Status of the response to one request on a new connection.
fn status_of(address: SocketAddr, request: &str) -> io::Result<String> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    socket.write_all(request.as_bytes())?;
    let mut line = [0; 12];
    socket.read_exact(&mut line)?;
    Ok(String::from_utf8_lossy(&line[9..]).into_owned())
}
