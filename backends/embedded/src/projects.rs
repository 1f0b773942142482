//! Encoding of the table of projects: its changes in frames and deltas, and its rows in the checkpoint.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidings_auth::{
    AdminDigest, Change, Config, Key, Kid, LastKey, Project, ProjectState, Revocation, Subject, Table,
};

use crate::codec::{DecodeError, Reader, Writer};
use crate::field::{Field, stored};
use crate::stored_state::{Access, StoredState};

stored! {
    enum Change {
        1 => Create { project, key },
        2 => AddKey { project, key },
        3 => RemoveKey { project, kid, last },
        4 => Configure { project, config },
        5 => Remove { project },
        6 => Forget { project },
        7 => SetAdmin(digest),
        8 => Restore { project, is },
        9 => Revoke(revocation),
    }
    struct Project { keys, config, state }
    enum ProjectState {
        0 => Active,
        1 => Removing,
    }
    struct Config { cors_origins, public, hook_sources }
    struct Revocation { project, subject, topics, at }
    enum Subject {
        0 => User(id),
        1 => Token(id),
    }
    enum LastKey {
        0 => Stays,
        1 => MayGo,
    }
}

impl Field for Key {
    fn put(&self, out: &mut Vec<u8>) {
        out.text(self.reveal());
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        Self::parse(&reader.text()?).map_err(|_| DecodeError)
    }
}

impl Field for Kid {
    fn put(&self, out: &mut Vec<u8>) {
        out.text(self.as_str());
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self::named(&reader.text()?))
    }
}

impl Field for AdminDigest {
    fn put(&self, out: &mut Vec<u8>) {
        out.bytes(&self.0);
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self(reader.bytes()?[..].try_into().map_err(|_| DecodeError)?))
    }
}

impl StoredState for Table {
    fn takes_space(&self, change: &Change) -> bool {
        match change {
            Change::Create { .. } | Change::Configure { .. } | Change::Restore { .. } | Change::Revoke(_) => {
                true
            }
            // A leaked key must be replaceable when the disk is full, and a project has few keys. The digest
            // is set when a server starts.
            Change::AddKey { .. }
            | Change::SetAdmin(_)
            | Change::RemoveKey { .. }
            | Change::Remove { .. }
            | Change::Forget { .. } => false,
        }
    }

    /// Changes are rare, so all of them count as one row: that of the limit of projects, for example.
    fn conflict_keys(&self, _: &Change, touch: &mut dyn FnMut(Access, u64)) {
        let mut hasher = DefaultHasher::new();
        "projects".hash(&mut hasher);
        touch(Access::Writes, hasher.finish());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_engine::log::StateMachine;
    use tidings_model::{Pattern, ProjectId, Timestamp};

    #[test]
    fn a_dump_makes_the_same_table() {
        let id = |text| ProjectId::parse(text).expect("a valid id");
        let key = |text| Key::parse(text).expect("long enough");
        let config = Config {
            cors_origins: vec!["https://example.com".into()],
            public: vec![Pattern::parse("news/**").expect("a valid glob")],
            hook_sources: vec!["stream".into()],
        };
        let changes = [
            Change::Create { project: id("a"), key: key("first-key-of-project-a") },
            Change::AddKey { project: id("a"), key: key("second-key-of-project-a") },
            Change::Configure { project: id("a"), config: config.clone() },
            Change::Create { project: id("b"), key: key("only-key-of-project-b") },
            Change::Remove { project: id("b") },
            Change::Create { project: id("c"), key: key("only-key-of-project-c") },
            Change::Remove { project: id("c") },
            Change::Forget { project: id("c") },
            Change::AddKey { project: id("a"), key: key("third-key-of-project-a") },
            Change::RemoveKey {
                project: id("a"),
                kid: key("first-key-of-project-a").kid().clone(),
                last: LastKey::Stays,
            },
            Change::SetAdmin(AdminDigest([7; 32])),
            Change::Revoke(Revocation {
                project: id("a"),
                subject: Subject::User("alice".into()),
                topics: None,
                at: Timestamp::from_millis(7),
            }),
            Change::Revoke(Revocation {
                project: id("a"),
                subject: Subject::Token("1".into()),
                topics: Some(vec![Pattern::parse("news/**").expect("a valid glob")]),
                at: Timestamp::from_millis(8),
            }),
        ];
        let mut table = Table::default();
        play(&mut table, changes);
        let mut again = Table::default();
        play(&mut again, crate::stored_state::snapshot_of(&mut table));
        for table in [table, again] {
            let a = table.get(&id("a")).expect("there");
            let keys: Vec<_> = a.keys.iter().map(Key::reveal).collect();
            assert_eq!(keys, ["third-key-of-project-a", "second-key-of-project-a"]);
            assert_eq!(a.config, config);
            assert_eq!(table.get(&id("b")).expect("there").state, ProjectState::Removing);
            assert!(table.get(&id("c")).is_none());
            assert_eq!(table.admin(), Some(AdminDigest([7; 32])));
            assert_eq!(["a", "b"].map(|project| table.revocations(&id(project))), [2, 0]);
        }
    }

    /// Applies changes, each after an encoding round trip.
    fn play(table: &mut Table, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            let mut bytes = Vec::new();
            change.put(&mut bytes);
            let change = Change::take_whole(Reader(bytes.into())).expect("as it was written");
            table.validate(&change).expect("good");
            table.apply(change);
        }
    }
}
