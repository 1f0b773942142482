//! Decides in which project a request acts whose path names none.

use axum::http::{HeaderMap, HeaderName, StatusCode};
use tidings_auth::{Action, Pass, Resource};
use tidings_hooks::pattern;
use tidings_model::ProjectId;

use crate::credential::Caller;
use crate::error::ApiError;

/// Header by which an admin acts for a tenant.
pub const TENANT_NAMESPACE: HeaderName = HeaderName::from_static("x-tenant-namespace");

/// Sender of a request, and where it acts. Its namespace is a project.
pub struct Tenant {
    /// Project in which it creates, matches and ingests.
    pub project: ProjectId,
    /// Project to which its lists and ids are confined. `None` for an admin without a tenant, who acts in all.
    pub within: Option<ProjectId>,
    /// The pass of the caller, which may become invalid.
    pub pass: Pass,
}

impl Tenant {
    /// Checks that the caller may perform an action on the hooks of its project. Counts towards the rate limit.
    pub async fn enter(caller: &Caller, headers: &HeaderMap, action: Action) -> Result<Self, ApiError> {
        let wanted = wanted(headers);
        let named = caller.names();
        let is_admin = named.is_none() && caller.may_administer().is_ok();
        // Without a valid header the caller is authenticated first, so that strangers learn nothing but that.
        let header = wanted.as_ref().ok().and_then(Option::as_ref);
        let project = named.as_ref().or(header).cloned().unwrap_or_else(ProjectId::default_project);
        let pass = match caller.may_in(&project, action, Resource::Project).await {
            // The admin key is valid in every project that there is.
            Err(error) if is_admin && error.status() == StatusCode::UNAUTHORIZED => {
                return Err(no_such_namespace(&project));
            }
            pass => pass?,
        };
        let wanted = wanted?;
        if wanted.as_ref().is_some_and(|wanted| *wanted != project) {
            return Err(admin_required());
        }
        let within = if is_admin { wanted } else { Some(project.clone()) };
        Ok(Self { project, within, pass })
    }

    /// The namespace that responses report: that of the tenant, or none.
    pub fn namespace(&self) -> Option<String> {
        namespace(&self.project)
    }
}

/// The namespace of a project. The default project is none.
pub fn namespace(project: &ProjectId) -> Option<String> {
    (*project != ProjectId::default_project()).then(|| project.as_str().to_owned())
}

/// Label of the shard of a pattern in a project: `{namespace}:{shard}`, or the shard alone.
pub fn shard_label(project: &ProjectId, text: &str) -> String {
    in_namespace(project, pattern::shard(text))
}

/// Puts the namespace of a project before the name of a shard.
pub fn in_namespace(project: &ProjectId, shard: &str) -> String {
    namespace(project).map_or_else(|| shard.to_owned(), |namespace| format!("{namespace}:{shard}"))
}

/// The namespace that a request asks for.
fn wanted(headers: &HeaderMap) -> Result<Option<ProjectId>, ApiError> {
    let mut values = headers.get_all(TENANT_NAMESPACE).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return match headers.contains_key(TENANT_NAMESPACE) {
            true => Err(invalid_namespace("X-Tenant-Namespace may be sent once")),
            false => Ok(None),
        };
    };
    let project = value.to_str().ok().and_then(|text| ProjectId::parse(text).ok());
    let message = "X-Tenant-Namespace must be the id of a project";
    project.map(Some).ok_or_else(|| invalid_namespace(message))
}

fn invalid_namespace(message: &str) -> ApiError {
    ApiError::bad_request("invalid_namespace", message)
}

fn no_such_namespace(project: &ProjectId) -> ApiError {
    let message = format!("there is no project `{project}`");
    ApiError::new(StatusCode::NOT_FOUND, "namespace_not_found", message)
}

fn admin_required() -> ApiError {
    let message = "only the admin key may act for another namespace";
    ApiError::new(StatusCode::FORBIDDEN, "admin_required", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_asked_for_once_and_is_the_id_of_a_project() {
        let asked = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(TENANT_NAMESPACE, value.parse().expect("a value"));
            }
            wanted(&headers).map(|project| project.map(|project| project.to_string()))
        };
        assert_eq!(asked(&[]).expect("valid"), None);
        assert_eq!(asked(&["acme"]).expect("valid").as_deref(), Some("acme"));
        for bad in [&["acme", "acme"][..], &[""], &["a b"], &["a/b"]] {
            assert_eq!(asked(bad).expect_err("invalid").code(), "invalid_namespace", "{bad:?}");
        }
    }

    #[test]
    fn the_label_of_a_shard_names_the_namespace_unless_it_is_the_default() {
        let acme = ProjectId::parse("acme").expect("an id");
        assert_eq!(shard_label(&acme, "webhook.stripe.*"), "acme:webhook");
        assert_eq!(shard_label(&ProjectId::default_project(), "webhook.stripe.*"), "webhook");
        assert_eq!(shard_label(&ProjectId::default_project(), "**"), "default");
        assert_eq!(
            (namespace(&acme).as_deref(), namespace(&ProjectId::default_project())),
            (Some("acme"), None)
        );
    }
}
