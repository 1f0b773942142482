//! Tasks that make attempts. Each makes many at a time, and hands over what ended in batches.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::attempt::{Attempts, Ended, Job};
use super::bodies::Bodies;
use super::inbox::Inbox;

/// Tasks that make attempts. Dropping it cancels them.
pub(super) struct Workers {
    queues: Vec<mpsc::UnboundedSender<Job>>,
    next: usize,
    _tasks: JoinSet<()>,
}

impl Workers {
    /// Starts some workers.
    pub(super) fn start(count: usize, attempts: &Arc<Attempts>, inbox: &Arc<Inbox>) -> Self {
        let mut tasks = JoinSet::new();
        let queues = (0..count.max(1)).map(|_| {
            // Bounded by the limit on attempts at a time.
            let (queue, jobs) = mpsc::unbounded_channel();
            tasks.spawn(work(jobs, attempts.clone(), inbox.clone()));
            queue
        });
        Self { queues: queues.collect(), next: 0, _tasks: tasks }
    }

    /// Begins an attempt.
    pub(super) fn begin(&mut self, job: Job) {
        self.next = (self.next + 1) % self.queues.len();
        // A worker lives as long as its queue.
        let _ = self.queues[self.next].send(job);
    }
}

async fn work(mut jobs: mpsc::UnboundedReceiver<Job>, attempts: Arc<Attempts>, inbox: Arc<Inbox>) {
    let (mut running, mut bodies, mut ended) = (FuturesUnordered::new(), Bodies::default(), Vec::new());
    let step = |cx: &mut Context<'_>| {
        loop {
            let begun = running.len();
            while let Poll::Ready(job) = jobs.poll_recv(cx) {
                let Some(job) = job else { return Poll::Ready(()) };
                running.push(attempts.begin(job, &mut bodies));
            }
            let more = running.len() > begun;
            let before = ended.len();
            while let Poll::Ready(Some(done)) = running.poll_next_unpin(cx) {
                let done: Ended = done;
                ended.push(done);
            }
            if !more && ended.len() == before {
                break;
            }
        }
        if !ended.is_empty() {
            inbox.ended(&mut ended);
        }
        Poll::Pending
    };
    poll_fn(step).await;
}
