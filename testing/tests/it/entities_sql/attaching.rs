//! Tables whose changes are captured by triggers.

use std::collections::HashSet;

use tidings_entities::{Action, EntityCode, Entry};
use uuid::Uuid;

use super::{Fixture, Follower, ids, operator};

fn code(text: &str) -> EntityCode {
    EntityCode::parse(text).expect("a code")
}

fn actions(changes: &[tidings_entities::Change]) -> Vec<Action> {
    changes.iter().map(|change| change.action).collect()
}

#[tokio::test]
async fn inserts_updates_and_deletes_of_an_attached_table_are_told() {
    let fixture = Fixture::new().await;
    fixture.todos().await;
    let mut follower = Follower::new(&fixture.node()).await;
    let write = "INSERT INTO public.todos (text) SELECT n::text FROM generate_series(1, 3) AS n;
        UPDATE public.todos SET text = text || '!' WHERE text <> '1'; DELETE FROM public.todos WHERE text = '1'";
    fixture.sql.batch_execute(write).await.expect("written");
    let read = follower.drain().await;
    let (create, update, delete) = (Action::Create, Action::Update, Action::Delete);
    assert_eq!(actions(&read), [create, create, create, update, update, delete]);
    assert!(read.iter().all(|change| change.code.as_str() == "todo"));
}

#[tokio::test]
async fn an_update_that_changes_nothing_is_not_told() {
    let fixture = Fixture::new().await;
    // A column of type json has no equality.
    let table = "CREATE TABLE public.notes (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), body json, n int);
        INSERT INTO public.notes (body, n) VALUES ('{}', 1), ('[]', 2)";
    fixture.sql.batch_execute(table).await.expect("a table");
    operator(&fixture.database.url)
        .await
        .attach("public.notes", &code("note"), "id")
        .await
        .expect("attached");
    let mut follower = Follower::new(&fixture.node()).await;
    let write = "UPDATE public.notes SET n = n; UPDATE public.notes SET n = 2;
        UPDATE public.notes SET n = 3 WHERE false; DELETE FROM public.notes WHERE false";
    fixture.sql.batch_execute(write).await.expect("written");
    assert_eq!(actions(&follower.drain().await), [Action::Update], "one row is different, once");
}

#[tokio::test]
async fn an_upsert_and_a_changed_key_are_told_as_what_they_are() {
    let fixture = Fixture::new().await;
    fixture.todos().await;
    let (one, two, three) = (Uuid::from_u128(1), Uuid::from_u128(2), Uuid::from_u128(3));
    let mut follower = Follower::new(&fixture.node()).await;
    let write = format!(
        "INSERT INTO public.todos VALUES ('{one}', 'a');
         INSERT INTO public.todos VALUES ('{one}', 'b'), ('{two}', 'c')
             ON CONFLICT (id) DO UPDATE SET text = EXCLUDED.text;
         UPDATE public.todos SET id = '{three}' WHERE id = '{two}'"
    );
    fixture.sql.batch_execute(&write).await.expect("written");
    let read = follower.drain().await;
    let told: HashSet<(String, Action)> =
        read[1..].iter().map(|change| (change.id.to_string(), change.action)).collect();
    let expected = [
        (one.to_string(), Action::Update),
        (two.to_string(), Action::Create),
        (two.to_string(), Action::Delete),
        (three.to_string(), Action::Create),
    ];
    assert_eq!(told, HashSet::from(expected));
}

#[tokio::test]
async fn a_truncate_is_told_for_the_whole_type() {
    let fixture = Fixture::new().await;
    fixture.todos().await;
    let mut follower = Follower::new(&fixture.node()).await;
    fixture
        .sql
        .batch_execute("INSERT INTO public.todos DEFAULT VALUES; TRUNCATE public.todos")
        .await
        .expect("done");
    let (read, _) = follower.read().await;
    assert!(
        matches!(&read[..], [Entry::Changed(_), Entry::Truncated(code)] if code.as_str() == "todo"),
        "{read:?}"
    );
}

#[tokio::test]
async fn writers_need_no_right_on_the_schema_of_tidings() {
    let fixture = Fixture::new().await;
    fixture.todos().await;
    let user = format!("writer_{}", Uuid::new_v4().simple());
    let grant = format!("CREATE ROLE {user} LOGIN; GRANT ALL ON public.todos TO {user}");
    fixture.sql.batch_execute(&grant).await.expect("granted");
    let writer = fixture.database.client_as(&user).await;
    let mut follower = Follower::new(&fixture.node()).await;
    // A table of the writer's own in front of the real one changes nothing.
    let write = "CREATE TEMP TABLE change_outbox (LIKE public.todos); SET search_path = pg_temp, public;
        INSERT INTO public.todos DEFAULT VALUES; UPDATE public.todos SET text = 'x'; DELETE FROM public.todos;
        TRUNCATE public.todos";
    writer.batch_execute(write).await.expect("written");
    let (read, _) = follower.read().await;
    assert_eq!(read.len(), 4);
    assert!(writer.query("SELECT FROM app.change_outbox", &[]).await.is_err());
}

