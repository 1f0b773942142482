//! Routes of a room's events, members and read positions.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidings_auth::Action;
use tidings_model::{DeviceId, ProjectId, RoomId, Timestamp, UserId, limits};
use tidings_rooms::{Cursor, Kind, Members, NewEvent, RoomError, SeenCursors};
use tidings_streams::json_array::{self, ArrayError};
use utoipa::ToSchema;

use super::admission::{Authenticated, admit};
use super::error::Refusal;
use super::pairs::{Pairs, RoomPath};
use crate::Api;
use crate::credential::Caller;
use crate::document::RoomRefusals;
use crate::document::params::{ProjectParam, RoomParam};
use crate::sessions::UNCACHED;
use crate::wire::{body, request, time};
use tidings_engine::DetachOnDrop;

/// Device id used when the client sends none.
pub fn default_device() -> DeviceId {
    DeviceId::parse("default").expect("a device id")
}

/// An event to write.
#[derive(Deserialize, ToSchema)]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct EventBody {
    /// Kind of event: `messageEvent`, `reactionEvent` or `typingEvent`.
    #[serde(rename = "type")]
    #[schema(example = "messageEvent")]
    kind: String,
    /// Payload, an object. A message has `messageView`; a reaction has `messageId`, `actor`, `reaction` and `op`.
    payload: serde_json::Value,
}

/// One event, or an array of events that are written together or not at all.
#[derive(ToSchema)]
#[schema(as = EventBodies)]
#[serde(untagged)]
#[expect(dead_code, reason = "it only describes what is read")]
pub enum EventBodies {
    /// One event.
    One(EventBody),
    /// Several events.
    Many(Vec<EventBody>),
}

/// A written event.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WrittenAnswer {
    /// Cursor of the event: its position in the room.
    #[schema(example = "01J9ZK0S5V6ZB9WQ0ZP3S9WJ7H")]
    cursor: String,
    /// Time at which the event was written, in RFC 3339 format.
    #[schema(example = "2025-10-22T22:00:00Z")]
    emitted_at: String,
}

/// Members to add and to remove.
#[derive(Deserialize, ToSchema)]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct MembersBody {
    /// User ids to add.
    #[serde(default)]
    add: Vec<String>,
    /// User ids to remove.
    #[serde(default)]
    remove: Vec<String>,
}

/// One page of a room's members, at most 1,000.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MembersAnswer {
    /// User ids of the members, sorted.
    members: Vec<String>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_cursor: Option<String>,
}

/// New read position in a room.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeenBody {
    /// Cursor of the last event that the user has seen.
    cursor: String,
    /// Device id; default `default`.
    device_id: Option<String>,
    /// Whether the position may move backwards; default `false`.
    #[serde(default)]
    force: bool,
}

/// New read position in a conversation.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CursorBody {
    /// Room id.
    convo_id: String,
    /// Cursor of the last event that the user has seen.
    cursor: String,
    /// Device id; default `default`.
    device_id: Option<String>,
    /// Whether the position may move backwards; default `false`.
    #[serde(default)]
    force: bool,
}

/// Read position of a user in a room.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeenAnswer {
    /// Read position of the requested device; without one, the furthest position of all devices.
    cursor: Option<String>,
    /// Read position of each device, by device id.
    devices: BTreeMap<String, String>,
    /// Time of the last update, in milliseconds since 1970; 0 if there was none.
    updated_at: u64,
}

/// Write events to a room.
#[utoipa::path(
    post,
    path = "/v1/{project}/rooms/{room}/events",
    tag = "rooms",
    params(
        ProjectParam,
        RoomParam,
        ("Producer-Id" = Option<String>, Header, description = "Producer id. With `Producer-Epoch` and `Producer-Seq`, a repeated request is stored once."),
        ("Producer-Epoch" = Option<String>, Header, description = "Epoch of the producer; a restarted producer uses a higher one, which fences the old one."),
        ("Producer-Seq" = Option<String>, Header, description = "Sequence number of the request within the producer's epoch, from 0."),
    ),
    request_body = EventBodies,
    responses(
        (status = 200, description = "The events were written: an object for one event, an array for an array.", body = WrittenAnswer),
        RoomRefusals,
    )
)]
pub async fn write_events(
    State(api): State<Api>,
    RoomPath(project, room): RoomPath,
    caller: Caller,
    headers: HeaderMap,
    sent: Body,
) -> Result<Response, Refusal> {
    write_to(&api, &project, &room, &caller, &headers, sent).await
}

