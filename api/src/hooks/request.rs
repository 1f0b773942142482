//! Reads the parts of requests that both interfaces of hooks have: bodies, queries, times, pages of dead letters.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Query;
use axum::http::Uri;
use bytes::Bytes;
use serde_json::{Map, Value};
use tidings_hooks::history::{Letter, LetterFilter};
use tidings_hooks::replay::Point;
use tidings_hooks::{DeliveryStatus, HookError, HookId, Hooks};
use tidings_model::{Position, ProjectId, Timestamp, Ulid, limits};

use crate::Api;
use crate::error::ApiError;
use crate::wire::{body, offset, query, time};

/// Dead letters that are read at a time.
const LETTERS: usize = 8;

/// The members of a body that is a JSON object. `None` for a body that is something else.
pub async fn object(
    api: &Api,
    project: &ProjectId,
    sent: Body,
) -> Result<Option<Map<String, Value>>, ApiError> {
    let (body, _reserved) = body::bytes(sent, limits::HOOK_BODY_BYTES, api.context(Some(project))).await?;
    Ok(serde_json::from_slice(&body).ok())
}

/// The same for a body that may be empty, which is an object without members.
pub async fn object_or_nothing(
    api: &Api,
    project: &ProjectId,
    sent: Body,
) -> Result<Option<Map<String, Value>>, ApiError> {
    let (body, _reserved) = body::bytes(sent, limits::HOOK_BODY_BYTES, api.context(Some(project))).await?;
    Ok(if body.is_empty() { Some(Map::new()) } else { serde_json::from_slice(&body).ok() })
}

/// The parameters of a query. Unknown ones are ignored.
pub struct Pairs(Vec<(String, String)>);

impl Pairs {
    /// Parses the query of an address.
    pub fn of(uri: &Uri) -> Result<Self, ApiError> {
        let pairs = Query::try_from_uri(uri);
        let Query(pairs) = pairs.map_err(|error| invalid("invalid_query", error.body_text()))?;
        Ok(Self(pairs))
    }

    /// The value of a parameter that may occur at most once.
    pub fn once(&self, name: &str) -> Result<Option<&str>, ApiError> {
        query::once(&self.0, name)
    }

    /// The value of a parameter, unless it is empty.
    pub fn text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        Ok(self.once(name)?.filter(|value| !value.is_empty()))
    }

    /// The maximum number of entries of a page.
    pub fn limit(&self) -> Result<usize, ApiError> {
        match self.once("limit")?.map(str::parse) {
            None => Ok(limits::HOOK_PAGE_DEFAULT),
            Some(Ok(limit)) if (1..=limits::HOOK_PAGE).contains(&limit) => Ok(limit),
            Some(_) => Err(invalid(
                "invalid_limit",
                format!("limit must be a number from 1 to {}", limits::HOOK_PAGE),
            )),
        }
    }

    /// The number of entries to leave out.
    pub fn offset(&self) -> Result<usize, ApiError> {
        match self.once("offset")?.map(str::parse) {
            None => Ok(0),
            Some(Ok(offset)) => Ok(offset),
            Some(Err(_)) => Err(invalid("invalid_offset", "offset must be a number, at least 0")),
        }
    }

    /// A flag that is `true`, `false` or absent.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.once(name)? {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(invalid("invalid_query", format!("{name} must be `true` or `false`"))),
        }
    }

    /// The status that deliveries must have.
    pub fn status(&self) -> Result<Option<DeliveryStatus>, ApiError> {
        let parse = |text| {
            let message = "status must be `pending`, `failed`, `delivered` or `dead`";
            DeliveryStatus::parse(text).ok_or_else(|| invalid("invalid_status", message))
        };
        self.once("status")?.map(parse).transpose()
    }

    /// The cursor of a page of deliveries.
    pub fn position(&self) -> Result<Position, ApiError> {
        let cursor = self.once("cursor")?;
        cursor.map_or(Ok(Position::ZERO), |text| offset::parse(text).ok_or_else(invalid_cursor))
    }

    /// The cursor of a page of hooks or dead letters: the last id of the page before.
    pub fn ulid(&self) -> Result<Option<Ulid>, ApiError> {
        self.once("cursor")?.map(|text| Ulid::parse(text).map_err(|_| invalid_cursor())).transpose()
    }
}

