//! `/subscriptions/shards`: what clients ask about shards. There are none: a pattern is matched against all events of
//! its project, and a shard is only a label. So the answers are those of static sharding.

use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;
use tidings_auth::Action;
use utoipa::ToSchema;

use super::described::SubscriptionRefusals;
use super::error::Refusal;
use super::subscriptions::uncached;
use super::tenant::{Tenant, in_namespace};
use crate::credential::Caller;
use crate::error::ApiError;
use crate::path::Segments;

/// Names of the shards.
const SHARDS: [&str; 6] = ["collection", "rpc", "do", "ws", "webhook", "default"];
const UNAVAILABLE: &str = "Shard coordinator not available";

/// The shards.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShardsAnswer {
    /// Always `false`.
    dynamic_sharding_enabled: bool,
    message: String,
    /// Names of the shards.
    fallback_shards: Vec<String>,
}

/// List the shards. They are labels of patterns, without effect.
#[utoipa::path(
    get,
    path = "/subscriptions/shards",
    tag = "subscriptions",
    operation_id = "list_shards",
    responses((status = 200, description = "The shards.", body = ShardsAnswer), SubscriptionRefusals)
)]
pub async fn list(caller: Caller, headers: HeaderMap) -> Result<Response, Refusal> {
    Tenant::enter(&caller, &headers, Action::ReadHooks).await?;
    let answer = ShardsAnswer {
        dynamic_sharding_enabled: false,
        message: "Shards are labels here; sharding is static.".to_owned(),
        fallback_shards: SHARDS.map(str::to_owned).to_vec(),
    };
    Ok(uncached(StatusCode::OK, answer))
}

/// Configuration of the shards.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShardConfigAnswer {
    /// Always `false`.
    dynamic_sharding_enabled: bool,
    error: String,
}

/// Get the configuration of the shards. There is none.
#[utoipa::path(
    get,
    path = "/subscriptions/shards/config",
    tag = "subscriptions",
    operation_id = "get_shard_config",
    responses((status = 200, description = "There is no configuration.", body = ShardConfigAnswer), SubscriptionRefusals)
)]
pub async fn config(caller: Caller, headers: HeaderMap) -> Result<Response, Refusal> {
    Tenant::enter(&caller, &headers, Action::ReadHooks).await?;
    let answer = ShardConfigAnswer { dynamic_sharding_enabled: false, error: UNAVAILABLE.to_owned() };
    Ok(uncached(StatusCode::OK, answer))
}

/// Change the configuration of the shards. Always refused, because there is none.
#[utoipa::path(
    put,
    path = "/subscriptions/shards/config",
    tag = "subscriptions",
    operation_id = "change_shard_config",
    responses(SubscriptionRefusals)
)]
pub async fn change_config(caller: Caller, headers: HeaderMap) -> Refusal {
    unavailable(&caller, &headers).await
}

/// Change the number of shards. Always refused, because sharding is static.
#[utoipa::path(
    post,
    path = "/subscriptions/shards/scale",
    tag = "subscriptions",
    operation_id = "scale_shards",
    responses(SubscriptionRefusals)
)]
pub async fn scale(caller: Caller, headers: HeaderMap) -> Refusal {
    unavailable(&caller, &headers).await
}

/// Check the shards. Always refused, because there is nothing to check.
#[utoipa::path(
    post,
    path = "/subscriptions/shards/health-check",
    tag = "subscriptions",
    operation_id = "check_shards",
    responses(SubscriptionRefusals)
)]
pub async fn check(caller: Caller, headers: HeaderMap) -> Refusal {
    unavailable(&caller, &headers).await
}

async fn unavailable(caller: &Caller, headers: &HeaderMap) -> Refusal {
    match Tenant::enter(caller, headers, Action::Hooks).await {
        Ok(_) => Refusal::invalid(UNAVAILABLE),
        Err(error) => error.into(),
    }
}

/// The shards of a prefix.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrefixAnswer {
    prefix: String,
    /// Namespace of the shards; `null` for the default project.
    namespace: Option<String>,
    shards: Vec<String>,
    /// Always `false`.
    dynamic_sharding: bool,
}

/// Get the shards of a prefix: the one of its name.
#[utoipa::path(
    get,
    path = "/subscriptions/shards/{prefix}",
    tag = "subscriptions",
    operation_id = "get_shards_of_prefix",
    params(("prefix" = String, Path, description = "First segment of event types, in lower-case letters.", example = "webhook")),
    responses((status = 200, description = "The shards of the prefix.", body = PrefixAnswer), SubscriptionRefusals)
)]
pub async fn of_prefix(
    segments: Result<Segments<String>, ApiError>,
    caller: Caller,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Refusal> {
    let is_prefix = |text: &String| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase());
    let prefix = segments.ok().map(|Segments(prefix)| prefix).filter(is_prefix);
    let prefix = prefix.ok_or_else(|| Refusal::no_such_path(uri.path()))?;
    let tenant = Tenant::enter(&caller, &headers, Action::ReadHooks).await?;
    let shards = vec![in_namespace(&tenant.project, &prefix)];
    let namespace = tenant.namespace();
    Ok(uncached(StatusCode::OK, PrefixAnswer { prefix, namespace, shards, dynamic_sharding: false }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shards_are_those_that_patterns_are_labelled_with() {
        for shard in SHARDS {
            assert_eq!(tidings_hooks::pattern::shard(&format!("{shard}.**")), shard);
        }
    }
}
