//! The handshake of a WebSocket for topics.

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use percent_encoding::percent_decode_str;
use tidings_auth::{Action, Resource};
use tidings_model::Timestamp;

use super::connection::{Connection, Parts};
use super::encode::{Hello, HelloLimits};
use super::options::TopicOptions;
use crate::Api;
use crate::credential::Caller;
use crate::document::ProjectRefusals;
use crate::document::params::ProjectParam;
use crate::error::ApiError;
use crate::live::{FeedOptions, PassHandle, Transport};
use crate::path::ProjectPath;
use crate::websocket::{Limits, Upgrade};

/// Bytes of the name of a session.
const SESSION_BYTES: usize = 64;

/// Open a WebSocket on which topics are subscribed to and published to.
#[utoipa::path(
    get,
    path = "/v1/{project}/topics",
    tag = "topics",
    operation_id = "connect_topics",
    params(
        ProjectParam,
        ("session" = Option<String>, Query, description = "Session of an earlier connection of this client, as its first frame told it."),
    ),
    responses(
        (status = 101, description = "The connection is now a WebSocket."),
        (status = 426, description = "`upgrade_required` or `websocket_version`: the request does not ask for a WebSocket of version 13.", body = crate::document::ErrorAnswer),
        ProjectRefusals,
    )
)]
pub async fn connect(
    State(api): State<Api>,
    ProjectPath(project): ProjectPath,
    caller: Caller,
    mut request: Request,
) -> Result<Response, ApiError> {
    let pass = PassHandle::from(caller.may_in(&project, Action::UseTopics, Resource::Project).await?);
    let upgrade = Upgrade::validate_head(request.method(), request.version(), request.headers(), &[])?;
    let session = session_of(request.uri());
    let now = api.live.clock.now();
    let options = api.topics.options();
    let feed_options = FeedOptions::new(None, options.slow_consumer, pass.clone(), now)?
        .counted(api.observe.websocket_readers.hold())
        .with_pings(options.heartbeat, options.heartbeat_timeout)
        .with_grace(options.close_grace);

    let ids = Ids::new(&api, session);
    let hub = api.topics.of(&project);
    let (topics, reader) = hub.connect(&*ids.client, pass.clone());
    topics.set_session(&ids.session);
    let current = pass.current();
    let user = current.principal().and_then(|principal| principal.user.as_deref());
    topics.set_seen_as(&ids.member, user);
    let hello = Hello {
        client_id: &ids.client,
        member_id: &ids.member,
        session: &ids.session,
        project: project.as_str(),
        user,
        expires_at: current.expires_at().map(Timestamp::as_millis),
        heartbeat_ms: u64::try_from(options.heartbeat.as_millis()).unwrap_or(u64::MAX),
        limits: limits(options),
    };
    // Before anything else: nobody reads yet, so nobody has to be woken.
    drop(topics.queue_reply(hello.frame()));
    let websocket =
        Limits { frame_bytes: options.frame_bytes, message_bytes: options.frame_bytes, ..Limits::default() };
    let connection = Connection::new(Parts { api: api.clone(), hub, topics, project, pass, now });
    let feed_options = feed_options.with_protocol(Box::new(connection));
    Transport::of(&mut request).websocket(upgrade, Some(reader.into()), websocket, feed_options, &api.live)
}

fn limits(options: &TopicOptions) -> HelloLimits {
    HelloLimits {
        topic_length: options.rules.max_length(),
        topics_per_connection: options.rules.max_per_connection(),
        topics_per_request: options.topics_per_request,
        frame_bytes: options.frame_bytes,
        payload_bytes: options.rules.max_payload_bytes(),
    }
}

/// Names of a connection.
struct Ids {
    /// Known to the connection only.
    client: String,
    /// Names the connection to others.
    member: String,
    /// Known to the connection only; the same for the connections of one client one after the other.
    session: String,
}

impl Ids {
    fn new(api: &Api, session: Option<String>) -> Self {
        let random = || api.rng.within(0..=u64::MAX);
        Self {
            // The number makes it unique, the rest hard to guess.
            client: format!("c_{:x}{:016x}", api.topics.next_number(), random()),
            member: format!("m_{:016x}", random()),
            session: session.unwrap_or_else(|| format!("s_{:016x}{:016x}", random(), random())),
        }
    }
}

/// The session that a client says it had; an odd one is ignored, and the client gets another.
fn session_of(uri: &Uri) -> Option<String> {
    let pairs = uri.query()?.split('&');
    let value = pairs.filter_map(|pair| pair.strip_prefix("session=")).next()?;
    let session = percent_decode_str(value).decode_utf8().ok()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let good = (1..=SESSION_BYTES).contains(&session.len()) && session.bytes().all(is_plain);
    good.then(|| session.into_owned())
}
