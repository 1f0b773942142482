//! Live readers, each of its own stream, driven by one thread that counts what they receive.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

/// Time without data after which the server counts as hung.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Connections that receive server-sent events.
pub struct Audience {
    poll: Poll,
    events: Events,
    sockets: Vec<TcpStream>,
    buffer: Vec<u8>,
    mark: u8,
    /// Number of marks received by all connections.
    pub heard: usize,
}

impl Audience {
    /// Subscribes to each path from its tail. Messages must consist of marks, a byte that occurs nowhere
    /// else.
    pub fn of(address: SocketAddr, paths: impl Iterator<Item = String>, mark: u8) -> io::Result<Self> {
        let (poll, mut sockets) = (Poll::new()?, Vec::new());
        for path in paths {
            let mut socket = std::net::TcpStream::connect(address)?;
            socket.set_read_timeout(Some(TIMEOUT))?;
            write!(socket, "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\r\n")?;
            let mut status = [0; 12];
            socket.read_exact(&mut status)?;
            if !status.ends_with(b"200") {
                return Err(io::Error::other("a reader was refused"));
            }
            socket.set_nonblocking(true)?;
            let mut socket = TcpStream::from_std(socket);
            poll.registry().register(&mut socket, Token(sockets.len()), Interest::READABLE)?;
            sockets.push(socket);
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(1024),
            sockets,
            buffer: vec![0; 256 << 10],
            mark,
            heard: 0,
        })
    }

    /// Waits for data, and counts the marks in it.
    pub fn listen(&mut self) -> io::Result<()> {
        self.poll.poll(&mut self.events, Some(TIMEOUT))?;
        if self.events.is_empty() {
            return Err(io::Error::new(ErrorKind::TimedOut, "nobody hears anything"));
        }
        for event in &self.events {
            let socket = &mut self.sockets[event.token().0];
            loop {
                match socket.read(&mut self.buffer) {
                    Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "a reader was let go")),
                    Ok(count) => self.heard += memchr::memchr_iter(self.mark, &self.buffer[..count]).count(),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}
