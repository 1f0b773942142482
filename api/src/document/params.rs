//! Parameters that many operations have, described once.

use utoipa::IntoParams;

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub struct ProjectParam {
    /// Project id.
    #[param(example = "shop")]
    project: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub struct HookParam {
    /// Hook id.
    #[param(example = "01JCZ8T5N3QK4W8Y2V6X0ABCDE")]
    hook: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub struct SubscriptionParam {
    /// Subscription id.
    #[param(example = "01JCZ8T5N3QK4W8Y2V6X0ABCDE")]
    id: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub struct StreamSubscriptionParam {
    /// Id of the subscription, chosen by its owner.
    #[param(example = "sub-1")]
    id: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub struct TenantHeader {
    /// Namespace for which an admin acts.
    #[param(rename = "X-Tenant-Namespace")]
    x_tenant_namespace: Option<String>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub struct RoomParam {
    /// Room id.
    #[param(example = "general")]
    room: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub struct StreamParam {
    /// Stream id; it may contain slashes.
    #[param(example = "orders")]
    id: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub struct SessionParam {
    /// Session id.
    #[param(example = "user-alice")]
    session: String,
}
