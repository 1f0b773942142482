//! The server's side of one WebSocket of topics: frames in, answers out.
//!
//! A request is polled once. Most are done then, and their answer is queued before the next frame is looked at. One that
//! has to wait for something goes on in a task, of which a connection has only so many; beyond that nothing more is
//! read from it. While `$auth` waits, what comes after it waits too.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidings_auth::{Action, Credential, Denied, Pass, Resource, Revocation, Route, Wanted};
use tidings_engine::metrics::GaugeGuard;
use tidings_model::limits::Limit;
use tidings_model::{Position, ProjectId, Timestamp};
use tidings_topics::{CancellationToken, Topics};

use super::encode::{self, Closing};
use super::envelope::{Envelope, Unreadable};
use super::error::{WireError, code};
use super::hubs::ProjectHub;
use super::metrics::known_type;
use super::operation::{Answer, Operation, Outcome};
use super::policy::may_subscribe;
use super::rate::Bucket;
use super::request::Request;
use super::speaker::{Asked, Speaker};
use super::waiting::{Entered, Input, Waiting};
use crate::Api;
use crate::live::{
    End, FeedProtocol, FinalTexts, Panicked, PassHandle, Refusal, Reply, SwapRefused, poll_once,
};
use crate::websocket::{Text, Violation};

/// Range of the random delay after which clients of a server that stops should reconnect, in milliseconds.
const RETRY_MS: std::ops::RangeInclusive<u64> = 100..=2000;

/// Type of the request that cancels another one.
const ABORT: &str = "$ws:abort";

/// One connection.
pub struct Connection {
    speaker: Speaker,
    api: Api,
    /// Counts the connection.
    _counted: GaugeGuard,
    /// Held, so that the project keeps its hub.
    hub: Arc<ProjectHub>,
    project: ProjectId,
    pass: PassHandle,
    bucket: Bucket,
    /// Frames in a row that were not understood.
    bad_frames: u32,
    /// Requests that wait for something; `None` while there are none.
    waiting: Option<Box<Waiting>>,
    /// Value of [`Pass::generation`] at which the subscriptions were last compared with the grants.
    compared: u64,
    /// Time of the last comparison that ended subscriptions, and their number.
    swept: (Timestamp, usize),
}

/// What a connection is made of.
pub struct Parts {
    pub api: Api,
    pub hub: Arc<ProjectHub>,
    pub topics: Topics,
    pub project: ProjectId,
    pub pass: PassHandle,
    pub now: Timestamp,
}

impl Connection {
    /// A connection that has not said anything yet.
    pub fn new(parts: Parts) -> Self {
        let Parts { api, hub, topics, project, pass, now } = parts;
        let hubs = api.topics.clone();
        let (capacity, per_second) = (hubs.options().rate_capacity, hubs.options().rate_per_second);
        let bucket = Bucket::new(capacity, per_second, now);
        let compared = pass.current().generation();
        Self {
            _counted: hubs.metrics().connections.hold(),
            speaker: Speaker { topics, hubs },
            api,
            hub,
            project,
            pass,
            bucket,
            bad_frames: 0,
            waiting: None,
            compared,
            swept: (Timestamp::from_millis(0), 0),
        }
    }

    fn handle(&mut self, input: Input, now: Timestamp) -> Reply {
        if let Some(waiting) = &mut self.waiting
            && waiting.must_defer()
        {
            waiting.defer(input);
            return Reply::Nothing;
        }
        self.handle_now(&input, now)
    }

    fn handle_now(&mut self, input: &Input, now: Timestamp) -> Reply {
        let most = self.speaker.hubs.options().topics_per_request;
        let parsed = match input {
            Input::Text(text) => Envelope::of_text(text.as_str()).map(|envelope| (envelope, None)),
            Input::Binary(bytes) => Envelope::of_binary(bytes).map(|(envelope, body)| (envelope, Some(body))),
        };
        let too_fast = self.bucket.take(now);
        let (envelope, body) = match parsed {
            Ok(parsed) => parsed,
            Err(Unreadable { error, correlation_id }) => {
                let asked = Asked { kind: "other", correlation_id: correlation_id.map(|id| (*id).into()) };
                return self.reject(&asked, &too_fast.err().map_or(error, WireError::too_fast));
            }
        };
        let kind = known_type(&envelope.kind);
        // The id of an abort is that of another request, which has its own answer.
        let id = envelope.correlation_id.as_deref().filter(|_| kind != ABORT);
        let asked = Asked { kind, correlation_id: id.map(Into::into) };
        if let Err(retry_after) = too_fast {
            return self.reject(&asked, &WireError::too_fast(retry_after));
        }
        let request = match body {
            None => Request::parse(&envelope, most),
            Some(body) => Request::parse_binary(&envelope, body),
        };
        match request.and_then(|request| self.begin(request, input.bytes(), &asked, now)) {
            Ok(None) => self.bad_frames = 0,
            Ok(Some(operation)) => {
                self.bad_frames = 0;
                self.run(asked, operation);
            }
            Err(error) => return self.reject(&asked, &error),
        }
        Reply::Nothing
    }

