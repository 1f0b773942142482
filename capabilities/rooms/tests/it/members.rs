//! Who may hear a room, and until when.

use futures_util::FutureExt;
use tidings_engine::log::StoreError;
use tidings_model::{RoomId, UserId, limits};
use tidings_rooms::{Cursor, Options, Room, RoomError};

use crate::world::{World, message, project, user, write};

async fn change(world: &World, room: &Room, add: &[&str], remove: &[&str]) -> Result<Vec<UserId>, RoomError> {
    let users = |ids: &[&str]| ids.iter().map(|id| user(id)).collect();
    let changed = world.rooms.change_members(&project(), &room.id, users(add), users(remove)).await;
    changed.map(|members| members.users)
}

#[tokio::test]
async fn members_come_and_go_and_each_knows_where_the_room_was_when_it_came() {
    let world = World::new().await;
    let room = world.room("r", &["bob", "ann", "bob"]).await;
    let head = world.write(&room, message("a")).await;
    let members = change(&world, &room, &["cid", "ann"], &["bob", "nobody"]).await.expect("changed");
    assert_eq!(members, [user("ann"), user("cid")]);
    assert_eq!(world.rooms.members(&room, None, 9).await.expect("members").users, members);
    let joined = |id: &'static str| {
        let (world, room) = (&world, &room);
        async move { world.rooms.member(room, &user(id)).await.expect("a room").map(|member| member.joined) }
    };
    assert_eq!(joined("ann").await, Some(Cursor::ZERO), "who is a member stays one");
    assert_eq!(joined("cid").await, Some(head));
    assert_eq!(joined("bob").await, None);
}

#[tokio::test]
async fn members_are_listed_a_page_at_a_time() {
    let world = World::new().await;
    let room = world.room("r", &["ann", "bob", "cid", "dan", "eve"]).await;
    let page = |after: Option<&'static str>, most: usize| {
        let (world, room) = (&world, &room);
        async move {
            let after = after.map(user);
            let page = world.rooms.members(room, after.as_ref(), most).await.expect("a room");
            (page.users.iter().map(UserId::to_string).collect::<Vec<_>>(), page.next)
        }
    };
    let users = |ids: &[&str]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(page(None, 2).await, (users(&["ann", "bob"]), Some(user("bob"))));
    assert_eq!(page(Some("bob"), 2).await, (users(&["cid", "dan"]), Some(user("dan"))));
    assert_eq!(page(Some("dan"), 2).await, (users(&["eve"]), None));
    assert_eq!(page(None, 5).await, (users(&["ann", "bob", "cid", "dan", "eve"]), None));
    assert_eq!(page(Some("bob, who has left"), 1).await, (users(&["cid"]), Some(user("cid"))));
    assert_eq!(page(Some("zoe"), 5).await, (vec![], None));
}

#[tokio::test]
async fn who_comes_where_history_is_hidden_has_come_after_all_that_was_written_before() {
    let world = World::with(Options { history_for_new_members: false, ..Options::default() }).await;
    let room = world.room("r", &[]).await;
    let held = world.store.hold().await;
    let mut before = Box::pin(write(&world.rooms, &room, message("before")));
    assert!((&mut before).now_or_never().is_none());
    // It is on its way to the log when somebody is added.
    tokio::task::yield_now().await;
    let mut added = Box::pin(change(&world, &room, &["ann"], &[]));
    assert!((&mut added).now_or_never().is_none());
    tokio::task::yield_now().await;
    let mut after = Box::pin(write(&world.rooms, &room, message("after")));
    assert!((&mut after).now_or_never().is_none());
    tokio::task::yield_now().await;
    drop(held);
    let (before, added, after) = tokio::join!(before, added, after);
    added.expect("added");
    let joined = world.rooms.member(&room, &user("ann")).await.expect("a room").expect("a member").joined;
    assert_eq!(joined, before.expect("written"));
    assert!(joined < after.expect("written"));
}

#[tokio::test]
async fn a_room_is_of_its_project_and_is_there_when_somebody_has_made_it() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let other = tidings_model::ProjectId::parse("other").expect("an id");
    assert_eq!(world.rooms.find(&other, &room.id).await.expect("a store"), None);
    assert_eq!(
        world.rooms.find(&project(), &RoomId::parse("q").expect("an id")).await.expect("a store"),
        None
    );
    let mut world = world;
    world.restart().await;
    assert_eq!(world.rooms.find(&project(), &room.id).await.expect("a store"), Some(room));
}

