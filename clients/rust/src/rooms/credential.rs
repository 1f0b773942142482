//! Credentials of the reader.

use std::fmt;

/// Source of tokens.
pub trait Credential: Send {
    /// Token to send; `None` to send none.
    fn token(&self) -> Option<&str>;

    /// Obtains a new token after the server has refused the current one. Returns whether there is one.
    fn refresh(&mut self) -> impl Future<Output = bool> + Send;
}

/// No token, which is enough for a server that runs with `--dev`.
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

/// A fixed token that cannot be refreshed.
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
