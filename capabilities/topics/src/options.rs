//! Options of operations.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
#[cfg(doc)]
use tidings_model::limits;
use tokio_util::sync::CancellationToken;

use crate::history::Since;

/// How a change of subscriptions is made.
#[derive(Clone, Debug, Default)]
pub struct MutateOptions {
    /// Cancels the operation as long as it has not called the driver. Later it is ignored.
    pub cancel: Option<CancellationToken>,
    /// What the operation waits for.
    pub wait_for: WaitFor,
    /// How long a settled operation is waited for. Without effect on an optimistic one.
    pub timeout: Option<Duration>,
    /// Whether a settled operation asks the driver afterwards. Without effect on an optimistic one.
    pub verify: Verify,
    /// Time after which the topics that are subscribed to end by [`Topics::expire`](crate::Topics::expire), unless the same is
    /// done again in time. It counts also for topics that were subscribed to before.
    pub ttl: Option<Duration>,
    /// Places in the histories of topics: a new subscription hears what came after.
    pub recover: HashMap<String, Since>,
    /// Makes the connection a member of the topics that are subscribed to, also of those that were before. Others see this.
    pub presence: Option<PresenceInfo>,
}

/// What a member says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PresenceInfo {
    /// One JSON value as text, of at most [`limits::PRESENCE_INFO_BYTES`] bytes.
    pub info: Option<Bytes>,
}

/// What an operation waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitFor {
    /// Until the driver has accepted the change on this node.
    #[default]
    Optimistic,
    /// Until the driver has confirmed the change everywhere.
    Settled,
}

/// Whether an operation asks the driver afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// It does not.
    #[default]
    Off,
    /// It does, but the answer does not fail the operation.
    BestEffort,
    /// It does, and fails if the driver does not confirm the change.
    Strict,
}

/// How a subscription is verified.
#[derive(Clone, Debug, Default)]
pub struct VerifyOptions {
    /// What to do if the driver cannot tell.
    pub mode: VerifyMode,
    /// Cancels the operation.
    pub cancel: Option<CancellationToken>,
    /// How long the driver is waited for.
    pub timeout: Option<Duration>,
}

/// What to do if the driver cannot verify a subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerifyMode {
    /// Answer from the local state.
    #[default]
    BestEffort,
    /// Answer that it is unsupported.
    Strict,
}

/// How operations in flight are waited for.
#[derive(Clone, Debug, Default)]
pub struct SettleOptions {
    /// Cancels the wait.
    pub cancel: Option<CancellationToken>,
    /// How long to wait.
    pub timeout: Option<Duration>,
}

/// How a message is published.
#[derive(Clone, Debug, Default)]
pub struct PublishOptions {
    /// Whether the publishing connection does not receive the message. Without effect if there is none.
    pub exclude_self: bool,
    /// A hint for drivers that have partitions.
    pub partition_key: Option<String>,
}

impl MutateOptions {
    /// Waits until the change is settled.
    pub fn settled() -> Self {
        Self { wait_for: WaitFor::Settled, ..Self::default() }
    }

    /// Limits how long a settled operation is waited for.
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Cancels the operation with a token.
    pub fn cancelled_by(self, cancel: CancellationToken) -> Self {
        Self { cancel: Some(cancel), ..self }
    }

    /// Asks the driver afterwards.
    pub fn verified(self, verify: Verify) -> Self {
        Self { verify, ..self }
    }
}
