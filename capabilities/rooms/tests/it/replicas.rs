//! Rooms of several nodes over one store, as replicas have it: what one writes all of them apply.

use tidings_engine::duty::{Leadership, Role};
use tidings_rooms::{Cursor, Room, RoomError, Rooms};
use tokio::sync::watch;

use crate::world::{SECOND, World, message, project, typing, user, write};

/// A node that follows, and how it is told that it leads.
async fn follower(world: &World) -> (Rooms, watch::Sender<Role>) {
    let (tell, told) = watch::channel(Role::Follower);
    (world.node(Leadership::told(told)).await, tell)
}

async fn remove(rooms: &Rooms, room: &Room, member: &str) {
    rooms.change_members(&project(), &room.id, Vec::new(), vec![user(member)]).await.expect("removed");
}

#[tokio::test]
async fn a_member_that_another_node_removed_is_cut() {
    let world = World::new().await;
    let room = world.room("r", &["ann", "bob"]).await;
    let (replica, _tell) = follower(&world).await;
    let (ann, bob) = (replica.take_lease(&room, &user("ann")), replica.take_lease(&room, &user("bob")));
    assert!(ann.holds() && bob.holds());
    remove(&world.rooms, &room, "ann").await;
    assert!(!ann.holds() && ann.is_revoked());
    assert!(bob.holds());
    assert_eq!(replica.member(&room, &user("ann")).await.expect("a room"), None);
    drop(ann);
    assert!(bob.holds());
    world.rooms.clear(&project()).await.expect("cleared");
    assert!(!bob.holds() && bob.is_revoked(), "the room has ended");
}

#[tokio::test]
async fn rooms_that_another_node_ended_are_not_kept_in_memory() {
    let world = World::new().await;
    let room = world.room("r", &["ann"]).await;
    let (replica, _tell) = follower(&world).await;
    replica.bounds(&room).await.expect("bounds");
    assert_eq!(replica.active(), 1);
    world.rooms.clear(&project()).await.expect("cleared");
    assert_eq!(replica.active(), 0);
    assert!(matches!(replica.bounds(&room).await, Err(RoomError::NotFound)));
}

#[tokio::test]
async fn a_node_that_does_not_lead_raises_no_epoch_and_cannot_write() {
    let world = World::new().await;
    let room = world.room("r", &["ann"]).await;
    let (epoch, commits) = (world.rooms.epoch(), world.faults.commits());
    let (replica, _tell) = follower(&world).await;
    assert_eq!((replica.epoch(), world.faults.commits()), (epoch, commits), "opening has written nothing");
    for event in [message("a"), typing("t")] {
        let refused = write(&replica, &room, event).await;
        assert!(matches!(refused, Err(RoomError::Fenced)), "{refused:?}");
    }
    let refused = replica.change_members(&project(), &room.id, Vec::new(), vec![user("ann")]).await;
    assert!(matches!(refused, Err(RoomError::Fenced)), "{refused:?}");
    assert_eq!(replica.sweep().await.expect("nothing to do"), Default::default());
    assert_eq!(world.faults.commits(), commits);
    world.write(&room, message("b")).await;
    let later = world.taken_over().await;
    assert_eq!((later.epoch(), replica.epoch()), (epoch + 1, epoch + 1), "it knows who leads");
}

#[tokio::test]
async fn a_node_takes_over_before_its_first_write_in_each_term() {
    let world = World::new().await;
    let room = world.room("r", &["ann"]).await;
    let first = world.rooms.epoch();
    let (second, tell) = follower(&world).await;
    // It has the room in memory, and then others write.
    second.bounds(&room).await.expect("bounds");
    let a = world.write(&room, message("a")).await;
    let t = world.write(&room, typing("t")).await;
    assert_eq!(second.epoch(), first);

    tell.send_replace(Role::Leader);
    let u = write(&second, &room, typing("u")).await.expect("it leads");
    assert_eq!(second.epoch(), first + 1);
    assert!(a < t && t < u, "no cursor is given twice");
    let fenced = write(&world.rooms, &room, message("stray")).await;
    assert!(matches!(fenced, Err(RoomError::Fenced)), "{fenced:?}");
    write(&second, &room, message("b")).await.expect("it leads");
    assert_eq!(second.epoch(), first + 1, "once in a term");

    tell.send_replace(Role::Follower);
    let fenced = write(&second, &room, message("late")).await;
    assert!(matches!(fenced, Err(RoomError::Fenced)), "{fenced:?}");
    let third = world.taken_over().await;
    world.clock.advance(SECOND);
    let c = write(&third, &room, message("c")).await.expect("written");
    let v = write(&third, &room, typing("v")).await.expect("told");
    assert_eq!((third.epoch(), second.epoch()), (first + 2, first + 2));

    tell.send_replace(Role::Leader);
    let w = write(&second, &room, typing("w")).await.expect("it leads again");
    let d = write(&second, &room, message("d")).await.expect("it leads again");
    assert_eq!(second.epoch(), first + 3);
    assert!(u < c && c < v && v < w && w < d, "no cursor is given twice");
    assert_eq!(world.replayed(&room, Cursor::ZERO).await, ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn who_leads_again_without_having_written_meanwhile_takes_over_anew() {
    let world = World::new().await;
    let room = world.room("r", &["ann"]).await;
    let (node, tell) = follower(&world).await;
    tell.send_replace(Role::Leader);
    write(&node, &room, message("a")).await.expect("it leads");
    let epoch = node.epoch();
    tell.send_replace(Role::Follower);
    tell.send_replace(Role::Leader);
    write(&node, &room, message("b")).await.expect("it leads again");
    assert_eq!(node.epoch(), epoch + 1, "another may have led in between");
}
