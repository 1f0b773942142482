//! A client that others wrote, over a pipe in memory.

use std::io;

use axum::http::{Request, StatusCode};

use crate::response_head;

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::*;
use crate::websocket::frame as ours;
use crate::websocket::handshake::Upgrade;

/// Answers the handshake, sends back what comes, and returns how it ended.
async fn echo(mut pipe: DuplexStream) -> Event {
    greet(&mut pipe).await.expect("a handshake");
    converse(&mut pipe, Limits::default()).await.expect("the client closes before it goes")
}

/// Answers the handshake.
pub(super) async fn greet(pipe: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(pipe.read_u8().await?);
    }
    let upgrade = Upgrade::validate(&parsed(&head), &["v2.tidings", "v1.tidings"]).expect("a good request");
    pipe.write_all(&response_head(StatusCode::SWITCHING_PROTOCOLS, &upgrade.headers())).await
}

/// Sends back what comes after a handshake, and returns how it ended.
pub(super) async fn converse(
    pipe: &mut (impl AsyncRead + AsyncWrite + Unpin),
    limits: Limits,
) -> io::Result<Event> {
    let mut connection = Connection::new(limits, Timeouts::default(), NOW);
    let mut buffer = vec![0; 1500];
    loop {
        let count = pipe.read(&mut buffer).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut input = &buffer[..count];
        while let Some(event) = connection.feed(&mut input, NOW) {
            match &event {
                Event::Text(text) if text.as_str() == "please close" => {
                    connection.close(&Close::new(Code::GOING_AWAY, "as you wish"), NOW);
                }
                Event::Text(text) => send(pipe, Opcode::Text, text.as_ref()).await?,
                Event::Binary(bytes) => send(pipe, Opcode::Binary, bytes).await?,
                Event::Ping(_) | Event::Pong(_) | Event::Closed(_) | Event::Failed(_) => {}
            }
            while let Some(frame) = connection.outgoing() {
                pipe.write_all(&frame).await?;
            }
            if connection.is_over() {
                return Ok(event);
            }
        }
    }
}

/// A header, then the payload as it is, as to one of many who get the same.
async fn send(pipe: &mut (impl AsyncWrite + Unpin), opcode: Opcode, payload: &[u8]) -> io::Result<()> {
    pipe.write_all(&ours::header(opcode, payload.len())).await?;
    pipe.write_all(payload).await
}

fn parsed(head: &[u8]) -> axum::http::request::Parts {
    let head = std::str::from_utf8(head).expect("text");
    let mut lines = head.trim_end().split("\r\n");
    assert_eq!(lines.next(), Some("GET /socket HTTP/1.1"));
    let request = lines.fold(Request::builder(), |request, line| {
        let (name, value) = line.split_once(": ").expect("a header");
        request.header(name, value)
    });
    request.body(()).expect("a request").into_parts().0
}

async fn connect() -> (WebSocketStream<DuplexStream>, tokio::task::JoinHandle<Event>) {
    let (ours, theirs) = tokio::io::duplex(4096);
    let server = tokio::spawn(echo(ours));
    let mut request = tungstenite::client::IntoClientRequest::into_client_request("ws://tidings.test/socket")
        .expect("a request");
    let offers = "v0.tidings, v1.tidings".parse().expect("a value");
    request.headers_mut().insert("sec-websocket-protocol", offers);
    let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
    let (client, answer) =
        client_async_with_config(request, theirs, Some(config)).await.expect("a handshake");
    assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(answer.headers()["sec-websocket-protocol"], "v1.tidings");
    (client, server)
}

/// Sends and reads at the same time: neither side reads while it writes much.
async fn echoed(client: &mut WebSocketStream<DuplexStream>, message: Message) {
    let (mut tx, mut rx) = client.split();
    let expected = message.clone();
    let (sent, heard) = tokio::join!(tx.send(message), rx.next());
    sent.expect("sent");
    assert!(heard.expect("an answer").expect("a message") == expected, "{} bytes", expected.len());
}

#[tokio::test]
async fn a_known_client_hears_its_messages_of_all_sizes_back() {
    let (mut client, server) = connect().await;
    for size in [0, 1, 125, 126, 127, 65535, 65536, 1024 * 1024] {
        echoed(&mut client, Message::text("é".repeat(size / 2))).await;
        echoed(&mut client, Message::binary(vec![0xa5; size])).await;
    }
    for size in [0, 8, 125] {
        client.send(Message::Ping(vec![7; size].into())).await.expect("sent");
        let heard = client.next().await.expect("an answer").expect("a message");
        assert_eq!(heard, Message::Pong(vec![7; size].into()));
    }
    let frame = CloseFrame { code: CloseCode::Normal, reason: "done".into() };
    client.close(Some(frame)).await.expect("sent");
    let heard = client.next().await.expect("an answer").expect("a close frame");
    assert_eq!(heard, Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() })));
    assert!(client.next().await.is_none(), "the server has gone");
    let ended = server.await.expect("the server does not panic");
    assert_eq!(ended, Event::Closed(Some(Close::new(Code::NORMAL, "done"))));
}

#[tokio::test]
async fn a_known_client_answers_our_close() {
    let (mut client, server) = connect().await;
    client.send(Message::text("please close")).await.expect("sent");
    let heard = client.next().await.expect("an answer").expect("a close frame");
    let expected = CloseFrame { code: CloseCode::Away, reason: "as you wish".into() };
    assert_eq!(heard, Message::Close(Some(expected)));
    assert!(client.next().await.is_none_or(|last| last.is_err()), "that was all");
    let ended = server.await.expect("the server does not panic");
    assert!(matches!(ended, Event::Closed(Some(close)) if close.code() == Code::GOING_AWAY));
}

#[tokio::test]
async fn a_known_client_is_told_what_is_too_big() {
    let (mut client, server) = connect().await;
    let (mut tx, mut rx) = (&mut client).split();
    let big = vec![0; 1024 * 1024 + 1];
    let (_, heard) = tokio::join!(tx.send(Message::binary(big)), rx.next());
    let heard = heard.expect("an answer").expect("a close frame");
    let Message::Close(Some(close)) = heard else { panic!("{heard:?}") };
    assert_eq!(close.code, CloseCode::Size);
    assert_eq!(close.reason.as_str(), "a frame is larger than 1048576 bytes");
    let ended = server.await.expect("the server does not panic");
    assert_eq!(ended, Event::Failed(Violation::FrameTooBig(1024 * 1024)));
}
