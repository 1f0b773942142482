//! [`Client`], the loop: connect, handle events, store cursors, wait, connect again.

use std::sync::Arc;
use std::time::Duration;

use super::event::Message;
use super::recent::Recent;
use super::retry::{End, Next, Retry};
use super::stopped::BoxError;
use super::stream::{Item, Stream};
use super::{
    BackoffReason, ConnectionState, Credential, Event, Handler, Info, LastSeen, MissedEvents, NoCredential,
    Reason, Refusal, Stopped, Target,
};
use crate::{Clock, Rng, SystemClock, SystemRng};

/// Time without a byte after which the server counts as gone: two and a half heartbeats of 15 seconds.
pub(super) const SILENCE: Duration = Duration::from_millis(37_500);

/// Follows a room.
///
/// ```no_run
/// use tidings_client::rooms::{Client, Event, Handler, InFile, Target, Token};
///
/// struct Print;
///
/// impl Handler for Print {
///     type Error = std::convert::Infallible;
///
///     async fn event(&mut self, event: &Event) -> Result<(), Self::Error> {
///         println!("{} {}", event.kind.name(), event.payload);
///         Ok(())
///     }
/// }
///
/// # async fn follow() -> Result<(), Box<dyn std::error::Error>> {
/// let target = Target::new("https://tidings.example", "shop", "lobby")?;
/// let mut client = Client::new(target, Print, InFile::at("lobby.cursor")).with_credential(Token("…".to_owned()));
/// let stopped = client.run().await;
/// println!("{stopped}");
/// # Ok(())
/// # }
/// ```
pub struct Client<H, L, C = NoCredential> {
    target: Target,
    handler: H,
    last_seen: L,
    credential: C,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    recent: Recent,
    /// Whether the handler was told of a skip that the next stream will announce again.
    skip_reported: bool,
}

impl<H: Handler, L: LastSeen> Client<H, L> {
    /// A client that follows the target and passes events to the handler.
    pub fn new(target: Target, handler: H, last_seen: L) -> Self {
        Self {
            target,
            handler,
            last_seen,
            credential: NoCredential,
            clock: Arc::new(SystemClock),
            rng: Arc::new(SystemRng),
            recent: Recent::default(),
            skip_reported: false,
        }
    }

    /// Sets the credential. The default is [`NoCredential`].
    pub fn with_credential<C: Credential>(self, credential: C) -> Client<H, L, C> {
        let Self { target, handler, last_seen, clock, rng, recent, skip_reported, .. } = self;
        Client { target, handler, last_seen, credential, clock, rng, recent, skip_reported }
    }
}

impl<H: Handler, L: LastSeen, C: Credential> Client<H, L, C> {
    /// Sets the clock. The default is [`SystemClock`].
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the source of randomness. The default is [`SystemRng`].
    pub fn with_rng(mut self, rng: Arc<dyn Rng>) -> Self {
        self.rng = rng;
        self
    }

    /// The handler.
    pub fn handler(&self) -> &H {
        &self.handler
    }

    /// Follows the room until retrying is pointless. To stop earlier, drop the future: that closes the
    /// connection, and the next run resumes at the stored cursor.
    pub async fn run(&mut self) -> Stopped {
        let mut retry = Retry::default();
        self.handler.state(&ConnectionState::Disconnected);
        let stopped = loop {
            let end = match self.connect_once(&mut retry).await {
                Ok(end) => end,
                Err(stopped) => break stopped,
            };
            let (wait, why) = match retry.after(end, &*self.rng) {
                Next::Stop(stopped) => break stopped,
                Next::Wait(wait, why) => (wait, why),
                Next::Refresh(wait, refusal) => {
                    if !self.credential.refresh().await {
                        break Stopped::Unauthorized(refusal);
                    }
                    (wait, BackoffReason::TokenRefused)
                }
            };
            self.handler.state(&ConnectionState::Backoff { wait, why });
            self.clock.sleep(wait).await;
        };
        self.handler.state(&ConnectionState::Disconnected);
        stopped
    }

