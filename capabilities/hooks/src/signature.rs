//! Signatures of deliveries, by Standard Webhooks 1.0: `v1,` and the HMAC-SHA256 of id, timestamp and body.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tidings_model::Timestamp;

/// Prefix of a printed secret.
const PREFIX: &str = "whsec_";
/// Bytes of a secret that is drawn.
const BYTES: usize = 32;

/// A secret that signs the deliveries of a hook. It is shown once, when it is made.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// Makes a secret of random bytes that `fill` provides.
    pub fn draw(fill: &dyn Fn(&mut [u8])) -> Self {
        let mut bytes = vec![0; BYTES];
        fill(&mut bytes);
        Self(bytes.into())
    }

    /// A secret as it is stored.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// The bytes of the secret, to be stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The secret as its owner needs it: `whsec_` and base64.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}", STANDARD.encode(&self.0))
    }

    fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(id.as_bytes());
        mac.update(b".");
        mac.update(timestamp.to_string().as_bytes());
        mac.update(b".");
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The secrets of a hook: the current one, and while it is being rotated the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secrets {
    /// The current secret.
    pub current: Secret,
    /// The previous secret, and when it stops to sign.
    pub previous: Option<(Secret, Timestamp)>,
}

impl Secrets {
    /// The value of `webhook-signature`: one signature for each secret that is valid at `now`, separated by spaces.
    /// `timestamp` is the time of the attempt in seconds, as `webhook-timestamp` has it.
    pub fn sign(&self, id: &str, timestamp: u64, body: &[u8], now: Timestamp) -> String {
        let mut signature = self.current.sign(id, timestamp, body);
        if let Some((previous, _)) = self.previous.as_ref().filter(|(_, until)| now < *until) {
            signature.push(' ');
            signature.push_str(&previous.sign(id, timestamp, body));
        }
        signature
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret::draw(&|bytes| bytes.fill(byte))
    }

    /// The time of the system, in seconds: the public library refuses other timestamps.
    fn system_seconds() -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.expect("after 1970").as_secs()
    }

    /// Verifies by the public library.
    fn verifies(secret: &Secret, body: &[u8], id: &str, timestamp: u64, signature: &str) -> bool {
        let webhook = standardwebhooks::Webhook::new(&secret.reveal()).expect("a secret");
        let mut headers = http::HeaderMap::new();
        for (name, value) in [
            ("webhook-id", id),
            ("webhook-timestamp", &timestamp.to_string()),
            ("webhook-signature", signature),
        ] {
            headers.insert(name, value.parse().expect("a header value"));
        }
        webhook.verify(body, &headers).is_ok()
    }

    #[test]
    fn the_public_library_verifies_a_signature_and_refuses_a_changed_body() {
        let seconds = system_seconds();
        let now = Timestamp::from_millis(seconds * 1000);
        let secrets = Secrets { current: secret(7), previous: None };
        let signature = secrets.sign("MSG1", seconds, b"{\"a\":1}", now);
        assert!(verifies(&secrets.current, b"{\"a\":1}", "MSG1", seconds, &signature));
        assert!(!verifies(&secrets.current, b"{\"a\":2}", "MSG1", seconds, &signature));
        assert!(!verifies(&secrets.current, b"{\"a\":1}", "MSG2", seconds, &signature));
        assert!(!verifies(&secrets.current, b"{\"a\":1}", "MSG1", seconds - 1, &signature));
        assert!(!verifies(&secret(8), b"{\"a\":1}", "MSG1", seconds, &signature));
    }

    #[test]
    fn both_secrets_sign_while_one_is_rotated_and_only_the_new_one_afterwards() {
        let seconds = system_seconds();
        let now = Timestamp::from_millis(seconds * 1000);
        let later = Timestamp::from_millis(seconds * 1000 + 1);
        for (until, old) in [(later, true), (now, false)] {
            let secrets = Secrets { current: secret(2), previous: Some((secret(1), until)) };
            let signature = secrets.sign("MSG", seconds, b"x", now);
            assert!(verifies(&secret(2), b"x", "MSG", seconds, &signature));
            assert_eq!(verifies(&secret(1), b"x", "MSG", seconds, &signature), old);
        }
    }

    #[test]
    fn a_secret_is_not_shown_by_debug() {
        let secrets = Secrets { current: secret(1), previous: Some((secret(2), Timestamp::from_millis(1))) };
        assert!(!format!("{secrets:?}").contains(&secret(1).reveal()[6..12]));
        assert_eq!(format!("{:?}", secret(1)), "Secret(..)");
    }
}