/// Writes the events in the body of a request.
pub async fn write_to(
    api: &Api,
    project: &ProjectId,
    room: &str,
    caller: &Caller,
    headers: &HeaderMap,
    sent: impl http_body::Body<Data = Bytes>,
) -> Result<Response, Refusal> {
    let producer = request::producer(headers).map_err(Refusal::from);
    let (authenticated, room, producer) = admit(caller, project, Action::Append, room, producer).await?;
    // Before the body: who may not write need not send it.
    let pass = authenticated.pass.clone();
    let admitted = authenticated.into_room(api, &room).await?;
    let context = api.context(Some(project));
    let (body, reserved) = body::bytes(sent, api.streams.options().max_append_bytes, context).await?;
    let Bodies { events, is_array } = read_events(&body, api.rooms.options().payload_bytes)?;
    caller.may_still(&pass).await?;
    // Who manages rooms has no lease, and may write for others.
    if let Some((_, lease)) = &admitted.lease {
        if !lease.holds() {
            return Err(Refusal::not_member());
        }
        check_actors(&admitted.user, &events)?;
    }
    let (rooms, room, user) = (api.rooms.clone(), admitted.room, admitted.user);
    let writing = async move {
        let _reserved = reserved;
        rooms.write(&room, &user, events, producer).await
    };
    let written = DetachOnDrop::new(writing).await?;
    let mut answers = written
        .events
        .iter()
        .map(|(cursor, at)| WrittenAnswer { cursor: cursor.to_string(), emitted_at: time::print(*at) });
    Ok(match (is_array, answers.next()) {
        (false, Some(answer)) => (UNCACHED, Json(answer)).into_response(),
        (_, first) => (UNCACHED, Json(first.into_iter().chain(answers).collect::<Vec<_>>())).into_response(),
    })
}

/// Whether all reactions are the user's own; members cannot react for each other.
fn check_actors(user: &UserId, events: &[NewEvent]) -> Result<(), Refusal> {
    let mut actors = events.iter().filter_map(NewEvent::actor);
    match actors.find(|actor| actor != user.as_str()) {
        None => Ok(()),
        Some(_) => {
            let message =
                "the `actor` of a reactionEvent is the user who writes it, except with the scope `manage`";
            Err(Refusal::forbidden(message))
        }
    }
}

struct Bodies {
    events: Vec<NewEvent>,
    is_array: bool,
}

/// An event as received.
#[derive(Deserialize)]
struct Sent<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// Parses events whose payloads have at most `payload_most` bytes. Limits are checked on slices of the body, before any
/// value is built: an array of millions of values would take many times its size.
fn read_events(body: &Bytes, payload_most: usize) -> Result<Bodies, Refusal> {
    let is_array = body::begins_with(body, b'[');
    let expected = |error: &dyn std::fmt::Display| {
        Refusal::invalid(format!("expected an event or an array of events, in JSON: {error}"))
    };
    let sent = match is_array {
        true => json_array::read::<&RawValue>(body, limits::EVENTS_PER_WRITE),
        false => {
            serde_json::from_slice::<&RawValue>(body).map(|sent| vec![sent]).map_err(ArrayError::Invalid)
        }
    };
    let sent = sent.map_err(|error| match error {
        ArrayError::TooMany { .. } => Refusal::from(RoomError::TooManyEvents),
        ArrayError::Invalid(error) => expected(&error),
    })?;
    // Fields without names would be taken in their order.
    if sent.iter().any(|sent| body::begins_with(sent.get().as_bytes(), b'[')) {
        return Err(expected(&"an event is an object"));
    }
    let sent = sent.into_iter().map(|sent| serde_json::from_str::<Sent>(sent.get()));
    let sent = sent.collect::<Result<Vec<_>, _>>().map_err(|error| expected(&error))?;
    if sent.iter().any(|sent| sent.payload.get().len() > payload_most) {
        return Err(RoomError::PayloadTooLarge { most: payload_most }.into());
    }
    let kind = |sent: &Sent<'_>| {
        Kind::parse(&sent.kind).ok_or_else(|| {
            Refusal::invalid("the type of an event is `messageEvent`, `reactionEvent` or `typingEvent`")
        })
    };
    let event =
        |sent: Sent<'_>| Ok(NewEvent::parse(kind(&sent)?, body.slice_ref(sent.payload.get().as_bytes()))?);
    Ok(Bodies { events: sent.into_iter().map(event).collect::<Result<_, Refusal>>()?, is_array })
}

