//! Hooks over HTTP: events that come in, and subscriptions to them.
//!
//! There are two interfaces to the same hooks. `/subscriptions/…`, `/e` and `/ingest` are those of events.do: read
//! `tenant` (who acts, in which project), `subscriptions` and `records`, `shards`, and `error` (their formats of errors).
//! `/v1/{project}/hooks` and `/v1/{project}/events` are in `project`, `project_records`, `pull` and `stream_subscriptions`. Both
//! share `ingest`, `settings` (what a client may choose), `request` (other bodies and queries), `shown` (what responses show) and
//! `described` (what the OpenAPI description says beside the handlers).

mod described;
mod error;
mod ingest;
mod project;
mod project_records;
mod pull;
mod records;
mod request;
mod settings;
mod shards;
mod shown;
mod stream_subscriptions;
mod subscriptions;
mod tenant;

use axum::extract::Request;
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::future::BoxFuture;
use tidings_model::ProjectId;
use utoipa::OpenApi;

use self::error::{IngestRefusal, Refusal};
use crate::Api;
use crate::capability::{Capability, Preflight, Unserved};
use crate::fast_path::{self, Admitted, FastHandler};
use crate::routes::Routes;

/// What hooks bring to the interface.
pub const CAPABILITY: Capability = Capability {
    fast_path,
    project_of_token: |path| names_no_project(path).then_some(Preflight::DefaultProject),
    unserved,
    ..Capability::new(routes, Description::openapi)
};

/// What is described of hooks.
#[derive(OpenApi)]
#[openapi(
    paths(
        ingest::ingest,
        ingest::ingest_deprecated,
        ingest::ingest_into_project,
        subscriptions::subscribe,
        subscriptions::unsubscribe,
        subscriptions::reactivate,
        subscriptions::list,
        subscriptions::matching,
        subscriptions::status,
        subscriptions::get,
        subscriptions::change,
        subscriptions::remove,
        records::deliveries,
        records::logs,
        records::dead_letters,
        records::retry,
        records::retry_all,
        records::rotate_secret,
        records::replay,
        records::clean_up,
        shards::list,
        shards::config,
        shards::change_config,
        shards::scale,
        shards::check,
        shards::of_prefix,
        project::create,
        project::list,
        project::matching,
        project::get,
        project::change,
        project::remove,
        project::pause,
        project::resume,
        project::rotate_secret,
        project::test,
        project_records::deliveries,
        project_records::attempts,
        project_records::dead_letters,
        project_records::retry,
        project_records::retry_all,
        project_records::replay,
        project_records::clean_up,
        pull::pull,
        stream_subscriptions::list,
        stream_subscriptions::retry
    ),
    components(schemas(described::SubscriptionErrorAnswer, described::IngestErrorAnswer))
)]
struct Description;

/// Path of the subscriptions.
const SUBSCRIPTIONS: &str = "/subscriptions";
/// Where events are submitted.
const INGEST: &str = "/e";
/// Older name of [`INGEST`].
const INGEST_DEPRECATED: &str = "/ingest";
/// Where events are submitted to a project.
const EVENTS: &str = "/v1/{project}/events";

#[expect(deprecated, reason = "clients still use the older name")]
fn routes(routes: Routes) -> Routes {
    routes
        .route(INGEST, post(ingest::ingest))
        .route(INGEST_DEPRECATED, post(ingest::ingest_deprecated))
        .route(EVENTS, post(ingest::ingest_into_project))
        .route("/subscriptions/subscribe", post(subscriptions::subscribe))
        .route("/subscriptions/unsubscribe", post(subscriptions::unsubscribe))
        .route("/subscriptions/reactivate", post(subscriptions::reactivate))
        .route("/subscriptions/list", get(subscriptions::list))
        .route("/subscriptions/match", get(subscriptions::matching))
        .route("/subscriptions/cleanup", post(records::clean_up))
        .route("/subscriptions/status/{id}", get(subscriptions::status))
        .route("/subscriptions/deliveries/{id}/logs", get(records::logs))
        .route("/subscriptions/shards", get(shards::list))
        .route("/subscriptions/shards/config", get(shards::config).put(shards::change_config))
        .route("/subscriptions/shards/scale", post(shards::scale))
        .route("/subscriptions/shards/health-check", post(shards::check))
        .route("/subscriptions/shards/{prefix}", get(shards::of_prefix))
        .route(
            "/subscriptions/{id}",
            get(subscriptions::get).put(subscriptions::change).delete(subscriptions::remove),
        )
        .route("/subscriptions/{id}/deliveries", get(records::deliveries))
        .route("/subscriptions/{id}/rotate-secret", post(records::rotate_secret))
        .route("/subscriptions/{id}/replay", post(records::replay))
        .route("/subscriptions/{id}/dead-letters", get(records::dead_letters))
        .route("/subscriptions/{id}/dead-letters/retry", post(records::retry_all))
        .route("/subscriptions/{id}/dead-letters/{letter}/retry", post(records::retry))
        .route("/v1/{project}/hooks", get(project::list).post(project::create))
        .route("/v1/{project}/hooks/match", get(project::matching))
        .route("/v1/{project}/hooks/cleanup", post(project_records::clean_up))
        .route("/v1/{project}/hooks/subscriptions", get(stream_subscriptions::list))
        .route("/v1/{project}/hooks/subscriptions/{id}/retry", post(stream_subscriptions::retry))
        .route("/v1/{project}/hooks/{hook}", get(project::get).patch(project::change).delete(project::remove))
        .route("/v1/{project}/hooks/{hook}/events", get(pull::pull))
        .route("/v1/{project}/hooks/{hook}/pause", post(project::pause))
        .route("/v1/{project}/hooks/{hook}/resume", post(project::resume))
        .route("/v1/{project}/hooks/{hook}/rotate-secret", post(project::rotate_secret))
        .route("/v1/{project}/hooks/{hook}/test", post(project::test))
        .route("/v1/{project}/hooks/{hook}/replay", post(project_records::replay))
        .route("/v1/{project}/hooks/{hook}/deliveries", get(project_records::deliveries))
        .route("/v1/{project}/hooks/{hook}/deliveries/{delivery}/attempts", get(project_records::attempts))
        .route("/v1/{project}/hooks/{hook}/dead-letters", get(project_records::dead_letters))
        .route("/v1/{project}/hooks/{hook}/dead-letters/retry", post(project_records::retry_all))
        .route("/v1/{project}/hooks/{hook}/dead-letters/{letter}/retry", post(project_records::retry))
}

