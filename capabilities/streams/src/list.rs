//! Listing the streams of a project.

use tidings_model::{ProjectId, StreamId};

use crate::streams::Usable;
use crate::{Found, Owner, StreamError, Streams};

/// A request to list streams.
#[derive(Clone, Debug)]
pub struct ListRequest {
    /// The project.
    pub project: ProjectId,
    /// List only ids with this prefix.
    pub prefix: String,
    /// List only ids that sort after this one.
    pub after: Option<StreamId>,
    /// List only streams of these owners.
    pub owners: &'static [Owner],
    /// Maximum number of streams in the result.
    pub limit: usize,
}

/// A page of streams, in the order of their ids.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The streams of the page.
    pub streams: Vec<(StreamId, Found)>,
    /// The id after which the next page begins; `None` on the last page.
    pub next: Option<StreamId>,
}

/// Maximum number of store queries per page. More than one is needed to skip streams that have ended but are
/// not removed.
const QUERIES_PER_PAGE: usize = 16;

impl Streams {
    /// Lists usable streams, in the order of their ids. Does not renew them.
    pub async fn list(&self, request: &ListRequest) -> Result<Listing, StreamError> {
        let mut streams = Vec::new();
        let mut after = request.after.clone();
        for _ in 0..QUERIES_PER_PAGE {
            // One more than requested, to know whether there is another page.
            let wanted = request.limit + 1 - streams.len();
            let found = self.store.list(&request.project, &request.prefix, after.as_ref(), wanted).await?;
            let complete = found.len() < wanted;
            after = found.last().map(|(id, _)| id.clone());
            let usable = |(_, found): &(StreamId, Found)| {
                request.owners.contains(&found.stream.owner)
                    && matches!(self.usable(&found.stream), Usable::Yes)
            };
            streams.extend(found.into_iter().filter(usable));
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
