//! Messages from some connections to another one, by way of whatever is between them.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::{Outcome, Stamps, stamped};

/// Time without a message after which the run fails.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Messages that are written at once at most.
const BATCH: usize = 64;
/// Bytes of the server that an error quotes.
const QUOTED_BYTES: usize = 300;

/// Connections that publish, and one that receives what they publish. One thread does both.
pub struct Relay {
    senders: Vec<TcpStream>,
    receiver: TcpStream,
}

/// How messages are sent.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Messages that were sent and have not arrived, at most.
    pub window: usize,
    /// Bytes of a message, without what it is wrapped in.
    pub bytes: usize,
    /// Duration of the run.
    pub lasting: Duration,
}

impl Relay {
    /// Of connections that are ready to publish, and one that has subscribed.
    pub fn new(senders: Vec<TcpStream>, receiver: TcpStream) -> Self {
        Self { senders, receiver }
    }

    /// Publishes for a time, with a limited number of messages on their way. `wrap` makes the bytes that publish a
    /// message.
    pub fn run(self, flow: Flow, wrap: impl Fn(&str) -> Vec<u8>) -> io::Result<Outcome> {
        let Self { mut senders, mut receiver } = self;
        receiver.set_read_timeout(Some(TIMEOUT))?;
        // What servers answer to publishers has to be read, or they stop reading.
        let answers = senders.iter().map(TcpStream::try_clone).collect::<io::Result<Vec<_>>>()?;
        let reading: Vec<_> =
            answers.into_iter().map(|socket| std::thread::spawn(|| discard(socket))).collect();
        let outcome = relay(&mut senders, &mut receiver, flow, wrap);
        senders.iter().try_for_each(|sender| sender.shutdown(Shutdown::Both))?;
        let said: Vec<_> = reading.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect();
        match (outcome, said.first()) {
            (Err(error), Some(said)) => {
                Err(io::Error::new(error.kind(), format!("{error}; it says {said:?}")))
            }
            (outcome, _) => outcome,
        }
    }
}

fn relay(
    senders: &mut [TcpStream],
    receiver: &mut TcpStream,
    flow: Flow,
    wrap: impl Fn(&str) -> Vec<u8>,
) -> io::Result<Outcome> {
    let (began, mut outcome, mut stamps) = (Instant::now(), Outcome::default(), Stamps::default());
    let (mut buffer, mut batch) = (vec![0; 256 << 10], Vec::new());
    let (mut sent, mut turn) = (0, 0);
    loop {
        let is_over = began.elapsed() >= flow.lasting;
        while !is_over && sent - outcome.times.count() < flow.window {
            let count = BATCH.min(flow.window - (sent - outcome.times.count()));
            batch.clear();
            for _ in 0..count {
                batch.extend_from_slice(&wrap(&stamped(began.elapsed(), flow.bytes)));
            }
            senders[turn].write_all(&batch)?;
            turn = (turn + 1) % senders.len();
            sent += count;
        }
        if sent == outcome.times.count() {
            outcome.elapsed = began.elapsed();
            return Ok(outcome);
        }
        match receiver.read(&mut buffer) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the receiver was closed")),
            Ok(count) => stamps.feed(&buffer[..count], began, |took| outcome.times.add(took)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let lost = sent - outcome.times.count();
                return Err(io::Error::new(
                    ErrorKind::TimedOut,
                    format!("{lost} of {sent} messages are missing"),
                ));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reads to the end. Returns the beginning of an error, if there was one.
fn discard(mut socket: TcpStream) -> Option<String> {
    let (mut buffer, mut error) = (vec![0; 64 << 10], None);
    loop {
        match socket.read(&mut buffer) {
            Ok(count) if count > 0 => {
                let text = String::from_utf8_lossy(&buffer[..count]);
                if let Some(at) = text.find("ERR").filter(|_| error.is_none()) {
                    error = Some(text[at..].chars().take(QUOTED_BYTES).collect());
                }
            }
            _ => return error,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// A connection to a server, and the server's end of it.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn every_message_is_counted_and_the_window_is_kept() {
        let ((one, mut from_one), (two, mut from_two), (receiver, to)) = (pair(), pair(), pair());
        let forward = |from: &mut TcpStream| {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            std::thread::spawn(move || io::copy(&mut from, &mut to))
        };
        let forwarding = [forward(&mut from_one), forward(&mut from_two)];
        let flow = Flow { window: 3, bytes: 30, lasting: Duration::from_millis(20) };
        let outcome =
            Relay::new(vec![one, two], receiver).run(flow, |text| text.as_bytes().to_vec()).unwrap();
        let bytes: u64 = forwarding.into_iter().map(|thread| thread.join().unwrap().unwrap()).sum();
        assert_eq!(bytes, 30 * outcome.times.count() as u64);
        assert!(outcome.times.count() >= 3);
    }
}
