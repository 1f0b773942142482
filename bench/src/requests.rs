//! Requests of which each is sent once.

use std::io;
use std::net::SocketAddr;

use crate::{Done, Head, Load, Outcome, Work};

/// Requests produced by a function of their number, each sent once on any free connection.
#[derive(Debug)]
pub struct Requests<F> {
    make: F,
    next: usize,
    end: usize,
}

impl<F: FnMut(usize) -> String> Requests<F> {
    /// The first `count` requests.
    pub fn new(count: usize, make: F) -> Self {
        Self { make, next: 0, end: count }
    }

    /// Sends all on so many new connections.
    pub fn send(mut self, address: SocketAddr, connections: usize) -> io::Result<Outcome> {
        Load::connect(address, connections)?.run(&mut self, None)
    }
}

impl<F: FnMut(usize) -> String> Work for Requests<F> {
    fn request(&mut self, _: usize, into: &mut Vec<u8>) -> bool {
        if self.next == self.end {
            return false;
        }
        into.extend_from_slice((self.make)(self.next).as_bytes());
        self.next += 1;
        true
    }

    fn answer(&mut self, _: usize, head: &Head) -> Done {
        if (200..300).contains(&head.status) { Done::Whole } else { Done::Failed }
    }
}

/// A request with a body; `line` is its method and path.
pub fn request(line: &str, content_type: &str, body: &str) -> String {
    format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}
