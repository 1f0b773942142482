use super::*;
use tidings_engine::log::Memory;
use tidings_engine::{Bus, Clock, ManualClock};

use crate::topics::{RefusalKind, RefusalReason, TopicGrants, TopicRefusal, Wanted};
use crate::{
    Action, Admission, Allowed, Authorize, Credential, Gate, Lapse, Pass, Resource, Resources, Revocation,
    Route, Subject,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_model::Pattern;

struct NoRandomness;

impl Randomness for NoRandomness {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

fn key(text: &str) -> Key {
    Key::parse(text).expect("long enough")
}

#[tokio::test]
async fn a_stored_key_of_a_project_that_is_given_can_be_removed_and_a_given_one_cannot() {
    let clock = ManualClock::at(Timestamp::from_millis(1000));
    let store = Arc::new(Memory::<Table>::new(Bus::new(), Arc::new(clock)));
    let app = ProjectId::parse("app").expect("a valid id");
    let (stored, given) = (key("the-key-that-leaked"), key("the-key-of-the-file"));
    let before = Projects::open(store.clone(), Arc::new(NoRandomness), Given::default());
    before.create(&app, Some(stored.clone())).await.expect("a new project");
    let also = Given { projects: vec![(app.clone(), vec![given.clone()])], ..Given::default() };
    let projects = Projects::open(store, Arc::new(NoRandomness), also);
    assert!(matches!(projects.remove_key(&app, given.kid()).await, Err(ProjectError::Given)));
    let key_ref = KeyRef::Key(stored.kid().clone());
    assert!(projects.has_key(&app, &key_ref));
    projects.remove_key(&app, stored.kid()).await.expect("it is ours, and the last one that is stored");
    assert!(!projects.has_key(&app, &key_ref));
    assert_eq!(projects.list()[0].kids, [given.kid().clone()]);
}

#[tokio::test]
async fn hooks_hear_what_the_applied_configuration_names_and_two_sources_always() {
    let clock = ManualClock::at(Timestamp::from_millis(1000));
    let store = Arc::new(Memory::<Table>::new(Bus::new(), Arc::new(clock)));
    let [app, given] = ["app", "given"].map(|id| ProjectId::parse(id).expect("a valid id"));
    let also =
        Given { projects: vec![(given.clone(), vec![key("the-key-of-the-file")])], ..Given::default() };
    let writer = Projects::open(store.clone(), Arc::new(NoRandomness), Given::default());
    let reader = Projects::open(store.clone(), Arc::new(NoRandomness), also.clone());
    writer.create(&app, Some(key("a-key-of-the-project"))).await.expect("a new project");
    let heard = |projects: &Projects, id| {
        let all = ["stream", "room", "topic", "collection", "hook"];
        all.into_iter().filter(|source| projects.hooks_hear(id, source)).collect::<Vec<_>>()
    };
    let always = ["collection", "hook"];
    let sources = |named: &[&str]| Config {
        hook_sources: named.iter().map(|&source| source.into()).collect(),
        ..Config::default()
    };
    for id in [&app, &given] {
        assert_eq!(heard(&reader, id), always);
        writer.configure(id, sources(&["room", "stream", "room", "hook"])).await.expect("valid");
        assert_eq!(heard(&reader, id), ["stream", "room", "collection", "hook"]);
    }
    let later = Projects::open(store, Arc::new(NoRandomness), also);
    assert_eq!(heard(&later, &app), heard(&reader, &app), "as the store has it");
    writer.configure(&given, sources(&["topic"])).await.expect("valid");
    assert_eq!(heard(&reader, &given), ["topic", "collection", "hook"]);
    writer.remove(&app).await.expect("it was there");
    assert_eq!(heard(&reader, &app), always);
}

#[tokio::test]
async fn projects_that_wrote_nothing_follow_what_others_wrote_to_the_store() {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_millis(1000)));
    let store = Arc::new(Memory::<Table>::new(Bus::new(), clock.clone()));
    let (app, given) = (ProjectId::parse("app").expect("a valid id"), key("the-key-of-the-file"));
    let also = Given { projects: vec![(app.clone(), vec![given.clone()])], ..Given::default() };
    let writer = Projects::open(store.clone(), Arc::new(NoRandomness), Given::default());
    let reader = Projects::open(store.clone(), Arc::new(NoRandomness), also);
    writer.create(&app, Some(key("the-first-of-two-keys"))).await.expect("a new project");
    writer.rotate_key(&app, Some(key("the-second-of-two-keys"))).await.expect("one more");
    let leaked = key("the-first-of-two-keys");
    let api_key = leaked.api_key(&app);
    let verified = reader.verify(&app, &api_key, clock.now()).expect("it counts on the other as well");
    let gate = Gate::new(reader.clone(), Admission::Credentials, clock.clone());
    let route = Route { action: Action::Publish, project: app.clone(), resource: Resource::Project };
    let pass = gate.enter(route, Some(&Credential::new(&api_key))).await.expect("let in");
    assert!(pass.holds(clock.now()));

    writer.remove_key(&app, leaked.kid()).await.expect("there is another");
    assert!(!reader.has_key(&app, &verified.key_ref) && reader.verify(&app, &api_key, clock.now()).is_err());
    assert!(!pass.holds(clock.now()), "whoever was let in with it is cut");
    pass.ended(&*clock).await;
    let kids = [given.kid().clone(), key("the-second-of-two-keys").kid().clone()];
    assert_eq!(reader.list()[0].kids, kids, "the keys of the configuration stay");

    let admin = writer.set_admin_key(None).await.expect("a key");
    assert!(reader.verify_admin_key(admin.reveal()).is_some());
    writer.remove(&app).await.expect("it was there");
    reader.some_removed().await;
    assert_eq!(reader.removing(), std::slice::from_ref(&app));
    writer.forget(&app).await.expect("nothing is left of it");
    assert!(reader.removing().is_empty());
}

