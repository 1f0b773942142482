//! Everything a client can make grow, and how far. Those that an operator may change are defaults here
//! and keys in the configuration.

use std::time::Duration;

/// Bytes of a project id.
pub const PROJECT_ID_BYTES: usize = 128;
/// Bytes of a stream id, after percent-decoding.
pub const STREAM_ID_BYTES: usize = 512;
/// Bytes of a `Producer-Id`.
pub const PRODUCER_ID_BYTES: usize = 256;
/// Largest epoch and sequence number of a producer: the largest integer JavaScript counts exactly.
pub const PRODUCER_NUMBER_MAX: u64 = (1 << 53) - 1;
/// Producers a log remembers. At the limit those idle for [`PRODUCER_IDLE`] make room; if there are none,
/// a further producer is refused.
pub const PRODUCERS_PER_LOG: usize = 10_000;
/// How long an idle producer is remembered when there is no room for another.
pub const PRODUCER_IDLE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Bytes of a `Stream-Seq`.
pub const STREAM_SEQUENCE_BYTES: usize = 1024;
/// Bytes of a stream's content type.
pub const CONTENT_TYPE_BYTES: usize = 256;
/// Bytes of one append's body.
pub const APPEND_BYTES: usize = 8 * 1024 * 1024;
/// Messages of one append: an array of a stream in JSON mode has one for each element.
pub const MESSAGES_PER_APPEND: usize = 100_000;
/// Logs that one reference of a commit may put records into. A larger fan-out is made in chunks, each with the
/// fan-out's cursor moved in the same commit.
pub const TARGETS_PER_COMMIT: usize = 4096;
/// Bytes of payload in one answer of a read. A single larger record is still returned whole.
pub const READ_CHUNK_BYTES: usize = 256 * 1024;
/// Records in one answer of a read.
pub const READ_CHUNK_RECORDS: usize = 16 * 1024;
/// Streams in one answer of a list.
pub const LISTED_STREAMS: usize = 1000;
/// Streams in one answer of a list when the client does not say.
pub const LISTED_STREAMS_DEFAULT: usize = 100;
/// Streams a fork may descend from, one behind the other.
pub const FORK_DEPTH: usize = 256;
/// Streams that a session subscribes to.
pub const SOURCES_PER_SESSION: usize = 1024;
/// Streams that a session has left and of which it knows how their records are shown, as long as those can be read, beside
/// [`SOURCES_PER_SESSION`]. With both together it subscribes to no further stream.
pub const LEFT_PER_SESSION: usize = 1024;
/// Sessions of a project, unless the operator sets another number.
pub const SESSIONS_PER_PROJECT: usize = 1_000_000;
/// Streams that one commit ends: when a project is removed, and when their time is over.
pub const ENDED_PER_COMMIT: usize = 1024;
/// Sessions that one change takes off sources that have ended. A source ends at once for everybody, however many rows still
/// name it.
pub const DETACHED_PER_CHANGE: usize = 64;
/// Sessions that subscribe to a stream.
pub const SUBSCRIBERS_PER_SOURCE: usize = 1_000_000;
/// How often a subscription may begin and end to have envelopes. What was delivered keeps its form, so each change is known
/// as long as the subscription is, and one more is refused.
pub const ENVELOPE_CHANGES: usize = 128;
/// Sources of which it is remembered in memory that deliveries have failed.
pub const BREAKERS: usize = 100_000;
/// Bytes of a request that subscribes or unsubscribes.
pub const SUBSCRIBE_BODY_BYTES: usize = 16 * 1024;
/// Bytes of a room's id.
pub const ROOM_ID_BYTES: usize = 256;
/// Bytes of a user's id in rooms.
pub const MEMBER_ID_BYTES: usize = 256;
/// Bytes of the id of one of a user's devices.
pub const DEVICE_ID_BYTES: usize = 256;
/// Members of a room.
pub const MEMBERS_PER_ROOM: usize = 100_000;
/// Members in one answer of a list, also when the client does not say.
pub const LISTED_MEMBERS: usize = 1000;
/// Rooms that are removed in one commit when their project is, if they have not more than [`MEMBERS_PER_ROOM`] members
/// together.
pub const ROOMS_PER_REMOVAL: usize = 1000;
/// Devices of a user of which it is known how far they have seen a room. With one more the one that was silent for the
/// longest is forgotten.
pub const DEVICES_PER_MEMBER: usize = 64;
/// Events of one write to a room.
pub const EVENTS_PER_WRITE: usize = 1000;
/// Bytes of a request that changes the members of a room: as many as there may be.
pub const MEMBERS_BODY_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of a request that tells how far a room was seen.
pub const SEEN_BODY_BYTES: usize = 16 * 1024;
/// Bytes of the payload of an event.
pub const EVENT_PAYLOAD_BYTES: usize = 16 * 1024;
/// Events of a room that only those hear who are there, until they have heard them. The oldest go first.
pub const TYPING_PER_ROOM: usize = 64;
/// How long they are there at most.
pub const TYPING_KEPT: Duration = Duration::from_secs(10);
/// Bytes of encoded events that are kept for the live readers of one room that are behind.
pub const ROOM_RING_BYTES: usize = 2 * 1024 * 1024;
/// Rooms of which it is in memory where their next event lies. Those at rest make room for others.
pub const ACTIVE_ROOMS: usize = 100_000;
/// Reactions of a room that later ones have made redundant, and that are left out until they are too old to be kept. More
/// stay as they are.
pub const COLLAPSED_PER_ROOM: usize = 100_000;
/// Reactions, each by an actor to a message, that are told apart at a time when redundant ones are searched.
pub const COLLAPSE_KEYS: usize = 250_000;
/// Answers of rooms to requests of producers that are remembered, should they be repeated. Others are searched for.
pub const REMEMBERED_ANSWERS: usize = 50_000;
/// Events that are searched for the first answer to a request that its producer repeats, from the latest back.
pub const REPEAT_SEARCH_EVENTS: usize = 50_000;
/// How far somebody has seen a room, noted in memory and not yet written.
pub const PENDING_RECEIPTS: usize = 100_000;
/// Live readers that one user has in the rooms of a project.
pub const ROOM_STREAMS_PER_USER: usize = 50;
/// Readers of which it is remembered that they were cut off for being slow.
pub const COOL_DOWNS: usize = 100_000;
/// Readers that are to be told, when they come again, that what they missed is gone.
pub const COMPACTED_MARKS: usize = 100_000;
/// Bytes of a pattern.
pub const PATTERN_BYTES: usize = 512;
/// Segments of a pattern.
pub const PATTERN_SEGMENTS: usize = 64;
/// Bytes of a key that somebody chose: fewer could be guessed.
pub const KEY_BYTES_MIN: usize = 16;
/// Bytes of a key.
pub const KEY_BYTES_MAX: usize = 1024;
/// Bytes of a token.
pub const TOKEN_BYTES: usize = 8 * 1024;
/// Globs in one claim of a token.
pub const GLOBS_PER_CLAIM: usize = 256;
/// Bytes of the user that a token names.
pub const USER_ID_BYTES: usize = 512;
/// How long a token lives when nobody says.
pub const TOKEN_TTL: Duration = Duration::from_secs(60 * 60);
/// Projects that are stored.
pub const PROJECTS: usize = 100_000;
/// Keys that a project has at a time.
pub const KEYS_PER_PROJECT: usize = 16;
/// Origins that a project lets in, and globs of its public streams.
pub const CONFIG_ENTRIES: usize = 256;
/// Bytes of an origin.
pub const ORIGIN_BYTES: usize = 512;
/// Bytes of a request that administers.
pub const ADMIN_BODY_BYTES: usize = 256 * 1024;
/// Connections that a server has at a time. For a further one the longest idle one is closed; if none is idle, what it asks
/// is answered 503.
pub const CONNECTIONS: usize = 50_000;
/// Connections beyond [`CONNECTIONS`] that are taken all the same: somebody may ask for `/health`, and others hear that there is
/// no room.
pub const CONNECTIONS_RESERVED: usize = 32;
/// File descriptors that connections leave for all else: the store's files, those of merges and checkpoints,
/// [`CONNECTIONS_RESERVED`] and [`METRICS_CONNECTIONS`]. Where the process may not have twice as many, connections get half.
pub const DESCRIPTORS_RESERVED: usize = 256;
/// How long an idle connection that is closed for another may take to end, so that HTTP/2 can say that it does.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes that the kernel takes for a client before the client's side takes them.
pub const SOCKET_UNSENT_BYTES: u32 = 128 * 1024;
/// Connections that the listener of metrics has at a time.
pub const METRICS_CONNECTIONS: usize = 64;
/// How long a connection may take until its first request's head is complete, TLS and the preface of HTTP/2 included.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may stay without a request. The head of a further request is due within it, too.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// How long a client may take nothing of an answer that is on its way to it. One that stays has its own measure,
/// [`SLOW_READER_TIMEOUT`].
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a request's head: its first line and its headers.
pub const HEADER_BYTES: usize = 16 * 1024;
/// Bytes of a request's path and query.
pub const URI_BYTES: usize = 8 * 1024;
/// Memory that the bodies of all requests in progress take; beyond it a request is 503.
pub const BODY_BYTES_IN_FLIGHT: usize = 256 * 1024 * 1024;
/// Which part of that, one in so many, the requests of one project take.
pub const BODY_BYTES_PROJECT_PART: usize = 4;
/// How long a body may pause: without a byte for so long it is given up, whatever came before.
pub const BODY_STALL: Duration = Duration::from_secs(10);
/// How long a body may take whatever its size.
pub const BODY_GRACE: Duration = Duration::from_secs(30);
/// Bytes a second that a body must come with beyond [`BODY_GRACE`], counted from its beginning.
pub const BODY_BYTES_PER_SECOND_MIN: u64 = 4096;
/// Bytes of a refused request's body that are read on, so that the client hears why: more than [`APPEND_BYTES`], or whoever
/// sends a body that is a little too large would not.
pub const DISCARD_BYTES: usize = 16 * 1024 * 1024;
/// How long the body of a refused request is read on.
pub const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);
/// Requests of one project in a second; 0 lets all pass.
pub const REQUESTS_PER_SECOND: u32 = 0;
/// Projects whose requests are counted apart at a time; beyond, the busy ones that come later share one count.
pub const RATE_BUCKETS: usize = 10_000;
/// Bytes of a request id that is taken from a client.
pub const REQUEST_ID_BYTES: usize = 128;
/// Requests that an HTTP/2 connection has at a time.
pub const HTTP2_STREAMS: u32 = 256;
/// Bytes that a client sends on one HTTP/2 stream before they are read.
pub const HTTP2_STREAM_WINDOW: u32 = 256 * 1024;
/// Bytes that a client sends on all streams of one HTTP/2 connection before they are read: what the connection can hold of
/// bodies that nobody reads.
pub const HTTP2_CONNECTION_WINDOW: u32 = 512 * 1024;
/// Streams that a client of HTTP/2 may reset before they were looked at; then the connection ends.
pub const HTTP2_PENDING_RESETS: usize = 32;
/// Bytes of answers that wait to be sent on one HTTP/2 stream.
pub const HTTP2_SEND_BYTES: usize = 64 * 1024;
/// How long the other side of an HTTP/2 connection may take to say that it is there.
pub const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How often the other side of an HTTP/2 connection is asked whether it is there.
pub const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);
/// Bytes of encoded records that are kept for the live readers of one log that are behind.
pub const RING_BYTES: usize = 256 * 1024;
/// Encoded appends that are kept for them, however small.
pub const RING_FRAMES: usize = 64 * 1024;
/// Bytes of records that a live reader behind the others reads from the log at a time. A single larger record is read whole.
pub const OWN_READ_BYTES: usize = 32 * 1024;
/// Bytes of encoded records that are kept for live readers of other sessions who hear the same. Of a single larger append all
/// is kept, and half of this beside it.
pub const SHARED_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of a record from which on that is done. Smaller ones are written for each: that costs no more than finding them and
/// sending two pieces instead of one.
pub const SHARED_RECORD_BYTES: usize = 1024;
/// How long a live reader may take nothing of what waits for it before it is cut off.
pub const SLOW_READER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a live reader that is told to go may take to hear it before it is cut off.
pub const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for one that may not hear anything any more.
pub const REVOKED_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes that are read of what a client says after it was refused.
pub const REFUSED_BYTES: usize = 64 * 1024;
/// Bytes that are sent to one live reader before others get their turn.
pub const SEND_BYTES: usize = 256 * 1024;
/// Bytes of a message to a WebSocket on which nothing is heard.
pub const UNHEARD_MESSAGE_BYTES: usize = 4 * 1024;
/// How long such a message may take.
pub const UNHEARD_MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Live readers of one stream.
pub const READERS_PER_STREAM: usize = 10_000;
/// How long a long-poll waits at the tail.
pub const LONG_POLL_TIMEOUT: Duration = Duration::from_secs(4);
/// How long one SSE answer lasts before the client is asked to come again.
pub const SSE_DURATION: Duration = Duration::from_secs(60);
/// Subprotocols that a WebSocket client may offer to choose from.
pub const WEBSOCKET_PROTOCOLS: usize = 32;
/// Bytes of payload in one WebSocket frame from a client.
pub const WEBSOCKET_FRAME_BYTES: usize = 1024 * 1024;
/// Bytes of one WebSocket message from a client, all its fragments together.
pub const WEBSOCKET_MESSAGE_BYTES: usize = 1024 * 1024;
/// Frames that one WebSocket message may come in.
pub const WEBSOCKET_FRAGMENTS: u32 = 16 * 1024;
/// How long a WebSocket message may take from its first byte to its last.
pub const WEBSOCKET_MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a WebSocket client may take to answer a close frame.
pub const WEBSOCKET_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a WebSocket client may be silent before it is asked whether it is there.
pub const WEBSOCKET_PING_AFTER: Duration = Duration::from_secs(30);
/// How long a WebSocket client may be silent altogether; longer than [`WEBSOCKET_PING_AFTER`].
pub const WEBSOCKET_DEAD_AFTER: Duration = Duration::from_secs(60);

