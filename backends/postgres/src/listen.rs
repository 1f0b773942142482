//! The connection that listens for wakes, and how long a reader waits for one.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use crate::database::Shared;
use crate::pool::Backoff;

/// Time between two checks that the listening connection still works.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Time until the reader looks again after a wake: not every transaction wakes, since only one at a time may.
const AFTER_WAKE: Duration = Duration::from_millis(5);
/// Longest time until the reader looks again while transactions are in progress, or shortly after a wake.
const BUSY: Duration = Duration::from_millis(100);
/// Time until the reader looks again when the database is idle.
const IDLE: Duration = Duration::from_secs(1);
/// Time until the reader looks again when nobody listens.
const DEAF: Duration = Duration::from_millis(250);
/// Looks in a row that found nothing, after which a database without transactions in progress counts as idle.
const QUIET_LOOKS: u32 = 12;

/// Listens, for as long as the server runs. A lost connection is opened again, without limit of tries.
pub(crate) async fn listen(shared: Arc<Shared>) {
    let mut backoff = Backoff::default();
    loop {
        if listen_once(&shared).await.is_ok() {
            backoff.reset();
        }
        shared.meters.listening.set(0);
        shared.listening.send_replace(false);
        let wait = backoff.next(&shared.rng);
        shared.clock.sleep(wait).await;
    }
}

/// Listens until the connection is lost. An error if it was never there.
async fn listen_once(shared: &Shared) -> Result<(), ()> {
    let target = shared.pool.target();
    let link = match target.connect(Some(shared.woken.clone())).await {
        Ok(link) => link,
        Err(error) => {
            tracing::debug!(project = shared.options.project, %error, "cannot listen to the database");
            return Err(());
        }
    };
    let begun =
        target.in_time(target.time_limits.statement, link.client.batch_execute("LISTEN tidings_outbox"));
    if !matches!(begun.await, Ok(Ok(()))) {
        return Err(());
    }
    shared.meters.listening.set(1);
    shared.listening.send_replace(true);
    // Whatever was committed while nobody listened.
    shared.woken.send_modify(|count| *count += 1);
    loop {
        tokio::select! {
            () = link.closed() => return Ok(()),
            () = shared.clock.sleep(CHECK_INTERVAL) => {}
        }
        let check = target.in_time(target.time_limits.statement, link.client.check_connection());
        if !matches!(check.await, Ok(Ok(()))) {
            return Ok(());
        }
    }
}

/// When the reader of a node looks again.
#[derive(Default)]
pub(crate) struct Pace(Mutex<State>);

#[derive(Default)]
struct State {
    /// Wakes that the reader has answered.
    answered: u64,
    /// Looks in a row that found nothing.
    empty: u32,
    /// Whether transactions were in progress at the last look.
    in_progress: bool,
}

impl Pace {
    /// Notes what a look has found.
    pub(crate) fn looked(&self, found: bool, in_progress: bool) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.empty = if found { 0 } else { state.empty.saturating_add(1) };
        state.in_progress = in_progress;
    }

    /// Waits until it is time to look again.
    pub(crate) async fn wait(&self, shared: &Shared) {
        let mut woken = shared.woken.subscribe();
        let mut listening = shared.listening.subscribe();
        let is_listening = *listening.borrow_and_update();
        let (answered, delay) = {
            let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            (state.answered, state.delay(is_listening))
        };
        let timer = shared.clock.sleep(delay);
        tokio::select! {
            biased;
            // The senders are in `shared`.
            count = woken.wait_for(|count| *count != answered) => {
                if let Ok(count) = count {
                    let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                    state.answered = *count;
                    state.empty = 0;
                }
            }
            // How long to wait is another question now.
            _ = listening.changed() => {}
            () = timer => {}
        }
    }
}

impl State {
    fn delay(&self, listening: bool) -> Duration {
        let growing = AFTER_WAKE.saturating_mul(1 << self.empty.min(10));
        match (growing < BUSY, listening) {
            (true, _) => growing,
            (false, false) => DEAF,
            (false, true) if self.in_progress || self.empty < QUIET_LOOKS => BUSY,
            (false, true) => IDLE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(in_progress: bool, listening: bool) -> Vec<u128> {
        let delay = |empty| State { answered: 0, empty, in_progress }.delay(listening).as_millis();
        [0, 1, 2, 3, 4, 5, 11, 12, 99].map(delay).to_vec()
    }

    #[test]
    fn a_reader_looks_soon_after_a_wake_and_seldom_when_idle() {
        assert_eq!(delays(false, true), [5, 10, 20, 40, 80, 100, 100, 1000, 1000]);
        assert_eq!(
            delays(true, true),
            [5, 10, 20, 40, 80, 100, 100, 100, 100],
            "some transaction may not wake"
        );
        assert_eq!(delays(false, false), [5, 10, 20, 40, 80, 250, 250, 250, 250], "nobody wakes");
    }
}
