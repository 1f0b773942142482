//! Envelopes: records of a session with where they come from around them, for whoever hears many streams in one.
//!
//! They are not stored. A reference knows the record it refers to, and the session's row knows how the records of each
//! source are to be shown, so they are written when a session is read: once for all who read it live.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::log::{Record, StoreError};
use tidings_model::LogId;
use tidings_sessions::{Session, Store};
use tidings_streams::Shape;

use crate::wire::offset;

/// What ends an envelope, behind the payload.
pub const END: u8 = b'}';

/// Shows records of sessions in envelopes, where that is wanted.
pub struct Envelopes(Arc<dyn Store>);

impl Envelopes {
    /// For the sessions of a store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

impl Shape for Envelopes {
    fn shape<'a>(
        &'a self,
        log: LogId,
        records: &'a mut Vec<Record>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            if let Some(session) = self.0.session(log).await? {
                records.iter_mut().for_each(|record| wrap(&session, record));
            }
            Ok(())
        }
        .boxed()
    }
}

fn wrap(session: &Session, record: &mut Record) {
    let Some(origin) = record.origin else { return };
    let Some(subscription) = session.of(origin.log) else { return };
    if !subscription.envelope_at(origin.position) {
        return;
    }
    let stream = serde_json::Value::from(subscription.id.as_str());
    let (after, at) = (offset::print(origin.position), origin.at.as_millis());
    // The payload stays as it is, shared with all other sessions; whoever writes it puts this before it.
    record.head =
        Some(format!(r#"{{"stream":{stream},"offset":"{after}","ts":{at},"payload":"#).into_boxed_str());
}
