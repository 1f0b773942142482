//! The vocabulary of tidings: value types that are parsed once at the edge and valid from there on.
//!
//! Read [`position`] (logs, commits and positions), [`id`] (names), [`producer`] (idempotent appends),
//! [`pattern`] (globs on names), [`ulid`] (ids that sort by time), then [`limits`] (bounds of everything a client can make grow).
//!
//! Not here: I/O, async, serialization. Wire formats are in `api`, stored formats beside the code that stores
//! them.

pub mod id;
pub mod limits;
pub mod pattern;
pub mod position;
pub mod producer;
pub mod time;
pub mod ulid;

pub use id::{DeviceId, InvalidId, ProjectId, RoomId, StreamId, UserId};
pub use pattern::{InvalidPattern, Pattern, TopicPattern};
pub use position::{CommitNumber, Era, LogId, Position};
pub use producer::{InvalidProducer, Producer, ProducerId};
pub use time::Timestamp;
pub use ulid::{InvalidUlid, Ulid};
