//! The talks and tables that all clients share, on the server's side: it answers what they say that it answers.
//!
//! `testing/conformance/cases/README.md` says what a talk is. Here a program without a client takes the client's part.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tidings_model::Pattern;
use tidings_testing::http::{Method, StatusCode};
use tidings_testing::{Harness, Setup};
use tidings_topics::{Keep, TopicRule};

use crate::{entities, topics};

const TOPICS: &str = include_str!("../../conformance/cases/topics/talks.json");
const MORE_TOPICS: &str = include_str!("../../conformance/cases/topics/more-talks.json");
const ENTITIES: &str = include_str!("../../conformance/cases/entities/talks.json");
const SESSIONS: &str = include_str!("../../conformance/cases/sessions/talks.json");
const PATTERNS: &str = include_str!("../../conformance/cases/topics/patterns.json");

/// Texts that the server has made up, by the names that the table gives them.
type Bound = BTreeMap<String, Value>;

/// The client's side of a connection.
enum Party {
    Topics(topics::Client),
    Entities(entities::Client),
}

#[derive(Clone, Copy, PartialEq)]
enum Capability {
    Topics,
    Entities,
}

impl Party {
    async fn connect(capability: Capability, server: &Harness) -> Self {
        match capability {
            Capability::Topics => Self::Topics(topics::Client::connect(server).await),
            Capability::Entities => Self::Entities(entities::Client::connect(server).await),
        }
    }

    async fn say(&mut self, frame: &Value) {
        match self {
            Self::Topics(client) => client.say(frame.to_string()).await,
            Self::Entities(client) => client.say(frame.to_string()).await,
        }
    }

    async fn next(&mut self) -> Value {
        match self {
            Self::Topics(client) => client.text().await,
            Self::Entities(client) => client.message().await,
        }
    }

    async fn leave(self) {
        match self {
            Self::Topics(client) => client.leave().await,
            Self::Entities(client) => client.leave().await,
        }
    }
}

/// The elements of a list, none if it is absent.
fn list<'a>(step: &'a Value, name: &str) -> &'a [Value] {
    step[name].as_array().map_or(&[], Vec::as_slice)
}

/// Whether a value has all that the table expects; it may have more members. Binds names that begin with `$$`.
fn has(value: &Value, expected: &Value, bound: &mut Bound) -> bool {
    match expected {
        Value::String(name) if name.starts_with("$$") => match bound.get(name) {
            Some(before) => before == value,
            None => !value.is_null() && bound.insert(name.clone(), value.clone()).is_none(),
        },
        Value::Object(members) => {
            value.is_object() && members.iter().all(|(name, member)| has(&value[name], member, bound))
        }
        Value::Array(items) => value.as_array().is_some_and(|values| {
            values.len() == items.len()
                && values.iter().zip(items).all(|(value, item)| has(value, item, bound))
        }),
        _ => value == expected,
    }
}

/// A frame of the table with what the server has made up in it.
fn filled(frame: &Value, bound: &Bound) -> Value {
    match frame {
        Value::String(name) => bound.get(name).unwrap_or(frame).clone(),
        Value::Object(members) => {
            members.iter().map(|(name, member)| (name.clone(), filled(member, bound))).collect()
        }
        Value::Array(items) => items.iter().map(|item| filled(item, bound)).collect(),
        _ => frame.clone(),
    }
}

/// Somebody's request; status, headers as text, and body.
async fn request(server: &Harness, asked: &Value) -> (StatusCode, Value, Value) {
    let method: Method = asked["method"].as_str().expect("a method").parse().expect("a method");
    let path = format!("/v1/app/{}", asked["path"].as_str().expect("a path"));
    let mut request = server.request(method, &path);
    if let Some(kind) = asked["type"].as_str() {
        request = request.header("content-type", kind);
    }
    if let Some(body) = asked.get("body") {
        request = request.json(body);
    }
    let response = request.send().await.expect("an answer");
    let headers = response.headers().iter();
    let headers = headers
        .map(|(name, value)| (name.to_string(), Value::from(value.to_str().unwrap_or_default())))
        .collect();
    let status = response.status();
    let text = response.text().await.expect("a body");
    (status, headers, serde_json::from_str(&text).unwrap_or_default())
}

async fn done(server: &Harness, asked: &Value) {
    let (status, _, body) = request(server, asked).await;
    assert!(status.is_success(), "{asked}: {status} {body}");
}

