//! The functions in the database, from a plain SQL client.

use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::Fixture;

struct Ids {
    ada: Uuid,
    bob: Uuid,
    one: Uuid,
    two: Uuid,
    three: Uuid,
}

fn some() -> Ids {
    let id = |number: u128| Uuid::from_u128(number);
    Ids { ada: id(0xada), bob: id(0xb0b), one: id(1), two: id(2), three: id(3) }
}

impl Fixture {
    async fn subscribe(&self, user: Uuid, connection: &str, code: &str, ids: &[Option<Uuid>]) -> i32 {
        let call = "SELECT app.bulk_subscribe($1, $2, $3, $4)";
        let row = self.sql.query_one(call, &[&user, &connection, &code, &ids]).await.expect("subscribed");
        row.get(0)
    }

    async fn unsubscribe(&self, user: Uuid, code: &str, ids: &[Option<Uuid>]) -> i32 {
        let call = "SELECT app.bulk_unsubscribe($1, $2, $3)";
        self.sql.query_one(call, &[&user, &code, &ids]).await.expect("unsubscribed").get(0)
    }

    async fn batch(&self, code: &str, ids: &[Uuid]) -> Vec<(Uuid, String, Vec<Uuid>)> {
        let call =
            "SELECT user_id, connection_id, subscribed_entity_ids FROM app.get_batch_subscribers($1, $2)
            ORDER BY connection_id";
        let rows = self.sql.query(call, &[&code, &ids]).await.expect("an answer");
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
    }

    async fn subscribers(&self, code: &str, id: Uuid) -> Vec<(Uuid, String)> {
        let call =
            "SELECT user_id, connection_id FROM app.get_entity_subscribers($1, $2) ORDER BY connection_id";
        let rows = self.sql.query(call, &[&code, &id]).await.expect("an answer");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    pub async fn number(&self, query: &str) -> i64 {
        let row = self.sql.query_one(query, &[]).await.expect(query);
        row.try_get(0).unwrap_or_else(|_| row.get::<_, i32>(0).into())
    }

    pub async fn rows(&self) -> i64 {
        self.number("SELECT count(*) FROM app.rxdb_subscription").await
    }
}

#[tokio::test]
async fn the_table_of_subscriptions_has_the_columns_and_indexes_of_the_seed() {
    let fixture = Fixture::new().await;
    let columns = "SELECT concat_ws(' ', column_name, data_type, character_maximum_length,
            CASE is_nullable WHEN 'NO' THEN 'NOT NULL' END, column_default)
        FROM information_schema.columns WHERE table_schema = 'app' AND table_name = 'rxdb_subscription'
        ORDER BY ordinal_position";
    let rows = fixture.sql.query(columns, &[]).await.expect("the catalog");
    let found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let expected = [
        "user_id uuid NOT NULL",
        "entity_code character varying 100 NOT NULL",
        "entity_id uuid",
        "connection_id character varying 50 NOT NULL",
        "subscribed_at timestamp with time zone NOT NULL now()",
        "node_id uuid",
    ];
    assert_eq!(found, expected);
    let indexes = "SELECT indexname::text, indexdef::text FROM pg_indexes
        WHERE schemaname = 'app' AND tablename = 'rxdb_subscription'";
    let rows = fixture.sql.query(indexes, &[]).await.expect("the catalog");
    let found: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    for (name, on) in [
        ("idx_rxdb_subscription_entity", "(entity_code, entity_id)"),
        ("idx_rxdb_subscription_user", "(user_id)"),
        ("idx_rxdb_subscription_connection", "(connection_id)"),
    ] {
        let index = found.iter().find(|(found, _)| found == name).expect(name);
        assert!(index.1.ends_with(on), "{index:?}");
    }
    let unique = found.iter().find(|(_, index)| index.contains("UNIQUE")).expect("rows are unique");
    assert!(unique.1.ends_with("(connection_id, entity_code, entity_id) NULLS NOT DISTINCT"), "{unique:?}");
}

