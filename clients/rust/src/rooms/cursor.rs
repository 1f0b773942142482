//! Where a reader resumes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Maximum bytes of a cursor. Current servers use 26.
const CURSOR_BYTES: usize = 64;

/// Position of an event in its room, as the server prints it. Clients store it, send it back and compare it
/// for equality; its content and order are known to the server only, so cursors have no `Ord`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cursor(Arc<str>);

/// The text is not a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cursor is 1 to {CURSOR_BYTES} letters and digits")]
pub struct BadCursor;

impl Cursor {
    /// The cursor as the server prints it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Cursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let fits = (1..=CURSOR_BYTES).contains(&text.len());
        // Cursors go into URLs and files.
        if fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            Ok(Self(text.into()))
        } else {
            Err(BadCursor)
        }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}
