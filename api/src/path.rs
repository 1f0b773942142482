//! Extracts the stream or project that a path names.

use axum::extract::{FromRequestParts, Path};
use axum::http::Method;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use tidings_model::{ProjectId, StreamId};
use tidings_streams::StreamKey;

use crate::error::ApiError;

/// The stream that the path of a request names.
pub struct StreamPath(pub StreamKey);

impl<S: Send + Sync> FromRequestParts<S> for StreamPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(pairs) = Path::<Vec<(String, String)>>::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::bad_request("invalid_path", error.body_text()))?;
        let find = |name| pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let id = find("id").unwrap_or_default();
        // A stream cannot be created under the alias of a session; the error says so.
        let id = if parts.method == Method::PUT { id } else { unaliased(id) };
        Ok(Self(key(find("project"), id)?))
    }
}

/// The project that the path of a request names.
pub struct ProjectPath(pub ProjectId);

impl<S: Send + Sync> FromRequestParts<S> for ProjectPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(project) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::bad_request("invalid_path", error.body_text()))?;
        Ok(Self(ProjectId::parse(&project)?))
    }
}

/// The parameters of a path, not validated.
pub struct Segments<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Segments<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let segments = Path::from_request_parts(parts, state).await;
        let Path(segments) =
            segments.map_err(|error| ApiError::bad_request("invalid_path", error.body_text()))?;
        Ok(Self(segments))
    }
}

/// The stream that a path in a header such as `Stream-Forked-From` names.
pub fn stream_at(path: &str) -> Result<StreamKey, ApiError> {
    let invalid =
        || ApiError::bad_request("invalid_source", "Stream-Forked-From must be the path of a stream");
    let rest = path.strip_prefix("/v1/").ok_or_else(invalid)?;
    let (project, id) = match rest.strip_prefix("stream/") {
        Some(id) => (None, id),
        None => {
            let (project, rest) = rest.split_once('/').ok_or_else(invalid)?;
            (Some(project), rest.strip_prefix("stream/").ok_or_else(invalid)?)
        }
    };
    let id = percent_decode_str(id).decode_utf8().map_err(|_| invalid())?;
    key(project, unaliased(&id))
}

/// Resolves the alias `session:{id}` to the stream `{id}`.
pub fn unaliased(id: &str) -> &str {
    id.strip_prefix("session:").filter(|id| !id.is_empty()).unwrap_or(id)
}

/// Refuses reserved ids: `session:{id}` is an alias of a session's stream, and `__ds/` is a prefix of the
/// protocol's own.
pub fn refuse_reserved(id: &StreamId) -> Result<(), ApiError> {
    match id.reserved() {
        None => Ok(()),
        Some(why) => Err(ApiError::bad_request("reserved_id", why)),
    }
}

fn key(project: Option<&str>, id: &str) -> Result<StreamKey, ApiError> {
    let project = match project {
        Some(text) => ProjectId::parse(text)?,
        None => ProjectId::default_project(),
    };
    Ok(StreamKey { project, id: StreamId::parse(id)? })
}

/// The project that a path is about; `None` if it is about none.
pub fn project_of(path: &str) -> Option<ProjectId> {
    let mut segments = path.strip_prefix("/v1/")?.split('/');
    match segments.next()? {
        "stream" | "streams" => Some(ProjectId::default_project()),
        "config" => ProjectId::parse(segments.next()?).ok(),
        "projects" => None,
        project => ProjectId::parse(project).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_about_a_project_or_none() {
        let named = |path| project_of(path).map(|project| project.to_string());
        assert_eq!(named("/v1/stream/a/b").as_deref(), Some("_default"));
        assert_eq!(named("/v1/app/stream/a").as_deref(), Some("app"));
        assert_eq!(named("/v1/config/app").as_deref(), Some("app"));
        for none in ["/health", "/v1/", "/v1/projects", "/v1/a b/stream/x", "/"] {
            assert_eq!(named(none), None, "{none}");
        }
    }

    #[test]
    fn a_source_path_names_a_stream_of_the_default_or_a_named_project() {
        let name = |path| stream_at(path).expect("valid").to_string();
        assert_eq!(name("/v1/stream/a/b"), "_default/a/b");
        assert_eq!(name("/v1/app/stream/a%20b"), "app/a b");
        assert_eq!(name("/v1/stream/stream/x"), "_default/stream/x");
        for bad in ["", "a", "/v1/", "/v1/stream/", "/v1/app/streams/x", "/v1/a b/stream/x", "/v1/stream/%ff"]
        {
            assert!(stream_at(bad).is_err(), "{bad:?}");
        }
    }
}
