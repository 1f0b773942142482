//! Following a room live: one request that stays open, as server-sent events or as a WebSocket.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use tidings_auth::Action;
use tidings_model::limits::Limit;
use tidings_model::{DeviceId, ProjectId};
use tidings_rooms::{Cursor, Kind, ReaderKey};
use utoipa::IntoParams;

use super::admission::{Admitted, admit};
use super::begin::{Channel, Known, Missed, OnStale, RequestedStart, StartPoint};
use super::encode::{Dialect, Kinds};
use super::error::Refusal;
use super::pairs::{Pairs, RoomPath};
use super::protocol::Listener;
use super::write::default_device;
use crate::Api;
use crate::credential::Caller;
use crate::document::RoomRefusals;
use crate::document::params::{ProjectParam, RoomParam};
use crate::live::{FeedOptions, Transport};
use crate::sse;
use crate::websocket::{Limits, Upgrade};
use crate::wire::header::{LAST_EVENT_ID, STREAM_EPOCH};

/// Query of a request that follows a room.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct Following {
    /// Where to begin: a cursor to resume after, `oldest`, `head` or `last` (the read position of
    /// the device). Default: `head`, only new events.
    cursor: Option<String>,
    /// Kinds of events to receive, separated by commas; default: all.
    types: Option<String>,
    /// Id of the user's device.
    #[param(rename = "deviceId")]
    device_id: Option<String>,
    /// What to do if the cursor is stale or from the future: `error`, `head` or `oldest`. Default: `error` for `cursor`,
    /// `head` for `Last-Event-ID`.
    #[param(rename = "onStale")]
    on_stale: Option<String>,
    /// `1` to include the event at the cursor itself.
    overlap: Option<String>,
    /// `1` to receive an `infoEvent` when all stored events have been sent.
    #[param(rename = "caughtUp")]
    caught_up: Option<String>,
}

/// Follow a room as server-sent events, or as a WebSocket if the request is a WebSocket handshake.
#[utoipa::path(
    get,
    path = "/v1/{project}/rooms/{room}/events",
    tag = "rooms",
    params(
        ProjectParam,
        RoomParam,
        Following,
        ("Last-Event-ID" = Option<String>, Header, description = "Cursor to resume after; takes precedence over `cursor`."),
    ),
    responses(
        (status = 200, description = "Events of the room as server-sent events.", content_type = "text/event-stream", body = serde_json::Value, headers(
            ("last-event-id" = String, description = "Cursor after which the events begin."),
            ("stream-epoch" = String, description = "Epoch of the room's owner; it only increases."),
        )),
        (status = 101, description = "The connection is now a WebSocket."),
        RoomRefusals,
    )
)]
pub async fn follow(
    State(api): State<Api>,
    RoomPath(project, room): RoomPath,
    caller: Caller,
    request: Request,
) -> Result<Response, Refusal> {
    let form = if asks_for_websocket(request.headers()) { Form::WebSocket } else { Form::Events };
    answer(&api, &caller, &project, &room, request, form).await
}

/// Follow a conversation as server-sent events, in the project of the token.
#[utoipa::path(
    get,
    path = "/x/blue.catbird.mls.subscribeConvoEvents",
    tag = "rooms",
    params(
        ("convoId" = String, Query, description = "Room id.", example = "general"),
        Following,
        ("Last-Event-ID" = Option<String>, Header, description = "Cursor to resume after; takes precedence over `cursor`."),
    ),
    responses(
        (status = 200, description = "Events of the room as server-sent events.", content_type = "text/event-stream", body = serde_json::Value, headers(
            ("last-event-id" = String, description = "Cursor after which the events begin."),
            ("stream-epoch" = String, description = "Epoch of the room's owner; it only increases."),
        )),
        RoomRefusals,
    )
)]
pub async fn subscribe(
    State(api): State<Api>,
    caller: Caller,
    request: Request,
) -> Result<Response, Refusal> {
    let project = caller.project_named();
    let room = room_of_query(&request);
    answer(&api, &caller, &project, &room, request, Form::Events).await
}

/// Follow a conversation as a WebSocket, in the project of the token.
#[utoipa::path(
    get,
    path = "/x/blue.catbird.mls.subscribeConvoEvents.ws",
    tag = "rooms",
    params(
        ("convoId" = String, Query, description = "Room id.", example = "general"),
        Following,
    ),
    responses((status = 101, description = "The connection is now a WebSocket."), RoomRefusals)
)]
pub async fn subscribe_websocket(
    State(api): State<Api>,
    caller: Caller,
    request: Request,
) -> Result<Response, Refusal> {
    let project = caller.project_named();
    let room = room_of_query(&request);
    answer(&api, &caller, &project, &room, request, Form::WebSocket).await
}

