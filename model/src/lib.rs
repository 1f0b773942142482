//! The vocabulary of tidings: values with rules, parsed once at the edge and right from there on.
//!
//! Read [`position`] (where a record lies), [`id`] (what things are called), [`producer`] (who wrote it,
//! once), [`pattern`] (what a name may match), then [`limits`] (how much of anything a client may have).
//!
//! Not here: I/O, async, serialisation. Wire forms live in `api`, stored layouts beside the code that
//! stores them.

pub mod id;
pub mod limits;
pub mod pattern;
pub mod position;
pub mod producer;
pub mod time;

pub use id::{DeviceId, InvalidId, ProjectId, RoomId, StreamId, UserId};
pub use pattern::{InvalidPattern, Pattern};
pub use position::{CommitNumber, Era, LogId, Position};
pub use producer::{InvalidProducer, Producer, ProducerId};
pub use time::Timestamp;