fn invalid(code: &'static str, message: impl std::fmt::Display) -> ApiError {
    ApiError::bad_request(code, message)
}

fn invalid_cursor() -> ApiError {
    invalid("invalid_cursor", "cursor must be a nextCursor that this server gave")
}

/// Why a member of a body is invalid. The message may be shown to the client.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidMember(pub String);

impl From<InvalidMember> for ApiError {
    fn from(InvalidMember(message): InvalidMember) -> Self {
        Self::bad_request("invalid_request", message)
    }
}

/// A member that is a time in ISO 8601, or absent.
fn time_of(body: &Map<String, Value>, name: &str) -> Result<Option<Timestamp>, InvalidMember> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let parsed = value.as_str().and_then(time::parse);
            parsed.map(Some).ok_or_else(|| InvalidMember(format!("{name} must be a time in ISO 8601")))
        }
    }
}

/// The filter of dead letters in a body.
pub fn letter_filter(body: &Map<String, Value>) -> Result<LetterFilter, InvalidMember> {
    let error = match body.get("error") {
        None | Some(Value::Null) => None,
        Some(Value::String(error)) => Some(error.clone()),
        Some(_) => return Err(InvalidMember("error must be a string".into())),
    };
    Ok(LetterFilter { from: time_of(body, "from")?, to: time_of(body, "to")?, error })
}

/// The range of a replay in a body.
pub fn range(body: &Map<String, Value>) -> Result<(Point, Option<Point>), InvalidMember> {
    let from = point(body, "from")?;
    let from =
        from.ok_or_else(|| InvalidMember("from is required: a time in ISO 8601 or a position".into()))?;
    Ok((from, point(body, "to")?))
}

fn point(body: &Map<String, Value>, name: &str) -> Result<Option<Point>, InvalidMember> {
    let parse =
        |text: &str| offset::parse(text).map(Point::Position).or_else(|| time::parse(text).map(Point::Time));
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let message = || InvalidMember(format!("{name} must be a time in ISO 8601 or a position"));
            value.as_str().and_then(parse).map(Some).ok_or_else(message)
        }
    }
}

/// The time for which the previous secret signs beside the new one.
pub fn overlap(body: &Map<String, Value>) -> Result<Duration, InvalidMember> {
    let most = limits::HOOK_OVERLAP_MAX.as_secs();
    match body.get("overlapSeconds") {
        None | Some(Value::Null) => Ok(limits::HOOK_OVERLAP),
        Some(value) => {
            let seconds = value.as_u64().filter(|seconds| *seconds <= most).map(Duration::from_secs);
            seconds
                .ok_or_else(|| InvalidMember(format!("overlapSeconds must be an integer from 0 to {most}")))
        }
    }
}

/// The time before which records are to be removed.
pub fn before(body: &Map<String, Value>) -> Result<Timestamp, InvalidMember> {
    let millis = body.get("before").and_then(Value::as_u64);
    let message = || InvalidMember("before is required: milliseconds since 1970".into());
    millis.map(Timestamp::from_millis).ok_or_else(message)
}

/// Whether a body asks for what was missed to be replayed.
pub fn wants_replay(body: &Map<String, Value>) -> Result<bool, InvalidMember> {
    match body.get("replay") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(replay)) => Ok(*replay),
        Some(_) => Err(InvalidMember("replay must be `true` or `false`".into())),
    }
}

/// Dead letters with their events as JSON text, newest first.
#[derive(Default)]
pub struct LetterPage {
    /// The dead letters. Of their events only the heads are there.
    pub letters: Vec<(Letter, String)>,
    /// Cursor of the next page, if there may be more.
    pub next: Option<Ulid>,
}

