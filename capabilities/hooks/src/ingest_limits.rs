//! How much a project may ingest: requests and events per minute, and events per day. Off unless configured.
//!
//! Counted by this process in monotonic time, so a restart begins anew and a step of the clock changes nothing.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tidings_model::ProjectId;

use crate::{HookError, Options};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What projects have ingested in the current windows.
#[derive(Debug, Default)]
pub(crate) struct IngestLimits(Mutex<HashMap<ProjectId, Windows>>);

#[derive(Debug, Default)]
struct Windows {
    requests: Window,
    events: Window,
    day: Window,
}

/// A fixed window of time and what was counted in it.
#[derive(Debug, Default)]
struct Window {
    began: Duration,
    count: u64,
}

impl Window {
    /// What has been counted in the window that `now` is in.
    fn at(&mut self, now: Duration, length: Duration) -> u64 {
        if now.saturating_sub(self.began) >= length {
            *self = Self { began: now, count: 0 };
        }
        self.count
    }

    fn rest(&self, now: Duration, length: Duration) -> u64 {
        (self.began + length).saturating_sub(now).as_secs().max(1)
    }
}

impl IngestLimits {
    /// Counts a request with some events, unless it would exceed a limit. `now` is monotonic.
    pub(crate) fn admit(
        &self,
        project: &ProjectId,
        events: u64,
        now: Duration,
        options: &Options,
    ) -> Result<(), HookError> {
        let Options { requests_per_minute, events_per_minute, events_per_day, .. } = *options;
        if requests_per_minute == 0 && events_per_minute == 0 && events_per_day == 0 {
            return Ok(());
        }
        let mut projects = self.0.lock().expect("nobody panics while holding it");
        let windows = projects.entry(project.clone()).or_default();
        let exceeds = |window: &mut Window, length, more, most: u64| {
            let used = window.at(now, length);
            most > 0 && used + more > most
        };
        let limited = |window: &Window, what, most| {
            Err(HookError::RateLimited { what, most, retry_after: window.rest(now, MINUTE) })
        };
        if exceeds(&mut windows.requests, MINUTE, 1, requests_per_minute) {
            return limited(&windows.requests, "requests", requests_per_minute);
        }
        if exceeds(&mut windows.events, MINUTE, events, events_per_minute) {
            return limited(&windows.events, "events", events_per_minute);
        }
        if exceeds(&mut windows.day, DAY, events, events_per_day) {
            return Err(HookError::QuotaExceeded { most: events_per_day });
        }
        windows.requests.count += 1;
        windows.events.count += events;
        windows.day.count += events;
        Ok(())
    }

    /// Takes back the events of a request that was admitted and then refused. The request itself still counts.
    pub(crate) fn take_back(&self, project: &ProjectId, events: u64) {
        let mut projects = self.0.lock().expect("nobody panics while holding it");
        if let Some(windows) = projects.get_mut(project) {
            windows.events.count = windows.events.count.saturating_sub(events);
            windows.day.count = windows.day.count.saturating_sub(events);
        }
    }

    /// Forgets a project that was removed.
    pub(crate) fn forget(&self, project: &ProjectId) {
        self.0.lock().expect("nobody panics while holding it").remove(project);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_counts_for_itself_and_a_window_ends() {
        let limits = IngestLimits::default();
        let project = ProjectId::default_project();
        let options = Options {
            requests_per_minute: 3,
            events_per_minute: 10,
            events_per_day: 15,
            ..Options::default()
        };
        let admit = |events, second| limits.admit(&project, events, Duration::from_secs(second), &options);
        assert!(admit(4, 0).is_ok());
        assert!(matches!(admit(7, 20), Err(HookError::RateLimited { what: "events", retry_after: 40, .. })));
        assert!(admit(1, 20).is_ok() && admit(1, 21).is_ok());
        assert!(matches!(admit(1, 59), Err(HookError::RateLimited { what: "requests", .. })));
        assert!(admit(9, 60).is_ok(), "a new minute");
        assert!(matches!(admit(1, 61), Err(HookError::QuotaExceeded { most: 15 })));
        let other = ProjectId::parse("other").expect("an id");
        assert!(limits.admit(&other, 1, Duration::from_secs(61), &options).is_ok());
        limits.take_back(&project, 1);
        assert!(admit(1, 62).is_ok());
        assert!(matches!(admit(1, 63), Err(HookError::QuotaExceeded { .. })), "it was one event");
        limits.take_back(&project, 1);
        assert!(admit(1, 63).is_ok());
        limits.take_back(&project, 1);
        assert!(
            matches!(admit(1, 64), Err(HookError::RateLimited { what: "requests", .. })),
            "that still counts"
        );
        limits.forget(&project);
        assert!(admit(10, 64).is_ok());
    }
}
