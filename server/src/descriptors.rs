//! File descriptors: how many the process may have, and how many connections that allows.
//!
//! A store that cannot open a file cannot go on, so connections must never take the last descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidings_model::limits;

/// Raises the soft limit on open files to the hard one, and returns how many connections fit below it. Says both in the
/// log.
pub fn connections_within(wanted: usize) -> usize {
    let allowed = raise();
    let connections = wanted.min(fitting(allowed));
    if connections < wanted {
        tracing::warn!(
            open_files = allowed,
            connections,
            wanted,
            "the limit on open files (ulimit -Hn, LimitNOFILE) allows fewer connections than limits.connections"
        );
    } else {
        tracing::info!(open_files = allowed, connections, "limits of the process");
    }
    connections
}

/// The limit on open files, raised as far as the system lets the process.
fn raise() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, "cannot raise the soft limit on open files to the hard one");
    }
    // None is no limit.
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(allowed).unwrap_or(usize::MAX)
}

/// How many connections leave enough for everything else.
fn fitting(allowed: usize) -> usize {
    // Where there are very few, half is for each.
    let reserve = limits::DESCRIPTORS_RESERVED.min(allowed / 2);
    (allowed - reserve).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_store_needs_is_never_for_connections() {
        assert_eq!(fitting(1_048_576), 1_048_576 - limits::DESCRIPTORS_RESERVED);
        assert_eq!(fitting(256), 128);
        assert_eq!(fitting(usize::MAX), usize::MAX - limits::DESCRIPTORS_RESERVED);
        assert_eq!((fitting(1), fitting(0)), (1, 1));
    }
}
