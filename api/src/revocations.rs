//! Revocations over HTTP: tokens of a user, or one token, that count no more, at all or for some topics.

use axum::body::Body;
use axum::extract::State;
use axum::routing::post;
use serde::{Deserialize, Serialize};
use tidings_auth::{Action, Resource, Revocation, Subject};
use tidings_model::{Pattern, ProjectId, limits};
use utoipa::{OpenApi, ToSchema};

use crate::Api;
use crate::capability::Capability;
use crate::credential::Caller;
use crate::document::AdminRefusals;
use crate::document::params::ProjectParam;
use crate::error::ApiError;
use crate::live::Cut;
use crate::path::Segments;
use crate::routes::Routes;
use crate::wire::body;

/// What revocations bring to the interface.
pub const CAPABILITY: Capability = Capability::new(routes, Description::openapi);

/// What is described of revocations.
#[derive(OpenApi)]
#[openapi(paths(revoke))]
struct Description;

fn routes(routes: Routes) -> Routes {
    routes.route("/v1/{project}/revocations", post(revoke))
}

/// What to revoke: the tokens of a user, or one token. Exactly one of `user` and `jti` is needed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRevocation {
    /// User id (claim `sub`) whose tokens are revoked.
    #[schema(example = "alice")]
    user: Option<String>,
    /// Id of the token (claim `jti`) that is revoked.
    jti: Option<String>,
    /// Patterns of the topics that are refused to the tokens from now on; without it the tokens are no longer valid at all.
    topics: Option<Vec<String>>,
}

/// What a revocation ended on this node.
#[derive(Serialize, ToSchema)]
pub struct RevocationAnswer {
    /// Live connections that were closed: event streams and WebSockets.
    connections: usize,
    /// Live subscriptions to topics that were removed.
    subscriptions: usize,
}

/// Revoke the tokens of a user, or one token, that were issued up to now or have no claim `iat`. Needs the scope `manage`.
#[utoipa::path(
    post,
    path = "/v1/{project}/revocations",
    tag = "access",
    operation_id = "revoke",
    params(ProjectParam),
    request_body(content = NewRevocation),
    responses((status = 200, description = "Revoked, durably. The tokens are refused from now on, and live connections are closed.", body = RevocationAnswer), AdminRefusals)
)]
pub async fn revoke(
    State(api): State<Api>,
    Segments(project): Segments<String>,
    caller: Caller,
    body: Body,
) -> Result<axum::Json<RevocationAnswer>, ApiError> {
    let project = ProjectId::parse(&project)?;
    let pass = caller.may_in(&project, Action::Revoke, Resource::Project).await?;
    let context = api.context(Some(&project));
    let wanted = body::json::<NewRevocation>(body, limits::ADMIN_BODY_BYTES, context).await?;
    let (subject, topics) = wanted.parse()?;
    caller.may_still(&pass).await?;
    let at = api.gate.clock().now();
    let revocation = Revocation { project, subject, topics, at };
    api.gate.projects().revoke(revocation.clone()).await?;
    let Cut { connections, subscriptions } = api.live.live_connections.revoke(&revocation, at);
    Ok(axum::Json(RevocationAnswer { connections, subscriptions }))
}

impl NewRevocation {
    fn parse(self) -> Result<(Subject, Option<Vec<Pattern>>), ApiError> {
        let subject = match (self.user, self.jti) {
            (Some(user), None) => Subject::User(id("user", &user, limits::USER_ID_BYTES)?.into()),
            (None, Some(jti)) => Subject::Token(id("jti", &jti, limits::TOKEN_ID_BYTES)?.into()),
            (None, None) | (Some(_), Some(_)) => {
                return Err(invalid("a revocation has exactly one of `user` and `jti`"));
            }
        };
        Ok((subject, self.topics.map(patterns).transpose()?))
    }
}

fn id<'a>(name: &str, text: &'a str, bytes_max: usize) -> Result<&'a str, ApiError> {
    match text.len() {
        1.. if text.len() <= bytes_max => Ok(text),
        _ => Err(invalid(&format!("`{name}` has 1 to {bytes_max} bytes"))),
    }
}

/// An empty list is refused: it could be meant as all topics, or as none.
fn patterns(texts: Vec<String>) -> Result<Vec<Pattern>, ApiError> {
    if texts.is_empty() || texts.len() > limits::REVOKED_TOPICS {
        return Err(invalid(&format!("`topics` has 1 to {} patterns", limits::REVOKED_TOPICS)));
    }
    let pattern =
        |text: &String| Pattern::parse(text).map_err(|error| invalid(&format!("`{text}`: {error}")));
    texts.iter().map(pattern).collect()
}

fn invalid(message: &str) -> ApiError {
    ApiError::bad_request("invalid_revocation", message)
}
