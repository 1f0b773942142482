//! Signing keys, the key ids and API keys derived from them, and the admin key.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tidings_model::{ProjectId, limits};

/// A source of secrets: the operating system, except in tests.
pub trait Randomness: Send + Sync + 'static {
    /// Fills the bytes with cryptographically secure random values.
    fn fill(&self, bytes: &mut [u8]);
}

/// Why a text is not a valid key. The message does not contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// The text is so short that it could be guessed.
    #[error("a key is at least {} bytes", limits::KEY_BYTES_MIN)]
    TooShort,
    /// The text is longer than the limit.
    #[error("a key may have at most {} bytes", limits::KEY_BYTES_MAX)]
    TooLong,
    /// The text has a character that cannot be sent in a header, or would be trimmed.
    #[error("a key must be printable ASCII without spaces")]
    Character,
    /// The text could be taken for another kind of credential.
    #[error("an admin key must not begin with `ns_` or contain dots")]
    LooksOtherwise,
}

/// A secret that signs the tokens of a project. The key bytes are those of its text, so that any library for
/// tokens can use it as it is printed.
#[derive(Clone)]
pub struct Key {
    secret: Arc<str>,
    kid: Kid,
}

/// The public id of a key, derived from the key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kid(Arc<str>);

impl Kid {
    /// A key id as a client sent it. There may be no such key.
    pub fn named(text: &str) -> Self {
        Self(text.into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Kid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Labels of derived values. Each use has its own, so that one value reveals nothing about another.
const KID: &[u8] = b"tidings key id";
const API_KEY: &[u8] = b"tidings api key";

const KID_BYTES: usize = 8;
const API_TOKEN_BYTES: usize = 20;
const DRAWN_BYTES: usize = 32;

impl Key {
    /// Parses a key that somebody chose.
    pub fn parse(text: &str) -> Result<Self, InvalidKey> {
        check(text)?;
        let kid = Kid(hex(&mac(text.as_bytes(), KID)[..KID_BYTES]).into());
        Ok(Self { secret: text.into(), kid })
    }

    /// Generates a key.
    pub fn draw(randomness: &dyn Randomness) -> Self {
        Self::parse(&draw(randomness)).expect("hexadecimal digits are a key")
    }

    /// The public id of the key.
    pub fn kid(&self) -> &Kid {
        &self.kid
    }

    /// The secret itself, to be shown once to its owner, or stored.
    pub fn reveal(&self) -> &str {
        &self.secret
    }

    /// The API key of a project that belongs to this key: `ns_<project>_<token>`. It is a secret as well.
    pub fn api_key(&self, project: &ProjectId) -> String {
        format!("{API_KEY_PREFIX}{project}_{}", self.api_token())
    }

    pub(crate) fn has_api_token(&self, token: &str) -> bool {
        self.api_token().as_bytes().ct_eq(token.as_bytes()).into()
    }

    fn api_token(&self) -> String {
        hex(&mac(self.secret.as_bytes(), API_KEY)[..API_TOKEN_BYTES])
    }

    pub(crate) fn sign(&self, text: &[u8]) -> [u8; 32] {
        mac(self.secret.as_bytes(), text)
    }

    pub(crate) fn has_signed(&self, text: &[u8], signature: &[u8]) -> bool {
        self.sign(text).ct_eq(signature).into()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.kid)
    }
}

/// Prefix of API keys.
pub const API_KEY_PREFIX: &str = "ns_";

/// Splits an API key into project and token. A project id may contain underscores, a token does not.
pub(crate) fn split_api_key(text: &str) -> Option<(ProjectId, &str)> {
    let (project, token) = text.strip_prefix(API_KEY_PREFIX)?.rsplit_once('_')?;
    Some((ProjectId::parse(project).ok()?, token))
}

/// The operator's key, which creates and removes projects. Only its digest is stored.
#[derive(Clone)]
pub struct AdminKey(Box<str>);

impl AdminKey {
    /// Parses a key that somebody chose.
    pub fn parse(text: &str) -> Result<Self, InvalidKey> {
        check(text)?;
        if text.starts_with(API_KEY_PREFIX) || text.contains('.') {
            return Err(InvalidKey::LooksOtherwise);
        }
        Ok(Self(text.into()))
    }

    /// Generates a key.
    pub fn draw(randomness: &dyn Randomness) -> Self {
        Self(format!("admin_{}", draw(randomness)).into())
    }

    /// The secret itself, to be shown once.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The digest that is stored.
    pub fn digest(&self) -> AdminDigest {
        AdminDigest::of(&self.0)
    }
}

impl fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminKey(..)")
    }
}

/// The stored digest of an admin key. The key is random or long, so the digest cannot be inverted by trying.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AdminDigest(pub [u8; 32]);

impl AdminDigest {
    /// The digest of any text.
    pub fn of(text: &str) -> Self {
        Self(digest(text))
    }

    pub(crate) fn is_of(&self, text: &str) -> bool {
        self.0.ct_eq(&Self::of(text).0).into()
    }
}

impl fmt::Debug for AdminDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminDigest(..)")
    }
}

pub(crate) fn check(text: &str) -> Result<(), InvalidKey> {
    match text.len() {
        length if length < limits::KEY_BYTES_MIN => Err(InvalidKey::TooShort),
        length if length > limits::KEY_BYTES_MAX => Err(InvalidKey::TooLong),
        _ if !text.bytes().all(|byte| byte.is_ascii_graphic()) => Err(InvalidKey::Character),
        _ => Ok(()),
    }
}

pub(crate) fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

fn draw(randomness: &dyn Randomness) -> String {
    let mut bytes = [0; DRAWN_BYTES];
    randomness.fill(&mut bytes);
    hex(&bytes)
}

fn mac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(text);
    mac.finalize().into_bytes().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "a-secret-of-some-length";

    fn project(id: &str) -> ProjectId {
        ProjectId::parse(id).expect("a valid id")
    }

    #[test]
    fn a_key_is_16_to_1024_printable_bytes() {
        assert_eq!(Key::parse("fifteen-bytes-x").unwrap_err(), InvalidKey::TooShort);
        assert!(Key::parse("sixteen-bytes-xx").is_ok());
        assert_eq!(Key::parse(&"x".repeat(1025)).unwrap_err(), InvalidKey::TooLong);
        assert_eq!(Key::parse("has a space, which is cut").unwrap_err(), InvalidKey::Character);
        assert_eq!(AdminKey::parse("ns_looks_like_an_api_key").unwrap_err(), InvalidKey::LooksOtherwise);
        assert_eq!(AdminKey::parse("looks.like.a-token").unwrap_err(), InvalidKey::LooksOtherwise);
    }

    #[test]
    fn an_api_key_names_its_project_even_if_that_has_underscores() {
        let key = Key::parse(SECRET).expect("long enough");
        let text = key.api_key(&project("my_app"));
        let (named, token) = split_api_key(&text).expect("an API key");
        assert_eq!(named, project("my_app"));
        assert!(!token.contains('_'));
        assert!(key.has_api_token(token));
        assert!(!key.has_api_token(&token[1..]));
        assert!(!key.has_api_token(""));
    }

    #[test]
    fn nothing_secret_is_shown_by_debug() {
        let key = Key::parse(SECRET).expect("long enough");
        let admin = AdminKey::parse("an-admin-key-of-some-length").expect("long enough");
        let shown = format!("{key:?} {admin:?} {:?}", admin.digest());
        assert!(!shown.contains("secret") && !shown.contains("of-some-length"), "{shown}");
        assert!(shown.contains(key.kid().as_str()));
    }
}
