//! What changes a room: events, members, and how far somebody has seen it.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidings_auth::Action;
use tidings_model::{DeviceId, ProjectId, RoomId, Timestamp, UserId, limits};
use tidings_rooms::{Cursor, Kind, NewEvent, Seen};
use utoipa::ToSchema;

use super::error::Refusal;
use super::guest::{Visitor, admit};
use super::pairs::{Pairs, RoomPath};
use crate::Api;
use crate::credential::Caller;
use crate::document::RoomRefusals;
use crate::sessions::UNCACHED;
use crate::wire::{body, request, time};

/// The device of who does not say which it is.
pub fn default_device() -> DeviceId {
    DeviceId::parse("default").expect("a device id")
}

/// An event to be written.
#[derive(Deserialize, ToSchema)]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct EventBody {
    /// `messageEvent`, `reactionEvent` or `typingEvent`.
    #[serde(rename = "type")]
    #[schema(example = "messageEvent")]
    kind: String,
    /// An object: of a message with `messageView`, of a reaction with `messageId`, `actor`, `reaction` and `op`.
    payload: serde_json::Value,
}

/// One event, or several that are written together or not at all.
#[derive(ToSchema)]
#[schema(as = EventBodies)]
#[serde(untagged)]
#[expect(dead_code, reason = "it only describes what is read")]
pub enum EventBodies {
    /// One.
    One(EventBody),
    /// Several.
    Many(Vec<EventBody>),
}

/// An event that was written.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WrittenAnswer {
    /// Its place in the room.
    #[schema(example = "01J9ZK0S5V6ZB9WQ0ZP3S9WJ7H")]
    cursor: String,
    /// When it was written.
    #[schema(example = "2025-10-22T22:00:00Z")]
    emitted_at: String,
}

/// Who is to be a member, and who not any more.
#[derive(Deserialize, ToSchema)]
pub struct MembersBody {
    /// Users to add.
    #[serde(default)]
    add: Vec<String>,
    /// Users to remove.
    #[serde(default)]
    remove: Vec<String>,
}

/// The members of a room.
#[derive(Serialize, ToSchema)]
pub struct MembersAnswer {
    /// All of them, sorted.
    members: Vec<String>,
}

/// How far somebody has seen a room.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeenBody {
    /// The last event that was seen.
    cursor: String,
    /// On which device.
    device_id: Option<String>,
    /// Also if it is further back than what is known.
    #[serde(default)]
    force: bool,
}

/// How far somebody has seen a conversation.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CursorBody {
    /// The room.
    convo_id: String,
    /// The last event that was seen.
    cursor: String,
    /// On which device.
    device_id: Option<String>,
    /// Also if it is further back than what is known.
    #[serde(default)]
    force: bool,
}

/// How far somebody has seen a room.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeenAnswer {
    /// Of the device that was asked for, or of that which has seen most.
    cursor: Option<String>,
    /// Of each device.
    devices: BTreeMap<String, String>,
    /// When that was last told, in milliseconds since 1970; 0 if never.
    updated_at: u64,
}

/// Writes events to a room.
#[utoipa::path(
    post,
    path = "/v1/{project}/rooms/{room}/events",
    tag = "rooms",
    params(
        ("project" = String, Path, description = "The project.", example = "chat"),
        ("room" = String, Path, description = "The room.", example = "general"),
        ("Producer-Id" = Option<String>, Header, description = "Who writes; with the next two, once however often."),
        ("Producer-Epoch" = Option<String>, Header, description = "Which instance of the producer."),
        ("Producer-Seq" = Option<String>, Header, description = "Which of its requests."),
    ),
    request_body = EventBodies,
    responses(
        (status = 200, description = "Written: one answer for one event, an array for an array.", body = WrittenAnswer),
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

/// Writes what a request brings.
pub async fn write_to(
    api: &Api,
    project: &ProjectId,
    room: &str,
    caller: &Caller,
    headers: &HeaderMap,
    sent: impl http_body::Body<Data = Bytes>,
) -> Result<Response, Refusal> {
    let producer = request::producer(headers).map_err(Refusal::from);
    let (visitor, room, producer) = admit(caller, project, Action::Append, room, producer).await?;
    // Before the body: who may not write need not send it.
    let pass = visitor.pass.clone();
    let guest = visitor.into_room(api, &room).await?;
    let body = body::bytes(sent, api.streams.options().max_append_bytes, &*api.stage.clock).await?;
    let Bodies { events, is_array } = read_events(&body)?;
    caller.may_still(&pass).await?;
    if guest.seat.is_some_and(|(_, seat)| !seat.holds()) {
        return Err(Refusal::not_member());
    }
    let written = api.rooms.write(&guest.room, &guest.user, events, producer).await?;
    let mut answers = written
        .events
        .iter()
        .map(|(cursor, at)| WrittenAnswer { cursor: cursor.to_string(), emitted_at: time::print(*at) });
    Ok(match (is_array, answers.next()) {
        (false, Some(answer)) => (UNCACHED, Json(answer)).into_response(),
        (_, first) => (UNCACHED, Json(first.into_iter().chain(answers).collect::<Vec<_>>())).into_response(),
    })
}

struct Bodies {
    events: Vec<NewEvent>,
    is_array: bool,
}

/// An event as it was sent.
#[derive(Deserialize)]
struct Sent<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    payload: &'a RawValue,
}

