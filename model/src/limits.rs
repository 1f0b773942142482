//! Limits of everything that a client can make grow.
//!
//! Limits that an operator may change are defaults here and keys in the configuration. A limit is a maximum
//! unless its name says otherwise. [`Limit`] names the ones that are counted in metrics.

use std::time::Duration;

/// Bytes of a project id.
pub const PROJECT_ID_BYTES: usize = 128;
/// Bytes of a stream id, after percent-decoding.
pub const STREAM_ID_BYTES: usize = 512;
/// Bytes of a `Producer-Id`.
pub const PRODUCER_ID_BYTES: usize = 256;
/// Largest epoch and sequence number of a producer: the largest integer that JavaScript represents exactly.
pub const PRODUCER_NUMBER_MAX: u64 = (1 << 53) - 1;
/// Producers that a log remembers. At the limit, those idle for [`PRODUCER_IDLE`] are forgotten; if there are
/// none, a new producer is refused.
pub const PRODUCERS_PER_LOG: usize = 10_000;
/// Time after which an idle producer may be forgotten when a log is at [`PRODUCERS_PER_LOG`].
pub const PRODUCER_IDLE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Bytes of a `Stream-Seq`.
pub const STREAM_SEQUENCE_BYTES: usize = 1024;
/// Bytes of a stream's content type.
pub const CONTENT_TYPE_BYTES: usize = 256;
/// Bytes of the body of an append.
pub const APPEND_BYTES: usize = 8 * 1024 * 1024;
/// Messages in one append; in JSON mode each element of an array is a message.
pub const MESSAGES_PER_APPEND: usize = 100_000;
/// Target logs of one reference in a commit. A larger fan-out is split into several commits, each of which
/// advances the fan-out's cursor.
pub const TARGETS_PER_COMMIT: usize = 4096;
/// Bytes of the key of a cold row.
pub const ROW_KEY_BYTES: usize = 1024;
/// Bytes of the value of a cold row.
pub const ROW_VALUE_BYTES: usize = 8 * 1024 * 1024;
/// Bytes of payload in the response to a read. A single larger record is still returned whole.
pub const READ_CHUNK_BYTES: usize = 256 * 1024;
/// Records in the response to a read.
pub const READ_CHUNK_RECORDS: usize = 16 * 1024;
/// Streams in the response to a list request.
pub const LISTED_STREAMS: usize = 1000;
/// Streams in the response to a list request that sets no limit.
pub const LISTED_STREAMS_DEFAULT: usize = 100;
/// Characters of the code of a type of entities.
pub const ENTITY_CODE_CHARS: usize = 100;
/// Characters of the id of an entity.
pub const ENTITY_ID_CHARS: usize = 128;
/// Bytes of a cursor of changes of entities, which may name every transaction that was open in a database.
pub const ENTITY_CURSOR_BYTES: usize = 8 * 1024;
/// Bytes of a message of a client that watches entities.
pub const ENTITY_MESSAGE_BYTES: usize = 2 * 1024 * 1024;
/// Characters of the `requestId` of such a message.
pub const ENTITY_REQUEST_ID_CHARS: usize = 128;
/// Time in which a client that watches entities sends its token, if that is its first message.
pub const ENTITY_AUTH_TIMEOUT: Duration = Duration::from_secs(5);
/// Changes of entities that one request publishes.
pub const ENTITY_CHANGES_PER_POST: usize = 10_000;
/// Bytes of a request that publishes changes of entities.
pub const ENTITY_CHANGES_BYTES: usize = 8 * 1024 * 1024;
/// Time in which a callback says which entities a user may watch, waiting for a connection included.
pub const ENTITY_CALLBACK_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of the answer of such a callback.
pub const ENTITY_CALLBACK_BYTES: usize = 4 * 1024 * 1024;
/// Such callbacks that are asked at a time.
pub const ENTITY_CALLBACKS: usize = 64;
/// Ids of one subscribe to entities, unless configured otherwise.
pub const ENTITY_IDS_PER_SUBSCRIBE: usize = 10_000;
/// Subscriptions to entities of one connection, unless configured otherwise. As many changes wait for a slow client.
pub const ENTITY_SUBSCRIPTIONS_PER_CONNECTION: usize = 50_000;
/// Connections of one user that watch entities, unless configured otherwise.
pub const ENTITY_CONNECTIONS_PER_USER: usize = 20;
/// Changes that are read to bring one subscribe up to date. A client that has missed more has to fetch everything again.
pub const ENTITY_REPLAY: usize = 100_000;
/// Subscribes of one project that are brought up to date at a time.
pub const ENTITY_REPLAYS: usize = 8;
/// Connections of one project for which an authoriser is asked again at a time, because access to an entity has changed.
pub const ENTITY_REVIEWS: usize = 16;
/// Interval of heartbeats to clients that watch entities, unless configured otherwise.
pub const ENTITY_HEARTBEAT: Duration = Duration::from_secs(15);
/// Time that a client that watches entities may take nothing, unless configured otherwise.
pub const ENTITY_STALL: Duration = Duration::from_secs(60);
/// Time from the expiry of the token of such a client to the close, unless configured otherwise.
pub const ENTITY_TOKEN_GRACE: Duration = Duration::from_secs(10);
/// Time for which changes of entities are kept for clients that come back, unless configured otherwise.
pub const ENTITY_SINCE_WINDOW: Duration = Duration::from_secs(15 * 60);
/// Length of a chain of forks.
pub const FORK_DEPTH: usize = 256;
/// Streams that a session subscribes to.
pub const SOURCES_PER_SESSION: usize = 1024;
/// Former sources of a session whose record format is remembered for as long as their records can be read, in
/// addition to [`SOURCES_PER_SESSION`]. A session that has reached the sum of both cannot subscribe to
/// another stream.
pub const LEFT_PER_SESSION: usize = 1024;
/// Sessions of a project, unless the operator sets another number.
pub const SESSIONS_PER_PROJECT: usize = 1_000_000;
/// Streams that one commit ends when a project is removed or streams expire.
pub const ENDED_PER_COMMIT: usize = 1024;
/// Sessions that one change detaches from ended sources. A source ends for all sessions at once, however many
/// rows still name it.
pub const DETACHED_PER_CHANGE: usize = 64;
/// Sessions that subscribe to one stream.
pub const SUBSCRIBERS_PER_SOURCE: usize = 1_000_000;
/// Times that a subscription may switch envelopes on or off. Delivered records keep their format, so each
/// switch is stored for as long as the subscription; further ones are refused.
pub const ENVELOPE_CHANGES: usize = 128;
/// Sources whose failed deliveries are remembered in memory by circuit breakers.
pub const BREAKERS: usize = 100_000;
/// Bytes of the body of a subscribe or unsubscribe request.
pub const SUBSCRIBE_BODY_BYTES: usize = 16 * 1024;
/// Bytes of a room id.
pub const ROOM_ID_BYTES: usize = 256;
/// Bytes of a user id in rooms.
pub const MEMBER_ID_BYTES: usize = 256;
/// Bytes of a device id.
pub const DEVICE_ID_BYTES: usize = 256;
/// Members of a room.
pub const MEMBERS_PER_ROOM: usize = 100_000;
/// Members in the response to a list request; also the default.
pub const LISTED_MEMBERS: usize = 1000;
/// Rooms that one commit removes with their project, as long as they have no more than [`MEMBERS_PER_ROOM`]
/// members in total.
pub const ROOMS_PER_REMOVAL: usize = 1000;
/// Devices of a user whose read position in a room is stored. Beyond that, the one that reported longest ago
/// is forgotten.
pub const DEVICES_PER_MEMBER: usize = 64;
/// Events in one write to a room.
pub const EVENTS_PER_WRITE: usize = 1000;
/// Bytes of the body of a request that changes the members of a room; enough for [`MEMBERS_PER_ROOM`].
pub const MEMBERS_BODY_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of the body of a request that marks a room as seen.
pub const SEEN_BODY_BYTES: usize = 16 * 1024;
/// Bytes of the payload of an event.
pub const EVENT_PAYLOAD_BYTES: usize = 16 * 1024;
/// Ephemeral events (typing) of a room that are kept until live readers have received them. The oldest are
/// dropped first.
pub const TYPING_PER_ROOM: usize = 64;
/// Time that an ephemeral event is kept.
pub const TYPING_KEPT: Duration = Duration::from_secs(10);
/// Bytes of encoded events that are kept for live readers of one room that lag behind.
pub const ROOM_RING_BYTES: usize = 2 * 1024 * 1024;
/// Rooms whose next position is held in memory. Idle ones are evicted for others.
pub const ACTIVE_ROOMS: usize = 100_000;
/// Reactions of a room that are hidden because later ones made them redundant, until they expire. Beyond
/// that, redundant reactions stay visible.
pub const COLLAPSED_PER_ROOM: usize = 100_000;
/// Distinct pairs of actor and message that one search for redundant reactions tracks.
pub const COLLAPSE_KEYS: usize = 250_000;
/// Responses of rooms to producers' requests that are remembered for repeats. Older ones are looked up in the
/// log.
pub const REMEMBERED_ANSWERS: usize = 50_000;
/// Events that are searched, newest first, for the response to a repeated request.
pub const REPEAT_SEARCH_EVENTS: usize = 50_000;
/// Read receipts that are held in memory before they are written.
pub const PENDING_RECEIPTS: usize = 100_000;
/// Live readers that one user has in the rooms of a project.
pub const ROOM_STREAMS_PER_USER: usize = 50;
/// Readers whose disconnection for being slow is remembered.
pub const COOL_DOWNS: usize = 100_000;
/// Readers for which it is remembered that events they missed are no longer kept, to tell them when they
/// reconnect.
pub const COMPACTED_MARKS: usize = 100_000;
/// Bytes of a pattern.
pub const PATTERN_BYTES: usize = 512;
/// Segments of a pattern.
pub const PATTERN_SEGMENTS: usize = 64;
/// Steps that are taken to tell whether a pattern covers another; a step takes some tens of nanoseconds.
pub const PATTERN_COVER_STEPS: usize = 2048;
/// Upper bound of the nodes of an index of patterns that one name can lead to, above which patterns with wildcards are
/// refused.
pub const PATTERN_COMPLEXITY: u32 = 50_000;
/// Minimum bytes of a key that an operator chooses; shorter ones could be guessed.
pub const KEY_BYTES_MIN: usize = 16;
/// Bytes of a key.
pub const KEY_BYTES_MAX: usize = 1024;
/// API keys that the configuration may give.
pub const API_KEYS: usize = 1000;
/// Bytes of a token.
pub const TOKEN_BYTES: usize = 8 * 1024;
/// Globs in one claim of a token.
pub const GLOBS_PER_CLAIM: usize = 256;
/// Bytes of the user id in a token.
pub const USER_ID_BYTES: usize = 512;
/// Bytes of the id of a token.
pub const TOKEN_ID_BYTES: usize = 512;
/// Revocations of a project.
pub const REVOCATIONS_PER_PROJECT: usize = 100_000;
/// Patterns of topics that are revoked of one user or token, and patterns in one revocation.
pub const REVOKED_TOPICS: usize = 256;
/// Time for which a revocation is kept. Tokens should not live longer.
pub const REVOCATION_LIFETIME: Duration = Duration::from_secs(400 * 24 * 60 * 60);
/// Revocations that wait to be told to other nodes one by one; beyond that, nodes compare all that they have.
pub const REVOCATIONS_UNSENT: usize = 64;
/// Bytes of a message with revocations for other nodes. Every bus carries it.
pub const REVOCATIONS_MESSAGE_BYTES: usize = 4 * 1024;
/// Revocations that are looked at at once for other nodes.
pub const REVOCATIONS_PAGE: usize = 1024;
/// Time that the clock of another node may be ahead; a revocation of a later moment is not taken over.
pub const REVOCATION_AHEAD: Duration = Duration::from_secs(60 * 60);
/// Pause before nodes compare their revocations again, after the bus has failed.
pub const REVOCATIONS_RETRY: Duration = Duration::from_secs(5);
/// Default lifetime of a token.
pub const TOKEN_TTL: Duration = Duration::from_secs(60 * 60);
/// Projects that are stored.
pub const PROJECTS: usize = 100_000;
/// Keys of a project.
pub const KEYS_PER_PROJECT: usize = 16;
/// Allowed origins of a project, and globs of its public streams.
pub const CONFIG_ENTRIES: usize = 256;
/// Bytes of an origin.
pub const ORIGIN_BYTES: usize = 512;
/// Bytes of the body of an administrative request.
pub const ADMIN_BODY_BYTES: usize = 256 * 1024;
/// Open connections of a server. Beyond that, the connection that has been idle longest is closed; if none is
/// idle, requests on the new one are answered 503.
pub const CONNECTIONS: usize = 50_000;
/// Connections beyond [`CONNECTIONS`] that are still accepted, so that `/health` works and others are
/// answered 503.
pub const CONNECTIONS_RESERVED: usize = 32;
/// File descriptors that are not used for connections: for the store's files, including merges and
/// checkpoints, [`CONNECTIONS_RESERVED`] and [`METRICS_CONNECTIONS`]. If the process may have less than twice
/// as many, connections get half.
pub const DESCRIPTORS_RESERVED: usize = 256;
/// Time that an idle connection may take to close when it makes room for another, so that HTTP/2 can send
/// GOAWAY.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes that the kernel buffers for a client that does not read.
pub const SOCKET_UNSENT_BYTES: u32 = 128 * 1024;
/// Open connections of the metrics listener.
pub const METRICS_CONNECTIONS: usize = 64;
/// Time until the head of a connection's first request must be complete, including the TLS handshake and the
/// HTTP/2 preface.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a connection may have no request. The head of a further request must be complete within it, too.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// Time that a client may read nothing of a response. Live responses have [`SLOW_READER_TIMEOUT`] instead.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a request's head: request line and headers.
pub const HEADER_BYTES: usize = 16 * 1024;
/// Bytes of a request's path and query.
pub const URI_BYTES: usize = 8 * 1024;
/// Memory for the bodies of all requests in progress, in bytes. Beyond it requests are answered 503.
pub const BODY_BYTES_IN_FLIGHT: usize = 256 * 1024 * 1024;
/// Divisor of [`BODY_BYTES_IN_FLIGHT`] that gives the share of one project.
pub const BODY_BYTES_PROJECT_PART: usize = 4;
/// Time without a byte of the body after which a request is given up.
pub const BODY_STALL: Duration = Duration::from_secs(10);
/// Time that a body may take whatever its size.
pub const BODY_GRACE: Duration = Duration::from_secs(30);
/// Minimum average rate of a body after [`BODY_GRACE`], in bytes per second since its beginning.
pub const BODY_BYTES_PER_SECOND_MIN: u64 = 4096;
/// Bytes of a refused request's body that are read and discarded, so that the client sees the response. More
/// than [`APPEND_BYTES`], so that this also holds for a body that is a little too large.
pub const DISCARD_BYTES: usize = 16 * 1024 * 1024;
/// Time that the body of a refused request is read and discarded.
pub const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);
/// Requests of one project per second; 0 is unlimited.
pub const REQUESTS_PER_SECOND: u32 = 0;
/// Projects whose requests are counted separately. Busy projects beyond that share one count.
pub const RATE_BUCKETS: usize = 10_000;
/// Bytes of a request id that is accepted from a client.
pub const REQUEST_ID_BYTES: usize = 128;
/// Concurrent requests on an HTTP/2 connection.
pub const HTTP2_STREAMS: u32 = 256;
/// Bytes that a client may send on one HTTP/2 stream before they are read.
pub const HTTP2_STREAM_WINDOW: u32 = 256 * 1024;
/// Bytes that a client may send on all streams of an HTTP/2 connection before they are read; this bounds the
/// memory for bodies that nobody reads.
pub const HTTP2_CONNECTION_WINDOW: u32 = 512 * 1024;
/// HTTP/2 streams that a client may reset before they were handled. Beyond that the connection is closed.
pub const HTTP2_PENDING_RESETS: usize = 32;
/// Bytes of a response that are buffered for one HTTP/2 stream.
pub const HTTP2_SEND_BYTES: usize = 64 * 1024;
/// Time that a client may take to answer an HTTP/2 ping.
pub const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval of HTTP/2 pings.
pub const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);
/// Bytes of encoded records that are kept for live readers of one log that lag behind.
pub const RING_BYTES: usize = 256 * 1024;
/// Encoded appends that are kept for live readers of one log that lag behind, however small.
pub const RING_FRAMES: usize = 64 * 1024;
/// Bytes of broadcast frames of one name that may be published before their receivers are charged for being
/// behind. Beyond that the publisher charges them itself.
pub const BROADCAST_UNCHARGED_BYTES: u64 = 64 * 1024;
/// Bytes of broadcast frames of one name that are kept before it is worth looking for those that everybody has
/// received.
pub const BROADCAST_REVIEW_BYTES: u64 = 64 * 1024;
/// Bytes of replies that a WebSocket client has not taken, beyond which nothing more is read from it.
pub const REPLIES_BYTES: usize = 256 * 1024;
/// Bytes that a live reader that lags behind the ring reads from the log at a time. A single larger record is
/// read whole.
pub const OWN_READ_BYTES: usize = 32 * 1024;
/// Bytes of encoded records that are shared by live readers of several sessions. A single larger append is
/// kept whole, with half of this for others.
pub const SHARED_BYTES: usize = 4 * 1024 * 1024;
/// Minimum bytes of a record that is shared in this way. Encoding smaller ones for each reader costs no more
/// than a lookup and a second write.
pub const SHARED_RECORD_BYTES: usize = 1024;
/// Time that a live reader may read nothing of its pending data before it is disconnected.
pub const SLOW_READER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a live reader may take to receive the reason of its disconnection.
pub const FINAL_TEXTS_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a live reader whose access was revoked may take to receive the reason.
pub const REVOKED_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes that are read from a client after it was refused.
pub const REFUSED_BYTES: usize = 64 * 1024;
/// Bytes that are sent to one live reader before others get their turn.
pub const SEND_BYTES: usize = 256 * 1024;
/// Bytes of a message from a client on a WebSocket whose messages are ignored.
pub const UNHEARD_MESSAGE_BYTES: usize = 4 * 1024;
/// Time that a message from a client may take on a WebSocket whose messages are ignored.
pub const UNHEARD_MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Live readers of one stream.
pub const READERS_PER_STREAM: usize = 10_000;
/// Time that a long-poll waits at the tail.
pub const LONG_POLL_TIMEOUT: Duration = Duration::from_secs(4);
/// Duration of an SSE response; then the client must reconnect.
pub const SSE_DURATION: Duration = Duration::from_secs(60);
/// Subprotocols that a WebSocket client may offer.
pub const WEBSOCKET_PROTOCOLS: usize = 32;
/// Bytes of payload in a WebSocket frame from a client.
pub const WEBSOCKET_FRAME_BYTES: usize = 1024 * 1024;
/// Bytes of a WebSocket message from a client, all fragments together.
pub const WEBSOCKET_MESSAGE_BYTES: usize = 1024 * 1024;
/// Frames of a WebSocket message.
pub const WEBSOCKET_FRAGMENTS: u32 = 16 * 1024;
/// Time that a WebSocket message may take from its first byte to its last.
pub const WEBSOCKET_MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a WebSocket client may take to answer a close frame.
pub const WEBSOCKET_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a WebSocket client may be silent before it is sent a ping.
pub const WEBSOCKET_PING_AFTER: Duration = Duration::from_secs(30);
/// Time that a WebSocket client may be silent before it is disconnected; longer than
/// [`WEBSOCKET_PING_AFTER`].
pub const WEBSOCKET_DEAD_AFTER: Duration = Duration::from_secs(60);

