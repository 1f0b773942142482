//! The entities of one project: connections, changes, statistics.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Weak};

use tidings_engine::deliver::{Conflated, ConflatedReader};
use tidings_model::limits;
use tokio::sync::mpsc;

use crate::change::NewChange;
use crate::entity::{EntityCode, EntityId, IdForm};
use crate::floors::Floors;
use crate::hub::{Connection, Hub, Reader};
use crate::index::Subscriptions;
use crate::registry::{ConnectionId, TypeStats};
use crate::source::{Published, SourceError};
use crate::told::{Encode, Outgoing};
use crate::watch::Watch;

/// Whether a token grants to watch an entity, or a whole type if there is no id.
pub type Granted = Arc<dyn Fn(&EntityCode, Option<&EntityId>) -> bool + Send + Sync>;

/// The entities of one project. Clones share the same state.
#[derive(Clone)]
pub struct Project {
    pub(crate) hub: Arc<Hub>,
    /// Hubs whose source is to be read.
    pub(crate) wanted: mpsc::UnboundedSender<Weak<Hub>>,
}

/// A connection that wants to watch entities.
pub struct Connect {
    /// Id of the connection.
    pub id: ConnectionId,
    /// The user, as the token names it.
    pub user: String,
    /// What the token grants.
    pub granted: Granted,
    /// Encodes what the connection is told.
    pub encode: Arc<dyn Encode>,
    /// What happens to the user's other connections.
    pub takeover: Takeover,
    /// Called when the connection is to be closed, at most once, from any thread.
    pub close: Arc<dyn Fn(Closing) + Send + Sync>,
}

/// What happens to the other connections of a user who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// They stay, as long as there are not too many.
    No,
    /// They are closed.
    CloseOlder,
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// The user has connected again and takes this connection's place.
    TakenOver,
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The user has too many connections.
    #[error("a user has at most {most} connections that watch entities")]
    TooManyConnections {
        /// The limit.
        most: usize,
    },
}

/// Why changes were not published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// There are too many changes.
    #[error("at most {most} changes are published at a time")]
    TooMany {
        /// The limit.
        most: usize,
    },
    /// The source did not take them.
    #[error(transparent)]
    Source(#[from] SourceError),
}

impl Project {
    /// Form of the ids of entities.
    pub fn ids(&self) -> IdForm {
        self.hub.source.ids()
    }

    /// Adds a connection, which watches nothing yet. It is removed when the reader is dropped.
    pub fn connect(&self, connect: Connect) -> Result<(Watch, ConflatedReader), ConnectError> {
        let Connect { id, user, granted, encode, takeover, close } = connect;
        let (hub, user) = (&self.hub, Arc::<str>::from(user));
        let mut closed = Vec::new();
        let mut state = hub.lock();
        match takeover {
            Takeover::CloseOlder => {
                // They do not count any more, though it takes a moment until they are closed.
                for slot in state.users.remove(&user).unwrap_or_default() {
                    closed.extend(state.connections.get(&slot).map(|older| older.close.clone()));
                }
            }
            Takeover::No => {
                let most = hub.options.connections_per_user;
                if state.users.get(&user).is_some_and(|slots| slots.len() >= most) {
                    return Err(ConnectError::TooManyConnections { most });
                }
            }
        }
        let (inbox, mut reader) = Conflated::new(Outgoing::new(encode, hub.head.subscribe()));
        let turn = Arc::<tokio::sync::Mutex<()>>::default();
        let connection = Connection {
            id: id.clone(),
            user: user.clone(),
            inbox: inbox.clone(),
            granted,
            close,
            turn: turn.clone(),
            subscriptions: Subscriptions::default(),
            holds: Vec::new(),
            floors: Floors::default(),
        };
        let slot = hub.add(&mut state, connection);
        if state.reader == Reader::Stopped {
            state.reader = Reader::Wanted;
            // An error means that the server is being stopped.
            let _ = self.wanted.send(Arc::downgrade(hub));
        }
        drop(state);
        closed.iter().for_each(|close| close(Closing::TakenOver));
        let watch = Watch::new(hub.clone(), slot, id, user, inbox, turn);
        let gone = watch.clone();
        reader.when_dropped(move || gone.close());
        Ok((watch, reader))
    }

    /// Publishes changes, all or none. They are durable when this returns.
    pub async fn publish(&self, changes: Vec<NewChange>) -> Result<Published, PublishError> {
        let most = limits::ENTITY_CHANGES_PER_POST;
        if changes.len() > most {
            return Err(PublishError::TooMany { most });
        }
        let published = self.hub.source.publish(changes).await?;
        self.hub.counts.published.add(published.accepted as u64);
        Ok(published)
    }

    /// Subscriptions by type, of all nodes where the registry knows them.
    pub async fn stats(&self) -> Result<BTreeMap<EntityCode, TypeStats>, SourceError> {
        if let Some(stats) = self.hub.registry.stats().await? {
            return Ok(stats);
        }
        let state = self.hub.lock();
        let entities = state
            .index
            .entities()
            .map(|(code, entities)| (code.clone(), TypeStats { entities, ..TypeStats::default() }));
        let mut stats: BTreeMap<_, _> = entities.collect();
        let mut users = HashSet::new();
        for connection in state.connections.values() {
            for (code, of_type) in connection.subscriptions.iter() {
                let stats = stats.entry(code.clone()).or_default();
                stats.subscriptions += of_type.len() as u64;
                stats.users += u64::from(users.insert((code, &connection.user)));
            }
        }
        Ok(stats)
    }

    /// Number of a user's subscriptions by type, of all nodes where the registry knows them.
    pub async fn user_stats(&self, user: &str) -> Result<BTreeMap<EntityCode, u64>, SourceError> {
        if let Some(stats) = self.hub.registry.user_stats(user).await? {
            return Ok(stats);
        }
        let mut stats = BTreeMap::new();
        for connection in self.hub.lock().connections.values().filter(|connection| *connection.user == *user)
        {
            for (code, of_type) in connection.subscriptions.iter() {
                *stats.entry(code.clone()).or_default() += of_type.len() as u64;
            }
        }
        Ok(stats)
    }
}