#[tokio::test]
async fn the_indexes_serve_the_searches_they_are_for() {
    let fixture = Fixture::new().await;
    let fill = "INSERT INTO app.rxdb_subscription (user_id, entity_code, entity_id, connection_id)
        SELECT gen_random_uuid(), 'project', gen_random_uuid(), 'c' || n FROM generate_series(1, 20000) AS n;
        ANALYZE app.rxdb_subscription";
    fixture.sql.batch_execute(fill).await.expect("filled");
    for (search, index) in [
        (
            "SELECT user_id, connection_id FROM app.rxdb_subscription WHERE entity_code = 'project' AND entity_id = gen_random_uuid()",
            "idx_rxdb_subscription_entity",
        ),
        (
            "DELETE FROM app.rxdb_subscription WHERE user_id = '00000000-0000-0000-0000-000000000001'",
            "idx_rxdb_subscription_user",
        ),
        ("DELETE FROM app.rxdb_subscription WHERE connection_id = 'c7'", "idx_rxdb_subscription_connection"),
    ] {
        // Random ids are different for each row, so the search is by a constant.
        let search = search.replace("gen_random_uuid()", "'00000000-0000-0000-0000-000000000001'");
        let plan = fixture.sql.query(&format!("EXPLAIN {search}"), &[]).await.expect("a plan");
        let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
        let plan = plan.join("\n");
        // The unique constraint begins with the connection, too.
        let serves = plan.contains(index)
            || index == "idx_rxdb_subscription_connection" && plan.contains("rxdb_subscription_unique");
        assert!(serves, "{search}: {plan}");
    }
}

#[tokio::test]
async fn bulk_subscribe_subscribes_many_at_once_and_again_changes_nothing() {
    let fixture = Fixture::new().await;
    let Ids { ada, .. } = some();
    let fifty: Vec<Option<Uuid>> = (1..=50).map(|number| Some(Uuid::from_u128(number))).collect();
    assert_eq!(fixture.subscribe(ada, "c1", "project", &fifty).await, 50);
    let state = "SELECT string_agg(s::text, ',' ORDER BY s::text) FROM app.rxdb_subscription AS s";
    let before: String = fixture.sql.query_one(state, &[]).await.expect("the rows").get(0);
    assert_eq!(fixture.subscribe(ada, "c1", "project", &fifty).await, 50, "existing ones count");
    let after: String = fixture.sql.query_one(state, &[]).await.expect("the rows").get(0);
    assert_eq!(before, after);
    assert_eq!(fixture.subscribe(ada, "c1", "project", &fifty[40..]).await, 10);
    assert_eq!(fixture.rows().await, 50);
}

#[tokio::test]
async fn bulk_subscribe_takes_duplicates_nothing_and_the_whole_type() {
    let fixture = Fixture::new().await;
    let Ids { ada, one, .. } = some();
    assert_eq!(fixture.subscribe(ada, "c1", "project", &[Some(one), Some(one)]).await, 1);
    assert_eq!(fixture.subscribe(ada, "c1", "project", &[]).await, 0);
    assert_eq!(fixture.rows().await, 1);
    assert_eq!(fixture.subscribe(ada, "c1", "project", &[None, None]).await, 1);
    assert_eq!(fixture.subscribe(ada, "c1", "project", &[None]).await, 1, "NULLs are one and the same");
    assert_eq!(fixture.rows().await, 2);
}

#[tokio::test]
async fn two_tabs_of_a_user_have_two_rows_and_closing_one_leaves_the_other() {
    let fixture = Fixture::new().await;
    let Ids { ada, bob, one, two, .. } = some();
    fixture.subscribe(ada, "tab-1", "project", &[Some(one), Some(two)]).await;
    fixture.subscribe(ada, "tab-2", "project", &[Some(one)]).await;
    fixture.subscribe(ada, "tab-1", "task", &[Some(one)]).await;
    fixture.subscribe(bob, "tab-3", "project", &[Some(one)]).await;
    assert_eq!(fixture.rows().await, 5);
    assert_eq!(fixture.number("SELECT app.cleanup_connection_subscriptions('tab-1')").await, 3);
    let left = [(ada, "tab-2".to_owned()), (bob, "tab-3".to_owned())];
    assert_eq!(fixture.subscribers("project", one).await, left);
    assert_eq!(fixture.number("SELECT app.cleanup_connection_subscriptions('tab-1')").await, 0);
}

