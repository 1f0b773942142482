//! The log of changes and the functions around it.

use tidings_entities::{Action, Reason};
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::{Fixture, Follower, ids};

#[tokio::test]
async fn the_log_has_the_columns_defaults_and_indexes_of_the_original() {
    let fixture = Fixture::new().await;
    let columns = "SELECT concat_ws(' ', column_name, data_type, character_maximum_length,
            CASE is_nullable WHEN 'NO' THEN 'NOT NULL' END, column_default)
        FROM information_schema.columns WHERE table_schema = 'app' AND table_name = 'logging' ORDER BY ordinal_position";
    let rows = fixture.sql.query(columns, &[]).await.expect("the catalog");
    let found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let expected = [
        "id uuid NOT NULL gen_random_uuid()",
        "person_id uuid",
        "fname character varying 100",
        "lname character varying 100",
        "username character varying 255",
        "person_type character varying 50",
        "api_endpoint character varying 500",
        "http_method character varying 10",
        "entity_code character varying 100 NOT NULL",
        "entity_id uuid NOT NULL",
        "action smallint NOT NULL",
        "entity_from_version jsonb",
        "entity_to_version jsonb",
        "user_agent text",
        "ip inet",
        "created_ts timestamp with time zone NOT NULL now()",
        "sync_status character varying 20 'pending'::character varying",
        "sync_processed_ts timestamp with time zone",
    ];
    assert_eq!(found, expected);
    let indexes = "SELECT string_agg(indexdef, '; ' ORDER BY indexname) FROM pg_indexes
        WHERE schemaname = 'app' AND tablename = 'logging'";
    let indexes: String = fixture.sql.query_one(indexes, &[]).await.expect("the catalog").get(0);
    assert!(indexes.contains("(entity_code, entity_id, created_ts DESC)"), "{indexes}");
    assert!(
        indexes.contains("(created_ts) WHERE (((sync_status)::text = 'pending'::text) AND (action <> 0))"),
        "{indexes}"
    );
}

#[tokio::test]
async fn a_writer_gives_code_id_and_action_and_the_entry_is_pending() {
    let fixture = Fixture::new().await;
    fixture.log(Uuid::new_v4(), 1).await;
    let row = "SELECT id IS NOT NULL AND created_ts <= now() AND sync_processed_ts IS NULL, sync_status::text FROM app.logging";
    let row = fixture.sql.query_one(row, &[]).await.expect("one entry");
    assert_eq!((row.get(0), row.get(1)), (true, "pending"));
}

#[tokio::test]
async fn an_action_outside_0_to_5_is_refused() {
    let fixture = Fixture::new().await;
    for action in [-1_i16, 6] {
        let insert =
            "INSERT INTO app.logging (entity_code, entity_id, action) VALUES ('p', gen_random_uuid(), $1)";
        let error = fixture.sql.execute(insert, &[&action]).await.expect_err("refused");
        assert_eq!(error.code(), Some(&SqlState::CHECK_VIOLATION), "{action}");
    }
}

#[tokio::test]
async fn a_writer_with_no_more_than_the_right_to_insert_into_the_log_is_heard() {
    let fixture = Fixture::new().await;
    let user = format!("writer_{}", Uuid::new_v4().simple());
    let grant = format!(
        "CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA app TO {user}; GRANT INSERT ON app.logging TO {user}"
    );
    fixture.sql.batch_execute(&grant).await.expect("granted");
    let mut follower = Follower::new(&fixture.node()).await;
    let writer = fixture.database.client_as(&user).await;
    let id = Uuid::new_v4();
    super::log(&writer, id, 1).await;
    assert_eq!(ids(&follower.drain().await), [id.to_string()]);
    let error =
        writer.execute("INSERT INTO app.change_outbox (entity_code, action) VALUES ('p', 1)", &[]).await;
    assert!(error.is_err(), "the outbox is not the writer's");
}

const LOGGED: &str = "CREATE TABLE public.orders (id uuid PRIMARY KEY, note json);
    CREATE TRIGGER log_orders AFTER INSERT OR UPDATE OR DELETE ON public.orders
        FOR EACH ROW EXECUTE FUNCTION app.log_entity_change('order')";

#[tokio::test]
async fn the_row_trigger_logs_insert_as_4_update_as_1_and_delete_as_3_with_both_versions() {
    let fixture = Fixture::new().await;
    fixture.sql.batch_execute(LOGGED).await.expect("a trigger");
    let mut follower = Follower::new(&fixture.node()).await;
    let id = Uuid::new_v4();
    let write = format!(
        "INSERT INTO public.orders VALUES ('{id}', '1'); UPDATE public.orders SET note = '2';
         UPDATE public.orders SET note = '2'; DELETE FROM public.orders"
    );
    fixture.sql.batch_execute(&write).await.expect("written");
    let entries =
        "SELECT action, entity_code::text, entity_from_version ->> 'note', entity_to_version ->> 'note',
            person_id IS NULL AND api_endpoint IS NULL AND http_method IS NULL
        FROM app.logging ORDER BY created_ts, action = 3";
    let rows = fixture.sql.query(entries, &[]).await.expect("the log");
    let mut found: Vec<(i16, Option<&str>, Option<&str>)> =
        rows.iter().map(|row| (row.get(0), row.get(2), row.get(3))).collect();
    found.sort_unstable();
    assert_eq!(found, [(1, Some("1"), Some("2")), (3, Some("2"), None), (4, None, Some("1"))]);
    assert!(rows.iter().all(|row| row.get::<_, &str>(1) == "order" && row.get(4)), "no settings, no actor");
    let told: Vec<Action> = follower.drain().await.iter().map(|change| change.action).collect();
    assert_eq!(
        told,
        [Action::Create, Action::Update, Action::Delete],
        "the update that changed nothing is none"
    );
}