/// Characters of the type of a message on a topic, and of a correlation id.
pub const MESSAGE_TYPE_CHARS: usize = 128;
/// Bytes of a partition key.
pub const PARTITION_KEY_BYTES: usize = 256;
/// Topics that one request names, unless configured otherwise.
pub const TOPICS_PER_REQUEST: usize = 1000;
/// Segments of a topic for which the work of finding the patterns that match it is bounded: those of a topic of the default
/// length that has nothing but separators.
pub const TOPIC_SEGMENTS: usize = 129;
/// Topics that a connection subscribes to, unless configured otherwise.
pub const TOPICS_PER_CONNECTION: usize = 1000;
/// Subscriptions of all connections of a project to topics, unless configured otherwise. One to a topic that nobody else
/// subscribes to takes about 0.7 KB.
pub const SUBSCRIPTIONS_PER_PROJECT: usize = 5_000_000;
/// Bytes of a WebSocket message from a client of topics, unless configured otherwise.
pub const TOPIC_FRAME_BYTES: usize = 1_114_112;
/// Bytes of the payload of a message on a topic, unless configured otherwise.
pub const TOPIC_PAYLOAD_BYTES: usize = 1024 * 1024;
/// Frames of a connection of topics: size of the token bucket and its rate per second, unless configured otherwise.
pub const TOPIC_FRAMES_PER_SECOND: u32 = 10_000;
/// Frames in a row that a client of topics may send without one that is understood, unless configured otherwise.
pub const BAD_FRAMES: u32 = 100;
/// Requests of one connection of topics that wait for something. Beyond that nothing more is read from it.
pub const TOPIC_REQUESTS_IN_FLIGHT: usize = 64;
/// Bytes that a client of topics may be behind, unless configured otherwise.
pub const SLOW_CONSUMER_BYTES: u64 = 1024 * 1024;
/// Time for which a client of topics may accept nothing, unless configured otherwise.
pub const SLOW_CONSUMER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which the reason of its end is offered to a client of topics, unless configured otherwise.
pub const CLOSE_GRACE: Duration = Duration::from_secs(5);
/// Interval of pings to a silent client of topics, unless configured otherwise.
pub const TOPIC_HEARTBEAT: Duration = Duration::from_secs(25);
/// Silence after which a client of topics is disconnected, unless configured otherwise.
pub const TOPIC_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which a node of a cluster that is silent is taken to be gone, unless configured otherwise.
pub const TOPIC_PRESENCE_TTL: Duration = Duration::from_secs(30);
/// Time after which a subscription to a topic may end that is not repeated, in milliseconds: a week.
pub const TOPIC_TTL_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1000;
/// Topics of a project that have a history.
pub const HISTORIES_PER_PROJECT: usize = 100_000;
/// Bytes of what a member of a topic says of itself.
pub const PRESENCE_INFO_BYTES: usize = 1024;
/// Members of a topic that are listed at once; all are counted.
pub const PRESENCE_LISTED: usize = 1000;
/// Messages of a topic that its history keeps, at most.
pub const HISTORY_MESSAGES: u64 = 1_000_000;
/// Messages that one request for a history returns.
pub const HISTORY_PAGE: usize = 1000;
/// Bytes of messages that one request for a history returns, and that a replay queues at once.
pub const HISTORY_PAGE_BYTES: usize = 256 * 1024;
/// Rules for topics in the configuration.
pub const TOPIC_RULES: usize = 100;
/// Time that a request on topics may allow for itself, in milliseconds.
pub const TOPIC_REQUEST_MS_MAX: u64 = 60_000;
/// Bytes of the name of a channel of the bus between nodes.
pub const BUS_CHANNEL_BYTES: usize = 20 * 1024;
/// Bytes of a message on the bus between nodes, if the broker does not take less.
pub const BUS_MESSAGE_BYTES: usize = 65 * 1024 * 1024;
/// Bytes of messages that wait to be sent to the broker of the bus.
pub const BUS_QUEUE_BYTES: usize = 64 * 1024 * 1024;
/// Messages that wait to be sent to the broker of the bus.
pub const BUS_QUEUE_MESSAGES: usize = 65_536;
/// Messages that were sent to the broker of the bus and not yet accepted.
pub const BUS_UNANSWERED: usize = 16_384;
/// Other nodes on the bus that a node knows something of.
pub const BUS_NODES: usize = 1024;
/// Projects whose topics stay known to the node, and to the bus, while nobody is connected to them.
pub const TOPIC_HUBS_KEPT: usize = 64;
/// Bytes of messages from the bus that wait to be delivered to the topics of a project.
pub const BUS_ARRIVALS_BYTES: usize = 8 * 1024 * 1024;

