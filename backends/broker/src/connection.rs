//! The task of a bus: connects, serves the connection, and connects again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use tidings_engine::bus::messages::BusError;
use tidings_model::limits;
use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::bus::Shared;
use crate::link::{Command, Event, Link};
use crate::state::{Answer, Change};

/// Time between looks at what takes too long.
const LOOK: Duration = Duration::from_millis(250);
/// Events that are taken before others get a turn.
const EVENTS_AT_ONCE: usize = 256;

/// Keeps a connection to the broker, for ever.
pub(crate) async fn keep(shared: Arc<Shared>, attempted: watch::Sender<bool>) {
    let (options, context) = (&shared.options, &shared.context);
    let mut backoff = Backoff::new(options.pause_min, options.pause_max);
    let mut reported: Option<String> = None;
    let broker = shared.broker.name();
    loop {
        match connect(&shared).await {
            Ok(link) => {
                tracing::info!(broker, "the bus is connected");
                reported = None;
                shared.metrics.connections.count();
                shared.metrics.connected.set(1);
                let since = context.clock.elapsed();
                shared.lock().connected();
                attempted.send_replace(true);
                let why = Connection::new(&shared, link).serve().await;
                shared.metrics.connected.set(0);
                tracing::warn!(broker, why, "the bus has lost its connection and tries to get it back");
                // A broker that accepts connections only to end them is not asked more and more often.
                if context.clock.elapsed().saturating_sub(since) >= options.pause_max {
                    backoff.reset();
                }
            }
            Err(why) => {
                // Once for each reason, not for each attempt.
                if reported.as_ref() != Some(&why) {
                    tracing::warn!(broker, why, "the bus is not connected; it keeps trying");
                }
                shared.lock().away();
                reported = Some(why);
                attempted.send_replace(true);
            }
        }
        context.clock.sleep(backoff.pause(&context.rng)).await;
    }
}

async fn connect(shared: &Shared) -> Result<Box<dyn Link>, String> {
    let timeout = shared.options.connect_timeout;
    match select(shared.broker.connect(), shared.context.clock.sleep(timeout)).await {
        Either::Left((connected, _)) => connected,
        Either::Right(_) => Err(format!("no connection within {timeout:?}")),
    }
}

/// A connection while it lasts.
struct Connection<'a> {
    shared: &'a Shared,
    link: Box<dyn Link>,
    /// Commands that are not answered, the oldest first.
    unanswered: VecDeque<Unanswered>,
    /// When the broker was last heard of, on the monotonic clock.
    heard: Duration,
}

/// A command that is not answered.
struct Unanswered {
    asks: Asks,
    at: Duration,
}

enum Asks {
    Publish(Answer),
    Subscribe(Arc<str>, u64),
    Ping,
}

impl<'a> Connection<'a> {
    fn new(shared: &'a Shared, link: Box<dyn Link>) -> Self {
        Self { shared, link, unanswered: VecDeque::new(), heard: shared.context.clock.elapsed() }
    }

    /// Serves the connection until it ends. Returns why.
    async fn serve(mut self) -> String {
        let why = self.run().await;
        // Clients are told this. What exactly has happened is for operators, in the log.
        let failed = BusError::Failed("the connection to the broker was lost".to_owned());
        let unsent = {
            let mut state = self.shared.lock();
            state.away();
            std::iter::from_fn(|| state.queue.take()).map(|publish| publish.answer).collect::<Vec<_>>()
        };
        let unanswered = self.unanswered.into_iter().filter_map(|one| match one.asks {
            Asks::Publish(answer) => Some(answer),
            Asks::Subscribe(..) | Asks::Ping => None,
        });
        for answer in unanswered.chain(unsent) {
            // Whoever has dropped the future is not interested.
            let _ = answer.send(Err(failed.clone()));
        }
        why
    }

