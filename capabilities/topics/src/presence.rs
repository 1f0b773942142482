//! Presence: who of the subscribers of a topic wants to be seen, and what members hear of each other.
//!
//! A member hears of others by a name beside that of its topic, in the same rings, so that who does not take it is cut as for
//! messages. Joining and leaving are told in the order in which they happen.
//!
//! Invariants: a member subscribes to the topic. A member does not hear of its own coming. What is left of a connection
//! that was closed is nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tidings_engine::deliver::FrameChunks;
use tidings_model::{Timestamp, limits};

use crate::driver::DriverError;
use crate::local::Member;

/// What a member shows of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Names the connection to others.
    pub id: Arc<str>,
    /// Its user, if there is one.
    pub user: Option<Arc<str>>,
    /// One JSON value as text, of at most [`limits::PRESENCE_INFO_BYTES`] bytes.
    pub info: Option<Bytes>,
}

/// A member of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentMember {
    /// What it shows of itself.
    pub present: Present,
    /// When it became a member.
    pub since: Timestamp,
}

/// Members of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// Those that came first, at most [`limits::PRESENCE_LISTED`].
    pub members: Vec<PresentMember>,
    /// Number of all.
    pub count: usize,
}

/// Whether a member has come or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// It has come.
    Join,
    /// It has gone.
    Leave,
}

/// Makes the frames that members hear of each other.
pub trait Announce: Send + Sync + 'static {
    /// The frame that tells the members of a topic that one has come or gone.
    fn announce(&self, passing: Passing, topic: &str, member: &PresentMember) -> FrameChunks;
}

/// Members by topic, with the number of the connection.
type Members = HashMap<Arc<str>, Vec<(u64, PresentMember)>>;

/// The members of all topics of a hub.
#[derive(Default)]
pub(crate) struct Roster {
    /// In the order in which they came.
    topics: Mutex<Members>,
    /// Number of members, to be read without a lock.
    count: AtomicUsize,
}

impl Passing {
    /// Type of the message that tells of it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Join => "$join",
            Self::Leave => "$leave",
        }
    }
}

impl PresentMember {
    /// The member as the JSON object of the wire.
    pub fn to_json(&self) -> Value {
        let Present { id, user, info } = &self.present;
        let mut member = Map::from_iter([
            ("id".to_owned(), json!(&**id)),
            ("since".to_owned(), json!(self.since.as_millis())),
        ]);
        if let Some(user) = user {
            member.insert("user".to_owned(), json!(&**user));
        }
        // It was checked when it came.
        if let Some(info) = info.as_ref().and_then(|info| serde_json::from_slice::<Value>(info).ok()) {
            member.insert("info".to_owned(), info);
        }
        Value::Object(member)
    }
}

impl Roster {
    /// Makes a connection a member of a topic, unless it is one. Returns whether it was not.
    pub(crate) fn join(
        &self,
        member: &Member,
        topic: &Arc<str>,
        joining: PresentMember,
        announce: &dyn Announce,
    ) -> Result<bool, DriverError> {
        let mut topics = self.lock();
        let members = topics.entry(topic.clone()).or_default();
        if members.iter().any(|(number, _)| *number == member.number()) {
            return Ok(false);
        }
        // The others are told under the lock, so that they hear everything in one order.
        let frame = announce.announce(Passing::Join, topic, &joining);
        if let Err(error) = member.enter_presence(topic) {
            if members.is_empty() {
                topics.remove(topic);
            }
            return Err(error);
        }
        member.publish_presence(topic, frame);
        members.push((member.number(), joining));
        self.count.fetch_add(1, Ordering::SeqCst);
        Ok(true)
    }

    /// Ends the membership of a connection. Returns whether there was one.
    pub(crate) fn leave(&self, member: &Member, topic: &str, announce: &dyn Announce) -> bool {
        let mut topics = self.lock();
        let Some(members) = topics.get_mut(topic) else { return false };
        let Some(at) = members.iter().position(|(number, _)| *number == member.number()) else {
            return false;
        };
        let (_, left) = members.remove(at);
        self.count.fetch_sub(1, Ordering::SeqCst);
        if members.is_empty() {
            topics.remove(topic);
        }
        member.leave_presence(topic);
        member.publish_presence(topic, announce.announce(Passing::Leave, topic, &left));
        true
    }

    /// Whether no topic has members.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// The members of a topic.
    pub(crate) fn of(&self, topic: &str) -> Presence {
        let topics = self.lock();
        let Some(members) = topics.get(topic) else { return Presence::default() };
        let listed = members.iter().take(limits::PRESENCE_LISTED).map(|(_, member)| member.clone());
        Presence { members: listed.collect(), count: members.len() }
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