/// Bytes of an event type.
pub const EVENT_TYPE_BYTES: usize = 128;
/// Segments of an event type, and of a hook's pattern.
pub const EVENT_TYPE_SEGMENTS: usize = 10;
/// Bytes of a hook's pattern.
pub const HOOK_PATTERN_BYTES: usize = 256;
/// Whole-segment wildcards that a hook's pattern may have even if they are most of its segments.
pub const HOOK_PATTERN_WILDCARDS: usize = 5;
/// Bytes of the headers that one append may add to the journal of its project: 200 for each of the most messages.
pub const JOURNAL_ENTRY_BYTES: usize = 200 * MESSAGES_PER_APPEND;
/// Bytes of headers for journals that may be in memory and not committed.
pub const JOURNAL_BYTES_IN_FLIGHT: usize = 4 * JOURNAL_ENTRY_BYTES;
/// Events of one ingest request.
pub const INGEST_EVENTS: usize = 1000;
/// Bytes of the body of an ingest request.
pub const INGEST_BYTES: usize = 1024 * 1024;
/// Bytes of one ingested event.
pub const INGEST_EVENT_BYTES: usize = 10 * 1024;
/// Invalid events of an ingest request that are told one by one.
pub const INGEST_DETAILS: usize = 10;
/// Bytes of the time of an ingested event.
pub const EVENT_TIME_BYTES: usize = 64;
/// Bytes of an event id or batch id.
pub const EVENT_ID_BYTES: usize = 256;
/// Age of the oldest timestamp that an ingested event may have.
pub const EVENT_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Time by which the timestamp of an ingested event may lie in the future.
pub const EVENT_AHEAD_MAX: Duration = Duration::from_secs(60 * 60);
/// Time for which a batch id is remembered.
pub const BATCH_ID_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Hooks of a project, unless configured otherwise.
pub const HOOKS_PER_PROJECT: usize = 1_000_000;
/// Matches of one ingest request above which matching is left to the follower.
pub const MATCHES_PER_INGEST: usize = 4096;
/// Deliveries that may wait for one hook, unless configured otherwise. The oldest above it become dead letters.
pub const HOOK_QUEUE: u64 = 1_000_000;
/// Deliveries of one hook that wait for a retry. Above it no new delivery of the hook is begun.
pub const HOOK_PARKED: usize = 10_000;
/// Deliveries of one hook that were begun or finished before an older one was finished.
pub const HOOK_WINDOW: usize = 1024;
/// Attempts of all hooks at a time, unless configured otherwise.
pub const HOOK_ATTEMPTS: usize = 1024;
/// Attempts of one destination (scheme, host, port) at a time.
pub const DESTINATION_ATTEMPTS: usize = 256;
/// Results of deliveries that are not recorded yet, beyond which no attempt begins. So many deliveries, and those in
/// flight, are made twice at most when the server is killed.
pub const HOOK_UNRECORDED: usize = 1024;
/// Bytes of messages that are being delivered by hooks at a time.
pub const HOOK_BYTES_IN_FLIGHT: usize = 64 * 1024 * 1024;
/// Characters of the name of a worker's method or binding.
pub const HOOK_NAME_BYTES: usize = 128;
/// Deliveries per second that a hook may name as its limit.
pub const HOOK_RATE_MAX: u32 = 1_000_000;
/// Attempts of a delivery that a hook may ask for.
pub const HOOK_RETRIES_MAX: u32 = 100;
/// Milliseconds that a hook may allow for an attempt.
pub const HOOK_TIMEOUT_MS_MAX: u32 = 300_000;
/// Entries of a hook's retry schedule.
pub const HOOK_SCHEDULE: usize = 100;
/// Delay of a retry in milliseconds that a schedule may ask for: seven days.
pub const HOOK_DELAY_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1000;
/// Custom headers of a hook.
pub const HOOK_HEADERS: usize = 32;
/// Bytes of all custom headers of a hook, names and values.
pub const HOOK_HEADER_BYTES: usize = 8 * 1024;
/// Conditions of a hook's filter.
pub const HOOK_CONDITIONS: usize = 32;
/// Bytes of a hook's filter as JSON.
pub const HOOK_FILTER_BYTES: usize = 8 * 1024;
/// Bytes of a JSON pointer in a filter or an ordering key.
pub const JSON_POINTER_BYTES: usize = 256;
/// Live readers of one hook's queue.
pub const HOOK_READERS: usize = 1000;
/// Replays of one hook that may be under way.
pub const HOOK_REPLAYS: usize = 16;
/// Bytes of a request body that creates or changes a hook.
pub const HOOK_BODY_BYTES: usize = 64 * 1024;
/// Bytes of an endpoint's response that are kept in the delivery log.
pub const HOOK_RESPONSE_BYTES: usize = 1024;
/// Longest time that `Retry-After` of an endpoint may ask for.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);
/// Entries of a page of hooks, deliveries or dead letters.
pub const HOOK_PAGE: usize = 1000;
/// Default number of entries of such a page.
pub const HOOK_PAGE_DEFAULT: usize = 100;
/// Bytes of events in a page of dead letters. A page ends after the event that exceeds it.
pub const HOOK_PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Hooks that are listed as matching an event type.
pub const HOOK_MATCHES: usize = 10_000;
/// Time for which the previous secret of a hook may sign beside the new one.
pub const HOOK_OVERLAP_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Default of that time.
pub const HOOK_OVERLAP: Duration = Duration::from_secs(24 * 60 * 60);