/// Whether a request asks for a WebSocket. Upgrades to other protocols are ignored.
fn asks_for_websocket(headers: &HeaderMap) -> bool {
    let named = headers.get_all(header::UPGRADE).iter().filter_map(|value| value.to_str().ok());
    named.flat_map(|value| value.split(',')).any(|name| name.trim().eq_ignore_ascii_case("websocket"))
}

/// Room that a query names. Errors in the query are reported later.
fn room_of_query(request: &Request) -> String {
    let pairs = Pairs::of(request.uri()).ok();
    pairs.and_then(|pairs| pairs.once("convoId").ok().flatten().map(str::to_owned)).unwrap_or_default()
}

/// Transport of the response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Events,
    WebSocket,
}

/// Parsed request to follow a room.
struct Asked {
    requested: Result<RequestedStart, Missed>,
    channel: Channel,
    kinds: Kinds,
    device: Option<DeviceId>,
    on_stale: Option<OnStale>,
    overlap: bool,
    tells_caught_up: bool,
    upgrade: Option<Upgrade>,
}

impl Asked {
    fn read(request: &Request, form: Form) -> Result<Self, Refusal> {
        let pairs = Pairs::of(request.uri())?;
        let upgrade = match form {
            Form::Events => None,
            Form::WebSocket => {
                let validated =
                    Upgrade::validate_head(request.method(), request.version(), request.headers(), &[]);
                Some(validated?)
            }
        };
        // A browser that comes again sends the address it had, and the id of the last event it heard.
        let heard = request.headers().get(LAST_EVENT_ID).filter(|value| !value.is_empty());
        let (requested, channel) = match (heard, pairs.once("cursor")?) {
            (Some(value), _) => {
                let cursor = value.to_str().ok().and_then(|text| Cursor::parse(text.trim()).ok());
                (cursor.map(RequestedStart::After).ok_or(Missed::Unreadable), Channel::Header)
            }
            (None, None) => (Ok(RequestedStart::Head), Channel::Parameter),
            (None, Some(text)) => (Ok(RequestedStart::parse(text)?), Channel::Parameter),
        };
        let on_stale = match pairs.once("onStale")? {
            None => None,
            Some("error") => Some(OnStale::Error),
            Some("head") => Some(OnStale::Head),
            Some("oldest") => Some(OnStale::Oldest),
            Some(_) => return Err(Refusal::invalid("`onStale` is `oldest`, `head` or `error`")),
        };
        Ok(Self {
            requested,
            channel,
            kinds: kinds(pairs.once("types")?)?,
            device: pairs.once("deviceId")?.map(DeviceId::parse).transpose()?,
            on_stale,
            overlap: pairs.flag("overlap")?,
            tells_caught_up: pairs.flag("caughtUp")?,
            upgrade,
        })
    }
}

impl Asked {
    /// Whether a `CursorCompacted` that the reader got as a status before may be repeated as an event: it now names no cursor.
    fn may_be_marked(&self) -> bool {
        self.channel == Channel::Parameter && self.requested == Ok(RequestedStart::Head)
    }
}

/// Kinds of events that a query names; all if it names none. Events of the server itself are always sent, and may be named.
fn kinds(text: Option<&str>) -> Result<Kinds, Refusal> {
    let Some(text) = text else { return Ok(Kinds::ALL) };
    text.split(',').map(str::trim).try_fold(Kinds::NONE, |kinds, name| match Kind::parse(name) {
        Some(kind) => Ok(kinds.with(kind)),
        None if name == "infoEvent" => Ok(kinds),
        None => Err(Refusal::invalid(
            "`types` is some of `messageEvent`, `reactionEvent` and `typingEvent`, with commas between them",
        )),
    })
}