/// Add members to a room and remove members. Creates the room if it does not exist.
#[utoipa::path(
    post,
    path = "/v1/{project}/rooms/{room}/members",
    tag = "rooms",
    params(
        ProjectParam,
        RoomParam,
    ),
    request_body = MembersBody,
    responses((status = 200, description = "First page of the members after the change.", body = MembersAnswer), RoomRefusals)
)]
pub async fn change_members(
    State(api): State<Api>,
    RoomPath(project, room): RoomPath,
    caller: Caller,
    sent: Body,
) -> Result<Response, Refusal> {
    let (authenticated, room, ()) = admit(&caller, &project, Action::Configure, &room, Ok(())).await?;
    let (sent, _reserved) =
        body::bytes(sent, limits::MEMBERS_BODY_BYTES, api.context(Some(&project))).await?;
    let SentMembers { add, remove } = body::parse_json(&sent)?;
    caller.may_still(&authenticated.pass).await?;
    let most = api.rooms.options().max_members;
    let (add, remove) = (users(add, most)?, users(remove, most)?);
    let members = api.rooms.change_members(&project, &room, add, remove).await?;
    Ok(members_answer(&members))
}

/// A [`MembersBody`] as received.
#[derive(Deserialize)]
struct SentMembers<'a> {
    #[serde(default = "nobody", borrow)]
    add: &'a RawValue,
    #[serde(default = "nobody", borrow)]
    remove: &'a RawValue,
}

fn nobody() -> &'static RawValue {
    serde_json::from_str("[]").expect("an array")
}

/// Parses a list of users, at most as many as a room may have members. They are counted on slices of the body, before any
/// value is built.
fn users(sent: &RawValue, most: usize) -> Result<Vec<UserId>, Refusal> {
    let expected = || Refusal::invalid("`add` and `remove` are arrays of users, which are texts");
    let sent = json_array::read::<&RawValue>(sent.get().as_bytes(), most).map_err(|error| match error {
        ArrayError::TooMany { most } => Refusal::from(RoomError::TooManyMembers { most }),
        ArrayError::Invalid(_) => expected(),
    })?;
    let user = |sent: &RawValue| {
        let name = serde_json::from_str::<Cow<'_, str>>(sent.get()).map_err(|_| expected())?;
        Ok(UserId::parse(&name)?)
    };
    sent.into_iter().map(user).collect()
}

/// List the members of a room.
#[utoipa::path(
    get,
    path = "/v1/{project}/rooms/{room}/members",
    tag = "rooms",
    params(
        ProjectParam,
        RoomParam,
        ("limit" = Option<String>, Query, description = "Maximum number of members in the response; default 1,000.", example = "10"),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the previous response."),
    ),
    responses((status = 200, description = "One page of members.", body = MembersAnswer), RoomRefusals)
)]
pub async fn read_members(
    State(api): State<Api>,
    RoomPath(project, room): RoomPath,
    caller: Caller,
    uri: Uri,
) -> Result<Response, Refusal> {
    let asked = Pairs::of(&uri).and_then(|pairs| MembersQuery::read(&pairs));
    let (authenticated, room, MembersQuery { after, limit }) =
        admit(&caller, &project, Action::Read, &room, asked).await?;
    let room = match authenticated.manages {
        // Also without being a user.
        true => api.rooms.find(&project, &room).await?.ok_or_else(Refusal::not_found)?,
        false => authenticated.into_room(&api, &room).await?.room,
    };
    Ok(members_answer(&api.rooms.members(&room, after.as_ref(), limit).await?))
}

/// Query of a listing of members.
struct MembersQuery {
    after: Option<UserId>,
    limit: usize,
}

impl MembersQuery {
    fn read(pairs: &Pairs) -> Result<Self, Refusal> {
        let limit = match pairs.once("limit")?.map(str::parse) {
            None => limits::LISTED_MEMBERS,
            Some(Ok(limit)) if (1..=limits::LISTED_MEMBERS).contains(&limit) => limit,
            Some(_) => {
                let message = format!("`limit` is a number from 1 to {}", limits::LISTED_MEMBERS);
                return Err(Refusal::invalid(message));
            }
        };
        let after = pairs.once("cursor")?.map(|text| {
            // It is the last member that was listed. Clients are not told.
            let bytes = URL_SAFE_NO_PAD.decode(text).ok();
            let user = bytes.and_then(|bytes| UserId::parse(std::str::from_utf8(&bytes).ok()?).ok());
            user.ok_or_else(|| Refusal::invalid("`cursor` is a `nextCursor` that this server gave"))
        });
        Ok(Self { after: after.transpose()?, limit })
    }
}

