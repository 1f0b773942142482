//! The promises about what ends: sessions whose time is over, and streams that are removed.

use tidings_engine::log::Commit;
use tidings_engine::log::fixture::Fixture;
use tidings_model::{Position, limits};

use super::{
    ALL, append, at, beginning, commit, end, heard, hearing, key, lapsed, make, reserve, session, source,
    subscribe, time,
};
use crate::table::{Change, SessionIs, Store};

/// More subscribers than a store would look at one by one.
const MANY: u64 = 2500;
const PER_COMMIT: usize = 100;

/// Sessions that have expired are told by the source that they hear, until they are renewed or have ended.
pub async fn subscribers_lapse_when_their_time_is_over_unless_it_is_renewed(
    mut fixture: impl Fixture<Store: Store>,
) {
    let store = fixture.store();
    let (few, many) = (source(store, "few").await, source(store, "many").await);
    let mut sessions = Vec::new();
    // In commits of a size that any store takes.
    for first in (0..MANY).step_by(PER_COMMIT) {
        let mut some = Commit::new();
        for number in first..first + PER_COMMIT as u64 {
            let log = reserve(store).await;
            let one = beginning(log, &format!("session-{number}"), time(100 + number), many);
            some.operations.extend(one.operations);
            some.changes.extend(one.changes);
            sessions.push(log);
        }
        commit(store, some).await.expect("there is room");
    }
    make(store, sessions[..3].iter().map(|&log| subscribe(log, SessionIs::Existing, few, at(0)))).await;
    fixture.reopen().await;
    let store = fixture.store();
    for source in [few, many] {
        assert!(lapsed(store, source, 99).await.is_empty());
        assert_eq!(lapsed(store, source, 101).await, sessions[..2]);
        assert_eq!(store.lapsed(source, time(101), 1).await.expect("an answer").len(), 1);
    }
    assert_eq!(lapsed(store, many, 100 + MANY).await, sessions);
    assert_eq!(lapsed(store, few, 100 + MANY).await, sessions[..3]);
    let told = store.lapsed(few, time(100), ALL).await;
    assert_eq!(told, Ok(vec![(sessions[0], key("session-0"))]));
    let renew = |second| {
        let (key, log) = (key("session-0"), sessions[0]);
        Change::Streams(tidings_streams::Change::Renew { key, log, expires_at: time(second) })
    };
    make(store, [renew(1_000_000), renew(50)]).await;
    end(store, "session-1", sessions[1]).await;
    fixture.reopen().await;
    let store = fixture.store();
    for source in [few, many] {
        assert!(lapsed(store, source, 101).await.is_empty(), "a renewal never takes time away");
        assert_eq!(lapsed(store, source, 102).await, [sessions[2]]);
    }
}

/// With the stream of a session its subscriptions end, and nothing answers with it any more.
pub async fn a_session_ends_with_its_stream(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let (both, own) = (source(store, "both").await, source(store, "own").await);
    let ended = session(store, "ended", time(1), both).await;
    let other = session(store, "other", time(9), both).await;
    make(store, [subscribe(ended, SessionIs::Existing, own, at(0))]).await;
    end(store, "ended", ended).await;
    for _ in 0..2 {
        let store = fixture.store();
        assert_eq!(heard(store, ended).await, None);
        assert_eq!(hearing(store, both).await, Some(vec![other]));
        assert_eq!(hearing(store, own).await, None);
        assert!(lapsed(store, both, 5).await.is_empty());
        fixture.reopen().await;
    }
}

/// With a source all subscriptions to it end, however many there are; sessions go on hearing others.
pub async fn a_source_ends_for_all_its_subscribers_at_once(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let (ended, other) = (source(store, "ended").await, source(store, "other").await);
    let mut sessions = Vec::new();
    for number in 0..3 * limits::DETACHED_PER_CHANGE {
        let log = reserve(store).await;
        let begin = beginning(log, &format!("session-{number}"), time(9), ended).changing(subscribe(
            log,
            SessionIs::New,
            other,
            Position::ZERO,
        ));
        commit(store, begin).await.expect("there is room");
        sessions.push(log);
    }
    commit(store, Commit::new().with(append(ended, at(1)))).await.expect("the log is open");
    end(store, "ended", ended).await;
    for _ in 0..2 {
        let store = fixture.store();
        assert_eq!(hearing(store, ended).await, None);
        assert_eq!(store.behind().await, Ok(vec![]));
        assert!(lapsed(store, ended, 99).await.is_empty());
        for &session in &sessions {
            assert_eq!(heard(store, session).await, Some(vec![other]), "{session}");
        }
        assert_eq!(hearing(store, other).await, Some(sessions.clone()));
        fixture.reopen().await;
    }
}