/// Reads a page of dead letters of a hook, which is bounded in the bytes of their events.
pub async fn dead_letters(
    hooks: &Hooks,
    within: Option<&ProjectId>,
    id: HookId,
    mut after: Option<Ulid>,
    limit: usize,
) -> Result<LetterPage, HookError> {
    let project = hooks.get(within, id).await?.hook.project.clone();
    let (mut page, mut bytes) = (LetterPage::default(), 0);
    loop {
        // One more than asked for, to know whether there are more.
        let more = LETTERS.min(limit + 1 - page.letters.len());
        let letters = hooks.dead_letters(within, id, after, more).await?;
        if letters.is_empty() {
            return Ok(page);
        }
        for mut letter in letters {
            if page.letters.len() == limit || bytes >= limits::HOOK_PAGE_BYTES {
                page.next = after;
                return Ok(page);
            }
            after = Some(letter.letter.id);
            let payload = letter.event.as_mut().map(|event| {
                let payload = event.payload(&project);
                // Its bytes would keep the whole record in memory.
                event.json = Bytes::new();
                String::from_utf8_lossy(&payload).into_owned()
            });
            let payload = payload.unwrap_or_default();
            bytes += payload.len();
            page.letters.push((letter, payload));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn members(value: Value) -> Map<String, Value> {
        let Value::Object(members) = value else { panic!("an object") };
        members
    }

    fn pairs(query: &str) -> Pairs {
        Pairs::of(&format!("/x?{query}").parse().expect("an address")).expect("a query")
    }

    #[test]
    fn a_page_has_100_entries_or_as_many_as_asked_for_up_to_1000() {
        for (query, limit) in [("", 100), ("limit=1", 1), ("limit=1000", 1000), ("other=1", 100)] {
            assert_eq!(pairs(query).limit().expect("valid"), limit, "{query}");
        }
        for bad in ["limit=0", "limit=1001", "limit=-1", "limit=x", "limit=", "limit=1&limit=1"] {
            assert!(pairs(bad).limit().is_err(), "{bad}");
        }
        assert_eq!((pairs("").offset().ok(), pairs("offset=7").offset().ok()), (Some(0), Some(7)));
        for bad in ["offset=-1", "offset=x", "offset=1.5"] {
            assert!(pairs(bad).offset().is_err(), "{bad}");
        }
        for bad in ["cursor=x", "cursor="] {
            assert!(pairs(bad).position().is_err() && pairs(bad).ulid().is_err(), "{bad}");
        }
        assert!(pairs("status=lost").status().is_err());
        assert_eq!(pairs("status=dead").status().expect("valid"), Some(DeliveryStatus::Dead));
        assert!(pairs("active=1").flag("active").is_err());
    }

    #[test]
    fn a_range_is_two_times_or_positions() {
        let position = Position::new(7 << 64);
        let at = Timestamp::from_millis(1_763_294_400_123);
        let text = offset::print(position);
        let parsed = |value| range(&members(value));
        assert_eq!(parsed(json!({"from": text})), Ok((Point::Position(position), None)));
        let times = parsed(json!({"from": "2025-11-16T12:00:00.123Z", "to": text}));
        assert_eq!(times, Ok((Point::Time(at), Some(Point::Position(position)))));
        for bad in [json!({}), json!({"from": 7}), json!({"from": "now"}), json!({"from": text, "to": "x"})] {
            assert!(parsed(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn members_of_bodies_have_types_and_ranges() {
        assert_eq!(overlap(&members(json!({}))), Ok(Duration::from_secs(86_400)));
        assert_eq!(overlap(&members(json!({"overlapSeconds": 0}))), Ok(Duration::ZERO));
        for bad in [json!(-1), json!("1"), json!(1.5), json!(2_592_001), json!(u64::MAX)] {
            assert!(overlap(&members(json!({"overlapSeconds": bad}))).is_err(), "{bad}");
        }
        assert_eq!(before(&members(json!({"before": 7}))), Ok(Timestamp::from_millis(7)));
        for bad in [json!({}), json!({"before": "7"}), json!({"before": -7})] {
            assert!(before(&members(bad.clone())).is_err(), "{bad}");
        }
        assert_eq!(wants_replay(&members(json!({"replay": true}))), Ok(true));
        assert!(wants_replay(&members(json!({"replay": "yes"}))).is_err());
        let filter = letter_filter(&members(json!({"from": "2025-11-16T12:00:00Z", "error": "HTTP 5"})));
        let filter = filter.expect("valid");
        assert_eq!((filter.to, filter.error.as_deref()), (None, Some("HTTP 5")));
        for bad in [json!({"from": 1}), json!({"to": "soon"}), json!({"error": 1})] {
            assert!(letter_filter(&members(bad.clone())).is_err(), "{bad}");
        }
    }
}