    /// Handles a request that is not an operation on topics. Otherwise returns the operation.
    fn begin(
        &mut self,
        request: Request<'_>,
        frame: &Bytes,
        asked: &Asked,
        now: Timestamp,
    ) -> Result<Option<Operation>, WireError> {
        match request {
            Request::Heartbeat => {
                let ack = encode::heartbeat_ack(asked.correlation_id.as_deref(), now);
                self.speaker.say(asked, ack);
            }
            Request::Abort { correlation_id } => {
                if let Some(waiting) = &self.waiting {
                    waiting.cancel(&correlation_id);
                }
                self.speaker.count(asked);
            }
            Request::Auth { token } => self.authenticate(asked.clone(), &token, now),
            Request::History { ref topic, .. } | Request::Presence { ref topic } => {
                let normal = self.speaker.topics.normal(topic);
                self.speaker.hubs.options().rules.check(&normal)?;
                if self.pass.current().may_subscribe_topic(Wanted::Topic(&normal)).is_err() {
                    let message = format!("the credential does not grant `{normal}`");
                    return Err(WireError::new(code::PERMISSION_DENIED, message));
                }
                if let Request::Presence { topic } = request {
                    let capability = self.hub.driver().capability();
                    return Ok(Some(Operation::Presence { topic: topic.into(), capability }));
                }
                return Operation::of(request, frame);
            }
            request => return Operation::of(request, frame),
        }
        Ok(None)
    }

    /// Runs an operation, in a task if it has to wait.
    fn run(&mut self, asked: Asked, operation: Operation) {
        // Only a request that can be named can be cancelled.
        let cancel = asked.correlation_id.is_some().then(CancellationToken::new);
        match poll_once(operation.run(self.speaker.topics.clone(), cancel.clone())) {
            Ok(ended) => drop(self.speaker.answer(&asked, ended)),
            Err(running) => {
                let speaker = self.speaker.clone();
                self.waiting.get_or_insert_default().drive(speaker, asked, cancel, running);
            }
        }
    }

    /// Answers a frame that was not understood or not allowed.
    fn reject(&mut self, asked: &Asked, error: &WireError) -> Reply {
        drop(self.speaker.reject(asked, error));
        if !error.is_misuse() {
            return Reply::Nothing;
        }
        self.bad_frames += 1;
        match self.bad_frames >= self.speaker.hubs.options().bad_frames {
            true => Reply::End(End::Misused),
            false => Reply::Nothing,
        }
    }

    /// Verifies another token, which takes the place of the one before.
    fn authenticate(&mut self, asked: Asked, token: &str, now: Timestamp) {
        let gate = self.api.gate.clone();
        let route =
            Route { action: Action::UseTopics, project: self.project.clone(), resource: Resource::Project };
        let credential = Credential::new(token);
        let entering = async move { gate.enter(route, Some(&credential)).await };
        match poll_once(entering) {
            Ok(entered) => self.use_pass(&asked, entered, now),
            Err(entering) => {
                let speaker = self.speaker.clone();
                self.waiting.get_or_insert_default().authenticate(speaker, asked, entering);
            }
        }
    }

    /// Goes on with another pass, if it is of the same project and user.
    fn use_pass(&mut self, asked: &Asked, entered: Entered, now: Timestamp) {
        let swapped = match entered {
            Ok(Ok(pass)) => self.pass.swap(pass, now).map_err(|refused| match refused {
                SwapRefused::AnotherPrincipal => WireError::new(code::PERMISSION_DENIED, refused.to_string()),
                SwapRefused::Lapsed => WireError::new(code::UNAUTHENTICATED, refused.to_string()),
            }),
            Ok(Err(denied @ (Denied::WrongProject | Denied::Forbidden | Denied::Refused(_)))) => {
                Err(WireError::new(code::PERMISSION_DENIED, denied.to_string()))
            }
            Ok(Err(denied)) => Err(WireError::new(code::UNAUTHENTICATED, denied.to_string())),
            Err(Panicked) => Err(WireError::internal()),
        };
        if let Err(error) = swapped {
            drop(self.speaker.reject(asked, &error));
            return;
        }
        let pass = self.pass.current();
        let removed = self.remove_refused(&pass);
        let answer = serde_json::json!({
            "expiresAt": pass.expires_at().map(Timestamp::as_millis),
            "removed": removed.iter().map(|topic| &**topic).collect::<Vec<&str>>(),
        });
        let outcome = Outcome { payload: Answer::Value(answer), held: None };
        drop(self.speaker.answer(asked, Ok(Ok(outcome))));
        self.tell_removed(&removed, "token");
    }

