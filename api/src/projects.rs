//! Administration over HTTP: projects, their keys, tokens, and how a project is set.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tidings_auth::{Action, Claims, Config, Key, Kid, NewKey, Resource};
use tidings_model::{Pattern, ProjectId, limits};

use crate::Api;
use crate::credential::Caller;
use crate::error::ApiError;
use crate::path::Segments;
use crate::wire::body;

/// All projects.
pub fn all() -> MethodRouter<Api> {
    get(list).post(create)
}

/// One project.
pub fn one() -> MethodRouter<Api> {
    delete(remove)
}

/// The keys of a project.
pub fn keys() -> MethodRouter<Api> {
    post(rotate_key)
}

/// A key of a project.
pub fn key() -> MethodRouter<Api> {
    delete(remove_key)
}

/// Tokens of a project.
pub fn tokens() -> MethodRouter<Api> {
    post(sign)
}

/// How a project is set.
pub fn config() -> MethodRouter<Api> {
    get(get_config).put(put_config)
}

async fn list(State(api): State<Api>, caller: Caller) -> Result<Response, ApiError> {
    caller.may_administer()?;
    let listed = api.gate.projects().list().into_iter().map(|listed| {
        let kids: Vec<_> = listed.kids.iter().map(Kid::as_str).collect();
        json!({ "project": listed.project.as_str(), "kids": kids })
    });
    Ok(told_once(StatusCode::OK, &json!({ "projects": listed.collect::<Vec<_>>() })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewProject {
    project: String,
    key: Option<String>,
}

async fn create(State(api): State<Api>, caller: Caller, body: Body) -> Result<Response, ApiError> {
    caller.may_administer()?;
    let wanted: NewProject = json_body(&api, body).await?;
    let (project, key) = (ProjectId::parse(&wanted.project)?, chosen(wanted.key)?);
    caller.may_administer()?;
    Ok(new_key(&api.gate.projects().create(&project, key).await?))
}

async fn remove(
    State(api): State<Api>,
    Segments(project): Segments<String>,
    caller: Caller,
) -> Result<StatusCode, ApiError> {
    caller.may_administer()?;
    api.gate.projects().remove(&ProjectId::parse(&project)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChosenKey {
    key: Option<String>,
}

async fn rotate_key(
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

async fn remove_key(
    State(api): State<Api>,
    Segments((project, kid)): Segments<(String, String)>,
    caller: Caller,
) -> Result<StatusCode, ApiError> {
    caller.may_administer()?;
    api.gate.projects().remove_key(&ProjectId::parse(&project)?, &Kid::named(&kid)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What a token is asked for with: how long it lives, whose it is, and claims as the token has them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewToken {
    scope: Value,
    user: Option<Value>,
    #[serde(rename = "ttlSeconds")]
    ttl_seconds: Option<u64>,
    stream_id: Option<Value>,
    streams: Option<Value>,
    topics: Option<Value>,
    rooms: Option<Value>,
    entities: Option<Value>,
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

async fn sign(
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
    Ok(told_once(StatusCode::CREATED, &json!({ "token": token, "expiresAt": expires_at })))
}

/// A project's configuration as it is sent.
#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct WireConfig {
    cors_origins: Vec<Box<str>>,
    public: Vec<String>,
    hooks: WireHooks,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct WireHooks {
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

async fn get_config(
    State(api): State<Api>,
    Segments(project): Segments<String>,
    caller: Caller,
) -> Result<Response, ApiError> {
    let project = ProjectId::parse(&project)?;
    caller.may_in(&project, Action::Configure, Resource::Project).await?;
    let config = api.gate.projects().config(&project).unwrap_or_default();
    Ok(axum::Json(WireConfig::new(config)).into_response())
}

async fn put_config(
    State(api): State<Api>,
    Segments(project): Segments<String>,
    caller: Caller,
    body: Body,
) -> Result<Response, ApiError> {
    let project = ProjectId::parse(&project)?;
    let pass = caller.may_in(&project, Action::Configure, Resource::Project).await?;
    let config = json_body::<WireConfig>(&api, body).await?.parse()?;
    caller.may_still(&pass).await?;
    api.gate.projects().configure(&project, config.clone()).await?;
    Ok(axum::Json(WireConfig::new(config)).into_response())
}

fn chosen(key: Option<String>) -> Result<Option<Key>, ApiError> {
    Ok(key.map(|key| Key::parse(&key)).transpose()?)
}

fn new_key(new: &NewKey) -> Response {
    let told = json!({
        "project": new.project.as_str(),
        "kid": new.key.kid().as_str(),
        "key": new.key.reveal(),
        "apiKey": new.api_key(),
    });
    told_once(StatusCode::CREATED, &told)
}

/// An answer that no cache keeps: it has secrets.
fn told_once(status: StatusCode, told: &Value) -> Response {
    (status, [(header::CACHE_CONTROL, "no-store")], axum::Json(told)).into_response()
}

async fn json_body<T: DeserializeOwned>(api: &Api, body: Body) -> Result<T, ApiError> {
    parse_json(&body::bytes(body, limits::ADMIN_BODY_BYTES, &*api.stage.clock).await?)
}

/// For requests that need not say anything.
async fn json_or_nothing<T: DeserializeOwned + Default>(api: &Api, body: Body) -> Result<T, ApiError> {
    let body = body::bytes(body, limits::ADMIN_BODY_BYTES, &*api.stage.clock).await?;
    if body.is_empty() { Ok(T::default()) } else { parse_json(&body) }
}

pub fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| {
        // The place and not the message: that may quote what was sent, which may be a key.
        let place = format!("line {}, column {}", error.line(), error.column());
        let message = match error.classify() {
            serde_json::error::Category::Data => format!("the JSON is not what is expected here, at {place}"),
            _ => format!("the body is not JSON, at {place}"),
        };
        ApiError::bad_request("invalid_json", message)
    })
}
