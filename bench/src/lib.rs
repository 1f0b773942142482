//! Shared parts of the benchmarks: durations ([`Times`]), resource usage ([`Usage`]), the raw disk ([`Raw`]),
//! what is measured and where ([`Scope`]), starting a server ([`Peer`], [`Process`]), sending requests ([`Load`],
//! [`Requests`], [`Posts`]), receiving live deliveries ([`Channel`], [`Audience`], [`Liveload`]), and requests that are messages of
//! a connection ([`Talk`]).

mod audience;
mod channel;
mod liveload;
mod load;
mod pace;
mod peer;
mod posts;
mod process;
mod raw;
mod relay;
mod report;
mod requests;
mod response;
mod scope;
mod stamp;
mod talk;
mod usage;

use std::time::{Duration, Instant};

pub use audience::Audience;
pub use channel::{Channel, Wire};
pub use liveload::{Deliveries, Held, Liveload, Subscribers, connections_within};
pub use load::{Done, Load, Outcome, Work};
pub use pace::Pace;
pub use peer::{Peer, Served, Setup};
pub use posts::{Cost, Posts};
pub use process::{Process, Profile};
pub use raw::Raw;
pub use relay::{Flow, Relay};
pub use report::{figure, grouped, ratio, report};
pub use requests::{Requests, request};
pub use response::{Head, ReadError, Response};
pub use scope::Scope;
pub use stamp::{STAMP_BYTES, Stamps, stamped};
pub use talk::{Talk, text_frame};
pub use usage::{Usage, files_limit, open_files, socket_memory};

/// Why a benchmark ends early.
pub type Failed = Box<dyn std::error::Error>;

/// Result of a run, or why there is none.
pub type Measured<T> = Result<T, String>;

/// Durations of repeated operations.
#[derive(Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// Runs a function and records its duration.
    pub fn time<R>(&mut self, run: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = run();
        self.0.push(start.elapsed());
        result
    }

    /// Adds a duration.
    pub fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// Number of durations.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Quantile of the durations in microseconds; `share` is from 0 to 1.
    pub fn quantile(&mut self, share: f64) -> f64 {
        self.0.sort_unstable();
        let last = self.0.len().saturating_sub(1);
        let at = (last as f64 * share).round() as usize;
        self.0.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    }

    /// Operations per second if they ran one after the other.
    pub fn rate(&self) -> f64 {
        self.0.len() as f64 / self.0.iter().sum::<Duration>().as_secs_f64()
    }
}

/// Bytes that the device under a folder has written since boot, for all processes. (The kernel's counter of a
/// process is useless here: it counts whole folios, of which only a few blocks are written.)
pub fn device_bytes(folder: &std::path::Path) -> std::io::Result<f64> {
    let device = std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(folder)?);
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00));
    let stat = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat"))?;
    let sectors = stat.split_whitespace().nth(6).and_then(|sectors| sectors.parse::<f64>().ok());
    Ok(sectors.unwrap_or(0.0) * 512.0)
}
