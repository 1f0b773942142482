//! The model: operations in a list, in the order in which they arrived, each a plain state.

use std::collections::{BTreeMap, BTreeSet};

use tidings_topics::LocalStatus;

use super::Kind;

/// The topics of the test. The policy denies the last one.
pub const TOPICS: [&str; 5] = ["a", "b", "c", "d", "secret"];

/// A call of the driver, as it is printed.
pub type Asked = String;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done(usize, usize, usize),
    /// The driver failed, and could not take back these topics.
    Failed(Vec<String>),
    Denied,
    Limit,
    Cancelled,
    Closed,
}

type Topic = &'static str;

#[derive(Debug)]
struct Operation {
    id: usize,
    kind: Option<Kind>,
    /// Topics it may change; `None` for all.
    scope: Option<Vec<Topic>>,
    phase: Phase,
    additions: Vec<Topic>,
    removals: Vec<Topic>,
    /// An addition that was revoked.
    refused: bool,
    /// Whether somebody waits for the outcome.
    watched: bool,
}

#[derive(Debug)]
enum Phase {
    Queued,
    /// The next call is the one at this index: removals, then additions.
    Calling(usize),
    /// What is to be taken back, last first, and how it will end.
    Undoing {
        left: Vec<(bool, Topic)>,
        failed: Vec<String>,
        outcome: Outcome,
        extra: bool,
    },
    /// A topic that was taken away is forgotten by the driver.
    Forgetting,
}

pub struct Model {
    limit: usize,
    pub held: Vec<Topic>,
    pub driver: BTreeSet<Topic>,
    /// Whether driver and set may differ, because a rollback failed.
    pub lost_control: bool,
    closed: bool,
    operations: Vec<Operation>,
    outcomes: BTreeMap<usize, Outcome>,
}

fn once(topics: &[usize]) -> Vec<Topic> {
    let mut names = Vec::new();
    for topic in topics {
        if !names.contains(&TOPICS[*topic]) {
            names.push(TOPICS[*topic]);
        }
    }
    names
}

