//! Keep-alive: a peer that is silent for a while gets a ping, and one that stays silent is given up.

use std::time::Duration;

use tidings_model::{Timestamp, limits};

/// Time limits for a silent peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Silence before a ping is sent.
    pub ping_after: Duration,
    /// Silence before the peer is given up; longer than `ping_after`.
    pub dead_after: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { ping_after: limits::WEBSOCKET_PING_AFTER, dead_after: limits::WEBSOCKET_DEAD_AFTER }
    }
}

/// What to do about a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Check again at that moment.
    Wait(Timestamp),
    /// Send a ping with this payload, and check again.
    Ping([u8; 8]),
    /// Give the peer up.
    Dead,
}

/// The time of the peer's last sign of life, and whether it was pinged since.
#[derive(Clone, Copy, Debug)]
pub struct KeepAlive {
    timeouts: Timeouts,
    last_received: Timestamp,
    asked: Option<Timestamp>,
}

impl KeepAlive {
    /// A peer that is alive now.
    pub fn new(timeouts: Timeouts, now: Timestamp) -> Self {
        Self { timeouts, last_received: now, asked: None }
    }

    /// Reports that anything was received from the peer.
    pub fn received(&mut self, now: Timestamp) {
        self.last_received = now;
        self.asked = None;
    }

    /// Time for which the peer has been silent although it was pinged; zero if it was not.
    pub fn silent_for(&self, now: Timestamp) -> Duration {
        // If this process was suspended, the peer is given the time to answer the ping all the same.
        self.asked.map_or(Duration::ZERO, |asked| {
            now.since(self.last_received).min(now.since(asked) + self.timeouts.ping_after)
        })
    }

    /// Decides what to do now. Each silence gets one ping: the transport is reliable.
    pub fn check(&mut self, now: Timestamp) -> Check {
        // A clock that was set back must not make the wait longer.
        self.last_received = self.last_received.min(now);
        self.asked = self.asked.map(|asked| asked.min(now));
        match self.asked {
            None => {
                let due = self.last_received + self.timeouts.ping_after;
                if now < due {
                    return Check::Wait(due);
                }
                self.asked = Some(now);
                // The payload is the time of the ping, so that the pong tells the round-trip time.
                Check::Ping(now.as_millis().to_be_bytes())
            }
            // Counted from the ping and not from the silence: if this process was suspended, the peer had no
            // chance to answer.
            Some(asked) => {
                let due = asked + self.timeouts.dead_after.saturating_sub(self.timeouts.ping_after);
                if now < due { Check::Wait(due) } else { Check::Dead }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: Timeouts =
        Timeouts { ping_after: Duration::from_millis(30), dead_after: Duration::from_millis(50) };

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn ping(millis: u64) -> Check {
        Check::Ping(millis.to_be_bytes())
    }

    #[test]
    fn a_silent_peer_is_asked_once_and_then_given_up() {
        let mut peer = KeepAlive::new(TIMEOUTS, at(1000));
        assert_eq!(peer.check(at(1000)), Check::Wait(at(1030)));
        assert_eq!(peer.check(at(1029)), Check::Wait(at(1030)));
        assert_eq!(peer.check(at(1030)), ping(1030));
        assert_eq!(peer.check(at(1030)), Check::Wait(at(1050)));
        assert_eq!(peer.check(at(1049)), Check::Wait(at(1050)));
        assert_eq!(peer.check(at(1050)), Check::Dead);
    }

    #[test]
    fn whatever_is_heard_begins_the_wait_anew() {
        let mut peer = KeepAlive::new(TIMEOUTS, at(1000));
        peer.received(at(1020));
        assert_eq!(peer.check(at(1030)), Check::Wait(at(1050)));
        assert_eq!(peer.check(at(1050)), ping(1050));
        peer.received(at(1069));
        assert_eq!(peer.check(at(1070)), Check::Wait(at(1099)));
        assert_eq!(peer.check(at(1099)), ping(1099));
    }

    #[test]
    fn a_server_that_slept_asks_before_it_gives_up() {
        let mut peer = KeepAlive::new(TIMEOUTS, at(1000));
        assert_eq!(peer.check(at(9000)), ping(9000));
        assert_eq!(peer.check(at(9019)), Check::Wait(at(9020)));
        assert_eq!(peer.check(at(9020)), Check::Dead);
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_lengthen_the_wait() {
        let mut peer = KeepAlive::new(TIMEOUTS, at(1000));
        assert_eq!(peer.check(at(500)), Check::Wait(at(530)));
        assert_eq!(peer.check(at(530)), ping(530));
        assert_eq!(peer.check(at(100)), Check::Wait(at(120)));
        assert_eq!(peer.check(at(120)), Check::Dead);
    }
}
