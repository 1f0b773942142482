//! What a crash between two commits leaves behind of forks, as the next server shows it.

use std::sync::Arc;

use bytes::Bytes;
use tidings_embedded::{Embedded, Folder};
use tidings_engine::log::{Commit, Commits, Operation, Then};
use tidings_engine::{Bus, Clock, ManualClock};
use tidings_model::{ProjectId, StreamId, Timestamp};
use tidings_server::{Access, Catalog, Server, ServerOptions, StoreChoice};
use tidings_streams::table::Cause;
use tidings_streams::{
    Change, CreateRequest, ForkRequest, Retention, StreamError, StreamKey, Streams, Table,
};
use tidings_testing::http::Client;

fn key(id: &str) -> StreamKey {
    StreamKey { project: ProjectId::default_project(), id: StreamId::parse(id).expect("a valid id") }
}

fn request(source: Option<&str>) -> CreateRequest {
    CreateRequest {
        content_type: None,
        retention: Retention::default(),
        expiry: None,
        body: Bytes::new(),
        then: Then::StayOpen,
        fork: source.map(|source| ForkRequest { source: key(source), offset: None, sub_offset: 0 }),
    }
}

/// The streams of a server that goes at a moment of its choice.
async fn leave_behind(folder: &std::path::Path, clock: &ManualClock) {
    let (bus, shared): (_, Arc<dyn Clock>) = (Bus::new(), Arc::new(clock.clone()));
    let disk = Arc::new(Folder::make(folder).expect("a folder"));
    let store =
        Embedded::<Catalog>::open(disk, Default::default(), bus.clone(), shared.clone()).expect("opened");
    let streams = Streams::new(Arc::new(store.clone()), bus, shared, Default::default());
    for (id, source) in [("a", None), ("b", Some("a")), ("c", Some("b")), ("d", None), ("e", Some("d"))] {
        streams.create(&key(id), &request(source)).await.expect("created");
    }
    for source in ["a", "b", "d"] {
        streams.delete(&key(source)).await.expect("deleted");
        assert!(matches!(streams.describe(&key(source)).await, Err(StreamError::Gone)), "kept for its fork");
    }
    // The first of the commits that end a fork and its source. Then the power is gone.
    let log = streams.describe(&key("c")).await.expect("there").stream.log;
    let remove = Change::Remove { key: key("c"), log, cause: Cause::Deleted };
    let commit = Commit::new().with(Operation::Delete(log)).changing(remove);
    Commits::<Table>::commit(&store, commit).await.expect("made");
    assert!(matches!(streams.describe(&key("b")).await, Err(StreamError::NotFound)), "its fork is gone");
}

#[tokio::test]
async fn after_a_crash_a_deleted_source_whose_forks_are_gone_is_gone_at_once() {
    let folder = tempfile::TempDir::new().expect("a folder");
    // Nothing is swept up: the clock stands still.
    let clock = ManualClock::at(Timestamp::from_millis(1_763_294_400_000));
    leave_behind(folder.path(), &clock).await;
    let store = StoreChoice::Embedded { data: folder.path().to_owned(), options: Default::default() };
    let options = ServerOptions {
        access: Access { dev: true, ..Access::default() },
        ..ServerOptions::new(store, ([127, 0, 0, 1], 0).into(), Arc::new(clock))
    };
    let server = Server::start(options).await.expect("started");
    let url = |id: &str| format!("http://{}/v1/stream/{id}", server.address());
    let client = Client::new();
    for (id, status) in [("a", 404), ("b", 404), ("c", 404), ("d", 410), ("e", 200)] {
        assert_eq!(client.get(url(id)).send().await.expect("an answer").status(), status, "{id}");
    }
    for id in ["a", "b", "c"] {
        assert_eq!(client.put(url(id)).send().await.expect("an answer").status(), 201, "{id} is free");
    }
    drop(client);
    server.stop().await.expect("it ends well");
}
