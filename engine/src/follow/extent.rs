//! How far a span of a source goes.

use tidings_model::{LogId, Position};

use crate::log::{Logs, ReadError, Record, Span, StoreError};

/// What a source has after a cursor: some records, and where the cursor is when they are delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Position of the last record. Without records: the last position of the span that is known to have none.
    pub through: Position,
    /// The records in order. None when all of them are trimmed.
    pub records: Vec<Record>,
}

/// Reads what a source has in a span, which begins at a cursor. None when the source ends before it, or has gone. Records
/// that were trimmed are passed over: whoever has to deliver them keeps them from being trimmed.
pub async fn read_extent<L: Logs + ?Sized>(
    logs: &L,
    source: LogId,
    span: Span,
) -> Result<Option<Extent>, StoreError> {
    let page = match logs.read(source, span).await {
        Ok(page) => page,
        Err(ReadError::NoSuchLog(_)) => return Ok(None),
        Err(ReadError::Trimmed { floor, .. }) => {
            return Ok(Some(Extent { through: floor.min(span.through), records: Vec::new() }));
        }
        Err(ReadError::Store(error)) => return Err(error),
    };
    if span.after >= page.status.tail {
        return Ok(None);
    }
    // Without records there is nothing up to the end of the span.
    let through = page.records.last().map_or(span.through.min(page.status.tail), |last| last.position);
    Ok(Some(Extent { through, records: page.records }))
}
