//! What can go wrong with a database.

use std::error::Error;
use std::time::Duration;

use tidings_entities::{AuthorizeError, SourceError};
use tokio_postgres::error::SqlState;

/// Oldest version of PostgreSQL that is supported, as `server_version_num` counts.
pub const OLDEST_VERSION: i32 = 150_000;

/// Why a database did not do what was asked. The messages are for operators.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The URL is not one of a database.
    #[error("the database URL is not valid: {0}")]
    Url(String),
    /// The database cannot be reached.
    #[error("cannot connect to the database: {0}")]
    Connect(String),
    /// The database could not be reached a moment ago.
    #[error("the database could not be reached ({why}); the next try is in {} ms", .wait.as_millis())]
    Waiting {
        /// Why it could not.
        why: String,
        /// Time until the next try.
        wait: Duration,
    },
    /// All connections are in use.
    #[error("all {0} connections to the database are in use")]
    Busy(usize),
    /// The database did not answer in time.
    #[error("the database did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The database is too old.
    #[error("the database is PostgreSQL {0}; tidings needs version 15 or later")]
    TooOld(String),
    /// The database only replays what another writes.
    #[error(
        "the database is a standby, which cannot be written to; name the primary, or all with several hosts in the URL"
    )]
    Standby,
    /// The schema `app` is missing, or not that of tidings.
    #[error("the schema of tidings is not in the database; run `tidings entities install` ({0})")]
    NotInstalled(String),
    /// The database is not set up for what is configured.
    #[error("{0}")]
    Misconfigured(String),
    /// Another node has taken over.
    #[error("another node reads the replication slot")]
    NotHeld,
    /// The publication of attached tables is missing where it is read.
    #[error("{0}")]
    PublicationMissing(String),
    /// The database has refused a statement.
    #[error("{0}")]
    Refused(String),
}

impl DatabaseError {
    /// Says what a statement's error means.
    pub(crate) fn of(error: &tokio_postgres::Error) -> Self {
        let missing = [
            SqlState::INVALID_SCHEMA_NAME,
            SqlState::UNDEFINED_TABLE,
            SqlState::UNDEFINED_FUNCTION,
            SqlState::UNDEFINED_COLUMN,
        ];
        match error.code() {
            Some(code) if missing.contains(code) => Self::NotInstalled(message(error)),
            _ => Self::Refused(message(error)),
        }
    }
}

/// Message of an error with its cause, of which the error itself says little.
pub(crate) fn message(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
        return format!("{}{hint}", error.message());
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.ends_with(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

impl From<DatabaseError> for SourceError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::Misconfigured(what) => Self::Misconfigured(what),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl From<DatabaseError> for AuthorizeError {
    fn from(error: DatabaseError) -> Self {
        Self(error.to_string())
    }
}
