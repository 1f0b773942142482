//! A source, an authoriser, a registry and a relay that do what a test says.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_entities::{
    Action, Allowed, Authorize, AuthorizeError, Change, Claim, ConnectionId, Cursor, Entry, IdForm,
    InvalidCursor, NewChange, Noted, Published, Question, Read, Reason, Registry, Relay, ResyncReason,
    Source, SourceError, Subject,
};
use tokio::sync::{Semaphore, watch};

use crate::world::{code, id};

/// A source in memory. Its cursors are an epoch and a number of entries.
#[derive(Default)]
pub struct FakeSource {
    state: Mutex<SourceState>,
    changed: watch::Sender<()>,
    /// Calls that were made, for tests of who asks.
    reads: watch::Sender<u64>,
    /// While set, whoever reads small pages gets one entry at a time, and each when the test says so.
    slow_readers: Mutex<Option<Arc<Semaphore>>>,
}

#[derive(Default)]
struct SourceState {
    epoch: u64,
    entries: Vec<Entry>,
    /// Entries before this one are not kept any more.
    floor: usize,
    failing: bool,
    version: u64,
}

impl FakeSource {
    /// Adds a change such as `project:1 UPDATE`, or `project:1 access`, or `project TRUNCATE`.
    pub fn add(&self, text: &str) {
        let (of, what) = text.split_once(' ').expect("an entity and an action");
        let mut state = self.lock();
        if what == "TRUNCATE" {
            state.entries.push(Entry::Truncated(code(of)));
        } else {
            let (of, entity) = of.split_once(':').expect("a code and an id");
            state.version += 1;
            let version = state.version;
            let reason = (what == "access").then_some(Reason::Access);
            let action = Action::parse(what).unwrap_or(Action::Update);
            let change = Change { code: code(of), id: id(entity), action, version, reason };
            state.entries.push(Entry::Changed(change));
        }
        drop(state);
        self.changed.send_replace(());
    }

    pub fn add_each(&self, texts: &[&str]) {
        texts.iter().for_each(|text| self.add(text));
    }

    /// Adds many changes at once.
    pub fn extend(&self, changes: impl IntoIterator<Item = (String, String)>) {
        let mut state = self.lock();
        for (of, entity) in changes {
            state.version += 1;
            let version = state.version;
            let (code, id) = (code(&of), id(&entity));
            state.entries.push(Entry::Changed(Change {
                code,
                id,
                action: Action::Update,
                version,
                reason: None,
            }));
        }
        drop(state);
        self.changed.send_replace(());
    }

    /// Does not keep what there is any longer.
    pub fn expire(&self) {
        let mut state = self.lock();
        state.floor = state.entries.len();
    }

    /// Begins another life, without entries.
    pub fn replace(&self) {
        let mut state = self.lock();
        *state = SourceState { epoch: state.epoch + 1, failing: state.failing, ..SourceState::default() };
        drop(state);
        self.changed.send_replace(());
    }

    /// Fails from now on, or does not.
    pub fn fail(&self, failing: bool) {
        self.lock().failing = failing;
        self.changed.send_replace(());
    }

    /// Lets those who read small pages, as readers do and replays do not, read one entry at a time from now on.
    pub fn slow_readers(&self) -> Arc<Semaphore> {
        let entries = Arc::new(Semaphore::new(0));
        *self.slow_readers.lock().expect("not poisoned") = Some(entries.clone());
        entries
    }

    pub fn end(&self) -> Cursor {
        let state = self.lock();
        cursor(state.epoch, state.entries.len())
    }

    /// Number of calls of `now` and `read`.
    pub fn asked(&self) -> u64 {
        *self.reads.borrow()
    }

    fn look(&self) -> Result<MutexGuard<'_, SourceState>, SourceError> {
        self.reads.send_modify(|reads| *reads += 1);
        let state = self.lock();
        if state.failing { Err(SourceError::Unavailable("it is away".to_owned())) } else { Ok(state) }
    }

    fn lock(&self) -> MutexGuard<'_, SourceState> {
        self.state.lock().expect("not poisoned")
    }

    fn has_after(&self, after: &Cursor) -> bool {
        let state = self.lock();
        state.failing || cursor(state.epoch, state.entries.len()) != *after
    }
}

fn cursor(epoch: u64, entries: usize) -> Cursor {
    Cursor::new(format!("{epoch}.{entries}"))
}

impl Source for FakeSource {
    fn ids(&self) -> IdForm {
        IdForm::Text
    }

