//! Replays: what a subscription has missed, read from the history and sent before what is published from then on.

use std::sync::Arc;

use bytes::Bytes;
use tidings_model::limits;

use crate::history::{History, HistoryError, TopicLog};
use crate::inner::Inner;

/// What a new subscription is to hear first.
pub(crate) struct Replay {
    pub(crate) inner: Arc<Inner>,
    pub(crate) history: History,
    pub(crate) log: Arc<TopicLog>,
    pub(crate) topic: Arc<str>,
    /// Number of the subscription, which ends with it.
    pub(crate) subscription: u64,
    /// The last offset that the client has heard.
    pub(crate) after: u64,
    /// The last offset before those that the subscription hears anyway.
    pub(crate) head: u64,
}

impl Replay {
    /// Sends what was missed, as fast as the client takes it, and then lets follow what was published meanwhile.
    pub(crate) async fn run(mut self) {
        if let Err(error) = self.send().await {
            tracing::warn!(topic = %self.topic, %error, "a replay has ended before its end; the subscription ends");
            // So that nobody takes what follows for the rest.
            if self.inner.lock().is_subscription(&self.topic, self.subscription) {
                self.inner.take_back(&self.topic).await;
            }
        }
    }

    async fn send(&mut self) -> Result<(), HistoryError> {
        loop {
            let member = &self.inner.member;
            std::future::poll_fn(|cx| member.poll_drained(cx)).await;
            let mut frames = Vec::new();
            if self.after < self.head {
                let read = self.history.read(&self.log, self.after, self.head, limits::HISTORY_PAGE).await?;
                let first = read.first().map(|(offset, ..)| *offset);
                // Positions are dense, so what is missing was trimmed.
                if first != Some(self.after + 1) {
                    return Err(HistoryError::Gone);
                }
                let own = self.inner.session();
                for (offset, sender, envelope) in read {
                    self.after = offset;
                    if sender.is_none() || sender != own {
                        let frame = self.inner.settings.driver.encode(&envelope);
                        frames.push(frame.map_err(|error| HistoryError::Unreadable(error.to_string()))?);
                    }
                }
            }
            let is_last = self.after >= self.head;
            let waker = {
                let state = self.inner.lock();
                // What was unsubscribed from says nothing any more.
                if !state.is_subscription(&self.topic, self.subscription) {
                    return Ok(());
                }
                for frame in frames {
                    drop(member.queue_reply(frame, []));
                }
                let released = is_last.then_some(&*self.topic);
                member.queue_reply(Bytes::new(), released)
            };
            if let Some(waker) = waker {
                waker.wake();
            }
            if is_last {
                return Ok(());
            }
        }
    }
}
