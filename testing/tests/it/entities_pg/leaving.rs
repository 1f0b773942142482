//! A server that stops gives back what it has in the database.

use tidings_testing::postgres::{Fsync, Postgres};

use super::*;

const NODES: &str = "SELECT count(*) FROM app.tidings_node";
const ROWS: &str = "SELECT count(*) FROM app.rxdb_subscription";

#[tokio::test]
async fn a_server_that_stops_leaves_neither_rows_nor_a_lease() {
    let fixture = Fixture::new().await;
    let (stopping, mut client) = fixture.client().await;
    let (_other, mut staying) = fixture.client().await;
    for client in [&mut client, &mut staying] {
        subscribe(client, "project", &[Uuid::new_v4()]).await;
    }
    fixture.until_rows(2).await;
    assert_eq!(fixture.number(NODES).await, 2);
    stopping.stop().await;
    assert_eq!((fixture.number(NODES).await, fixture.number(ROWS).await), (1, 1), "those of the other stay");
}

#[tokio::test]
async fn a_database_that_does_not_answer_does_not_keep_the_server_from_stopping() {
    let database = Postgres::start(Fsync::Off).await;
    let url = database.url("postgres");
    install(&url).await;
    let server = server(&url, &[]).await;
    let mut client = client(&server).await;
    subscribe(&mut client, "project", &[Uuid::new_v4()]).await;
    let sql = connect(&url).await;
    let rows = async || sql.query_one(ROWS, &[]).await.expect("a number").get::<_, i64>(0);
    eventually("the row is there", async || rows().await == 1).await;
    database.pause();
    server.stop().await;
    database.resume();
    assert_eq!(rows().await, 1, "it could not be removed");
}
