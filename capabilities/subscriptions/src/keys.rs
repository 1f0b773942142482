//! Keys of a project: they sign webhooks (Ed25519) and tokens of wakes (HMAC-SHA256).

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use ring::signature::{Ed25519KeyPair, KeyPair};
use sha2::{Digest, Sha256};
use tidings_model::{LogId, Timestamp};

/// Prefix of a key's id.
const KID_PREFIX: &str = "ds_";
/// Prefix of a token. No credential of a project has it.
const TOKEN_PREFIX: &str = "dsw_";

/// The secret from which the keys of a project are derived. It is stored, and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Seed([u8; 32]);

impl Seed {
    /// Bytes of a seed.
    pub const BYTES: usize = 32;

    /// A seed as it is stored, or made of unpredictable bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, to be stored.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn pair(&self) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&self.0).expect("any 32 bytes are the seed of a key")
    }

    /// The public half of the key that signs webhooks.
    pub fn public(&self) -> PublicKey {
        let x = URL_SAFE_NO_PAD.encode(self.pair().public_key());
        // The thumbprint of RFC 7638: members in this order, without spaces.
        let thumbprint = Sha256::digest(format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#));
        PublicKey { kid: format!("{KID_PREFIX}{}", URL_SAFE_NO_PAD.encode(thumbprint)), x }
    }

    /// The value of `Webhook-Signature` for a body that is sent at a moment.
    pub fn sign(&self, now: Timestamp, body: &[u8]) -> String {
        let seconds = now.as_millis() / 1000;
        let mut signed = format!("{seconds}.").into_bytes();
        signed.extend_from_slice(body);
        let signature = URL_SAFE_NO_PAD.encode(self.pair().sign(&signed));
        format!("t={seconds},kid={},ed25519={signature}", self.public().kid)
    }

    /// A token for one wake of a subscription.
    pub fn token(&self, token: Token) -> String {
        let mut bytes = token.generation.to_be_bytes().to_vec();
        bytes.extend_from_slice(&token.expires_at.as_millis().to_be_bytes());
        let mac = self.mac(token.subscription, &bytes).finalize().into_bytes();
        bytes.extend_from_slice(&mac);
        format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// What a token of this subscription says. `None` if this project did not make it for this subscription.
    pub fn read(&self, subscription: LogId, text: &str) -> Option<Token> {
        let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix(TOKEN_PREFIX)?).ok()?;
        let (signed, mac) = bytes.split_at_checked(16)?;
        self.mac(subscription, signed).verify_slice(mac).ok()?;
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes).ok();
        let (generation, expires_at) = (number(&signed[..8])?, number(&signed[8..])?);
        Some(Token { subscription, generation, expires_at: Timestamp::from_millis(expires_at) })
    }

    fn mac(&self, subscription: LogId, signed: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(b"wake token");
        mac.update(&subscription.get().to_be_bytes());
        mac.update(signed);
        mac
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

/// Public half of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    /// Id, derived from the key.
    pub kid: String,
    /// The key, in base64url.
    pub x: String,
}

/// What a token says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The subscription: one life of it.
    pub subscription: LogId,
    /// Number of the wake.
    pub generation: u64,
    /// When the token ends to be valid.
    pub expires_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use ring::signature::{ED25519, UnparsedPublicKey};

    use super::*;

    #[test]
    fn a_signature_is_verified_with_the_public_key() {
        let seed = Seed::from_bytes([7; 32]);
        let value = seed.sign(Timestamp::from_millis(1_700_000_000_999), b"{\"a\":1}");
        let [t, kid, signature]: [&str; 3] =
            value.split(',').collect::<Vec<_>>().try_into().expect("three parts");
        assert_eq!(t, "t=1700000000");
        assert_eq!(kid, format!("kid={}", seed.public().kid));
        let signature =
            URL_SAFE_NO_PAD.decode(signature.strip_prefix("ed25519=").expect("named")).expect("base64");
        let public =
            UnparsedPublicKey::new(&ED25519, URL_SAFE_NO_PAD.decode(seed.public().x).expect("base64"));
        assert!(public.verify(b"1700000000.{\"a\":1}", &signature).is_ok());
        assert!(public.verify(b"1700000001.{\"a\":1}", &signature).is_err());
    }

    #[test]
    fn the_example_of_rfc_8037_has_its_key_and_thumbprint() {
        let d = URL_SAFE_NO_PAD.decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A").expect("base64");
        let public = Seed::from_bytes(d.try_into().expect("32 bytes")).public();
        assert_eq!(public.x, "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo");
        assert_eq!(public.kid, "ds_kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    }

    #[test]
    fn a_token_is_valid_for_its_subscription_in_its_project_only() {
        let (seed, other) = (Seed::from_bytes([1; 32]), Seed::from_bytes([2; 32]));
        let token =
            Token { subscription: LogId::new(7), generation: 3, expires_at: Timestamp::from_millis(9) };
        let text = seed.token(token);
        assert_eq!(seed.read(LogId::new(7), &text), Some(token));
        assert_eq!(seed.read(LogId::new(8), &text), None);
        assert_eq!(other.read(LogId::new(7), &text), None);
        for bad in ["", "dsw_", "dsw_AAAA", "dsw_!", &text[..text.len() - 1], &text[4..]] {
            assert_eq!(seed.read(LogId::new(7), bad), None, "{bad}");
        }
    }
}