/// Bytes of the id of a subscription to streams.
pub const SUBSCRIPTION_ID_BYTES: usize = 256;
/// Subscriptions of a project to its streams, unless configured otherwise.
pub const STREAM_SUBSCRIPTIONS_PER_PROJECT: usize = 100_000;
/// Streams that one subscription can be linked to.
pub const LINKS_PER_SUBSCRIPTION: usize = 1_000_000;
/// Links of all subscriptions of a project. Each takes about 200 bytes of memory.
pub const LINKS_PER_PROJECT: usize = 2_000_000;
/// Streams that one request may name explicitly.
pub const SUBSCRIPTION_STREAMS: usize = 1000;
/// Links that one commit makes or removes.
pub const LINKS_PER_COMMIT: usize = 1024;
/// Segments with wildcards in the pattern of a subscription.
pub const SUBSCRIPTION_WILDCARDS: usize = 5;
/// Streams in one wake or claim. Further ones are for the next.
pub const WAKE_STREAMS: usize = 1000;
/// Bytes of messages that one wake brings, if its subscription asks for them.
pub const WAKE_PAYLOAD_BYTES: usize = 256 * 1024;
/// Acknowledgements in one request.
pub const SUBSCRIPTION_ACKS: usize = 10_000;
/// Bytes of the body of a request about a subscription.
pub const SUBSCRIPTION_BODY_BYTES: usize = 1024 * 1024;
/// Bytes of the description of a subscription.
pub const SUBSCRIPTION_DESCRIPTION_BYTES: usize = 1024;
/// Bytes of the name of a worker.
pub const WORKER_NAME_BYTES: usize = 256;
/// Shortest lease of a subscription, in milliseconds.
pub const SUBSCRIPTION_LEASE_MS_MIN: u64 = 1000;
/// Longest lease of a subscription, in milliseconds.
pub const SUBSCRIPTION_LEASE_MS_MAX: u64 = 600_000;
/// Lease of a subscription that does not say which, in milliseconds.
pub const SUBSCRIPTION_LEASE_MS: u64 = 30_000;
/// Failed attempts in a row after which a subscription is a dead letter, unless it says otherwise: those of about a day.
pub const SUBSCRIPTION_ATTEMPTS: u32 = 1440;
/// The most attempts that a subscription may ask for.
pub const SUBSCRIPTION_ATTEMPTS_MAX: u32 = 1_000_000;
/// Attempts at a time to wake workers, of all subscriptions, unless configured otherwise.
pub const WAKE_ATTEMPTS: usize = 1024;
/// Attempts at a time to one destination, unless configured otherwise.
pub const WAKE_ATTEMPTS_PER_DESTINATION: usize = 32;
/// Time for one webhook of a subscription; less if its lease is shorter.
pub const WAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of the answer to a webhook of a subscription that are looked at.
pub const WAKE_ANSWER_BYTES: usize = 16 * 1024;
/// Bytes of the reason of a failed attempt that are stored.
pub const WAKE_ERROR_BYTES: usize = 256;
/// Time for which the token of a wake or a claim is valid.
pub const WAKE_TOKEN_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Subscriptions, or streams of one, on a page.
pub const SUBSCRIPTION_PAGE: usize = 1000;