/// Submitted events.
fn fast_path(api: &Api, request: &mut Request) -> Option<BoxFuture<'static, Response>> {
    if request.method() != Method::POST {
        return None;
    }
    let (template, ingesting) = Ingesting::at(request.uri().path())?;
    Some(fast_path::serve(api, template, request, ingesting))
}

/// Where events are submitted.
enum Ingesting {
    /// At [`INGEST`].
    Canonical,
    /// At [`INGEST_DEPRECATED`].
    Deprecated,
    /// To a project.
    Project(ProjectId),
}

impl Ingesting {
    /// Where a path submits events, with the template of the path. What is not plain is for the router.
    fn at(path: &str) -> Option<(&'static str, Self)> {
        match path {
            INGEST => Some((INGEST, Self::Canonical)),
            INGEST_DEPRECATED => Some((INGEST_DEPRECATED, Self::Deprecated)),
            _ => {
                let project = path.strip_prefix("/v1/")?.strip_suffix("/events")?;
                let project = ProjectId::parse(project).ok().filter(|project| !project.is_reserved())?;
                Some((EVENTS, Self::Project(project)))
            }
        }
    }
}

impl FastHandler for Ingesting {
    async fn answer(&self, request: Admitted<'_>) -> Response {
        let Admitted { api, caller, headers, body } = request;
        match self {
            Self::Canonical => ingest::ingest_from(api, caller, headers, body).await.into_response(),
            Self::Deprecated => {
                ingest::deprecated(ingest::ingest_from(api, caller, headers, body).await.into_response())
            }
            Self::Project(project) => ingest::ingest_into(api, project, caller, body).await.into_response(),
        }
    }
}

fn names_no_project(path: &str) -> bool {
    is_of_subscriptions(path) || path == INGEST || path == INGEST_DEPRECATED
}

fn is_of_subscriptions(path: &str) -> bool {
    path.strip_prefix(SUBSCRIPTIONS).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Answers requests that have no handler in the formats that clients of these paths know.
fn unserved(path: &str, why: Unserved) -> Option<Response> {
    match why {
        Unserved::Path if is_of_subscriptions(path) => Some(Refusal::no_such_path(path).into_response()),
        Unserved::Method if is_of_subscriptions(path) => Some(Refusal::no_such_method().into_response()),
        Unserved::Method if path == INGEST => Some(IngestRefusal::no_such_method().into_response()),
        Unserved::Method if path == INGEST_DEPRECATED => {
            Some(ingest::deprecated(IngestRefusal::no_such_method().into_response()))
        }
        Unserved::Path | Unserved::Method => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_without_a_project_are_those_of_subscriptions_and_ingest() {
        for path in ["/e", "/ingest", "/subscriptions", "/subscriptions/", "/subscriptions/list"] {
            assert!(names_no_project(path), "{path}");
        }
        for path in ["/", "/events", "/e/", "/ingest/x", "/subscriptionsx", "/v1/app/hooks"] {
            assert!(!names_no_project(path), "{path}");
        }
    }

    #[test]
    fn only_plain_paths_of_ingest_have_a_fast_path() {
        let template = |path| Ingesting::at(path).map(|(template, _)| template);
        assert_eq!((template("/e"), template("/ingest")), (Some(INGEST), Some(INGEST_DEPRECATED)));
        assert_eq!(template("/v1/app/events"), Some(EVENTS));
        for other in [
            "/e/",
            "/v1/app/events/",
            "/v1//events",
            "/v1/events",
            "/v1/a%20b/events",
            "/v1/app/rooms/r/events",
            "/v1/projects/events",
            "/v1/stream/events",
            "/events",
        ] {
            assert_eq!(template(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_not_served_is_told_in_the_format_of_its_path() {
        let status = |path, why| unserved(path, why).map(|response| response.status().as_u16());
        assert_eq!(status("/subscriptions/x/y", Unserved::Path), Some(404));
        assert_eq!(status("/subscriptions/list", Unserved::Method), Some(405));
        assert_eq!(
            (status("/e", Unserved::Method), status("/ingest", Unserved::Method)),
            (Some(405), Some(405))
        );
        assert_eq!(status("/v1/app/hooks", Unserved::Method), None);
        assert_eq!(status("/other", Unserved::Path), None);
    }
}
