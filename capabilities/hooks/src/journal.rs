//! Hooks as the readers of journals: which appends of other capabilities they want to hear of.

use std::sync::Arc;

use tidings_engine::journal::{Journal, event_type};
use tidings_engine::log::{Append, Commit};
use tidings_model::{LogId, ProjectId};

use crate::ingest::time_text;
use crate::{Change, Event, Hook, Hooks};

impl Journal for Hooks {
    fn log(&self, project: &ProjectId, source: &'static str) -> Option<LogId> {
        let journal = self.0.matchers.journal(project)?;
        (self.0.sources)(project, source).then_some(journal)
    }

    fn appended(&self, journal: LogId) {
        self.0.matching.notify(journal);
    }
}

/// Something that happened to a hook, which other hooks of the project may hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// Last part of the event type, such as `endpoint.disabled`.
    pub(crate) kind: &'static str,
    /// The hook.
    pub(crate) hook: Arc<Hook>,
    /// Queue of the hook.
    pub(crate) queue: LogId,
    /// Further members of the event.
    pub(crate) details: serde_json::Map<String, serde_json::Value>,
}

impl Hooks {
    /// Adds a notice to a commit, if notices are on and the project has hooks.
    pub(crate) fn add_notice(&self, notice: &Notice, commit: &mut Commit<Change>) -> Option<LogId> {
        if !self.0.options.notices {
            return None;
        }
        let Notice { kind, hook, queue, details } = notice;
        let journal = self.0.matchers.journal(&hook.project)?;
        let kind = event_type("hook", kind, None);
        let (id, ts) = (self.fresh_id().to_string(), time_text(self.now()));
        let mut json = details.clone();
        json.insert("type".into(), kind.clone().into());
        json.insert("ts".into(), ts.clone().into());
        json.insert("subscriptionId".into(), hook.id.to_string().into());
        json.insert("pattern".into(), hook.settings.pattern.clone().into());
        let json = serde_json::Value::Object(json).to_string().into();
        let event = Event { event_type: kind, id, ts, about: Some(*queue), id_chosen: false, json };
        commit.operations.push(Append::new(journal, vec![event.to_record()]).into());
        Some(journal)
    }
}
