//! Events of the other capabilities, and notices of hooks about themselves.

use tidings_engine::journal::Journal;
use tidings_model::ProjectId;

use super::*;

const PROJECT: &str = "app";

/// Sets which sources the hooks of the project hear beside those of every project.
async fn configured(api: &Api, sources: &[&str]) {
    let config = json!({ "hooks": { "sources": sources } });
    let (status, answer) = api.call(Method::PUT, "/v1/config/app", Some(&config)).await;
    assert!(status == 200 || status == 204, "{status} {answer}");
}

async fn creates(server: &Harness, id: &str, content_type: &str) {
    let create = server.put(&format!("/v1/app/stream/{id}")).header("content-type", content_type);
    assert_eq!(create.send().await.expect("an answer").status(), 201, "{id}");
}

async fn appends(server: &Harness, id: &str, content_type: &str, body: impl Into<Vec<u8>>) {
    let append = server.post(&format!("/v1/app/stream/{id}")).header("content-type", content_type);
    assert_eq!(append.body(body.into()).send().await.expect("an answer").status(), 204, "{id}");
}

/// The payloads that an endpoint received, without their times, which are checked.
fn payloads(server: &Harness, endpoint: &Endpoint) -> Vec<Value> {
    let payload = |received: &Received| {
        let mut payload = received.json()["payload"].clone();
        assert_eq!(payload["_namespace"], PROJECT);
        assert_eq!(payload["ts"], time_text(server.clock.now()));
        let members = payload.as_object_mut().expect("an object");
        members.remove("_namespace");
        members.remove("ts");
        payload
    };
    endpoint.received().iter().map(payload).collect()
}

#[tokio::test]
async fn a_message_of_a_stream_is_an_event_of_the_type_stream_and_its_id() {
    for server in both_stores(|_| {}).await {
        let (api, endpoint) = (Api::of(&server).within(PROJECT), Endpoint::start().await);
        configured(&api, &["stream"]).await;
        let settings =
            json!({ "url": endpoint.url("/"), "pattern": "stream.**", "ordering": "subscription" });
        let hook = api.subscribes(settings).await;
        for (id, content_type) in
            [("orders", "application/json"), ("a:b.c d", "text/plain"), ("bytes", "application/octet-stream")]
        {
            creates(&server, &id.replace(' ', "%20"), content_type).await;
        }
        appends(&server, "orders", "application/json", "[{\"id\":1},{\"id\":2}]").await;
        appends(&server, "a:b.c%20d", "text/plain", "grün").await;
        appends(&server, "bytes", "application/octet-stream", [0xff, 0, 1]).await;
        rests(&server).await;
        assert_eq!(
            payloads(&server, &endpoint),
            [
                json!({ "type": "stream.orders", "stream": "orders", "data": { "id": 1 } }),
                json!({ "type": "stream.orders", "stream": "orders", "data": { "id": 2 } }),
                json!({ "type": "stream.a.b.c_d", "stream": "a:b.c d", "data": "grün" }),
                json!({ "type": "stream.bytes", "stream": "bytes", "data_base64": "/wAB" }),
            ]
        );
        let ids: std::collections::BTreeSet<_> =
            endpoint.received().iter().map(|one| one.json()["id"].to_string()).collect();
        assert_eq!(ids.len(), 4, "each has an id");
        assert_eq!(api.stats(&hook).await, Stats { delivered: 4, attempts: 4, ..Stats::default() });
    }
}