    async fn run(&mut self) -> String {
        let clock = &self.shared.context.clock;
        let mut look: BoxFuture<'static, ()> = clock.sleep(LOOK);
        loop {
            self.hand_over();
            let link = &mut self.link;
            let happened = tokio::select! {
                event = std::future::poll_fn(|cx| link.poll_event(cx)) => Some(event),
                () = self.shared.work.notified() => None,
                () = &mut look => {
                    look = clock.sleep(LOOK);
                    if let Err(why) = self.look() {
                        return why;
                    }
                    None
                }
            };
            let taken = match happened {
                Some(Ok(event)) => self.take(event),
                Some(Err(why)) => Err(why),
                None => Ok(()),
            };
            if let Err(why) = taken {
                return why;
            }
        }
    }

    /// Begins what waits to be sent, as long as there is room.
    fn hand_over(&mut self) {
        let at = self.shared.context.clock.elapsed();
        let mut state = self.shared.lock();
        while !self.link.is_full() && self.unanswered.len() < limits::BUS_UNANSWERED {
            let asks = match state.next_change() {
                Some(Change::Subscribe(channel, told)) => {
                    self.link.begin(Command::Subscribe(&channel));
                    Asks::Subscribe(channel, told)
                }
                Some(Change::Unsubscribe(channel)) => {
                    self.link.begin(Command::Unsubscribe(&channel));
                    continue;
                }
                None => {
                    let Some(publish) = state.queue.take() else { return };
                    self.link.begin(Command::Publish(&publish.channel, &publish.message));
                    Asks::Publish(publish.answer)
                }
            };
            self.unanswered.push_back(Unanswered { asks, at });
        }
    }

    /// Takes an event and those that have come with it.
    fn take(&mut self, event: Event) -> Result<(), String> {
        self.heard = self.shared.context.clock.elapsed();
        self.take_one(event)?;
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 1..EVENTS_AT_ONCE {
            // The link is polled again with a real waker before the task waits.
            match self.link.poll_event(&mut cx) {
                std::task::Poll::Ready(event) => self.take_one(event?)?,
                std::task::Poll::Pending => break,
            }
        }
        Ok(())
    }

    fn take_one(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Ready => Ok(()),
            Event::Done(count) => (0..count).try_for_each(|_| self.answer(Ok(()))),
            Event::Refused(why) => {
                tracing::warn!(
                    broker = self.shared.broker.name(),
                    why,
                    "the broker has refused what the bus asked for"
                );
                self.answer(Err(BusError::Failed("the broker has refused it".to_owned())))
            }
            Event::Message { channel, message } => {
                self.shared.metrics.received.count();
                // Others may use the broker too.
                if let Ok(channel) = std::str::from_utf8(&channel) {
                    self.shared.lock().deliver(channel, &message);
                }
                Ok(())
            }
        }
    }

    /// Answers the oldest command.
    fn answer(&mut self, result: Result<(), BusError>) -> Result<(), String> {
        let Some(Unanswered { asks, .. }) = self.unanswered.pop_front() else {
            return Err("the broker has answered what it was not asked".to_owned());
        };
        match asks {
            Asks::Publish(answer) => {
                let _ = answer.send(result);
            }
            Asks::Subscribe(channel, told) => {
                self.shared.lock().answered(&channel, told, result);
            }
            Asks::Ping => {}
        }
        Ok(())
    }

    /// Ends what takes too long, and asks for a sign of life.
    fn look(&mut self) -> Result<(), String> {
        let options = &self.shared.options;
        let now = self.shared.context.clock.elapsed();
        while let Some(publish) = {
            let before = now.checked_sub(options.queue_timeout);
            before.and_then(|before| self.shared.lock().queue.take_older(before))
        } {
            let _ = publish.answer.send(Err(BusError::Full));
        }
        match self.unanswered.front() {
            Some(oldest) if now.saturating_sub(oldest.at) >= options.answer_timeout => {
                return Err(format!("no answer within {:?}", options.answer_timeout));
            }
            Some(_) => {}
            None if now.saturating_sub(self.heard) >= options.ping_after => {
                self.link.begin(Command::Ping);
                self.unanswered.push_back(Unanswered { asks: Asks::Ping, at: now });
            }
            None => {}
        }
        Ok(())
    }
}
