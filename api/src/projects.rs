//! Administration over HTTP: projects, their signing keys, their tokens and their configuration.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tidings_auth::{Action, Claims, Config, Key, Kid, NewKey, Resource};
use tidings_model::{Pattern, ProjectId, limits};
use utoipa::{OpenApi, ToSchema};

use crate::Api;
use crate::capability::Capability;
use crate::credential::Caller;
use crate::document::AdminRefusals;
use crate::document::params::ProjectParam;
use crate::error::ApiError;
use crate::path::Segments;
use crate::routes::Routes;
use crate::wire::body;

/// What administration brings to the interface.
pub const CAPABILITY: Capability = Capability::new(routes, Description::openapi);

/// What is described of administration.
#[derive(OpenApi)]
#[openapi(paths(list, create, remove, rotate_key, remove_key, sign, get_config, put_config))]
struct Description;

fn routes(routes: Routes) -> Routes {
    routes
        .route("/v1/projects", get(list).post(create))
        .route("/v1/projects/{project}", delete(remove))
        .route("/v1/projects/{project}/keys", post(rotate_key))
        .route("/v1/projects/{project}/keys/{kid}", delete(remove_key))
        .route("/v1/projects/{project}/tokens", post(sign))
        .route("/v1/config/{project}", get(get_config).put(put_config))
}

/// List the stored projects. Needs the admin key, like everything under `/v1/projects`.
#[utoipa::path(
    get,
    path = "/v1/projects",
    tag = "administration",
    operation_id = "list_projects",
    responses((status = 200, description = "All stored projects.", body = ProjectList), AdminRefusals)
)]
pub async fn list(State(api): State<Api>, caller: Caller) -> Result<Response, ApiError> {
    caller.may_administer()?;
    let listed = api.gate.projects().list().into_iter().map(|listed| ListedProject {
        project: listed.project.as_str().to_owned(),
        kids: listed.kids.iter().map(|kid| kid.as_str().to_owned()).collect(),
    });
    Ok(told_once(StatusCode::OK, ProjectList { projects: listed.collect() }))
}

/// The stored projects.
#[derive(Serialize, ToSchema)]
pub struct ProjectList {
    projects: Vec<ListedProject>,
}

/// A project and the ids of its signing keys, the newest first.
#[derive(Serialize, ToSchema)]
struct ListedProject {
    project: String,
    kids: Vec<String>,
}

/// A project to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewProject {
    #[schema(example = "shop")]
    project: String,
    /// Signing key, at least 16 bytes of printable ASCII; default: a random one.
    key: Option<String>,
}

/// Create a project with a signing key.
#[utoipa::path(
    post,
    path = "/v1/projects",
    tag = "administration",
    operation_id = "create_project",
    request_body(content = NewProject),
    responses((status = 201, description = "The project was created. Its key is shown only in this response.", body = NewKeyAnswer), AdminRefusals)
)]
pub async fn create(State(api): State<Api>, caller: Caller, body: Body) -> Result<Response, ApiError> {
    caller.may_administer()?;
    let wanted: NewProject = json_body(&api, body).await?;
    let (project, key) = (ProjectId::parse(&wanted.project)?, chosen(wanted.key)?);
    caller.may_administer()?;
    Ok(new_key(&api.gate.projects().create(&project, key).await?))
}

/// Delete a project and everything in it. Its content is removed in the background.
#[utoipa::path(
    delete,
    path = "/v1/projects/{project}",
    tag = "administration",
    operation_id = "remove_project",
    params(ProjectParam),
    responses((status = 204, description = "The project was deleted."), AdminRefusals)
)]
pub async fn remove(
    State(api): State<Api>,
    Segments(project): Segments<String>,
    caller: Caller,
) -> Result<StatusCode, ApiError> {
    caller.may_administer()?;
    api.gate.projects().remove(&ProjectId::parse(&project)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A signing key to add.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChosenKey {
    /// Signing key, at least 16 bytes of printable ASCII; default: a random one.
    key: Option<String>,
}

/// Add a signing key to a project. New tokens are signed with it; older keys stay valid.
#[utoipa::path(
    post,
    path = "/v1/projects/{project}/keys",
    tag = "administration",
    operation_id = "rotate_key",
    params(ProjectParam),
    request_body(content = Option<ChosenKey>),
    responses((status = 201, description = "The key was added. It is shown only in this response.", body = NewKeyAnswer), AdminRefusals)
)]
pub async fn rotate_key(
    State(api): State<Api>,
    Segments(project): Segments<String>,
    caller: Caller,
    body: Body,
) -> Result<Response, ApiError> {
    caller.may_administer()?;
    let project = ProjectId::parse(&project)?;
    let wanted: ChosenKey = json_or_nothing(&api, body).await?;
    caller.may_administer()?;
    Ok(new_key(&api.gate.projects().rotate_key(&project, chosen(wanted.key)?).await?))
}

