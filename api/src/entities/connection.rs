//! The server's side of one WebSocket of entities: messages in, answers out.
//!
//! A client is admitted when it has shown a token; until then it hears nothing. Its messages are handled one at a time, and
//! the next one is not read while one waits.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tidings_auth::{Action, Credential, Denied, Pass, Resource, Route, Segments, WantedEntities};
use tidings_engine::deliver::Inbox;
use tidings_entities::{
    self as entities, Connect, Cursor, EntityCode, EntityId, Granted, IdForm, Project, Takeover, Watch,
};
use tidings_model::limits::Limit;
use tidings_model::{Position, ProjectId, Timestamp};

use super::closing::Closing;
use super::encode::{self, framed};
use super::error::{Refusal as Rejected, WireError, code};
use super::lane::{Input, Lane, Verified};
use super::message::{Message, Wish};
use super::requests::{self, Asked, SentIds};
use super::telling::Telling;
use crate::Api;
use crate::live::{End, FeedProtocol, FinalTexts, PassHandle, Refusal, Reply};
use crate::websocket::{Text, Violation};

/// Time before the expiry of a token at which its client is told.
const EXPIRING_SOON: Duration = Duration::from_secs(5 * 60);

/// One connection.
pub struct Connection {
    api: Api,
    project: ProjectId,
    takeover: Takeover,
    pass: PassHandle,
    state: State,
    lane: Lane<Text>,
    /// Expiry of which the client was told.
    told_expiry: Option<Timestamp>,
}

enum State {
    /// The client must show a token until then.
    Awaited { until: Timestamp },
    /// A token is being verified.
    Entering,
    /// The client was refused, and is told so as soon as it can be.
    Refused(Option<Refusal>),
    /// The client watches.
    Admitted(Session),
}

/// What a client has that was admitted.
#[derive(Clone)]
struct Session {
    watch: Watch,
    /// Id of a `TOKEN_REFRESH` whose token is being verified.
    refreshing: Option<Box<RawValue>>,
}

impl Connection {
    /// A connection whose client has not shown a token yet, and must do so until then.
    pub fn new(
        api: &Api,
        project: ProjectId,
        takeover: Takeover,
        pass: PassHandle,
        until: Timestamp,
    ) -> Self {
        Self {
            api: api.clone(),
            project,
            takeover,
            pass,
            state: State::Awaited { until },
            lane: Lane::new(),
            told_expiry: None,
        }
    }

    /// Judges a credential that was sent with the handshake. `None` if the client is refused, which it is told when the
    /// connection is open.
    pub fn judge(&mut self, verified: Result<Pass, Denied>, now: Timestamp) -> Option<Inbox> {
        match self.admit(Ok(verified), now) {
            Ok(inbox) => Some(inbox),
            Err(refusal) => {
                self.state = State::Refused(Some(refusal));
                None
            }
        }
    }

    /// Admits a client whose token is good.
    fn admit(&mut self, verified: Verified, now: Timestamp) -> Result<Inbox, Refusal> {
        let sockets = self.api.entity_sockets.clone();
        let pass = match verified {
            Ok(Ok(pass)) if pass.holds(now) => pass,
            Ok(Ok(_)) => return Err(self.refusal(Closing::InvalidToken, invalid_token(&Denied::Expired))),
            Ok(Err(denied)) => return Err(self.refusal(Closing::InvalidToken, invalid_token(&denied))),
            Err(_) => return Err(self.refusal(Closing::Internal, WireError::internal())),
        };
        let Some(user) = pass.principal().and_then(|principal| principal.user.clone()) else {
            let error = WireError::new(code::USER_REQUIRED, "Invalid token");
            return Err(self.refusal(Closing::InvalidToken, error));
        };
        let shared = self.lane.shared().clone();
        let connect = Connect {
            id: sockets.next_id(&self.api.rng),
            user: user.to_string(),
            granted: self.granted(&pass),
            encode: Arc::new(Telling { sockets: sockets.clone(), clock: self.api.live.clock.clone() }),
            takeover: self.takeover,
            close: Arc::new(move |closing| match closing {
                entities::Closing::TakenOver => shared.take_over(),
            }),
        };
        let (watch, reader) = match self.entities().connect(connect) {
            Ok(connected) => connected,
            Err(entities::ConnectError::TooManyConnections { most }) => {
                sockets.hit(Limit::EntityConnectionsPerUser);
                let error = WireError::limit(format!("A user has at most {most} connections"));
                return Err(self.refusal(Closing::TooManyConnections, error));
            }
        };
        let warning = self.expiry_to_tell(&pass, now);
        let heartbeat = sockets.options().heartbeat;
        let welcome = {
            let watch = watch.clone();
            async move {
                // The first connection of a project waits until its source was reached.
                let cursor = watch.reached().await;
                let told = encode::connected(watch.id().as_str(), cursor.as_ref(), heartbeat);
                let warning = warning.map(encode::token_expiring_soon);
                for text in [Some(told), warning].into_iter().flatten() {
                    watch.reply(framed(&text));
                }
            }
        };
        self.run(&watch, "AUTH", welcome);
        self.pass.admit(pass);
        self.state = State::Admitted(Session { watch, refreshing: None });
        Ok(reader.into())
    }

