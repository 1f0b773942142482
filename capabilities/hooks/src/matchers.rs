//! Which hooks hear an event. State in memory that follows the tables, whichever node changed them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use serde_json::Value;
use tidings_engine::log::Observer;
use tidings_engine::matching::Matcher;
use tidings_model::{LogId, Pattern, ProjectId};

use crate::delivery::IdMask;
use crate::event::Event;
use crate::filter::Filter;
use crate::hook::Hook;
use crate::pattern;
use crate::table::{Change, Table};

/// Matchers of all projects.
#[derive(Default)]
pub struct Matchers {
    projects: RwLock<HashMap<ProjectId, Arc<ProjectMatcher>>>,
    journals: RwLock<HashMap<ProjectId, LogId>>,
    /// The hooks as they were applied last, by their queues.
    hooks: RwLock<HashMap<LogId, Arc<Hook>>>,
}

/// The active hooks of a project.
#[derive(Default)]
pub struct ProjectMatcher {
    /// Number of hooks, active or not.
    hooks: AtomicUsize,
    patterns: Matcher<LogId>,
    /// Filters of the hooks that have one.
    filters: RwLock<HashMap<LogId, Arc<Filter>>>,
}

impl Matchers {
    /// The matcher of a project, if it has hooks.
    pub fn of(&self, project: &ProjectId) -> Option<Arc<ProjectMatcher>> {
        self.projects.read().expect("nobody panics while writing").get(project).cloned()
    }

    /// The journal of a project, if it has one and any hooks. An inactive hook counts: it can be given later what it
    /// missed.
    pub fn journal(&self, project: &ProjectId) -> Option<LogId> {
        let journal = self.journals.read().expect("nobody panics while writing").get(project).copied()?;
        self.of(project).filter(|project| project.hooks.load(Ordering::Relaxed) > 0).map(|_| journal)
    }

    /// The mask of all hooks, if there are any.
    pub fn id_mask(&self) -> Option<IdMask> {
        let hooks = self.hooks.read().expect("nobody panics while writing");
        hooks.values().next().map(|hook| hook.id_mask)
    }

    /// Compacts the matchers that are due. Takes as long as it takes to build the largest of them, so it belongs on a
    /// thread that may block.
    pub fn compact(&self) {
        let projects = self.projects.read().expect("nobody panics while writing");
        let due: Vec<_> =
            projects.values().filter(|project| project.patterns.compact_due()).cloned().collect();
        drop(projects);
        due.iter().for_each(|project| project.patterns.compact());
    }

    fn project(&self, project: &ProjectId) -> Arc<ProjectMatcher> {
        self.projects
            .write()
            .expect("nobody panics while writing")
            .entry(project.clone())
            .or_default()
            .clone()
    }

