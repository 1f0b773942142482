//! Where a reader resumes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Bytes that a cursor may have. Those of today have 26.
const CURSOR_BYTES: usize = 64;

/// The position of an event in its room, as the server prints it. It is stored, sent back and compared for equality; what is
/// in it and which of two is the later one is the server's business, so there is no order here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cursor(Arc<str>);

/// The text is no cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cursor is 1 to {CURSOR_BYTES} letters and digits")]
pub struct BadCursor;

impl Cursor {
    /// As the server prints it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Cursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let fits = (1..=CURSOR_BYTES).contains(&text.len());
        // It goes into URLs and files.
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
