//! Requests of clients, parsed: what each type wants, or what is wrong with its payload.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Map;
use serde_json::value::RawValue;
use tidings_model::limits;
use tidings_topics::{self as topics, PresenceInfo, PublishEnvelope, Since, Verify, VerifyMode, WaitFor};

use super::envelope::{Envelope, is_reserved_type, is_short};
use super::error::WireError;
use crate::wire::json::{BadList, each_member, members, string, strings};

type Text<'a> = Cow<'a, str>;
/// Places in the histories of topics.
pub type Recover<'a> = Vec<(Text<'a>, Since)>;

/// What a frame asks for.
#[derive(Debug, PartialEq)]
pub enum Request<'a> {
    Subscribe { topic: Text<'a>, options: Options, recover: Option<Since>, presence: Option<PresenceInfo> },
    Unsubscribe { topic: Text<'a>, options: Options },
    SubscribeMany { topics: Vec<Text<'a>>, options: Options, recover: Recover<'a> },
    UnsubscribeMany { topics: Vec<Text<'a>>, options: Options },
    Clear { options: Options },
    Set { topics: Vec<Text<'a>>, options: Options, recover: Recover<'a> },
    Update { add: Vec<Text<'a>>, remove: Vec<Text<'a>>, options: Options },
    Settle { topic: Option<Text<'a>>, timeout: Option<Duration> },
    Verify { topic: Text<'a>, mode: VerifyMode },
    LocalStatus { topic: Text<'a> },
    List,
    Publish(Publish<'a>),
    Presence { topic: Text<'a> },
    History { topic: Text<'a>, since: Option<Since>, limit: Option<usize> },
    Auth { token: Text<'a> },
    Abort { correlation_id: Text<'a> },
    Heartbeat,
}

/// `options` of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub wait_for: WaitFor,
    pub timeout: Option<Duration>,
    pub verify: Verify,
    /// After which the subscription ends; `ttlMs` of a subscribe.
    pub ttl: Option<Duration>,
}

/// A message to publish, and to whom.
#[derive(Debug)]
pub struct Publish<'a> {
    pub topic: Text<'a>,
    pub message: Message<'a>,
    pub exclude_self: bool,
    pub partition_key: Option<Text<'a>>,
}

/// A message as its publisher sent it.
#[derive(Debug)]
pub struct Message<'a> {
    /// The type; `None` if there is none that can be published.
    pub kind: Option<Text<'a>>,
    /// An object.
    pub meta: Option<&'a RawValue>,
    pub payload: Payload<'a>,
}

/// A payload.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    None,
    Json(&'a RawValue),
    Bytes(&'a [u8]),
}

impl PartialEq for Publish<'_> {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

/// The member of a payload that says how a change is made.
const OPTIONS: &str = "options";

impl<'a> Request<'a> {
    /// Parses the request of a text frame that names at most `most` topics.
    pub fn parse(envelope: &Envelope<'a>, most: usize) -> Result<Self, WireError> {
        let sent = envelope.payload;
        match &*envelope.kind {
            "$subscribe" => {
                let fields = Fields::of(sent, ["topic", OPTIONS, "recover", "presence", "ttlMs"])?;
                let topic = fields.text("topic")?;
                let options = Options { ttl: fields.ttl()?, ..fields.options()? };
                let recover = fields.position("recover")?;
                if recover.is_some() && topics::is_pattern(&topic) {
                    return Err(no_recovery());
                }
                let presence = fields.presence()?;
                if presence.is_some() && topics::is_pattern(&topic) {
                    return Err(WireError::field("presence", "left out for a pattern, which has no members"));
                }
                Ok(Self::Subscribe { topic, options, recover, presence })
            }
            "$unsubscribe" => {
                let fields = Fields::of(sent, ["topic", OPTIONS])?;
                Ok(Self::Unsubscribe { topic: fields.text("topic")?, options: fields.options()? })
            }
            "$subscribeMany" => {
                let fields = Fields::of(sent, ["topics", OPTIONS, "recover", "presence", "ttlMs"])?;
                fields.not_yet(&["presence", "ttlMs"])?;
                Ok(Self::SubscribeMany {
                    topics: fields.texts("topics", most)?,
                    options: fields.options()?,
                    recover: fields.recover_many()?,
                })
            }
            "$unsubscribeMany" => {
                let fields = Fields::of(sent, ["topics", OPTIONS])?;
                Ok(Self::UnsubscribeMany {
                    topics: fields.texts("topics", most)?,
                    options: fields.options()?,
                })
            }
            "$clear" => Ok(Self::Clear { options: Fields::of(sent, [OPTIONS])?.options()? }),
            "$set" => {
                let fields = Fields::of(sent, ["topics", OPTIONS, "recover"])?;
                Ok(Self::Set {
                    topics: fields.texts("topics", most)?,
                    options: fields.options()?,
                    recover: fields.recover_many()?,
                })
            }
            "$update" => {
                let fields = Fields::of(sent, ["add", "remove", OPTIONS])?;
                let add = fields.optional_texts("add", most)?;
                let remove = fields.optional_texts("remove", most)?;
                if add.len() + remove.len() > most {
                    return Err(WireError::too_many_topics(most));
                }
                Ok(Self::Update { add, remove, options: fields.options()? })
            }
            "$settle" => {
                let fields = Fields::of(sent, ["topic", "timeoutMs"])?;
                Ok(Self::Settle {
                    topic: fields.optional_text("topic")?,
                    timeout: fields.timeout("timeoutMs")?,
                })
            }
            "$verify" => {
                let fields = Fields::of(sent, ["topic", "mode"])?;
                let mode = match fields.get("mode") {
                    None => VerifyMode::BestEffort,
                    Some(value) => match string(value).as_deref() {
                        Some("best-effort") => VerifyMode::BestEffort,
                        Some("strict") => VerifyMode::Strict,
                        _ => return Err(WireError::field("mode", "\"strict\" or \"best-effort\"")),
                    },
                };
                Ok(Self::Verify { topic: fields.text("topic")?, mode })
            }
            "$localStatus" => Ok(Self::LocalStatus { topic: Fields::of(sent, ["topic"])?.text("topic")? }),
            "$list" => Fields::of(sent, []).map(|_| Self::List),
            "$publish" => Publish::parse(envelope.payload, None).map(Self::Publish),
            "$presence" => Ok(Self::Presence { topic: Fields::of(sent, ["topic"])?.text("topic")? }),
            "$history" => Self::history(Fields::of(sent, ["topic", "since", "limit"])?),
            "$auth" => Ok(Self::Auth { token: Fields::of(sent, ["token"])?.text("token")? }),
            "$ws:abort" => match &envelope.correlation_id {
                Some(correlation_id) => Ok(Self::Abort { correlation_id: correlation_id.clone() }),
                None => {
                    let message = "`correlationId` must name the request to cancel";
                    Err(WireError::frame("envelope", message))
                }
            },
            "__heartbeat" => Ok(Self::Heartbeat),
            other => Err(WireError::unimplemented(other)),
        }
    }

    /// Parses the request of a binary frame, which has `body` as its payload.
    pub fn parse_binary(envelope: &Envelope<'a>, body: &'a [u8]) -> Result<Self, WireError> {
        if envelope.kind != "$publish" {
            return Err(WireError::frame("binary", "only `$publish` can be a binary frame"));
        }
        Publish::parse(envelope.payload, Some(body)).map(Self::Publish)
    }

    fn history(fields: Fields<'a, 3>) -> Result<Self, WireError> {
        let since = fields.position("since")?;
        let limit = fields.get("limit").map(|limit| {
            let limit = serde_json::from_str::<u64>(limit.get()).ok().filter(|&limit| limit > 0);
            limit.ok_or_else(|| WireError::field("limit", "a whole number of at least 1"))
        });
        let limit = limit.transpose()?.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(Self::History { topic: fields.text("topic")?, since, limit })
    }
}

impl<'a> Publish<'a> {
    fn parse(payload: Option<&'a RawValue>, body: Option<&'a [u8]>) -> Result<Self, WireError> {
        let fields = Fields::of(payload, ["topic", "message", "excludeSelf", "partitionKey"])?;
        let topic = fields.text("topic")?;
        let message = fields.get("message").ok_or_else(|| WireError::field("message", "an object"))?;
        let mut message = Message::parse(message, "message")?;
        if let Some(body) = body {
            message.payload = Payload::Bytes(body);
        }
        Ok(Self {
            topic,
            message,
            exclude_self: fields.flag("excludeSelf")?,
            partition_key: partition_key(&fields)?,
        })
    }
}

fn partition_key<'a, const N: usize>(fields: &Fields<'a, N>) -> Result<Option<Text<'a>>, WireError> {
    let key = fields.optional_text("partitionKey")?;
    match key {
        Some(key) if key.len() > limits::PARTITION_KEY_BYTES => {
            let expected = format!("text of at most {} bytes", limits::PARTITION_KEY_BYTES);
            Err(WireError::field("partitionKey", &expected))
        }
        key => Ok(key),
    }
}

impl<'a> Message<'a> {
    fn parse(message: &'a RawValue, name: &str) -> Result<Self, WireError> {
        let [kind, meta, payload] = members(message.get(), ["type", "meta", "payload"])
            .map_err(|_| WireError::field(name, "an object"))?;
        if meta.is_some_and(|meta| !meta.get().starts_with('{')) {
            return Err(WireError::field(&format!("{name}.meta"), "an object"));
        }
        let kind = kind.and_then(string).filter(|kind| is_publishable(kind));
        Ok(Self { kind, meta, payload: payload.map_or(Payload::None, Payload::Json) })
    }
}

impl Message<'_> {
    /// The message as it is published. Its payload shares the bytes of the frame that it was parsed from.
    pub fn into_envelope(self, topic: String, frame: &Bytes) -> Result<PublishEnvelope, WireError> {
        let meta = match self.meta {
            None => Map::new(),
            Some(meta) => serde_json::from_str(meta.get()).map_err(|_| {
                WireError::field("message.meta", "an object, with numbers that are not too large")
            })?,
        };
        let payload = match self.payload {
            Payload::None => topics::Payload::None,
            Payload::Json(value) => topics::Payload::Json(frame.slice_ref(value.get().as_bytes())),
            Payload::Bytes(bytes) => topics::Payload::Binary(frame.slice_ref(bytes)),
        };
        // An empty type is refused when the message is published.
        let kind = self.kind.map(Into::into).unwrap_or_default();
        Ok(PublishEnvelope { topic, kind, meta, payload })
    }
}

/// Whether messages of this type can be published.
pub fn is_publishable(kind: &str) -> bool {
    is_short(kind) && !is_reserved_type(kind)
}

/// The body of a publish over HTTP.
#[derive(Debug)]
pub struct HttpPublish<'a> {
    pub message: Message<'a>,
    pub partition_key: Option<Text<'a>>,
}

impl<'a> HttpPublish<'a> {
    /// Parses `{"type","meta"?,"payload"?,"excludeSelf"?,"partitionKey"?}`.
    pub fn parse(text: &'a str) -> Result<Self, WireError> {
        let whole = members(text, []).map_err(|_| WireError::frame("json", "the body must be a JSON object"));
        let [] = whole?;
        let fields = Fields::read(text, ["type", "meta", "payload", "excludeSelf", "partitionKey"])?;
        let meta = fields.get("meta");
        if meta.is_some_and(|meta| !meta.get().starts_with('{')) {
            return Err(WireError::field("meta", "an object"));
        }
        fields.flag("excludeSelf")?;
        Ok(Self {
            message: Message {
                kind: fields.get("type").and_then(string).filter(|kind| is_publishable(kind)),
                meta,
                payload: fields.get("payload").map_or(Payload::None, Payload::Json),
            },
            partition_key: partition_key(&fields)?,
        })
    }
}

/// The members of a payload that a request reads.
struct Fields<'a, const N: usize> {
    names: [&'static str; N],
    values: [Option<&'a RawValue>; N],
}

impl<'a, const N: usize> Fields<'a, N> {
    fn of(payload: Option<&'a RawValue>, names: [&'static str; N]) -> Result<Self, WireError> {
        match payload {
            Some(payload) => Self::read(payload.get(), names),
            None => Ok(Self { names, values: [None; N] }),
        }
    }

    fn read(text: &'a str, names: [&'static str; N]) -> Result<Self, WireError> {
        let values = members(text, names).map_err(|_| WireError::field("payload", "an object"))?;
        Ok(Self { names, values })
    }

    fn get(&self, name: &str) -> Option<&'a RawValue> {
        let at = self.names.iter().position(|known| *known == name)?;
        self.values[at]
    }

    fn text(&self, name: &str) -> Result<Text<'a>, WireError> {
        self.optional_text(name)?.ok_or_else(|| WireError::field(name, "text"))
    }

    fn optional_text(&self, name: &str) -> Result<Option<Text<'a>>, WireError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        string(value).map(Some).ok_or_else(|| WireError::field(name, "text"))
    }

    fn texts(&self, name: &str, most: usize) -> Result<Vec<Text<'a>>, WireError> {
        let odd = || WireError::field(name, "a list of texts");
        let texts = strings(self.get(name).ok_or_else(odd)?, most);
        texts.map_err(|bad| match bad {
            BadList::OtherKind => odd(),
            BadList::TooLong => WireError::too_many_topics(most),
        })
    }

    fn optional_texts(&self, name: &str, most: usize) -> Result<Vec<Text<'a>>, WireError> {
        if self.get(name).is_none() { Ok(Vec::new()) } else { self.texts(name, most) }
    }

    fn flag(&self, name: &str) -> Result<bool, WireError> {
        match self.get(name).map(RawValue::get) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(WireError::field(name, "true or false")),
        }
    }

    fn timeout(&self, name: &str) -> Result<Option<Duration>, WireError> {
        self.get(name).map(|value| timeout(name, value)).transpose()
    }

    fn options(&self) -> Result<Options, WireError> {
        let Some(options) = self.get(OPTIONS) else { return Ok(Options::default()) };
        let [wait_for, time, verify] = members(options.get(), ["waitFor", "timeoutMs", "verify"])
            .map_err(|_| WireError::field(OPTIONS, "an object"))?;
        let wait_for = match wait_for.map(string) {
            None => WaitFor::default(),
            Some(text) => match text.as_deref() {
                Some("optimistic") => WaitFor::Optimistic,
                Some("settled") => WaitFor::Settled,
                _ => return Err(WireError::field("options.waitFor", "\"optimistic\" or \"settled\"")),
            },
        };
        let verify = match verify.map(string) {
            None => Verify::default(),
            Some(text) => match text.as_deref() {
                Some("off") => Verify::Off,
                Some("best-effort") => Verify::BestEffort,
                Some("strict") => Verify::Strict,
                _ => {
                    let expected = "\"off\", \"best-effort\" or \"strict\"";
                    return Err(WireError::field("options.verify", expected));
                }
            },
        };
        let timeout = time.map(|time| timeout("options.timeoutMs", time)).transpose()?;
        Ok(Options { wait_for, timeout, verify, ttl: None })
    }

    /// Time after which a subscription ends unless it is repeated.
    fn ttl(&self) -> Result<Option<Duration>, WireError> {
        self.get("ttlMs").map(|value| millis("ttlMs", value, limits::TOPIC_TTL_MS_MAX)).transpose()
    }

    /// What a member says of itself: `true`, or `{"info"}`.
    fn presence(&self) -> Result<Option<PresenceInfo>, WireError> {
        let Some(value) = self.get("presence") else { return Ok(None) };
        match value.get() {
            "false" | "null" => return Ok(None),
            "true" => return Ok(Some(PresenceInfo::default())),
            _ => {}
        }
        let [info] = members(value.get(), ["info"])
            .map_err(|_| WireError::field("presence", "true, or an object with `info`"))?;
        let most = limits::PRESENCE_INFO_BYTES;
        if info.is_some_and(|info| info.get().len() > most) {
            return Err(WireError::field("presence.info", &format!("at most {most} bytes")));
        }
        Ok(Some(PresenceInfo { info: info.map(|info| Bytes::copy_from_slice(info.get().as_bytes())) }))
    }

    /// Refuses members whose feature the server does not have.
    fn not_yet(&self, names: &[&str]) -> Result<(), WireError> {
        match names.iter().find(|name| self.get(name).is_some()) {
            Some(name) => Err(WireError::field(name, "left out: this server does not have it")),
            None => Ok(()),
        }
    }

    /// A place in a history.
    fn position(&self, name: &str) -> Result<Option<Since>, WireError> {
        let odd = || WireError::field(name, "{\"epoch\": text, \"offset\": number}");
        self.get(name).map(|value| position(value).ok_or_else(odd)).transpose()
    }

    /// Places in the histories of topics.
    fn recover_many(&self) -> Result<Recover<'a>, WireError> {
        let Some(value) = self.get("recover") else { return Ok(Vec::new()) };
        let odd = || WireError::field("recover", "{topic: {\"epoch\": text, \"offset\": number}}");
        let (mut places, mut good) = (Vec::new(), true);
        each_member(value.get(), |topic: Text<'a>, value| match position(value) {
            Some(since) => places.push((topic, since)),
            None => good = false,
        })
        .map_err(|_| odd())?;
        match good {
            true if places.iter().any(|(topic, _)| topics::is_pattern(topic)) => Err(no_recovery()),
            true => Ok(places),
            false => Err(odd()),
        }
    }
}

/// The error of a pattern whose missed messages are asked for.
fn no_recovery() -> WireError {
    WireError::field("recover", "left out for a pattern, which has no history")
}

fn timeout(name: &str, value: &RawValue) -> Result<Duration, WireError> {
    millis(name, value, limits::TOPIC_REQUEST_MS_MAX)
}

fn millis(name: &str, value: &RawValue, most: u64) -> Result<Duration, WireError> {
    let millis = serde_json::from_str::<u64>(value.get()).ok().filter(|millis| (1..=most).contains(millis));
    let expected = || WireError::field(name, &format!("a whole number from 1 to {most}"));
    millis.map(Duration::from_millis).ok_or_else(expected)
}

/// Parses a place: `{"epoch","offset"}`.
fn position(value: &RawValue) -> Option<Since> {
    let [epoch, offset] = members(value.get(), ["epoch", "offset"]).ok()?;
    let epoch = string(epoch?)?.into_owned();
    Some(Since { epoch, offset: serde_json::from_str(offset?.get()).ok()? })
}

#[cfg(test)]
mod tests;