const SHOP_KEY: &str = "ns_shop_0123456789abcdef";

/// A store, and its projects with an API key of `shop` from the configuration.
fn with_api_key() -> (Arc<Memory<Table>>, Projects) {
    let clock = ManualClock::at(Timestamp::from_millis(1000));
    let store = Arc::new(Memory::<Table>::new(Bus::new(), Arc::new(clock)));
    let api_keys = vec![ApiKey::parse(SHOP_KEY).expect("good")];
    let given = Given { api_keys, ..Given::default() };
    (store.clone(), Projects::open(store, Arc::new(NoRandomness), given))
}

fn id(text: &str) -> ProjectId {
    ProjectId::parse(text).expect("a valid id")
}

#[tokio::test]
async fn an_api_key_of_the_configuration_has_the_rights_of_a_derived_one() {
    let (_, projects) = with_api_key();
    let (shop, now) = (id("shop"), Timestamp::from_millis(1000));
    let made = projects.create(&shop, None).await.expect("it can be given a signing key");
    let principal = |credential: &str| projects.verify(&shop, credential, now).map(|known| known.principal);
    let derived = principal(&made.api_key()).expect("derived");
    assert_eq!(principal(SHOP_KEY).expect("given"), derived);
    assert_eq!((derived.scope, derived.grants), (Scope::Write, Grants::Publishing));
    for wrong in
        ["ns_shop_0123456789abcdeF", "ns_shop_0123456789abcde", "ns_shop_", "ns_other_0123456789abcdef"]
    {
        assert!(matches!(principal(wrong), Err(Denied::Unknown)), "{wrong}");
    }
    projects.create(&id("other"), None).await.expect("new");
    let elsewhere = projects.verify(&id("other"), SHOP_KEY, now).map(|known| known.principal);
    assert!(matches!(elsewhere, Err(Denied::WrongProject)));
    projects.remove_key(&shop, made.key.kid()).await.expect_err("the last signing key stays");
}

#[tokio::test]
async fn a_project_that_an_api_key_names_exists_and_can_be_given_signing_keys() {
    let (store, projects) = with_api_key();
    assert!(!projects.has_no_keys(), "somebody can come in");
    assert!(projects.exists(&id("shop")) && !projects.exists(&id("other")));
    assert_eq!(projects.list(), [Listed { project: id("shop"), kids: Vec::new() }]);
    let removed = projects.remove_key(&id("shop"), &Kid::named("0")).await;
    assert!(matches!(removed, Err(ProjectError::Declined(Declined::NoSuchKey))), "{removed:?}");
    let first =
        projects.rotate_key(&id("shop"), Some(key("the-first-signing-key"))).await.expect("its first");
    let second =
        projects.rotate_key(&id("shop"), Some(key("the-second-signing-key"))).await.expect("one more");
    let kids = [second.key.kid().clone(), first.key.kid().clone()];
    assert_eq!(projects.list()[0].kids, kids);
    let without = Projects::open(store, Arc::new(NoRandomness), Given::default());
    assert_eq!(without.list()[0].kids, kids, "they are stored");
    let known =
        without.verify(&id("shop"), SHOP_KEY, Timestamp::from_millis(1000)).map(|known| known.principal);
    assert!(matches!(known, Err(Denied::Unknown)), "the API key is of the configuration alone");
}

