//! The capabilities of a server.
//!
//! Each capability has a file here with everything the server needs from it: how it is opened, its duties, its
//! configuration keys and its metrics. Adding a capability takes one file, an entry in [`WIRINGS`], a field in
//! [`Options`] and a field in [`Capabilities`].

pub mod entities;
pub mod hooks;
mod rooms;
mod sessions;
mod streams;
mod subscriptions;
mod topics;

use std::pin::Pin;
use std::sync::Arc;

use tidings_api::TopicHubs;
use tidings_auth::Projects;
use tidings_engine::bus::messages::MessageBus;
use tidings_engine::duty::Leadership;
use tidings_engine::journal::Journals;
use tidings_engine::log::StoreError;
use tidings_engine::{Bus, Clock, Metrics, Rng};
use tidings_hooks::Hooks;
use tidings_model::ProjectId;
use tidings_rooms::Rooms;
use tidings_sessions::Sessions;
use tidings_streams::{Cleared, Streams};
use tidings_subscriptions::Subscriptions;

use crate::config::keys::{Key, Tables};
use crate::duties::Duty;
use crate::store::Store;

/// All capabilities, in the order of their sections in the default configuration file.
pub const WIRINGS: &[Wiring] = &[
    streams::WIRING,
    sessions::WIRING,
    rooms::WIRING,
    subscriptions::WIRING,
    hooks::WIRING,
    topics::WIRING,
    entities::WIRING,
];

/// What one capability contributes to the server.
pub struct Wiring {
    /// Configuration keys of the capability.
    pub keys: &'static [Key],
    /// Lists of tables of the capability in the configuration.
    pub tables: &'static [Tables],
    /// Returns the background duties of the capability.
    pub duties: fn(&Capabilities) -> Vec<Duty>,
    /// Removes the data of a removed project.
    pub clear: Clear,
}

/// Function type of [`Wiring::clear`].
pub type Clear = for<'a> fn(&'a Capabilities, &'a ProjectId) -> Clearing<'a>;

/// Resolves to whether all data was removed, or to an error message.
pub type Clearing<'a> = Pin<Box<dyn Future<Output = Result<Cleared, String>> + Send + 'a>>;

/// Options of all capabilities.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Options of streams.
    pub streams: tidings_streams::Options,
    /// Options of sessions.
    pub sessions: tidings_sessions::Options,
    /// Options of subscriptions to streams.
    pub subscriptions: tidings_subscriptions::Options,
    /// Options of rooms.
    pub rooms: tidings_rooms::Options,
    /// Options of hooks.
    pub hooks: hooks::HookOptions,
    /// Options of topics.
    pub topics: tidings_api::TopicOptions,
    /// Options of entities.
    pub entities: entities::EntityOptions,
}

/// Dependencies shared by all capabilities.
#[derive(Clone)]
pub struct Foundation {
    /// Store that holds the data of all capabilities.
    pub store: Arc<dyn Store>,
    /// Bus that wakes followers of a log.
    pub bus: Bus,
    /// Bus that carries live messages between nodes. `None` for a node alone.
    pub messages: Option<Arc<dyn MessageBus>>,
    /// Source of the current time and of timers.
    pub clock: Arc<dyn Clock>,
    /// Random number generator, for jitter.
    pub rng: Arc<Rng>,
    /// Registry of metrics.
    pub metrics: Metrics,
    /// The projects, whose configuration says which events hooks hear.
    pub projects: Projects,
    /// Whether this node is the leader. Rooms check this before they take over.
    pub leadership: Leadership,
    /// Journals that capabilities enter their events into.
    pub journals: Journals,
}

/// A capability could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum CapabilityError {
    /// The store could not be used.
    #[error("cannot take over the {capability}: {error}")]
    Store {
        /// Name of the capability.
        capability: &'static str,
        /// Error of the store.
        error: StoreError,
    },
    /// The entities cannot be opened as they are configured.
    #[error("cannot open the entities: {0}")]
    Entities(String),
}

/// The open capabilities of a server.
#[derive(Clone)]
pub struct Capabilities {
    /// The streams.
    pub streams: Streams,
    /// The sessions, which build on the streams.
    pub sessions: Sessions,
    /// The subscriptions to streams, which call endpoints as hooks do.
    pub subscriptions: Subscriptions,
    /// The rooms.
    pub rooms: Rooms,
    /// The hooks, which hear what the others append.
    pub hooks: Hooks,
    /// The topics.
    pub topics: TopicHubs,
    /// The entities.
    pub entities: entities::OpenEntities,
}

impl Capabilities {
    /// Opens all capabilities.
    pub async fn open(foundation: &Foundation, options: Options) -> Result<Self, CapabilityError> {
        let allow_targets = options.hooks.allow_targets.clone().unwrap_or_default();
        let egress = hooks::egress(foundation, &options.hooks);
        let hooks = hooks::open(foundation, options.hooks, egress.clone());
        // From here on hooks hear what the others append.
        let foundation =
            &Foundation { journals: Journals::new(Arc::new(hooks.clone())), ..foundation.clone() };
        let streams = sessions::on(streams::open(foundation, options.streams), foundation);
        streams::recover(&streams).await;
        let sessions = sessions::open(streams.clone(), foundation, options.sessions);
        let subscriptions = subscriptions::open(sessions.clone(), foundation, egress, options.subscriptions);
        let rooms = rooms::open(foundation, options.rooms).await?;
        let topics = topics::open(streams.channels(), foundation, options.topics);
        let entities = entities::open(foundation, options.entities, allow_targets).await?;
        Ok(Self { streams, sessions, subscriptions, rooms, hooks, topics, entities })
    }

    /// Returns the background duties of all capabilities.
    pub fn duties(&self) -> Vec<Duty> {
        WIRINGS.iter().flat_map(|wiring| (wiring.duties)(self)).collect()
    }

    /// Removes the data of a removed project from all capabilities. Returns whether all of it is gone.
    pub async fn clear(&self, project: &ProjectId) -> Result<Cleared, String> {
        let mut all = Cleared::Whole;
        for wiring in WIRINGS {
            if (wiring.clear)(self, project).await? == Cleared::InPart {
                all = Cleared::InPart;
            }
        }
        Ok(all)
    }
}
