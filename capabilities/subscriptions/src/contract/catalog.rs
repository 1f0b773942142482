//! The tables of streams and subscriptions as one catalog.

use tidings_engine::log::{HasTable, StandsOn, StateMachine};
use tidings_model::limits;

use crate::table::{Change, Declined, LinkLimits, Table};

/// The tables of streams and of subscriptions, for stores that hold tables in memory. A change of subscriptions may carry one of
/// streams, so those of subscriptions are all there are. The parameters limit the links of one subscription and of a project.
#[derive(Debug)]
pub struct StreamsAndSubscriptions<
    const PER_SUBSCRIPTION: usize = { limits::LINKS_PER_SUBSCRIPTION },
    const PER_PROJECT: usize = { limits::LINKS_PER_PROJECT },
> {
    /// Of streams.
    pub streams: tidings_streams::Table,
    /// Of subscriptions.
    pub subscriptions: Table,
}

impl<const S: usize, const P: usize> Default for StreamsAndSubscriptions<S, P> {
    fn default() -> Self {
        let limits = LinkLimits { per_subscription: S, per_project: P };
        Self { streams: tidings_streams::Table::default(), subscriptions: Table::with_limits(limits) }
    }
}

impl<const S: usize, const P: usize> StateMachine for StreamsAndSubscriptions<S, P> {
    type Change = Change;

    fn validate(&self, change: &Change) -> Result<(), Declined> {
        match change {
            Change::Streams(change) => self.streams.validate(change).map_err(Declined::Streams),
            change => self.subscriptions.validate(change),
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Streams(change) => {
                self.subscriptions.on_base_change(&change);
                self.streams.apply(change);
            }
            change => self.subscriptions.apply(change),
        }
    }
}

impl<const S: usize, const P: usize> HasTable<Table> for StreamsAndSubscriptions<S, P> {
    fn table(&self) -> &Table {
        &self.subscriptions
    }

    fn wrap(change: Change) -> Change {
        change
    }

    fn part(change: &Change) -> Option<&Change> {
        Some(change)
    }

    fn refused(refusal: Declined) -> Option<Declined> {
        Some(refusal)
    }
}

impl<const S: usize, const P: usize> HasTable<tidings_streams::Table> for StreamsAndSubscriptions<S, P> {
    fn table(&self) -> &tidings_streams::Table {
        &self.streams
    }

    fn wrap(change: tidings_streams::Change) -> Change {
        Change::Streams(change)
    }

    fn part(change: &Change) -> Option<&tidings_streams::Change> {
        match change {
            Change::Streams(change) => Some(change),
            _ => None,
        }
    }

    fn refused(refusal: Declined) -> Option<tidings_streams::table::Declined> {
        match refusal {
            Declined::Streams(declined) => Some(declined),
            _ => None,
        }
    }
}
