//! Subscriptions to streams over HTTP, as the Durable Streams protocol has them: `{root}/__ds/…`, where `{root}` is `/v1/stream` or
//! `/v1/{project}/stream`.
//!
//! `owners` has what owners do, `workers` what workers do, `request` reads their bodies, `shown` writes what they are shown,
//! `error` has the codes of the protocol, and `described` what the OpenAPI description says beside the handlers.

mod described;
mod error;
mod owners;
mod request;
mod shown;
mod workers;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::routing::{delete, get, post};
use tidings_model::{ProjectId, StreamId};
use tidings_subscriptions::SubscriptionId;
use utoipa::OpenApi;

pub(crate) use self::error::Refusal;
use crate::capability::Capability;
use crate::error::ApiError;
use crate::routes::Routes;

/// What subscriptions bring to the interface.
pub const CAPABILITY: Capability = Capability::new(routes, Description::openapi);

/// What is described of subscriptions.
#[derive(OpenApi)]
#[openapi(
    paths(
        owners::create,
        owners::get,
        owners::remove,
        owners::list,
        owners::add_streams,
        owners::remove_stream,
        owners::retry,
        owners::keys,
        workers::callback,
        workers::claim,
        workers::ack,
        workers::release,
    ),
    components(schemas(described::StreamSubscriptionError))
)]
struct Description;

/// Adds the routes below a root.
macro_rules! routes_below {
    ($routes:expr, $root:literal) => {
        $routes
            .route(concat!($root, "/__ds/jwks.json"), get(owners::keys))
            .route(concat!($root, "/__ds/subscriptions"), get(owners::list))
            .route(
                concat!($root, "/__ds/subscriptions/{id}"),
                get(owners::get).put(owners::create).delete(owners::remove),
            )
            .route(concat!($root, "/__ds/subscriptions/{id}/streams"), post(owners::add_streams))
            .route(
                concat!($root, "/__ds/subscriptions/{id}/streams/{*stream}"),
                delete(owners::remove_stream),
            )
            .route(concat!($root, "/__ds/subscriptions/{id}/retry"), post(owners::retry))
            .route(concat!($root, "/__ds/subscriptions/{id}/callback"), post(workers::callback))
            .route(concat!($root, "/__ds/subscriptions/{id}/claim"), post(workers::claim))
            .route(concat!($root, "/__ds/subscriptions/{id}/ack"), post(workers::ack))
            .route(concat!($root, "/__ds/subscriptions/{id}/release"), post(workers::release))
    };
}

fn routes(routes: Routes) -> Routes {
    let routes = routes_below!(routes, "/v1/stream");
    routes_below!(routes, "/v1/{project}/stream")
}

/// What the path of a request names.
struct Named {
    project: ProjectId,
    id: Option<String>,
    stream: Option<String>,
}

impl Named {
    /// The subscription that is named.
    fn subscription(&self) -> Result<SubscriptionId, Refusal> {
        SubscriptionId::parse(self.id.as_deref().unwrap_or_default()).map_err(Refusal::invalid)
    }

    /// The stream that is named.
    fn stream(&self) -> Result<StreamId, Refusal> {
        request::stream(self.stream.as_deref().unwrap_or_default())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Path(pairs) = Path::<Vec<(String, String)>>::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::bad_request("invalid_path", error.body_text()))?;
        let mut named = Self { project: ProjectId::default_project(), id: None, stream: None };
        for (name, value) in pairs {
            match name.as_str() {
                "project" => named.project = ProjectId::parse(&value).map_err(ApiError::from)?,
                "id" => named.id = Some(value),
                _ => named.stream = Some(value),
            }
        }
        Ok(named)
    }
}
