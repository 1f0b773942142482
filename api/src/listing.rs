//! Listing the streams of a project.

use axum::Json;
use axum::extract::{FromRequestParts, Query, State};
use axum::http::header;
use axum::http::request::Parts;
use axum::response::{AppendHeaders, IntoResponse};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use tidings_auth::{Action, Resource};
use tidings_model::{StreamId, limits};
use tidings_streams::{Found, ListRequest, Owner};
use utoipa::ToSchema;

use crate::Api;
use crate::credential::Caller;
use crate::document::ProjectRefusals;
use crate::document::params::ProjectParam;
use crate::error::ApiError;
use crate::path::ProjectPath;
use crate::wire::offset;
use crate::wire::query::once;

/// List the streams of a project, sorted by id.
#[utoipa::path(
    get,
    path = "/v1/{project}/streams",
    tag = "streams",
    operation_id = "list_streams",
    params(
        ProjectParam,
        ("prefix" = Option<String>, Query, description = "Prefix that the ids must have."),
        ("limit" = Option<String>, Query, description = "Maximum number of streams in the response; default 100.", example = "10"),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the previous response."),
        ("sessions" = Option<String>, Query, description = "`true` to include the streams of sessions; default `false`."),
    ),
    responses((status = 200, description = "One page of streams.", body = Listed), ProjectRefusals)
)]
pub async fn list(
    State(api): State<Api>,
    ProjectPath(project): ProjectPath,
    caller: Caller,
    query: ListQuery,
) -> Result<impl IntoResponse, ApiError> {
    caller.may_in(&project, Action::List, Resource::Project).await?;
    let ListQuery { prefix, after, limit, owners } = query;
    let listing = api.streams.list(&ListRequest { project, prefix, after, owners, limit }).await?;
    let body = Listed {
        streams: listing.streams.iter().map(|(id, found)| ListedStream::new(id, found)).collect(),
        next_cursor: listing.next.map(|next| URL_SAFE_NO_PAD.encode(next.as_str())),
    };
    Ok((AppendHeaders([(header::CACHE_CONTROL, "no-store")]), Json(body)))
}

/// One page of the streams of a project.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    streams: Vec<ListedStream>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_cursor: Option<String>,
}

/// A stream of a listing. Times are in milliseconds since 1970.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ListedStream {
    id: String,
    content_type: String,
    /// Offset of the stream's tail.
    next_offset: String,
    closed: bool,
    created_at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    expires_at: Option<u64>,
}

impl ListedStream {
    fn new(id: &StreamId, found: &Found) -> Self {
        Self {
            id: id.as_str().to_owned(),
            content_type: found.stream.content_type.as_str().to_owned(),
            next_offset: offset::print(found.status.tail).to_string(),
            closed: found.status.closed,
            created_at: found.stream.created_at.as_millis(),
            expires_at: found.stream.expires_at.map(|at| at.as_millis()),
        }
    }
}

/// Query of a listing of streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    prefix: String,
    after: Option<StreamId>,
    limit: usize,
    owners: &'static [Owner],
}

impl<S: Send + Sync> FromRequestParts<S> for ListQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Query(pairs) = Query::<Vec<(String, String)>>::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::bad_request("invalid_query", error.body_text()))?;
        Self::parse(&pairs)
    }
}

impl ListQuery {
    /// Parses the known parameters and ignores all others.
    fn parse(pairs: &[(String, String)]) -> Result<Self, ApiError> {
        let limit = match once(pairs, "limit")?.map(str::parse) {
            None => limits::LISTED_STREAMS_DEFAULT,
            Some(Ok(limit)) if (1..=limits::LISTED_STREAMS).contains(&limit) => limit,
            Some(_) => {
                let message = format!("limit is a number from 1 to {}", limits::LISTED_STREAMS);
                return Err(ApiError::bad_request("invalid_limit", message));
            }
        };
        let owners: &[Owner] = match once(pairs, "sessions")? {
            None | Some("false") => &[Owner::Clients],
            Some("true") => &[Owner::Clients, Owner::Session],
            Some(_) => return Err(ApiError::bad_request("invalid_query", "sessions is `true` or `false`")),
        };
        let prefix = once(pairs, "prefix")?.unwrap_or_default().to_owned();
        let after = once(pairs, "cursor")?.map(cursor).transpose()?;
        Ok(Self { prefix, after, limit, owners })
    }
}

/// A cursor is the last listed id, encoded; it is opaque to clients.
fn cursor(text: &str) -> Result<StreamId, ApiError> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok();
    let id = bytes.and_then(|bytes| StreamId::parse(std::str::from_utf8(&bytes).ok()?).ok());
    id.ok_or_else(|| ApiError::bad_request("invalid_cursor", "cursor is a nextCursor that this server gave"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<ListQuery, ApiError> {
        let pairs: Vec<_> = pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        ListQuery::parse(&pairs)
    }

    #[test]
    fn a_query_has_defaults_and_bounds() {
        let query = parse(&[("unknown", "x"), ("sessions", "true")]).expect("valid");
        let owners = &[Owner::Clients, Owner::Session];
        assert_eq!(query, ListQuery { prefix: String::new(), after: None, limit: 100, owners });
        assert_eq!(parse(&[("limit", "1000")]).expect("valid").limit, 1000);
        for bad in [
            ("limit", "0"),
            ("limit", "1001"),
            ("limit", "-1"),
            ("limit", "x"),
            ("sessions", "maybe"),
            ("cursor", ""),
            ("cursor", "%%%"),
            ("cursor", "_w"),
        ] {
            assert!(parse(&[bad]).is_err(), "{bad:?}");
        }
        assert!(parse(&[("limit", "1"), ("limit", "2")]).is_err());
    }
}
