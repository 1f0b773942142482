use tidings_engine::log::{CommitError, StoreError};
use tidings_streams::{ContentType, StreamError};

use crate::Declined;

/// Why something could not be done with a session. The message is fit for the client.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// There is no such session.
    #[error("there is no such session")]
    NotFound,
    /// The source of a subscription is not there.
    #[error("there is no such stream to subscribe to")]
    SourceNotFound,
    /// The id of a session is that of a stream which is none.
    #[error("the session's id is that of a stream which is not a session")]
    NotASession,
    /// The source is itself a session.
    #[error("a session cannot be subscribed to")]
    SourceIsSession,
    /// What the session has is of another kind.
    #[error("the session has {session}, and the stream has {source_type}")]
    ContentTypeMismatch {
        /// What the session has.
        session: ContentType,
        /// What the source has.
        source_type: ContentType,
    },
    /// Envelopes are JSON.
    #[error("only records of a stream of application/json can be shown in envelopes")]
    EnvelopeNeedsJson,
    /// Only fan-out appends to the stream of a session.
    #[error("only what a session subscribes to is appended to its stream")]
    SessionStream,
    /// The session hears as much as it may, or the source is heard by as many as it may.
    #[error("{0}")]
    TooMany(Declined),
    /// The project has as many sessions as it may.
    #[error("the project has {0} sessions, as many as it may")]
    TooManySessions(usize),
    /// Others changed the same at the same time, again and again.
    #[error("others are changing this; try again")]
    Contended,
    /// A stream could not.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

impl From<StoreError> for SessionError {
    fn from(error: StoreError) -> Self {
        Self::Stream(error.into())
    }
}

impl From<CommitError<Declined>> for SessionError {
    fn from(error: CommitError<Declined>) -> Self {
        match error {
            CommitError::Refused(refusal) => Self::Stream(refusal.into()),
            CommitError::Store(error) => error.into(),
            CommitError::Declined(Declined::Streams(declined)) => {
                Self::Stream(CommitError::Declined(declined).into())
            }
            CommitError::Declined(Declined::Moved) => Self::Contended,
            CommitError::Declined(Declined::SourceIsSession) => Self::SourceIsSession,
            CommitError::Declined(
                declined @ (Declined::TooManySources
                | Declined::TooManySubscribers
                | Declined::TooManyLeft
                | Declined::TooManyEnvelopeChanges),
            ) => Self::TooMany(declined),
        }
    }
}