#[tokio::test]
async fn bulk_unsubscribe_acts_on_all_connections_of_the_user_and_on_nothing_else() {
    let fixture = Fixture::new().await;
    let Ids { ada, bob, one, two, three } = some();
    for (user, connection) in [(ada, "tab-1"), (ada, "tab-2"), (bob, "tab-3")] {
        fixture.subscribe(user, connection, "project", &[Some(one), Some(two), Some(three)]).await;
        fixture.subscribe(user, connection, "task", &[Some(one), None]).await;
    }
    assert_eq!(fixture.unsubscribe(ada, "project", &[Some(one), Some(two)]).await, 4);
    assert_eq!(fixture.unsubscribe(ada, "project", &[Some(one), Some(two)]).await, 0);
    assert_eq!(fixture.rows().await, 15 - 4);
    assert_eq!(fixture.subscribers("project", one).await, [(bob, "tab-3".to_owned())]);
    assert_eq!(fixture.subscribers("project", three).await.len(), 3);
    assert_eq!(fixture.unsubscribe(ada, "task", &[None]).await, 2, "the whole type");
    assert_eq!(fixture.unsubscribe(ada, "task", &[]).await, 0);
}

#[tokio::test]
async fn get_batch_subscribers_gives_a_row_for_each_connection_with_the_ids_asked_for() {
    let fixture = Fixture::new().await;
    let Ids { ada, bob, one, two, three } = some();
    fixture.subscribe(ada, "conn-123", "project", &[Some(one), Some(two)]).await;
    fixture.subscribe(bob, "conn-456", "project", &[Some(one), Some(three)]).await;
    fixture.subscribe(bob, "conn-789", "project", &[Some(Uuid::from_u128(9))]).await;
    fixture.subscribe(bob, "conn-789", "task", &[Some(one)]).await;
    let expected =
        [(ada, "conn-123".to_owned(), vec![one, two]), (bob, "conn-456".to_owned(), vec![one, three])];
    assert_eq!(fixture.batch("project", &[one, two, three]).await, expected);
    assert_eq!(fixture.batch("project", &[one]).await.len(), 2);
    assert_eq!(fixture.batch("project", &[]).await, [], "an empty batch finds nobody");
    assert_eq!(fixture.batch("unknown", &[one]).await, []);
}

#[tokio::test]
async fn a_subscription_to_a_whole_type_counts_for_every_id_that_is_asked_for() {
    let fixture = Fixture::new().await;
    let Ids { ada, bob, one, two, .. } = some();
    fixture.subscribe(ada, "c1", "project", &[None, Some(one)]).await;
    fixture.subscribe(bob, "c2", "project", &[Some(one)]).await;
    let expected = [(ada, "c1".to_owned(), vec![one, two]), (bob, "c2".to_owned(), vec![one])];
    assert_eq!(fixture.batch("project", &[two, one, one]).await, expected);
    assert_eq!(fixture.subscribers("project", one).await, [(ada, "c1".to_owned()), (bob, "c2".to_owned())]);
    assert_eq!(fixture.subscribers("project", two).await, [(ada, "c1".to_owned())]);
    assert_eq!(fixture.subscribers("task", one).await, []);
}

#[tokio::test]
async fn the_seeds_own_search_finds_the_subscribers_of_an_entity() {
    let fixture = Fixture::new().await;
    let Ids { ada, one, .. } = some();
    fixture.subscribe(ada, "c1", "project", &[Some(one)]).await;
    let search = "SELECT user_id, connection_id FROM app.rxdb_subscription
        WHERE entity_code = 'project' AND entity_id = '00000000-0000-0000-0000-000000000001'";
    let rows = fixture.sql.query(search, &[]).await.expect("the rows");
    assert_eq!(rows.iter().map(|row| (row.get(0), row.get(1))).collect::<Vec<(Uuid, &str)>>(), [(ada, "c1")]);
}