#[tokio::test]
async fn a_project_that_an_api_key_names_is_removed_only_where_that_is_not_given() {
    let (store, projects) = with_api_key();
    projects.create(&id("shop"), None).await.expect("new");
    assert!(matches!(projects.remove(&id("shop")).await, Err(ProjectError::Given)));
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_millis(1000)));
    let gate = Gate::new(projects.clone(), Admission::Credentials, clock.clone());
    let route = Route { action: Action::Hooks, project: id("shop"), resource: Resource::Project };
    let pass = gate.enter(route, Some(&Credential::new(SHOP_KEY))).await.expect("let in");
    projects.rotate_key(&id("shop"), Some(key("another-signing-key"))).await.expect("rotated");
    assert!(pass.holds(clock.now()), "it does not depend on signing keys");
    let without = Projects::open(store, Arc::new(NoRandomness), Given::default());
    without.remove(&id("shop")).await.expect("removed");
    assert!(!pass.holds(clock.now()), "nor outlives its project");
    assert!(projects.verify(&id("shop"), SHOP_KEY, clock.now()).is_err());
}

/// An application that lets everybody in, to the topics of `team`.
struct OfTheTeam;

impl Authorize for OfTheTeam {
    fn authorize<'a>(
        &'a self,
        _: &'a Route,
        _: Option<&'a Credential>,
    ) -> BoxFuture<'a, Result<Allowed, Denied>> {
        let topics =
            TopicGrants { subscribe: vec![Pattern::parse("team:*").expect("good")], publish: vec![] };
        async { Ok(Allowed { topics: Some(topics), ..Allowed::default() }) }.boxed()
    }
}

fn using_topics(project: &str) -> Route {
    Route { action: Action::UseTopics, project: id(project), resource: Resource::Project }
}

fn refused(kind: RefusalKind, reason: RefusalReason) -> Result<(), TopicRefusal> {
    Err(TopicRefusal { kind, reason })
}

#[tokio::test]
async fn every_credential_of_a_project_opens_topics_and_its_pass_tells_which() {
    let (_, projects) = with_api_key();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_millis(1000)));
    projects.create(&id("shop"), None).await.expect("new");
    let gate = |admission| Gate::new(projects.clone(), admission, clock.clone());
    let enter = async |gate: Gate, credential: Option<&str>| {
        gate.enter(using_topics("shop"), credential.map(Credential::new).as_ref()).await
    };
    let expires_at = Timestamp::from_millis(9000);
    let signed = |scope, resources| {
        let claims = Claims { resources, ..Claims::new(id("shop"), scope, expires_at) };
        projects.sign(&claims).expect("signed")
    };
    let forbidden = |reason| refused(RefusalKind::Forbidden, reason);
    let asked =
        |pass: &Pass| (pass.may_subscribe_topic(Wanted::Topic("team:1")), pass.may_publish_topic("team:1"));
    let closed = || gate(Admission::Credentials);

    assert_eq!(enter(closed(), None).await.err(), Some(Denied::Missing));
    let wide = enter(closed(), Some(&signed(Scope::Read, Resources::default()))).await.expect("let in");
    assert_eq!(asked(&wide), (Ok(()), forbidden(RefusalReason::Scope)));
    assert_eq!(wide.expires_at(), Some(expires_at));
    let session = Resources { session: Some("s".into()), ..Resources::default() };
    let session = enter(closed(), Some(&signed(Scope::Manage, session))).await.expect("let in");
    assert_eq!(asked(&session), (forbidden(RefusalReason::Grant), forbidden(RefusalReason::Grant)));
    let api_key = enter(closed(), Some(SHOP_KEY)).await.expect("let in");
    assert_eq!(asked(&api_key), (forbidden(RefusalReason::Grant), Ok(())));

    let dev = enter(gate(Admission::Everybody), None).await.expect("let in");
    assert_eq!((asked(&dev), dev.expires_at()), ((Ok(()), Ok(())), None));
    assert_eq!(dev.principal().and_then(|dev| dev.user.as_deref()), Some("dev"));

    let custom = enter(gate(Admission::Custom(Arc::new(OfTheTeam))), None).await.expect("let in");
    assert_eq!(asked(&custom), (Ok(()), forbidden(RefusalReason::Grant)));
    let all = Pattern::parse("**").expect("good");
    assert_eq!(custom.may_subscribe_topic(Wanted::Pattern(&all)), forbidden(RefusalReason::Grant));
}

#[tokio::test]
async fn without_a_principal_no_topic_is_allowed() {
    let (_, projects) = with_api_key();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_millis(1000)));
    let public = Config { public: vec![Pattern::parse("**").expect("good")], ..Config::default() };
    projects.configure(&id("shop"), public).await.expect("valid");
    let gate = Gate::new(projects, Admission::Credentials, clock);
    let stream = tidings_model::StreamId::parse("team:1").expect("good");
    let route = Route { action: Action::Read, project: id("shop"), resource: Resource::Stream(stream) };
    let anonymous = gate.enter(route, None).await.expect("it is public");
    let unauthorized = refused(RefusalKind::Unauthorized, RefusalReason::Grant);
    assert_eq!(anonymous.may_subscribe_topic(Wanted::Topic("team:1")), unauthorized);
    assert_eq!(anonymous.may_publish_topic("team:1"), unauthorized);
    assert_eq!(gate.enter(using_topics("shop"), None).await.err(), Some(Denied::Missing));
}

