//! The promises about many streams: what is due, what is paged, what is counted, and what is found no more.

use tidings_engine::log::fixture::Fixture;

use super::{
    ALL, change, create, due, expiring, find, fork, key, list, plain, project, remove, retained,
    retained_after, time,
};
use crate::table::{Cause, Declined};
use crate::{Change, Owner, Store, Stream, StreamKey, StreamState};

/// The sweep is given the streams of one owner whose time is over, earliest first, no more than it asks for.
pub async fn expired_streams_are_due_earliest_first(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    for (name, second) in [("b/x", 30), ("a/z", 20), ("a/late", 41), ("c/x", 10), ("a/a", 40), ("b/a", 20)] {
        create(store, name, |log| expiring(log, second)).await;
    }
    create(store, "a/never", plain).await;
    let of_session = |log| Stream { owner: Owner::Session, ..expiring(log, 15) };
    create(store, "a/session", of_session).await;
    fixture.reopen().await;
    let store = fixture.store();
    assert!(due(store, Owner::Clients, 9, ALL).await.is_empty());
    assert_eq!(due(store, Owner::Clients, 40, ALL).await, ["c/x", "a/z", "b/a", "b/x", "a/a"]);
    assert_eq!(due(store, Owner::Clients, 40, 2).await, ["c/x", "a/z"]);
    assert!(due(store, Owner::Clients, 40, 0).await.is_empty());
    assert_eq!(due(store, Owner::Session, 40, ALL).await, ["a/session"]);
    assert!(due(store, Owner::Session, 14, ALL).await.is_empty());
}

/// A renewal gives a stream time and never takes any away.
pub async fn a_renewed_stream_is_due_later_and_never_earlier(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    for (name, renewals) in [("shop/a", [50, 20]), ("shop/b", [5, 7])] {
        let log = create(store, name, |log| expiring(log, 10)).await;
        for second in renewals {
            let renewal = Change::Renew { key: key(name), log, expires_at: time(second) };
            change(store, renewal).await.expect("it can be used");
        }
    }
    fixture.reopen().await;
    let store = fixture.store();
    assert!(due(store, Owner::Clients, 9, ALL).await.is_empty());
    assert_eq!(due(store, Owner::Clients, 49, ALL).await, ["shop/b"]);
    assert_eq!(due(store, Owner::Clients, 50, ALL).await, ["shop/b", "shop/a"]);
    assert_eq!(find(store, "shop/a").await.expect("there").stream.expires_at, Some(time(50)));
}

/// Forks hold a deleted stream. It is due, for whoever sweeps, when the last of them has gone.
pub async fn a_deleted_stream_is_due_when_its_last_fork_has_gone(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let source = create(store, "shop/source", |log| expiring(log, 10)).await;
    let of_source = |log| fork(log, &key("shop/source"), source);
    let forks = [create(store, "shop/f", of_source).await, create(store, "shop/g", of_source).await];
    let retire = Change::Retire { key: key("shop/source"), log: source, cause: Cause::Deleted };
    change(store, retire).await.expect("it can be used");
    remove(store, "shop/f", forks[0], Cause::Deleted).await;
    fixture.reopen().await;
    let store = fixture.store();
    let held = find(store, "shop/source").await.expect("there").stream;
    assert_eq!((held.state, held.forks), (StreamState::Retired, 1));
    let end = Change::Remove { key: key("shop/source"), log: source, cause: Cause::Unreferenced };
    assert_eq!(change(store, end).await, Err(Declined::HasForks));
    assert!(due(store, Owner::Clients, 99, ALL).await.is_empty(), "its own expiry does not count any more");
    remove(store, "shop/g", forks[1], Cause::Deleted).await;
    fixture.reopen().await;
    let store = fixture.store();
    for owner in [Owner::Clients, Owner::Session] {
        assert_eq!(due(store, owner, 0, ALL).await, ["shop/source"]);
    }
    remove(store, "shop/source", source, Cause::Unreferenced).await;
    assert!(due(store, Owner::Clients, 99, ALL).await.is_empty());
}

