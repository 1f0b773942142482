//! Administration over HTTP: projects, their keys, tokens, and how a project is set.

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

/// Lists the projects that are stored. Needs the admin key, as all that is under `/v1/projects` does.
#[utoipa::path(
    get,
    path = "/v1/projects",
    tag = "administration",
    operation_id = "list_projects",
    responses((status = 200, description = "All of them.", body = ProjectList), AdminRefusals)
)]
pub async fn list(State(api): State<Api>, caller: Caller) -> Result<Response, ApiError> {
    caller.may_administer()?;
    let listed = api.gate.projects().list().into_iter().map(|listed| ListedProject {
        project: listed.project.as_str().to_owned(),
        kids: listed.kids.iter().map(|kid| kid.as_str().to_owned()).collect(),
    });
    Ok(told_once(StatusCode::OK, ProjectList { projects: listed.collect() }))
}

/// Projects.
#[derive(Serialize, ToSchema)]
pub struct ProjectList {
    projects: Vec<ListedProject>,
}

/// A project and the ids of its keys.
#[derive(Serialize, ToSchema)]
struct ListedProject {
    project: String,
    kids: Vec<String>,
}

/// A project to be.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewProject {
    #[schema(example = "shop")]
    project: String,
    /// Its signing key; one is drawn otherwise.
    key: Option<String>,
}

/// Creates a project, with a key.
#[utoipa::path(
    post,
    path = "/v1/projects",
    tag = "administration",
    operation_id = "create_project",
    request_body(content = NewProject),
    responses((status = 201, description = "Created; its key is told this once.", body = NewKeyAnswer), AdminRefusals)
)]
pub async fn create(State(api): State<Api>, caller: Caller, body: Body) -> Result<Response, ApiError> {
    caller.may_administer()?;
    let wanted: NewProject = json_body(&api, body).await?;
    let (project, key) = (ProjectId::parse(&wanted.project)?, chosen(wanted.key)?);
    caller.may_administer()?;
    Ok(new_key(&api.gate.projects().create(&project, key).await?))
}

/// Removes a project and all that is in it.
#[utoipa::path(
    delete,
    path = "/v1/projects/{project}",
    tag = "administration",
    operation_id = "remove_project",
    params(("project" = String, Path, description = "The project.", example = "shop")),
    responses((status = 204, description = "Removed."), AdminRefusals)
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

/// A key to be.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChosenKey {
    /// The signing key; one is drawn otherwise.
    key: Option<String>,
}

/// Gives a project one more key, which signs from now on; those before still count.
#[utoipa::path(
    post,
    path = "/v1/projects/{project}/keys",
    tag = "administration",
    operation_id = "rotate_key",
    params(("project" = String, Path, description = "The project.", example = "shop")),
    request_body(content = Option<ChosenKey>),
    responses((status = 201, description = "Made; it is told this once.", body = NewKeyAnswer), AdminRefusals)
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

/// Removes a key of a project. What was signed with it does not count any more.
#[utoipa::path(
    delete,
    path = "/v1/projects/{project}/keys/{kid}",
    tag = "administration",
    operation_id = "remove_key",
    params(("project" = String, Path, description = "The project.", example = "shop"), ("kid" = String, Path, description = "The key, by its id.", example = "k1")),
    responses((status = 204, description = "Removed."), AdminRefusals)
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

/// What a token is asked for with: how long it lives, whose it is, and claims as the token has them.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// `read`, `write` or `manage`.
    #[schema(value_type = String, example = "read")]
    scope: Value,
    /// The user of the application.
    #[schema(value_type = Option<String>)]
    user: Option<Value>,
    /// How long it lives; an hour otherwise.
    #[serde(rename = "ttlSeconds")]
    #[schema(minimum = 1)]
    ttl_seconds: Option<u64>,
    /// The one stream it is for.
    #[schema(value_type = Option<String>)]
    stream_id: Option<Value>,
    /// Globs of streams it is for.
    #[schema(value_type = Option<Vec<String>>)]
    streams: Option<Value>,
    /// Globs of topics it is for.
    #[schema(value_type = Option<Vec<String>>)]
    topics: Option<Value>,
    /// Globs of rooms it is for.
    #[schema(value_type = Option<Vec<String>>)]
    rooms: Option<Value>,
    /// Globs of entities it is for.
    #[schema(value_type = Option<Vec<String>>)]
    entities: Option<Value>,
    /// The session it is for.
    #[schema(value_type = Option<String>)]
    session: Option<Value>,
}

