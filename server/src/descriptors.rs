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

    /// Returns the number of client connections to allow: `wanted`, or fewer if there are not enough descriptors besides
    /// those of the store and of connections to endpoints, of which `sockets` are wanted.
    pub fn connections(self, wanted: usize, sockets: usize) -> usize {
        wanted.min(self.for_sockets() - self.sockets(sockets)).max(1)
    }

    /// Returns the number of connections to endpoints to allow: `wanted`, or a quarter of what there is.
    pub fn sockets(self, wanted: usize) -> usize {
        wanted.min(self.for_sockets() / 4)
    }

    fn for_sockets(self) -> usize {
        // With very few descriptors, half of them are for the store.
        self.allowed - limits::DESCRIPTORS_RESERVED.min(self.allowed / 2)
    }

    /// Logs the limits on open files and on connections, as a warning if there are fewer connections than `wanted`.
    pub fn log(self, wanted: usize, sockets: usize) {
        let (open_files, connections) = (self.allowed, self.connections(wanted, sockets));
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
        let fitting = |allowed| Descriptors { allowed }.connections(usize::MAX, 0);
        assert_eq!(fitting(1_048_576), 1_048_576 - limits::DESCRIPTORS_RESERVED);
        assert_eq!(fitting(256), 128);
        assert_eq!(fitting(usize::MAX), usize::MAX - limits::DESCRIPTORS_RESERVED);
        assert_eq!((fitting(1), fitting(0)), (1, 1));
        assert_eq!(Descriptors { allowed: 1_048_576 }.connections(50_000, 2048), 50_000);
    }

    #[test]
    fn connections_to_endpoints_get_at_most_a_quarter_of_the_rest() {
        let few = Descriptors { allowed: 256 };
        assert_eq!((few.sockets(2048), few.connections(usize::MAX, 2048)), (32, 96));
        assert_eq!((few.sockets(10), few.connections(usize::MAX, 10)), (10, 118));
        let many = Descriptors { allowed: 1_048_576 };
        assert_eq!((many.sockets(2048), many.connections(50_000, 2048)), (2048, 50_000));
    }
}