/// Reads as many frames as the table expects: answers in the order of the requests, everything else in its order.
async fn expect(party: &mut Party, step: &Value, ids: &[String], bound: &mut Bound, what: &str) {
    let expected = list(step, "server");
    let mut frames = Vec::new();
    for _ in expected {
        frames.push(party.next().await);
    }
    let is_answer =
        |frame: &&Value| ["$reply", "RPC_ERROR"].contains(&frame["type"].as_str().unwrap_or_default());
    let (answers, others): (Vec<&Value>, Vec<&Value>) = frames.iter().partition(is_answer);
    let (expected_answers, expected_others): (Vec<&Value>, Vec<&Value>) =
        expected.iter().partition(is_answer);
    for (id, answer) in ids.iter().zip(&answers) {
        assert_eq!(answer["meta"]["correlationId"], **id, "{what}");
    }
    let pairs = answers.iter().zip(&expected_answers).chain(others.iter().zip(&expected_others));
    assert_eq!(answers.len(), expected_answers.len(), "{what}: {frames:?}");
    for (frame, expected) in pairs {
        assert!(has(frame, expected, bound), "{what}: {frame} is not {expected} with {bound:?}");
    }
}

/// Holds a talk with a server; returns how many frames it has checked.
async fn hold(capability: Capability, server: &Harness, talk: &Value) -> usize {
    let mut party = Party::connect(capability, server).await;
    let mut bound = Bound::new();
    let mut number = 0;
    let mut checked = 0;
    for (index, step) in list(talk, "steps").iter().enumerate() {
        let what = format!("{}, step {index}", talk["name"]);
        if let Some(other) = step.get("other") {
            done(server, other).await;
        }
        if step["reconnect"] == true {
            party.leave().await;
            for away in list(step, "away") {
                done(server, away).await;
            }
            party = Party::connect(capability, server).await;
        }
        let mut ids = Vec::new();
        for frame in list(step, "sends") {
            let mut frame = filled(frame, &bound);
            if capability == Capability::Topics {
                number += 1;
                ids.push(number.to_string());
                frame["meta"] = json!({ "correlationId": number.to_string() });
            }
            party.say(&frame).await;
        }
        expect(&mut party, step, &ids, &mut bound, &what).await;
        checked += list(step, "server").len();
    }
    // Nothing else was said.
    let (question, answer) = match capability {
        Capability::Topics => ("__heartbeat", "__heartbeat_ack"),
        Capability::Entities => ("PING", "PONG"),
    };
    party.say(&json!({ "type": question })).await;
    assert_eq!(party.next().await["type"], answer, "{}", talk["name"]);
    party.leave().await;
    checked
}

fn talks(text: &str) -> Vec<Value> {
    serde_json::from_str(text).expect("the table is JSON")
}

/// A server whose topics `kept:**` have a history.
async fn server() -> Harness {
    let pattern = Pattern::parse("kept:**").expect("a pattern");
    let history = Some(Keep { messages: 100, age: None });
    let mut setup = Setup::default();
    setup.topics.rules =
        setup.topics.rules.clone().with_rules([TopicRule { history, ..TopicRule::new(pattern) }]);
    Harness::with(setup).await
}

async fn hold_all(capability: Capability, text: &str, least: usize) {
    let mut checked = 0;
    for talk in talks(text) {
        checked += hold(capability, &server().await, &talk).await;
    }
    assert!(checked >= least, "{checked} frames were checked");
}

#[tokio::test]
async fn the_server_of_topics_answers_what_the_talks_of_all_clients_say() {
    hold_all(Capability::Topics, TOPICS, 26).await;
}

#[tokio::test]
async fn the_server_of_topics_answers_what_the_talks_of_patterns_history_and_presence_say() {
    hold_all(Capability::Topics, MORE_TOPICS, 14).await;
}

#[tokio::test]
async fn the_server_of_entities_answers_what_the_talks_of_all_clients_say() {
    hold_all(Capability::Entities, ENTITIES, 15).await;
}

#[tokio::test]
async fn the_server_of_sessions_answers_what_the_talks_of_all_clients_say() {
    let mut checked = 0;
    for talk in talks(SESSIONS) {
        let server = Harness::start().await;
        for (index, step) in list(&talk, "steps").iter().enumerate() {
            let what = format!("{}, step {index}", talk["name"]);
            if let Some(other) = step.get("other") {
                done(&server, other).await;
            }
            let Some(asked) = step.get("request") else { continue };
            let (status, headers, body) = request(&server, asked).await;
            let expected = &step["answer"];
            let answer = json!({ "status": status.as_u16(), "headers": headers, "body": body });
            assert!(has(&answer, expected, &mut Bound::new()), "{what}: {answer} is not {expected}");
            checked += 1;
        }
    }
    assert!(checked >= 12, "{checked} answers were checked");
}

#[test]
fn patterns_of_the_server_match_what_the_table_of_all_clients_says() {
    let patterns = talks(PATTERNS);
    assert!(patterns.len() >= 18);
    for case in &patterns {
        let text = case["pattern"].as_str().expect("a pattern");
        let pattern = Pattern::parse(text).expect("a valid pattern");
        for (names, expected) in [(list(case, "matches"), true), (list(case, "not"), false)] {
            for name in names {
                let name = name.as_str().expect("a topic");
                assert_eq!(pattern.matches(name), expected, "{text} {name}");
            }
        }
    }
}
