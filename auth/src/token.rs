//! Tokens: JSON Web Tokens signed with HS256, and nothing else.
//!
//! A token cannot choose the algorithm: any other than `HS256` is refused, so neither `none` nor a public key
//! used as a secret is accepted.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Number, Value, json};
use tidings_model::{Pattern, ProjectId, Timestamp, limits};

use crate::principal::{Grants, Principal, Resources, Scope};
use crate::topics::TopicGrants;
use crate::{Key, Kid};

/// Why a text is not a valid token. The message does not contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidToken {
    /// The text is longer than the limit.
    #[error("the token is too long")]
    TooLong,
    /// The text is not three parts in base64.
    #[error("the token is malformed")]
    Malformed,
    /// The algorithm is not HS256, or the header has a critical extension.
    #[error("the token is not signed with HS256")]
    Algorithm,
    /// The named claim is missing or malformed.
    #[error("the claim `{0}` is missing or malformed")]
    Claim(&'static str),
}

/// The claims of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The project.
    pub project: ProjectId,
    /// Id of the application's user, if the token names one.
    pub user: Option<Box<str>>,
    /// Upper bound of the rights.
    pub scope: Scope,
    /// The token is valid before this time.
    pub expires_at: Timestamp,
    /// The token is valid from this time on; `None` for no lower bound.
    pub not_before: Option<Timestamp>,
    /// Time at which the token was issued. A revocation of its user touches it if this is absent, or not after the
    /// revocation.
    pub issued_at: Option<Timestamp>,
    /// Id of the token, by which it can be revoked.
    pub id: Option<Box<str>>,
    /// Resources to which the token is restricted.
    pub resources: Resources,
}

impl Claims {
    /// Claims of a token that is restricted by its scope and its expiry alone.
    pub fn new(project: ProjectId, scope: Scope, expires_at: Timestamp) -> Self {
        Self {
            project,
            user: None,
            scope,
            expires_at,
            not_before: None,
            issued_at: None,
            id: None,
            resources: Resources::default(),
        }
    }

    /// Signs a token with these claims. Times are rounded to whole seconds.
    pub fn sign(&self, key: &Key) -> String {
        let header = json!({ "alg": "HS256", "typ": "JWT", "kid": key.kid().as_str() });
        let claims = Value::Object(self.to_json());
        let text = format!("{}.{}", encode(&header.to_string()), encode(&claims.to_string()));
        let signature = URL_SAFE_NO_PAD.encode(key.sign(text.as_bytes()));
        format!("{text}.{signature}")
    }

    /// Parses the claims of a token.
    pub fn from_json(claims: Map<String, Value>) -> Result<Self, InvalidToken> {
        let claims = WireClaims::deserialize(Value::Object(claims));
        claims.map_err(|_| InvalidToken::Malformed)?.check()
    }

    fn to_json(&self) -> Map<String, Value> {
        let mut claims = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                claims.insert(name.to_owned(), value);
            }
        };
        let globs = |globs: &Option<Vec<Pattern>>| {
            globs.as_ref().map(|globs| globs.iter().map(Pattern::as_str).collect::<Vec<_>>().into())
        };
        let text = |text: &Option<Box<str>>| text.as_deref().map(Value::from);
        let seconds = |at: Timestamp| Value::from(at.as_millis() / 1000);
        let Resources { stream_id, streams, topics, rooms, entities, session } = &self.resources;
        put("project", Some(self.project.as_str().into()));
        put("sub", text(&self.user));
        put("scope", Some(self.scope.as_str().into()));
        put("exp", Some(seconds(self.expires_at)));
        put("nbf", self.not_before.map(seconds));
        put("iat", self.issued_at.map(seconds));
        put("jti", text(&self.id));
        put("stream_id", text(stream_id));
        put("streams", globs(streams));
        put("topics", topics.as_ref().map(topics_json));
        put("rooms", globs(rooms));
        put("entities", globs(entities));
        put("session", text(session));
        claims
    }

    /// The principal that acts with these claims.
    pub fn principal(&self) -> Principal {
        let grants = match self.resources.is_empty() {
            true => Grants::Project,
            false => Grants::Named(Box::new(self.resources.clone())),
        };
        let user = self.user.as_deref().map(Into::into);
        Principal { project: self.project.clone(), user, scope: self.scope, grants }
    }
}

/// A parsed token whose signature has not been checked.
#[derive(Debug)]
pub struct Unverified<'a> {
    signed: &'a [u8],
    signature: Vec<u8>,
    kid: Option<Kid>,
    /// The claims, which may be forged.
    pub claims: Claims,
}

