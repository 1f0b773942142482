//! Encoding of the table of subscriptions: its changes in frames and deltas, and its rows in the checkpoint.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidings_streams::Change as StreamChange;
use tidings_subscriptions::keys::Seed;
use tidings_subscriptions::subscription::Wake;
use tidings_subscriptions::table::{Link, LinkKind, NewLink};
use tidings_subscriptions::{
    Change, Config, Delivery, Glob, Phase, State, Subscription, SubscriptionId, Table,
};

use crate::codec::{DecodeError, Reader, Writer};
use crate::field::{Field, stored};
use crate::stored_state::{Access, StoredBase, StoredState};

stored! {
    enum Change {
        1 => Streams(change),
        2 => Key { project, seed },
        3 => Create { number, subscription, most },
        4 => Link { number, links, phase },
        5 => Unlink { number, stream },
        6 => Update { number, was, state, acks },
        7 => End { number },
        8 => Clear { number, streams },
        9 => Forget { project },
        10 => Restore { number, stream, link },
    }
    struct Subscription { project, id, config, digest, root, created_at, phase, state, unlinked }
    struct Config { delivery, pattern, lease_ms, description, payload, max_attempts }
    enum Delivery {
        0 => Webhook { url },
        1 => PullWake { stream },
    }
    enum Phase {
        0 => Linking { after },
        1 => Active,
        2 => Ended,
    }
    struct State { version, generation, wake, failures, next_attempt_at, last_error, dead_since }
    struct Wake { id, announced, holder, lease_until }
    struct Link { log, acked, glob, explicit }
    struct NewLink { stream, log, acked, kind }
    enum LinkKind {
        0 => Glob,
        1 => Explicit,
    }
}

impl Field for SubscriptionId {
    fn put(&self, out: &mut Vec<u8>) {
        out.text(self.as_str());
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        Self::parse(&reader.text()?).map_err(|_| DecodeError)
    }
}

impl Field for Glob {
    fn put(&self, out: &mut Vec<u8>) {
        out.text(self.as_str());
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        Self::parse(&reader.text()?).map_err(|_| DecodeError)
    }
}

impl Field for Seed {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        let bytes = reader.exactly(Self::BYTES)?.as_ref().try_into().map_err(|_| DecodeError)?;
        Ok(Self::from_bytes(bytes))
    }
}

impl StoredState for Table {
    fn takes_space(&self, change: &Change) -> bool {
        match change {
            Change::Key { .. } | Change::Create { .. } | Change::Link { .. } | Change::Restore { .. } => true,
            // What workers did is recorded also when space is low. The table of streams decides about its own.
            Change::Streams(_)
            | Change::Unlink { .. }
            | Change::Update { .. }
            | Change::End { .. }
            | Change::Clear { .. }
            | Change::Forget { .. } => false,
        }
    }

    fn conflict_keys(&self, change: &Change, touch: &mut dyn FnMut(Access, u64)) {
        match change {
            Change::Streams(_) => {}
            Change::Key { project, .. } | Change::Forget { project } => {
                touch(Access::Writes, hash(("key", project)));
            }
            Change::Create { number, subscription, .. } => {
                touch(Access::Writes, hash(number));
                // For its id, and for the number of subscriptions.
                touch(Access::Writes, hash(("project", &subscription.project)));
            }
            Change::Link { number, .. }
            | Change::Unlink { number, .. }
            | Change::Update { number, .. }
            | Change::End { number }
            | Change::Clear { number, .. }
            | Change::Restore { number, .. } => touch(Access::Writes, hash(number)),
        }
        if let Change::End { number } = change
            && let Some(subscription) = self.get(*number)
        {
            touch(Access::Writes, hash(("project", &subscription.project)));
        }
    }
}

impl StoredBase<tidings_streams::Table> for Table {
    /// What becomes of links when a stream begins or ends is not validated, and is right in any order.
    fn base_conflict_keys(_: &StreamChange, _: &mut dyn FnMut(Access, u64)) {}
}

fn hash(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("subscriptions", what).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidings_model::{LogId, Position, ProjectId, StreamId, Timestamp};

    use super::*;

    fn stream(id: &str) -> StreamId {
        StreamId::parse(id).expect("an id")
    }

    #[test]
    fn what_is_written_is_read_again() {
        let project = ProjectId::parse("shop").expect("an id");
        let wake = Wake {
            id: "w_1".into(),
            announced: true,
            holder: Some("worker".into()),
            lease_until: Some(Timestamp::from_millis(9)),
        };
        let state = State {
            version: 3,
            generation: 2,
            wake: Some(wake),
            failures: 1,
            next_attempt_at: Some(Timestamp::from_millis(8)),
            last_error: Some("500".into()),
            dead_since: Some(Timestamp::from_millis(7)),
        };
        let config = Config {
            delivery: Delivery::PullWake { stream: stream("wake") },
            pattern: Some(Glob::parse("a/**").expect("a glob")),
            lease_ms: 1001,
            description: Some("words".into()),
            payload: true,
            max_attempts: 5,
        };
        let subscription = Subscription {
            project: project.clone(),
            id: SubscriptionId::parse("s/1").expect("an id"),
            config: Arc::new(config),
            digest: "d".into(),
            root: "http://localhost/v1/stream".into(),
            created_at: Timestamp::from_millis(5),
            phase: Phase::Linking { after: Some(stream("b")) },
            state: state.clone(),
            unlinked: 4,
        };
        let number = LogId::new(7);
        let link = Link { log: Some(LogId::new(3)), acked: Position::new(9), glob: true, explicit: false };
        let new = NewLink { stream: stream("a"), log: None, acked: Position::ZERO, kind: LinkKind::Explicit };
        let phase = Some((Phase::Linking { after: None }, Phase::Active));
        let changes = [
            Change::Key { project: project.clone(), seed: Seed::from_bytes([9; 32]) },
            Change::Create { number, subscription: Arc::new(subscription), most: 3 },
            Change::Link { number, links: vec![new], phase },
            Change::Unlink { number, stream: stream("a") },
            Change::Update { number, was: 2, state, acks: vec![(stream("a"), Position::new(4))] },
            Change::End { number },
            Change::Clear { number, streams: vec![stream("a")] },
            Change::Forget { project },
            Change::Restore { number, stream: stream("a"), link },
        ];
        for change in changes {
            let mut bytes = Vec::new();
            change.put(&mut bytes);
            let again = Change::take_whole(Reader(bytes.clone().into())).expect("as it was written");
            let mut twice = Vec::new();
            again.put(&mut twice);
            assert_eq!(bytes, twice);
            assert_eq!(format!("{again:?}"), format!("{change:?}"));
        }
    }
}
