//! Nothing acknowledged is lost when the process is killed, as clients see it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidings_testing::http;

use tidings_testing::Process;
use tidings_testing::http::{Client, Method};

/// Rounds in every run of the tests; `make test-all` sets more.
const ROUNDS: u64 = 20;
const WRITERS: u64 = 8;
/// Streams that one writer has at a time, so that checking them all stays quick.
const LIVING_MAX: usize = 40;
/// Deleted streams that are looked for again after each kill.
const DELETED_MAX: usize = 40;

fn rounds() -> u64 {
    std::env::var("TIDINGS_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS)
}

/// A stream as its one writer was told.
#[derive(Clone, Debug, Default)]
struct Told {
    /// How many messages were acknowledged; message n has sequence number n.
    messages: u64,
    closed: bool,
    deleted: bool,
}

/// What a writer was not told when the server was killed.
#[derive(Clone, Debug, PartialEq)]
enum Unsure {
    Nothing,
    Create(String),
    Append(String),
    Close(String),
    Delete(String),
}

struct Writer {
    number: u64,
    rng: fastrand::Rng,
    streams: BTreeMap<String, Told>,
    created: u64,
    unsure: Unsure,
}

impl Writer {
    /// Creates, appends, closes and deletes until the server does not answer any more.
    async fn work(mut self, base: String, killed: Arc<AtomicBool>) -> Self {
        let client = Client::new();
        loop {
            let open: Vec<String> =
                self.living().filter(|(_, told)| !told.closed).map(|(id, _)| id.clone()).collect();
            let living: Vec<String> = self.living().map(|(id, _)| id.clone()).collect();
            let (step, request) = match self.rng.u8(..100) {
                0..10 if living.len() < LIVING_MAX => self.create(&client, &base),
                10..13 if !open.is_empty() => {
                    let id = self.rng.choice(open).expect("there is one");
                    let request =
                        client.post(format!("{base}/v1/k/stream/{id}")).header("stream-closed", "true");
                    (Unsure::Close(id), request)
                }
                13..16 if living.len() > 3 => {
                    let id = self.rng.choice(living).expect("there is one");
                    (Unsure::Delete(id.clone()), client.delete(format!("{base}/v1/k/stream/{id}")))
                }
                _ if !open.is_empty() => {
                    let id = self.rng.choice(open).expect("there is one");
                    let request = self.append(&client, &base, &id, self.streams[&id].messages);
                    (Unsure::Append(id), request)
                }
                _ => self.create(&client, &base),
            };
            match request.send().await {
                Ok(answer) if answer.status().is_success() => self.acknowledged(step),
                Ok(answer) => panic!("{step:?} answered {}", answer.status()),
                Err(error) => {
                    assert!(killed.load(Ordering::SeqCst), "{step:?} failed before the kill: {error}");
                    self.unsure = step;
                    return self;
                }
            }
        }
    }

    fn living(&self) -> impl Iterator<Item = (&String, &Told)> {
        self.streams.iter().filter(|(_, told)| !told.deleted)
    }

    fn create(&mut self, client: &Client, base: &str) -> (Unsure, http::RequestBuilder) {
        self.created += 1;
        let id = format!("{}-{}", self.number, self.created);
        let request =
            client.put(format!("{base}/v1/k/stream/{id}")).header("content-type", "application/json");
        (Unsure::Create(id), request)
    }

    fn append(&self, client: &Client, base: &str, id: &str, message: u64) -> http::RequestBuilder {
        client
            .post(format!("{base}/v1/k/stream/{id}"))
            .header("content-type", "application/json")
            .header("producer-id", format!("writer-{}", self.number))
            .header("producer-epoch", "0")
            .header("producer-seq", message.to_string())
            .body(message.to_string())
    }

    fn acknowledged(&mut self, step: Unsure) {
        match step {
            Unsure::Nothing => {}
            Unsure::Create(id) => {
                self.streams.insert(id, Told::default());
            }
            Unsure::Append(id) => self.streams.get_mut(&id).expect("known").messages += 1,
            Unsure::Close(id) => self.streams.get_mut(&id).expect("known").closed = true,
            Unsure::Delete(id) => self.streams.get_mut(&id).expect("known").deleted = true,
        }
    }

    /// Compares all streams with what was told, and finds out about the one request that was not answered.
    async fn check(&mut self, base: &str) {
        let client = Client::new();
        let unsure = std::mem::replace(&mut self.unsure, Unsure::Nothing);
        if let Unsure::Create(id) = &unsure {
            let answer = client
                .request(Method::HEAD, format!("{base}/v1/k/stream/{id}"))
                .send()
                .await
                .expect("an answer");
            if answer.status() == 200 {
                self.streams.insert(id.clone(), Told::default());
            }
        }
        let deleted = self.streams.iter().filter(|(_, told)| told.deleted).map(|(id, _)| id.clone());
        let deleted: Vec<String> = deleted.collect();
        for id in deleted.iter().take(deleted.len().saturating_sub(DELETED_MAX)) {
            self.streams.remove(id);
        }
        let ids: Vec<String> = self.streams.keys().cloned().collect();
        for id in ids {
            let answer = client.get(format!("{base}/v1/k/stream/{id}")).send().await.expect("an answer");
            let told = self.streams.get_mut(&id).expect("known");
            if answer.status() == 404 {
                assert!(told.deleted || unsure == Unsure::Delete(id.clone()), "{id} is lost");
                told.deleted = true;
                continue;
            }
            assert!(!told.deleted, "{id} has come back");
            assert_eq!(answer.status(), 200);
            let closed = answer.headers().contains_key("stream-closed");
            assert!(closed == told.closed || unsure == Unsure::Close(id.clone()), "{id}: closed is {closed}");
            told.closed = closed;
            let messages: Vec<u64> = answer.json().await.expect("a list of numbers");
            assert_eq!(
                messages,
                (0..messages.len() as u64).collect::<Vec<_>>(),
                "{id}: each message once, in order"
            );
            let more = u64::from(unsure == Unsure::Append(id.clone()));
            let count = messages.len() as u64;
            assert!(
                (told.messages..=told.messages + more).contains(&count),
                "{id}: {count} of {}",
                told.messages
            );
            told.messages = count;
            if count > 0 && !closed {
                self.is_still_fenced(&client, base, &id, count).await;
            }
        }
    }

    /// A repeated request adds nothing; a later one than the next is refused.
    async fn is_still_fenced(&self, client: &Client, base: &str, id: &str, count: u64) {
        let repeat = self.append(client, base, id, count - 1).send().await.expect("an answer");
        assert_eq!(repeat.status(), 204, "{id}: a repeat is recognised");
        let gap = self.append(client, base, id, count + 1).send().await.expect("an answer");
        assert_eq!(gap.status(), 409, "{id}: a gap is recognised");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_kill_9_under_load() {
    let mut server = Process::serve(&[]).await;
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|number| Writer {
            number,
            rng: fastrand::Rng::with_seed(number),
            streams: BTreeMap::new(),
            created: 0,
            unsure: Unsure::Nothing,
        })
        .collect();
    let mut rng = fastrand::Rng::with_seed(99);
    for _ in 0..rounds() {
        let killed = Arc::new(AtomicBool::new(false));
        let base = server.url("");
        let tasks: Vec<_> = writers
            .into_iter()
            .map(|writer| tokio::spawn(writer.work(base.clone(), killed.clone())))
            .collect();
        // Long enough for some hundred requests, and never at the same point.
        tokio::time::sleep(std::time::Duration::from_millis(rng.u64(100..400))).await;
        killed.store(true, Ordering::SeqCst);
        server.kill().await;
        writers = Vec::new();
        for task in tasks {
            writers.push(task.await.expect("the writer found nothing wrong"));
        }
        server = server.restart().await;
        let base = server.url("");
        for writer in &mut writers {
            writer.check(&base).await;
        }
    }
    let messages: u64 =
        writers.iter().flat_map(|writer| writer.streams.values()).map(|told| told.messages).sum();
    assert!(messages > 500, "there was load: {messages} messages");
}