impl<'a> Unverified<'a> {
    /// Parses a token.
    pub fn parse(text: &'a str) -> Result<Self, InvalidToken> {
        if text.len() > limits::TOKEN_BYTES {
            return Err(InvalidToken::TooLong);
        }
        let (signed, signature) = text.rsplit_once('.').ok_or(InvalidToken::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(InvalidToken::Malformed)?;
        let header: WireHeader = json_of(header).ok_or(InvalidToken::Malformed)?;
        // A critical extension must not be ignored, and none is supported.
        if header.alg != "HS256" || header.crit.is_some() {
            return Err(InvalidToken::Algorithm);
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| InvalidToken::Malformed)?;
        let claims: WireClaims = json_of(claims).ok_or(InvalidToken::Malformed)?;
        let kid = header.kid.as_deref().map(Kid::named);
        Ok(Self { signed: signed.as_bytes(), signature, kid, claims: claims.check()? })
    }

    /// The key that signed the token: the one whose id it names, or any key when it names none.
    pub fn signer<'k>(&self, keys: &'k [Key]) -> Option<&'k Key> {
        let candidates = keys.iter().filter(|key| self.kid.as_ref().is_none_or(|kid| kid == key.kid()));
        let mut signer = None;
        // All candidates are tried, so that the time does not reveal which one it was.
        for key in candidates {
            if key.has_signed(self.signed, &self.signature) {
                signer = Some(key);
            }
        }
        signer
    }
}

#[derive(Deserialize)]
struct WireHeader {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

/// Claims as they are encoded. An explicit `null` is refused: treated as absent, it would grant more than was
/// meant.
#[derive(Deserialize)]
struct WireClaims {
    #[serde(default, deserialize_with = "present")]
    project: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    sub: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    scope: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    exp: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    nbf: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    iat: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    jti: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    stream_id: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    streams: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    topics: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    rooms: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    entities: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    session: Option<Value>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl WireClaims {
    fn check(self) -> Result<Claims, InvalidToken> {
        let sub = text("sub", self.sub)?;
        // The older form of a token: `sub` is the project, and there is no user.
        let (project, user) = match self.project {
            Some(project) => (text("project", Some(project))?, sub),
            None => (sub, None),
        };
        let project = project.ok_or(InvalidToken::Claim("project"))?;
        if user.as_ref().is_some_and(|user| user.is_empty() || user.len() > limits::USER_ID_BYTES) {
            return Err(InvalidToken::Claim("sub"));
        }
        let id = text("jti", self.jti)?;
        if id.as_ref().is_some_and(|id| id.is_empty() || id.len() > limits::TOKEN_ID_BYTES) {
            return Err(InvalidToken::Claim("jti"));
        }
        let scope = text("scope", self.scope)?.and_then(|scope| Scope::parse(&scope));
        Ok(Claims {
            project: ProjectId::parse(&project).map_err(|_| InvalidToken::Claim("project"))?,
            user,
            scope: scope.ok_or(InvalidToken::Claim("scope"))?,
            expires_at: moment("exp", self.exp)?.ok_or(InvalidToken::Claim("exp"))?,
            not_before: moment("nbf", self.nbf)?,
            issued_at: moment("iat", self.iat)?,
            id,
            resources: Resources {
                stream_id: text("stream_id", self.stream_id)?,
                streams: globs("streams", self.streams)?,
                topics: topics(self.topics)?,
                rooms: globs("rooms", self.rooms)?,
                entities: globs("entities", self.entities)?,
                session: text("session", self.session)?,
            },
        })
    }
}

fn text(name: &'static str, value: Option<Value>) -> Result<Option<Box<str>>, InvalidToken> {
    match value {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.into())),
        Some(_) => Err(InvalidToken::Claim(name)),
    }
}

/// Parses seconds since 1970, with or without a fraction.
fn moment(name: &'static str, value: Option<Value>) -> Result<Option<Timestamp>, InvalidToken> {
    let Some(value) = value else { return Ok(None) };
    let Value::Number(number) = value else { return Err(InvalidToken::Claim(name)) };
    millis(&number).map(|millis| Some(Timestamp::from_millis(millis))).ok_or(InvalidToken::Claim(name))
}

fn millis(seconds: &Number) -> Option<u64> {
    match seconds.as_u64() {
        Some(seconds) => Some(seconds.saturating_mul(1000)),
        // Saturates; NaN becomes `None`.
        None => seconds.as_f64().filter(|seconds| *seconds >= 0.0).map(|seconds| (seconds * 1000.0) as u64),
    }
}