    fn now(&self) -> BoxFuture<'_, Result<Cursor, SourceError>> {
        let now = self.look().map(|state| cursor(state.epoch, state.entries.len()));
        std::future::ready(now).boxed()
    }

    fn read<'a>(&'a self, after: &'a Cursor, most: usize) -> BoxFuture<'a, Result<Read, SourceError>> {
        async move {
            let parts = after.as_str().split_once('.').ok_or(InvalidCursor)?;
            let (Ok(epoch), Ok(from)) = (parts.0.parse::<u64>(), parts.1.parse::<usize>()) else {
                return Err(InvalidCursor.into());
            };
            let slow = self.slow_readers.lock().expect("not poisoned").clone().filter(|_| most <= 1024);
            let most = if slow.is_some() { 1 } else { most };
            if let Some(entries) = slow {
                entries.acquire().await.expect("never closed").forget();
            }
            let state = self.look()?;
            let end = state.entries.len();
            let lost = |reason| Ok(Read::Lost { reason, cursor: cursor(state.epoch, end) });
            if epoch != state.epoch {
                return lost(ResyncReason::SourceReset);
            }
            if from < state.floor {
                return lost(ResyncReason::CursorExpired);
            }
            let through = end.min(from.saturating_add(most));
            let entries = state.entries[from..through].to_vec();
            Ok(Read::Entries { entries, cursor: cursor(epoch, through), more: through < end })
        }
        .boxed()
    }

    fn changed<'a>(&'a self, after: &'a Cursor) -> BoxFuture<'a, ()> {
        async move {
            let mut changed = self.changed.subscribe();
            while !self.has_after(after) {
                let _ = changed.changed().await;
            }
        }
        .boxed()
    }

    fn publish(&self, changes: Vec<NewChange>) -> BoxFuture<'_, Result<Published, SourceError>> {
        let accepted = changes.len();
        for NewChange { code, id, action } in changes {
            self.add(&format!("{code}:{id} {action}"));
        }
        std::future::ready(Ok(Published { accepted, cursor: self.end() })).boxed()
    }
}

/// User, code and id that are refused. No id is the whole type.
type Refused = (String, String, Option<String>);

/// Allows everything that was not refused, as soon as it may answer.
pub struct FakeAuthorize {
    refused: Mutex<HashSet<Refused>>,
    questions: Mutex<Vec<Question>>,
    may_answer: Semaphore,
    fails: Mutex<bool>,
}

impl Default for FakeAuthorize {
    fn default() -> Self {
        Self {
            refused: Mutex::default(),
            questions: Mutex::default(),
            may_answer: Semaphore::new(1_000_000),
            fails: Mutex::default(),
        }
    }
}

impl FakeAuthorize {
    /// Refuses an entity such as `project:1`, or a type such as `project`, from now on.
    pub fn refuse(&self, user: &str, of: &str) {
        self.refused.lock().expect("not poisoned").insert(key(user, of));
    }

    pub fn allow(&self, user: &str, of: &str) {
        self.refused.lock().expect("not poisoned").remove(&key(user, of));
    }

    pub fn fail(&self) {
        *self.fails.lock().expect("not poisoned") = true;
    }

    /// Decides at once, and answers only after [`answer`](Self::answer).
    pub fn hold(&self) {
        self.may_answer.forget_permits(usize::MAX);
    }

    pub fn answer(&self) {
        self.may_answer.add_permits(1_000_000);
    }

    /// Number of questions that were asked.
    pub fn asked(&self) -> usize {
        self.questions.lock().expect("not poisoned").len()
    }
}

fn key(user: &str, of: &str) -> Refused {
    match of.split_once(':') {
        Some((code, id)) => (user.to_owned(), code.to_owned(), Some(id.to_owned())),
        None => (user.to_owned(), of.to_owned(), None),
    }
}

impl Authorize for FakeAuthorize {
    fn allowed<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, Result<Allowed, AuthorizeError>> {
        async move {
            self.questions.lock().expect("not poisoned").push(question.clone());
            if *self.fails.lock().expect("not poisoned") {
                return Err(AuthorizeError("it does not know".to_owned()));
            }
            let allowed = {
                let refused = self.refused.lock().expect("not poisoned");
                let has = |id: Option<&str>| {
                    refused.contains(&(
                        question.user.clone(),
                        question.code.to_string(),
                        id.map(str::to_owned),
                    ))
                };
                match &question.subject {
                    Subject::WholeType if has(None) => Allowed::none(),
                    Subject::WholeType => Allowed::All,
                    Subject::Ids(ids) => {
                        Allowed::Ids(ids.iter().filter(|id| !has(Some(id.as_str()))).cloned().collect())
                    }
                }
            };
            let permit = self.may_answer.acquire().await.expect("never closed");
            permit.forget();
            Ok(allowed)
        }
        .boxed()
    }
}

