//! The body of a request that publishes changes: a list of `{"entityCode","entityId","action"}`.

use std::borrow::Cow;
use std::fmt;

use axum::http::StatusCode;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::json;
use serde_json::value::RawValue;
use tidings_entities::{Action, EntityCode, IdForm, NewChange};
use tidings_model::limits::{self, Limit};

use crate::error::ApiError;

/// A change as it is sent. Other members are ignored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SentChange<'a> {
    #[serde(borrow)]
    entity_code: Cow<'a, str>,
    #[serde(borrow)]
    entity_id: Cow<'a, str>,
    #[serde(borrow)]
    action: Cow<'a, str>,
}

/// Parses changes. More than are allowed are counted while they are read, and not kept.
pub fn parse(body: &[u8], ids: IdForm) -> Result<Vec<NewChange>, ApiError> {
    let text = std::str::from_utf8(body)
        .map_err(|_| ApiError::bad_request("invalid_json", "the body must be UTF-8"))?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed = deserializer.deserialize_seq(Changes { ids });
    let parsed = parsed.and_then(|parsed| deserializer.end().map(|()| parsed));
    parsed.map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        let message = match error.classify() {
            serde_json::error::Category::Data => format!("expected a list of changes, at {place}"),
            _ => format!("the body is not JSON, at {place}"),
        };
        ApiError::bad_request("invalid_json", message)
    })?
}

struct Changes {
    ids: IdForm,
}

impl<'a> Visitor<'a> for Changes {
    type Value = Result<Vec<NewChange>, ApiError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of changes")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
        let mut changes = Vec::new();
        let mut wrong = None;
        let mut count = 0;
        while let Some(sent) = sequence.next_element::<&RawValue>()? {
            count += 1;
            // The rest is only read, so that it is told from what is no JSON.
            if count > limits::ENTITY_CHANGES_PER_POST || wrong.is_some() {
                continue;
            }
            match self.one(sent) {
                Ok(change) => changes.push(change),
                Err(why) => wrong = Some((count - 1, why)),
            }
        }
        if count > limits::ENTITY_CHANGES_PER_POST {
            return Ok(Err(too_many(limits::ENTITY_CHANGES_PER_POST)));
        }
        Ok(match wrong {
            None => Ok(changes),
            Some((index, why)) => {
                let error = ApiError::bad_request("invalid_change", format!("change {index}: {why}"));
                Err(error.detailed(json!({ "index": index })))
            }
        })
    }
}

impl Changes {
    fn one(&self, sent: &RawValue) -> Result<NewChange, String> {
        let odd = || "it must be an object with the texts `entityCode`, `entityId` and `action`".to_owned();
        if !sent.get().starts_with('{') {
            return Err(odd());
        }
        let SentChange { entity_code, entity_id, action } =
            serde_json::from_str(sent.get()).map_err(|_| odd())?;
        Ok(NewChange {
            code: EntityCode::parse(&entity_code).map_err(|error| error.to_string())?,
            id: self.ids.parse(&entity_id).map_err(|error| error.to_string())?,
            action: Action::parse(&action)
                .ok_or_else(|| "`action` must be CREATE, UPDATE or DELETE".to_owned())?,
        })
    }
}

/// More changes than one request may publish.
pub fn too_many(most: usize) -> ApiError {
    let message = format!("a request publishes at most {most} changes");
    ApiError::over(Limit::EntityChangesPerPost, StatusCode::PAYLOAD_TOO_LARGE, "too_many_changes", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<NewChange>, (u16, &'static str, String)> {
        parse(text.as_bytes(), IdForm::Text).map_err(|error| {
            let (status, code) = (error.status().as_u16(), error.code());
            (status, code, error.into_parts().message)
        })
    }

    fn change(id: &str) -> String {
        format!(r#"{{"entityCode":"a","entityId":"{id}","action":"UPDATE","more":[{{}}]}}"#)
    }

    #[test]
    fn changes_are_read_in_order_and_what_more_is_said_is_ignored() {
        let changes = parsed(&format!("[{}, {}]", change("2"), change("1"))).expect("good");
        let ids: Vec<_> = changes.iter().map(|change| change.id.as_str()).collect();
        assert_eq!(ids, ["2", "1"]);
        assert!(changes.iter().all(|change| change.action == Action::Update && change.code.as_str() == "a"));
        assert_eq!(parsed("[]"), Ok(Vec::new()));
    }

    #[test]
    fn a_change_that_is_none_is_told_by_its_index() {
        for (sent, why) in [
            ("7", "it must be an object"),
            (r#"["a","1","UPDATE"]"#, "it must be an object"),
            (r#"{"entityCode":"a","entityId":"1"}"#, "it must be an object"),
            (r#"{"entityCode":"a","entityId":1,"action":"UPDATE"}"#, "it must be an object"),
            (r#"{"entityCode":"","entityId":"1","action":"UPDATE"}"#, "an entityCode has"),
            (r#"{"entityCode":"a","entityId":"","action":"UPDATE"}"#, "an entityId has"),
            (r#"{"entityCode":"a","entityId":"1","action":"update"}"#, "`action` must be"),
        ] {
            let (status, code, message) = parsed(&format!("[{},{sent}]", change("1"))).expect_err(sent);
            assert_eq!((status, code), (400, "invalid_change"), "{sent}");
            assert!(message.starts_with(&format!("change 1: {why}")), "{message}");
        }
    }

    #[test]
    fn what_is_no_list_of_changes_is_refused_whatever_it_is() {
        for text in ["", "{}", "7", "null", "[", "[1,]", "[]x", &change("1"), "[{\"a\":}]"] {
            assert_eq!(parsed(text).map_err(|(_, code, _)| code), Err("invalid_json"), "{text}");
        }
        let deep = format!("[{}{}]", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(parsed(&deep).map_err(|(_, code, _)| code), Err("invalid_change"));
    }

    #[test]
    fn one_change_more_than_is_allowed_is_too_many_even_if_others_are_wrong() {
        let most = limits::ENTITY_CHANGES_PER_POST;
        let list = |count: usize| format!("[{}]", vec![change("1"); count].join(","));
        assert_eq!(parsed(&list(most)).map(|changes| changes.len()), Ok(most));
        let many = parsed(&list(most + 1)).map_err(|(status, code, _)| (status, code));
        assert_eq!(many, Err((413, "too_many_changes")));
        let wrong = format!("[7,{}]", vec!["7"; most].join(","));
        assert_eq!(
            parsed(&wrong).map_err(|(status, code, _)| (status, code)),
            Err((413, "too_many_changes"))
        );
    }
}