/// Parses grants of topics: patterns for both ways, or an object with those for each. What the object does not have
/// grants nothing, and anything else in it is refused: it may be a misspelt restriction.
fn topics(value: Option<Value>) -> Result<Option<TopicGrants>, InvalidToken> {
    let Some(Value::Object(mut ways)) = value else {
        return Ok(globs("topics", value)?.map(TopicGrants::both));
    };
    let mut way = |name| Ok(globs("topics", ways.remove(name))?.unwrap_or_default());
    let grants = TopicGrants { subscribe: way("subscribe")?, publish: way("publish")? };
    if ways.is_empty() { Ok(Some(grants)) } else { Err(InvalidToken::Claim("topics")) }
}

fn topics_json(grants: &TopicGrants) -> Value {
    let texts = |globs: &[Pattern]| globs.iter().map(Pattern::as_str).collect::<Value>();
    let TopicGrants { subscribe, publish } = grants;
    match subscribe == publish {
        true => texts(subscribe),
        false => json!({ "subscribe": texts(subscribe), "publish": texts(publish) }),
    }
}

/// Parses one pattern or a list of them.
fn globs(name: &'static str, value: Option<Value>) -> Result<Option<Vec<Pattern>>, InvalidToken> {
    let invalid = InvalidToken::Claim(name);
    let texts = match value {
        None => return Ok(None),
        Some(Value::Array(texts)) if texts.len() <= limits::GLOBS_PER_CLAIM => texts,
        Some(text @ Value::String(_)) => vec![text],
        Some(_) => return Err(invalid),
    };
    let glob = |text: &Value| text.as_str().and_then(|text| Pattern::parse(text).ok()).ok_or(invalid);
    Ok(Some(texts.iter().map(glob).collect::<Result<_, _>>()?))
}

