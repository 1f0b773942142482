//! Deliveries as an endpoint receives them: what they say of themselves, and whether they are signed. Pure.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::{HeaderMap, Method, Uri, header};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tidings_hooks::ingest::time_text;
use tidings_hooks::{Secret, Secrets};
use tidings_model::Timestamp;

use super::printable::{body, printable};
use crate::greeting::TerminalStyle;

/// Prefix of a printed secret.
const SECRET_PREFIX: &str = "whsec_";
/// Bytes of a secret, as Standard Webhooks has them.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Seconds that the timestamp of an attempt may differ from the clock, as in the libraries of Standard Webhooks.
const TOLERANCE: u64 = 5 * 60;
/// Bytes of a body that are shown.
const BODY_SHOWN: usize = 16 * 1024;

/// Headers that say nothing about the delivery.
const NOT_SHOWN: [header::HeaderName; 6] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::ACCEPT,
    header::USER_AGENT,
];

/// A request that was received.
#[derive(Debug)]
pub struct Received {
    /// Method.
    pub method: Method,
    /// Address that was called.
    pub uri: Uri,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
    /// Time of its arrival.
    pub at: Timestamp,
    /// Number of requests with this `webhook-id` so far, this one included.
    pub times: usize,
}

/// Whether a request was signed with a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// It was.
    Verified,
    /// It was not, or not lately, for this reason.
    Failed(String),
    /// No secret is known.
    NotVerified,
}

/// Parses a printed secret.
pub fn parse_secret(text: &str) -> Result<Secret, String> {
    let wrong = || {
        "a secret is `whsec_` and 24 to 64 bytes in base64, as `tidings hooks create` prints it".to_owned()
    };
    let bytes = STANDARD.decode(text.strip_prefix(SECRET_PREFIX).ok_or_else(wrong)?).map_err(|_| wrong())?;
    if SECRET_BYTES.contains(&bytes.len()) { Ok(Secret::from_bytes(&bytes)) } else { Err(wrong()) }
}

impl Received {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Id of the delivery.
    pub fn webhook_id(&self) -> Option<&str> {
        self.header("webhook-id")
    }

    /// Verifies the signature as the libraries of Standard Webhooks do.
    pub fn verify(&self, secret: Option<&Secret>) -> Verification {
        let Some(secret) = secret else { return Verification::NotVerified };
        match self.check(secret) {
            Ok(()) => Verification::Verified,
            Err(why) => Verification::Failed(why),
        }
    }

    fn check(&self, secret: &Secret) -> Result<(), String> {
        let required = |name| self.header(name).ok_or_else(|| format!("there is no {name}"));
        let (id, signature) = (required("webhook-id")?, required("webhook-signature")?);
        let timestamp = required("webhook-timestamp")?;
        let timestamp: u64 = timestamp.parse().map_err(|_| "webhook-timestamp is not a number".to_owned())?;
        let off = timestamp.abs_diff(self.at.as_millis() / 1000);
        if off > TOLERANCE {
            return Err(format!("webhook-timestamp is {off} s away from now, more than {TOLERANCE} s"));
        }
        let secrets = Secrets { current: secret.clone(), previous: None };
        let expected = secrets.sign(id, timestamp, &self.body, self.at);
        match signature.split(' ').any(|signature| signature == expected) {
            true => Ok(()),
            false => Err("webhook-signature is not one of this secret".to_owned()),
        }
    }

    /// Type and id of the event, from the headers of a binary CloudEvent or from the members of the body.
    fn event(&self) -> (Option<String>, Option<String>) {
        if let Some(event_type) = self.header("ce-type") {
            return (Some(event_type.to_owned()), self.header("ce-id").map(str::to_owned));
        }
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let text = |name: &str| body[name].as_str().map(str::to_owned);
        (text("type"), text("id"))
    }

    /// Headers that are shown, in the order in which they came.
    fn shown_headers(&self) -> impl Iterator<Item = (&str, String)> {
        let shown = self.headers.iter().filter(|(name, _)| !NOT_SHOWN.contains(name));
        shown.map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
    }

