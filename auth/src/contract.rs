//! The contract suite of projects: what every store that keeps them must do, as tests that each store runs on itself.
//!
//! A store implements [`Fixture`] for its tests and calls [`projects_contract!`](crate::projects_contract) with a function
//! that makes an empty one. Each promise writes, has the store opened again if it can be, and asks.

use std::sync::{Arc, Mutex};

use futures_util::future::join;
use tidings_engine::log::fixture::{Fixture, observe};
use tidings_engine::log::{Commit, CommitError, Commits, Logs, Observer, Operation, ReadError, Refusal};
use tidings_model::{LogId, Pattern, ProjectId, Timestamp, limits};

use crate::revocation::{Holder, Revoked};
use crate::{
    AdminDigest, Change, Config, Declined, Key, LastKey, Project, ProjectState, Revocation, Store, Subject,
    Table,
};

/// Makes a `#[tokio::test]` of each promise, on an empty store from `$make`.
#[macro_export]
macro_rules! projects_contract {
    ($make:expr) => {
        $crate::projects_contract!(@each $make;
            a_project_is_found_as_it_was_committed
            projects_are_listed_by_id
            keys_are_kept_newest_first
            a_refused_change_leaves_no_trace
            a_refused_operation_leaves_no_trace
            the_admin_key_is_the_last_that_was_set
            a_removed_project_is_there_until_it_is_forgotten
            of_two_who_create_a_project_one_wins
            of_two_who_remove_the_last_two_keys_one_wins
            a_list_is_of_one_moment
            revocations_are_kept_until_they_expire
            a_project_takes_its_revocations_with_it
        );
    };
    (@each $make:expr; $($promise:ident)+) => {
        $(
            #[tokio::test]
            async fn $promise() {
                $crate::contract::$promise($make().await).await;
            }
        )+
    };
}

// What the promises below are told with.

fn id(text: &str) -> ProjectId {
    ProjectId::parse(text).expect("a valid id")
}

fn key(text: &str) -> Key {
    Key::parse(&format!("a-key-of-length-{text}")).expect("long enough")
}

fn create(project: &str) -> Change {
    Change::Create { project: id(project), key: key(project) }
}

fn remove_key(project: &str, name: &str) -> Change {
    Change::RemoveKey { project: id(project), kid: key(name).kid().clone(), last: LastKey::Stays }
}

async fn change(store: &impl Store, change: Change) -> Result<(), Declined> {
    match store.commit(Commit::new().changing(change)).await {
        Ok(_) => Ok(()),
        Err(CommitError::Declined(declined)) => Err(declined),
        Err(error) => panic!("the store refuses: {error}"),
    }
}

async fn make(store: &impl Store, changes: impl IntoIterator<Item = Change>) {
    for one in changes {
        change(store, one).await.expect("the change is good");
    }
}

/// The table as a new observer is shown it.
#[derive(Default)]
struct Shown(Mutex<Table>);

impl Observer<Table> for Shown {
    fn begin(&self, table: &Table) {
        *self.0.lock().expect("not poisoned") = table.copied();
    }

    fn applied(&self, _: &Change) {}
}

fn table(store: &impl Store) -> Table {
    let shown = Arc::new(Shown::default());
    let observer: Arc<dyn Observer<Table>> = shown.clone();
    store.observe(&observer);
    std::mem::take(&mut *shown.0.lock().expect("not poisoned"))
}

fn found(store: &impl Store, id: &ProjectId) -> Option<Arc<Project>> {
    table(store).get(id).cloned()
}

async fn all(store: &impl Store) -> Vec<(ProjectId, Arc<Project>)> {
    table(store).iter().map(|(id, project)| (id.clone(), project.clone())).collect()
}

async fn names(store: &impl Store) -> Vec<String> {
    all(store).await.iter().map(|(id, _)| id.to_string()).collect()
}

async fn keys(store: &impl Store, project: &str) -> Vec<String> {
    let project = found(store, &id(project)).expect("there");
    project.keys.iter().map(|key| key.reveal().to_owned()).collect()
}

fn revealed(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| key(name).reveal().to_owned()).collect()
}

fn revoke(project: &str, subject: Subject, topics: &[&str], at: Timestamp) -> Change {
    let topics = topics.iter().map(|topic| Pattern::parse(topic).expect("a pattern")).collect::<Vec<_>>();
    let topics = (!topics.is_empty()).then_some(topics);
    Change::Revoke(Revocation { project: id(project), subject, topics, at })
}

fn user(name: &str) -> Subject {
    Subject::User(name.into())
}

/// What is revoked of a user's token without an id.
fn revoked(store: &impl Store, project: &str, user: &str, issued_at: Timestamp) -> Revoked {
    let holder = Holder { user: Some(user.into()), id: None, issued_at: Some(issued_at) };
    table(store).revoked(&id(project), &holder)
}

// The promises.