    /// Connects once and handles events until the stream ends. An error is one of the handler or of the
    /// stored cursor.
    async fn connect_once(&mut self, retry: &mut Retry) -> Result<End, Stopped> {
        self.handler.state(&ConnectionState::Connecting);
        let cursor = self.last_seen.load().await.map_err(last_seen)?;
        let opening = Stream::open(&self.target, cursor.as_ref(), self.credential.token());
        let mut stream = match in_time(&*self.clock, opening).await {
            Ok(stream) => stream,
            Err(end) => {
                if let End::Gone { skip, had_cursor: true, .. } = &end {
                    self.skip(skip).await?;
                }
                return Ok(end);
            }
        };
        self.handler.state(&ConnectionState::Streaming);
        match cursor {
            Some(cursor) => self.recent.add(cursor),
            // Store the start of the stream: otherwise events written before the first one arrives would be
            // missed if the stream broke.
            None => {
                if let Some(start) = stream.start.take() {
                    self.last_seen.store(Some(&start)).await.map_err(last_seen)?;
                }
            }
        }
        let began = self.clock.elapsed();
        let mut heard = began;
        let end = loop {
            match in_time(&*self.clock, stream.next()).await {
                Err(end) => break end,
                Ok(item) => {
                    heard = self.clock.elapsed();
                    if let Some(end) = self.take(item, retry).await? {
                        break end;
                    }
                }
            }
        };
        self.skip_reported = false;
        if let End::Gone { skip, .. } = &end {
            self.skip(skip).await?;
        }
        retry.streamed(heard.saturating_sub(began));
        Ok(end)
    }

    async fn take(&mut self, item: Item, retry: &mut Retry) -> Result<Option<End>, Stopped> {
        match item {
            Item::Sign => Ok(None),
            Item::Retry(wait) => {
                retry.asked(wait);
                Ok(None)
            }
            Item::Position(cursor) => {
                self.last_seen.store(Some(&cursor)).await.map_err(last_seen)?;
                Ok(None)
            }
            Item::Message(Message::Event(event)) => self.handle(event).await.map(|()| None),
            Item::Message(Message::Info(info)) => self.act_on(&info).await,
        }
    }

    /// Handles an event unless it is a duplicate, then stores its cursor. In the other order the event would
    /// be lost if the process ended in between.
    async fn handle(&mut self, event: Event) -> Result<(), Stopped> {
        if self.recent.knows(&event.cursor) {
            return Ok(());
        }
        self.skip_reported = false;
        self.handler.event(&event).await.map_err(|error| Stopped::Handler(boxed(error)))?;
        if event.kind.is_kept() {
            self.last_seen.store(Some(&event.cursor)).await.map_err(last_seen)?;
        }
        self.recent.add(event.cursor);
        Ok(())
    }

    /// Acts on an infoEvent. Does not wait for the end of the stream after one that announces it.
    async fn act_on(&mut self, info: &Info) -> Result<Option<End>, Stopped> {
        self.handler.info(info);
        let retry_after = info.retry_after();
        let refusal = |status, error: &str| {
            let message = info.detail["message"].as_str().unwrap_or_default().to_owned();
            Refusal { status, error: error.to_owned(), message }
        };
        Ok(match info.reason {
            Reason::CaughtUp => None,
            Reason::Compacted | Reason::Reset => {
                let name = if info.reason == Reason::Reset { "reset" } else { "compacted" };
                self.skip(&MissedEvents::of(name, &info.detail)).await?;
                self.last_seen.store(info.cursor.as_ref()).await.map_err(last_seen)?;
                self.skip_reported = false;
                None
            }
            Reason::SlowConsumer => Some(End::Again { why: BackoffReason::SlowConsumer, retry_after }),
            Reason::ServerRestart => Some(End::Again { why: BackoffReason::ServerRestart, retry_after }),
            Reason::MembershipRevoked => {
                Some(End::Stop(Stopped::Forbidden(refusal(403, "membership-revoked"))))
            }
            Reason::TokenExpired => Some(End::Unauthorized(refusal(401, "token-expired"))),
        })
    }

    /// Tells the handler once that events are gone, and clears the cursor.
    async fn skip(&mut self, skip: &MissedEvents) -> Result<(), Stopped> {
        if !std::mem::replace(&mut self.skip_reported, true) {
            self.handler.skipped(skip);
        }
        self.recent.clear();
        self.last_seen.store(None).await.map_err(last_seen)
    }
}

/// Waits for the server, at most for [`SILENCE`].
async fn in_time<T>(clock: &dyn Clock, coming: impl Future<Output = Result<T, End>>) -> Result<T, End> {
    tokio::select! {
        biased;
        come = coming => come,
        () = async { clock.sleep(SILENCE).await } => {
            Err(End::network(format!("the server has said nothing for {} s", SILENCE.as_secs_f64())))
        }
    }
}

fn last_seen(error: impl Into<BoxError>) -> Stopped {
    Stopped::LastSeen(boxed(error))
}

fn boxed(error: impl Into<BoxError>) -> BoxError {
    error.into()
}