/// Bytes of the URL of an endpoint.
pub const TARGET_BYTES: usize = 2048;
/// Open connections to endpoints, unless configured otherwise. They take descriptors like those of clients do.
pub const EGRESS_SOCKETS: usize = 2048;
/// Open connections to one destination (scheme, host, port), unless configured otherwise.
pub const EGRESS_SOCKETS_PER_DESTINATION: usize = DESTINATION_ATTEMPTS;
/// Connections to endpoints that are kept open without a request, unless configured otherwise. All of them: they are closed
/// when others need their place, and opening one costs several times a request.
pub const EGRESS_IDLE: usize = EGRESS_SOCKETS;
/// Connections to one destination that are kept open without a request, unless configured otherwise.
pub const EGRESS_IDLE_PER_DESTINATION: usize = 64;
/// Time that a connection to an endpoint is kept open without a request.
pub const EGRESS_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to resolve the name of an endpoint, to connect to it and for the TLS handshake, together.
pub const EGRESS_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of the head of an endpoint's response.
pub const EGRESS_HEADER_BYTES: usize = 32 * 1024;
/// Headers of an endpoint's response.
pub const EGRESS_HEADERS: usize = 100;
/// Bytes of the body of an endpoint's response that are read. Beyond it the connection is closed.
pub const EGRESS_BODY_BYTES: usize = 64 * 1024;
/// Bytes that are received for one request, whatever they are: interim responses, framing and trailers, too.
pub const EGRESS_RECEIVED_BYTES: usize = 512 * 1024;
/// Time for which it is remembered what the name of an endpoint resolves to.
pub const RESOLVED_TTL: Duration = Duration::from_secs(30);
/// Names of endpoints for which it is remembered what they resolve to.
pub const RESOLVED_NAMES: usize = 10_000;
/// Addresses of an endpoint that are tried.
pub const RESOLVED_ADDRESSES: usize = 8;
/// Names that are being resolved at a time. As many again are for names that were resolved before.
pub const RESOLVING: usize = 32;