#[tokio::test]
async fn a_publish_to_a_session_source_and_an_event_of_a_room_are_events() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server).within(PROJECT), Endpoint::start().await);
    configured(&api, &["stream", "room"]).await;
    let settings = json!({ "url": endpoint.url("/"), "pattern": "**", "ordering": "subscription" });
    api.subscribes(settings).await;
    creates(&server, "news", "text/plain").await;
    let subscribe = json!({ "sessionId": "alice", "streamId": "news" });
    api.post("/v1/app/subscribe", &subscribe).await;
    let publish = server.post("/v1/app/publish/news").header("content-type", "text/plain").body("hello");
    assert_eq!(publish.send().await.expect("an answer").status(), 204);
    api.post("/v1/app/rooms/general/members", &json!({ "add": ["dev"] })).await;
    let message = json!({ "type": "messageEvent", "payload": { "messageView": { "id": "1" } } });
    api.post("/v1/app/rooms/general/events", &message).await;
    rests(&server).await;
    let received = payloads(&server, &endpoint);
    assert_eq!(received.len(), 2, "a session's own copy is no event: {received:?}");
    assert_eq!(received[0], json!({ "type": "stream.news", "stream": "news", "data": "hello" }));
    assert_eq!(
        (&received[1]["type"], &received[1]["room"]),
        (&json!("room.general.messageEvent"), &json!("general"))
    );
    assert_eq!(received[1]["data"]["messageView"], message["payload"]["messageView"], "{}", received[1]);
}

#[tokio::test]
async fn nothing_is_heard_of_a_source_that_is_not_configured() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server).within(PROJECT), Endpoint::start().await);
    let hook = api.hears("**", &endpoint).await;
    let message = json!({ "type": "messageEvent", "payload": { "messageView": {} } });
    let mut heard = Vec::new();
    creates(&server, "s", "text/plain").await;
    api.post("/v1/app/rooms/r/members", &json!({ "add": ["dev"] })).await;
    for sources in [&[][..], &["room"], &["stream"], &["stream", "room"], &[]] {
        configured(&api, sources).await;
        appends(&server, "s", "text/plain", "x").await;
        api.post("/v1/app/rooms/r/events", &message).await;
        rests(&server).await;
        let types: Vec<_> = payloads(&server, &endpoint).drain(heard.len()..).collect();
        let mut types = texts(&types, "type");
        types.sort_unstable();
        let all = [("room", "room.r.messageEvent"), ("stream", "stream.s")];
        let expected: Vec<_> =
            all.iter().filter(|(source, _)| sources.contains(source)).map(|(_, name)| *name).collect();
        assert_eq!(types, expected, "{sources:?}");
        heard.extend(types);
    }
    assert_eq!(heard.len(), 4);
    assert_eq!(api.stats(&hook).await.attempts, 4);
    let others = Api::of(&server).within("other");
    others.hears("**", &endpoint).await;
    configured(&api, &["stream"]).await;
    appends(&server, "s", "text/plain", "x").await;
    rests(&server).await;
    assert_eq!(endpoint.received().len(), 5, "a project hears only its own events");
}

#[tokio::test]
async fn entities_are_heard_in_every_project_and_streams_rooms_and_topics_where_it_is_configured() {
    let server = Harness::start().await;
    let api = Api::of(&server).within(PROJECT);
    let project = ProjectId::parse(PROJECT).expect("an id");
    // What appends are described for, whether or not there is anything yet that appends.
    let heard = || {
        let all = ["collection", "stream", "room", "topic"];
        all.into_iter()
            .filter(|source| server.server().hooks().log(&project, source).is_some())
            .collect::<Vec<_>>()
    };
    assert_eq!(heard(), [""; 0], "there is no hook");
    api.hears("**", &Endpoint::start().await).await;
    assert_eq!(heard(), ["collection"]);
    for sources in [&["topic"][..], &["stream", "topic"], &["room"], &[]] {
        configured(&api, sources).await;
        let mut expected = vec!["collection"];
        expected.extend(sources);
        assert_eq!(heard(), expected, "configuration adds sources and takes none away");
    }
    let unknown = json!({ "hooks": { "sources": ["weather"] } });
    assert_eq!(api.call(Method::PUT, "/v1/config/app", Some(&unknown)).await.0, 400);
}