impl NewToken {
    fn claims(self, project: &ProjectId, expires_at: u64) -> Map<String, Value> {
        let claims = [
            ("project", Some(project.as_str().into())),
            ("sub", self.user),
            ("scope", Some(self.scope)),
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

/// Signs a token with the newest key of a project.
#[utoipa::path(
    post,
    path = "/v1/projects/{project}/tokens",
    tag = "administration",
    operation_id = "sign_token",
    params(("project" = String, Path, description = "The project.", example = "shop")),
    request_body(content = NewToken),
    responses((status = 201, description = "Signed.", body = NewTokenAnswer), AdminRefusals)
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
    let expires_at = (api.gate.clock().now() + ttl).as_millis().div_ceil(1000);
    let claims = Claims::from_json(wanted.claims(&project, expires_at))?;
    let token = api.gate.projects().sign(&claims)?;
    let expires_at = claims.expires_at.as_millis();
    Ok(told_once(StatusCode::CREATED, NewTokenAnswer { token, expires_at }))
}

/// A token.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewTokenAnswer {
    token: String,
    /// In milliseconds since 1970.
    expires_at: u64,
}

/// A project's configuration as it is sent.
#[derive(Default, Deserialize, Serialize, ToSchema)]
#[schema(as = ProjectConfig)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct WireConfig {
    /// Whose pages may use the project: origins, or `*`.
    #[schema(value_type = Vec<String>)]
    cors_origins: Vec<Box<str>>,
    /// Globs of streams that everybody may read.
    public: Vec<String>,
    hooks: WireHooks,
}

/// How hooks of a project are set.
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

/// How a project is set. Needs a token with the scope `manage`.
#[utoipa::path(
    get,
    path = "/v1/config/{project}",
    tag = "administration",
    operation_id = "get_config",
    params(("project" = String, Path, description = "The project.", example = "shop")),
    responses((status = 200, description = "So.", body = WireConfig), AdminRefusals)
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

/// Sets a project, as a whole. Needs a token with the scope `manage`.
#[utoipa::path(
    put,
    path = "/v1/config/{project}",
    tag = "administration",
    operation_id = "put_config",
    params(("project" = String, Path, description = "The project.", example = "shop")),
    request_body(content = WireConfig),
    responses((status = 200, description = "It is set so.", body = WireConfig), AdminRefusals)
)]
pub async fn put_config(
    State(api): State<Api>,
    Segments(project): Segments<String>,
    caller: Caller,
    body: Body,
) -> Result<Response, ApiError> {
    let project = ProjectId::parse(&project)?;
    let pass = caller.may_in(&project, Action::Configure, Resource::Project).await?;
    let intake = api.intake(Some(&project));
    let config = body::json::<WireConfig>(body, limits::ADMIN_BODY_BYTES, intake).await?.parse()?;
    caller.may_still(&pass).await?;
    api.gate.projects().configure(&project, config.clone()).await?;
    Ok(axum::Json(WireConfig::new(config)).into_response())
}

fn chosen(key: Option<String>) -> Result<Option<Key>, ApiError> {
    Ok(key.map(|key| Key::parse(&key)).transpose()?)
}

/// A key that was made. Nobody is told it again.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewKeyAnswer {
    project: String,
    /// Its id, which tokens carry.
    kid: String,
    /// What signs.
    key: String,
    /// For what publishes and ingests.
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

/// An answer that no cache keeps: it has secrets.
fn told_once(status: StatusCode, told: impl Serialize) -> Response {
    (status, [(header::CACHE_CONTROL, "no-store")], axum::Json(told)).into_response()
}

async fn json_body<T: DeserializeOwned>(api: &Api, sent: Body) -> Result<T, ApiError> {
    body::json(sent, limits::ADMIN_BODY_BYTES, api.intake(None)).await
}

/// For requests that need not say anything.
async fn json_or_nothing<T: DeserializeOwned + Default>(api: &Api, body: Body) -> Result<T, ApiError> {
    let (body, _reserved) = body::bytes(body, limits::ADMIN_BODY_BYTES, api.intake(None)).await?;
    if body.is_empty() { Ok(T::default()) } else { body::parse_json(&body) }
}