#[tokio::test]
async fn a_room_has_as_many_members_as_it_may() {
    let world = World::with(Options { max_members: 2, ..Options::default() }).await;
    let room = world.room("r", &["ann", "bob"]).await;
    let refused = change(&world, &room, &["cid"], &[]).await;
    assert!(matches!(refused, Err(RoomError::TooManyMembers { most: 2 })), "{refused:?}");
    assert_eq!(change(&world, &room, &["cid", "ann"], &["bob"]).await.expect("one for another").len(), 2);
    let refused = change(&world, &room, &["ann"], &["ann"]).await;
    assert!(matches!(refused, Err(RoomError::AddedAndRemoved)), "{refused:?}");
    let new = Room { id: RoomId::parse("q").expect("an id"), ..room };
    let refused = change(&world, &new, &["a", "b", "c"], &[]).await;
    assert!(matches!(refused, Err(RoomError::TooManyMembers { most: 2 })), "{refused:?}");
}

#[tokio::test]
async fn a_seat_holds_until_its_user_is_removed_and_never_again() {
    let world = World::new().await;
    let room = world.room("r", &["ann", "bob"]).await;
    let leases = [world.rooms.take_lease(&room, &user("ann")), world.rooms.take_lease(&room, &user("ann"))];
    let other = world.rooms.take_lease(&room, &user("bob"));
    assert!(leases.iter().all(|lease| lease.holds()));
    change(&world, &room, &[], &["ann"]).await.expect("removed");
    assert!(!leases.iter().any(|lease| lease.holds()) && other.holds());
    change(&world, &room, &["ann"], &[]).await.expect("added");
    let again = world.rooms.take_lease(&room, &user("ann"));
    assert!(again.holds() && !leases.iter().any(|lease| lease.holds()));
    drop(leases);
    assert!(again.holds(), "who left takes nobody else along");
    change(&world, &room, &[], &["ann"]).await.expect("removed");
    assert!(!again.holds());
}

#[tokio::test]
async fn who_is_being_removed_loses_its_seats_before_that_is_durable_and_gets_none() {
    let world = World::new().await;
    let room = world.room("r", &["ann"]).await;
    let before = world.rooms.take_lease(&room, &user("ann"));
    let held = world.store.hold().await;
    let mut removal = Box::pin(change(&world, &room, &[], &["ann"]));
    assert!((&mut removal).now_or_never().is_none());
    while before.holds() {
        tokio::task::yield_now().await;
    }
    let meanwhile = world.rooms.take_lease(&room, &user("ann"));
    assert!(!meanwhile.holds());
    let member = world.rooms.member(&room, &user("ann")).await.expect("a room");
    assert!(member.is_some(), "it is not durable yet");
    assert!(!before.is_revoked() && !meanwhile.is_revoked(), "nor is it decided");
    drop(held);
    removal.await.expect("removed");
    for lease in [before, meanwhile] {
        assert!(!lease.holds() && lease.is_revoked());
    }
}

#[tokio::test]
async fn a_change_that_is_refused_disturbs_nobody() {
    let world = World::with(Options { max_members: 2, ..Options::default() }).await;
    let room = world.room("r", &["ann", "bob"]).await;
    let lease = world.rooms.take_lease(&room, &user("ann"));
    let refused = change(&world, &room, &["cid", "dan"], &["ann"]).await;
    assert!(matches!(refused, Err(RoomError::TooManyMembers { most: 2 })), "{refused:?}");
    assert!(lease.holds());
}

#[tokio::test]
async fn who_was_about_to_be_removed_when_that_failed_may_come_again() {
    let world = World::new().await;
    let room = world.room("r", &["ann"]).await;
    let lease = world.rooms.take_lease(&room, &user("ann"));
    world.faults.full_after(0);
    let failed = change(&world, &room, &[], &["ann"]).await;
    assert!(matches!(failed, Err(RoomError::Store(StoreError::NoSpace))), "{failed:?}");
    assert!(!lease.holds() && !lease.is_revoked(), "it had to let go, but is still a member");
    let again = world.rooms.take_lease(&room, &user("ann"));
    assert!(again.holds() && !again.is_revoked() && !lease.holds());
    drop(lease);
    assert!(again.holds());
    world.faults.emptied();
    change(&world, &room, &[], &["ann"]).await.expect("removed");
    assert!(!again.holds() && again.is_revoked());
}

