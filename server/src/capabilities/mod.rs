//! The capabilities of a server.
//!
//! Each capability has a file here with everything the server needs from it: how it is opened, its duties, its
//! configuration keys and its metrics. Adding a capability takes one file, an entry in [`WIRINGS`], a field in
//! [`Options`] and a field in [`Capabilities`].

mod rooms;
mod sessions;
mod streams;

use std::pin::Pin;
use std::sync::Arc;

use tidings_engine::duty::Leadership;
use tidings_engine::log::StoreError;
use tidings_engine::{Bus, Clock, Metrics, Rng};
use tidings_model::ProjectId;
use tidings_rooms::Rooms;
use tidings_sessions::Sessions;
use tidings_streams::{Cleared, Streams};

use crate::config::keys::Key;
use crate::duties::Duty;
use crate::store::Store;

/// All capabilities, in the order of their sections in the default configuration file.
pub const WIRINGS: &[Wiring] = &[streams::WIRING, sessions::WIRING, rooms::WIRING];

/// What one capability contributes to the server.
pub struct Wiring {
    /// Configuration keys of the capability.
    pub keys: &'static [Key],
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
    /// Options of rooms.
    pub rooms: tidings_rooms::Options,
}

/// Dependencies shared by all capabilities.
#[derive(Clone)]
pub struct Foundation {
    /// Store that holds the data of all capabilities.
    pub store: Arc<dyn Store>,
    /// Bus that wakes followers of a log.
    pub bus: Bus,
    /// Source of the current time and of timers.
    pub clock: Arc<dyn Clock>,
    /// Random number generator, for jitter.
    pub rng: Arc<Rng>,
    /// Registry of metrics.
    pub metrics: Metrics,
    /// Whether this node is the leader. Rooms check this before they take over.
    pub leadership: Leadership,
}

/// A capability could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot take over the {capability}: {error}")]
pub struct CapabilityError {
    /// Name of the capability.
    pub capability: &'static str,
    /// Error of the store.
    pub error: StoreError,
}

/// The open capabilities of a server.
#[derive(Clone)]
pub struct Capabilities {
    /// The streams.
    pub streams: Streams,
    /// The sessions, which build on the streams.
    pub sessions: Sessions,
    /// The rooms.
    pub rooms: Rooms,
}

impl Capabilities {
    /// Opens all capabilities.
    pub async fn open(foundation: &Foundation, options: Options) -> Result<Self, CapabilityError> {
        let streams = sessions::on(streams::open(foundation, options.streams), foundation);
        streams::recover(&streams).await;
        let sessions = sessions::open(streams.clone(), foundation, options.sessions);
        let rooms = rooms::open(foundation, options.rooms).await?;
        Ok(Self { streams, sessions, rooms })
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