fn read_events(body: &Bytes) -> Result<Bodies, Refusal> {
    let is_array = body::begins_with(body, b'[');
    let expected = |error: &dyn std::fmt::Display| {
        Refusal::invalid(format!("expected an event or an array of events, in JSON: {error}"))
    };
    let sent = match is_array {
        true => serde_json::from_slice::<Vec<&RawValue>>(body),
        false => serde_json::from_slice::<&RawValue>(body).map(|sent| vec![sent]),
    };
    let sent = sent.map_err(|error| expected(&error))?;
    // Fields without names would be taken in their order.
    if sent.iter().any(|sent| body::begins_with(sent.get().as_bytes(), b'[')) {
        return Err(expected(&"an event is an object"));
    }
    let sent = sent.into_iter().map(|sent| serde_json::from_str::<Sent>(sent.get()));
    let sent = sent.collect::<Result<Vec<_>, _>>().map_err(|error| expected(&error))?;
    let kind = |sent: &Sent<'_>| {
        Kind::parse(&sent.kind).ok_or_else(|| {
            Refusal::invalid("the type of an event is `messageEvent`, `reactionEvent` or `typingEvent`")
        })
    };
    let event =
        |sent: Sent<'_>| Ok(NewEvent::parse(kind(&sent)?, body.slice_ref(sent.payload.get().as_bytes()))?);
    Ok(Bodies { events: sent.into_iter().map(event).collect::<Result<_, Refusal>>()?, is_array })
}

/// Adds members to a room and removes some. Makes the room if there is none.
#[utoipa::path(
    post,
    path = "/v1/{project}/rooms/{room}/members",
    tag = "rooms",
    params(
        ("project" = String, Path, description = "The project.", example = "chat"),
        ("room" = String, Path, description = "The room.", example = "general"),
    ),
    request_body = MembersBody,
    responses((status = 200, description = "Its members now.", body = MembersAnswer), RoomRefusals)
)]
pub async fn change_members(
    State(api): State<Api>,
    RoomPath(project, room): RoomPath,
    caller: Caller,
    sent: Body,
) -> Result<Response, Refusal> {
    let (visitor, room, ()) = admit(&caller, &project, Action::Configure, &room, Ok(())).await?;
    let wanted: MembersBody = json_body(&api, sent, limits::MEMBERS_BODY_BYTES).await?;
    caller.may_still(&visitor.pass).await?;
    let users =
        |names: Vec<String>| names.iter().map(|name| UserId::parse(name)).collect::<Result<Vec<_>, _>>();
    let (add, remove) = (users(wanted.add)?, users(wanted.remove)?);
    let members = api.rooms.change_members(&project, &room, add, remove).await?;
    Ok(members_answer(&members))
}