/// Remove a signing key of a project. Tokens signed with it are no longer valid.
#[utoipa::path(
    delete,
    path = "/v1/projects/{project}/keys/{kid}",
    tag = "administration",
    operation_id = "remove_key",
    params(ProjectParam, ("kid" = String, Path, description = "Id of the key.", example = "k1")),
    responses((status = 204, description = "The key was removed."), AdminRefusals)
)]
pub async fn remove_key(
    State(api): State<Api>,
    Segments((project, kid)): Segments<(String, String)>,
    caller: Caller,
) -> Result<StatusCode, ApiError> {
    caller.may_administer()?;
    api.gate.projects().remove_key(&ProjectId::parse(&project)?, &Kid::named(&kid)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A token to sign: its lifetime, its user and its claims.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Scope of the token: `read`, `write` (includes `read`) or `manage` (includes both).
    #[schema(value_type = String, example = "read")]
    scope: Value,
    /// User id in the application (claim `sub`).
    #[schema(value_type = Option<String>)]
    user: Option<Value>,
    /// Id of the token (claim `jti`), by which it can be revoked.
    #[schema(value_type = Option<String>)]
    jti: Option<Value>,
    /// Lifetime in seconds; default 3,600.
    #[serde(rename = "ttlSeconds")]
    #[schema(minimum = 1)]
    ttl_seconds: Option<u64>,
    /// Id of the only stream that the token allows.
    #[schema(value_type = Option<String>)]
    stream_id: Option<Value>,
    /// Globs of the streams that the token allows.
    #[schema(value_type = Option<Vec<String>>)]
    streams: Option<Value>,
    /// Topics that the token allows: globs for both ways, or an object with those to subscribe to and to publish to.
    #[schema(value_type = Option<TopicsClaim>)]
    topics: Option<Value>,
    /// Globs of the rooms that the token allows.
    #[schema(value_type = Option<Vec<String>>)]
    rooms: Option<Value>,
    /// Globs of the entities that the token allows.
    #[schema(value_type = Option<Vec<String>>)]
    entities: Option<Value>,
    /// Id of the only session that the token allows.
    #[schema(value_type = Option<String>)]
    session: Option<Value>,
}

impl NewToken {
    /// The claims of a token, with times in seconds since 1970.
    fn claims(self, project: &ProjectId, issued_at: u64, expires_at: u64) -> Map<String, Value> {
        let claims = [
            ("project", Some(project.as_str().into())),
            ("sub", self.user),
            ("scope", Some(self.scope)),
            ("iat", Some(issued_at.into())),
            ("jti", self.jti),
            ("exp", Some(expires_at.into())),
            ("stream_id", self.stream_id),
            ("streams", self.streams),
            ("topics", self.topics),
            ("rooms", self.rooms),
            ("entities", self.entities),
            ("session", self.session),
        ];
        let given = claims.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        given.collect()
    }
}

/// Topics that a token allows.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum TopicsClaim {
    /// Globs of topics to subscribe to and to publish to.
    Both(Vec<String>),
    /// Globs for each way; an absent one allows nothing.
    Apart {
        #[schema(required = false)]
        subscribe: Vec<String>,
        #[schema(required = false)]
        publish: Vec<String>,
    },
}

/// Sign a token with the newest key of a project.
#[utoipa::path(
    post,
    path = "/v1/projects/{project}/tokens",
    tag = "administration",
    operation_id = "sign_token",
    params(ProjectParam),
    request_body(content = NewToken),
    responses((status = 201, description = "The token was signed.", body = NewTokenAnswer), AdminRefusals)
)]
pub async fn sign(
    State(api): State<Api>,
    Segments(project): Segments<String>,
    caller: Caller,
    body: Body,
) -> Result<Response, ApiError> {
    caller.may_administer()?;
    let project = ProjectId::parse(&project)?;
    let wanted: NewToken = json_body(&api, body).await?;
    caller.may_administer()?;
    let ttl = wanted.ttl_seconds.map_or(limits::TOKEN_TTL, Duration::from_secs);
    if ttl.is_zero() {
        return Err(ApiError::bad_request("invalid_claims", "ttlSeconds is at least 1"));
    }
    let now = api.gate.clock().now();
    let expires_at = (now + ttl).as_millis().div_ceil(1000);
    // Rounded down, so that a revocation in the same second touches the token.
    let claims = Claims::from_json(wanted.claims(&project, now.as_millis() / 1000, expires_at))?;
    let token = api.gate.projects().sign(&claims)?;
    let expires_at = claims.expires_at.as_millis();
    Ok(told_once(StatusCode::CREATED, NewTokenAnswer { token, expires_at }))
}

/// A signed token.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewTokenAnswer {
    token: String,
    /// Time at which the token expires, in milliseconds since 1970.
    expires_at: u64,
}

