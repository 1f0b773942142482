//! Logical mode: changes of attached tables come from the database's own log, by one replication slot for all nodes.
//!
//! The node that holds the lease reads the stream of the slot and writes the changes into the outbox, in the same
//! transaction as the position after them. So every node reads them there, as if triggers had written them. The slot is
//! told a position only after that is stored, and what comes twice after a crash is known by its position. If the slot is
//! lost, or keeps too much of the log, it is made anew, and everybody is told to fetch everything again.

mod pgoutput;
pub(crate) mod slot;
mod store;
mod stream;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::error::SqlState;
use uuid::Uuid;

use self::slot::{Slot, Term};
pub(crate) use self::wire::{Login, Wire, WireError};
use crate::connect::Link;
use crate::database::Shared;
use crate::error::DatabaseError;
use crate::pool::Backoff;

/// Time after a renewal until the lease has run out.
const LASTS: Duration = Duration::from_secs(15);
/// Time between two renewals, and between two looks at the slot.
const RENEW_INTERVAL: Duration = Duration::from_secs(3);
/// Longest time between two tries to take the lease. The shortest is half of it.
const TRY_INTERVAL: Duration = Duration::from_secs(2);
/// Time between two looks for a slot that nobody reads, in the other mode.
const ABANDONED_INTERVAL: Duration = Duration::from_secs(60);

/// What a role without the right is told.
const MAY_NOT: &str = "mode \"logical\" needs a role with the attribute REPLICATION in database_url";

/// Why a node does not read the slot any more, without anything being wrong.
enum Ended {
    /// Another node reads it.
    NotHeld,
    /// No table is attached.
    Nothing,
    /// The slot keeps too much of the log.
    TooFar,
}

/// Reads the slot whenever no other node does, for as long as the server runs.
pub(crate) async fn lead(shared: Arc<Shared>) {
    let mut backoff = Backoff::default();
    loop {
        let ended = lead_once(&shared).await;
        shared.meters.slot_leading.set(0);
        let wait = match ended {
            Ok(ended) => {
                shared.set_problem(None);
                backoff.reset();
                let most = u64::try_from(TRY_INTERVAL.as_millis()).unwrap_or(u64::MAX);
                match ended {
                    Ended::TooFar => Duration::ZERO,
                    Ended::NotHeld | Ended::Nothing => {
                        Duration::from_millis(shared.rng.within(most / 2..=most))
                    }
                }
            }
            Err(error) => {
                let project = &shared.options.project;
                tracing::warn!(project, %error, "cannot read the replication slot; trying again");
                if let Err(error) = leave(&shared).await {
                    tracing::debug!(project, %error, "cannot give back the lease of the replication slot");
                }
                // What is merely away is said by whoever reads the outbox.
                let is_problem = matches!(error, DatabaseError::Misconfigured(_) | DatabaseError::Refused(_));
                shared.set_problem(is_problem.then(|| error.into()));
                backoff.next(&shared.rng)
            }
        };
        shared.clock.sleep(wait).await;
    }
}

/// Gives the lease back, so that another node need not wait.
pub(crate) async fn leave(shared: &Shared) -> Result<(), DatabaseError> {
    let link = &mut shared.pool.borrow().await?;
    link.ask(async |link| slot::release(&link.client, holder(shared)).await).await
}

/// A node may work on one database for several projects.
fn holder(shared: &Shared) -> Uuid {
    Uuid::new_v5(&shared.options.node, shared.options.project.as_bytes())
}

async fn look(shared: &Shared) -> Result<Slot, DatabaseError> {
    let link = &mut shared.pool.borrow().await?;
    let slot = link.ask(async |link| slot::look(&link.client).await).await?;
    let (retained, behind) = slot.found.as_ref().map_or((0, 0), |found| (found.retained, found.behind));
    shared.meters.slot_retained.set(retained);
    shared.meters.slot_behind.set(behind);
    Ok(slot)
}

async fn lead_once(shared: &Arc<Shared>) -> Result<Ended, DatabaseError> {
    let slot = look(shared).await?;
    slot.check()?;
    if slot.tables == 0 {
        return Ok(Ended::Nothing);
    }
    let link = &mut shared.pool.borrow().await?;
    let claim = async |link: &mut Link| slot::claim(&link.client, holder(shared), LASTS.as_secs_f64()).await;
    let Some(term) = link.ask(claim).await? else { return Ok(Ended::NotHeld) };
    tracing::info!(project = shared.options.project, "this node reads the replication slot");
    // The work ends with the lease, wherever it is.
    let ended = tokio::select! {
        ended = keep(shared, term) => ended,
        failed = work(shared, term) => failed,
    };
    // Only now is nobody left who reads it.
    let drop_it = matches!(ended, Ok(Ended::TooFar) | Err(DatabaseError::PublicationMissing(_)));
    if drop_it {
        drop_slot(shared, &slot).await?;
    }
    ended
}

/// Renews the lease, and looks whether the slot keeps too much of the log.
async fn keep(shared: &Shared, term: Term) -> Result<Ended, DatabaseError> {
    loop {
        shared.clock.sleep(RENEW_INTERVAL).await;
        let link = &mut shared.pool.borrow().await?;
        if !link.ask(async |link| term.renew(&link.client, LASTS.as_secs_f64()).await).await? {
            return Ok(Ended::NotHeld);
        }
        let slot = look(shared).await?;
        if slot.tables == 0 {
            link.ask(async |link| slot::release(&link.client, term.holder).await).await?;
            return Ok(Ended::Nothing);
        }
        let retained = slot.found.as_ref().map_or(0, |found| found.retained);
        if retained > shared.options.slot_retained_limit {
            let project = &shared.options.project;
            tracing::error!(
                project,
                retained,
                "the replication slot keeps too much of the database's log; it is made anew"
            );
            return Ok(Ended::TooFar);
        }
    }
}

