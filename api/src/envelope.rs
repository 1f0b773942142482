//! Envelopes: records of a session wrapped in JSON that names their source stream, for clients that receive many
//! streams in one.
//!
//! Envelopes are not stored. A reference identifies the record it refers to, and the row of the session says how
//! records of each source are shown. The envelope is written when the session is read: once for all its live readers.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::log::{Record, StoreError};
use tidings_model::LogId;
use tidings_sessions::{Session, Store};
use tidings_streams::ReferenceRewriter;

use crate::wire::offset;

/// Last byte of an envelope, after the payload.
pub const END: u8 = b'}';

/// Wraps records of sessions in envelopes, where a session asks for it.
pub struct Envelopes(Arc<dyn Store>);

impl Envelopes {
    /// Creates envelopes for the sessions of a store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

impl ReferenceRewriter for Envelopes {
    fn rewrite<'a>(
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
    // The payload is shared with other sessions and stays unchanged; the writer of the response puts this head before
    // it.
    record.head =
        Some(format!(r#"{{"stream":{stream},"offset":"{after}","ts":{at},"payload":"#).into_boxed_str());
}