/// A limit that was reached, as counted in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// [`CONNECTIONS`]: an idle connection was closed for a new one, or a request was answered 503.
    Connections,
    /// [`HEAD_TIMEOUT`]: a connection was closed because it sent no complete request head.
    HeadTime,
    /// [`IDLE_TIMEOUT`]: a connection without a request was closed.
    IdleTime,
    /// [`WRITE_TIMEOUT`]: a connection was closed because its client read nothing of the response.
    WriteTime,
    /// [`HEADER_BYTES`].
    HeaderBytes,
    /// [`URI_BYTES`].
    UriBytes,
    /// [`APPEND_BYTES`], or the configured value.
    BodyBytes,
    /// [`BODY_BYTES_IN_FLIGHT`], or the configured value.
    BodyBytesInFlight,
    /// [`BODY_STALL`], [`BODY_GRACE`] and [`BODY_BYTES_PER_SECOND_MIN`].
    BodyTime,
    /// [`REQUESTS_PER_SECOND`].
    RequestsPerSecond,
    /// [`MESSAGES_PER_APPEND`].
    MessagesPerAppend,
    /// [`PRODUCERS_PER_LOG`].
    ProducersPerLog,
    /// [`READERS_PER_STREAM`].
    ReadersPerStream,
    /// [`FORK_DEPTH`].
    ForkDepth,
    /// [`SOURCES_PER_SESSION`].
    SourcesPerSession,
    /// [`SUBSCRIBERS_PER_SOURCE`].
    SubscribersPerSource,
    /// [`SESSIONS_PER_PROJECT`], or the configured value.
    SessionsPerProject,
    /// [`ENVELOPE_CHANGES`].
    EnvelopeChanges,
    /// [`MEMBERS_PER_ROOM`], or the configured value.
    MembersPerRoom,
    /// [`EVENTS_PER_WRITE`].
    EventsPerWrite,
    /// [`EVENT_PAYLOAD_BYTES`], or the configured value.
    EventBytes,
    /// [`ROOM_STREAMS_PER_USER`], or the configured value.
    StreamsPerUser,
    /// [`HOOKS_PER_PROJECT`], or the configured value.
    HooksPerProject,
    /// [`HOOK_REPLAYS`].
    ReplaysPerHook,
    /// The configured requests and events per minute and events per day that a project may ingest.
    IngestRate,
    /// [`STREAM_SUBSCRIPTIONS_PER_PROJECT`], or the configured value.
    StreamSubscriptionsPerProject,
    /// [`LINKS_PER_SUBSCRIPTION`] or [`LINKS_PER_PROJECT`].
    SubscriptionLinks,
    /// [`TOPICS_PER_CONNECTION`], or the configured value.
    TopicsPerConnection,
    /// [`SUBSCRIPTIONS_PER_PROJECT`], or the configured value.
    SubscriptionsPerProject,
    /// [`TOPICS_PER_REQUEST`], or the configured value.
    TopicsPerRequest,
    /// [`TOPIC_FRAME_BYTES`], or the configured value.
    TopicFrameBytes,
    /// [`TOPIC_PAYLOAD_BYTES`], or the configured value.
    TopicPayloadBytes,
    /// [`TOPIC_FRAMES_PER_SECOND`], or the configured values.
    TopicFrameRate,
    /// [`SLOW_CONSUMER_BYTES`] or [`SLOW_CONSUMER_TIMEOUT`], or the configured values: a client of topics was
    /// disconnected.
    SlowConsumer,
    /// [`ENTITY_IDS_PER_SUBSCRIBE`], or the configured value.
    EntityIdsPerSubscribe,
    /// [`ENTITY_SUBSCRIPTIONS_PER_CONNECTION`], or the configured value.
    EntitySubscriptions,
    /// [`ENTITY_CONNECTIONS_PER_USER`], or the configured value.
    EntityConnectionsPerUser,
    /// [`ENTITY_MESSAGE_BYTES`].
    EntityMessageBytes,
    /// [`ENTITY_CHANGES_PER_POST`].
    EntityChangesPerPost,
    /// [`ENTITY_STALL`], or the configured value: a client that watches entities was disconnected.
    EntityStall,
}

