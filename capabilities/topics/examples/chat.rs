//! A chat as an axum application of its own, without the tidings server: rooms are topics, and a policy decides who may
//! enter. `cargo run --package tidings-topics --example chat`, then connect a WebSocket client to
//! `ws://127.0.0.1:3000/chat?user=ann` and send `{"type":"JOIN","payload":{"room":"1"}}` and
//! `{"type":"SAY","payload":{"room":"1","text":"hi"}}`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::{SinkExt, StreamExt};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tidings_engine::WallClock;
use tidings_topics::router::{Data, NoPubSub, PubSub, Router};
use tidings_topics::{
    Action, Answer, Connection, Decision, Denial, Hub, Invalid, Message, MutateOptions, Policy,
    PublishOptions, TopicRules, TypedTopic,
};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Message as Frame, Role};

/// What the application knows of a connection.
#[derive(Clone, Deserialize)]
pub struct User {
    user: String,
    #[serde(skip)]
    rooms: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Join {
    room: String,
}

#[derive(Serialize, Deserialize)]
struct Say {
    room: String,
    text: String,
}

#[derive(Serialize, Deserialize)]
struct Said {
    user: String,
    text: String,
}

#[derive(Serialize, Deserialize)]
struct Left {
    user: String,
}

impl Message for Join {
    const TYPE: &'static str = "JOIN";
    type Payload = Self;
}

impl Message for Say {
    const TYPE: &'static str = "SAY";
    type Payload = Self;

    fn validate(say: &Self) -> Result<(), Invalid> {
        if say.text.trim().is_empty() { Err(Invalid::new("there is nothing to say")) } else { Ok(()) }
    }
}

impl Message for Said {
    const TYPE: &'static str = "SAID";
    type Payload = Self;
}

impl Message for Left {
    const TYPE: &'static str = "LEFT";
    type Payload = Self;
}

const ROOM: TypedTopic<String> = TypedTopic::new("room", |room: &String| format!("room:{room}"));

/// Everybody may enter rooms, but the one of the staff. Who is in a room may speak there.
struct Doors;

impl Policy<Data<User>> for Doors {
    fn authorize<'a>(
        &'a self,
        action: Action,
        topic: &'a str,
        connection: &'a Connection<Data<User>>,
    ) -> Answer<'a, Decision> {
        let user = connection.data.get();
        let allowed = match action {
            Action::Subscribe => topic != "room:staff" || user.user == "ann",
            Action::Publish => user.rooms.iter().any(|room| room == topic),
            Action::Unsubscribe => true,
        };
        Answer::now(if allowed { Decision::Allow } else { Decision::Deny(Denial::forbidden("room")) })
    }
}

#[derive(Clone)]
struct App {
    router: Router<User, PubSub<User>>,
    connections: Arc<AtomicU64>,
}

/// The application. It must be called within a Tokio runtime.
pub fn app() -> axum::Router {
    let hub = Hub::in_memory(TopicRules::default(), Arc::new(Doors), Arc::new(WallClock));
    let publisher = hub.clone();
    let router = Router::<User, NoPubSub>::new()
        .with_pub_sub(hub)
        .on::<Join, _, _>(|ctx, join| async move {
            let room = ROOM.make(&join.room).expect("any room can be made; the rules check it");
            ctx.topics().subscribe(&room, &MutateOptions::default()).await?;
            ctx.assign_data(|user| user.rooms.push(room));
            ctx.reply::<Join>(&join);
            Ok(())
        })
        .on::<Say, _, _>(|ctx, say| async move {
            let said = Said { user: ctx.data().user.clone(), text: say.text };
            let room = ROOM.make(&say.room).expect("any room can be made; the rules check it");
            let sent = ctx.publish::<Said>(&room, &said, PublishOptions::default()).await;
            if let Some(error) = sent.error() {
                ctx.error(error.as_str(), "nobody has heard that");
            }
            Ok(())
        })
        .on_close(move |ctx| {
            let publisher = publisher.clone();
            async move {
                let user = ctx.data();
                for room in &user.rooms {
                    let left = Left { user: user.user.clone() };
                    let sent =
                        publisher.publish_message::<Left>(room, &left, PublishOptions::default()).await;
                    if !sent.is_ok() {
                        eprintln!("nobody was told that {} left {room}: {sent:?}", left.user);
                    }
                }
                Ok(())
            }
        });
    let app = App { router, connections: Arc::default() };
    axum::Router::new().route("/chat", get(chat)).with_state(app)
}

/// Turns a request into a WebSocket. Any other library for that will do.
async fn chat(State(app): State<App>, Query(user): Query<User>, mut request: Request) -> Response {
    let Some(key) = request.headers().get(header::SEC_WEBSOCKET_KEY) else {
        return (StatusCode::BAD_REQUEST, "this is for WebSockets").into_response();
    };
    let accept = derive_accept_key(key.as_bytes());
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        if let Ok(upgraded) = upgrade.await {
            let socket = TokioIo::new(upgraded);
            serve(app, user, WebSocketStream::from_raw_socket(socket, Role::Server, None).await).await;
        }
    });
    let headers = [
        (header::CONNECTION, "upgrade"),
        (header::UPGRADE, "websocket"),
        (header::SEC_WEBSOCKET_ACCEPT, accept.as_str()),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

/// Passes what the client sends to the session, and what the outbox has to the client.
async fn serve<S>(app: App, user: User, socket: WebSocketStream<S>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let id = format!("c{}", app.connections.fetch_add(1, Ordering::Relaxed));
    let (session, mut outbox) = app.router.connect(id, user).await;
    let (mut sink, mut stream) = socket.split();
    let receive = async {
        while let Some(Ok(frame)) = stream.next().await {
            match frame {
                Frame::Text(text) => session.receive(&text).await,
                Frame::Close(_) => break,
                _ => {}
            }
        }
        session.close().await;
    };
    let send = async {
        while let Some(frame) = outbox.next().await {
            let text = String::from_utf8_lossy(&frame).into_owned();
            if sink.send(Frame::text(text)).await.is_err() {
                break;
            }
        }
        // The client is gone, too slow, or has said goodbye; what it sends is not read any more.
        let _ = sink.close().await;
    };
    tokio::select! {
        () = receive => {}
        () = send => session.close().await,
    }
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("a chat at ws://{}/chat?user=NAME", listener.local_addr()?);
    axum::serve(listener, app()).await
}