/// A limit that somebody has run into, as metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// [`CONNECTIONS`]: there was no room for one more, for which an idle one is closed or which is answered 503.
    Connections,
    /// [`HEAD_TIMEOUT`]: a connection did not say what it wants, and was ended.
    HeadTime,
    /// [`IDLE_TIMEOUT`]: a connection without a request was ended.
    IdleTime,
    /// [`WRITE_TIMEOUT`]: a connection whose client took nothing of its answer was ended.
    WriteTime,
    /// [`HEADER_BYTES`].
    HeaderBytes,
    /// [`URI_BYTES`].
    UriBytes,
    /// [`APPEND_BYTES`], or what the operator has set.
    BodyBytes,
    /// [`BODY_BYTES_IN_FLIGHT`], or what the operator has set.
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
    /// [`SESSIONS_PER_PROJECT`], or what the operator has set.
    SessionsPerProject,
    /// [`ENVELOPE_CHANGES`].
    EnvelopeChanges,
    /// [`MEMBERS_PER_ROOM`], or what the operator has set.
    MembersPerRoom,
    /// [`EVENTS_PER_WRITE`].
    EventsPerWrite,
    /// [`EVENT_PAYLOAD_BYTES`], or what the operator has set.
    EventBytes,
    /// [`ROOM_STREAMS_PER_USER`], or what the operator has set.
    StreamsPerUser,
}

impl Limit {
    /// All of them.
    pub const ALL: [Self; 22] = [
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
    ];

    /// Its name in metrics.
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
        }
    }
}
