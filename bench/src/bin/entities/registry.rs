//! The search for the subscribers of entities, in a registry with many rows.

use std::time::Instant;

use tidings_bench::{Failed, Times, grouped};
use tokio_postgres::Client;
use uuid::Uuid;

use super::Arguments;
use super::database::Database;
use super::server::prepare;

/// Entities that are subscribed to; each row of the registry is about one of them.
const SUBSCRIBED: i64 = 100_000;
/// Subscriptions of one connection.
const EACH: i64 = 100;
const SEARCHES: usize = 200;

/// The table as the design began, whose key has no connection, and its function.
const ORIGINAL: &str = "
    DROP SCHEMA IF EXISTS original CASCADE;
    CREATE SCHEMA original;
    CREATE TABLE original.rxdb_subscription (
        user_id uuid NOT NULL, entity_code varchar(100) NOT NULL, entity_id uuid NOT NULL,
        connection_id varchar(50) NOT NULL, subscribed_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (user_id, entity_code, entity_id));
    CREATE INDEX ON original.rxdb_subscription (entity_code, entity_id);
    CREATE INDEX ON original.rxdb_subscription (user_id);
    CREATE INDEX ON original.rxdb_subscription (connection_id);
    CREATE FUNCTION original.get_batch_subscribers(p_entity_code varchar, p_entity_ids uuid[])
    RETURNS TABLE (user_id uuid, connection_id varchar, subscribed_entity_ids uuid[]) LANGUAGE sql STABLE AS $$
        SELECT s.user_id, s.connection_id, array_agg(s.entity_id) FROM original.rxdb_subscription AS s
        WHERE s.entity_code = p_entity_code AND s.entity_id = ANY (p_entity_ids)
        GROUP BY s.user_id, s.connection_id $$";

/// Times `get_batch_subscribers` with 1, 100 and 1,000 ids.
pub async fn measure(arguments: &Arguments, database: &Database) -> Result<(), Failed> {
    prepare(&arguments.binary, &database.url())?;
    let client = database.client().await?;
    client.batch_execute(ORIGINAL).await?;
    fill(&client, arguments.rows).await?;
    println!(
        "## Registry: get_batch_subscribers, {} rows, {} entities\n\n\
         | ids | connections found | p50 ms | p99 ms | original p50 ms | original p99 ms |\n|---|---|---|---|---|---|",
        grouped(arguments.rows),
        grouped(SUBSCRIBED as usize)
    );
    for ids in [1, 100, 1_000] {
        let (mut ours, found) = search(&client, "app", ids).await?;
        let (mut original, _) = search(&client, "original", ids).await?;
        let ms = |times: &mut Times, share| times.quantile(share) / 1e3;
        println!(
            "| {} | {} | {:.2} | {:.2} | {:.2} | {:.2} |",
            grouped(ids),
            grouped(found),
            ms(&mut ours, 0.5),
            ms(&mut ours, 0.99),
            ms(&mut original, 0.5),
            ms(&mut original, 0.99)
        );
    }
    let size = "SELECT pg_total_relation_size('app.rxdb_subscription'), pg_total_relation_size('original.rxdb_subscription')";
    let size = client.query_one(size, &[]).await?;
    let megabytes = |column: usize| size.get::<_, i64>(column) as f64 / 1e6;
    println!("\nSize with indexes: {:.0} MB; original {:.0} MB.\n", megabytes(0), megabytes(1));
    write(&client).await?;
    sizes(&client).await
}

