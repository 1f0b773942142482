//! The promises about many rooms: what is paged, in which order, and what is found no more.

use tidings_engine::log::Logs;
use tidings_engine::log::fixture::Fixture;
use tidings_model::{LogId, UserId};

use super::{
    ALL, at, change, create, device, found, join_room, make, member, project, remove, room, row, see, seen,
    time, user, users,
};
use crate::Store;
use crate::store::{Old, Removal};
use crate::table::{Change, Declined, LowerReceipt, Row};

/// Pages of members, one after the other, have each member once, and tell whether there are more.
pub async fn members_are_paged_in_order(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let log = create(store, row("shop/lobby", &["c", "a"])).await;
    let empty = create(store, row("shop/empty", &[])).await;
    make(store, [join_room(log, &["d", "B", "b"], at(1), 10)]).await;
    fixture.reopen().await;
    let store = fixture.store();
    let page =
        async |of, after: Option<&UserId>, most| store.members(of, after, most).await.expect("an answer");
    let all = users(&["B", "a", "b", "c", "d"]);
    for most in [1, 2, 5, ALL] {
        let mut paged: Vec<UserId> = Vec::new();
        loop {
            let page = page(log, paged.last(), most).await.expect("there");
            assert!(page.users.len() <= most);
            paged.extend(page.users);
            assert_eq!(page.more, paged.len() < all.len(), "{most} at a time");
            if !page.more {
                break;
            }
        }
        assert_eq!(paged, all, "{most} at a time");
    }
    let behind = page(log, Some(&user("bb")), 1).await.expect("there");
    assert_eq!(behind.users, users(&["c"]), "no such member");
    assert!(page(empty, None, ALL).await.expect("there").users.is_empty());
    let missing = store.reserve().await.expect("a number");
    assert_eq!(page(missing, None, ALL).await, None);
}

/// Pages of rooms by the age of what they keep have each once, also where ages are the same.
pub async fn old_rooms_are_paged_oldest_first(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let mut logs = Vec::new();
    for (id, second) in [("a", 30), ("b", 10), ("c", 20), ("d", 10), ("e", 50), ("f", 5), ("g", 5)] {
        let kept = Row { kept_since: Some(time(second)), ..row(&format!("shop/{id}"), &[]) };
        logs.push(create(store, kept).await);
    }
    create(store, row("shop/nothing-kept", &[])).await;
    let kept = |log, since: Option<u64>| Change::Kept { log, since: since.map(time) };
    make(store, [kept(logs[5], None), kept(logs[6], Some(15))]).await;
    fixture.reopen().await;
    let store = fixture.store();
    let old = async |second, after, most| store.old(time(second), after, most).await.expect("an answer");
    let all = [(10, logs[1]), (10, logs[3]), (15, logs[6]), (20, logs[2]), (30, logs[0])];
    let all = all.map(|(second, log)| (time(second), log));
    assert_eq!(old(30, None, ALL).await, all);
    assert_eq!(old(10, None, ALL).await, all[..2]);
    assert!(old(9, None, ALL).await.is_empty());
    for most in [1, 2, 3] {
        let mut paged: Vec<Old> = Vec::new();
        loop {
            let page = old(30, paged.last().copied(), most).await;
            assert!(page.len() <= most);
            if page.is_empty() {
                break;
            }
            paged.extend(page);
        }
        assert_eq!(paged, all, "{most} at a time");
    }
}

/// Pages of rooms with reactions to look through have each once, until it is said that they were looked through.
pub async fn rooms_with_reactions_are_paged_in_order(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let mut logs = Vec::new();
    for number in 0..6 {
        let reacted = number == 3;
        logs.push(create(store, Row { reacted, ..row(&format!("shop/{number}"), &[]) }).await);
    }
    let reacted = |at: usize, waiting| Change::Reacted { log: logs[at], waiting };
    make(store, [4, 0, 5, 2].map(|at| reacted(at, true))).await;
    make(store, [reacted(5, false), reacted(1, false), reacted(0, true)]).await;
    fixture.reopen().await;
    let store = fixture.store();
    let page = async |after, most| store.reacted(after, most).await.expect("an answer");
    assert_eq!(page(None, ALL).await, [logs[0], logs[2], logs[3], logs[4]]);
    assert_eq!(page(None, 2).await, [logs[0], logs[2]]);
    assert_eq!(page(Some(logs[2]), 3).await, [logs[3], logs[4]]);
    assert_eq!(page(Some(logs[1]), 1).await, [logs[2]], "it has none");
    assert!(found(store, logs[2]).await.expect("there").reacted);
    assert!(!found(store, logs[5]).await.expect("there").reacted);
}

