//! Owners create, change, deactivate and remove hooks.

use std::time::Duration;

use tidings_egress::AllowList;
use tidings_hooks::history::LetterFilter;
use tidings_hooks::{HookError, Options, Settings};
use tidings_model::Ulid;

use crate::scene::{Scene, shop};

fn invalid_field(error: HookError) -> &'static str {
    match error {
        HookError::Invalid { field, .. } => field,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_target_must_be_given_and_allowed() {
    let scene = Scene::new();
    let project = shop();
    let create = |change: fn(&mut Settings)| {
        let mut settings = Settings::new("a");
        change(&mut settings);
        scene.hooks.create(&project, settings)
    };
    assert_eq!(invalid_field(create(|_| {}).await.expect_err("no target")), "workerId");
    for url in
        ["ftp://a", "http://127.0.0.1/", "http://[::1]/", "http://10.0.0.1/", "http://u:p@example.com/", "x"]
    {
        let mut settings = Settings::new("a");
        settings.url = Some(url.into());
        let refused = scene.hooks.create(&shop(), settings).await.expect_err(url);
        assert_eq!(invalid_field(refused), "url", "{url}");
    }
    for (name, value) in
        [("host", "a"), ("Webhook-Id", "a"), ("content-type", "a"), ("connection", "a"), ("x", "a\r\nb")]
    {
        let mut settings = Settings { url: Some("https://example.com/".into()), ..Settings::new("a") };
        settings.headers = vec![(name.into(), value.into())];
        let refused = scene.hooks.create(&shop(), settings).await.expect_err(name);
        assert_eq!(invalid_field(refused), "headers", "{name}");
    }
    create(|settings| settings.worker_id = Some("my-worker".into()))
        .await
        .expect("the template makes its URL");
    let none = Scene::with(Options { target_template: String::new(), ..Options::default() });
    let refused =
        none.hooks.create(&shop(), Settings { worker_id: Some("w".into()), ..Settings::new("a") }).await;
    assert_eq!(invalid_field(refused.expect_err("no template")), "url");
    let allow_targets = AllowList::parse(&["127.0.0.1/32".to_owned()]).expect("a network");
    let local = Scene::with(Options { allow_targets, ..Options::default() });
    let settings = Settings { url: Some("http://127.0.0.1:9/".into()), ..Settings::new("a") };
    local.hooks.create(&shop(), settings).await.expect("allowed");
}

#[tokio::test]
async fn an_equal_hook_is_refused_and_the_number_of_hooks_is_limited() {
    let scene = Scene::with(Options { max_per_project: 2, ..Options::default() });
    let settings =
        |pattern: &str| Settings { url: Some("https://example.com/".into()), ..Settings::new(pattern) };
    let first = scene.hooks.create(&shop(), settings("a")).await.expect("new").hook.id;
    assert!(matches!(scene.hooks.create(&shop(), settings("a")).await, Err(HookError::Exists)));
    scene.hooks.create(&shop(), settings("b")).await.expect("new");
    assert!(matches!(scene.hooks.create(&shop(), settings("c")).await, Err(HookError::TooMany { most: 2 })));
    scene.hooks.remove(None, first).await.expect("there");
    scene.hooks.create(&shop(), settings("a")).await.expect("there is room again");
}

#[tokio::test]
async fn a_change_keeps_what_it_does_not_name_and_cannot_change_the_pattern() {
    let scene = Scene::new();
    let id = scene.hook("a.*").await;
    let project = shop();
    let changed = scene.hooks.update(Some(&project), id, |settings| {
        settings.max_retries = 2;
        Ok(())
    });
    let changed = changed.await.expect("a hook");
    assert_eq!((changed.settings.max_retries, &*changed.settings.pattern), (2, "a.*"));
    assert!(changed.updated_at > changed.created_at);
    let refused = scene.hooks.update(None, id, |settings| {
        settings.pattern = "b".into();
        Ok(())
    });
    assert_eq!(invalid_field(refused.await.expect_err("refused")), "pattern");
    let refused = scene.hooks.update(None, id, |settings| {
        settings.timeout_ms = 0;
        Ok(())
    });
    assert_eq!(invalid_field(refused.await.expect_err("refused")), "timeoutMs");
}

#[tokio::test]
async fn a_rotated_secret_signs_beside_the_new_one_until_its_time_is_over() {
    let scene = Scene::new();
    let created = scene.hook_with("a", |_| {}).await;
    let new =
        scene.hooks.rotate_secret(None, created.hook.id, Duration::from_secs(60)).await.expect("a hook");
    assert_ne!(new, created.secret);
    let secrets = scene.hooks.get(None, created.hook.id).await.expect("a hook").hook.secrets.clone();
    let signatures = |now| secrets.sign("id", 1, b"x", now).split(' ').count();
    assert_eq!(signatures(scene.clock_now()), 2);
    assert_eq!(signatures(scene.clock_now() + Duration::from_secs(60)), 1);
    scene.hooks.rotate_secret(None, created.hook.id, Duration::ZERO).await.expect("a hook");
    assert_eq!(scene.hooks.get(None, created.hook.id).await.expect("a hook").hook.secrets.previous, None);
}

#[tokio::test]
async fn hooks_are_listed_newest_first_and_only_those_that_are_wanted() {
    let scene = Scene::new();
    let mut ids = Vec::new();
    for number in 0..5 {
        ids.push(scene.hook(&format!("a.{number}")).await);
        scene.pass(Duration::from_millis(1));
    }
    let list = async |before, skip, most, wanted: fn(&tidings_hooks::Hook) -> bool| -> Vec<_> {
        let listed = scene.hooks.list(Some(&shop()), before, skip, most, wanted).await.expect("a store");
        listed.iter().map(|described| described.hook.id).collect()
    };
    ids.reverse();
    assert_eq!(list(None, 0, 9, |_| true).await, ids);
    assert_eq!(list(Some(ids[1]), 0, 2, |_| true).await, ids[2..4]);
    assert_eq!(list(None, 3, 9, |_| true).await, ids[3..]);
    assert_eq!(list(None, 0, 9, |hook| hook.settings.pattern == "a.3").await, [ids[1]]);
    let other = tidings_model::ProjectId::default_project();
    assert!(scene.hooks.list(Some(&other), None, 0, 9, |_| true).await.expect("a store").is_empty());
    assert_eq!(scene.hooks.list(None, None, 0, 9, |_| true).await.expect("a store").len(), 5);
}

#[tokio::test]
async fn a_removed_project_leaves_no_hook_no_event_and_no_remembered_id() {
    let scene = Scene::new();
    let hook = scene.hook("**").await;
    let mut event = scene.of_type("a");
    event["id"] = "evt".into();
    scene.event(event.clone()).await;
    assert!(scene.hooks.clear(&shop()).await.expect("a store"));
    assert!(matches!(scene.hooks.get(None, hook).await, Err(HookError::NoSuchHook)));
    assert!(scene.hooks.clear(&shop()).await.expect("nothing is left"));
    let again = scene.hook("**").await;
    scene.event(event).await;
    assert_eq!(scene.types(again).await.len(), 1, "the project of the same name begins anew");
}

#[tokio::test]
async fn a_dead_letter_that_is_not_there_is_told_so() {
    let scene = Scene::new();
    let hook = scene.hook("**").await;
    let retried = scene.hooks.retry_dead_letter(None, hook, Ulid::new(5)).await;
    assert!(matches!(retried, Err(HookError::NoSuchDeadLetter)));
    assert_eq!(
        scene.hooks.retry_dead_letters(None, hook, &LetterFilter::default()).await.expect("a hook"),
        0
    );
}

#[tokio::test]
async fn a_test_goes_to_its_hook_alone_whatever_the_pattern() {
    let scene = Scene::new();
    let (hook, other) = (scene.hook("orders.*").await, scene.hook("**").await);
    let delivery = scene.hooks.send_test(Some(&shop()), hook).await.expect("a hook");
    let deliveries = scene.deliveries(hook).await;
    assert_eq!(deliveries.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [delivery]);
    assert!(scene.deliveries(other).await.is_empty());
}
