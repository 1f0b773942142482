//! Replays: what a client has missed of what it subscribes to.

use std::collections::HashMap;

use tidings_model::limits;

use crate::authorize::Subject;
use crate::change::Entry;
use crate::cursor::Cursor;
use crate::entity::{EntityCode, EntityId};
use crate::hub::Hub;
use crate::source::{Read, ResyncReason, SourceError};
use crate::subscribe::SubscribeError;
use crate::told::Latest;

/// Entries read from the source at a time.
const AT_A_TIME: usize = 4096;

/// What a client has missed.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    /// The latest change of each entity.
    pub(crate) changes: HashMap<EntityId, Latest>,
    /// Why the client has to fetch everything again, before it is told the changes.
    pub(crate) resync: Option<ResyncReason>,
}

/// Reads what came after a cursor, up to what is visible now.
pub(crate) async fn replay(
    hub: &Hub,
    code: &EntityCode,
    subject: &Subject,
    since: &Cursor,
) -> Result<Replayed, SubscribeError> {
    let _permit = hub.replays.acquire().await.map_err(|_| SubscribeError::Unavailable)?;
    let ids = match subject {
        Subject::Ids(ids) => Some(ids.iter().collect::<std::collections::HashSet<_>>()),
        Subject::WholeType => None,
    };
    let most = hub.options.max_subscriptions_per_connection;
    let (mut replayed, mut cursor, mut count) = (Replayed::default(), since.clone(), 0);
    loop {
        let (entries, next, more) = match hub.source.read(&cursor, AT_A_TIME).await {
            Ok(Read::Entries { entries, cursor, more }) => (entries, cursor, more),
            Ok(Read::Lost { reason, .. }) => return Ok(lost(hub, reason)),
            Err(SourceError::InvalidCursor(_)) => return Err(SubscribeError::InvalidCursor),
            Err(
                error @ (SourceError::Unavailable(_) | SourceError::Misconfigured(_) | SourceError::Store(_)),
            ) => {
                tracing::warn!(%error, project = %hub.project, "could not read what a client has missed");
                return Err(SubscribeError::Unavailable);
            }
        };
        count += entries.len();
        for entry in &entries {
            match entry {
                Entry::Changed(change) if change.code == *code => {
                    if ids.as_ref().is_none_or(|ids| ids.contains(&change.id)) {
                        let latest = Latest::of(change);
                        let known = replayed.changes.entry(change.id.clone());
                        known.and_modify(|known| known.join(latest)).or_insert(latest);
                    }
                }
                Entry::Truncated(truncated) if truncated == code => {
                    replayed = Replayed { resync: Some(ResyncReason::Truncated), ..Replayed::default() };
                }
                Entry::Changed(_) | Entry::Truncated(_) => {}
            }
        }
        if count > limits::ENTITY_REPLAY || replayed.changes.len() > most {
            return Ok(lost(hub, ResyncReason::Overflow));
        }
        if !more {
            break;
        }
        cursor = next;
    }
    hub.counts.replayed.add(replayed.changes.len() as u64);
    if let Some(reason) = replayed.resync {
        hub.counts.resynced(reason, 1);
    }
    Ok(replayed)
}

fn lost(hub: &Hub, reason: ResyncReason) -> Replayed {
    hub.counts.resynced(reason, 1);
    Replayed { resync: Some(reason), ..Replayed::default() }
}
