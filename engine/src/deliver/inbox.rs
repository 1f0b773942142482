//! Inboxes: what one client receives, whichever way it subscribes.

use std::task::{Context, Poll, Waker};

use tidings_model::Position;

use super::Frame;
use super::bundle::BundleReader;
use super::conflated::ConflatedReader;
use super::subscription::{Step, Subscription};

/// Where the frames of a client come from.
pub enum Inbox {
    /// A log, or a combination of logs.
    Log(Subscription),
    /// The rings of many names.
    Bundle(BundleReader),
    /// One value of each key.
    Conflated(ConflatedReader),
}

impl Inbox {
    /// Passes the next frames to `take`, until they have at least `room` bytes. Pending when nothing is new;
    /// the waker may also be called spuriously.
    pub fn poll_frames(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        take: &mut impl FnMut(&Frame),
    ) -> Poll<Step> {
        match self {
            Self::Log(subscription) => subscription.poll_frames(cx, room, take),
            Self::Bundle(bundle) => bundle.poll_frames(cx, room, take),
            Self::Conflated(conflated) => conflated.poll_frames(cx, room, take),
        }
    }

    /// Position of the last record of a log that the client has taken.
    pub fn position(&self) -> Position {
        match self {
            Self::Log(subscription) => subscription.position(),
            Self::Bundle(_) | Self::Conflated(_) => Position::default(),
        }
    }

    /// Whether the client has ever reached the tail.
    pub fn has_caught_up(&self) -> bool {
        match self {
            Self::Log(subscription) => subscription.has_caught_up(),
            Self::Bundle(_) | Self::Conflated(_) => true,
        }
    }

    /// Number of records of a log that the client has not taken yet; `None` until it has reached the tail once.
    pub fn lag(&self) -> Option<u64> {
        match self {
            Self::Log(subscription) => subscription.lag(),
            Self::Bundle(_) | Self::Conflated(_) => None,
        }
    }

    /// Whether the client is more bytes behind than it may be.
    pub fn is_too_slow(&self) -> bool {
        match self {
            Self::Log(_) | Self::Conflated(_) => false,
            Self::Bundle(bundle) => bundle.is_too_slow(),
        }
    }

    /// Bytes of replies that the client has not taken yet.
    pub fn reply_bytes(&self) -> usize {
        match self {
            Self::Log(_) => 0,
            Self::Bundle(bundle) => bundle.reply_bytes(),
            Self::Conflated(conflated) => conflated.reply_bytes(),
        }
    }

    /// Passes what cannot be read again later to `take`, because the client's connection ends: replies, and messages that
    /// are not stored. Values of keys are left: the client learns of them when it resumes.
    pub fn take_rest(&mut self, take: &mut impl FnMut(&Frame)) {
        match self {
            Self::Log(_) => {}
            Self::Bundle(bundle) => {
                // What is there is bounded by what a client may be behind.
                let _ = bundle.poll_frames(&mut Context::from_waker(Waker::noop()), usize::MAX, take);
            }
            Self::Conflated(conflated) => conflated.take_replies(take),
        }
    }
}

impl From<Subscription> for Inbox {
    fn from(subscription: Subscription) -> Self {
        Self::Log(subscription)
    }
}

impl From<BundleReader> for Inbox {
    fn from(bundle: BundleReader) -> Self {
        Self::Bundle(bundle)
    }
}

impl From<ConflatedReader> for Inbox {
    fn from(conflated: ConflatedReader) -> Self {
        Self::Conflated(conflated)
    }
}