/// Times the functions that write, as one durable commit each, beside the rows that are there.
async fn write(client: &Client) -> Result<(), Failed> {
    const IDS: &str = "ARRAY(SELECT md5(n::text || $1::text)::uuid FROM generate_series(1, 50) AS n)";
    const USER: &str = "md5($1::text)::uuid";
    let statements = [
        (
            "bulk_subscribe, 50 ids",
            format!("SELECT app.bulk_subscribe({USER}, 'b' || $1::text, 'project', {IDS})"),
        ),
        ("bulk_unsubscribe, 50 ids", format!("SELECT app.bulk_unsubscribe({USER}, 'project', {IDS})")),
        (
            "bulk_subscribe again",
            format!("SELECT app.bulk_subscribe({USER}, 'b' || $1::text, 'project', {IDS})"),
        ),
        (
            "cleanup_connection_subscriptions, 50 rows",
            "SELECT app.cleanup_connection_subscriptions('b' || $1::text)".to_owned(),
        ),
    ];
    println!(
        "## Registry: functions that write, one durable commit each\n\n| function | p50 ms | p99 ms |\n|---|---|---|"
    );
    for (name, statement) in statements {
        let statement = client.prepare(&statement).await?;
        let mut times = Times::default();
        for round in 0..SEARCHES {
            let began = Instant::now();
            let row = client.query_one(&statement, &[&round.to_string()]).await?;
            times.add(began.elapsed());
            if row.get::<_, i32>(0) != 50 {
                return Err(format!("{name} has found {} rows", row.get::<_, i32>(0)).into());
            }
        }
        println!("| {name} | {:.2} | {:.2} |", times.quantile(0.5) / 1e3, times.quantile(0.99) / 1e3);
    }
    Ok(())
}

/// Sizes of the table by its rows.
async fn sizes(client: &Client) -> Result<(), Failed> {
    println!("\n## Registry: size\n\n| rows | table MB | with indexes MB |\n|---|---|---|");
    for rows in [10_000, 100_000, 1_000_000] {
        fill(client, rows).await?;
        let size = "SELECT pg_relation_size('app.rxdb_subscription'), pg_total_relation_size('app.rxdb_subscription')";
        let size = client.query_one(size, &[]).await?;
        let megabytes = |column: usize| size.get::<_, i64>(column) as f64 / 1e6;
        println!("| {} | {:.1} | {:.1} |", grouped(rows), megabytes(0), megabytes(1));
    }
    println!();
    Ok(())
}

/// Id of an entity by its number.
fn entity(number: i64) -> Uuid {
    Uuid::from_u128(number as u128)
}

/// Fills both tables with the same rows.
async fn fill(client: &Client, rows: usize) -> Result<(), Failed> {
    let began = Instant::now();
    client.batch_execute("TRUNCATE app.rxdb_subscription, original.rxdb_subscription").await?;
    for schema in ["app", "original"] {
        // Neighbours of a connection are spread over the entities, and do not repeat.
        let insert = format!(
            "INSERT INTO {schema}.rxdb_subscription (user_id, entity_code, entity_id, connection_id) \
             SELECT lpad(to_hex(n / {EACH}), 32, '0')::uuid, 'project', \
                    lpad(to_hex((n * 7919) % {SUBSCRIBED}), 32, '0')::uuid, 'c_' || n / {EACH} \
             FROM generate_series(0, $1::bigint - 1) AS n"
        );
        client.execute(&insert, &[&(rows as i64)]).await?;
        client.batch_execute(&format!("VACUUM ANALYZE {schema}.rxdb_subscription")).await?;
    }
    eprintln!("both registries were filled in {:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// Searches many times for different ids, and returns the connections that were found on average.
async fn search(client: &Client, schema: &str, ids: usize) -> Result<(Times, usize), Failed> {
    let query = format!("SELECT * FROM {schema}.get_batch_subscribers('project', $1)");
    let query = client.prepare(&query).await?;
    let (mut times, mut found, mut rng) = (Times::default(), 0, fastrand::Rng::with_seed(1));
    for _ in 0..SEARCHES {
        let some: Vec<Uuid> = (0..ids).map(|_| entity(rng.i64(0..SUBSCRIBED))).collect();
        let began = Instant::now();
        found += client.query(&query, &[&some]).await?.len();
        times.add(began.elapsed());
    }
    Ok((times, found / SEARCHES))
}
