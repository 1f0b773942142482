//! Who the reader is.

use std::fmt;

/// Where tokens come from.
pub trait Credential: Send {
    /// The token to send, if any.
    fn token(&self) -> Option<&str>;

    /// Gets a new token, because the server does not take this one. Whether there is one.
    fn refresh(&mut self) -> impl Future<Output = bool> + Send;
}

/// Nobody in particular, which is enough for a server that runs with `--dev`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCredential;

impl Credential for NoCredential {
    fn token(&self) -> Option<&str> {
        None
    }

    async fn refresh(&mut self) -> bool {
        false
    }
}

/// One token, and no other.
#[derive(Clone)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(…)")
    }
}

impl Credential for Token {
    fn token(&self) -> Option<&str> {
        Some(&self.0)
    }

    async fn refresh(&mut self) -> bool {
        false
    }
}
