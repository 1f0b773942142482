//! File descriptor limits: raises the limit of the process and derives the number of connections from it.
//!
//! A store that cannot open a file has to stop, so connections must never use up the last descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidings_model::limits;

/// File descriptor limit of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// Maximum number of open files and sockets.
    allowed: usize,
}

impl Descriptors {
    /// Raises the soft limit on open files to the hard limit and returns the result.
    pub fn raised() -> Self {
        Self { allowed: raise() }
    }

    /// Returns the number of connections to allow: `wanted`, or fewer if there are not enough descriptors.
    pub fn connections(self, wanted: usize) -> usize {
        // With very few descriptors, half of them are for connections.
        let reserve = limits::DESCRIPTORS_RESERVED.min(self.allowed / 2);
        wanted.min(self.allowed - reserve).max(1)
    }

    /// Logs the limits on open files and on connections, as a warning if there are fewer connections than `wanted`.
    pub fn log(self, wanted: usize) {
        let (open_files, connections) = (self.allowed, self.connections(wanted));
        if connections < wanted {
            tracing::warn!(
                open_files,
                connections,
                wanted,
                "the limit on open files (ulimit -Hn, LimitNOFILE) allows fewer connections than limits.connections"
            );
        } else {
            tracing::info!(open_files, connections, "limits of the process");
        }
    }
}

/// Raises the soft limit on open files as far as the system permits, and returns it.
fn raise() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, "cannot raise the soft limit on open files to the hard one");
    }
    // `None` means unlimited.
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(allowed).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_store_needs_is_never_for_connections() {
        let fitting = |allowed| Descriptors { allowed }.connections(usize::MAX);
        assert_eq!(fitting(1_048_576), 1_048_576 - limits::DESCRIPTORS_RESERVED);
        assert_eq!(fitting(256), 128);
        assert_eq!(fitting(usize::MAX), usize::MAX - limits::DESCRIPTORS_RESERVED);
        assert_eq!((fitting(1), fitting(0)), (1, 1));
        assert_eq!(Descriptors { allowed: 1_048_576 }.connections(50_000), 50_000);
    }
}