fn encode(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

fn json_of<T: for<'de> Deserialize<'de>>(part: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(text: &str) -> Key {
        Key::parse(text).expect("a valid key")
    }

    fn globs() -> impl Strategy<Value = Option<Vec<Pattern>>> {
        let glob = "[a-z*]{1,3}([.:/][a-z]{1,3}){0,2}"
            .prop_filter_map("a valid glob", |text| Pattern::parse(&text).ok());
        prop::option::of(prop::collection::vec(glob, 0..4))
    }

    fn topics() -> impl Strategy<Value = Option<TopicGrants>> {
        let apart = (globs(), globs()).prop_map(|(subscribe, publish)| {
            Some(TopicGrants {
                subscribe: subscribe.unwrap_or_default(),
                publish: publish.unwrap_or_default(),
            })
        });
        prop_oneof![globs().prop_map(|globs| globs.map(TopicGrants::both)), apart]
    }

    fn text() -> impl Strategy<Value = Option<Box<str>>> {
        prop::option::of("\\PC{1,12}".prop_map(String::into_boxed_str))
    }

    prop_compose! {
        fn any_claims()(
            project in "[a-zA-Z0-9_-]{1,20}",
            user in text(),
            scope in prop::sample::select(vec![Scope::Read, Scope::Write, Scope::Manage]),
            expires_at in 0..4_000_000_000u64,
            not_before in prop::option::of(0..4_000_000_000u64),
            issued_at in prop::option::of(0..4_000_000_000u64),
            id in text(),
            (stream_id, session) in (text(), text()),
            (streams, topics, rooms, entities) in (globs(), topics(), globs(), globs()),
        ) -> Claims {
            let seconds = |seconds: u64| Timestamp::from_millis(seconds * 1000);
            Claims {
                project: ProjectId::parse(&project).expect("a valid id"),
                user,
                scope,
                expires_at: seconds(expires_at),
                not_before: not_before.map(seconds),
                issued_at: issued_at.map(seconds),
                id,
                resources: Resources { stream_id, streams, topics, rooms, entities, session },
            }
        }
    }

    proptest! {
        #[test]
        fn what_was_signed_is_read_back_and_knows_its_key(claims in any_claims()) {
            let (ours, other) = (key("our-key-of-enough-length"), key("other-key-of-enough-length"));
            let text = claims.sign(&ours);
            let token = Unverified::parse(&text).expect("a token");
            prop_assert_eq!(&token.claims, &claims);
            let keys = [other.clone(), ours.clone()];
            prop_assert_eq!(token.signer(&keys).map(Key::kid), Some(ours.kid()));
            prop_assert!(token.signer(&[other]).is_none());
        }

        #[test]
        fn a_token_that_was_changed_anywhere_has_no_signer(
            claims in any_claims(),
            place in any::<prop::sample::Index>(),
            with in "[A-Za-z0-9_.-]",
        ) {
            let ours = key("our-key-of-enough-length");
            let text = claims.sign(&ours);
            let place = place.index(text.len());
            let changed = format!("{}{with}{}", &text[..place], &text[place + 1..]);
            prop_assume!(changed != text);
            let passes = Unverified::parse(&changed).is_ok_and(|token| token.signer(&[ours]).is_some());
            prop_assert!(!passes);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,200}") {
            let _ = Unverified::parse(&text);
        }

        #[test]
        fn no_header_and_claims_make_the_parser_panic(header in "\\PC{0,40}", claims in "\\PC{0,120}") {
            let text = format!("{}.{}.AAAA", encode(&header), encode(&claims));
            let _ = Unverified::parse(&text);
        }
    }

    #[test]
    fn claims_that_are_not_as_they_must_be_are_refused() {
        let good = json!({ "project": "app", "scope": "read", "exp": 4_000_000_000u64 });
        let with = |name: &str, value: Value| {
            let mut claims = good.as_object().expect("an object").clone();
            claims.insert(name.to_owned(), value);
            Claims::from_json(claims)
        };
        assert!(with("unknown", json!({ "a": 1 })).is_ok());
        assert!(with("nbf", json!(1.5)).is_ok());
        assert!(with("streams", json!("a.*")).is_ok());
        assert!(with("streams", json!([])).is_ok_and(|claims| !claims.resources.is_empty()));
        for name in [
            "project",
            "scope",
            "exp",
            "nbf",
            "iat",
            "jti",
            "sub",
            "stream_id",
            "streams",
            "topics",
            "rooms",
            "entities",
            "session",
        ] {
            for value in [Value::Null, json!(true), json!({ "a": "b" }), json!([1])] {
                assert_eq!(with(name, value.clone()), Err(InvalidToken::Claim(name)), "{name}: {value}");
            }
        }
        assert!(with("exp", json!("4000000000")).is_err());
        assert!(with("exp", json!(-1)).is_err());
        assert!(with("scope", json!("admin")).is_err());
        assert!(with("streams", json!(["***"])).is_err());
        assert!(with("streams", json!(vec!["a"; limits::GLOBS_PER_CLAIM + 1])).is_err());
        assert!(with("sub", json!("")).is_err());
        assert!(with("jti", json!("")).is_err());
        assert!(with("jti", json!("x".repeat(limits::TOKEN_ID_BYTES))).is_ok());
        assert!(with("jti", json!("x".repeat(limits::TOKEN_ID_BYTES + 1))).is_err());
        assert!(with("iat", json!(-1)).is_err());
        assert!(with("iat", json!("1")).is_err());
        let text = format!("{}.{}.AA", "A".repeat(limits::TOKEN_BYTES), "A");
        assert_eq!(Unverified::parse(&text).unwrap_err(), InvalidToken::TooLong);
    }

    #[test]
    fn topics_are_granted_in_both_ways_or_in_each_and_what_is_absent_is_none() {
        let parse = |topics: Value| {
            let claims =
                json!({ "project": "app", "scope": "read", "exp": 4_000_000_000u64, "topics": topics });
            let claims = Claims::from_json(claims.as_object().expect("an object").clone())?;
            let TopicGrants { subscribe, publish } = claims.resources.topics.expect("the claim is there");
            let texts = |globs: Vec<Pattern>| globs.iter().map(Pattern::to_string).collect::<Vec<_>>();
            Ok((texts(subscribe).join(" "), texts(publish).join(" ")))
        };
        for (topics, subscribe, publish) in [
            (json!("a.*"), "a.*", "a.*"),
            (json!(["a", "b:**"]), "a b:**", "a b:**"),
            (json!([]), "", ""),
            (json!({}), "", ""),
            (json!({ "subscribe": ["a", "b"] }), "a b", ""),
            (json!({ "publish": "a/*" }), "", "a/*"),
            (json!({ "subscribe": [], "publish": ["a"] }), "", "a"),
        ] {
            assert_eq!(parse(topics.clone()), Ok((subscribe.to_owned(), publish.to_owned())), "{topics}");
        }
        let many = vec!["a"; limits::GLOBS_PER_CLAIM + 1];
        for topics in [
            json!({ "subscribe": null }),
            json!({ "publish": {} }),
            json!({ "subscribe": [1] }),
            json!({ "subscribe": ["***"] }),
            json!({ "subscribe": [], "publsih": ["a"] }),
            json!({ "publish": many }),
        ] {
            assert_eq!(parse(topics.clone()), Err(InvalidToken::Claim("topics")), "{topics}");
        }
    }

    #[test]
    fn a_claim_that_is_there_twice_is_refused() {
        let claims = r#"{"project":"app","scope":"read","exp":4000000000,"stream_id":"a","stream_id":"b"}"#;
        let text = format!("{}.{}.AA", encode(r#"{"alg":"HS256"}"#), encode(claims));
        assert_eq!(Unverified::parse(&text).unwrap_err(), InvalidToken::Malformed);
    }
}
