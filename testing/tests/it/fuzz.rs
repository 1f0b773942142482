//! Whatever is sent, the server neither fails, hangs nor panics.
//!
//! `TIDINGS_FUZZ_REQUESTS` says how many requests are made up, `TIDINGS_FUZZ_SEED` which ones.

use std::sync::Arc;
use std::time::Duration;
use tidings_testing::http;

use fastrand::Rng;
use tidings_testing::Process;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const CONNECTIONS: u64 = 16;
/// A server that says nothing for so long waits for more.
const QUIET: Duration = Duration::from_millis(30);
/// A connection that has sent everything must be answered and closed within this time.
const TIMEOUT: Duration = Duration::from_secs(20);

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")),
        Err(_) => default,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_makes_the_server_fail_hang_or_panic() {
    let (requests, seed) = (setting("TIDINGS_FUZZ_REQUESTS", 1500), setting("TIDINGS_FUZZ_SEED", 20_251_116));
    let server = Process::serve(&[]).await;
    let address: Arc<str> = server.url("").replace("http://", "").into();
    let client = |n: u64| {
        let address = address.clone();
        tokio::spawn(async move {
            let mut not_implemented = 0;
            for round in 0..requests.div_ceil(CONNECTIONS) {
                let number = round * CONNECTIONS + n;
                let sent = made_up(&mut Rng::with_seed(seed.wrapping_add(number)));
                match timeout(TIMEOUT, exchange(&address, &sent)).await {
                    Ok(answers) => not_implemented += answers,
                    Err(_) => {
                        panic!("request {number} of seed {seed} hangs: {:?}", String::from_utf8_lossy(&sent))
                    }
                }
            }
            not_implemented
        })
    };
    let clients: Vec<_> = (0..CONNECTIONS).map(client).collect();
    let mut not_implemented = 0;
    for client in clients {
        not_implemented += client.await.expect("no request hangs");
    }
    let metrics = http::get(server.url("/metrics")).await.expect("it serves").text().await.expect("text");
    let requests_of = |class: &str| {
        let lines = metrics.lines().filter(|line| line.starts_with("tidings_http_requests_total"));
        let of_class = lines.filter(|line| line.contains(&format!("status=\"{class}\"")));
        of_class
            .map(|line| line.rsplit(' ').next().expect("a value").parse::<f64>().expect("a number"))
            .sum::<f64>()
    };
    // A Transfer-Encoding that nobody knows is 501, and the fault of the client.
    let failures = requests_of("5xx");
    assert!(failures <= f64::from(not_implemented), "seed {seed}: {failures}\n{metrics}\n{}", server.log());
    // The fuzzer would find nothing if it never came past the parser, or was never refused.
    assert!(requests_of("2xx") > requests as f64 / 20.0, "{metrics}");
    assert!(requests_of("4xx") > requests as f64 / 20.0, "{metrics}");
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

/// Sends everything, reads what comes, and leaves. Returns how many answers were 501.
async fn exchange(address: &str, sent: &[u8]) -> u32 {
    let mut socket = TcpStream::connect(address).await.expect("connected");
    // The server may end the connection at any point: that is an answer.
    if socket.write_all(sent).await.is_err() {
        return 0;
    }
    let (mut buffer, mut received) = ([0; 4096], Vec::new());
    while let Ok(Ok(length @ 1..)) = timeout(QUIET, socket.read(&mut buffer)).await {
        received.extend_from_slice(&buffer[..length]);
    }
    if socket.shutdown().await.is_ok() {
        while let Ok(length @ 1..) = socket.read(&mut buffer).await {
            received.extend_from_slice(&buffer[..length]);
        }
    }
    let not_implemented = b"HTTP/1.1 501 ";
    received.windows(not_implemented.len()).filter(|bytes| bytes == not_implemented).count() as u32
}

fn made_up(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = match rng.u8(..10) {
        0 => http2(rng),
        1 => [request(rng), request(rng)].concat(),
        _ => request(rng),
    };
    if rng.u8(..3) == 0 {
        for _ in 0..rng.usize(1..6) {
            mutate(rng, &mut bytes);
        }
    }
    bytes
}

/// A request that looks like one of ours.
fn request(rng: &mut Rng) -> Vec<u8> {
    let methods =
        ["GET", "GET", "HEAD", "PUT", "PUT", "POST", "POST", "POST", "DELETE", "OPTIONS", "PATCH", "get"];
    let mut head = format!(
        "{} {}{} HTTP/1.{}\r\nhost: localhost\r\n",
        pick(rng, &methods),
        path(rng),
        query(rng),
        rng.u8(..2)
    );
    for _ in 0..rng.usize(..6) {
        let name = pick(rng, HEADERS);
        head.push_str(&format!("{name}: {}\r\n", value(rng)));
    }
    if rng.bool() {
        head.push_str(&format!("content-type: {}\r\n", pick(rng, TYPES)));
    }
    let body = body(rng);
    match rng.u8(..12) {
        0 => head.push_str(&format!("content-length: {}\r\n", value(rng))),
        1 => head.push_str("transfer-encoding: chunked\r\n"),
        _ => head.push_str(&format!("content-length: {}\r\n", body.len())),
    }
    head.push_str("connection: close\r\n\r\n");
    [head.into_bytes(), body].concat()
}

const HEADERS: &[&str] = &[
    "stream-ttl",
    "stream-expires-at",
    "stream-closed",
    "stream-seq",
    "stream-forked-from",
    "stream-fork-offset",
    "stream-fork-sub-offset",
    "producer-id",
    "producer-epoch",
    "producer-seq",
    "if-match",
    "if-none-match",
    "last-event-id",
    "authorization",
    "x-request-id",
    "host",
    "expect",
    "accept-encoding",
    "content-encoding",
    "range",
    "origin",
    "upgrade",
    "x-forwarded-proto",
    "te",
];
const TYPES: &[&str] = &[
    "application/json",
    "application/json",
    "text/plain",
    "text/plain; charset=utf-8",
    "application/octet-stream",
    "",
    "a/b/c",
    "text/",
    "application/json; x=\"",
    "*/*",
    "multipart/form-data",
];
const VALUES: &[&str] = &[
    "",
    "0",
    "1",
    "-1",
    "true",
    "now",
    "3600",
    "18446744073709551615",
    "18446744073709551616",
    "9007199254740992",
    "2030-01-01T00:00:00Z",
    "2030-02-30T00:00:00Z",
    "9999-12-31T23:59:59.999999999+23:59",
    "1960-01-01T00:00:00Z",
    "0000000000000000_0000000000000000",
    "9999999999999999_9999999999999999",
    "\"0000000000000001_0000000000000000\"",
    "*",
    "W/\"x\"",
    "/v1/stream/a",
    "/v1/p/stream/b",
    "/v1/stream/%ff",
    "100-continue",
    "gzip",
    "bytes=0-1",
    "a,b",
    "\u{e9}\u{4e2d}",
    "long-poll",
    "sse",
    "websocket",
    "%00",
    "..",
    "NaN",
    "1e9",
    "+1",
    "01",
];

fn pick<'a>(rng: &mut Rng, from: &[&'a str]) -> &'a str {
    from[rng.usize(..from.len())]
}

