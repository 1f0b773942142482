//! One attempt: makes the request, sends it, and says what came of it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{self, BoxFuture, Either};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use tidings_egress::{SendError, custom_headers};
use tidings_engine::Clock;
use tidings_model::{LogId, Position, Timestamp};

use super::bodies::{Bodies, Rendered};
use super::destinations::DestinationId;
use super::outcome::{FailureKind, Outcome};
use super::sender::{Post, Route, Sender};
use crate::event::{self, Event};
use crate::hook::{Format, Hook};
use crate::hooks::{Call, Handler};

/// Value of `user-agent`, unless a hook sends its own.
const AGENT: &str = concat!("tidings/", env!("CARGO_PKG_VERSION"));
const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// A hook, prepared for attempts.
pub(super) struct Prepared {
    /// The hook.
    pub(super) hook: Arc<Hook>,
    /// Where its deliveries go.
    pub(super) route: Route,
    /// Headers that all its deliveries have.
    headers: HeaderMap,
    timeout: Duration,
}

/// A delivery with its event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loaded {
    /// Position in the queue.
    pub(super) position: Position,
    /// Time at which it was queued.
    pub(super) at: Timestamp,
    /// Attempts that failed.
    pub(super) attempts: u32,
    /// The event as a record.
    pub(super) record: Bytes,
    /// Where the event is stored.
    pub(super) origin: Option<(LogId, Position)>,
}

/// An attempt to be made.
pub(super) struct Job {
    /// Queue of the hook.
    pub(super) queue: LogId,
    /// Tells one life of the hook's state in memory from the next.
    pub(super) life: u64,
    /// The hook.
    pub(super) prepared: Arc<Prepared>,
    /// The delivery.
    pub(super) loaded: Loaded,
    /// Where it goes.
    pub(super) destination: DestinationId,
    /// Whether the destination's circuit breaker decides by it.
    pub(super) is_probe: bool,
}

/// An attempt that ended.
pub(super) struct Ended {
    /// The attempt.
    pub(super) job: Job,
    /// What came of it.
    pub(super) outcome: Outcome,
    /// How long it took.
    pub(super) took: Duration,
}

/// Makes attempts.
pub(super) struct Attempts {
    pub(super) sender: Arc<dyn Sender>,
    pub(super) clock: Arc<dyn Clock>,
}

impl Prepared {
    /// Prepares a hook.
    pub(super) fn new(hook: Arc<Hook>, sender: &dyn Sender) -> Self {
        let settings = &hook.settings;
        let custom = settings.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        // They were checked when the hook was made.
        let mut headers = custom_headers(custom).unwrap_or_default();
        headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(event::content_type(settings.format)));
        if settings.format == Format::CloudEventsBinary {
            headers.insert("ce-specversion", HeaderValue::from_static("1.0"));
            headers.insert("ce-source", attribute(&event::source(&hook.project)));
        }
        let timeout = Duration::from_millis(u64::from(settings.timeout_ms));
        Self { route: sender.route(&hook), headers, timeout, hook }
    }

    /// Headers of an attempt.
    fn headers(&self, id: &str, rendered: &Rendered, now: Timestamp) -> HeaderMap {
        let mut headers = self.headers.clone();
        if self.hook.settings.format == Format::CloudEventsBinary {
            let Event { event_type, id, ts, .. } = &rendered.event;
            headers.insert("ce-id", attribute(id));
            headers.insert("ce-type", attribute(event_type));
            headers.insert("ce-time", attribute(ts));
        }
        let timestamp = now.as_millis() / 1000;
        let signature = self.hook.secrets.sign(id, timestamp, &rendered.body, now);
        let value = |text: String| HeaderValue::try_from(text).expect("digits and base64 are printable");
        headers.insert(WEBHOOK_ID, value(id.to_owned()));
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(timestamp));
        headers.insert(WEBHOOK_SIGNATURE, value(signature));
        headers
    }
}

