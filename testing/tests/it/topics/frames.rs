//! Frames in odd forms: many in one write, one in many, and control frames in between.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// A socket after its handshake, on which bytes are written as they are.
pub async fn raw(server: &Harness, more: &str) -> (TcpStream, String) {
    let mut socket = TcpStream::connect(server.address()).await.expect("connected");
    let head = format!(
        "GET {PATH} HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
    );
    socket.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(socket.read_u8().await.expect("an answer"));
    }
    (socket, String::from_utf8(answer).expect("text").to_lowercase())
}

/// A frame of a client, masked with zeros.
pub fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    match payload.len() {
        short @ 0..=125 => out.push(0x80 | short as u8),
        middle @ 126..=65_535 => {
            out.push(0x80 | 126);
            out.extend(u16::try_from(middle).expect("short").to_be_bytes());
        }
        long => {
            out.push(0x80 | 127);
            out.extend((long as u64).to_be_bytes());
        }
    }
    out.extend([0; 4]);
    out.extend(payload);
    out
}

/// The next frame of the server: its first byte and its payload.
pub async fn read_frame(socket: &mut TcpStream) -> (u8, Vec<u8>) {
    let reading = async {
        let first = socket.read_u8().await.expect("a frame");
        let length = match socket.read_u8().await.expect("a length") {
            126 => socket.read_u16().await.expect("a length").into(),
            127 => socket.read_u64().await.expect("a length"),
            short => short.into(),
        };
        let mut payload = vec![0; usize::try_from(length).expect("a length")];
        socket.read_exact(&mut payload).await.expect("a payload");
        (first, payload)
    };
    tokio::time::timeout(Duration::from_secs(30), reading).await.expect("a frame within half a minute")
}

async fn read_text(socket: &mut TcpStream) -> Value {
    let (first, payload) = read_frame(socket).await;
    assert_eq!(first, 0x81);
    serde_json::from_slice(&payload).expect("JSON")
}

const LIST: &[u8] = br#"{"type":"$list","meta":{"correlationId":"l"}}"#;

#[tokio::test]
async fn requests_that_come_with_the_handshake_or_in_one_write_are_all_answered() {
    let server = Harness::start().await;
    let (mut socket, _) = raw(&server, "").await;
    let many: Vec<u8> = (0..300).flat_map(|_| frame(0x81, LIST)).collect();
    socket.write_all(&many).await.expect("sent");
    assert_eq!(read_text(&mut socket).await["type"], "$hello");
    for _ in 0..300 {
        assert_eq!(read_text(&mut socket).await["meta"]["correlationId"], "l");
    }
}

#[tokio::test]
async fn a_request_may_come_byte_by_byte_and_in_fragments_with_pings_in_between() {
    let server = Harness::start().await;
    let (mut socket, _) = raw(&server, "").await;
    assert_eq!(read_text(&mut socket).await["type"], "$hello");
    for byte in frame(0x81, LIST) {
        socket.write_all(&[byte]).await.expect("sent");
    }
    assert_eq!(read_text(&mut socket).await["meta"]["correlationId"], "l");
    let (first, rest) = LIST.split_at(7);
    socket.write_all(&frame(0x01, first)).await.expect("sent");
    socket.write_all(&frame(0x89, b"ping")).await.expect("sent");
    assert_eq!(read_frame(&mut socket).await, (0x8a, b"ping".to_vec()));
    for byte in &rest[..rest.len() - 1] {
        socket.write_all(&frame(0x00, &[*byte])).await.expect("sent");
    }
    socket.write_all(&frame(0x80, &rest[rest.len() - 1..])).await.expect("sent");
    assert_eq!(read_text(&mut socket).await["meta"]["correlationId"], "l");
}

#[tokio::test]
async fn compression_that_is_offered_is_declined_and_a_compressed_frame_is_refused() {
    let server = Harness::start().await;
    let offer = "sec-websocket-extensions: permessage-deflate; client_max_window_bits\r\n";
    let (mut socket, head) = raw(&server, offer).await;
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    assert!(!head.contains("sec-websocket-extensions"), "{head}");
    assert_eq!(read_text(&mut socket).await["type"], "$hello");
    socket.write_all(&frame(0x81, LIST)).await.expect("sent");
    assert_eq!(read_text(&mut socket).await["meta"]["correlationId"], "l");
    socket.write_all(&frame(0xc1, LIST)).await.expect("sent");
    let (first, payload) = read_frame(&mut socket).await;
    assert_eq!((first, &payload[..2]), (0x88, &1002_u16.to_be_bytes()[..]));
}