impl Limit {
    /// All limits.
    pub const ALL: [Self; 40] = [
        Self::Connections,
        Self::HeadTime,
        Self::IdleTime,
        Self::WriteTime,
        Self::HeaderBytes,
        Self::UriBytes,
        Self::BodyBytes,
        Self::BodyBytesInFlight,
        Self::BodyTime,
        Self::RequestsPerSecond,
        Self::MessagesPerAppend,
        Self::ProducersPerLog,
        Self::ReadersPerStream,
        Self::ForkDepth,
        Self::SourcesPerSession,
        Self::SubscribersPerSource,
        Self::SessionsPerProject,
        Self::EnvelopeChanges,
        Self::MembersPerRoom,
        Self::EventsPerWrite,
        Self::EventBytes,
        Self::StreamsPerUser,
        Self::HooksPerProject,
        Self::ReplaysPerHook,
        Self::IngestRate,
        Self::StreamSubscriptionsPerProject,
        Self::SubscriptionLinks,
        Self::TopicsPerConnection,
        Self::SubscriptionsPerProject,
        Self::TopicsPerRequest,
        Self::TopicFrameBytes,
        Self::TopicPayloadBytes,
        Self::TopicFrameRate,
        Self::SlowConsumer,
        Self::EntityIdsPerSubscribe,
        Self::EntitySubscriptions,
        Self::EntityConnectionsPerUser,
        Self::EntityMessageBytes,
        Self::EntityChangesPerPost,
        Self::EntityStall,
    ];

