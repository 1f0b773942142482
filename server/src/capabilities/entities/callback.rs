//! An authoriser of entities that asks an application over HTTP: `POST {"user","entityCode","entityIds"}`, answered with
//! `{"allowed":[…]}`. The whole type is asked as the single id `null`.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use tidings_egress::{Egress, Outgoing, Target};
use tidings_engine::Clock;
use tidings_engine::metrics::{Counter, Metrics, Name};
use tidings_entities::{Allowed, Authorize, AuthorizeError, EntityId, Question, Subject};
use tidings_model::limits;
use tokio::sync::Semaphore;

const ASKED: Name = Name {
    name: "tidings_entity_callbacks_total",
    help: "Questions to the application which entities a user may watch, by result (ok, failed).",
};

/// Asks an application which entities a user may watch.
pub struct Callback {
    target: Target,
    egress: Egress,
    clock: Arc<dyn Clock>,
    /// As many questions at a time as are allowed. Others wait.
    turns: Semaphore,
    /// Questions that were answered, and that were not.
    asked: [Counter; 2],
}

impl Callback {
    /// An authoriser that asks this URL.
    pub fn new(target: Target, egress: Egress, clock: Arc<dyn Clock>, metrics: &Metrics) -> Self {
        let turns = Semaphore::new(limits::ENTITY_CALLBACKS);
        let asked = ["ok", "failed"].map(|result| metrics.counter(ASKED, &[("result", result)]));
        Self { target, egress, clock, turns, asked }
    }

    async fn ask(&self, question: &Question) -> Result<Allowed, AuthorizeError> {
        let failed = |why: String| AuthorizeError(why);
        let waiting = async {
            let _turn = self.turns.acquire().await;
            self.send(question).await
        };
        // Whoever waits for its turn does so within the same time.
        tokio::select! {
            answered = waiting => answered,
            () = self.clock.sleep(limits::ENTITY_CALLBACK_TIMEOUT) => {
                let seconds = limits::ENTITY_CALLBACK_TIMEOUT.as_secs();
                Err(failed(format!("no answer within {seconds} s")))
            }
        }
    }

    async fn send(&self, question: &Question) -> Result<Allowed, AuthorizeError> {
        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, json.clone()), (ACCEPT, json)]);
        let outgoing = Outgoing {
            method: Method::POST,
            target: &self.target,
            headers,
            body: body(question),
            timeout: limits::ENTITY_CALLBACK_TIMEOUT,
            // One more, to see whether it is too large.
            keep: limits::ENTITY_CALLBACK_BYTES + 1,
        };
        let answer = self.egress.send(outgoing).await.map_err(|error| AuthorizeError(error.to_string()))?;
        if answer.status != StatusCode::OK {
            return Err(AuthorizeError(format!("the callback has answered {}", answer.status)));
        }
        if answer.body.len() > limits::ENTITY_CALLBACK_BYTES {
            return Err(AuthorizeError("the answer of the callback is too large".to_owned()));
        }
        allowed(question, &answer.body)
    }
}

impl Authorize for Callback {
    fn allowed<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, Result<Allowed, AuthorizeError>> {
        Box::pin(async move {
            let answer = self.ask(question).await;
            self.asked[usize::from(answer.is_err())].count();
            if let Err(error) = &answer {
                tracing::warn!(%error, "the callback did not say which entities a user may watch; none is allowed");
            }
            answer
        })
    }
}

fn body(question: &Question) -> Bytes {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Asked<'a> {
        user: &'a str,
        entity_code: &'a str,
        entity_ids: Vec<Option<&'a str>>,
    }
    let entity_ids = match &question.subject {
        Subject::Ids(ids) => ids.iter().map(|id| Some(id.as_str())).collect(),
        Subject::WholeType => vec![None],
    };
    let asked = Asked { user: &question.user, entity_code: question.code.as_str(), entity_ids };
    serde_json::to_vec(&asked).expect("texts can be written as JSON").into()
}

/// What an answer allows of a question. Ids that were not asked for are ignored.
fn allowed(question: &Question, body: &[u8]) -> Result<Allowed, AuthorizeError> {
    #[derive(Deserialize)]
    struct Answer {
        allowed: Vec<Option<String>>,
    }
    let answer: Answer = serde_json::from_slice(body)
        .map_err(|_| AuthorizeError("the answer of the callback is not {\"allowed\":[…]}".to_owned()))?;
    Ok(match &question.subject {
        Subject::WholeType if answer.allowed.contains(&None) => Allowed::All,
        Subject::WholeType => Allowed::none(),
        Subject::Ids(asked) => {
            let told: HashSet<&str> = answer.allowed.iter().flatten().map(String::as_str).collect();
            let allowed = |id: &&EntityId| told.contains(id.as_str());
            Allowed::Ids(asked.iter().filter(allowed).cloned().collect())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tidings_entities::{EntityCode, IdForm};

    fn id(text: &str) -> EntityId {
        IdForm::Text.parse(text).expect("an id")
    }

    fn question(subject: Subject) -> Question {
        Question { user: "alice".into(), code: EntityCode::parse("project").expect("a code"), subject }
    }

    #[test]
    fn a_question_names_user_type_and_ids_and_null_for_the_whole_type() {
        let asked = |subject| serde_json::from_slice::<Value>(&body(&question(subject))).expect("JSON");
        let ids = Subject::Ids(vec![id("1"), id("\"2")]);
        let told = json!({ "user": "alice", "entityCode": "project", "entityIds": ["1", "\"2"] });
        assert_eq!(asked(ids), told);
        assert_eq!(asked(Subject::WholeType)["entityIds"], json!([null]));
    }

    #[test]
    fn only_what_was_asked_for_and_is_named_is_allowed() {
        let ids = question(Subject::Ids(vec![id("1"), id("2")]));
        let whole = question(Subject::WholeType);
        let only = |one: &str| Allowed::Ids([id(one)].into());
        for (answer, of_ids, of_whole) in [
            (json!({ "allowed": ["1", "3"] }), only("1"), Allowed::none()),
            (json!({ "allowed": [], "more": 7 }), Allowed::none(), Allowed::none()),
            (json!({ "allowed": [null] }), Allowed::none(), Allowed::All),
            (json!({ "allowed": [null, "2"] }), only("2"), Allowed::All),
        ] {
            let body = answer.to_string();
            assert_eq!(allowed(&ids, body.as_bytes()), Ok(of_ids), "{body}");
            assert_eq!(allowed(&whole, body.as_bytes()), Ok(of_whole), "{body}");
        }
        for body in
            ["", "null", "[]", "{}", r#"{"allowed":null}"#, r#"{"allowed":[1]}"#, r#"{"allowed":"1"}"#]
        {
            assert!(allowed(&ids, body.as_bytes()).is_err(), "{body}");
        }
    }
}
