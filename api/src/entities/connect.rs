//! The handshake of a WebSocket of entities. It is accepted first and judged then: a browser cannot read the status of a
//! handshake that was refused.

use axum::extract::{Request, State};
use axum::response::Response;
use tidings_auth::{Action, Resource};
use tidings_entities::Takeover;
use tidings_model::limits;

use super::connection::Connection;
use crate::Api;
use crate::credential::{Caller, CredentialKind};
use crate::document::params::ProjectParam;
use crate::error::ApiError;
use crate::live::{FeedOptions, PassHandle, Transport};
use crate::path::ProjectPath;
use crate::websocket::{Limits, Upgrade};

/// Open a WebSocket on which entities are watched.
///
/// The token may also come as `token` in the query, or as the first message. A connection that is refused is closed with a
/// code from 4000 on.
#[utoipa::path(
    get,
    path = "/v1/{project}/sync",
    tag = "entities",
    operation_id = "watch_entities",
    security(()),
    params(
        ProjectParam,
        ("takeover" = Option<String>, Query, description = "`1` closes the user's older connections with code 4000."),
    ),
    responses(
        (status = 101, description = "The connection is now a WebSocket. Its first message says whether the token is good."),
        (status = 403, description = "`origin_not_allowed`: a page of this origin may not open a WebSocket.", body = crate::document::ErrorAnswer),
        (status = 426, description = "`upgrade_required` or `websocket_version`: the request does not ask for a WebSocket of version 13.", body = crate::document::ErrorAnswer),
        (status = 429, description = "`too_many_requests`: the project exceeds its rate limit; `Retry-After` says when to try again.", body = crate::document::ErrorAnswer),
        crate::document::AnyRefusals,
    )
)]
pub async fn connect(
    State(api): State<Api>,
    ProjectPath(project): ProjectPath,
    caller: Caller,
    mut request: Request,
) -> Result<Response, ApiError> {
    let upgrade = Upgrade::validate_head(request.method(), request.version(), request.headers(), &[])?;
    let takeover = takeover(request.uri().query().unwrap_or_default())?;
    let judged = caller.judged_in(&project, Action::WatchEntities, Resource::Project).await?;
    let now = api.live.clock.now();
    let options = api.entity_sockets.options();
    let pass = PassHandle::awaited(options.token_grace);
    let until = now + limits::ENTITY_AUTH_TIMEOUT;
    let mut connection = Connection::new(&api, project, takeover, pass.clone(), until);
    let inbox = match (judged, caller.kind()) {
        // It may still show a token.
        (Err(_), CredentialKind::None) => None,
        (judged, _) => connection.judge(judged, now),
    };
    let messages = Limits {
        frame_bytes: limits::ENTITY_MESSAGE_BYTES,
        message_bytes: limits::ENTITY_MESSAGE_BYTES,
        ..Limits::default()
    };
    let options = FeedOptions::new(None, options.stall_limit, pass, now)?
        .counted(api.observe.websocket_readers.hold())
        .with_pings(options.heartbeat, options.heartbeat * 2)
        .excusing_blocked()
        .with_grace(limits::CLOSE_GRACE)
        .with_begun_limits(messages)
        .with_protocol(Box::new(connection));
    // Whoever has not shown a token has little to say.
    let first = if inbox.is_some() { messages } else { first_message() };
    Transport::of(&mut request).websocket(upgrade, inbox, first, options, &api.live)
}

/// Limits of a message that has a token.
fn first_message() -> Limits {
    let bytes = 2 * limits::TOKEN_BYTES;
    Limits { frame_bytes: bytes, message_bytes: bytes, ..Limits::unheard() }
}

fn takeover(query: &str) -> Result<Takeover, ApiError> {
    let value = query.split('&').find_map(|pair| match pair.split_once('=').unwrap_or((pair, "")) {
        ("takeover", value) => Some(value),
        _ => None,
    });
    match value {
        None | Some("0" | "false") => Ok(Takeover::No),
        Some("1" | "true") => Ok(Takeover::CloseOlder),
        Some(_) => Err(ApiError::bad_request("invalid_takeover", "`takeover` must be 1 or 0")),
    }
}
