//! Extracts the room of a path and the parameters of a query.

use axum::extract::{FromRequestParts, Query};
use axum::http::Uri;
use axum::http::request::Parts;
use tidings_model::ProjectId;

use super::error::Refusal;
use crate::path::Segments;
use crate::wire::query;

/// The project and the room that a path names. The room's id is validated later, after authentication.
pub struct RoomPath(pub ProjectId, pub String);

impl<S: Send + Sync> FromRequestParts<S> for RoomPath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Segments((project, room)) =
            Segments::<(String, String)>::from_request_parts(parts, state).await?;
        Ok(Self(ProjectId::parse(&project)?, room))
    }
}

/// The parameters of a query. Unknown ones are ignored.
pub struct Pairs(Vec<(String, String)>);

impl Pairs {
    /// Parses the query of an address.
    pub fn of(uri: &Uri) -> Result<Self, Refusal> {
        let pairs = Query::try_from_uri(uri).map_err(|error| Refusal::invalid(error.body_text()))?;
        Ok(Self(pairs.0))
    }

    /// The value of a parameter that may occur at most once.
    pub fn once(&self, name: &str) -> Result<Option<&str>, Refusal> {
        Ok(query::once(&self.0, name)?)
    }

    /// Whether a flag is set; the default is false.
    pub fn flag(&self, name: &str) -> Result<bool, Refusal> {
        match self.once(name)? {
            None | Some("0" | "false") => Ok(false),
            Some("1" | "true") => Ok(true),
            Some(_) => Err(Refusal::invalid(format!("`{name}` is 1 or 0"))),
        }
    }
}
