//! Memory for the bodies of requests: a budget for the server, and a quarter of it for each project.
//!
//! The memory of a body is reserved as it arrives, not by its announced length, and released when the request
//! was answered or its client is gone. Without that, a few clients that send slowly could hold all of the
//! memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::http::{StatusCode, header};
use tidings_engine::Metrics;
use tidings_engine::metrics::{Gauge, Name};
use tidings_model::ProjectId;
use tidings_model::limits::{self, Limit};

use crate::error::ApiError;

/// Value of `Retry-After` when the budget is used up, in seconds.
const RETRY_SECONDS: u32 = 1;

/// The budget for bodies, and how much of it is in use.
pub struct BodyBudget {
    /// Maximum bytes of all bodies together.
    limit: usize,
    in_flight: Gauge,
    usage: Mutex<Usage>,
}

#[derive(Default)]
struct Usage {
    /// Bytes in use by all bodies.
    all: usize,
    /// Bytes in use by project. Projects without any have no entry, so there are at most as many as requests.
    projects: HashMap<ProjectId, usize>,
}

impl BodyBudget {
    /// Creates a budget of `limit` bytes. Its use is shown in the metrics.
    pub fn new(limit: usize, metrics: &Metrics) -> Arc<Self> {
        let name = Name {
            name: "tidings_body_bytes_in_flight",
            help: "Memory held by request bodies in flight, in bytes.",
        };
        Arc::new(Self { limit, in_flight: metrics.gauge(name, &[]), usage: Mutex::default() })
    }

    /// Maximum bytes of the bodies of a project, or of all bodies without one.
    pub fn limit_of(&self, project: Option<&ProjectId>) -> usize {
        project.map_or(self.limit, |_| self.limit / limits::BODY_BYTES_PROJECT_PART)
    }

    /// Registers a body of which nothing has arrived yet. Requests of administration belong to no project.
    pub fn open(self: &Arc<Self>, project: Option<&ProjectId>) -> Reserved {
        Reserved { budget: self.clone(), project: project.cloned(), bytes: 0 }
    }

    fn take(&self, project: Option<&ProjectId>, more: usize) -> Result<(), ApiError> {
        let mut usage = self.usage();
        if usage.all.saturating_add(more) > self.limit {
            return Err(full("the bodies of all requests take", self.limit));
        }
        if let Some(project) = project {
            let limit = self.limit_of(Some(project));
            let before = usage.projects.get(project).copied().unwrap_or(0);
            if before.saturating_add(more) > limit {
                return Err(full("the bodies of a project's requests take", limit));
            }
            match usage.projects.get_mut(project) {
                Some(bytes) => *bytes += more,
                None => drop(usage.projects.insert(project.clone(), more)),
            }
        }
        usage.all += more;
        self.show(&usage);
        Ok(())
    }

    fn give_back(&self, project: Option<&ProjectId>, bytes: usize) {
        let mut usage = self.usage();
        usage.all -= bytes;
        if let Some(project) = project
            && let Some(left) = usage.projects.get_mut(project)
        {
            *left -= bytes;
            if *left == 0 {
                usage.projects.remove(project);
            }
        }
        self.show(&usage);
    }

    fn show(&self, usage: &Usage) {
        self.in_flight.set(i64::try_from(usage.all).unwrap_or(i64::MAX));
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().expect("nobody panics while holding it")
    }
}

fn full(what: &str, limit: usize) -> ApiError {
    let message = format!("{what} {limit} bytes at most, and others hold them; come again");
    let status = StatusCode::SERVICE_UNAVAILABLE;
    ApiError::over(Limit::BodyBytesInFlight, status, "too_many_bodies", message)
        .with(header::RETRY_AFTER, RETRY_SECONDS)
}

/// The reserved memory of one body. Dropping it releases the memory, so it is kept until the request was
/// answered.
#[must_use]
pub struct Reserved {
    budget: Arc<BodyBudget>,
    project: Option<ProjectId>,
    bytes: usize,
}

impl Reserved {
    /// Raises the reservation to `bytes` in total. It never shrinks.
    pub fn grow_to(&mut self, bytes: usize) -> Result<(), ApiError> {
        if let Some(more) = bytes.checked_sub(self.bytes).filter(|&more| more > 0) {
            self.budget.take(self.project.as_ref(), more)?;
            self.bytes = bytes;
        }
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.give_back(self.project.as_ref(), self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(name: &str) -> ProjectId {
        ProjectId::parse(name).expect("valid")
    }

    #[test]
    fn a_project_has_a_quarter_and_the_server_the_whole() {
        let metrics = Metrics::new();
        let budget = BodyBudget::new(400, &metrics);
        let held = |name: &str, bytes| {
            let mut body = budget.open(Some(&project(name)));
            body.grow_to(bytes).map(|()| body)
        };
        let first = held("a", 60).expect("within the quarter");
        assert!(held("a", 41).is_err(), "60 of 100 are taken");
        let rest = held("a", 40).expect("the rest of the quarter");
        let others: Vec<_> = ["b", "c", "d"].map(|name| held(name, 100)).into_iter().collect();
        assert!(others.iter().all(Result::is_ok));
        assert!(held("e", 1).is_err(), "the server has no more");
        assert!(budget.open(None).grow_to(1).is_err(), "not for administration either");
        assert!(metrics.text().contains("tidings_body_bytes_in_flight 400\n"));
        drop(first);
        let mut small = held("e", 10).expect("there is room again");
        assert!(small.grow_to(61).is_err());
        small.grow_to(60).expect("what it has counts once");
        drop((small, rest, others));
        let usage = budget.usage();
        assert_eq!((usage.all, usage.projects.len()), (0, 0));
    }
}
