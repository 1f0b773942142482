//! Leadership: whether this node does the work that only one node of a cluster does, such as expiry, retention and
//! background delivery.
//!
//! Such work checks [`Leadership`] before each round. A node without a cluster always leads.

use tokio::sync::watch;

/// Role of a node in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The node does the work.
    Leader,
    /// Another node does the work.
    Follower,
}

/// Tells whether this node currently leads, and when that changes. Clones share the same state.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Role>);

impl Leadership {
    /// Leadership of a node without a cluster, which always leads.
    pub fn alone() -> Self {
        Self(watch::channel(Role::Leader).1)
    }

    /// Leadership that follows a watch channel. When the sender is dropped, the last role stays in effect.
    pub fn told(role: watch::Receiver<Role>) -> Self {
        Self(role)
    }

    /// Whether this node currently leads.
    pub fn is_held(&self) -> bool {
        *self.0.borrow() == Role::Leader
    }

    /// Returns the current term, or `None` when this node does not lead.
    pub fn term(&self) -> Option<Term> {
        let mut told = self.0.clone();
        let leads = *told.borrow_and_update() == Role::Leader;
        leads.then_some(Term(told))
    }

    /// Resolves when this node leads.
    pub async fn gained(&mut self) {
        self.wait_for(Role::Leader).await;
    }

    /// Resolves when this node does not lead.
    pub async fn lost(&mut self) {
        self.wait_for(Role::Follower).await;
    }

    async fn wait_for(&mut self, wanted: Role) {
        if self.0.wait_for(|role| *role == wanted).await.is_err() {
            std::future::pending().await
        }
    }
}

/// A period in which this node leads without interruption.
#[derive(Clone, Debug)]
pub struct Term(watch::Receiver<Role>);

impl Term {
    /// Whether the role was updated since the term was obtained. The node may lead again by now, but another node may
    /// have led in between.
    pub fn is_over(&self) -> bool {
        self.0.borrow().has_changed()
    }
}

/// Error: a background duty has stopped although it should be running.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the duty `{duty}` has stopped: {why}")]
pub struct Stopped {
    /// Name of the duty.
    pub duty: &'static str,
    /// Panic message, or a statement that the duty ended.
    pub why: String,
}

impl Default for Leadership {
    fn default() -> Self {
        Self::alone()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_node_without_others_always_leads() {
        let mut leadership = Leadership::alone();
        assert!(leadership.is_held());
        assert!(leadership.gained().now_or_never().is_some());
        assert!(leadership.lost().now_or_never().is_none());
    }

    #[test]
    fn a_node_among_others_leads_when_it_is_told_so() {
        let (tell, told) = watch::channel(Role::Follower);
        let mut leadership = Leadership::told(told);
        assert!(!leadership.is_held());
        assert!(leadership.gained().now_or_never().is_none());
        assert!(leadership.term().is_none());
        tell.send_replace(Role::Leader);
        assert!(leadership.is_held());
        assert!(leadership.gained().now_or_never().is_some());
        drop(tell);
        assert!(leadership.lost().now_or_never().is_none(), "what was said last stays");
    }

    #[test]
    fn a_term_is_over_when_the_node_was_told_anything_else_even_if_it_leads_again() {
        assert!(Leadership::alone().term().is_some_and(|term| !term.is_over()));
        let (tell, told) = watch::channel(Role::Leader);
        let leadership = Leadership::told(told);
        let first = leadership.term().expect("it leads");
        assert!(!first.is_over());
        tell.send_replace(Role::Follower);
        tell.send_replace(Role::Leader);
        drop(tell);
        assert!(first.is_over());
        assert!(leadership.term().is_some_and(|term| !term.is_over()));
    }
}
