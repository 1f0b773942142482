//! Admits callers to rooms.

use axum::http::StatusCode;
use tidings_auth::{Action, Pass, Resource, Scope};
use tidings_model::{ProjectId, RoomId, UserId};
use tidings_rooms::{Member, MembershipLease, Room};

use super::error::Refusal;
use crate::Api;
use crate::credential::Caller;

/// A caller that was admitted to a room.
pub struct Admitted {
    pub room: Room,
    pub user: UserId,
    /// The pass of the caller, which may become invalid.
    pub pass: Pass,
    /// Membership of the caller, and the lease that tells whether it still holds. `None` for callers that
    /// manage rooms.
    pub lease: Option<(Member, MembershipLease)>,
}

/// An authenticated caller that was not admitted to a room yet.
pub struct Authenticated {
    project: ProjectId,
    /// The user, if the credential names one.
    pub user: Option<UserId>,
    /// Whether the caller manages rooms: it may enter every room.
    pub manages: bool,
    /// The pass of the caller, which may become invalid.
    pub pass: Pass,
}

/// Validates a request in the order in which errors are reported: authentication, parameters, authorisation.
pub async fn admit<T>(
    caller: &Caller,
    project: &ProjectId,
    action: Action,
    room: &str,
    asked: Result<T, Refusal>,
) -> Result<(Authenticated, RoomId, T), Refusal> {
    let admitted = match caller.may_in(project, action, Resource::Room(room.into())).await {
        Err(error) if error.status() == StatusCode::UNAUTHORIZED => return Err(error.into()),
        admitted => admitted,
    };
    let (room, asked) = (RoomId::parse(room)?, asked?);
    let pass = admitted?;
    let principal = pass.principal();
    let user = principal.and_then(|principal| principal.user.as_deref()).map(UserId::parse).transpose()?;
    let manages = principal.is_some_and(|principal| principal.scope >= Scope::Manage);
    Ok((Authenticated { project: project.clone(), user, manages, pass }, room, asked))
}

impl Authenticated {
    /// Admits the caller to a room, if it may enter.
    pub async fn into_room(self, api: &Api, room: &RoomId) -> Result<Admitted, Refusal> {
        let Some(user) = self.user else {
            let message = "a room is for users: a token with `project` and `sub`";
            return Err(Refusal::new(StatusCode::FORBIDDEN, "UserRequired", message));
        };
        let Some(room) = api.rooms.find(&self.project, room).await? else {
            // A caller that may not enter must not learn whether the room exists.
            return Err(if self.manages { Refusal::not_found() } else { Refusal::not_member() });
        };
        if self.manages {
            return Ok(Admitted { room, user, pass: self.pass, lease: None });
        }
        // The lease first: if the membership ends after it was read, the lease notices.
        let lease = api.rooms.take_lease(&room, &user);
        let member = api.rooms.member(&room, &user).await?.ok_or_else(Refusal::not_member)?;
        Ok(Admitted { room, user, pass: self.pass, lease: Some((member, lease)) })
    }
}