/// Ends the reader of a slot, and drops it.
async fn drop_slot(shared: &Shared, slot: &Slot) -> Result<(), DatabaseError> {
    let link = &mut shared.pool.borrow().await?;
    // A reader is gone a moment after it was told to go.
    for _ in 0..50 {
        link.ask(async |link| slot.end_reader(&link.client).await).await?;
        let dropping = link.ask(async |link| match slot.drop(&link.client).await {
            Err(error) if error.code() == Some(&SqlState::OBJECT_IN_USE) => Ok(false),
            done => done.map(|()| true),
        });
        if dropping.await? {
            return Ok(());
        }
        shared.clock.sleep(Duration::from_millis(100)).await;
    }
    Err(DatabaseError::Refused(format!("the replication slot {} is in use and cannot be dropped", slot.name)))
}

/// Reads the slot, after it was made if it is missing. Ends only with an error.
async fn work(shared: &Arc<Shared>, term: Term) -> Result<Ended, DatabaseError> {
    let mut link = shared.pool.target().connect(None).await?;
    let slot = prepare(shared, &mut link, term).await?;
    shared.set_problem(None);
    stream::follow(shared, link, term, &slot).await.map(|never| match never {})
}

/// What an error means that creating a slot has.
pub(crate) fn may_not(error: &tokio_postgres::Error) -> DatabaseError {
    match error.code() {
        Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
            DatabaseError::Misconfigured(MAY_NOT.to_owned())
        }
        Some(code) if *code == SqlState::CONFIGURATION_LIMIT_EXCEEDED => DatabaseError::Misconfigured(
            "all replication slots of the database are in use: raise max_replication_slots".to_owned(),
        ),
        _ => DatabaseError::of(error),
    }
}

/// Makes the slot if it is missing or lost. Returns it as it is then.
async fn prepare(shared: &Shared, link: &mut Link, term: Term) -> Result<Slot, DatabaseError> {
    let failed = |error: tokio_postgres::Error| DatabaseError::of(&error);
    let slot = slot::look(&link.client).await.map_err(failed)?;
    match &slot.found {
        Some(found) if slot.is_whole && !found.lost => {
            if found.confirmed.is_none() {
                // By the command that attaches a table.
                return Err(DatabaseError::Connect("the replication slot is being made".to_owned()));
            }
            if found.active.is_some() {
                // Whoever held the lease before.
                slot.end_reader(&link.client).await.map_err(failed)?;
            }
            if let (None, Some(confirmed)) = (slot.position, found.confirmed) {
                term.begin(&link.client, confirmed).await.map_err(failed)?;
            }
        }
        found => {
            if !term.lose(&link.client).await.map_err(failed)? {
                return Err(DatabaseError::NotHeld);
            }
            if found.is_some() {
                drop_slot(shared, &slot).await?;
            }
            // In this order: the slot cannot read a publication that is younger.
            link.client.batch_execute("SELECT app.tidings_publish_again()").await.map_err(failed)?;
            // It waits for the transactions that are open, however long that takes.
            link.client
                .batch_execute("SET statement_timeout = 0; SET lock_timeout = 0")
                .await
                .map_err(failed)?;
            let position = slot.create(&link.client).await.map_err(|error| may_not(&error))?;
            let millis = shared.pool.target().time_limits.statement.as_millis();
            let limits = format!("SET statement_timeout = {millis}; SET lock_timeout = {millis}");
            link.client.batch_execute(&limits).await.map_err(failed)?;
            if !term.reset(&link.client, position).await.map_err(failed)? {
                return Err(DatabaseError::NotHeld);
            }
            shared.meters.slot_resets.count();
            tracing::warn!(
                project = shared.options.project,
                "the replication slot was made anew; clients are told to fetch everything again"
            );
        }
    }
    slot::look(&link.client).await.map_err(failed)
}

/// Drops a slot that keeps too much of the log and that nobody reads, as after a change of the mode. Runs for as long as
/// the server does.
pub(crate) async fn remove_abandoned(shared: Arc<Shared>) {
    loop {
        if let Err(error) = remove_abandoned_once(&shared).await {
            tracing::debug!(project = shared.options.project, %error, "cannot look for an abandoned replication slot");
        }
        shared.clock.sleep(ABANDONED_INTERVAL).await;
    }
}

async fn remove_abandoned_once(shared: &Shared) -> Result<(), DatabaseError> {
    let slot = look(shared).await?;
    let Some(found) = &slot.found else { return Ok(()) };
    if !found.ours || found.active.is_some() || found.retained <= shared.options.slot_retained_limit {
        return Ok(());
    }
    let link = &mut shared.pool.borrow().await?;
    link.ask(async |link| slot.drop(&link.client).await).await?;
    let (project, retained) = (&shared.options.project, found.retained);
    tracing::error!(
        project,
        retained,
        "a replication slot that nobody read was dropped; tables that are attached to it are not told"
    );
    Ok(())
}