/// Pages of a list, one after the other, have each stream of the prefix once, in the order of the bytes of their ids.
pub async fn a_list_is_paged_in_the_order_of_ids(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    for id in ["b", "a/1", "a", "ab", "a/2", "B", "a b", "ä", "a/1/x", "c"] {
        create(store, &format!("shop/{id}"), plain).await;
        create(store, &format!("other/{id}"), plain).await;
    }
    create(store, "shop/a/0", |log| expiring(log, 1)).await;
    let gone = create(store, "shop/a/11", plain).await;
    remove(store, "shop/a/11", gone, Cause::Deleted).await;
    fixture.reopen().await;
    let store = fixture.store();
    let all = ["B", "a", "a b", "a/0", "a/1", "a/1/x", "a/2", "ab", "b", "c", "ä"];
    assert_eq!(list(store, "shop", "", None, ALL).await, all);
    for limit in [1, 2, 3] {
        let mut paged: Vec<String> = Vec::new();
        loop {
            let page = list(store, "shop", "", paged.last().map(String::as_str), limit).await;
            assert!(page.len() <= limit);
            if page.is_empty() {
                break;
            }
            paged.extend(page);
        }
        assert_eq!(paged, all, "{limit} at a time");
    }
    assert_eq!(list(store, "shop", "a/", None, ALL).await, ["a/0", "a/1", "a/1/x", "a/2"]);
    assert_eq!(list(store, "shop", "a/", Some("B"), 1).await, ["a/0"], "the prefix is behind it");
    assert_eq!(list(store, "shop", "a/", Some("a/11"), ALL).await, ["a/2"], "no such stream");
    assert!(list(store, "shop", "a/", Some("b"), ALL).await.is_empty(), "the prefix is before it");
    assert!(list(store, "shop", "", None, 0).await.is_empty());
    assert!(list(store, "nobody", "", None, ALL).await.is_empty());
}

/// Retention finds each stream that has limits once, over all projects.
pub async fn streams_that_do_not_keep_everything_are_paged_in_the_order_of_keys(
    mut fixture: impl Fixture<Store: Store>,
) {
    let store = fixture.store();
    for name in ["b/a", "a/z", "a/b", "c/m", "a/a"] {
        create(store, name, retained).await;
        create(store, &format!("{name}-all"), plain).await;
    }
    fixture.reopen().await;
    let store = fixture.store();
    let all: Vec<_> = ["a/a", "a/b", "a/z", "b/a", "c/m"].map(key).into();
    assert_eq!(retained_after(store, None, ALL).await, all);
    let mut paged: Vec<StreamKey> = Vec::new();
    loop {
        let page = retained_after(store, paged.last(), 2).await;
        assert!(page.len() <= 2);
        if page.is_empty() {
            break;
        }
        paged.extend(page);
    }
    assert_eq!(paged, all);
    assert_eq!(retained_after(store, Some(&key("a/between")), 1).await, [key("a/z")], "no such stream");
}

/// Streams of sessions count in their project, also when they have expired, until they are removed.
pub async fn streams_of_sessions_are_counted_until_they_have_gone(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let of_session = |log| Stream { owner: Owner::Session, ..expiring(log, 1) };
    let first = create(store, "shop/one", of_session).await;
    create(store, "shop/two", of_session).await;
    create(store, "other/one", of_session).await;
    create(store, "shop/three", plain).await;
    fixture.reopen().await;
    let store = fixture.store();
    for (of, count) in [("shop", 2), ("other", 1), ("nobody", 0)] {
        assert_eq!(store.sessions(&project(of)).await, Ok(count), "{of}");
    }
    remove(store, "shop/one", first, Cause::Expired(time(1))).await;
    fixture.reopen().await;
    assert_eq!(fixture.store().sessions(&project("shop")).await, Ok(1));
}

/// Nothing answers with a stream that is gone, and its name is free.
pub async fn a_removed_stream_is_in_no_index(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let everywhere = |log| Stream { owner: Owner::Session, expires_at: Some(time(1)), ..retained(log) };
    let log = create(store, "shop/s", everywhere).await;
    remove(store, "shop/s", log, Cause::Expired(time(1))).await;
    for _ in 0..2 {
        let store = fixture.store();
        assert!(find(store, "shop/s").await.is_none());
        assert!(list(store, "shop", "", None, ALL).await.is_empty());
        assert!(due(store, Owner::Session, 99, ALL).await.is_empty());
        assert!(retained_after(store, None, ALL).await.is_empty());
        assert_eq!(store.sessions(&project("shop")).await, Ok(0));
        fixture.reopen().await;
    }
    let again = create(fixture.store(), "shop/s", plain).await;
    assert_eq!(find(fixture.store(), "shop/s").await.expect("there").stream.log, again);
}
