//! How the table of projects is kept.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidings_auth::table::Row;
use tidings_auth::{AdminDigest, Change, Config, Key, Kid, LastKey, Project, ProjectState, Table};
use tidings_model::{Pattern, ProjectId};

use crate::codec::{DecodeError, Reader, Writer};
use crate::stored_state::{Access, StoredState};

const CREATE: u8 = 1;
const ADD_KEY: u8 = 2;
const REMOVE_KEY: u8 = 3;
const CONFIGURE: u8 = 4;
const REMOVE: u8 = 5;
const FORGET: u8 = 6;
const SET_ADMIN: u8 = 7;
const RESTORE: u8 = 8;

impl StoredState for Table {
    type Row = Row;

    fn encode(change: &Change, out: &mut Vec<u8>) {
        match change {
            Change::Create { project, key } => {
                put_head(out, CREATE, project);
                out.text(key.reveal());
            }
            Change::AddKey { project, key } => {
                put_head(out, ADD_KEY, project);
                out.text(key.reveal());
            }
            Change::RemoveKey { project, kid, last: _ } => {
                put_head(out, REMOVE_KEY, project);
                out.text(kid.as_str());
            }
            Change::Configure { project, config } => {
                put_head(out, CONFIGURE, project);
                put_config(out, config);
            }
            Change::Remove { project } => put_head(out, REMOVE, project),
            Change::Forget { project } => put_head(out, FORGET, project),
            Change::SetAdmin(digest) => {
                out.byte(SET_ADMIN);
                out.bytes(&digest.0);
            }
            Change::Restore { project, is } => {
                put_head(out, RESTORE, project);
                put_project(out, is);
            }
        }
    }

    fn decode(mut reader: Reader) -> Result<Change, DecodeError> {
        let tag = reader.byte()?;
        let change = if tag == SET_ADMIN {
            Change::SetAdmin(AdminDigest(reader.bytes()?[..].try_into().map_err(|_| DecodeError)?))
        } else {
            let project = ProjectId::parse(&reader.text()?).map_err(|_| DecodeError)?;
            match tag {
                CREATE => Change::Create { project, key: take_key(&mut reader)? },
                ADD_KEY => Change::AddKey { project, key: take_key(&mut reader)? },
                REMOVE_KEY => {
                    // It was validated when it was made.
                    Change::RemoveKey { project, kid: Kid::named(&reader.text()?), last: LastKey::MayGo }
                }
                CONFIGURE => Change::Configure { project, config: take_config(&mut reader)? },
                REMOVE => Change::Remove { project },
                FORGET => Change::Forget { project },
                RESTORE => Change::Restore { project, is: take_project(&mut reader)? },
                _ => return Err(DecodeError),
            }
        };
        if reader.is_empty() { Ok(change) } else { Err(DecodeError) }
    }

    fn takes_space(&self, change: &Change) -> bool {
        match change {
            Change::Create { .. } | Change::Configure { .. } | Change::Restore { .. } => true,
            // A key that has leaked is replaced also when the disk is full; a project has few of them. The digest is set
            // when a server starts.
            Change::AddKey { .. }
            | Change::SetAdmin(_)
            | Change::RemoveKey { .. }
            | Change::Remove { .. }
            | Change::Forget { .. } => false,
        }
    }

    fn begin_snapshot(&mut self) {
        Table::begin_snapshot(self);
    }

    fn next_rows(&mut self, most: usize) -> Option<Vec<Row>> {
        Table::next_rows(self, most)
    }

    fn end_snapshot(&mut self) {
        Table::end_snapshot(self);
    }

    fn restore(row: Row, change: &mut dyn FnMut(Change)) {
        change(row.restored());
    }

    /// Changes are rare, so all of them count as one row: that of the limit of projects, for example.
    fn conflict_keys(&self, _: &Change, touch: &mut dyn FnMut(Access, u64)) {
        let mut hasher = DefaultHasher::new();
        "projects".hash(&mut hasher);
        touch(Access::Writes, hasher.finish());
    }
}

fn put_head(out: &mut Vec<u8>, tag: u8, project: &ProjectId) {
    out.byte(tag);
    out.text(project.as_str());
}

fn take_key(reader: &mut Reader) -> Result<Key, DecodeError> {
    Key::parse(&reader.text()?).map_err(|_| DecodeError)
}

fn put_project(out: &mut Vec<u8>, project: &Project) {
    let Project { keys, config, state } = project;
    out.number(keys.len() as u64);
    for key in keys {
        out.text(key.reveal());
    }
    put_config(out, config);
    out.byte(u8::from(*state == ProjectState::Removing));
}

fn take_project(reader: &mut Reader) -> Result<Project, DecodeError> {
    Ok(Project {
        keys: (0..reader.count()?).map(|_| take_key(reader)).collect::<Result<_, _>>()?,
        config: take_config(reader)?,
        state: if reader.byte()? == 0 { ProjectState::Active } else { ProjectState::Removing },
    })
}

fn put_config(out: &mut Vec<u8>, config: &Config) {
    let Config { cors_origins, public, hook_sources } = config;
    put_texts(out, cors_origins.iter().map(|origin| &**origin));
    put_texts(out, public.iter().map(Pattern::as_str));
    put_texts(out, hook_sources.iter().map(|source| &**source));
}

fn take_config(reader: &mut Reader) -> Result<Config, DecodeError> {
    let cors_origins = take_texts(reader)?.into_iter().map(Into::into).collect();
    let pattern = |text: String| Pattern::parse(&text).map_err(|_| DecodeError);
    let public = take_texts(reader)?.into_iter().map(pattern).collect::<Result<_, _>>()?;
    Ok(Config {
        cors_origins,
        public,
        hook_sources: take_texts(reader)?.into_iter().map(Into::into).collect(),
    })
}

fn put_texts<'a>(out: &mut Vec<u8>, texts: impl ExactSizeIterator<Item = &'a str>) {
    out.number(texts.len() as u64);
    for text in texts {
        out.text(text);
    }
}

fn take_texts(reader: &mut Reader) -> Result<Vec<String>, DecodeError> {
    (0..reader.count()?).map(|_| reader.text()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_engine::log::StateMachine;

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
        }
    }

    /// Each change goes through its written form.
    fn play(table: &mut Table, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            let mut bytes = Vec::new();
            Table::encode(&change, &mut bytes);
            let change = Table::decode(Reader(bytes.into())).expect("as it was written");
            table.validate(&change).expect("good");
            table.apply(change);
        }
    }
}
