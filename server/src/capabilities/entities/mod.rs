//! Wiring of entities: configuration keys, duties and opening.

mod callback;
mod options;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidings_api::EntitySockets;
use tidings_egress::{AllowList, Egress, Guard, SystemResolver};
use tidings_entities::{Authorize, Backing, Entities, Parts};
use tidings_postgres::{Capture, Database, Options as DatabaseOptions};
use tidings_streams::Cleared;

use self::callback::Callback;
use super::{CapabilityError, Foundation, Wiring};
use crate::duties::Duty;

pub use self::options::{AuthorizeOptions, DatabaseUrl, EntityOptions, Mode, SourceOptions};

/// Interval at which idle connections to the callback are closed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Time in which databases are told that the server stops. What they were not told runs out by itself.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

pub const WIRING: Wiring = Wiring {
    keys: options::KEYS,
    tables: options::TABLES,
    duties: |all| {
        let entities = &all.entities.entities;
        let (serving, maintaining, relaying) = (entities.clone(), entities.clone(), entities.clone());
        let mut duties = vec![
            Duty::lasting("entities", move || serving.clone().serve()).on_each_node(),
            Duty::lasting("entities-retention", move || maintaining.clone().maintain()),
            Duty::lasting("entities-relay", move || relaying.clone().relay()).on_each_node(),
        ];
        if !all.entities.databases.is_empty() {
            let databases = all.entities.databases.clone();
            let running = move || {
                let running: Vec<_> = databases.iter().map(|database| database.clone().run()).collect();
                async move {
                    join_all(running).await;
                }
            };
            duties.push(Duty::lasting("entities-databases", running).on_each_node());
        }
        if let Some(egress) = all.entities.callbacks.clone() {
            let sweep = move || {
                let egress = egress.clone();
                async move { egress.sweep() }
            };
            duties.push(Duty::every("entities-connections", SWEEP_INTERVAL, sweep).on_each_node());
        }
        duties
    },
    clear: |all, project| {
        Box::pin(async move {
            let cleared = all.entities.entities.clear(project).await.map(|()| Cleared::Whole);
            cleared.map_err(|error| format!("could not remove its changes of entities: {error}"))
        })
    },
};

/// The entities of a server, and what belongs to them.
#[derive(Clone)]
pub struct OpenEntities {
    /// The entities.
    pub entities: Entities,
    /// What their sockets share.
    pub sockets: EntitySockets,
    /// Sends questions to the application, if it is asked.
    callbacks: Option<Egress>,
    /// Databases that changes come from.
    databases: Vec<Database>,
}

impl OpenEntities {
    /// Removes what this node has in its databases, when the server stops: its lease, and the rows of its subscriptions.
    /// Takes no longer than [`LEAVE_TIMEOUT`], also when a database is away; other nodes then remove it when the lease has
    /// run out.
    pub async fn leave(&self) {
        let leaving = self.databases.iter().map(|database| async {
            if let Err(error) = database.leave().await {
                tracing::warn!(%error, "cannot give back the lease in a database of entities; it runs out by itself");
            }
        });
        if tokio::time::timeout(LEAVE_TIMEOUT, join_all(leaving)).await.is_err() {
            tracing::warn!("a database of entities does not answer; the lease in it runs out by itself");
        }
    }
}

/// Opens the entities.
pub async fn open(
    foundation: &Foundation,
    options: EntityOptions,
    allow_targets: AllowList,
) -> Result<OpenEntities, CapabilityError> {
    let Foundation { store, bus, clock, rng, metrics, journals, .. } = foundation.clone();
    if options.authorize.sql.is_some() && options.authorize.callback_url.is_some() {
        let what = "entities.authorize.sql cannot be set beside entities.authorize.callback_url";
        return Err(CapabilityError::Entities(what.to_owned()));
    }
    if options.authorize.sql_role.is_some() && options.authorize.sql.is_none() {
        let what = "entities.authorize.sql_role needs entities.authorize.sql, the query that runs under it";
        return Err(CapabilityError::Entities(what.to_owned()));
    }
    let (mut backings, mut databases) = (HashMap::new(), Vec::new());
    let node = uuid::Uuid::new_v4();
    for source in options.sources() {
        let database = open_database(foundation, source, node, options.entities.since_window)?;
        let backing = backing_of(&database, &options.authorize)?;
        backings.insert(source.project.clone(), backing);
        databases.push(database);
    }
    if options.authorize.sql.is_some() && backings.is_empty() {
        return Err(CapabilityError::Entities("entities.authorize.sql needs a database to ask".to_owned()));
    }
    let callback = options.authorize.callback_url.map(|target| {
        let guard = Guard::new(allow_targets);
        let resolver = Arc::new(SystemResolver);
        let egress = Egress::new(options.authorize.egress, guard, resolver, clock.clone(), &metrics);
        (Callback::new(target, egress.clone(), clock.clone(), &metrics), egress)
    });
    let (authorize, callbacks) = callback.unzip();
    let sockets = EntitySockets::new(options.sockets, &metrics);
    let authorize = authorize.map(|callback| Arc::new(callback) as Arc<dyn Authorize>);
    let options = options.entities;
    let parts = Parts { store, bus, clock, rng, journals, metrics, options, backings, authorize };
    Ok(OpenEntities { entities: Entities::new(parts), sockets, callbacks, databases })
}

/// Prepares the work on the database of a project. Does not connect: a server starts while its database is away.
fn open_database(
    foundation: &Foundation,
    source: &SourceOptions,
    node: uuid::Uuid,
    since_window: Duration,
) -> Result<Database, CapabilityError> {
    let project = source.project.as_str();
    let failed =
        |what: &str| CapabilityError::Entities(format!("the database of the project {project}: {what}"));
    let Some(url) = &source.database_url else { return Err(failed("database_url is missing")) };
    let options = DatabaseOptions {
        since_window,
        mark_status: source.mark_status,
        capture: match source.mode {
            Mode::Outbox => Capture::Triggers,
            Mode::Logical => Capture::Log,
        },
        slot_retained_limit: i64::try_from(source.slot_retained_limit).unwrap_or(i64::MAX),
        ..DatabaseOptions::new(url.reveal(), project, node)
    };
    let Foundation { clock, rng, metrics, .. } = foundation;
    Database::new(options, clock.clone(), rng.clone(), metrics).map_err(|error| failed(&error.to_string()))
}

/// What a database is to entities: the source of changes, the registry of subscriptions, the lease of telling hooks,
/// and the authoriser, if it is a query.
fn backing_of(database: &Database, authorize: &AuthorizeOptions) -> Result<Backing, CapabilityError> {
    let role = authorize.sql_role.as_deref();
    let authorizer = authorize.sql.as_deref().map(|sql| database.authorizer(sql, role)).transpose();
    let authorizer = authorizer.map_err(|error| CapabilityError::Entities(error.to_string()))?;
    Ok(Backing {
        source: Arc::new(database.outbox()),
        registry: database.directory(),
        relay: Some(Arc::new(database.relay())),
        authorize: authorizer.map(|authorizer| Arc::new(authorizer) as Arc<dyn Authorize>),
    })
}