    /// The entities of the project. Asked for only when the client is admitted, so that names of projects that do not
    /// exist cost nothing.
    fn entities(&self) -> Project {
        self.api.entities.project(&self.project)
    }

    /// What a token allows to watch.
    fn granted(&self, pass: &Pass) -> Granted {
        let segments = match self.entities().ids() {
            IdForm::Uuid => Segments::One,
            IdForm::Text => Segments::Any,
        };
        let pass = pass.clone();
        Arc::new(move |code: &EntityCode, id: Option<&EntityId>| {
            let code = code.as_str();
            pass.may_watch_entities(match id {
                Some(id) => WantedEntities::One { code, id: id.as_str() },
                None => WantedEntities::WholeType { code, ids: segments },
            })
        })
    }

    fn refusal(&self, closing: Closing, error: WireError) -> Refusal {
        self.api.entity_sockets.closed(closing);
        Refusal { texts: vec![encode::error(None, &error).into()], close: closing.close() }
    }

    fn handle(&mut self, input: Input<Text>, now: Timestamp) -> Reply {
        if self.lane.must_defer() {
            self.lane.defer(input);
            return Reply::Nothing;
        }
        self.handle_now(&input, now)
    }

    fn handle_now(&mut self, input: &Input<Text>, now: Timestamp) -> Reply {
        let most_ids = self.api.entity_sockets.options().max_ids_per_subscribe;
        let parsed = match input {
            Input::Text(text) => Message::parse(text.as_str(), most_ids),
            Input::Binary => Err(Rejected { request_id: None, error: WireError::unreadable() }),
        };
        let session = match &self.state {
            State::Admitted(session) => session.clone(),
            State::Awaited { .. } => return self.first(parsed, now),
            State::Entering | State::Refused(_) => return Reply::Nothing,
        };
        match parsed {
            Ok(message) => self.answer(session, message, now),
            Err(Rejected { request_id, error }) => self.reject(&session.watch, "other", request_id, &error),
        }
        Reply::Nothing
    }

    /// Handles the first message of a client that has not shown a token.
    fn first(&mut self, parsed: Result<Message<'_>, Rejected<'_>>, now: Timestamp) -> Reply {
        let Ok(Message { wish: Wish::Auth { token }, .. }) = parsed else {
            return Reply::Refuse(self.missing_token());
        };
        self.api.entity_sockets.handled("AUTH");
        self.state = State::Entering;
        let verifying = self.verifying(&token);
        match self.lane.verify(verifying) {
            Some(verified) => self.enter(verified, now),
            None => Reply::Nothing,
        }
    }

    fn enter(&mut self, verified: Verified, now: Timestamp) -> Reply {
        match self.admit(verified, now) {
            Ok(inbox) => Reply::Begin(Vec::new(), inbox),
            Err(refusal) => Reply::Refuse(refusal),
        }
    }

    fn missing_token(&self) -> Refusal {
        self.refusal(Closing::MissingToken, WireError::new(code::MISSING_TOKEN, "Missing token"))
    }