#[tokio::test]
async fn of_two_removals_of_one_member_the_one_that_is_made_counts() {
    for made_first in [true, false] {
        let world = World::new().await;
        let room = world.room("r", &["ann"]).await;
        let lease = world.rooms.take_lease(&room, &user("ann"));
        let held = world.store.hold().await;
        // One is on its way to the disk, and for the other there is no space.
        let mut removal = Box::pin(change(&world, &room, &[], &["ann"]));
        assert!((&mut removal).now_or_never().is_none());
        while lease.holds() {
            tokio::task::yield_now().await;
        }
        world.faults.full_after(0);
        if made_first {
            drop(held);
            removal.await.expect("removed");
            assert!(change(&world, &room, &[], &["ann"]).await.is_err());
        } else {
            assert!(change(&world, &room, &[], &["ann"]).await.is_err());
            assert!(!lease.holds() && !lease.is_revoked(), "the other is under way");
            assert!(!world.rooms.take_lease(&room, &user("ann")).holds());
            drop(held);
            removal.await.expect("removed");
        }
        assert!(!lease.holds() && lease.is_revoked());
    }
}

#[tokio::test]
async fn rooms_of_a_project_that_is_removed_are_gone_with_their_seats() {
    let world = World::new().await;
    let room = world.room("r", &["ann"]).await;
    let cursor = world.write(&room, message("a")).await;
    world.rooms.see(&room, &user("ann"), &crate::world::device("d"), cursor, false).await.expect("seen");
    let lease = world.rooms.take_lease(&room, &user("ann"));
    world.rooms.clear(&project()).await.expect("cleared");
    assert!(!lease.holds() && lease.is_revoked());
    assert_eq!(world.rooms.find(&project(), &room.id).await.expect("a store"), None);
    let written = write(&world.rooms, &room, message("b")).await;
    assert!(matches!(written, Err(RoomError::NotFound)), "{written:?}");
    let again = world.room("r", &["ann"]).await;
    assert_ne!(again.log, room.log);
    assert!(world.rooms.seen(&again, &user("ann")).await.expect("a room").devices.is_empty());
}

#[tokio::test]
async fn rooms_of_a_project_that_is_removed_go_many_in_one_commit() {
    let world = World::new().await;
    let mut rooms = Vec::new();
    for n in 0..limits::ROOMS_PER_REMOVAL + 1 {
        rooms.push(world.room(&n.to_string(), &["ann"]).await);
    }
    let before = world.faults.commits();
    world.rooms.clear(&project()).await.expect("cleared");
    assert_eq!(world.faults.commits() - before, 2);
    for room in rooms {
        assert_eq!(world.rooms.find(&project(), &room.id).await.expect("a store"), None);
    }
}

#[tokio::test]
async fn rooms_with_many_members_are_not_removed_together() {
    let world = World::new().await;
    let half: Vec<_> = (0..limits::MEMBERS_PER_ROOM / 2).map(|n| user(&n.to_string())).collect();
    for id in ["a", "b", "c"] {
        let id = RoomId::parse(id).expect("an id");
        world.rooms.change_members(&project(), &id, half.clone(), Vec::new()).await.expect("members");
    }
    let before = world.faults.commits();
    world.rooms.clear(&project()).await.expect("cleared");
    assert_eq!(world.faults.commits() - before, 3);
}

#[tokio::test]
async fn somebody_else_who_removes_rooms_of_the_same_project_is_no_trouble() {
    let world = World::new().await;
    for n in 0..5 {
        world.room(&n.to_string(), &["ann"]).await;
    }
    let held = world.store.hold().await;
    let project = project();
    let mut both =
        Box::pin(futures_util::future::join(world.rooms.clear(&project), world.rooms.clear(&project)));
    assert!((&mut both).now_or_never().is_none());
    drop(held);
    let (one, other) = both.await;
    one.expect("cleared");
    other.expect("cleared");
}
