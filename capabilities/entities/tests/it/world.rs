//! The entities of a server without the server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tidings_engine::deliver::{ConflatedReader, FrameChunks};
use tidings_engine::journal::Journals;
use tidings_engine::log::Memory;
use tidings_engine::{Bus, ManualClock, Metrics, Rng};
use tidings_entities::{
    Backing, Closing, Connect, ConnectError, ConnectionId, Cursor, Encode, Entities, EntityCode, EntityId,
    Granted, IdForm, Options, Parts, Project, ResyncReason, Subject, SubscribeError, Subscribed, Table,
    Takeover, Told, Watch,
};
use tidings_model::{ProjectId, Timestamp};
use tokio::task::JoinHandle;

use crate::fake::{FakeAuthorize, FakeRegistry, FakeSource};

pub const START: Timestamp = Timestamp::from_millis(1_763_294_400_000);

/// The entities of the project `_default`, which has a source that does what the test says, and of others.
pub struct World {
    pub entities: Entities,
    pub source: Arc<FakeSource>,
    pub authorize: Arc<FakeAuthorize>,
    pub registry: Arc<FakeRegistry>,
    pub clock: ManualClock,
    pub metrics: Metrics,
    serving: JoinHandle<()>,
}

/// One client, which takes what it is told when the test says.
pub struct Client {
    pub watch: Watch,
    pub reader: ConflatedReader,
    pub closed: Arc<Mutex<Vec<Closing>>>,
    /// Cursor of the last INVALIDATE that had one.
    pub cursor: Option<Cursor>,
}

impl World {
    /// Tokens decide alone.
    pub fn new() -> Self {
        Self::with(Options::default(), false)
    }

    /// The authoriser is asked.
    pub fn authorized() -> Self {
        Self::with(Options::default(), true)
    }

    pub fn with(options: Options, authorized: bool) -> Self {
        let (bus, clock, metrics) = (Bus::new(), ManualClock::at(START), Metrics::new());
        let (source, authorize) = (Arc::<FakeSource>::default(), Arc::<FakeAuthorize>::default());
        let registry = Arc::<FakeRegistry>::default();
        let backing =
            Backing { source: source.clone(), registry: registry.clone(), relay: None, authorize: None };
        let entities = Entities::new(Parts {
            store: Arc::new(Memory::<Table>::new(bus.clone(), Arc::new(clock.clone()))),
            bus,
            clock: Arc::new(clock.clone()),
            rng: Arc::new(Rng::seeded(3)),
            journals: Journals::default(),
            metrics: metrics.clone(),
            options,
            backings: HashMap::from([(ProjectId::default_project(), backing)]),
            authorize: authorized.then(|| authorize.clone() as _),
        });
        let serving = tokio::spawn(entities.clone().serve());
        Self { entities, source, authorize, registry, clock, metrics, serving }
    }

    pub fn project(&self) -> Project {
        self.entities.project(&ProjectId::default_project())
    }

    /// A connection of a user, whose token grants everything.
    pub fn connect(&self, user: &str, connection: &str) -> Client {
        self.try_connect(user, connection, Takeover::No, Arc::new(|_, _| true)).expect("there are few")
    }

    /// A connection whose token grants these, such as `project:1` or `project:*`.
    pub fn connect_granted(&self, user: &str, connection: &str, granted: &[&str]) -> Client {
        self.try_connect(user, connection, Takeover::No, grants(granted)).expect("there are few")
    }

    pub fn try_connect(
        &self,
        user: &str,
        connection: &str,
        takeover: Takeover,
        granted: Granted,
    ) -> Result<Client, ConnectError> {
        connect_to(&self.project(), user, connection, takeover, granted)
    }

    /// Waits until everything that the source has was delivered.
    pub async fn delivered(&self, client: &Client) {
        let end = self.source.end();
        until(|| client.watch.cursor().as_ref() == Some(&end)).await;
    }

    /// Adds changes and waits until they were delivered.
    pub async fn change(&self, client: &Client, changes: &[&str]) {
        self.source.add_each(changes);
        self.delivered(client).await;
    }

    /// A value of the metrics.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.metrics.text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.expect("there is such a metric").parse().expect("a number")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

pub fn connect_to(
    project: &Project,
    user: &str,
    connection: &str,
    takeover: Takeover,
    granted: Granted,
) -> Result<Client, ConnectError> {
    let closed = Arc::<Mutex<Vec<Closing>>>::default();
    let told = closed.clone();
    let connect = Connect {
        id: ConnectionId::new(connection),
        user: user.to_owned(),
        granted,
        encode: Arc::new(AsText),
        takeover,
        close: Arc::new(move |closing| told.lock().expect("not poisoned").push(closing)),
    };
    let (watch, reader) = project.connect(connect)?;
    Ok(Client { watch, reader, closed, cursor: None })
}

/// What a token grants that lists these, such as `project:1` or `project:*`.
pub fn grants(granted: &[&str]) -> Granted {
    let granted: Vec<String> = granted.iter().map(|&text| text.to_owned()).collect();
    Arc::new(move |code, id| {
        let whole = format!("{code}:*");
        granted.iter().any(|text| *text == whole || id.is_some_and(|id| *text == format!("{code}:{id}")))
    })
}

impl Client {
    /// Subscribes to ids of a type, or to the whole type if there are none, and is answered.
    pub async fn subscribe(&self, of: &str, ids: &[&str]) -> Subscribed {
        self.try_subscribe(of, ids, None).await.expect("subscribed")
    }

