//! Whether this node does the work that one node of a cluster does alone: expiry, retention, background delivery.
//!
//! Whoever does such work asks [`Leadership`] before each round of it. A node without others always leads.

use tokio::sync::watch;

/// What a node is to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It does the work.
    Leader,
    /// Another node does.
    Follower,
}

/// Tells whether this node leads, now and as that changes. Clones tell the same.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Role>);

impl Leadership {
    /// That of a node without others, which always leads.
    pub fn alone() -> Self {
        Self(watch::channel(Role::Leader).1)
    }

    /// As somebody says who knows. When that one has gone, what it said last stays.
    pub fn told(role: watch::Receiver<Role>) -> Self {
        Self(role)
    }

    /// Whether this node leads just now.
    pub fn is_held(&self) -> bool {
        *self.0.borrow() == Role::Leader
    }

    /// The term that begins now, or has begun since this node was last told what it is; none when it does not lead.
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

/// A time in which this node leads without a break.
#[derive(Clone, Debug)]
pub struct Term(watch::Receiver<Role>);

impl Term {
    /// Whether the node was told since what it is. It may lead again by now, but another may have led in between.
    pub fn is_over(&self) -> bool {
        self.0.borrow().has_changed()
    }
}

/// Work that is not done any more though it should be, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the duty `{duty}` has stopped: {why}")]
pub struct Stopped {
    /// Its name.
    pub duty: &'static str,
    /// The words of its panic, or that it ended.
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