impl Model {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            held: Vec::new(),
            driver: BTreeSet::new(),
            lost_control: false,
            closed: false,
            operations: Vec::new(),
            outcomes: BTreeMap::new(),
        }
    }

    pub fn begin(&mut self, id: usize, kind: Kind) {
        let scope = match &kind {
            Kind::Add(topics) | Kind::Remove(topics) => Some(once(topics)),
            Kind::Set(_) | Kind::Update(..) | Kind::Clear => None,
        };
        self.arrive(id, Some(kind), scope, Phase::Queued);
        self.advance();
    }

    fn arrive(&mut self, id: usize, kind: Option<Kind>, scope: Option<Vec<Topic>>, phase: Phase) {
        let watched = kind.is_some();
        let (additions, removals) = (Vec::new(), Vec::new());
        self.operations.push(Operation {
            id,
            kind,
            scope,
            phase,
            additions,
            removals,
            refused: false,
            watched,
        });
    }

    /// The calls that wait at the driver, sorted.
    pub fn waiting(&self) -> Vec<Asked> {
        let mut waiting: Vec<Asked> =
            self.operations.iter().filter_map(|operation| self.asked(operation)).collect();
        waiting.sort();
        waiting
    }

    fn asked(&self, operation: &Operation) -> Option<Asked> {
        let removals = operation.removals.len();
        match &operation.phase {
            Phase::Queued => None,
            Phase::Calling(at) if *at < removals => Some(format!("-{}", operation.removals[*at])),
            Phase::Calling(at) => Some(format!("+{}", operation.additions[at - removals])),
            Phase::Undoing { left, extra, .. } => left
                .last()
                .map(|(added, topic)| format!("{}{topic}", if *added || *extra { '-' } else { '+' })),
            Phase::Forgetting => {
                let scope = operation.scope.as_ref().expect("a topic");
                self.leads(operation).then(|| format!("-{}", scope[0]))
            }
        }
    }

    /// Whether no earlier operation has a topic in common.
    fn leads(&self, operation: &Operation) -> bool {
        let earlier = self.operations.iter().take_while(|other| !std::ptr::eq(*other, operation));
        !earlier.into_iter().any(|other| match (&other.scope, &operation.scope) {
            (Some(one), Some(two)) => one.iter().any(|topic| two.contains(topic)),
            _ => true,
        })
    }

    pub fn release(&mut self, asked: &Asked, succeeds: bool) {
        let at = self
            .operations
            .iter()
            .position(|operation| self.asked(operation).as_ref() == Some(asked))
            .expect("somebody asks");
        let topic = TOPICS.into_iter().find(|topic| *topic == &asked[1..]).expect("a topic");
        let enters = asked.starts_with('+');
        // Whoever is gone cannot enter.
        let succeeds = succeeds && !(self.closed && enters);
        if succeeds && enters {
            self.driver.insert(topic);
        } else if succeeds {
            self.driver.remove(topic);
        }
        let (closed, held) = (self.closed, self.held.contains(&topic));
        let operation = &mut self.operations[at];
        match &mut operation.phase {
            Phase::Queued => unreachable!("it asks nothing"),
            Phase::Calling(done) => {
                if succeeds {
                    *done += 1;
                    if *done == operation.additions.len() + operation.removals.len() {
                        self.commit(at);
                    }
                } else if closed {
                    // The member was removed, and with it all that was done.
                    self.finish(at, Outcome::Closed);
                } else {
                    let (done, outcome) = (*done, Outcome::Failed(Vec::new()));
                    self.undo(at, done, outcome);
                }
            }
            Phase::Undoing { left, failed, extra, .. } => {
                if *extra || enters && succeeds && !held && !closed {
                    // It was taken away while it was restored: it has to go again.
                    *extra = !*extra;
                    if !*extra {
                        left.pop();
                        self.lost_control |= !succeeds;
                    }
                } else {
                    left.pop();
                    if !succeeds {
                        failed.push(topic.to_owned());
                        self.lost_control |= !closed;
                    }
                }
                self.undo_next(at);
            }
            Phase::Forgetting => {
                self.lost_control |= !succeeds && self.driver.contains(topic);
                self.operations.remove(at);
            }
        }
        self.advance();
    }

    /// Begins what can begin.
    fn advance(&mut self) {
        loop {
            let ready = self.operations.iter().position(|operation| {
                let queued = matches!(operation.phase, Phase::Queued);
                let superseded = matches!(operation.phase, Phase::Forgetting)
                    && self.held.contains(&operation.scope.as_ref().expect("a topic")[0]);
                // Nobody waits for what is left of a closed connection.
                (queued || superseded) && (self.leads(operation) || self.closed && queued)
            });
            let Some(at) = ready else { return };
            match self.operations[at].kind.take() {
                Some(kind) => self.start(at, kind),
                None => drop(self.operations.remove(at)),
            }
        }
    }

    fn start(&mut self, at: usize, kind: Kind) {
        let held = self.held.clone();
        let fresh = |topics: Vec<Topic>| -> Vec<Topic> {
            topics.into_iter().filter(|topic| !held.contains(topic)).collect()
        };
        let replaced = |desired: Vec<Topic>| {
            let removals: Vec<Topic> =
                held.iter().copied().filter(|topic| !desired.contains(topic)).collect();
            (fresh(desired), removals)
        };
        let (additions, removals) = match kind {
            Kind::Add(topics) => (fresh(once(&topics)), Vec::new()),
            Kind::Remove(topics) => {
                (Vec::new(), once(&topics).into_iter().filter(|topic| held.contains(topic)).collect())
            }
            Kind::Set(topics) => replaced(once(&topics)),
            Kind::Clear => replaced(Vec::new()),
            Kind::Update(removed, added) => {
                let removed = once(&removed);
                let mut draft: Vec<Topic> =
                    held.iter().copied().filter(|topic| !removed.contains(topic)).collect();
                for topic in once(&added) {
                    if !draft.contains(&topic) {
                        draft.push(topic);
                    }
                }
                replaced(draft)
            }
        };
        if additions.is_empty() && removals.is_empty() {
            let total = held.len();
            return self.finish(at, Outcome::Done(0, 0, total));
        }
        if self.closed {
            return self.finish(at, Outcome::Closed);
        }
        if additions.contains(&"secret") {
            return self.finish(at, Outcome::Denied);
        }
        let under_way: usize = self.operations.iter().map(|operation| operation.reserved()).sum();
        if !additions.is_empty() && held.len() + under_way + additions.len() > self.limit + removals.len() {
            return self.finish(at, Outcome::Limit);
        }
        let operation = &mut self.operations[at];
        (operation.additions, operation.removals, operation.phase) = (additions, removals, Phase::Calling(0));
    }

    fn commit(&mut self, at: usize) {
        let operation = &self.operations[at];
        let calls = operation.additions.len() + operation.removals.len();
        if self.closed {
            return self.finish(at, Outcome::Closed);
        }
        if operation.refused {
            return self.undo(at, calls, Outcome::Denied);
        }
        let (additions, removals) = (operation.additions.clone(), operation.removals.clone());
        let before = self.held.len();
        self.held.retain(|topic| !removals.contains(topic));
        let removed = before - self.held.len();
        self.held.extend(&additions);
        let total = self.held.len();
        self.finish(at, Outcome::Done(additions.len(), removed, total));
    }

    fn undo(&mut self, at: usize, done: usize, outcome: Outcome) {
        let operation = &mut self.operations[at];
        let removals = operation.removals.iter().map(|topic| (false, *topic));
        let left: Vec<_> =
            removals.chain(operation.additions.iter().map(|topic| (true, *topic))).take(done).collect();
        operation.phase = Phase::Undoing { left, failed: Vec::new(), outcome, extra: false };
        self.undo_next(at);
    }

    /// Skips what needs no undoing any more, and ends when all is undone.
    fn undo_next(&mut self, at: usize) {
        let (held, closed) = (self.held.clone(), self.closed);
        let Phase::Undoing { left, failed, outcome, extra } = &mut self.operations[at].phase else {
            unreachable!("it is being undone")
        };
        while !*extra && left.last().is_some_and(|(added, topic)| !added && !held.contains(topic)) {
            left.pop();
        }
        let at_failure = !failed.is_empty();
        if closed && left.is_empty() {
            return self.finish(at, Outcome::Closed);
        }
        if left.is_empty() {
            let outcome = if at_failure { Outcome::Failed(std::mem::take(failed)) } else { outcome.clone() };
            self.finish(at, outcome);
        }
    }

    fn finish(&mut self, at: usize, outcome: Outcome) {
        let operation = self.operations.remove(at);
        if operation.watched {
            self.outcomes.insert(operation.id, outcome);
        }
    }

    pub fn cancel(&mut self, id: usize) {
        let queued = |operation: &Operation| operation.id == id && operation.kind.is_some();
        if let Some(at) = self.operations.iter().position(queued) {
            self.finish(at, Outcome::Cancelled);
            self.advance();
        }
    }

    /// Nobody waits for an operation any more.
    pub fn leave(&mut self, id: usize) {
        self.cancel(id);
        self.outcomes.remove(&id);
        for operation in self.operations.iter_mut().filter(|operation| operation.id == id) {
            operation.watched = false;
        }
    }

    pub fn revoke(&mut self, topic: &str) -> bool {
        for operation in &mut self.operations {
            let is_adding = matches!(operation.phase, Phase::Calling(_) | Phase::Undoing { .. });
            operation.refused |= is_adding && operation.additions.contains(&topic);
        }
        let Some(at) = self.held.iter().position(|held| *held == topic) else { return false };
        let topic = self.held.remove(at);
        self.driver.remove(topic);
        self.arrive(usize::MAX, None, Some(vec![topic]), Phase::Forgetting);
        self.advance();
        true
    }

    pub fn close(&mut self) {
        self.closed = true;
        self.held.clear();
        self.driver.clear();
        for operation in &mut self.operations {
            if std::mem::take(&mut operation.watched) {
                self.outcomes.insert(operation.id, Outcome::Closed);
            }
        }
        self.operations.retain(|operation| !matches!(operation.phase, Phase::Queued));
        self.advance();
    }

    pub fn status(&self, topic: &str) -> LocalStatus {
        for operation in &self.operations {
            if operation.additions.contains(&topic) {
                return LocalStatus::PendingSubscribe;
            }
            if operation.removals.contains(&topic) {
                return LocalStatus::PendingUnsubscribe;
            }
        }
        if self.held.contains(&topic) { LocalStatus::Settled } else { LocalStatus::Absent }
    }

    pub fn take_outcome(&mut self, id: usize) -> Option<Outcome> {
        self.outcomes.remove(&id)
    }

    /// Operations that have ended and whose outcome was not taken.
    pub fn untaken(&self) -> BTreeSet<usize> {
        self.outcomes.keys().copied().collect()
    }
}

impl Operation {
    /// Places that are taken by what is not held yet.
    fn reserved(&self) -> usize {
        match self.phase {
            Phase::Calling(_) | Phase::Undoing { .. } => self.additions.len(),
            Phase::Queued | Phase::Forgetting => 0,
        }
    }
}