fn members_answer(members: &Members) -> Response {
    let next_cursor = members.next.as_ref().map(|last| URL_SAFE_NO_PAD.encode(last.as_str()));
    let members = members.users.iter().map(|user| user.as_str().to_owned()).collect();
    (UNCACHED, Json(MembersAnswer { members, next_cursor })).into_response()
}

/// Get the caller's read position in a room.
#[utoipa::path(
    get,
    path = "/v1/{project}/rooms/{room}/seen",
    tag = "rooms",
    params(
        ProjectParam,
        RoomParam,
        ("deviceId" = Option<String>, Query, description = "Device whose position is returned as `cursor`; default: the furthest of all devices."),
    ),
    responses((status = 200, description = "Read position of the user, overall and by device.", body = SeenAnswer), RoomRefusals)
)]
pub async fn read_seen(
    State(api): State<Api>,
    RoomPath(project, room): RoomPath,
    caller: Caller,
    uri: Uri,
) -> Result<Response, Refusal> {
    let device =
        |pairs: Pairs| pairs.once("deviceId")?.map(DeviceId::parse).transpose().map_err(Refusal::from);
    let asked = Pairs::of(&uri).and_then(device);
    let (authenticated, room, device) = admit(&caller, &project, Action::Read, &room, asked).await?;
    let admitted = authenticated.into_room(&api, &room).await?;
    Ok(seen_answer(&api.rooms.seen(&admitted.room, &admitted.user).await?, device.as_ref()))
}

/// Update the caller's read position in a room.
#[utoipa::path(
    post,
    path = "/v1/{project}/rooms/{room}/seen",
    tag = "rooms",
    params(
        ProjectParam,
        RoomParam,
    ),
    request_body = SeenBody,
    responses((status = 200, description = "Read position after the update.", body = SeenAnswer), RoomRefusals)
)]
pub async fn write_seen(
    State(api): State<Api>,
    RoomPath(project, room): RoomPath,
    caller: Caller,
    sent: Body,
) -> Result<Response, Refusal> {
    let (authenticated, room, ()) = admit(&caller, &project, Action::Read, &room, Ok(())).await?;
    let SeenBody { cursor, device_id, force } =
        json_body(&api, &project, sent, limits::SEEN_BODY_BYTES).await?;
    see(&api, authenticated, &room, &cursor, device_id.as_deref(), force).await
}

/// Update the caller's read position in a conversation, in the project of the token.
#[utoipa::path(
    post,
    path = "/x/blue.catbird.mls.updateCursor",
    tag = "rooms",
    request_body = CursorBody,
    responses((status = 200, description = "Read position after the update.", body = SeenAnswer), RoomRefusals)
)]
pub async fn update_cursor(State(api): State<Api>, caller: Caller, sent: Body) -> Result<Response, Refusal> {
    let project = caller.project_named();
    caller.is_known_in(&project).await?;
    let CursorBody { convo_id, cursor, device_id, force } =
        json_body(&api, &project, sent, limits::SEEN_BODY_BYTES).await?;
    let (authenticated, room, ()) = admit(&caller, &project, Action::Read, &convo_id, Ok(())).await?;
    see(&api, authenticated, &room, &cursor, device_id.as_deref(), force).await
}

async fn see(
    api: &Api,
    authenticated: Authenticated,
    room: &RoomId,
    cursor: &str,
    device: Option<&str>,
    force: bool,
) -> Result<Response, Refusal> {
    let cursor = Cursor::parse(cursor)?;
    let device = device.map(DeviceId::parse).transpose()?;
    let admitted = authenticated.into_room(api, room).await?;
    let on = device.clone().unwrap_or_else(default_device);
    api.rooms.see(&admitted.room, &admitted.user, &on, cursor, force).await?;
    Ok(seen_answer(&api.rooms.seen(&admitted.room, &admitted.user).await?, device.as_ref()))
}

fn seen_answer(seen: &SeenCursors, device: Option<&DeviceId>) -> Response {
    let told = seen.devices.values().map(|(_, at)| *at).max();
    let devices = seen.devices.iter();
    let answer = SeenAnswer {
        cursor: seen.last(device).map(|cursor| cursor.to_string()),
        devices: devices
            .map(|(device, (cursor, _))| (device.as_str().to_owned(), cursor.to_string()))
            .collect(),
        updated_at: told.map_or(0, Timestamp::as_millis),
    };
    (UNCACHED, Json(answer)).into_response()
}

async fn json_body<T: DeserializeOwned>(
    api: &Api,
    project: &ProjectId,
    sent: Body,
    limit: usize,
) -> Result<T, Refusal> {
    Ok(body::json(sent, limit, api.context(Some(project))).await?)
}