    /// The delivery as text for people, with an empty line at its end.
    pub fn text(&self, verification: &Verification, style: &TerminalStyle) -> String {
        let (event_type, id) = self.event();
        let name = printable(event_type.as_deref().unwrap_or("(no type)"));
        let mut out = format!("{}  {}", time_text(self.at), style.bold(&name));
        if let Some(id) = id {
            let _ = write!(out, "  {}", printable(&id));
        }
        let _ = writeln!(out, "  {} {}", self.method, printable(&self.uri.to_string()));
        for (name, value) in self.shown_headers() {
            let note = match name {
                "webhook-id" if self.times > 1 => format!("  (request {} with this id)", self.times),
                "webhook-signature" => format!("  ({})", verification.text()),
                _ => String::new(),
            };
            let _ = writeln!(out, "  {name}: {}{note}", printable(&value));
        }
        if self.header("webhook-signature").is_none() {
            let _ = writeln!(out, "  (not signed)");
        }
        for line in body(&self.body, BODY_SHOWN).lines() {
            let _ = writeln!(out, "  {line}");
        }
        out.push('\n');
        out
    }

    /// The delivery as one line of JSON.
    pub fn json(&self, verification: &Verification) -> String {
        let (event_type, id) = self.event();
        let (verified, why) = match verification {
            Verification::Verified => (Some(true), None),
            Verification::Failed(why) => (Some(false), Some(why)),
            Verification::NotVerified => (None, None),
        };
        let headers: serde_json::Map<_, _> =
            self.shown_headers().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
        let head = json!({
            "at": self.at.as_millis(), "method": self.method.as_str(), "path": self.uri.to_string(), "type": event_type,
            "id": id, "webhookId": self.webhook_id(), "times": self.times, "verified": verified, "why": why,
            "headers": headers,
        });
        // As it came: a value that is parsed and printed could lose digits.
        let body = match serde_json::from_slice::<&RawValue>(&self.body) {
            Ok(json) => json.get().replace(['\n', '\r'], " "),
            Err(_) => Value::from(String::from_utf8_lossy(&self.body)).to_string(),
        };
        let head = head.to_string();
        format!("{},\"body\":{body}}}\n", head.strip_suffix('}').unwrap_or(&head))
    }
}

impl Verification {
    fn text(&self) -> String {
        match self {
            Self::Verified => "verified".to_owned(),
            Self::Failed(why) => format!("NOT VALID: {why}"),
            Self::NotVerified => "not verified: no --secret was given".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_768_473_000_000);

    fn secret() -> Secret {
        Secret::draw(&|bytes| bytes.fill(7))
    }

    /// A signed delivery whose parts a test may then change.
    fn delivery(body: &'static str) -> Received {
        let secrets = Secrets { current: secret(), previous: None };
        let seconds = NOW.as_millis() / 1000;
        let signature = secrets.sign("D1", seconds, body.as_bytes(), NOW);
        let (method, uri, headers) = (Method::POST, Uri::from_static("/in?a=1"), HeaderMap::new());
        let mut received = Received { method, uri, headers, body: body.into(), at: NOW, times: 1 };
        set(&mut received, "host", "127.0.0.1:9000");
        set(&mut received, "webhook-id", "D1");
        set(&mut received, "webhook-timestamp", &seconds.to_string());
        set(&mut received, "webhook-signature", &signature);
        set(&mut received, "x-custom", "blue");
        received
    }

    fn set(received: &mut Received, name: &'static str, value: &str) {
        received.headers.insert(name, value.parse().expect("a value"));
    }

    fn verify(change: impl FnOnce(&mut Received)) -> Verification {
        let mut received = delivery(BODY);
        change(&mut received);
        received.verify(Some(&secret()))
    }

    const BODY: &str =
        r#"{"id":"E1","type":"orders.paid","ts":"2026-01-15T10:30:00.000Z","payload":{"n":1.10}}"#;

    #[test]
    fn a_signature_is_verified_and_each_change_is_noticed() {
        assert_eq!(verify(|_| {}), Verification::Verified);
        let why = |change: &dyn Fn(&mut Received)| match verify(|received| change(received)) {
            Verification::Failed(why) => why,
            other => panic!("{other:?}"),
        };
        assert!(why(&|it| it.body = "{}".into()).contains("not one of this secret"));
        assert!(why(&|it| set(it, "webhook-id", "D2")).contains("not one of this secret"));
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            assert_eq!(why(&|it| drop(it.headers.remove(name))), format!("there is no {name}"));
        }
        assert!(why(&|it| it.at = Timestamp::from_millis(NOW.as_millis() + 301_000)).contains("301 s away"));
        let other = Secret::draw(&|bytes| bytes.fill(8));
        assert!(matches!(delivery(BODY).verify(Some(&other)), Verification::Failed(_)));
        assert_eq!(delivery(BODY).verify(None), Verification::NotVerified);
    }