fn value(rng: &mut Rng) -> String {
    match rng.u8(..8) {
        0 => "x".repeat(rng.usize(..2000)),
        1 => (0..rng.usize(..20)).map(|_| rng.char(' '..='\u{ff}')).collect(),
        _ => pick(rng, VALUES).to_owned(),
    }
}

fn path(rng: &mut Rng) -> String {
    let ids =
        ["a", "b", "c", "a/b", "a%2Fb", "%00", "%ff", "%", "session:x", "__ds/x", "..", "a%20b", "\u{fc}"];
    match rng.u8(..12) {
        0 => format!("/{}", pick(rng, VALUES).replace(' ', "")),
        1 => {
            "/v1/".to_owned()
                + pick(rng, &["stream", "stream/", "a b/stream/x", "%2e/stream/x", "projects", "/"])
        }
        2 => {
            pick(rng, &["/health", "/ready", "/metrics", "/openapi.json", "*", "http://x/health"]).to_owned()
        }
        3 => format!("/v1/stream/{}", "x".repeat(rng.usize(..9000))),
        4..=6 => format!("/v1/{}/stream/{}", pick(rng, &["p", "q", "_default"]), pick(rng, &ids)),
        _ => format!("/v1/stream/{}", pick(rng, &ids)),
    }
}

fn query(rng: &mut Rng) -> String {
    let names = ["offset", "offset", "live", "cursor", "token", "prefix", "limit", "x"];
    let one = |rng: &mut Rng| {
        let value = value(rng).replace([' ', '#', '\r', '\n'], "%20");
        format!("{}={value}", pick(rng, &names))
    };
    match rng.usize(..5) {
        0 | 1 => String::new(),
        more => format!("?{}", (1..more).map(|_| one(rng)).collect::<Vec<_>>().join("&")),
    }
}

fn body(rng: &mut Rng) -> Vec<u8> {
    let json = [
        "[]",
        "{}",
        "[1,2]",
        "[[1],[2]]",
        "null",
        "\"x\"",
        "[1,]",
        "{\"a\":",
        "[\"\\ud800\"]",
        "1e999999",
        "tru",
        " ",
        "\u{feff}[]",
        "[1]x",
        "-0",
        "{\"a\":1,\"a\":2}",
    ];
    match rng.u8(..8) {
        0 | 1 => Vec::new(),
        2 => (0..rng.usize(..300)).map(|_| rng.u8(..)).collect(),
        3 => [vec![b'['; rng.usize(..5000)], vec![b']'; rng.usize(..5000)]].concat(),
        4 => format!("{:x}\r\nhello\r\n0\r\n\r\n", rng.usize(..10)).into_bytes(),
        _ => pick(rng, &json).as_bytes().to_vec(),
    }
}

/// The preface, perhaps settings, and frames of all kinds.
fn http2(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    if rng.u8(..4) > 0 {
        bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    }
    for _ in 0..rng.usize(..8) {
        let length = rng.u8(..40);
        // A few known headers by their numbers in the static table, then whatever.
        let payload = (0..length).map(|_| if rng.bool() { 0x80 | rng.u8(2..16) } else { rng.u8(..) });
        let payload: Vec<u8> = payload.collect();
        let stream = rng.u8(..8);
        bytes.extend([0, 0, length, rng.u8(..11), rng.u8(..), 0, 0, 0, stream]);
        bytes.extend(payload);
    }
    bytes
}

fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.usize(..bytes.len());
    match rng.u8(..5) {
        0 => bytes[at] ^= 1 << rng.u8(..8),
        1 => bytes[at] = rng.u8(..),
        2 => bytes.truncate(at),
        3 => bytes.insert(at, b"\r\n\0:; %"[rng.usize(..7)]),
        _ => {
            let end = (at + rng.usize(..50)).min(bytes.len());
            let copied = bytes[at..end].to_vec();
            bytes.splice(at..at, copied);
        }
    }
}
