//! Reading the records of a source after its cursor.

use tidings_model::{LogId, Position};

use crate::log::{Logs, ReadError, Record, Span, StoreError};

/// Records of a source after a cursor, and the position of the cursor once they are delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Position of the last record. Without records: the last position of the span that is known to have none.
    pub through: Position,
    /// Records in order. Empty when all of them are trimmed.
    pub records: Vec<Record>,
}

/// Reads the records of a source in a span that begins at a cursor. Returns `None` when the cursor is at the tail, or
/// when the source no longer exists. Trimmed records are skipped: a capability that must deliver them holds them back
/// from trimming.
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
    // Without records, the span is empty up to its end or the tail.
    let through = page.records.last().map_or(span.through.min(page.status.tail), |last| last.position);
    Ok(Some(Extent { through, records: page.records }))
}
