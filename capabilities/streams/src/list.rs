//! Which streams there are.

use tidings_model::{ProjectId, StreamId};

use crate::streams::Usable;
use crate::{Found, Owner, StreamError, Streams};

/// Which streams to list.
#[derive(Clone, Debug)]
pub struct ListRequest {
    /// Of this project.
    pub project: ProjectId,
    /// Those whose ids begin so.
    pub prefix: String,
    /// Those whose ids sort after this one.
    pub after: Option<StreamId>,
    /// Of these owners.
    pub owners: &'static [Owner],
    /// So many at most.
    pub limit: usize,
}

/// Streams in the order of their ids.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The streams.
    pub streams: Vec<(StreamId, Found)>,
    /// After which id to go on; none when that was all.
    pub next: Option<StreamId>,
}

/// How often one listing goes on behind streams that have ended and are not swept up yet. Then it gives what it has.
const STRETCHES: usize = 16;

impl Streams {
    /// Streams that can be used, in the order of their ids. Does not renew them.
    pub async fn list(&self, request: &ListRequest) -> Result<Listing, StreamError> {
        let mut streams = Vec::new();
        let mut after = request.after.clone();
        for _ in 0..STRETCHES {
            // One more than is asked for tells whether there is more.
            let wanted = request.limit + 1 - streams.len();
            let stretch = self.store.list(&request.project, &request.prefix, after.as_ref(), wanted).await?;
            let complete = stretch.len() < wanted;
            after = stretch.last().map(|(id, _)| id.clone());
            let usable = |(_, found): &(StreamId, Found)| {
                request.owners.contains(&found.stream.owner)
                    && matches!(self.usable(&found.stream), Usable::Yes)
            };
            streams.extend(stretch.into_iter().filter(usable));
            if streams.len() > request.limit {
                streams.truncate(request.limit);
                let next = streams.last().map(|(id, _)| id.clone());
                return Ok(Listing { streams, next });
            }
            if complete {
                return Ok(Listing { streams, next: None });
            }
        }
        Ok(Listing { streams, next: after })
    }
}
