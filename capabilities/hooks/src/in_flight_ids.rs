//! Ids that are in use by a request: another request with the same id waits.
//!
//! Whether an id was used before is asked of the store, and remembering it takes a commit. In between, a second request
//! with the same id must not ask.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

/// Ids in use. Clones share the same set.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlightIds(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    ids: Mutex<HashSet<Box<[u8]>>>,
    released: Notify,
}

/// Some ids in use, until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldIds {
    held: Vec<Box<[u8]>>,
    of: Arc<Inner>,
}

impl InFlightIds {
    /// Takes all of the ids, as soon as none of them is in use. An id that is listed twice is taken once.
    pub(crate) async fn take(&self, ids: impl IntoIterator<Item = Box<[u8]>>) -> HeldIds {
        let ids: HashSet<Box<[u8]>> = ids.into_iter().collect();
        loop {
            let mut released = std::pin::pin!(self.0.released.notified());
            // From here on a release is noticed.
            released.as_mut().enable();
            if self.try_take(&ids) {
                return HeldIds { held: ids.into_iter().collect(), of: self.0.clone() };
            }
            released.await;
        }
    }

    fn try_take(&self, wanted: &HashSet<Box<[u8]>>) -> bool {
        let mut ids = self.0.ids.lock().expect("nobody panics while holding it");
        if wanted.iter().any(|id| ids.contains(id)) {
            return false;
        }
        ids.extend(wanted.iter().cloned());
        true
    }
}

impl Drop for HeldIds {
    fn drop(&mut self) {
        let mut ids = self.of.ids.lock().expect("nobody panics while holding it");
        self.held.iter().for_each(|id| {
            ids.remove(id);
        });
        drop(ids);
        self.of.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn ids<const N: usize>(ids: [&str; N]) -> [Box<[u8]>; N] {
        ids.map(|id| id.as_bytes().into())
    }

    #[tokio::test]
    async fn whoever_needs_an_id_in_use_waits_and_others_do_not() {
        let in_flight = InFlightIds::default();
        let first = in_flight.take(ids(["a", "b", "a"])).await;
        let mut second = std::pin::pin!(in_flight.take(ids(["b", "c"])));
        assert!(second.as_mut().now_or_never().is_none());
        let other = in_flight.take(ids(["c", "d"])).now_or_never().expect("free");
        drop(first);
        assert!(second.as_mut().now_or_never().is_none(), "c is in use");
        drop(other);
        drop(second.await);
        assert!(in_flight.0.ids.lock().expect("not poisoned").is_empty());
    }
}