/// A project is removed in steps, each of them no larger than it may be, and none of them empty before the end.
pub async fn rooms_of_a_project_are_as_many_as_one_commit_removes(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let mut logs = Vec::new();
    for (name, members) in [
        ("shop/a", &["ann", "bob", "eve", "joe"][..]),
        ("shop/b", &["ann"]),
        ("other/a", &["ann"]),
        ("shop/c", &["ann", "bob"]),
        ("shop/d", &[]),
    ] {
        logs.push(create(store, row(name, members)).await);
    }
    let other = logs.remove(2);
    fixture.reopen().await;
    let store = fixture.store();
    let rooms = async |of: &str, rooms, members| {
        store.rooms_of(&project(of), Removal { rooms, members }).await.expect("an answer")
    };
    let sorted = |mut logs: Vec<LogId>| {
        logs.sort();
        logs
    };
    assert_eq!(sorted(rooms("shop", ALL, ALL).await), logs);
    assert_eq!(rooms("other", ALL, ALL).await, [other]);
    assert!(rooms("nobody", ALL, ALL).await.is_empty());
    assert_eq!(rooms("shop", 3, ALL).await.len(), 3);
    let mut removed = Vec::new();
    loop {
        let step = rooms("shop", ALL, 3).await;
        if step.is_empty() {
            break;
        }
        let mut members = 0;
        for log in &step {
            members += store.members(*log, None, ALL).await.expect("an answer").expect("there").users.len();
        }
        assert!(step.len() == 1 || members <= 3, "{members} members of {} rooms", step.len());
        for log in step {
            remove(store, log).await;
            removed.push(log);
        }
    }
    assert_eq!(sorted(removed), logs);
    assert_eq!(room(store, "other/a").await, Some(other));
}

/// Each user that has told how far it has seen is looked at once, whatever the size of the steps.
pub async fn silent_users_are_looked_for_in_order(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let rooms = [create(store, row("shop/a", &[])).await, create(store, row("shop/b", &[])).await];
    for log in rooms {
        for (name, second) in [("eve", 10), ("ann", 30), ("bob", 10), ("joe", 20)] {
            make(store, [see(log, name, "phone", at(1), second, LowerReceipt::Ignore)]).await;
        }
    }
    // One device is enough, and another that is not silent does not hide it.
    make(store, [see(rooms[1], "bob", "laptop", at(1), 99, LowerReceipt::Ignore)]).await;
    fixture.reopen().await;
    let store = fixture.store();
    let silent: Vec<_> = rooms.iter().flat_map(|log| ["bob", "eve"].map(|name| (*log, user(name)))).collect();
    for most in [1, 3, 8, ALL] {
        let (mut users, mut last) = (Vec::new(), None);
        loop {
            let step = store.silent(last.as_ref(), time(20), most).await.expect("an answer");
            assert!(step.users.len() <= most);
            users.extend(step.users);
            if step.last.is_none() {
                break;
            }
            assert!(step.last > last, "it goes on");
            last = step.last;
        }
        assert_eq!(users, silent, "{most} at a time");
    }
}

/// What a silent device has seen is forgotten, and no more than that.
pub async fn a_forgotten_device_is_silent_no_more(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let log = create(store, row("shop/a", &[])).await;
    let changes = [
        see(log, "ann", "phone", at(1), 10, LowerReceipt::Ignore),
        see(log, "ann", "laptop", at(2), 20, LowerReceipt::Ignore),
        see(log, "bob", "phone", at(3), 10, LowerReceipt::Ignore),
        Change::Forget { log, user: user("ann"), before: time(20) },
        Change::Forget { log, user: user("bob"), before: time(20) },
    ];
    make(store, changes).await;
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(seen(store, log, "ann").await, [(device("laptop").to_string(), at(2), time(20))]);
    assert_eq!(store.seen(log, &user("bob")).await, Ok(None));
    let silent = store.silent(None, time(20), ALL).await.expect("an answer");
    assert!(silent.users.is_empty() && silent.last.is_none(), "{silent:?}");
}

/// Nothing answers with a room that is gone, and its name is free.
pub async fn a_removed_room_is_in_no_index(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let everywhere = Row { kept_since: Some(time(1)), reacted: true, ..row("shop/lobby", &["ann"]) };
    let log = create(store, everywhere).await;
    make(store, [see(log, "ann", "phone", at(1), 1, LowerReceipt::Ignore)]).await;
    remove(store, log).await;
    // Somebody who has not heard of it yet changes nothing.
    make(store, [see(log, "ann", "phone", at(2), 2, LowerReceipt::Ignore)]).await;
    for _ in 0..2 {
        let store = fixture.store();
        assert_eq!(room(store, "shop/lobby").await, None);
        assert!(found(store, log).await.is_none());
        assert_eq!(member(store, log, "ann").await, None);
        assert_eq!(store.members(log, None, ALL).await, Ok(None));
        assert_eq!(store.old(time(99), None, ALL).await, Ok(Vec::new()));
        assert_eq!(store.reacted(None, ALL).await, Ok(Vec::new()));
        let most = Removal { rooms: ALL, members: ALL };
        assert_eq!(store.rooms_of(&project("shop"), most).await, Ok(Vec::new()));
        assert_eq!(store.seen(log, &user("ann")).await, Ok(None));
        assert_eq!(store.silent(None, time(99), ALL).await, Ok(<_>::default()));
        assert_eq!(change(store, Change::Remove { log }).await, Err(Declined::NoSuchRoom));
        fixture.reopen().await;
    }
    let again = create(fixture.store(), row("shop/lobby", &[])).await;
    assert_eq!(room(fixture.store(), "shop/lobby").await, Some(again));
    assert_eq!(member(fixture.store(), again, "ann").await, None);
}