/// A project is there when its commit returns, with its keys, and set as it was set last.
pub async fn a_project_is_found_as_it_was_committed(mut fixture: impl Fixture<Store: Store>) {
    let config = Config {
        cors_origins: vec!["https://example.com".into(), "*".into()],
        public: vec![Pattern::parse("news/*").expect("a pattern")],
        hook_sources: vec!["stream".into()],
    };
    let store = fixture.store();
    assert!(found(store, &id("app")).is_none());
    make(store, [create("app")]).await;
    assert_eq!(keys(store, "app").await, revealed(&["app"]));
    let default = ProjectId::default_project();
    for project in [id("app"), default.clone()] {
        make(store, [Change::Configure { project, config: config.clone() }]).await;
    }
    fixture.reopen().await;
    let store = fixture.store();
    for project in [id("app"), default] {
        let is = found(store, &project).expect("there");
        assert_eq!((&is.config, is.state), (&config, ProjectState::Active), "{project}");
    }
    assert_eq!(keys(store, "app").await, revealed(&["app"]));
    assert!(found(store, &id("ap")).is_none());
}

/// A revocation holds with its subject, its topics and its moment, until one that comes after its lifetime.
pub async fn revocations_are_kept_until_they_expire(mut fixture: impl Fixture<Store: Store>) {
    let at = Timestamp::from_millis(5000);
    let later = at + limits::REVOCATION_LIFETIME;
    let store = fixture.store();
    make(store, [create("app")]).await;
    let of_token = Subject::Token("alice".into());
    let revocations = [
        revoke("app", user("alice"), &[], at),
        revoke("app", user("bob"), &["a.*", "b:**"], later),
        revoke("app", of_token, &[], later),
        // The project of a configuration is not stored.
        revoke("given", user("alice"), &[], at),
    ];
    let [first, rest @ ..] = revocations;
    make(store, [first]).await;
    assert_eq!(revoked(store, "app", "alice", at), Revoked::Everything);
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(revoked(store, "app", "alice", at), Revoked::Everything);
    assert_eq!(revoked(store, "app", "alice", Timestamp::from_millis(5001)), Revoked::nothing());
    make(store, rest).await;
    for _ in 0..2 {
        let store = fixture.store();
        assert_eq!(revoked(store, "app", "alice", at), Revoked::nothing(), "it was dropped");
        let topics = ["a.*", "b:**"].map(|topic| Pattern::parse(topic).expect("a pattern"));
        assert_eq!(revoked(store, "app", "bob", at), Revoked::Topics(topics.to_vec()));
        assert_eq!(revoked(store, "given", "alice", at), Revoked::Everything);
        let counts = ["app", "given", "other"].map(|project| table(store).revocations(&id(project)));
        assert_eq!(counts, [3, 1, 0]);
        fixture.reopen().await;
    }
}

/// A project that is created after one of the same id was removed has no revocations.
pub async fn a_project_takes_its_revocations_with_it(mut fixture: impl Fixture<Store: Store>) {
    let at = Timestamp::from_millis(5000);
    let store = fixture.store();
    make(store, [create("app"), revoke("app", user("alice"), &[], at)]).await;
    make(store, [Change::Remove { project: id("app") }]).await;
    let refused = change(store, revoke("app", user("bob"), &[], at)).await;
    assert_eq!(refused, Err(Declined::Removing));
    fixture.reopen().await;
    let store = fixture.store();
    make(store, [Change::Forget { project: id("app") }, create("app")]).await;
    assert_eq!(revoked(store, "app", "alice", at), Revoked::nothing());
    assert_eq!(table(store).revocations(&id("app")), 0);
}

/// All projects are listed, each once, in the order of their ids.
pub async fn projects_are_listed_by_id(mut fixture: impl Fixture<Store: Store>) {
    make(fixture.store(), ["b", "a-b", "c", "a", "B", "ab"].map(create)).await;
    fixture.reopen().await;
    assert_eq!(names(fixture.store()).await, ["B", "a", "a-b", "ab", "b", "c"]);
}

/// Tokens are signed with the first key, so their order is part of what is kept.
pub async fn keys_are_kept_newest_first(mut fixture: impl Fixture<Store: Store>) {
    let add = |name: &str| Change::AddKey { project: id("app"), key: key(name) };
    let changes = [create("app"), add("x"), add("b"), remove_key("app", "x"), add("a")];
    make(fixture.store(), changes).await;
    assert_eq!(keys(fixture.store(), "app").await, revealed(&["a", "b", "app"]));
    fixture.reopen().await;
    assert_eq!(keys(fixture.store(), "app").await, revealed(&["a", "b", "app"]));
}