    /// Ends the subscriptions that a pass does not allow.
    fn remove_refused(&mut self, pass: &Pass) -> Vec<Arc<str>> {
        self.compared = pass.generation();
        let refused = |topic: &str| may_subscribe(pass, topic).is_err();
        self.speaker.topics.remove_where(refused, "grant")
    }

    fn tell_removed(&self, removed: &[Arc<str>], reason: &str) {
        if !removed.is_empty() {
            drop(self.speaker.topics.queue_reply(encode::unsubscribed(removed, reason)));
        }
    }

    /// Ends the subscriptions that were revoked. Returns their number.
    fn sweep(&mut self) -> usize {
        let pass = self.pass.current();
        let removed = self.remove_refused(&pass);
        self.tell_removed(&removed, "revoked");
        removed.len()
    }

    fn closing(&self, end: End, now: Timestamp) -> Option<Closing> {
        Some(match end {
            End::Draining | End::TimeOver => Closing::GoingAway,
            End::Misused => Closing::ProtocolError,
            End::Failed | End::Lost | End::Complete => Closing::Internal,
            End::Revoked if self.has_expired(now) => Closing::TokenExpired,
            End::Revoked | End::Expelled => Closing::Revoked,
            End::Silent => Closing::HeartbeatTimeout,
            End::Slow => Closing::SlowConsumer,
            End::Left => return None,
        })
    }

    fn has_expired(&self, now: Timestamp) -> bool {
        self.pass.current().expires_at().is_some_and(|at| now >= at)
    }
}

impl FeedProtocol for Connection {
    fn on_text(&mut self, text: &Text, now: Timestamp) -> Reply {
        self.handle(Input::Text(text.clone()), now)
    }

    fn on_binary(&mut self, bytes: Bytes, now: Timestamp) -> Reply {
        self.handle(Input::Binary(bytes), now)
    }

    fn on_violation(&mut self, violation: Violation) -> Option<Refusal> {
        let metrics = self.speaker.hubs.metrics();
        let limit = self.speaker.hubs.options().frame_bytes;
        let (error, closing) = match violation {
            Violation::FrameTooBig(_) | Violation::MessageTooBig(_) => {
                metrics.limit_hits.count(Limit::TopicFrameBytes);
                (Some(WireError::frame_too_large(limit)), Closing::FrameTooLarge)
            }
            Violation::TooManyFragments(_) | Violation::MessageTooSlow => (None, Closing::ProtocolError),
            // The framing itself is broken, or the text: the code of the close frame says so.
            _ => return None,
        };
        metrics.closed(closing);
        let error = error.map(|error| encode::error_text(&error));
        let texts = error.into_iter().chain([closing.last_text(None)]).collect();
        Some(Refusal { texts, close: closing.close() })
    }

    fn wants_input(&self) -> bool {
        self.waiting.as_ref().is_none_or(|waiting| waiting.has_room())
    }

    fn has_more(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.can_go_on())
    }

    fn go_on(&mut self, now: Timestamp) -> Reply {
        let Some(waiting) = &mut self.waiting else { return Reply::Nothing };
        if let Some((asked, entered)) = waiting.authenticated() {
            self.use_pass(&asked, entered, now);
            return Reply::Nothing;
        }
        match waiting.deferred() {
            Some(input) => self.handle_now(&input, now),
            None => Reply::Nothing,
        }
    }

    fn tick(&mut self, now: Timestamp) -> Reply {
        if let Some(waiting) = &mut self.waiting
            && waiting.is_idle()
        {
            self.waiting = None;
        }
        let expired = self.speaker.topics.expire();
        self.tell_removed(&expired, "expired");
        if self.pass.current().generation() != self.compared {
            let removed = self.sweep();
            if removed > 0 {
                self.swept = (now, removed);
            }
        }
        Reply::Nothing
    }

    fn revoked(&mut self, revocation: &Revocation, _now: Timestamp) -> usize {
        let (at, before) = std::mem::take(&mut self.swept);
        let before = if at >= revocation.at { before } else { 0 };
        before + self.sweep()
    }

    fn is_over(&mut self) {
        self.speaker.topics.close();
        self.waiting = None;
    }

    fn final_texts(&mut self, end: End, _: Position, _: Option<u64>, now: Timestamp) -> FinalTexts {
        let Some(closing) = self.closing(end, now) else {
            return FinalTexts { event: None, message: None, close: end.close() };
        };
        self.speaker.hubs.metrics().closed(closing);
        if closing == Closing::SlowConsumer {
            self.speaker.hubs.metrics().limit_hits.count(Limit::SlowConsumer);
        }
        // Spreads the load of a restart.
        let retry = || Duration::from_millis(self.api.rng.within(RETRY_MS));
        let retry_after = (closing == Closing::GoingAway).then(retry);
        FinalTexts { event: None, message: Some(closing.last_text(retry_after)), close: closing.close() }
    }
}