fn revocation(subject: Subject, topics: Option<&[&str]>) -> Revocation {
    let pattern = |topic: &&str| Pattern::parse(topic).expect("good");
    let topics = topics.map(|topics| topics.iter().map(pattern).collect());
    Revocation { project: id("shop"), subject, topics, at: Timestamp::from_millis(5000) }
}

#[tokio::test]
async fn a_pass_asks_what_was_revoked_of_its_token_whichever_node_did_it() {
    let (store, projects) = with_api_key();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_millis(1000)));
    projects.create(&id("shop"), None).await.expect("new");
    let other = Projects::open(store, Arc::new(NoRandomness), Given::default());
    let gate = Gate::new(projects.clone(), Admission::Credentials, clock.clone());
    let enter = async |user: &str, token: &str| {
        let claims = Claims::new(id("shop"), Scope::Write, Timestamp::from_millis(9000));
        let claims = Claims { user: Some(user.into()), id: Some(token.into()), ..claims };
        let token = projects.sign(&claims).expect("signed");
        gate.enter(using_topics("shop"), Some(&Credential::new(&token))).await
    };
    let (alice, bob) = (enter("alice", "1").await.expect("in"), enter("bob", "2").await.expect("in"));
    let revoked = refused(RefusalKind::Forbidden, RefusalReason::Revoked);
    let room =
        |pass: &Pass| (pass.may_subscribe_topic(Wanted::Topic("room:1")), pass.may_publish_topic("room:1"));
    assert_eq!(room(&alice), (Ok(()), Ok(())));

    let topics = revocation(Subject::User("alice".into()), Some(&["room:*"]));
    other.revoke(topics.clone()).await.expect("revoked");
    assert!(alice.is_touched_by(&topics) && !bob.is_touched_by(&topics));
    let later = enter("alice", "3").await.expect("only topics were revoked");
    for touched in [&alice, &later] {
        assert_eq!(room(touched), (revoked, revoked));
        for (wanted, allowed) in [("room:1*", revoked), ("**", revoked), ("news.*", Ok(()))] {
            let pattern = Pattern::parse(wanted).expect("good");
            assert_eq!(touched.may_subscribe_topic(Wanted::Pattern(&pattern)), allowed, "{wanted}");
        }
        assert_eq!((touched.holds(clock.now()), touched.lapse(clock.now())), (true, None));
    }
    assert_eq!(room(&bob), (Ok(()), Ok(())));

    let token = revocation(Subject::Token("2".into()), None);
    other.revoke(token.clone()).await.expect("revoked");
    assert!(bob.is_touched_by(&token) && !alice.is_touched_by(&token));
    bob.ended(&*clock).await;
    assert_eq!((bob.holds(clock.now()), bob.lapse(clock.now())), (false, Some(Lapse::Revoked)));
    assert_eq!(room(&bob), (revoked, revoked));
    assert_eq!(enter("bob", "2").await.err(), Some(Denied::Revoked));
    assert!(alice.holds(clock.now()) && enter("bob", "4").await.is_ok());
    assert_eq!(alice.lapse(Timestamp::from_millis(9000)), Some(Lapse::Expired));
    for project in ["shop", "other"] {
        let elsewhere = Revocation { project: id(project), ..token.clone() };
        assert_eq!(bob.is_touched_by(&elsewhere), project == "shop");
    }
}

#[tokio::test]
async fn the_generation_of_a_pass_changes_with_what_is_revoked_of_its_own_token_alone() {
    let (_, projects) = with_api_key();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_millis(1000)));
    projects.create(&id("shop"), None).await.expect("new");
    let gate = Gate::new(projects.clone(), Admission::Credentials, clock);
    let claims = Claims::new(id("shop"), Scope::Write, Timestamp::from_millis(9000));
    let token = projects.sign(&Claims { user: Some("alice".into()), ..claims }).expect("signed");
    let pass = gate.enter(using_topics("shop"), Some(&Credential::new(&token))).await.expect("in");
    let mut known = pass.generation();
    let user = |name: &str| Subject::User(name.into());
    for (subject, topics, changes) in [
        (user("bob"), Some(&["a"][..]), false),
        (user("alice"), Some(&["a"]), true),
        (user("alice"), Some(&["a"]), false),
        (Subject::Token("alice".into()), None, false),
        (user("alice"), Some(&["a", "b"]), true),
        (user("alice"), None, true),
    ] {
        let revocation = revocation(subject, topics);
        projects.revoke(revocation.clone()).await.expect("revoked");
        let generation = pass.generation();
        assert_eq!(generation != known, changes, "{revocation:?}");
        known = generation;
    }
}