    #[test]
    fn one_of_several_signatures_is_enough() {
        let both = verify(|it| {
            let one = it.headers["webhook-signature"].to_str().expect("text").to_owned();
            set(it, "webhook-signature", &format!("v1,AAAA {one} v1a,BBBB"));
        });
        assert_eq!(both, Verification::Verified);
    }

    #[test]
    fn a_secret_is_read_as_it_was_printed() {
        let printed = secret().reveal();
        assert_eq!(parse_secret(&printed), Ok(secret()));
        for bad in ["", &printed[6..], "whsec_", "whsec_AAAA", "whsec_!", &format!("{printed}=")] {
            assert!(parse_secret(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_delivery_is_shown_with_its_type_ids_headers_and_body() {
        let received = delivery(BODY);
        let text = received.text(&Verification::Verified, &TerminalStyle::off());
        let signature = received.header("webhook-signature").expect("signed");
        let expected = format!(
            "2026-01-15T10:30:00.000Z  orders.paid  E1  POST /in?a=1\n  webhook-id: D1\n  \
             webhook-timestamp: 1768473000\n  webhook-signature: {signature}  (verified)\n  x-custom: blue\n  {{\n    \
             \"id\": \"E1\",\n    \"type\": \"orders.paid\",\n    \"ts\": \"2026-01-15T10:30:00.000Z\",\n    \
             \"payload\": {{\n      \"n\": 1.10\n    }}\n  }}\n\n"
        );
        assert_eq!(text, expected);
        let again = Received { times: 2, ..delivery("[") };
        let text = again.text(&Verification::NotVerified, &TerminalStyle::off());
        assert!(
            text.contains("(no type)") && text.contains("webhook-id: D1  (request 2 with this id)"),
            "{text}"
        );
        assert!(text.contains("(not verified: no --secret was given)"), "{text}");
    }

    #[test]
    fn a_binary_cloud_event_has_its_type_and_id_in_headers() {
        let mut received = delivery("{\"type\":\"other\"}");
        set(&mut received, "ce-type", "orders.paid");
        set(&mut received, "ce-id", "E9");
        assert_eq!(received.event(), (Some("orders.paid".into()), Some("E9".into())));
    }

    #[test]
    fn a_line_of_json_has_the_body_as_it_came() {
        for (body, shown) in
            [(BODY, BODY), ("{\"a\":\n1}", "{\"a\": 1}"), ("plain }", "\"plain }\""), ("", "\"\"")]
        {
            let line = delivery(body).json(&Verification::Failed("late".into()));
            assert!(line.ends_with(&format!(",\"body\":{shown}}}\n")), "{line}");
            let value: Value = serde_json::from_str(&line).expect("one line of JSON");
            assert_eq!((&value["verified"], &value["why"]), (&json!(false), &json!("late")));
            assert_eq!((&value["webhookId"], &value["headers"]["x-custom"]), (&json!("D1"), &json!("blue")));
        }
    }
}
