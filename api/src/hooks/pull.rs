//! `/v1/{project}/hooks/{hook}/events`: the queue of a hook as a stream, for consumers that no webhook can reach.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use tidings_auth::{Action, Pass, Resource};
use tidings_engine::deliver::Encode;
use tidings_hooks::HookId;
use tidings_hooks::pull::Begin;
use tidings_model::ProjectId;
use tidings_streams::{ContentType, From as Start};

use super::described::HookRefusals;
use super::project::hook_id;
use crate::credential::Caller;
use crate::document::ErrorAnswer;
use crate::document::params::{HookParam, ProjectParam};
use crate::error::ApiError;
use crate::live::{FeedOptions, Transport};
use crate::path::Segments;
use crate::sse::{self, Sse};
use crate::streams::{Bodies, ReadBounds, put_bounds};
use crate::wire::payload;
use crate::wire::query::{Live, ReadQuery};
use crate::{Api, long_poll};

const JSON: &str = "application/json";

/// Read the queue of a hook: stored deliveries, or deliveries as they are queued. Reading does not affect them.
#[utoipa::path(
    get,
    path = "/v1/{project}/hooks/{hook}/events",
    tag = "hooks",
    operation_id = "pull_events",
    params(
        ProjectParam,
        HookParam,
        ("offset" = Option<String>, Query, description = "Offset to read from: `-1` (the beginning), `now` (the tail), or an offset from an earlier response."),
        ("live" = Option<String>, Query, description = "How to wait for new deliveries: `long-poll` or `sse`. Default: do not wait."),
        ("cursor" = Option<String>, Query, description = "`Stream-Cursor` of the previous response."),
        ("Last-Event-ID" = Option<String>, Header, description = "Offset of the last event received, sent by browsers when they reconnect."),
    ),
    responses(
        (status = 200, description = "A JSON array of deliveries, each `{deliveryId, id, type, ts, payload}`, or server-sent events with such arrays if `live=sse`.", content_type = "*/*", body = serde_json::Value, headers(
            ("stream-next-offset" = String, description = "Offset from which to continue reading."),
            ("stream-up-to-date" = String, description = "`true` if the response reaches the tail."),
            ("stream-cursor" = String, description = "Value to send as `cursor` with the next long-poll."),
        )),
        (status = 204, description = "The long-poll timed out without new deliveries."),
        (status = 410, description = "`offset_trimmed`: deliveries after the offset were removed by clean-up.", body = ErrorAnswer),
        HookRefusals,
    )
)]
pub async fn pull(
    State(api): State<Api>,
    Segments((project, id)): Segments<(String, String)>,
    caller: Caller,
    query: ReadQuery,
    mut request: Request,
) -> Result<Response, ApiError> {
    let project = ProjectId::parse(&project)?;
    let pass = caller.may_in(&project, Action::ReadHooks, Resource::Project).await?;
    let queue = Queue { api: &api, project: &project, id: hook_id(&id)?, begin: begin(query.from) };
    match query.live {
        Live::No => queue.catch_up().await,
        Live::LongPoll => queue.long_poll(query.cursor, &pass).await,
        Live::Sse => queue.follow(query.cursor, Transport::of(&mut request), pass).await,
        Live::WebSocket => Err(ApiError::bad_request(
            "invalid_live",
            "the events of a hook can be read by `long-poll` or `sse`",
        )),
    }
}

fn begin(from: Start) -> Begin {
    match from {
        Start::Start => Begin::Oldest,
        Start::After(position) => Begin::After(position),
        Start::Tail => Begin::Tail,
    }
}

/// The queue that a request reads.
struct Queue<'a> {
    api: &'a Api,
    project: &'a ProjectId,
    id: HookId,
    begin: Begin,
}

impl Queue<'_> {
    async fn catch_up(&self) -> Result<Response, ApiError> {
        let pulled = self.api.hooks.pull(Some(self.project), self.id, self.begin).await?;
        let bounds = ReadBounds { next: pulled.next, up_to_date: pulled.up_to_date, closed: false };
        Ok((head(bounds), payload::body(&pulled.records, true)).into_response())
    }

    async fn long_poll(&self, asked: Option<u64>, pass: &Pass) -> Result<Response, ApiError> {
        let api = self.api;
        let encode = Arc::new(Bodies { json: true, encoded: api.live.live_connections.encoded().clone() });
        let listening = api.hooks.listen(Some(self.project), self.id, self.begin, "body", encode, 0);
        let mut subscription = listening.await?;
        let Some(frame) = long_poll::wait(api, pass, &mut subscription).await? else {
            // It has ended: whoever reads it now is told how.
            return self.catch_up().await;
        };
        let mut headers = head(ReadBounds::from(&frame));
        if let Some(nothing) = long_poll::finish(api, asked, &frame, &mut headers) {
            return Ok(nothing);
        }
        Ok((headers, frame.bytes.joined()).into_response())
    }

    async fn follow(
        &self,
        asked: Option<u64>,
        transport: Transport,
        pass: Pass,
    ) -> Result<Response, ApiError> {
        let api = self.api;
        let clock = api.streams.clock().clone();
        let framing = transport.framing();
        let stamp = asked.map_or(0, |cursor| cursor.saturating_add(1));
        let json = ContentType::parse(JSON).expect("a content type");
        let encoded = api.live.live_connections.encoded().clone();
        let encode: Arc<dyn Encode> = Arc::new(Sse::new(&json, framing, clock.clone(), encoded));
        let form = Sse::form(framing);
        let listening = api.hooks.listen(Some(self.project), self.id, self.begin, form, encode, stamp);
        let subscription = listening.await?;
        let options = api.streams.options();
        let options =
            FeedOptions::new(Some(options.sse_duration), options.slow_reader_timeout, pass, clock.now())?
                .counted(api.observe.sse_readers.hold());
        Ok(transport.events(sse::head(), &[], subscription, options, &api.live))
    }
}

/// Headers of a response with messages.
fn head(bounds: ReadBounds) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    put_bounds(&mut headers, bounds);
    headers
}
