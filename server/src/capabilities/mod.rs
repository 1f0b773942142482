//! The capabilities of a server. Each has a file here with all that the server must know of it: how it is opened, its duties,
//! its configuration keys and its metrics. A new capability is a file, an entry of [`WIRINGS`], a field of [`Options`] and one
//! of [`Capabilities`].

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

/// All capabilities, in the order of their sections in the default file.
pub const WIRINGS: &[Wiring] = &[streams::WIRING, sessions::WIRING, rooms::WIRING];

/// What a server must know of an open capability.
pub struct Wiring {
    /// Its configuration keys.
    pub keys: &'static [Key],
    /// What it does by itself.
    pub duties: fn(&Capabilities) -> Vec<Duty>,
    /// Removes what a removed project had.
    pub clear: Clear,
}

/// See [`Wiring::clear`].
pub type Clear = for<'a> fn(&'a Capabilities, &'a ProjectId) -> Clearing<'a>;

/// Tells whether nothing is left, or why something is.
pub type Clearing<'a> = Pin<Box<dyn Future<Output = Result<Cleared, String>> + Send + 'a>>;

/// How the capabilities are set.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How streams are set.
    pub streams: tidings_streams::Options,
    /// How sessions are set.
    pub sessions: tidings_sessions::Options,
    /// How rooms are set.
    pub rooms: tidings_rooms::Options,
}

/// What capabilities stand on.
#[derive(Clone)]
pub struct Foundation {
    /// Keeps what they have.
    pub store: Arc<dyn Store>,
    /// Wakes who listens.
    pub bus: Bus,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Spreads what would otherwise come all at once.
    pub rng: Arc<Rng>,
    /// Where they show their numbers.
    pub metrics: Metrics,
    /// Whether this node leads, which rooms ask before they take over.
    pub leadership: Leadership,
}

/// A capability that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot take over the {capability}: {error}")]
pub struct CapabilityError {
    /// Which one.
    pub capability: &'static str,
    /// What the store says.
    pub error: StoreError,
}

/// The open capabilities of a server.
#[derive(Clone)]
pub struct Capabilities {
    /// The streams.
    pub streams: Streams,
    /// The sessions that stand on them.
    pub sessions: Sessions,
    /// The rooms.
    pub rooms: Rooms,
}

impl Capabilities {
    /// Opens all of them.
    pub async fn open(foundation: &Foundation, options: Options) -> Result<Self, CapabilityError> {
        let streams = sessions::on(streams::open(foundation, options.streams), foundation);
        streams::recover(&streams).await;
        let sessions = sessions::open(streams.clone(), foundation, options.sessions);
        let rooms = rooms::open(foundation, options.rooms).await?;
        Ok(Self { streams, sessions, rooms })
    }

    /// What they do by themselves.
    pub fn duties(&self) -> Vec<Duty> {
        WIRINGS.iter().flat_map(|wiring| (wiring.duties)(self)).collect()
    }

    /// Removes what a removed project had. Tells whether nothing is left.
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
