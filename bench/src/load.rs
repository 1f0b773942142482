//! HTTP client of the benchmarks: many connections with one request in flight on each, from one thread.
//!
//! It costs as little CPU as possible, so that the server is what is measured: no tasks, two system calls per
//! request, and one more for all responses that have arrived.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::{Head, Response, Times};

/// Time without data after which the server counts as hung.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The requests of a benchmark.
pub trait Work {
    /// Writes the next request of a connection; returns `false` if there are no more.
    fn request(&mut self, connection: usize, into: &mut Vec<u8>) -> bool;

    /// Checks a response.
    fn answer(&mut self, connection: usize, head: &Head) -> Done;
}

/// Result of a response for the operation that its request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The operation is complete.
    Whole,
    /// The operation needs another request.
    Part,
    /// The operation failed.
    Failed,
}

/// Results of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Durations of the operations that succeeded.
    pub times: Times,
    /// Number of operations that failed.
    pub failed: usize,
    /// Bytes of response bodies.
    pub bytes: usize,
    /// Time from the first request to the last response.
    pub elapsed: Duration,
}

impl Outcome {
    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.times.count() as f64 / self.elapsed.as_secs_f64()
    }
}

struct Connection {
    socket: TcpStream,
    response: Response,
    begun: Option<Instant>,
}

/// Connections to one server.
pub struct Load {
    poll: Poll,
    connections: Vec<Connection>,
    request: Vec<u8>,
    buffer: Vec<u8>,
}

impl Load {
    /// Opens the connections.
    pub fn connect(address: SocketAddr, count: usize) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut connections = Vec::with_capacity(count);
        for index in 0..count {
            let socket = std::net::TcpStream::connect(address)?;
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
            let mut socket = TcpStream::from_std(socket);
            poll.registry().register(&mut socket, Token(index), Interest::READABLE)?;
            connections.push(Connection { socket, response: Response::default(), begun: None });
        }
        Ok(Self { poll, connections, request: Vec::new(), buffer: vec![0; 256 << 10] })
    }

    /// Runs for a duration, if one is given, or until there are no more requests; then waits for all
    /// responses.
    pub fn run(&mut self, work: &mut impl Work, lasting: Option<Duration>) -> io::Result<Outcome> {
        let (start, mut outcome) = (Instant::now(), Outcome::default());
        let mut in_flight = 0;
        for index in 0..self.connections.len() {
            in_flight += usize::from(self.ask(index, work)?);
        }
        let mut events = Events::with_capacity(1024);
        let mut over = false;
        while in_flight > 0 {
            self.poll.poll(&mut events, Some(TIMEOUT))?;
            if events.is_empty() {
                return Err(io::Error::new(ErrorKind::TimedOut, "the server does not answer"));
            }
            over = over || lasting.is_some_and(|lasting| start.elapsed() >= lasting);
            for event in &events {
                let index = event.token().0;
                if !self.read(index)? {
                    continue;
                }
                let part = self.settle(index, work, &mut outcome) == Done::Part;
                in_flight -= 1;
                // Operations that were started are completed, or their requests would count for nothing.
                if part || !over {
                    in_flight += usize::from(self.ask(index, work)?);
                }
            }
        }
        outcome.elapsed = start.elapsed();
        Ok(outcome)
    }

    fn ask(&mut self, index: usize, work: &mut impl Work) -> io::Result<bool> {
        let connection = &mut self.connections[index];
        self.request.clear();
        if !work.request(index, &mut self.request) {
            return Ok(false);
        }
        connection.begun.get_or_insert_with(Instant::now);
        connection.response.clear();
        connection.socket.write_all(&self.request)?;
        Ok(true)
    }

    /// Reads from a connection; returns whether the response is complete.
    fn read(&mut self, index: usize) -> io::Result<bool> {
        let connection = &mut self.connections[index];
        if connection.begun.is_none() {
            return Ok(false);
        }
        loop {
            let count = match connection.socket.read(&mut self.buffer) {
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server has hung up")),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            };
            let fed = connection.response.feed(&self.buffer[..count]);
            fed.map_err(|error| io::Error::other(format!("cannot read a response: {error:?}")))?;
            if connection.response.is_complete() {
                return Ok(true);
            }
            // A short read has emptied the socket; later data is a new event.
            if count < self.buffer.len() {
                return Ok(false);
            }
        }
    }

    fn settle(&mut self, index: usize, work: &mut impl Work, outcome: &mut Outcome) -> Done {
        let connection = &mut self.connections[index];
        outcome.bytes += connection.response.body_bytes;
        let done = work.answer(index, &connection.response.head);
        if done == Done::Part {
            return done;
        }
        let took = connection.begun.take().map(|begun| begun.elapsed()).unwrap_or_default();
        match done {
            Done::Failed => outcome.failed += 1,
            Done::Whole | Done::Part => outcome.times.add(took),
        }
        done
    }
}