    fn set(&self, queue: LogId, hook: Option<&Arc<Hook>>) {
        let mut hooks = self.hooks.write().expect("nobody panics while writing");
        let before = match hook {
            Some(hook) => hooks.insert(queue, hook.clone()),
            None => hooks.remove(&queue),
        };
        drop(hooks);
        match (&before, hook) {
            (None, Some(new)) => {
                self.project(&new.project).hooks.fetch_add(1, Ordering::Relaxed);
            }
            (Some(gone), None) => {
                self.project(&gone.project).hooks.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
        let heard = |hook: &&Arc<Hook>| hook.is_active();
        let (before, now) = (before.as_ref().filter(heard), hook.filter(heard));
        let Some(project) = before.or(now).map(|hook| self.project(&hook.project)) else { return };
        project.set_filter(queue, now.and_then(|hook| hook.settings.parsed_filter()));
        let text = |hook: &Arc<Hook>| hook.settings.pattern.clone();
        if before.map(text) == now.map(text) {
            return;
        }
        if let Some(before) = before {
            project.patterns.remove(&pattern::matching(&before.settings.pattern), queue);
        }
        if let Some(now) = now {
            project.patterns.insert(&pattern::matching(&now.settings.pattern), queue);
        }
    }
}

impl ProjectMatcher {
    /// Queues of the hooks whose patterns match an event type, in ascending order.
    pub fn matches_type(&self, event_type: &str, queues: &mut Vec<LogId>) {
        self.patterns.matches(event_type, queues);
    }

    /// Whether another pattern keeps the work that one event can cause within its limit.
    pub fn admits(&self, pattern: &Pattern) -> bool {
        self.patterns.admits(pattern)
    }

    /// Queues of the hooks that hear an event, in ascending order.
    pub fn matches(&self, event: &Event, queues: &mut Vec<LogId>) {
        self.matches_type(&event.event_type, queues);
        if let Some(about) = event.about {
            queues.retain(|queue| *queue != about);
        }
        let filters = self.filters.read().expect("nobody panics while writing");
        if filters.is_empty() {
            return;
        }
        let mut value: Option<Value> = None;
        queues.retain(|queue| match filters.get(queue) {
            None => true,
            Some(filter) => filter.accepts(value.get_or_insert_with(|| event.value())),
        });
    }

    fn set_filter(&self, queue: LogId, filter: Option<Filter>) {
        let mut filters = self.filters.write().expect("nobody panics while writing");
        match filter {
            Some(filter) => filters.insert(queue, Arc::new(filter)),
            None => filters.remove(&queue),
        };
    }
}

impl Observer<Table> for Matchers {
    fn begin(&self, table: &Table) {
        let mut patterns: HashMap<ProjectId, (usize, Vec<_>)> = HashMap::new();
        let mut hooks = HashMap::with_capacity(table.len());
        for (queue, hook) in table.hooks() {
            hooks.insert(queue, hook.clone());
            let (count, patterns) = patterns.entry(hook.project.clone()).or_default();
            *count += 1;
            if hook.is_active() {
                patterns.push((pattern::matching(&hook.settings.pattern), queue));
            }
        }
        let built = |(project, (count, patterns)): (ProjectId, (usize, Vec<_>))| {
            let (hooks, patterns) = (AtomicUsize::new(count), Matcher::from_iter(patterns));
            (project, Arc::new(ProjectMatcher { hooks, patterns, filters: RwLock::default() }))
        };
        let journals = table.feeds().map(|(project, feed)| (project.clone(), feed.journal)).collect();
        *self.journals.write().expect("nobody panics while writing") = journals;
        let projects: HashMap<_, _> = patterns.into_iter().map(built).collect();
        for (queue, hook) in &hooks {
            if let (true, Some(filter)) = (hook.is_active(), hook.settings.parsed_filter()) {
                projects[&hook.project].set_filter(*queue, Some(filter));
            }
        }
        *self.projects.write().expect("nobody panics while writing") = projects;
        *self.hooks.write().expect("nobody panics while writing") = hooks;
    }

    fn applied(&self, change: &Change) {
        match change {
            Change::Create { queue, hook, .. } | Change::Set { queue, hook, .. } => {
                self.set(*queue, Some(hook))
            }
            Change::Deactivate { queue, since, at } => {
                let hooks = self.hooks.read().expect("nobody panics while writing");
                let inactive = hooks
                    .get(queue)
                    .filter(|hook| hook.is_active())
                    .map(|hook| hook.deactivated(*since, *at));
                drop(hooks);
                if let Some(hook) = inactive {
                    self.set(*queue, Some(&Arc::new(hook)));
                }
            }
            Change::Remove { queue } => self.set(*queue, None),
            Change::Open { project, feed } => {
                let mut journals = self.journals.write().expect("nobody panics while writing");
                journals.insert(project.clone(), feed.journal);
            }
            Change::Close { project } => {
                self.journals.write().expect("nobody panics while writing").remove(project);
                self.projects.write().expect("nobody panics while writing").remove(project);
            }
            Change::Expect { .. }
            | Change::Advance { .. }
            | Change::Settle { .. }
            | Change::Forget { .. }
            | Change::BeginReplay { .. }
            | Change::AdvanceReplay { .. }
            | Change::RestoreProgress { .. }
            | Change::RestoreReplay { .. } => {}
        }
    }
}
