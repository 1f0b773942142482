//! A feed on a socket of its own, written directly by whoever wakes it.
//!
//! The subscription's waker is the socket itself. Waking it, which the pump of a channel usually does, sends
//! what is pending with one write on the waking task; no other task is scheduled. The socket's own task only
//! waits until the client sends something or leaves, or the socket is writable again after it was full.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use socket2::SockRef;
use tidings_engine::Clock;
use tidings_model::{Timestamp, limits};
use tokio::net::TcpStream;

use super::connections::{LiveConnection, LiveConnections};
use super::feed::{Ask, End, Feed};
use super::outbox::{CHUNKS, Outbox};

/// Flag: a thread is sending.
const BUSY: u8 = 1;
/// Flag: the sending thread must look once more before it stops.
const AGAIN: u8 = 2;

/// Bytes read at a time.
const READ_BYTES: usize = 4096;

/// A client's socket and its feed.
pub struct Socket {
    stream: TcpStream,
    clock: Arc<dyn Clock>,
    feed: Mutex<Feed>,
    sending: AtomicU8,
    /// Set while the kernel's send buffer is full; the task waits for it.
    blocked: AtomicBool,
    /// Set when the client has closed its side.
    left: AtomicBool,
    /// Set when the connection is to be dropped.
    over: AtomicBool,
    task: AtomicWaker,
}

impl Socket {
    /// Drives a feed until it or the client ends. Both are released when this returns or is dropped.
    pub async fn serve(
        stream: TcpStream,
        feed: Feed,
        clock: Arc<dyn Clock>,
        live_connections: &LiveConnections,
    ) {
        let begin_deadline = feed.begin_deadline();
        let socket = Arc::new(Self {
            stream,
            clock,
            feed: Mutex::new(feed),
            sending: AtomicU8::new(0),
            blocked: AtomicBool::new(false),
            left: AtomicBool::new(false),
            over: AtomicBool::new(false),
            task: AtomicWaker::new(),
        });
        let serving = Serving(socket.clone());
        // Sent before anything can end the feed: the head of the response comes first.
        socket.send();
        if let Some(at) = begin_deadline {
            LiveConnections::tick_at(&socket, at, socket.clock.clone());
        }
        live_connections.enter(socket);
        serving.await;
    }

    /// Sends what is pending. A panic cuts this connection only: the waking task has others to wake.
    fn send(self: &Arc<Self>) {
        if catch_unwind(AssertUnwindSafe(|| self.send_in_turn())).is_err() {
            tracing::error!("a live answer panicked while it was sent; its connection is cut");
            self.finish();
        }
    }

    /// Sends unless another thread is sending; that one looks once more.
    fn send_in_turn(self: &Arc<Self>) {
        if self.sending.fetch_or(BUSY | AGAIN, Ordering::SeqCst) & BUSY != 0 {
            return;
        }
        let waker = Waker::from(self.clone());
        let mut cx = Context::from_waker(&waker);
        loop {
            self.sending.fetch_and(!AGAIN, Ordering::SeqCst);
            if !self.over.load(Ordering::SeqCst) && !self.blocked.load(Ordering::SeqCst) {
                match self.send_all(&mut cx) {
                    Ok(Sent::All) => {}
                    Ok(Sent::Blocked) => {
                        self.blocked.store(true, Ordering::SeqCst);
                        self.task.wake();
                    }
                    // A client that has closed its side need not be waited for.
                    Ok(Sent::LastWord) if self.left.load(Ordering::SeqCst) => self.finish(),
                    Ok(Sent::LastWord) => self.hang_up(),
                    Err(_) => self.finish(),
                }
            }
            if self.sending.compare_exchange(BUSY, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return;
            }
        }
    }

    fn send_all(&self, cx: &mut Context<'_>) -> io::Result<Sent> {
        let mut feed = self.feed();
        let mut room = limits::SEND_BYTES;
        loop {
            if room == 0 {
                // The task finds the socket writable and goes on, after other tasks had their turn.
                return Ok(Sent::Blocked);
            }
            let Poll::Ready(outbox) = feed.poll_outbox(cx, || self.clock.now()) else { return Ok(Sent::All) };
            if outbox.is_empty() {
                // The sending side is shut down only once.
                let first = !std::mem::replace(&mut feed.hung_up, true);
                return Ok(if first { Sent::LastWord } else { Sent::All });
            }
            match self.write(outbox) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    feed.sent(bytes);
                    room = room.saturating_sub(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    feed.stuck(self.clock.now());
                    return Ok(Sent::Blocked);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes as much as possible with one system call.
    fn write(&self, outbox: &Outbox) -> io::Result<usize> {
        if let Some(piece) = outbox.only() {
            return self.stream.try_write(piece);
        }
        self.stream.try_write_vectored(outbox.fill(&mut [IoSlice::new(&[]); CHUNKS]))
    }

    /// Reads from the client until it is gone. A client that has closed its side may still read.
    fn poll_read(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.stream.poll_read_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) => {}
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.try_read(&mut bytes) {
                Ok(0) => {
                    if self.feed().leave() == Ask::Cut {
                        return Poll::Ready(());
                    }
                    self.left.store(true, Ordering::SeqCst);
                    self.send();
                    return Poll::Pending;
                }
                Ok(count) => {
                    let ask = self.feed().received(&bytes[..count], self.clock.now());
                    if ask == Ask::Send {
                        self.send();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Poll::Ready(()),
            }
        }
    }

    /// Shuts down the sending side and waits for the client to close its own: closing the socket while the
    /// client still sends could discard data that it has not read yet.
    fn hang_up(&self) {
        if SockRef::from(&self.stream).shutdown(Shutdown::Write).is_err() {
            self.finish();
        }
    }

    /// Ends the connection as soon as the task runs.
    fn finish(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.task.wake();
    }

    /// Locks the feed, ignoring poison: after a panic while sending it is only released.
    fn feed(&self) -> MutexGuard<'_, Feed> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of sending.
enum Sent {
    /// Everything pending was sent.
    All,
    /// The kernel's send buffer is full.
    Blocked,
    /// Everything was sent, and nothing more will come.
    LastWord,
}

impl Wake for Socket {
    fn wake(self: Arc<Self>) {
        self.send();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.send();
    }
}

impl LiveConnection for Socket {
    fn tick(self: Arc<Self>, now: Timestamp) {
        let ask = self.feed().tick(now);
        match ask {
            Ask::Nothing => {}
            Ask::Send => self.send(),
            Ask::Cut => self.finish(),
        }
    }

    fn drain(self: Arc<Self>, now: Timestamp) {
        self.feed().end(End::Draining, now);
        self.send();
    }

    fn cut(&self) {
        self.finish();
    }
}

/// The task of a socket. Dropping it releases the feed, and with it the last reference to the socket.
struct Serving(Arc<Socket>);

impl Future for Serving {
    type Output = ();

    fn poll(self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let socket = &self.0;
        socket.task.register(cx.waker());
        socket.send();
        loop {
            let reading = match socket.left.load(Ordering::SeqCst) {
                true => Poll::Pending,
                false => socket.poll_read(cx),
            };
            if socket.over.load(Ordering::SeqCst) || reading.is_ready() {
                return Poll::Ready(());
            }
            if !socket.blocked.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
            match socket.stream.poll_write_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) => {
                    socket.blocked.store(false, Ordering::SeqCst);
                    socket.send();
                }
            }
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::SeqCst);
        self.0.feed().abandon();
    }
}

#[cfg(test)]
mod tests;