/// The members of a room.
#[utoipa::path(
    get,
    path = "/v1/{project}/rooms/{room}/members",
    tag = "rooms",
    params(
        ("project" = String, Path, description = "The project.", example = "chat"),
        ("room" = String, Path, description = "The room.", example = "general"),
    ),
    responses((status = 200, description = "Its members.", body = MembersAnswer), RoomRefusals)
)]
pub async fn read_members(
    State(api): State<Api>,
    RoomPath(project, room): RoomPath,
    caller: Caller,
) -> Result<Response, Refusal> {
    let (visitor, room, ()) = admit(&caller, &project, Action::Read, &room, Ok(())).await?;
    let room = match visitor.manages {
        // Also without being a user.
        true => api.rooms.find(&project, &room).await?.ok_or_else(Refusal::not_found)?,
        false => visitor.into_room(&api, &room).await?.room,
    };
    Ok(members_answer(&api.rooms.members(&room).await?))
}

fn members_answer(members: &[UserId]) -> Response {
    let members = members.iter().map(|user| user.as_str().to_owned()).collect();
    (UNCACHED, Json(MembersAnswer { members })).into_response()
}

/// How far the caller has seen a room.
#[utoipa::path(
    get,
    path = "/v1/{project}/rooms/{room}/seen",
    tag = "rooms",
    params(
        ("project" = String, Path, description = "The project.", example = "chat"),
        ("room" = String, Path, description = "The room.", example = "general"),
        ("deviceId" = Option<String>, Query, description = "Of which device `cursor` is to be."),
    ),
    responses((status = 200, description = "How far.", body = SeenAnswer), RoomRefusals)
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
    let (visitor, room, device) = admit(&caller, &project, Action::Read, &room, asked).await?;
    let guest = visitor.into_room(&api, &room).await?;
    Ok(seen_answer(&api.rooms.seen(&guest.room, &guest.user).await?, device.as_ref()))
}

/// Tells how far the caller has seen a room.
#[utoipa::path(
    post,
    path = "/v1/{project}/rooms/{room}/seen",
    tag = "rooms",
    params(
        ("project" = String, Path, description = "The project.", example = "chat"),
        ("room" = String, Path, description = "The room.", example = "general"),
    ),
    request_body = SeenBody,
    responses((status = 200, description = "What is known now.", body = SeenAnswer), RoomRefusals)
)]
pub async fn write_seen(
    State(api): State<Api>,
    RoomPath(project, room): RoomPath,
    caller: Caller,
    sent: Body,
) -> Result<Response, Refusal> {
    let (visitor, room, ()) = admit(&caller, &project, Action::Read, &room, Ok(())).await?;
    let SeenBody { cursor, device_id, force } = json_body(&api, sent, limits::SEEN_BODY_BYTES).await?;
    see(&api, visitor, &room, &cursor, device_id.as_deref(), force).await
}

/// Tells how far the caller has seen a conversation, in the project of the token.
#[utoipa::path(
    post,
    path = "/x/blue.catbird.mls.updateCursor",
    tag = "rooms",
    request_body = CursorBody,
    responses((status = 200, description = "What is known now.", body = SeenAnswer), RoomRefusals)
)]
pub async fn update_cursor(State(api): State<Api>, caller: Caller, sent: Body) -> Result<Response, Refusal> {
    let project = caller.project_named();
    caller.is_known_in(&project).await?;
    let CursorBody { convo_id, cursor, device_id, force } =
        json_body(&api, sent, limits::SEEN_BODY_BYTES).await?;
    let (visitor, room, ()) = admit(&caller, &project, Action::Read, &convo_id, Ok(())).await?;
    see(&api, visitor, &room, &cursor, device_id.as_deref(), force).await
}

async fn see(
    api: &Api,
    visitor: Visitor,
    room: &RoomId,
    cursor: &str,
    device: Option<&str>,
    force: bool,
) -> Result<Response, Refusal> {
    let cursor = Cursor::parse(cursor)?;
    let device = device.map(DeviceId::parse).transpose()?;
    let guest = visitor.into_room(api, room).await?;
    let on = device.clone().unwrap_or_else(default_device);
    api.rooms.see(&guest.room, &guest.user, &on, cursor, force).await?;
    Ok(seen_answer(&api.rooms.seen(&guest.room, &guest.user).await?, device.as_ref()))
}

fn seen_answer(seen: &Seen, device: Option<&DeviceId>) -> Response {
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

async fn json_body<T: DeserializeOwned>(api: &Api, sent: Body, limit: usize) -> Result<T, Refusal> {
    Ok(body::json(sent, limit, &*api.stage.clock).await?)
}
