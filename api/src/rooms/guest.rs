//! Who asks something of a room, and whether it may.

use axum::http::StatusCode;
use tidings_auth::{Action, Pass, Resource, Scope};
use tidings_model::{ProjectId, RoomId, UserId};
use tidings_rooms::{Member, MembershipLease, Room};

use super::error::Refusal;
use crate::Api;
use crate::credential::Caller;

/// Somebody in a room.
pub struct Guest {
    pub room: Room,
    pub user: UserId,
    /// What lets it in, as long as it holds.
    pub pass: Pass,
    /// Its membership, and whether that still counts. None for who manages rooms.
    pub lease: Option<(Member, MembershipLease)>,
}

/// Somebody at the door.
pub struct Visitor {
    project: ProjectId,
    /// The user, if it is one.
    pub user: Option<UserId>,
    /// Whether it manages rooms: it may enter every one.
    pub manages: bool,
    /// What lets it in, as long as it holds.
    pub pass: Pass,
}

/// Validates a request, in the order in which it is told what is wrong: who it is, what it asks for, whether it may.
pub async fn admit<T>(
    caller: &Caller,
    project: &ProjectId,
    action: Action,
    room: &str,
    asked: Result<T, Refusal>,
) -> Result<(Visitor, RoomId, T), Refusal> {
    let admitted = match caller.may_in(project, action, Resource::Room(room.into())).await {
        Err(error) if error.status() == StatusCode::UNAUTHORIZED => return Err(error.into()),
        admitted => admitted,
    };
    let (room, asked) = (RoomId::parse(room)?, asked?);
    let pass = admitted?;
    let principal = pass.principal();
    let user = principal.and_then(|principal| principal.user.as_deref()).map(UserId::parse).transpose()?;
    let manages = principal.is_some_and(|principal| principal.scope >= Scope::Manage);
    Ok((Visitor { project: project.clone(), user, manages, pass }, room, asked))
}

impl Visitor {
    /// Takes it to a room, if it may go there.
    pub async fn into_room(self, api: &Api, room: &RoomId) -> Result<Guest, Refusal> {
        let Some(user) = self.user else {
            let message = "a room is for users: a token with `project` and `sub`";
            return Err(Refusal::new(StatusCode::FORBIDDEN, "UserRequired", message));
        };
        let Some(room) = api.rooms.find(&self.project, room).await? else {
            // Who may not enter does not learn whether there is a room.
            return Err(if self.manages { Refusal::not_found() } else { Refusal::not_member() });
        };
        if self.manages {
            return Ok(Guest { room, user, pass: self.pass, lease: None });
        }
        // First the lease: if the membership ends after it was looked at, the lease knows.
        let lease = api.rooms.attend(&room, &user);
        let member = api.rooms.member(&room, &user).await?.ok_or_else(Refusal::not_member)?;
        Ok(Guest { room, user, pass: self.pass, lease: Some((member, lease)) })
    }
}