#[tokio::test]
async fn cleanup_of_a_user_removes_all_of_its_rows_and_no_others() {
    let fixture = Fixture::new().await;
    let Ids { ada, bob, one, two, .. } = some();
    fixture.subscribe(ada, "c1", "project", &[Some(one), None]).await;
    fixture.subscribe(ada, "c2", "task", &[Some(two)]).await;
    fixture.subscribe(bob, "c3", "task", &[Some(two)]).await;
    let call = "SELECT app.cleanup_user_subscriptions($1)";
    let removed: i32 = fixture.sql.query_one(call, &[&ada]).await.expect("removed").get(0);
    assert_eq!((removed, fixture.rows().await), (3, 1));
}

#[tokio::test]
async fn stale_rows_are_removed_after_24_hours_unless_told_otherwise_and_those_of_live_nodes_stay() {
    let fixture = Fixture::new().await;
    let fill = "INSERT INTO app.tidings_node (node_id, alive_until) VALUES
            ('00000000-0000-0000-0000-00000000000a', now() + interval '30 s'),
            ('00000000-0000-0000-0000-00000000000d', now() - interval '1 s');
        INSERT INTO app.rxdb_subscription (user_id, entity_code, connection_id, subscribed_at, node_id) VALUES
            (gen_random_uuid(), 'p', 'young', now() - interval '23 h', NULL),
            (gen_random_uuid(), 'p', 'old', now() - interval '25 h', NULL),
            (gen_random_uuid(), 'p', 'live', now() - interval '99 h', '00000000-0000-0000-0000-00000000000a'),
            (gen_random_uuid(), 'p', 'dead', now() - interval '99 h', '00000000-0000-0000-0000-00000000000d'),
            (gen_random_uuid(), 'p', 'unknown', now() - interval '99 h', gen_random_uuid())";
    fixture.sql.batch_execute(fill).await.expect("filled");
    assert_eq!(fixture.number("SELECT app.cleanup_stale_subscriptions()").await, 3);
    assert_eq!(fixture.number("SELECT app.cleanup_stale_subscriptions(1)").await, 1);
    let left: String = fixture
        .sql
        .query_one("SELECT connection_id::text FROM app.rxdb_subscription", &[])
        .await
        .expect("one")
        .get(0);
    assert_eq!(left, "live");
}

#[tokio::test]
async fn statistics_count_entities_users_and_subscriptions_of_each_type() {
    let fixture = Fixture::new().await;
    let Ids { ada, bob, one, two, .. } = some();
    fixture.subscribe(ada, "c1", "project", &[Some(one), Some(two), None]).await;
    fixture.subscribe(ada, "c2", "project", &[Some(one)]).await;
    fixture.subscribe(bob, "c3", "project", &[Some(one), None]).await;
    fixture.subscribe(bob, "c3", "task", &[Some(two)]).await;
    let stats = "SELECT entity_code::text, unique_entities, unique_users, total_subscriptions
        FROM app.get_subscription_stats() ORDER BY entity_code";
    let rows = fixture.sql.query(stats, &[]).await.expect("statistics");
    let found: Vec<(String, i64, i64, i64)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect();
    // A whole type counts as one entity.
    assert_eq!(found, [("project".to_owned(), 3, 2, 6), ("task".to_owned(), 1, 1, 1)]);
}

#[tokio::test]
async fn a_code_with_sql_in_it_is_a_code_and_a_text_that_is_no_uuid_is_refused() {
    let fixture = Fixture::new().await;
    let Ids { ada, one, .. } = some();
    let crafted = "'); DROP TABLE app.rxdb_subscription; --";
    assert_eq!(fixture.subscribe(ada, crafted, crafted, &[Some(one)]).await, 1);
    assert_eq!(fixture.batch(crafted, &[one]).await.len(), 1);
    assert_eq!(fixture.unsubscribe(ada, crafted, &[Some(one)]).await, 1);
    let call = "SELECT app.bulk_subscribe($1, 'c', 'p', ARRAY[$2::text]::uuid[])";
    let error = fixture.sql.query_one(call, &[&ada, &crafted]).await.expect_err("not a UUID");
    assert_eq!(error.code(), Some(&SqlState::INVALID_TEXT_REPRESENTATION));
    assert_eq!(fixture.rows().await, 0, "the table is there");
}
