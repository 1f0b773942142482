//! What tests of capabilities need to see what they enter into journals.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use tidings_model::{CommitNumber, LogId, ProjectId};

use super::{Header, Journal};
use crate::log::{Logs, Origin, Record, Span};

/// A journal that hears what a test tells it to hear.
#[derive(Debug, Default)]
pub struct HeardByTests {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    logs: HashMap<(ProjectId, &'static str), LogId>,
    asked: usize,
    appended: Vec<LogId>,
}

impl HeardByTests {
    /// Hears a source of a project from now on, in this log. `None`: does not hear it any more.
    pub fn hear(&self, project: &ProjectId, source: &'static str, log: Option<LogId>) {
        let (key, logs) = ((project.clone(), source), &mut self.state().logs);
        match log {
            Some(log) => logs.insert(key, log),
            None => logs.remove(&key),
        };
    }

    /// How often it was asked for a log.
    pub fn asked(&self) -> usize {
        self.state().asked
    }

    /// The journals that it was told of since the last call.
    pub fn appended(&self) -> Vec<LogId> {
        std::mem::take(&mut self.state().appended)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while holding it")
    }
}

impl Journal for HeardByTests {
    fn log(&self, project: &ProjectId, source: &'static str) -> Option<LogId> {
        let mut state = self.state();
        state.asked += 1;
        state.logs.get(&(project.clone(), source)).copied()
    }

    fn appended(&self, journal: LogId) {
        self.state().appended.push(journal);
    }
}

/// A message that a journal refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// What it is.
    pub header: Header,
    /// Its content, without what is stored before it.
    pub content: Bytes,
    /// The record that it is.
    pub origin: Origin,
    /// The commit that made the entry.
    pub commit: CommitNumber,
}

impl Heard {
    /// Type and content of the event.
    pub fn event(&self) -> (&str, &str) {
        (&self.header.event_type, std::str::from_utf8(&self.content).expect("a text"))
    }
}

/// Reads a journal whole.
///
/// # Panics
/// If it does not consist of entries: headers, and behind them what they describe.
pub async fn heard(store: &(impl Logs + ?Sized), journal: LogId) -> Vec<Heard> {
    let mut records: Vec<Record> = Vec::new();
    loop {
        let after = records.last().map_or_else(Default::default, |record| record.position);
        let page = store.read(journal, Span::after(after)).await.expect("the journal is there");
        if page.records.is_empty() {
            break;
        }
        records.extend(page.records);
    }
    let (mut heard, mut rest) = (Vec::new(), &records[..]);
    while let [first, ..] = rest {
        let count = usize::try_from(header(first).distance).expect("few");
        let (headers, behind) = rest.split_at(count);
        let (messages, behind) = behind.split_at(count);
        heard.extend(headers.iter().zip(messages).map(|(at, message)| one(at, message)));
        rest = behind;
    }
    heard
}

fn header(record: &Record) -> Header {
    assert_eq!(record.origin, None, "a header is not a reference");
    Header::read(&record.payload).expect("a header")
}

fn one(at: &Record, message: &Record) -> Heard {
    let header = header(at);
    assert_eq!(header.message(at.position), message.position);
    assert_eq!(header.bytes, message.payload.len() as u64);
    assert_eq!(at.commit, message.commit, "an entry is in one commit");
    let content = message.payload.slice(header.skip as usize..);
    Heard { header, content, origin: message.origin.expect("a reference"), commit: at.commit }
}
