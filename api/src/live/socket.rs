//! A feed on a socket of its own, written directly by whoever wakes it.
//!
//! The subscription's waker is the socket itself. Waking it, which the pump of a channel usually does, sends
//! what is pending with one write on the waking task; no other task is scheduled. The socket's own task only
//! waits until the client sends something or leaves, or the socket is writable again after it was full.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use socket2::SockRef;
use tidings_auth::Revocation;
use tidings_engine::Clock;
use tidings_model::{Timestamp, limits};
use tokio::net::TcpStream;

use super::connections::{Cut, LiveConnection, LiveConnections};
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
    /// Set when there was something to send while somebody else had the feed, who sends it afterwards.
    missed: AtomicBool,
    /// Set while the kernel's send buffer is full; the task waits for it.
    blocked: AtomicBool,
    /// Set while nothing is read from the client because it has to wait; whoever sends looks whether it still
    /// has to. Changed under the lock of the feed.
    paused: AtomicBool,
    /// Set when the client has closed its side.
    left: AtomicBool,
    /// Set when the connection is to be dropped.
    over: AtomicBool,
    task: AtomicWaker,
}

impl Socket {
    /// Starts to send a feed. The returned future drives it until it or the client ends, and releases both when
    /// it ends or is dropped. It is small, because a task holds it for as long as the connection is open.
    pub fn serve(
        stream: TcpStream,
        feed: Feed,
        clock: Arc<dyn Clock>,
        live_connections: &LiveConnections,
    ) -> Serving {
        let begin_deadline = feed.begin_deadline();
        let socket = Arc::new(Self {
            stream,
            clock,
            feed: Mutex::new(feed),
            sending: AtomicU8::new(0),
            missed: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            paused: AtomicBool::new(false),
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
        serving
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
                    Ok(Sent::FinalTexts) if self.left.load(Ordering::SeqCst) => self.finish(),
                    Ok(Sent::FinalTexts) => self.hang_up(),
                    Err(_) => self.finish(),
                }
            }
            if self.sending.compare_exchange(BUSY, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return;
            }
        }
    }

    fn send_all(&self, cx: &mut Context<'_>) -> io::Result<Sent> {
        let Some(mut feed) = self.feed_unless_busy() else { return Ok(Sent::All) };
        let mut room = limits::SEND_BYTES;
        loop {
            if room == 0 {
                // The task finds the socket writable and goes on, after other tasks had their turn.
                return Ok(Sent::Blocked);
            }
            let polled = feed.poll_outbox(cx, || self.clock.now()).is_ready();
            if self.paused.load(Ordering::SeqCst) && feed.wants_input() {
                self.paused.store(false, Ordering::SeqCst);
                self.task.wake();
            }
            if !polled {
                return Ok(Sent::All);
            }
            let outbox = feed.outbox();
            if outbox.is_empty() {
                // The sending side is shut down only once.
                let first = !std::mem::replace(&mut feed.hung_up, true);
                return Ok(if first { Sent::FinalTexts } else { Sent::All });
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
            if self.is_paused() {
                return Poll::Pending;
            }
            match self.stream.poll_read_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) => {}
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.try_read(&mut bytes) {
                Ok(0) => {
                    if self.with_feed(Feed::leave) == Ask::Cut {
                        return Poll::Ready(());
                    }
                    self.left.store(true, Ordering::SeqCst);
                    self.send();
                    return Poll::Pending;
                }
                Ok(count) => {
                    let ask = self.with_feed(|feed| feed.received(&bytes[..count], self.clock.now()));
                    if ask == Ask::Send {
                        self.send();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Poll::Ready(()),
            }
        }
    }

    /// Whether the client has to wait before more is read from it. Then whoever sends wakes the task later.
    fn is_paused(self: &Arc<Self>) -> bool {
        self.with_feed(|feed| {
            let paused = !feed.wants_input();
            self.paused.store(paused, Ordering::SeqCst);
            paused
        })
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

    /// Does something with the feed. Who is woken meanwhile does not wait for the feed, which may be in use by
    /// the very code that wakes; what there is to send is sent here instead.
    fn with_feed<T>(self: &Arc<Self>, act: impl FnOnce(&mut Feed) -> T) -> T {
        let result = act(&mut self.feed());
        if self.missed.swap(false, Ordering::SeqCst) {
            self.send();
        }
        result
    }

    /// Locks the feed, unless [`Socket::with_feed`] has it and will send.
    fn feed_unless_busy(&self) -> Option<MutexGuard<'_, Feed>> {
        let locked = || match self.feed.try_lock() {
            Ok(feed) => Some(feed),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        locked().or_else(|| {
            self.missed.store(true, Ordering::SeqCst);
            // It may have been released before the flag was set.
            locked()
        })
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
    FinalTexts,
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
        let ask = self.with_feed(|feed| feed.tick(now));
        match ask {
            Ask::Nothing => {}
            Ask::Send => self.send(),
            Ask::Cut => self.finish(),
        }
    }

    fn drain(self: Arc<Self>, now: Timestamp) {
        self.with_feed(|feed| feed.end(End::Draining, now));
        self.send();
    }

    fn revoke(self: Arc<Self>, revocation: &Revocation, now: Timestamp) -> Cut {
        let cut = self.with_feed(|feed| feed.revoke(revocation, now));
        if cut != Cut::default() {
            self.send();
        }
        cut
    }

    fn cut(&self) {
        self.finish();
    }
}

/// Drives a socket. Dropping it releases the feed, and with it the last reference to the socket.
pub struct Serving(Arc<Socket>);

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
