//! Client of connections on which requests and answers are messages: many connections with one request in
//! flight on each, from one thread.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use memchr::memmem;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::{Outcome, Wire};

/// Time without data after which the server counts as hung.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the server that a report quotes.
const QUOTED_BYTES: usize = 300;

/// Connections that send requests. Each answer has one occurrence of a mark, which nothing else has.
pub struct Talk {
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    mark: &'static [u8],
    buffer: Vec<u8>,
}

struct Connection {
    socket: TcpStream,
    /// Received bytes that may be the beginning of a mark.
    held: Vec<u8>,
    /// Requests that were sent so far.
    asked: usize,
    begun: Option<Instant>,
}

impl Talk {
    /// Opens so many connections at a path.
    pub fn open(
        address: SocketAddr,
        wire: Wire,
        path: &str,
        count: usize,
        mark: &'static str,
    ) -> io::Result<Self> {
        let (poll, mut connections) = (Poll::new()?, Vec::new());
        for index in 0..count {
            let mut socket = std::net::TcpStream::connect(address)?;
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(TIMEOUT))?;
            socket.write_all(wire.request(address, path).as_bytes())?;
            if wire != Wire::Nats {
                read_head(&mut socket, wire.status())?;
            }
            socket.set_nonblocking(true)?;
            let mut socket = TcpStream::from_std(socket);
            poll.registry().register(&mut socket, Token(index), Interest::READABLE)?;
            connections.push(Connection { socket, held: Vec::new(), asked: 0, begun: None });
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(1024),
            connections,
            mark: mark.as_bytes(),
            buffer: vec![0; 64 << 10],
        })
    }

    /// Sends requests on all connections for a time: the bytes of a request by the numbers of the connection
    /// and of its request there.
    pub fn run(
        &mut self,
        lasting: Duration,
        mut request: impl FnMut(usize, usize) -> Vec<u8>,
    ) -> io::Result<Outcome> {
        let (start, mut outcome) = (Instant::now(), Outcome::default());
        for (index, connection) in self.connections.iter_mut().enumerate() {
            connection.ask(&request(index, connection.asked))?;
        }
        let mut in_flight = self.connections.len();
        while in_flight > 0 {
            self.poll.poll(&mut self.events, Some(TIMEOUT))?;
            if self.events.is_empty() {
                return Err(self.silence());
            }
            for event in &self.events {
                let (index, connection) = (event.token().0, &mut self.connections[event.token().0]);
                if !connection.read(&mut self.buffer, self.mark)? {
                    continue;
                }
                let Some(begun) = connection.begun.take() else {
                    return Err(io::Error::other("the server answers more often than it was asked"));
                };
                outcome.times.add(begun.elapsed());
                if start.elapsed() < lasting {
                    connection.ask(&request(index, connection.asked))?;
                } else {
                    in_flight -= 1;
                }
            }
        }
        outcome.elapsed = start.elapsed();
        Ok(outcome)
    }

    /// An error that quotes what was received instead of an answer.
    fn silence(&self) -> io::Error {
        let waiting = self.connections.iter().find(|connection| connection.begun.is_some());
        let held = waiting.map_or(&[][..], |connection| &connection.held);
        let text = String::from_utf8_lossy(&held[held.len().saturating_sub(QUOTED_BYTES)..]).into_owned();
        io::Error::new(ErrorKind::TimedOut, format!("a request is not answered; the server said {text:?}"))
    }
}

impl Connection {
    fn ask(&mut self, request: &[u8]) -> io::Result<()> {
        self.asked += 1;
        self.begun = Some(Instant::now());
        // A request is small, and the one before it was answered.
        self.socket.write_all(request)
    }

    /// Reads what is there; returns whether the mark has come.
    fn read(&mut self, buffer: &mut [u8], mark: &[u8]) -> io::Result<bool> {
        loop {
            match self.socket.read(buffer) {
                Ok(0) => {
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server closed a connection"));
                }
                Ok(count) => self.held.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let answered = memmem::find(&self.held, mark).is_some();
        if answered {
            self.held.clear();
        }
        Ok(answered)
    }
}

/// Reads a response's head, byte by byte: what follows it belongs to the conversation.
fn read_head(socket: &mut std::net::TcpStream, status: &str) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    if head.get(9..12) == Some(status.as_bytes()) {
        return Ok(());
    }
    let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
    Err(io::Error::other(format!("the server answers {}", String::from_utf8_lossy(line))))
}

/// A text message of a WebSocket's client, masked with zeros.
pub fn text_frame(text: &str) -> Vec<u8> {
    let mut frame = vec![0x81];
    match text.len() {
        // No message here is longer than the second form can say.
        short @ 0..126 => frame.push(0x80 | short as u8),
        long => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&u16::try_from(long).expect("a short message").to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(text.as_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_says_how_long_its_text_is() {
        assert_eq!(text_frame("hi"), b"\x81\x82\0\0\0\0hi");
        let long = text_frame(&"x".repeat(300));
        assert_eq!((&long[..4], long.len()), (&b"\x81\xfe\x01\x2c"[..], 308));
    }

    #[test]
    fn every_request_is_answered_by_its_mark_wherever_the_answer_is_cut() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.set_nodelay(true).unwrap();
            let (mut heard, mut byte, mut answered) = (Vec::new(), [0], 0);
            while socket.read(&mut byte).unwrap() > 0 {
                heard.push(byte[0]);
                if heard.ends_with(b"ping") {
                    socket.write_all(b"noise; PO").unwrap();
                    socket.write_all(b"NG\r\n").unwrap();
                    answered += 1;
                }
            }
            answered
        });
        let mut talk = Talk::open(address, Wire::Nats, "/", 1, "PONG").unwrap();
        let outcome = talk.run(Duration::from_millis(1), |_, _| b"ping".to_vec()).unwrap();
        drop(talk);
        assert_eq!(outcome.times.count(), serving.join().unwrap());
        assert!(outcome.times.count() > 0);
    }
}