    fn verifying(&self, token: &str) -> impl Future<Output = Result<Pass, Denied>> + Send + 'static {
        let gate = self.api.gate.clone();
        let (action, resource) = (Action::WatchEntities, Resource::Project);
        let route = Route { action, project: self.project.clone(), resource };
        let credential = Credential::new(token);
        async move { gate.enter(route, Some(&credential)).await }
    }

    fn answer(&mut self, session: Session, message: Message<'_>, now: Timestamp) {
        let Message { request_id, wish } = message;
        let kind = wish.kind();
        let Session { watch, .. } = session;
        match wish {
            Wish::Ping => self.say(&watch, kind, &encode::pong(request_id)),
            Wish::Auth { .. } => {
                let error = WireError::new(code::INVALID_MESSAGE, "A token was shown already");
                self.reject(&watch, kind, request_id, &error);
            }
            Wish::TokenRefresh { token } => self.refresh(request_id, &token, now),
            Wish::Subscribe { code, ids, since } => {
                if self.has_expired(now) {
                    let error = WireError::new(code::TOKEN_EXPIRED, "The token has expired");
                    return self.reject(&watch, kind, request_id, &error);
                }
                let since = match since.map(|since| Cursor::parse(&since)).transpose() {
                    Ok(since) => since,
                    Err(error) => {
                        let error = WireError::new(code::INVALID_CURSOR, error.to_string());
                        return self.reject(&watch, kind, request_id, &error);
                    }
                };
                let ids = SentIds::parse(&ids, self.entities().ids());
                let work = requests::subscribe(self.asked(watch.clone(), request_id), code, ids, since);
                self.run(&watch, kind, work);
            }
            Wish::Unsubscribe { code, ids } => {
                let ids = SentIds::parse(&ids, self.entities().ids());
                let work = requests::unsubscribe(self.asked(watch.clone(), request_id), code, ids);
                self.run(&watch, kind, work);
            }
            Wish::UnsubscribeAll => {
                let work = requests::unsubscribe_all(self.asked(watch.clone(), request_id));
                self.run(&watch, kind, work);
            }
        }
    }

    fn asked(&self, watch: Watch, request_id: Option<&RawValue>) -> Asked {
        let request_id = request_id.map(RawValue::to_owned);
        Asked { watch, request_id, sockets: self.api.entity_sockets.clone() }
    }

    /// Verifies another token, which takes the place of the one before.
    fn refresh(&mut self, request_id: Option<&RawValue>, token: &str, now: Timestamp) {
        let verifying = self.verifying(token);
        if let State::Admitted(session) = &mut self.state {
            session.refreshing = request_id.map(RawValue::to_owned);
        }
        if let Some(verified) = self.lane.verify(verifying) {
            self.use_refreshed(verified, now);
        }
    }

    /// Goes on with another token, if it is one of the same user.
    fn use_refreshed(&mut self, verified: Verified, now: Timestamp) {
        let State::Admitted(session) = &mut self.state else { return };
        let (watch, request_id) = (session.watch.clone(), session.refreshing.take());
        let swapped = match verified {
            Ok(Ok(pass)) => self.pass.swap(pass.clone(), now).map(|()| pass).map_err(drop),
            Ok(Err(_)) | Err(_) => Err(()),
        };
        let Ok(pass) = swapped else {
            let error = WireError::new(code::INVALID_REFRESH_TOKEN, "Invalid refresh token");
            return self.reject(&watch, "TOKEN_REFRESH", request_id.as_deref(), &error);
        };
        let expires_in = pass.expires_at().map(|at| at.since(now));
        let (granted, sockets) = (self.granted(&pass), self.api.entity_sockets.clone());
        let work = {
            let watch = watch.clone();
            async move {
                let removed = watch.regrant(granted).await;
                sockets.handled("TOKEN_REFRESH");
                let told = encode::token_refreshed(request_id.as_deref(), expires_in, &removed);
                watch.reply(framed(&told));
            }
        };
        self.run(&watch, "TOKEN_REFRESH", work);
    }

    /// Runs a request, in a task if it has to wait.
    fn run(&mut self, watch: &Watch, kind: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let (watch, sockets) = (watch.clone(), self.api.entity_sockets.clone());
        self.lane.run(work, move || {
            sockets.rejected(kind);
            watch.reply(framed(&encode::error(None, &WireError::internal())));
        });
    }

    /// Answers a message that was handled.
    fn say(&self, watch: &Watch, kind: &str, text: &[u8]) {
        self.api.entity_sockets.handled(kind);
        drop(watch.queue_reply(framed(text)));
    }

    /// Answers a message that was not understood or not allowed.
    fn reject(&self, watch: &Watch, kind: &str, request_id: Option<&RawValue>, error: &WireError) {
        let sockets = &self.api.entity_sockets;
        sockets.rejected(kind);
        if error.code == code::LIMIT_EXCEEDED {
            sockets.hit(Limit::EntityIdsPerSubscribe);
        }
        drop(watch.queue_reply(framed(&encode::error(request_id, error))));
    }

    /// Time until a token expires, if that is soon and the client was not told.
    fn expiry_to_tell(&mut self, pass: &Pass, now: Timestamp) -> Option<Duration> {
        let at = pass.expires_at().filter(|at| now < *at && at.since(now) <= EXPIRING_SOON)?;
        (self.told_expiry.replace(at) != Some(at)).then(|| at.since(now))
    }

    fn has_expired(&self, now: Timestamp) -> bool {
        self.pass.admitted().and_then(|pass| pass.expires_at()).is_some_and(|at| now >= at)
    }

    fn closing(&self, end: End, now: Timestamp) -> Option<Closing> {
        Some(match end {
            End::Draining | End::TimeOver => Closing::ShuttingDown,
            End::Revoked if self.has_expired(now) => Closing::TokenExpired,
            End::Revoked | End::Expelled => Closing::TokenRevoked,
            End::Slow => Closing::SlowConsumer,
            End::Silent => Closing::Silent,
            End::Misused => Closing::ProtocolError,
            End::Failed | End::Lost | End::Complete => Closing::Internal,
            End::Left => return None,
        })
    }
}

