//! Changes as events of their project, which hooks hear: `collection.<code>.<insert|update|delete>`.

use std::fmt::Write;

use bytes::Bytes;
use tidings_engine::journal::{EventRecord, event_type};
use tidings_model::Timestamp;

use crate::change::{Action, Change};
use crate::entity::{EntityCode, EntityId};

/// Source of the events, and the field that holds the code of the type.
pub const SOURCE: &str = "collection";

/// A change to be told to hooks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventOf<'a> {
    pub(crate) code: &'a EntityCode,
    pub(crate) id: &'a EntityId,
    pub(crate) action: Action,
    /// Id of the event.
    pub(crate) event_id: &'a str,
    /// Whether the same event may be entered again.
    pub(crate) may_come_again: bool,
}

impl EventOf<'_> {
    /// The event as a record of a journal.
    pub(crate) fn record(&self, at: Timestamp) -> Bytes {
        let last = match self.action {
            Action::Create => "insert",
            Action::Update => "update",
            Action::Delete => "delete",
        };
        let event_type = event_type(SOURCE, self.code.as_str(), Some(last));
        let ts = time_text(at);
        let json = serde_json::json!({
            "type": event_type, "ts": ts, SOURCE: self.code.as_str(), "docId": self.id.as_str(),
        });
        let (event_type, ts, json) = (&event_type, &ts, json.to_string());
        let Self { event_id: id, may_come_again, .. } = *self;
        EventRecord { event_type, id, may_come_again, ts, json: json.as_bytes() }.encode()
    }
}

/// Id of the event of a change that was read from a source. The same change has the same id, whoever reads it.
pub(crate) fn derived_id(change: &Change) -> String {
    use sha2::{Digest, Sha256};
    let mut digest = Sha256::new();
    for text in [change.code.as_str(), change.id.as_str()] {
        // The length comes first, so that another split of the same text has another digest.
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text);
    }
    digest.update(change.version.to_le_bytes());
    let mut id = String::from("chg_");
    for byte in &digest.finalize()[..16] {
        let _ = write!(id, "{byte:02x}");
    }
    id
}

fn time_text(at: Timestamp) -> String {
    let millis = i64::try_from(at.as_millis()).unwrap_or(i64::MAX);
    let at = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX);
    format!("{at:.3}")
}