#[tokio::test]
async fn an_event_of_a_stream_that_was_deleted_since_is_still_delivered() {
    for server in both_stores(|_| {}).await {
        let (api, endpoint) = (Api::of(&server).within(PROJECT), Endpoint::start().await);
        configured(&api, &["stream"]).await;
        let settings =
            json!({ "url": endpoint.url("/"), "pattern": "stream.*", "retrySchedule": [DAY.as_millis()] });
        let hook = api.subscribes(settings).await;
        endpoint.usually(Behaviour::status(500));
        creates(&server, "s", "text/plain").await;
        appends(&server, "s", "text/plain", "last words").await;
        rests(&server).await;
        assert_eq!(api.stats(&hook).await, Stats { failed: 1, attempts: 1, ..Stats::default() });
        let (status, _) = api.call(Method::DELETE, "/v1/app/stream/s", None).await;
        assert_eq!(status, 204);
        assert_eq!(api.call(Method::GET, "/v1/app/stream/s", None).await.0, 404);
        endpoint.usually(Behaviour::default());
        passes(&server, DAY).await;
        assert_eq!(api.stats(&hook).await, Stats { delivered: 1, attempts: 2, ..Stats::default() });
        assert_eq!(endpoint.received()[1].json()["payload"]["data"], "last words");
    }
}

#[tokio::test]
async fn notices_about_a_hook_are_heard_by_others_and_never_by_itself() {
    for server in both_stores(|_| {}).await {
        let (api, listener) = (Api::of(&server), Endpoint::start().await);
        let (failing, gone) = (answering(500, "").await, answering(410, "").await);
        let once = |pattern: &str, endpoint: &Endpoint| {
            api.subscribes(json!({ "url": endpoint.url("/"), "pattern": pattern, "maxRetries": 1 }))
        };
        let hears_notices = api.hears("hook.**", &listener).await;
        let failing_hook = once("**", &failing).await;
        let gone_hook = once("a", &gone).await;
        api.publishes("a", json!({})).await;
        // The first one is told of the second, which fails too, and that is not told to anybody.
        rests(&server).await;
        let mut notices: Vec<_> =
            listener.received().iter().map(|received| received.json()["payload"].clone()).collect();
        notices.sort_by_key(|notice| (notice["subscriptionId"].to_string(), notice["type"].to_string()));
        let about = |hook: &Hook, members: &[&str]| {
            let of_it = notices.iter().filter(|notice| notice["subscriptionId"] == hook.id);
            of_it
                .map(|notice| members.iter().map(|&name| notice[name].clone()).collect::<Vec<_>>())
                .collect::<Vec<_>>()
        };
        let members = ["type", "reason", "lastError", "pattern"];
        let told = |what: [&str; 4]| what.map(Value::from).to_vec();
        assert_eq!(
            about(&failing_hook, &members),
            [told(["hook.delivery.dead", "max_retries_exceeded", "HTTP 500: ", "**"])]
        );
        assert_eq!(
            about(&gone_hook, &members),
            [
                told(["hook.delivery.dead", "endpoint_gone", "HTTP 410: ", "a"]),
                told(["hook.endpoint.disabled", "endpoint_gone", "HTTP 410: ", "a"]),
            ]
        );
        assert_eq!(notices.len(), 3, "{notices:?}");
        let letter = api.dead_letters(&gone_hook).await.remove(0);
        let dead = notices.iter().find(|notice| notice["subscriptionId"] == gone_hook.id).expect("one");
        assert_eq!((&dead["deadLetterId"], &dead["deliveryId"]), (&letter["id"], &letter["deliveryId"]));
        // `**` hears the notices about others, but not those about itself.
        let types: Vec<_> = failing.received().iter().map(|one| one.json()["type"].clone()).collect();
        assert_eq!(types.len(), 3, "{types:?}");
        assert_eq!(types.iter().filter(|kind| *kind == "a").count(), 1);
        assert_eq!(api.stats(&failing_hook).await, Stats { dead: 3, attempts: 3, ..Stats::default() });
        assert_eq!(api.stats(&hears_notices).await.delivered, 3);
    }
}

#[tokio::test]
async fn without_notices_there_are_none() {
    let server = with_options(|options| options.notices = false).await;
    let (api, listener, failing) = (Api::of(&server), Endpoint::start().await, answering(410, "").await);
    let hook = api.hears("hook.**", &listener).await;
    api.hears("a", &failing).await;
    api.publishes("a", json!({})).await;
    rests(&server).await;
    assert_eq!(failing.received().len(), 1);
    assert_eq!(api.stats(&hook).await, Stats::default());
}