/// When one change of a commit is refused, neither its other changes nor its operations hold.
pub async fn a_refused_change_leaves_no_trace(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    make(store, [create("app")]).await;
    let log = store.reserve().await.expect("a number");
    let again = Change::Create { project: id("app"), key: key("another") };
    let commit = Commit::new().with(Operation::create(log)).changing(create("other")).changing(again);
    let refused = store.commit(commit).await.expect_err("there is such a project");
    assert!(matches!(refused, CommitError::Declined(Declined::Exists)), "{refused}");
    assert_eq!(change(store, remove_key("app", "app")).await, Err(Declined::LastKey));
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(names(store).await, ["app"]);
    assert_eq!(keys(store, "app").await, revealed(&["app"]));
    assert_eq!(store.status(log).await, Err(ReadError::NoSuchLog(log)));
}

/// When a log refuses an operation of a commit, no change of it holds.
pub async fn a_refused_operation_leaves_no_trace(mut fixture: impl Fixture<Store: Store>) {
    let missing = LogId::new(u64::MAX >> 1);
    let commit = Commit::new()
        .with(Operation::Delete(missing))
        .changing(create("app"))
        .changing(Change::SetAdmin(AdminDigest::of("key")));
    let refused = fixture.store().commit(commit).await.expect_err("there is no such log");
    assert!(matches!(refused, CommitError::Refused(Refusal::NoSuchLog(log)) if log == missing), "{refused}");
    fixture.reopen().await;
    assert!(all(fixture.store()).await.is_empty());
    assert_eq!(table(fixture.store()).admin(), None);
}

/// There is no admin key at first, and then the one that was set last.
pub async fn the_admin_key_is_the_last_that_was_set(mut fixture: impl Fixture<Store: Store>) {
    assert_eq!(table(fixture.store()).admin(), None);
    let digests = ["one", "two"].map(AdminDigest::of);
    make(fixture.store(), digests.map(Change::SetAdmin)).await;
    assert_eq!(table(fixture.store()).admin(), Some(digests[1]));
    fixture.reopen().await;
    assert_eq!(table(fixture.store()).admin(), Some(digests[1]));
}

/// A removed project holds its id, without keys, until it is forgotten; then it is in no list and its id is free.
pub async fn a_removed_project_is_there_until_it_is_forgotten(mut fixture: impl Fixture<Store: Store>) {
    let (a, b) = (id("a"), id("b"));
    let store = fixture.store();
    make(store, [create("a"), create("b")]).await;
    make(store, [Change::Remove { project: a.clone() }, Change::Remove { project: b.clone() }]).await;
    make(store, [Change::Forget { project: b.clone() }]).await;
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(names(store).await, ["a"]);
    let removed = found(store, &a).expect("there");
    assert_eq!(removed.state, ProjectState::Removing);
    assert!(removed.keys.is_empty());
    assert!(found(store, &b).is_none());
    assert_eq!(change(store, create("a")).await, Err(Declined::Removing));
    make(store, [create("b")]).await;
}

/// Two commits that are under way at the same time do not both create the project.
pub async fn of_two_who_create_a_project_one_wins(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let by = |name: &str| change(store, Change::Create { project: id("app"), key: key(name) });
    let winner = match join(by("one"), by("other")).await {
        (Ok(()), Err(Declined::Exists)) => "one",
        (Err(Declined::Exists), Ok(())) => "other",
        both => panic!("{both:?}"),
    };
    fixture.reopen().await;
    assert_eq!(keys(fixture.store(), "app").await, revealed(&[winner]));
}

/// A change is validated against all that is pending, too: two removals together do not take what neither may alone.
pub async fn of_two_who_remove_the_last_two_keys_one_wins(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    make(store, [create("app"), Change::AddKey { project: id("app"), key: key("new") }]).await;
    let left =
        match join(change(store, remove_key("app", "app")), change(store, remove_key("app", "new"))).await {
            (Ok(()), Err(Declined::LastKey)) => "new",
            (Err(Declined::LastKey), Ok(())) => "app",
            both => panic!("{both:?}"),
        };
    fixture.reopen().await;
    assert_eq!(keys(fixture.store(), "app").await, revealed(&[left]));
}

/// What one commit changes is seen at once: nobody is shown one of its projects without the other.
pub async fn a_list_is_of_one_moment(fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let work = async {
        for n in 0..50 {
            let pair = [format!("a-{n}"), format!("z-{n}")];
            let commit = pair.iter().fold(Commit::new(), |commit, name| commit.changing(create(name)));
            store.commit(commit).await.expect("the commit is good");
        }
    };
    observe(work, async || {
        let names = names(store).await;
        let of = |kind: &str| names.iter().filter(|name| name.starts_with(kind)).count();
        assert_eq!(of("a-"), of("z-"));
    })
    .await;
    assert_eq!(all(store).await.len(), 100);
}

#[cfg(test)]
mod in_memory {
    use std::sync::Arc;

    use tidings_engine::log::Memory;
    use tidings_engine::{Bus, WallClock};

    async fn empty() -> Memory<crate::Table> {
        Memory::new(Bus::new(), Arc::new(WallClock))
    }

    crate::projects_contract!(empty);
}
