//! A query that decides who may watch what.

use std::collections::HashSet;

use tidings_entities::{Allowed, Authorize, EntityCode, IdForm, Question, Subject};
use tidings_postgres::SqlAuthorizer;
use uuid::Uuid;

use super::Fixture;

const QUERY: &str = "SELECT id FROM unnest($3) AS asked (id)
    WHERE EXISTS (SELECT FROM members m WHERE m.person = $1 AND m.code = $2 AND m.id IS NOT DISTINCT FROM asked.id);";

struct Asked {
    fixture: Fixture,
    role: String,
}

impl Asked {
    async fn new() -> Self {
        let fixture = Fixture::new().await;
        let role = format!("Role \"x\" {}", Uuid::new_v4().simple());
        let quoted = role.replace('"', "\"\"");
        let tables = format!(
            "CREATE TABLE public.members (person text, code text, id uuid); CREATE TABLE public.secrets (id uuid);
             CREATE ROLE \"{quoted}\"; GRANT SELECT ON public.members TO \"{quoted}\""
        );
        fixture.sql.batch_execute(&tables).await.expect("tables");
        Self { fixture, role }
    }

    async fn member(&self, person: &str, code: &str, id: Option<u128>) {
        let insert = "INSERT INTO public.members VALUES ($1, $2, $3)";
        let id = id.map(Uuid::from_u128);
        self.fixture.sql.execute(insert, &[&person, &code, &id]).await.expect("inserted");
    }

    fn authorizer(&self, query: &str) -> SqlAuthorizer {
        let made = self.fixture.node().authorizer(query, Some(&self.role));
        made.map_err(|error| error.to_string()).expect("a valid URL")
    }
}

fn question(user: &str, code: &str, ids: &[u128]) -> Question {
    let id = |number: &u128| IdForm::Uuid.parse(&Uuid::from_u128(*number).to_string()).expect("a UUID");
    let subject = match ids {
        [] => Subject::WholeType,
        ids => Subject::Ids(ids.iter().map(id).collect()),
    };
    Question { user: user.to_owned(), code: EntityCode::parse(code).expect("a code"), subject }
}

fn only(numbers: &[u128]) -> Allowed {
    let id = |number: &u128| IdForm::Uuid.parse(&Uuid::from_u128(*number).to_string()).expect("a UUID");
    Allowed::Ids(numbers.iter().map(id).collect::<HashSet<_>>())
}

#[tokio::test]
async fn the_ids_that_the_query_returns_are_allowed() {
    let asked = Asked::new().await;
    asked.member("ada", "project", Some(1)).await;
    asked.member("ada", "project", Some(3)).await;
    asked.member("bob", "task", None).await;
    let authorizer = asked.authorizer(QUERY);
    for (question, expected) in [
        (question("ada", "project", &[1, 2, 3]), only(&[1, 3])),
        (question("ada", "task", &[1]), only(&[])),
        (question("ada", "project", &[]), only(&[])),
        (question("bob", "task", &[]), Allowed::All),
        (question("'; DROP TABLE members; --", "' OR true --", &[1]), only(&[])),
    ] {
        assert_eq!(authorizer.allowed(&question).await, Ok(expected), "{question:?}");
    }
}

#[tokio::test]
async fn a_query_may_return_text_and_nothing_else_but_ids() {
    let asked = Asked::new().await;
    let text = asked.authorizer("SELECT upper(unnest($3)::text)");
    assert_eq!(text.allowed(&question("ada", "project", &[0xab])).await, Ok(only(&[0xab])));
    let number = asked.authorizer("SELECT 1");
    let error = number.allowed(&question("ada", "project", &[1])).await.expect_err("a number").to_string();
    assert!(error.contains("the query returns int4, and has to return a uuid or text"), "{error}");
}

#[tokio::test]
async fn a_query_cannot_write_and_reads_only_what_its_role_may() {
    let asked = Asked::new().await;
    asked.member("ada", "project", Some(1)).await;
    for (query, says) in [
        ("SELECT id FROM secrets", "permission denied for table secrets"),
        ("DELETE FROM members RETURNING id", "read-only transaction"),
        (
            "SELECT unnest($3); DELETE FROM members",
            "cannot insert multiple commands into a prepared statement",
        ),
        ("SELECT", "the query returns nothing"),
        ("SELEKT", "syntax error"),
    ] {
        let error = asked.authorizer(query).allowed(&question("ada", "project", &[1])).await;
        let error = error.expect_err(query).to_string();
        assert!(error.contains(says), "{query}: {error}");
    }
    // The superuser that connects could write, were the transaction not read-only.
    let own = asked.fixture.node().authorizer("DELETE FROM members RETURNING id", None);
    let own = own.map_err(|error| error.to_string()).expect("a valid URL");
    let error = own.allowed(&question("ada", "project", &[1])).await.expect_err("read-only").to_string();
    assert!(error.contains("read-only transaction"), "{error}");
    assert_eq!(asked.fixture.number("SELECT count(*) FROM public.members").await, 1);
    let after = asked.authorizer(QUERY).allowed(&question("ada", "project", &[1])).await;
    assert_eq!(after, Ok(only(&[1])), "a failed query spoils nothing");
}

#[tokio::test]
async fn a_query_that_takes_too_long_is_an_error() {
    let asked = Asked::new().await;
    let mut options = super::options(&asked.fixture.database.url);
    options.time_limits.statement = std::time::Duration::from_millis(200);
    let authorizer = super::node_with(options).authorizer("SELECT unnest($3) FROM pg_sleep(60)", None);
    let authorizer = authorizer.map_err(|error| error.to_string()).expect("a valid URL");
    let error =
        authorizer.allowed(&question("ada", "project", &[1])).await.expect_err("too long").to_string();
    assert!(error.contains("timeout") || error.contains("did not answer"), "{error}");
}
