//! The promises about what reaches subscribers: how far the follower has come, and what it has left to do.

use futures_util::future::join;
use tidings_engine::log::fixture::{Fixture, observe};
use tidings_engine::log::{Commit, Logs};
use tidings_model::{LogId, Position};

use super::{append, at, beginning, change, commit, make, reserve, session, source, subscribe, time};
use crate::table::{Change, Cursor, Declined, Expected, Progress, SessionIs, Store};

async fn version(store: &impl Store, source: LogId) -> u64 {
    store.source(source).await.expect("an answer").expect("there").version
}

async fn progress(store: &impl Store, source: LogId) -> Progress {
    store.source(source).await.expect("an answer").expect("there").progress.clone()
}

/// Two followers that start from the same cursor do not both deliver: the commit of one holds, with what it delivers.
pub async fn of_two_who_deliver_a_batch_one_wins(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let source = source(store, "news").await;
    let log = session(store, "one", time(9), source).await;
    let version = version(store, source).await;
    let deliver = |through| {
        let (was, now) = (Cursor::at_rest(Position::ZERO), Cursor::at_rest(at(through)));
        let advance = Change::Advance { source, was, now, version };
        commit(store, Commit::new().with(append(log, at(through))).changing(advance))
    };
    let winner = match join(deliver(5), deliver(6)).await {
        (Ok(()), Err(Declined::Moved)) => at(5),
        (Err(Declined::Moved), Ok(())) => at(6),
        both => panic!("{both:?}"),
    };
    fixture.reopen().await;
    let store = fixture.store();
    assert!(
        matches!(progress(store, source).await, Progress::Following { cursor, .. } if cursor.done == winner)
    );
    let status = store.status(log).await.expect("there");
    assert_eq!((status.tail, status.total.records), (winner, 1));
}

/// An append that expects nobody to hear the source and a first subscription to it do not miss each other.
pub async fn an_append_does_not_pass_a_new_subscriber_by(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let source = source(store, "news").await;
    let log = reserve(store).await;
    let alone = Change::Expect { source, expected: Expected::Nobody };
    let publish = commit(store, Commit::new().with(append(source, at(1))).changing(alone));
    let begin = commit(store, beginning(log, "one", time(9), source));
    let (published, begun) = join(publish, begin).await;
    assert_eq!(begun, Ok(()));
    assert!(matches!(published, Ok(()) | Err(Declined::Moved)), "{published:?}");
    fixture.reopen().await;
    let store = fixture.store();
    let alone = Change::Expect { source, expected: Expected::Nobody };
    assert_eq!(change(store, alone).await, Err(Declined::Moved));
    assert_eq!(store.status(source).await.expect("there").total.records, u64::from(published.is_ok()));
    let behind = if published.is_ok() { vec![source] } else { vec![] };
    assert_eq!(store.behind().await, Ok(behind), "the follower finds what came with the subscription");
}

/// How far the follower has come, and who came late, is kept.
pub async fn progress_of_a_source_is_kept(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let (followed, inline) = (source(store, "news").await, source(store, "sports").await);
    let one = session(store, "one", time(9), followed).await;
    make(store, [subscribe(one, SessionIs::Existing, inline, at(0))]).await;
    let rest = Change::Rest { source: inline, version: version(store, inline).await, at: at(0) };
    let was = Cursor::at_rest(at(0));
    let part = Cursor { done: at(0), through: at(7), reached: Some(one) };
    let advance =
        Change::Advance { source: followed, was, now: part, version: version(store, followed).await };
    make(store, [rest, advance]).await;
    let late = session(store, "late", time(9), inline).await;
    make(store, [subscribe(late, SessionIs::Existing, followed, at(8))]).await;
    let following = Progress::Following { cursor: part, late: [(late, at(8))].into() };
    for _ in 0..2 {
        let store = fixture.store();
        assert_eq!(progress(store, followed).await, following);
        assert_eq!(progress(store, inline).await, Progress::Inline);
        fixture.reopen().await;
    }
    let store = fixture.store();
    let version = version(store, inline).await;
    let expect = |expected| change(store, Change::Expect { source: inline, expected });
    assert_eq!(expect(Expected::Inline { version }).await, Ok(()));
    assert_eq!(expect(Expected::Following).await, Err(Declined::Moved));
}

/// A source is behind while the follower has records of it to deliver, and only then.
pub async fn sources_are_behind_until_all_is_delivered(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let mut sources = Vec::new();
    for name in ["a", "b", "c", "d"] {
        sources.push(source(store, name).await);
    }
    let log = session(store, "one", time(9), sources[0]).await;
    make(store, sources[1..3].iter().map(|&source| subscribe(log, SessionIs::Existing, source, at(0)))).await;
    assert_eq!(store.behind().await, Ok(vec![]), "nothing was appended");
    // What comes to the third is delivered with the append; nobody hears the fourth.
    let version_of_third = version(store, sources[2]).await;
    make(store, [Change::Rest { source: sources[2], version: version_of_third, at: at(0) }]).await;
    for &source in &sources {
        commit(store, Commit::new().with(append(source, at(5)))).await.expect("the log is open");
    }
    assert_eq!(store.behind().await, Ok(sources[..2].to_vec()));
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(store.behind().await, Ok(sources[..2].to_vec()));
    let (was, now) = (Cursor::at_rest(at(0)), Cursor::at_rest(at(5)));
    let version = version(store, sources[0]).await;
    let advance = Change::Advance { source: sources[0], was, now, version };
    make(store, [advance, Change::Follow { source: sources[2], after: at(5) }]).await;
    commit(store, Commit::new().with(append(sources[2], at(6)))).await.expect("the log is open");
    fixture.reopen().await;
    assert_eq!(fixture.store().behind().await, Ok(sources[1..3].to_vec()));
}

/// A commit that appends a record and delivers it leaves nothing behind, at no moment.
pub async fn whether_a_source_is_behind_is_of_one_moment(fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let source = source(store, "news").await;
    session(store, "one", time(9), source).await;
    let version = version(store, source).await;
    let work = async {
        for number in 0..50 {
            let (was, now) = (Cursor::at_rest(at(number)), Cursor::at_rest(at(number + 1)));
            let advance = Change::Advance { source, was, now, version };
            let both = Commit::new().with(append(source, at(number + 1))).changing(advance);
            commit(store, both).await.expect("nobody else delivers");
        }
    };
    observe(work, async || assert_eq!(store.behind().await, Ok(vec![]))).await;
}
