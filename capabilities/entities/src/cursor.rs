//! Cursors: how far somebody has heard the changes of a source.

use std::fmt;
use std::sync::Arc;

use tidings_model::limits;

/// A position in the changes of a source, valid on every node. Only its source understands the text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cursor(Arc<str>);

/// The text is not a cursor of this source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`since` is not a cursor of this server")]
pub struct InvalidCursor;

impl Cursor {
    /// Makes a cursor of the text that a source has chosen for a position: letters, digits and `-_.:,~`.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Takes a cursor that a client gives back. Whether it is one is decided by the source that reads from it.
    pub fn parse(text: &str) -> Result<Self, InvalidCursor> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:,~".contains(&byte);
        let fits = (1..=limits::ENTITY_CURSOR_BYTES).contains(&text.len());
        if fits && text.bytes().all(plain) { Ok(Self(text.into())) } else { Err(InvalidCursor) }
    }

    /// Cursor as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