    pub async fn subscribe_since(&self, of: &str, ids: &[&str], since: &Cursor) -> Subscribed {
        self.try_subscribe(of, ids, Some(since.clone())).await.expect("subscribed")
    }

    pub async fn try_subscribe(
        &self,
        of: &str,
        ids: &[&str],
        since: Option<Cursor>,
    ) -> Result<Subscribed, SubscribeError> {
        let answer = self.watch.subscribe(code(of), subject(ids), since).await?;
        let subscribed = answer.clone();
        let resync = subscribed.resync.map(|reason| Bytes::from(format!("RESYNC {of} {}|", reason.as_str())));
        let reply = Bytes::from(format!("SUBSCRIBED {}|", subscribed.count));
        answer.send(resync.into_iter().chain([reply])).await;
        Ok(subscribed)
    }

    /// Unsubscribes, and is answered. Without ids: from everything of the type.
    pub async fn unsubscribe(&self, of: &str, ids: &[&str]) -> usize {
        let answer = self.watch.unsubscribe(code(of), subject(ids)).await;
        let count = answer.count;
        answer.send([Bytes::from(format!("UNSUBSCRIBED {count}|"))]).await;
        count
    }

    /// Takes what it is told, each thing as a text.
    pub fn told(&mut self) -> Vec<String> {
        self.take(usize::MAX)
    }

    /// What it is told of entities, without answers.
    pub fn heard(&mut self) -> Vec<String> {
        let answers = ["SUBSCRIBED", "UNSUBSCRIBED"];
        self.told()
            .into_iter()
            .filter(|text| !answers.iter().any(|answer| text.starts_with(answer)))
            .collect()
    }

    /// Takes what fits into `room`, with at least one frame.
    pub fn take(&mut self, room: usize) -> Vec<String> {
        let mut text = Vec::new();
        let mut take = |frame: &tidings_engine::deliver::Frame| {
            text.extend_from_slice(&frame.bytes.clone().joined());
        };
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match self.reader.poll_frames(&mut context, room, &mut take) {
                Poll::Ready(_) if room == usize::MAX => {}
                Poll::Ready(_) | Poll::Pending => break,
            }
        }
        let text = String::from_utf8(text).expect("text");
        let mut told = Vec::new();
        for part in text.split('|').filter(|part| !part.is_empty()) {
            match part.strip_prefix('@') {
                Some(cursor) => self.cursor = Some(Cursor::new(cursor)),
                None => told.push(part.to_owned()),
            }
        }
        told
    }
}

/// Encodes as text: `project:1 UPDATE 3|` for each change, with ` access` where that is the reason, and `@cursor|`.
pub struct AsText;

impl Encode for AsText {
    fn invalidate(&self, code: &EntityCode, changes: &[Told], cursor: Option<&Cursor>) -> FrameChunks {
        assert!((1..=256).contains(&changes.len()));
        let mut text = String::new();
        for Told { id, action, version, reason } in changes {
            let reason = reason.map(|reason| format!(" {}", reason.as_str())).unwrap_or_default();
            text += &format!("{code}:{id} {action} {version}{reason}|");
        }
        if let Some(cursor) = cursor {
            text += &format!("@{cursor}|");
        }
        Bytes::from(text).into()
    }

    fn resync(&self, code: Option<&EntityCode>, reason: ResyncReason) -> FrameChunks {
        let code = code.map_or("*", EntityCode::as_str);
        Bytes::from(format!("RESYNC {code} {}|", reason.as_str())).into()
    }

    fn whole_type_denied(&self, code: &EntityCode) -> FrameChunks {
        Bytes::from(format!("FORBIDDEN {code}|")).into()
    }
}

pub fn code(text: &str) -> EntityCode {
    EntityCode::parse(text).expect("a code")
}

pub fn id(text: &str) -> EntityId {
    IdForm::Text.parse(text).expect("an id")
}

pub fn subject(ids: &[&str]) -> Subject {
    if ids.is_empty() { Subject::WholeType } else { Subject::Ids(ids.iter().map(|text| id(text)).collect()) }
}

/// Lets other tasks run until something holds.
pub async fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..200_000 {
        if holds() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never holds");
}

/// Lets other tasks do what they can do without the clock.
pub async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}
