use tidings_engine::log::{CommitError, StoreError};
use tidings_streams::{ContentType, StreamError};

use crate::Declined;

/// Error of an operation on a session. The message may be shown to the client.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The session does not exist.
    #[error("there is no such session")]
    NotFound,
    /// The stream to subscribe to does not exist.
    #[error("there is no such stream to subscribe to")]
    SourceNotFound,
    /// The session id is the id of a stream that is not a session.
    #[error("the session's id is that of a stream which is not a session")]
    NotASession,
    /// The stream to subscribe to is itself a session.
    #[error("a session cannot be subscribed to")]
    SourceIsSession,
    /// The session and the source have different content types.
    #[error("the session has {session}, and the stream has {source_type}")]
    ContentTypeMismatch {
        /// Content type of the session.
        session: ContentType,
        /// Content type of the source.
        source_type: ContentType,
    },
    /// Envelopes were requested for a source that is not JSON.
    #[error("only records of a stream of application/json can be shown in envelopes")]
    EnvelopeNeedsJson,
    /// A client tried to append to a session's stream. Only fan-out may do that.
    #[error("only what a session subscribes to is appended to its stream")]
    SessionStream,
    /// A limit on subscriptions is reached, of the session or of the source.
    #[error("{0}")]
    TooMany(Declined),
    /// The project has reached its limit of sessions.
    #[error("the project has {0} sessions, as many as it may")]
    TooManySessions(usize),
    /// Every attempt collided with a concurrent change.
    #[error("others are changing this; try again")]
    Contended,
    /// The operation failed on the underlying stream.
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