/// Connection, code and id of a subscription. No id is the whole type.
type Row = (String, String, Option<String>);

/// A table of subscriptions, with the user of each.
#[derive(Default)]
pub struct FakeRegistry {
    rows: Mutex<BTreeMap<Row, String>>,
}

impl FakeRegistry {
    /// The rows, such as `ann a project:1`.
    pub fn rows(&self) -> Vec<String> {
        let rows = self.rows.lock().expect("not poisoned");
        let row = |((connection, code, id), user): (&Row, &String)| {
            format!("{user} {connection} {code}:{}", id.as_deref().unwrap_or("*"))
        };
        rows.iter().map(row).collect()
    }
}

impl Registry for FakeRegistry {
    fn note(&self, noted: Noted) -> BoxFuture<'_, ()> {
        let mut rows = self.rows.lock().expect("not poisoned");
        let key = |connection: &ConnectionId, code: &tidings_entities::EntityCode, id: Option<&str>| {
            (connection.to_string(), code.to_string(), id.map(str::to_owned))
        };
        match noted {
            Noted::Subscribed { connection, user, code, subject } => match subject {
                Subject::Ids(ids) => {
                    rows.extend(
                        ids.iter().map(|id| (key(&connection, &code, Some(id.as_str())), user.clone())),
                    );
                }
                Subject::WholeType => {
                    rows.insert(key(&connection, &code, None), user);
                }
            },
            Noted::Unsubscribed { connection, code, subject } => match subject {
                Subject::Ids(ids) => ids.iter().for_each(|id| {
                    rows.remove(&key(&connection, &code, Some(id.as_str())));
                }),
                Subject::WholeType => {
                    rows.retain(|(of, type_, _), _| {
                        *of != connection.to_string() || *type_ != code.to_string()
                    });
                }
            },
            Noted::UnsubscribedAll { connection } => {
                rows.retain(|(of, _, _), _| *of != connection.to_string())
            }
        }
        std::future::ready(()).boxed()
    }

    fn forget(&self, connection: ConnectionId) {
        self.rows.lock().expect("not poisoned").retain(|(of, _, _), _| *of != connection.to_string());
    }
}

/// A lease that several nodes share, each through its own handle.
#[derive(Clone, Default)]
pub struct FakeRelay {
    node: u64,
    lease: Arc<Mutex<LeaseState>>,
}

#[derive(Default)]
struct LeaseState {
    holder: Option<u64>,
    term: u64,
    relayed: Option<Cursor>,
    advances: u64,
}

impl FakeRelay {
    /// The handle of another node.
    pub fn of_node(&self, node: u64) -> Self {
        Self { node, lease: self.lease.clone() }
    }

    /// Lets the lease run out.
    pub fn run_out(&self) {
        self.lock().holder = None;
    }

    pub fn relayed(&self) -> Option<Cursor> {
        self.lock().relayed.clone()
    }

    /// Forgets what was stored last, as if the node had died before it was.
    pub fn forget(&self, relayed: Cursor) {
        self.lock().relayed = Some(relayed);
    }

    pub fn holder(&self) -> Option<u64> {
        self.lock().holder
    }

    fn lock(&self) -> MutexGuard<'_, LeaseState> {
        self.lease.lock().expect("not poisoned")
    }
}

impl Relay for FakeRelay {
    fn claim(&self) -> BoxFuture<'_, Result<Option<Claim>, SourceError>> {
        let mut lease = self.lock();
        if lease.holder.is_none() {
            lease.holder = Some(self.node);
            lease.term += 1;
        }
        let claim = (lease.holder == Some(self.node)).then(|| Claim {
            term: lease.term,
            relayed: lease.relayed.clone(),
            lasts: Duration::from_secs(30),
        });
        std::future::ready(Ok(claim)).boxed()
    }

    fn advance<'a>(&'a self, term: u64, relayed: &'a Cursor) -> BoxFuture<'a, Result<bool, SourceError>> {
        let mut lease = self.lock();
        let is_held = lease.holder == Some(self.node) && lease.term == term;
        if is_held {
            lease.relayed = Some(relayed.clone());
            lease.advances += 1;
        }
        std::future::ready(Ok(is_held)).boxed()
    }

    fn release(&self, term: u64) -> BoxFuture<'_, ()> {
        let mut lease = self.lock();
        if lease.holder == Some(self.node) && lease.term == term {
            lease.holder = None;
        }
        std::future::ready(()).boxed()
    }
}