/// Why a token does not open a connection.
fn invalid_token(denied: &Denied) -> WireError {
    let code = if matches!(denied, Denied::Expired) { code::TOKEN_EXPIRED } else { code::INVALID_TOKEN };
    WireError::new(code, "Invalid token")
}

impl FeedProtocol for Connection {
    fn on_text(&mut self, text: &Text, now: Timestamp) -> Reply {
        self.handle(Input::Text(text.clone()), now)
    }

    fn on_binary(&mut self, _: Bytes, now: Timestamp) -> Reply {
        self.handle(Input::Binary, now)
    }

    fn on_violation(&mut self, violation: Violation) -> Option<Refusal> {
        match violation {
            Violation::FrameTooBig(most) | Violation::MessageTooBig(most) => {
                self.api.entity_sockets.hit(Limit::EntityMessageBytes);
                let error = WireError::limit(format!("A message has at most {most} bytes"));
                Some(self.refusal(Closing::MessageTooLarge, error))
            }
            // The framing itself is broken, or the text: the code of the close frame says so.
            _ => None,
        }
    }

    fn wants_input(&self) -> bool {
        !self.lane.must_defer()
    }

    fn wake_with(&mut self, waker: &Waker) {
        self.lane.wake_with(waker);
    }

    fn has_more(&self) -> bool {
        matches!(self.state, State::Refused(Some(_))) || self.lane.can_go_on()
    }

    fn go_on(&mut self, now: Timestamp) -> Reply {
        if let State::Refused(refusal) = &mut self.state {
            return refusal.take().map_or(Reply::Nothing, Reply::Refuse);
        }
        if self.lane.shared().is_taken_over() {
            self.api.entity_sockets.closed(Closing::TakenOver);
            return Reply::Close(Closing::TakenOver.close());
        }
        if let Some(verified) = self.lane.verified() {
            if matches!(self.state, State::Entering) {
                return self.enter(verified, now);
            }
            self.use_refreshed(verified, now);
            return Reply::Nothing;
        }
        match self.lane.deferred() {
            Some(input) => self.handle_now(&input, now),
            None => Reply::Nothing,
        }
    }

    fn begin_deadline(&self) -> Option<Timestamp> {
        match self.state {
            State::Awaited { until } => Some(until),
            State::Entering | State::Refused(_) | State::Admitted(_) => None,
        }
    }

    fn is_due(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Awaited { until } if now >= until)
    }

    fn begin(&mut self, _: Timestamp) -> Reply {
        Reply::Refuse(self.missing_token())
    }

    fn tick(&mut self, now: Timestamp) -> Reply {
        if let (State::Admitted(session), Some(pass)) = (&self.state, self.pass.admitted()) {
            let watch = session.watch.clone();
            if let Some(left) = self.expiry_to_tell(&pass, now) {
                watch.reply(framed(&encode::token_expiring_soon(left)));
            }
        }
        Reply::Nothing
    }

    fn is_over(&mut self) {
        self.lane.end();
        if let State::Admitted(session) = &self.state {
            session.watch.close();
        }
    }

    fn final_texts(&mut self, end: End, _: Position, _: Option<u64>, now: Timestamp) -> FinalTexts {
        let Some(closing) = self.closing(end, now) else {
            return FinalTexts { event: None, message: None, close: end.close() };
        };
        self.api.entity_sockets.closed(closing);
        if closing == Closing::SlowConsumer {
            self.api.entity_sockets.hit(Limit::EntityStall);
        }
        FinalTexts { event: None, message: None, close: closing.close() }
    }
}