async fn answer(
    api: &Api,
    caller: &Caller,
    project: &ProjectId,
    room: &str,
    mut request: Request,
    form: Form,
) -> Result<Response, Refusal> {
    let asked = Asked::read(&request, form);
    let (authenticated, room, asked) = admit(caller, project, Action::Read, room, asked).await?;
    let admitted = authenticated.into_room(api, &room).await?;
    let clock = &api.live.clock;
    let reader_limits = api.rooms.reader_limits();
    let Some(permit) = reader_limits.enter(project, &admitted.user) else {
        let message = "this user follows as many rooms at a time as one may";
        let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "TooManyStreams", message);
        return Err(refusal.over(Limit::StreamsPerUser).retrying(super::protocol::RESUME_TIME));
    };
    let key =
        ReaderKey { room: admitted.room.log, user: admitted.user.clone(), device: asked.device.clone() };
    if let Some(left) = reader_limits.cooling(&key, clock.now()) {
        // An `EventSource` would not come again after a status that says no: it waits here.
        if asked.channel != Channel::Header {
            let message = "this client was too slow a moment ago; come again later";
            return Err(Refusal::new(StatusCode::CONFLICT, "SlowConsumer", message).retrying(left));
        }
        // A server that is about to stop tells it so in the stream, when to come again with it.
        let mut drained = api.drained.clone();
        tokio::select! {
            () = clock.sleep(left) => {}
            () = drained.wait() => {}
        }
    }
    if api.drained.is_draining() && asked.channel != Channel::Header {
        let message = "the server is about to stop; come again, to where it is then";
        let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "ServerRestart", message);
        return Err(refusal.retrying(super::protocol::reconnect_delay(&api.rng)));
    }
    let device = asked.device.clone().unwrap_or_else(default_device);
    let known = known(api, &admitted, &asked).await?;
    let start_point = begin(api, &admitted, &device, &key, &known, &asked)?;
    let transport = Transport::of(&mut request);
    let dialect = match form {
        Form::Events => Dialect::Events(transport.framing()),
        Form::WebSocket => Dialect::Messages,
    };
    let options = api.rooms.options();
    let now = clock.now();
    let readers = match form {
        Form::Events => &api.observe.sse_readers,
        Form::WebSocket => &api.observe.websocket_readers,
    };
    let options = FeedOptions::new(None, options.stall, admitted.pass, now)?
        .counted(readers.hold())
        .with_max_lag(options.max_lag)
        .with_heartbeat(options.heartbeat);
    let listener = Listener {
        rooms: api.rooms.clone(),
        room: admitted.room,
        user: admitted.user,
        device,
        key,
        lease: admitted.lease.map(|(_, lease)| lease),
        dialect,
        kinds: asked.kinds,
        known,
        on_stale: asked.on_stale,
        overlap: asked.overlap,
        is_decided: asked.channel == Channel::Header,
        may_be_marked: asked.may_be_marked(),
        tells_caught_up: asked.tells_caught_up,
        rng: api.rng.clone(),
        _permit: permit,
    };
    if let Some(upgrade) = asked.upgrade {
        let options = options.with_protocol(listener.waiting(start_point, now));
        let mut answer = transport.websocket(upgrade, None, Limits::unheard(), options, &api.live)?;
        put_place(answer.headers_mut(), &start_point, known.epoch);
        return Ok(answer);
    }
    let first = listener.greeting(&start_point, now).concat();
    let subscription = listener.listen(&start_point);
    let options = options.with_protocol(listener.begun());
    Ok(transport.events(head(&start_point, known.epoch), &first, subscription, options, &api.live))
}

async fn known(api: &Api, admitted: &Admitted, asked: &Asked) -> Result<Known, Refusal> {
    let bounds = api.rooms.bounds(&admitted.room).await?;
    let joined = match &admitted.lease {
        Some((member, _)) if !api.rooms.options().history_for_new_members => member.joined,
        Some(_) | None => Cursor::ZERO,
    };
    let seen = api.rooms.seen(&admitted.room, &admitted.user).await?;
    Ok(Known {
        bounds,
        floor: bounds.floor.max(joined),
        last: seen.last(asked.device.as_ref()),
        epoch: api.rooms.epoch(),
    })
}

/// Where the reader begins, and what is remembered of it.
fn begin(
    api: &Api,
    admitted: &Admitted,
    device: &DeviceId,
    key: &ReaderKey,
    known: &Known,
    asked: &Asked,
) -> Result<StartPoint, Refusal> {
    let reader_limits = api.rooms.reader_limits();
    let on_stale = asked.on_stale.unwrap_or(OnStale::of(asked.channel));
    let chosen = match asked.requested {
        // It was told so with a status; now it is told in the stream, where programs look.
        Ok(RequestedStart::Head)
            if asked.upgrade.is_none() && asked.may_be_marked() && reader_limits.take_mark(key) =>
        {
            known.instead(Missed::Compacted(None), OnStale::Head)
        }
        Ok(requested) => known.choose(requested, asked.overlap, on_stale),
        // A status that says no would be the end of an `EventSource`.
        Err(missed) => known.instead(missed, OnStale::Head),
    };
    if let (Channel::Header, Ok(RequestedStart::After(cursor))) = (asked.channel, asked.requested)
        && cursor <= known.bounds.head
    {
        api.rooms.note_seen(&admitted.room, &admitted.user, device, cursor);
    }
    chosen.map_err(|missed| {
        if matches!(missed, Missed::Compacted(_)) {
            reader_limits.mark_compacted(key.clone());
        }
        let refusal = Refusal::new(StatusCode::GONE, missed.error(), missed.message());
        refusal.detailed(known.detail(missed)).retrying(std::time::Duration::ZERO)
    })
}

fn head(start_point: &StartPoint, epoch: u64) -> HeaderMap {
    let mut headers = sse::head();
    put_place(&mut headers, start_point, epoch);
    headers
}

fn put_place(headers: &mut HeaderMap, start_point: &StartPoint, epoch: u64) {
    let start = HeaderValue::from_str(&start_point.after.to_string());
    headers.insert(LAST_EVENT_ID, start.expect("a cursor is plain text"));
    headers.insert(STREAM_EPOCH, epoch.into());
}