#[tokio::test]
async fn the_row_trigger_takes_actor_endpoint_and_method_from_settings() {
    let fixture = Fixture::new().await;
    fixture.sql.batch_execute(LOGGED).await.expect("a trigger");
    let person = Uuid::new_v4();
    let write = format!(
        "SET app.current_user_id = '{person}'; SET app.current_endpoint = '/orders'; SET app.current_method = 'POST';
         INSERT INTO public.orders VALUES (gen_random_uuid(), NULL);
         SET app.current_user_id = 'not a uuid'; INSERT INTO public.orders VALUES (gen_random_uuid(), NULL)"
    );
    fixture.sql.batch_execute(&write).await.expect("written");
    let entries =
        "SELECT person_id, api_endpoint::text, http_method::text FROM app.logging ORDER BY created_ts";
    let rows = fixture.sql.query(entries, &[]).await.expect("the log");
    let mut found: Vec<(Option<Uuid>, &str, &str)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    found.sort_unstable();
    assert_eq!(found, [(None, "/orders", "POST"), (Some(person), "/orders", "POST")]);
}

#[tokio::test]
async fn a_change_of_an_id_is_logged_as_a_delete_and_a_create() {
    let fixture = Fixture::new().await;
    fixture.sql.batch_execute(LOGGED).await.expect("a trigger");
    let (old, new) = (Uuid::new_v4(), Uuid::new_v4());
    let write = format!("INSERT INTO public.orders VALUES ('{old}', NULL)");
    fixture.sql.batch_execute(&write).await.expect("written");
    let mut follower = Follower::new(&fixture.node()).await;
    fixture.sql.batch_execute(&format!("UPDATE public.orders SET id = '{new}'")).await.expect("written");
    let read = follower.drain().await;
    assert_eq!(ids(&read), [old.to_string(), new.to_string()]);
    assert_eq!((read[0].action, read[1].action), (Action::Delete, Action::Create));
}

#[tokio::test]
async fn manual_notify_makes_a_change_heard_that_no_trigger_saw() {
    let fixture = Fixture::new().await;
    let mut follower = Follower::new(&fixture.node()).await;
    let id = Uuid::new_v4();
    for action in [0, 2, 3] {
        fixture
            .sql
            .execute("SELECT app.manual_notify('project', $1, $2)", &[&id, &action])
            .await
            .expect("notified");
    }
    let read = follower.drain().await;
    let told: Vec<(Action, Option<Reason>)> =
        read.iter().map(|change| (change.action, change.reason)).collect();
    assert_eq!(told, [(Action::Update, Some(Reason::Access)), (Action::Delete, None)]);
    for bad in
        ["SELECT app.manual_notify('p', gen_random_uuid(), 6)", "SELECT app.manual_notify('p', NULL, 1)"]
    {
        assert!(fixture.sql.execute(bad, &[]).await.is_err(), "{bad}");
    }
}

#[tokio::test]
async fn old_entries_are_removed_after_90_days_unless_told_otherwise() {
    let fixture = Fixture::new().await;
    let fill = "INSERT INTO app.logging (entity_code, entity_id, action, created_ts)
        SELECT 'p', gen_random_uuid(), 1, now() - make_interval(days => d) FROM unnest(ARRAY[1, 89, 91, 200]) AS d";
    fixture.sql.batch_execute(fill).await.expect("filled");
    assert_eq!(fixture.number("SELECT app.cleanup_old_logs()").await, 2);
    assert_eq!(fixture.number("SELECT app.cleanup_old_logs(30)").await, 1);
    assert_eq!(fixture.number("SELECT count(*) FROM app.logging").await, 1);
}

#[tokio::test]
async fn the_statistics_of_the_log_count_what_is_pending_and_sent() {
    let fixture = Fixture::new().await;
    for action in [0, 1, 3] {
        fixture.log(Uuid::new_v4(), action).await;
    }
    fixture
        .sql
        .batch_execute("UPDATE app.logging SET sync_status = 'sent' WHERE action = 3")
        .await
        .expect("marked");
    let stats = "SELECT total_logs, pending_logs, sent_logs, oldest_pending = (SELECT created_ts FROM app.logging WHERE action = 1),
            newest_log = (SELECT max(created_ts) FROM app.logging)
        FROM app.get_logging_stats()";
    let row = fixture.sql.query_one(stats, &[]).await.expect("statistics");
    let counts: [i64; 3] = [row.get(0), row.get(1), row.get(2)];
    assert_eq!((counts, row.get(3), row.get(4)), ([3, 1, 1], true, true), "a view is never pending");
}