    /// Value of the metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::HeadTime => "head_time",
            Self::IdleTime => "idle_time",
            Self::WriteTime => "write_time",
            Self::HeaderBytes => "header_bytes",
            Self::UriBytes => "uri_bytes",
            Self::BodyBytes => "body_bytes",
            Self::BodyBytesInFlight => "body_bytes_in_flight",
            Self::BodyTime => "body_time",
            Self::RequestsPerSecond => "requests_per_second",
            Self::MessagesPerAppend => "messages_per_append",
            Self::ProducersPerLog => "producers_per_log",
            Self::ReadersPerStream => "readers_per_stream",
            Self::ForkDepth => "fork_depth",
            Self::SourcesPerSession => "sources_per_session",
            Self::SubscribersPerSource => "subscribers_per_source",
            Self::SessionsPerProject => "sessions_per_project",
            Self::EnvelopeChanges => "envelope_changes",
            Self::MembersPerRoom => "members_per_room",
            Self::EventsPerWrite => "events_per_write",
            Self::EventBytes => "event_bytes",
            Self::StreamsPerUser => "streams_per_user",
            Self::HooksPerProject => "hooks_per_project",
            Self::ReplaysPerHook => "replays_per_hook",
            Self::IngestRate => "ingest_rate",
            Self::StreamSubscriptionsPerProject => "stream_subscriptions_per_project",
            Self::SubscriptionLinks => "subscription_links",
            Self::TopicsPerConnection => "topics_per_connection",
            Self::SubscriptionsPerProject => "subscriptions_per_project",
            Self::TopicsPerRequest => "topics_per_request",
            Self::TopicFrameBytes => "topic_frame_bytes",
            Self::TopicPayloadBytes => "topic_payload_bytes",
            Self::TopicFrameRate => "topic_frame_rate",
            Self::SlowConsumer => "slow_consumer",
            Self::EntityIdsPerSubscribe => "entity_ids_per_subscribe",
            Self::EntitySubscriptions => "entity_subscriptions",
            Self::EntityConnectionsPerUser => "entity_connections_per_user",
            Self::EntityMessageBytes => "entity_message_bytes",
            Self::EntityChangesPerPost => "entity_changes_per_post",
            Self::EntityStall => "entity_stall",
        }
    }
}
