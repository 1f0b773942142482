//! [`SqlAuthorizer`]: a query decides who may watch what.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tidings_entities::{Allowed, Authorize, AuthorizeError, IdForm, Question, Subject};
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row};
use uuid::Uuid;

use crate::connect::{Link, Target};
use crate::database::Shared;
use crate::error::DatabaseError;
use crate::pool::Pool;

/// Asks a query with `$1` user, `$2` code and `$3` ids, which returns the ids that are allowed. For a whole type, `$3` has
/// the one element `NULL`, and the query allows it by returning `NULL`.
///
/// The query runs in a transaction that is read-only and limited in time, under a role of its own if one is named.
pub struct SqlAuthorizer {
    pool: Pool,
    query: Arc<str>,
    /// Statements before the query.
    begin: String,
}

impl SqlAuthorizer {
    pub(crate) fn new(shared: &Shared, query: &str, role: Option<&str>) -> Result<Self, DatabaseError> {
        let options = &shared.options;
        let target = Arc::new(Target::new(&options.url, shared.clock.clone(), options.time_limits)?);
        let pool = Pool::new(target, options.authorizer_connections, shared.rng.clone());
        let role =
            role.map(|role| format!("SET LOCAL ROLE \"{}\";", role.replace('"', "\"\""))).unwrap_or_default();
        // Names are looked up and plans are made as is usual in this database, and not as for the statements of tidings.
        let begin = format!(
            "BEGIN READ ONLY; SET LOCAL search_path TO DEFAULT; SET LOCAL enable_seqscan TO DEFAULT;
             SET LOCAL max_parallel_workers_per_gather TO DEFAULT; SET LOCAL jit TO DEFAULT; {role}"
        );
        Ok(Self { pool, query: query.trim().trim_end_matches(';').into(), begin })
    }

    async fn ask(&self, question: &Question) -> Result<Vec<Row>, DatabaseError> {
        let ids: Vec<Option<Uuid>> = match &question.subject {
            Subject::WholeType => vec![None],
            Subject::Ids(ids) => {
                ids.iter().filter_map(|id| Uuid::parse_str(id.as_str()).ok()).map(Some).collect()
            }
        };
        let link = &mut self.pool.borrow().await?;
        link.ask(async |link| run(link, &self.begin, &self.query, question, &ids).await).await
    }
}

async fn run(
    link: &mut Link,
    begin: &str,
    query: &str,
    question: &Question,
    ids: &[Option<Uuid>],
) -> Result<Vec<Row>, Error> {
    if let Err(error) = link.client.batch_execute(begin).await {
        link.client.batch_execute("ROLLBACK").await?;
        return Err(error);
    }
    let code = question.code.as_str();
    let answered = link
        .client
        .query_typed(query, &[(&question.user, Type::TEXT), (&code, Type::TEXT), (&ids, Type::UUID_ARRAY)])
        .await;
    link.client.batch_execute("ROLLBACK").await?;
    answered
}

/// Which ids the rows have, in their first column.
fn allowed(rows: &[Row], subject: &Subject) -> Result<Allowed, AuthorizeError> {
    let mut ids = std::collections::HashSet::new();
    for row in rows {
        let kind = row.columns().first().map(|column| column.type_().clone());
        let id = match kind {
            Some(Type::UUID) => row.get::<_, Option<Uuid>>(0).map(|id| id.to_string()),
            Some(Type::TEXT | Type::VARCHAR) => row.get::<_, Option<String>>(0),
            other => {
                let name = other.map_or("nothing".to_owned(), |kind| kind.to_string());
                return Err(AuthorizeError(format!(
                    "the query returns {name}, and has to return a uuid or text"
                )));
            }
        };
        match id {
            None if *subject == Subject::WholeType => return Ok(Allowed::All),
            None => {}
            Some(id) => ids.extend(IdForm::Uuid.parse(&id)),
        }
    }
    Ok(Allowed::Ids(ids))
}

impl Authorize for SqlAuthorizer {
    fn allowed<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, Result<Allowed, AuthorizeError>> {
        Box::pin(async move { allowed(&self.ask(question).await?, &question.subject) })
    }
}
