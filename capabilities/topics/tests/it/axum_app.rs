//! The example application, over real sockets.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};

#[path = "../../examples/chat.rs"]
#[allow(dead_code)]
mod chat;

type Socket = WebSocketStream<TcpStream>;

async fn connect(address: std::net::SocketAddr, user: &str) -> Socket {
    let stream = TcpStream::connect(address).await.expect("it listens");
    client_async(format!("ws://{address}/chat?user={user}"), stream).await.expect("a WebSocket").0
}

async fn send(socket: &mut Socket, frame: Value) {
    socket.send(Message::text(frame.to_string())).await.expect("it is sent");
}

async fn next(socket: &mut Socket) -> Value {
    loop {
        match socket.next().await.expect("a frame").expect("no failure") {
            Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
            _ => continue,
        }
    }
}

#[tokio::test]
async fn an_application_of_its_own_serves_topics_on_its_own_sockets() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(async move { axum::serve(listener, chat::app()).await });
    let (mut ann, mut bob) = (connect(address, "ann").await, connect(address, "bob").await);
    let join = |room: &str| json!({ "type": "JOIN", "payload": { "room": room } });
    let say = |room: &str, text: &str| json!({ "type": "SAY", "payload": { "room": room, "text": text } });
    for socket in [&mut ann, &mut bob] {
        send(socket, join("1")).await;
        assert_eq!(next(socket).await, join("1"));
    }
    send(&mut bob, say("1", "hi")).await;
    let said =
        json!({ "type": "SAID", "meta": { "topic": "room:1" }, "payload": { "user": "bob", "text": "hi" } });
    assert_eq!(next(&mut ann).await, said);
    assert_eq!(next(&mut bob).await, said);
    for (request, code) in [
        (join("staff"), "ACL_SUBSCRIBE"),
        (join("no spaces"), "INVALID_TOPIC"),
        (say("2", "from outside"), "ACL_PUBLISH"),
        (say("1", "  "), "INVALID_ARGUMENT"),
    ] {
        send(&mut bob, request).await;
        let told = next(&mut bob).await;
        assert_eq!((&told["type"], &told["payload"]["code"]), (&json!("ERROR"), &json!(code)));
    }
    bob.close(None).await.expect("it is closed");
    let left = json!({ "type": "LEFT", "meta": { "topic": "room:1" }, "payload": { "user": "bob" } });
    assert_eq!(next(&mut ann).await, left);
    server.abort();
}
