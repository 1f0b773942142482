//! Entities over HTTP: publishing changes, and who watches what.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tidings_auth::{Action, Resource};
use tidings_engine::DetachOnDrop;
use tidings_entities::PublishError;
use tidings_model::ProjectId;
use tidings_model::limits;
use utoipa::ToSchema;

use super::changes;
use crate::Api;
use crate::credential::Caller;
use crate::document::params::ProjectParam;
use crate::document::{ErrorAnswer, ProjectRefusals};
use crate::error::ApiError;
use crate::path::{ProjectPath, Segments};
use crate::wire::body;

/// A change of an entity.
#[derive(Deserialize, ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct NewEntityChange {
    /// Code of the type, 1 to 100 characters without control characters.
    #[schema(example = "project", min_length = 1, max_length = 100)]
    entity_code: String,
    /// Id of the entity: a UUID if the changes of the project come from a database, otherwise 1 to 128 characters.
    #[schema(example = "0f8fad5b-d9cb-469f-a165-70867728950e", min_length = 1, max_length = 128)]
    entity_id: String,
    /// What happened to it.
    action: EntityAction,
}

/// What happened to an entity.
#[derive(Deserialize, ToSchema)]
#[schema(rename_all = "UPPERCASE")]
pub enum EntityAction {
    /// It was created.
    Create,
    /// It was changed.
    Update,
    /// It was deleted.
    Delete,
}

/// Changes that were published.
#[derive(Serialize, ToSchema)]
pub struct ChangesAnswer {
    /// Number of changes.
    #[schema(example = 1)]
    accepted: usize,
    /// Cursor after the changes. Whoever resumes there does not hear them.
    #[schema(example = "0-17")]
    cursor: String,
}

/// Publish changes of entities. They are durable when the response arrives, and then told to whoever watches the entities.
/// All are published, or none.
#[utoipa::path(
    post,
    path = "/v1/{project}/changes",
    tag = "entities",
    operation_id = "publish_changes",
    params(ProjectParam),
    request_body(content = Vec<NewEntityChange>, description = "Up to 10,000 changes, in order."),
    responses(
        (status = 200, description = "The changes were published.", body = ChangesAnswer),
        ProjectRefusals,
        (status = 400, description = "`invalid_json` or `invalid_change`: the body is not a list of changes. Or the request is malformed.", body = ErrorAnswer),
        (status = 408, description = "`body_too_slow`: the body arrived too slowly.", body = ErrorAnswer),
        (status = 413, description = "`too_many_changes` or `body_too_large`: there are too many changes, or the body is too large.", body = ErrorAnswer),
        (status = 503, description = "`source_unavailable`: the database cannot be reached. Or `too_many_connections` or `too_many_bodies`. `Retry-After` says when to try again.", body = ErrorAnswer),
        (status = 507, description = "`no_space`: the store is out of disk space.", body = ErrorAnswer),
    )
)]
pub async fn publish(
    State(api): State<Api>,
    ProjectPath(project): ProjectPath,
    caller: Caller,
    sent: Body,
) -> Result<axum::Json<ChangesAnswer>, ApiError> {
    let pass = caller.may_in(&project, Action::ChangeEntities, Resource::Project).await?;
    let (body, reserved) =
        body::bytes(sent, limits::ENTITY_CHANGES_BYTES, api.context(Some(&project))).await?;
    let entities = api.entities.project(&project);
    let changes = changes::parse(&body, entities.ids())?;
    caller.may_still(&pass).await?;
    let denied =
        changes.iter().find(|change| !pass.may_change_entity(change.code.as_str(), change.id.as_str()));
    if let Some(change) = denied {
        let message = format!("the credential does not grant `{}:{}`", change.code, change.id);
        return Err(ApiError::new(axum::http::StatusCode::FORBIDDEN, "forbidden", message));
    }
    let publishing = async move {
        let _reserved = reserved;
        entities.publish(changes).await
    };
    let published = DetachOnDrop::new(publishing).await.map_err(|error| match error {
        PublishError::TooMany { most } => changes::too_many(most),
        PublishError::Source(error) => error.into(),
    })?;
    let cursor = published.cursor.as_str().to_owned();
    Ok(axum::Json(ChangesAnswer { accepted: published.accepted, cursor }))
}

/// Subscriptions to one type.
#[derive(Serialize, ToSchema)]
pub struct EntityTypeStats {
    /// Entities that somebody is subscribed to. The whole type counts as one.
    #[schema(example = 2)]
    entities: u64,
    /// Users with subscriptions.
    #[schema(example = 1)]
    users: u64,
    /// All subscriptions.
    #[schema(example = 3)]
    subscriptions: u64,
}

/// Tell how many entities are watched, by type. Needs the scope `manage`.
#[utoipa::path(
    get,
    path = "/v1/{project}/entities/stats",
    tag = "entities",
    operation_id = "entity_stats",
    params(ProjectParam),
    responses(
        (status = 200, description = "Subscriptions by the code of the type.", body = BTreeMap<String, EntityTypeStats>),
        ProjectRefusals,
        (status = 503, description = "`source_unavailable`: the database cannot be reached. Or `too_many_connections`. `Retry-After` says when to try again.", body = ErrorAnswer),
    )
)]
pub async fn stats(
    State(api): State<Api>,
    ProjectPath(project): ProjectPath,
    caller: Caller,
) -> Result<axum::Json<BTreeMap<String, EntityTypeStats>>, ApiError> {
    caller.may_in(&project, Action::EntityStats, Resource::Project).await?;
    let stats = api.entities.project(&project).stats().await?;
    let shown = stats.into_iter().map(|(code, stats)| {
        let tidings_entities::TypeStats { entities, users, subscriptions } = stats;
        (code.as_str().to_owned(), EntityTypeStats { entities, users, subscriptions })
    });
    Ok(axum::Json(shown.collect()))
}

/// Tell how many subscriptions a user has, by type. Needs the scope `manage`.
#[utoipa::path(
    get,
    path = "/v1/{project}/entities/stats/{user}",
    tag = "entities",
    operation_id = "user_entity_stats",
    params(ProjectParam, ("user" = String, Path, description = "Id of the user, as tokens have it.", example = "alice")),
    responses(
        (status = 200, description = "Number of subscriptions by the code of the type; empty for a user without any.", body = BTreeMap<String, u64>),
        ProjectRefusals,
        (status = 503, description = "`source_unavailable`: the database cannot be reached. Or `too_many_connections`. `Retry-After` says when to try again.", body = ErrorAnswer),
    )
)]
pub async fn user_stats(
    State(api): State<Api>,
    Segments((project, user)): Segments<(String, String)>,
    caller: Caller,
) -> Result<axum::Json<BTreeMap<String, u64>>, ApiError> {
    let project = ProjectId::parse(&project)?;
    caller.may_in(&project, Action::EntityStats, Resource::Project).await?;
    let stats = api.entities.project(&project).user_stats(&user).await?;
    let shown = stats.into_iter().map(|(code, count)| (code.as_str().to_owned(), count));
    Ok(axum::Json(shown.collect()))
}
