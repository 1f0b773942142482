//! Messages as events: what is appended to a stream is entered into the journal of its project.
//!
//! Each message of a client is one event `stream.<id>`. The references in the stream of a session are none, because the
//! messages were events when they were appended to the source; neither is what a fork inherits.

use bytes::Bytes;
use tidings_engine::journal::{Described, Entry, event_type};
use tidings_engine::log::{Commit, CommitError, Committed};

use crate::{Owner, Stream, StreamKey, Streams};

/// Source of the events of streams, and the field that holds the stream's id.
pub const SOURCE: &str = "stream";

impl Streams {
    /// Makes a commit whose operation number `append` may append messages to the stream. If somebody hears the
    /// project's streams, the commit gets an entry in the journal; its outcomes are left out.
    pub async fn commit_append<C, R, F>(
        &self,
        key: &StreamKey,
        stream: &Stream,
        commit: Commit<C>,
        append: usize,
        make: impl Fn(Commit<C>) -> F,
    ) -> Result<Committed, CommitError<R>>
    where
        C: Clone,
        R: std::error::Error + 'static,
        F: Future<Output = Result<Committed, CommitError<R>>>,
    {
        match stream.owner {
            Owner::Session => make(commit).await,
            Owner::Clients => {
                let describe = |payloads: &[Bytes]| entry(key, stream, payloads);
                self.journals.commit(&key.project, SOURCE, commit, append, describe, make).await
            }
        }
    }
}

fn entry<'a>(key: &'a StreamKey, stream: &'a Stream, payloads: &[Bytes]) -> Entry<'a> {
    let event_type: std::sync::Arc<str> = event_type(SOURCE, key.id.as_str(), None).into();
    let described =
        |payload: &Bytes| Described { event_type: event_type.clone(), skip: 0, bytes: payload.len() as u64 };
    Entry {
        field: SOURCE,
        name: key.id.as_str(),
        content_type: stream.content_type.as_str(),
        messages: payloads.iter().map(described).collect(),
    }
}