/// Configuration of a project.
#[derive(Default, Deserialize, Serialize, ToSchema)]
#[schema(as = ProjectConfig)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct WireConfig {
    /// Origins whose pages may use the project from a browser (CORS); `*` allows all.
    #[schema(value_type = Vec<String>)]
    cors_origins: Vec<Box<str>>,
    /// Globs of the streams that anybody may read without a token.
    public: Vec<String>,
    hooks: WireHooks,
}

/// Configuration of a project's hooks.
#[derive(Default, Deserialize, Serialize, ToSchema)]
#[schema(as = ProjectHooks)]
#[serde(deny_unknown_fields, default)]
struct WireHooks {
    #[schema(value_type = Vec<String>)]
    sources: Vec<Box<str>>,
}

impl WireConfig {
    fn new(config: Config) -> Self {
        Self {
            cors_origins: config.cors_origins,
            public: config.public.iter().map(|glob| glob.as_str().to_owned()).collect(),
            hooks: WireHooks { sources: config.hook_sources },
        }
    }

    fn parse(self) -> Result<Config, ApiError> {
        let glob = |text: &String| {
            let invalid = |error| ApiError::bad_request("invalid_config", format!("`{text}`: {error}"));
            Pattern::parse(text).map_err(invalid)
        };
        let public = self.public.iter().map(glob).collect::<Result<_, _>>()?;
        Ok(Config { cors_origins: self.cors_origins, public, hook_sources: self.hooks.sources })
    }
}

/// Get the configuration of a project. Needs a token with the scope `manage`.
#[utoipa::path(
    get,
    path = "/v1/config/{project}",
    tag = "administration",
    operation_id = "get_config",
    params(ProjectParam),
    responses((status = 200, description = "Current configuration of the project.", body = WireConfig), AdminRefusals)
)]
pub async fn get_config(
    State(api): State<Api>,
    Segments(project): Segments<String>,
    caller: Caller,
) -> Result<Response, ApiError> {
    let project = ProjectId::parse(&project)?;
    caller.may_in(&project, Action::Configure, Resource::Project).await?;
    let config = api.gate.projects().config(&project).unwrap_or_default();
    Ok(axum::Json(WireConfig::new(config)).into_response())
}

/// Replace the whole configuration of a project. Needs a token with the scope `manage`.
#[utoipa::path(
    put,
    path = "/v1/config/{project}",
    tag = "administration",
    operation_id = "put_config",
    params(ProjectParam),
    request_body(content = WireConfig),
    responses((status = 200, description = "The configuration was replaced.", body = WireConfig), AdminRefusals)
)]
pub async fn put_config(
    State(api): State<Api>,
    Segments(project): Segments<String>,
    caller: Caller,
    body: Body,
) -> Result<Response, ApiError> {
    let project = ProjectId::parse(&project)?;
    let pass = caller.may_in(&project, Action::Configure, Resource::Project).await?;
    let context = api.context(Some(&project));
    let config = body::json::<WireConfig>(body, limits::ADMIN_BODY_BYTES, context).await?.parse()?;
    caller.may_still(&pass).await?;
    api.gate.projects().configure(&project, config.clone()).await?;
    Ok(axum::Json(WireConfig::new(config)).into_response())
}

fn chosen(key: Option<String>) -> Result<Option<Key>, ApiError> {
    Ok(key.map(|key| Key::parse(&key)).transpose()?)
}

/// A new signing key. It is never shown again.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewKeyAnswer {
    project: String,
    /// Id of the key; tokens name it in their header.
    kid: String,
    /// The key itself, the secret that signs tokens.
    key: String,
    /// API key for services that publish and ingest; valid as long as the signing key.
    api_key: String,
}

fn new_key(new: &NewKey) -> Response {
    let told = NewKeyAnswer {
        project: new.project.as_str().to_owned(),
        kid: new.key.kid().as_str().to_owned(),
        key: new.key.reveal().to_string(),
        api_key: new.api_key(),
    };
    told_once(StatusCode::CREATED, told)
}

/// A response that caches must not keep, because it contains secrets.
fn told_once(status: StatusCode, told: impl Serialize) -> Response {
    (status, [(header::CACHE_CONTROL, "no-store")], axum::Json(told)).into_response()
}

async fn json_body<T: DeserializeOwned>(api: &Api, sent: Body) -> Result<T, ApiError> {
    body::json(sent, limits::ADMIN_BODY_BYTES, api.context(None)).await
}

/// Parses a body that may be empty, in which case all fields have their defaults.
async fn json_or_nothing<T: DeserializeOwned + Default>(api: &Api, body: Body) -> Result<T, ApiError> {
    let (body, _reserved) = body::bytes(body, limits::ADMIN_BODY_BYTES, api.context(None)).await?;
    if body.is_empty() { Ok(T::default()) } else { body::parse_json(&body) }
}