/// The value of a CloudEvents attribute as a header: what is not printable ASCII, spaces, quotes and percent signs are
/// percent-encoded.
fn attribute(text: &str) -> HeaderValue {
    let mut value = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            0x21..=0x7e if byte != b'"' && byte != b'%' => value.push(char::from(byte)),
            _ => value.push_str(&format!("%{byte:02X}")),
        }
    }
    HeaderValue::try_from(value).expect("printable ASCII is a valid value")
}

impl Attempts {
    /// Begins an attempt.
    pub(super) fn begin(&self, job: Job, bodies: &mut Bodies) -> BoxFuture<'static, Ended> {
        let began = self.clock.elapsed();
        let sent = self.send(&job, bodies);
        let clock = self.clock.clone();
        Box::pin(async move {
            let outcome = sent.await;
            Ended { job, outcome, took: clock.elapsed().saturating_sub(began) }
        })
    }

    fn send(&self, job: &Job, bodies: &mut Bodies) -> BoxFuture<'static, Outcome> {
        let Job { queue, prepared, loaded, .. } = job;
        let failed = |error: &str| future::ready(Outcome::failed(FailureKind::Refused, error)).boxed();
        let hook = &prepared.hook;
        let format = match &prepared.route {
            Route::Endpoint(_) => hook.settings.format,
            Route::Handler { .. } => Format::Raw,
            Route::Nowhere(why) => return failed(why),
        };
        let Some(rendered) = bodies.body(&loaded.record, loaded.origin, format, &hook.project) else {
            return failed("the stored event cannot be read");
        };
        let id = hook.delivery(*queue, loaded.position).to_string();
        match &prepared.route {
            Route::Handler { handler, .. } => {
                let call = Call {
                    method: hook.settings.rpc_method.clone().unwrap_or_default(),
                    delivery: id,
                    event: rendered.event.id.clone(),
                    payload: rendered.body.clone(),
                };
                self.call(handler, call, prepared.timeout)
            }
            Route::Endpoint(target) => {
                let headers = prepared.headers(&id, &rendered, self.clock.now());
                let (target, body) = (target.clone(), rendered.body.clone());
                let answer = self.sender.post(Post { target, headers, body, timeout: prepared.timeout });
                Box::pin(async move {
                    match answer.await {
                        Ok(answer) => {
                            Outcome::of_response(answer.status.as_u16(), answer.retry_after, &answer.body)
                        }
                        Err(error) => of_error(&error),
                    }
                })
            }
            Route::Nowhere(why) => failed(why),
        }
    }

    fn call(&self, handler: &Handler, call: Call, timeout: Duration) -> BoxFuture<'static, Outcome> {
        let (handler, over) = (handler.clone(), self.clock.sleep(timeout));
        Box::pin(async move {
            // The handler itself may panic, before it returns a future.
            let called = AssertUnwindSafe(async move { handler(call).await }).catch_unwind();
            match future::select(std::pin::pin!(called), over).await {
                Either::Left((Ok(Ok(text)), _)) => Outcome::of_response(200, None, text.as_bytes()),
                Either::Left((Ok(Err(error)), _)) => Outcome::failed(FailureKind::Refused, &error),
                Either::Left((Err(_), _)) => Outcome::failed(FailureKind::Refused, "the handler panicked"),
                Either::Right(_) => Outcome::failed(FailureKind::Unreachable, "RPC timeout"),
            }
        })
    }
}

/// What an attempt without a response says.
fn of_error(error: &SendError) -> Outcome {
    let kind = match error {
        SendError::TooManySockets(_) => return Outcome::NotMade,
        SendError::Resolve(_)
        | SendError::Connect(_)
        | SendError::Tls(_)
        | SendError::Timeout { .. }
        | SendError::Closed => FailureKind::Unreachable,
        SendError::Forbidden(_) | SendError::Protocol(_) | SendError::TooLarge => FailureKind::Refused,
    };
    Outcome::failed(kind, &error.to_string())
}
