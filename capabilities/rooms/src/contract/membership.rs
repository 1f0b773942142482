//! The promises about the members of a room.

use futures_util::future::join;
use tidings_engine::log::Logs;
use tidings_engine::log::fixture::Fixture;

use super::{ALL, at, change, create, join_room, make, member, row, users};
use crate::Store;
use crate::store::MemberChange;
use crate::table::{Change, Declined};

/// A member who is added again keeps where it joined; one who is removed and added joins anew.
pub async fn a_member_is_known_with_the_head_at_which_it_joined(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let log = create(store, row("shop/lobby", &[])).await;
    let leave = Change::Members { log, add: vec![], remove: users(&["bob", "eve"]), joined: at(5), most: 10 };
    let changes = [
        join_room(log, &["ann", "bob", "eve"], at(4), 10),
        leave,
        join_room(log, &["ann", "bob"], at(6), 10),
    ];
    make(store, changes).await;
    for _ in 0..2 {
        let store = fixture.store();
        for (name, joined) in [("ann", Some(at(4))), ("bob", Some(at(6))), ("eve", None)] {
            assert_eq!(member(store, log, name).await, joined, "{name}");
        }
        fixture.reopen().await;
    }
}

/// Whoever asks first whether members may change is told what the commit would be told.
pub async fn what_is_validated_of_members_is_what_a_commit_is_told(mut fixture: impl Fixture<Store: Store>) {
    let log = create(fixture.store(), row("shop/lobby", &["ann", "bob"])).await;
    let missing = fixture.store().reserve().await.expect("a number");
    fixture.reopen().await;
    let store = fixture.store();
    let full = Err(Declined::TooManyMembers { most: 2 });
    for (of, add, remove, told) in [
        (log, users(&["eve"]), vec![], full),
        (log, users(&["ann"]), vec![], Ok(())),
        (log, users(&["eve", "joe"]), users(&["bob"]), full),
        (missing, users(&["eve"]), vec![], Err(Declined::NoSuchRoom)),
        (log, users(&["eve"]), users(&["bob"]), Ok(())),
    ] {
        let asked = MemberChange { add: &add, remove: &remove, most: 2 };
        assert_eq!(store.validate_members(of, asked).await, Ok(told), "{add:?} {remove:?}");
        let asked = Change::Members { log: of, add, remove, joined: at(1), most: 2 };
        assert_eq!(change(store, asked).await, told);
    }
}

/// A room has no more members than it may, however many come at the same time.
pub async fn of_two_who_take_the_last_place_one_wins(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let log = create(store, row("shop/lobby", &["ann"])).await;
    let add = |name: &'static str| change(store, join_room(log, &[name], at(1), 2));
    let both = join(add("bob"), add("eve")).await;
    let full = Err(Declined::TooManyMembers { most: 2 });
    assert!(both == (Ok(()), full) || both == (full, Ok(())), "{both:?}");
    fixture.reopen().await;
    let page = fixture.store().members(log, None, ALL).await.expect("an answer").expect("there");
    assert_eq!(page.users, users(&["ann", if both.0.is_ok() { "bob" } else { "eve" }]));
}