#[tokio::test]
async fn names_and_codes_with_quotes_are_attached_as_they_are() {
    let fixture = Fixture::new().await;
    let table = r#"CREATE TABLE public."To'do ""x""; --" ("the 'Id'" uuid PRIMARY KEY)"#;
    fixture.sql.batch_execute(table).await.expect("a table");
    let crafted = code("it's \"a\"; DROP TABLE app.logging; -- %1$s $body$ $$");
    let operator = operator(&fixture.database.url).await;
    let name = r#"public."To'do ""x""; --""#;
    operator.attach(name, &crafted, "the 'Id'").await.map_err(|error| error.to_string()).expect("attached");
    let mut follower = Follower::new(&fixture.node()).await;
    let id = Uuid::new_v4();
    fixture.sql.batch_execute(&format!("INSERT INTO {name} VALUES ('{id}')")).await.expect("written");
    let read = follower.drain().await;
    assert_eq!((ids(&read), &read[0].code), (vec![id.to_string()], &crafted));
    assert!(operator.detach(name).await.expect("detached"));
    fixture.log(id, 1).await;
}

#[tokio::test]
async fn a_table_that_cannot_be_attached_is_refused_with_the_reason() {
    let fixture = Fixture::new().await;
    let tables = "CREATE TABLE public.numbered (id bigint PRIMARY KEY, other uuid);
        CREATE VIEW public.seen AS SELECT gen_random_uuid() AS id;
        CREATE DOMAIN public.key AS uuid; CREATE TABLE public.domains (id public.key)";
    fixture.sql.batch_execute(tables).await.expect("tables");
    let operator = operator(&fixture.database.url).await;
    for (table, key, says) in [
        (
            "public.numbered",
            "id",
            "column id of numbered is of type bigint, and tidings needs a key of type uuid",
        ),
        ("public.numbered", "Id", "numbered has no column \"Id\""),
        ("public.seen", "id", "seen is not a table whose changes can be captured"),
        ("public.nothing", "id", "there is no table public.nothing"),
        ("app.logging", "id", "app.logging is not a table whose changes can be captured"),
        ("a b c", "id", "invalid name syntax"),
    ] {
        let error = operator.attach(table, &code("x"), key).await.expect_err(table).to_string();
        assert!(error.contains(says), "{table}: {error}");
    }
    operator.attach("public.numbered", &code("x"), "other").await.expect("another column will do");
    operator.attach("domains", &code("x"), "id").await.expect("a domain over uuid will do");
}

#[tokio::test]
async fn attaching_again_changes_the_code_and_detaching_ends_it() {
    let fixture = Fixture::new().await;
    fixture.todos().await;
    let operator = operator(&fixture.database.url).await;
    operator.attach("todos", &code("todo"), "id").await.expect("attached again");
    operator.attach("todos", &code("task"), "id").await.expect("attached with another code");
    let mut follower = Follower::new(&fixture.node()).await;
    let insert = "INSERT INTO public.todos DEFAULT VALUES";
    fixture.sql.batch_execute(insert).await.expect("written");
    let read = follower.drain().await;
    assert_eq!((read.len(), read[0].code.as_str()), (1, "task"));
    assert!(operator.detach("todos").await.expect("detached"));
    assert!(!operator.detach("todos").await.expect("nothing to detach"));
    fixture.sql.batch_execute(insert).await.expect("written");
    assert_eq!(follower.drain().await, []);
    let left = "SELECT (SELECT count(*) FROM pg_trigger WHERE tgrelid = 'public.todos'::regclass)
        + (SELECT count(*) FROM pg_proc WHERE proname LIKE 'tidings\\_capture\\_%' AND proname <> 'tidings_capture_logging')";
    assert_eq!(fixture.number(left).await, 0, "no trigger and no function stays");
}

#[tokio::test]
async fn a_partitioned_table_is_captured_as_a_whole() {
    let fixture = Fixture::new().await;
    let table = "CREATE TABLE public.parts (id uuid PRIMARY KEY, n int) PARTITION BY HASH (id);
        CREATE TABLE public.part_0 PARTITION OF public.parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
        CREATE TABLE public.part_1 PARTITION OF public.parts FOR VALUES WITH (MODULUS 2, REMAINDER 1)";
    fixture.sql.batch_execute(table).await.expect("a table");
    operator(&fixture.database.url).await.attach("parts", &code("part"), "id").await.expect("attached");
    let mut follower = Follower::new(&fixture.node()).await;
    let write = "INSERT INTO public.parts SELECT gen_random_uuid(), 1 FROM generate_series(1, 20); UPDATE public.parts SET n = 2";
    fixture.sql.batch_execute(write).await.expect("written");
    assert_eq!(follower.drain().await.len(), 40);
}
