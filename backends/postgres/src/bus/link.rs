//! A connection that listens and notifies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_broker::{Command, Event, Link};
use tokio_postgres::{AsyncMessage, Client, Config, Error, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::notification;
use crate::error::message;

/// The channel of PostgreSQL that all nodes listen to.
const CHANNEL: &str = "tidings_bus";
/// Prepares a connection. A setting of the role could make every commit wait for a standby, which has nothing to do here.
const PREPARE: &str = "SET search_path = pg_catalog; SET synchronous_commit = off; LISTEN tidings_bus";
/// Notifies of all texts in one transaction, in their order.
const NOTIFY: &str = "SELECT pg_notify('tidings_bus', message) FROM unnest($1::text[]) AS message";
/// Notifications in one statement.
const BATCH: usize = 1000;
/// Bytes of notifications that wait above which no further command begins.
const FULL_BYTES: usize = 1024 * 1024;

/// Takes the next message of the server. Sends what is to be sent meanwhile.
type Receive = Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>> + Send>;

struct Listening {
    client: Arc<Client>,
    notify: Statement,
    receive: Receive,
    /// What commands are to be answered, the oldest first. Those in the statement that is under way are the first ones.
    commands: VecDeque<Asked>,
    waiting_bytes: usize,
    /// The statement that is under way, and the number of commands in it.
    underway: Option<(BoxFuture<'static, Result<(), Error>>, usize)>,
    next_number: u32,
}

enum Asked {
    /// Notify of this text. `None` while the statement is under way.
    Notify(Option<String>),
    /// Only answer. A subscription needs no more, since every node hears everything. What was notified of before has
    /// arrived when the answer does.
    Answer,
    /// What does not fit into a notification.
    TooLarge,
}

/// Connects, listens, and makes sure that notifications arrive.
pub(super) async fn connect(config: &Config, tls: &MakeRustlsConnect) -> Result<Box<dyn Link>, String> {
    let failed = |error: Error| message(&error);
    let (client, mut connection) = config.connect(tls.clone()).await.map_err(failed)?;
    let client = Arc::new(client);
    let mut receive: Receive = Box::new(move |cx| connection.poll_message(cx));
    let ours = client.clone();
    let mut preparing: BoxFuture<'static, Result<Statement, Error>> = Box::pin(async move {
        ours.batch_execute(PREPARE).await?;
        let notify = ours.prepare(NOTIFY).await?;
        // Only the network could keep this from being heard: or a connection pooler, behind which nobody can listen.
        ours.execute(&notify, &[&vec![String::new()]]).await?;
        Ok(notify)
    });
    let mut prepared = None;
    let mut is_heard = false;
    let notify = std::future::poll_fn(|cx| {
        loop {
            if prepared.is_none()
                && let Poll::Ready(result) = preparing.as_mut().poll(cx)
            {
                prepared = Some(result?);
            }
            match receive(cx) {
                Poll::Ready(Some(Ok(AsyncMessage::Notification(heard)))) => {
                    is_heard |= heard.channel() == CHANNEL && heard.payload().is_empty();
                }
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                Poll::Ready(None) => return Poll::Ready(Ok(None)),
                Poll::Pending => match prepared.take() {
                    Some(notify) if is_heard => return Poll::Ready(Ok(Some(notify))),
                    waiting => {
                        prepared = waiting;
                        return Poll::Pending;
                    }
                },
            }
        }
    });
    let notify = notify.await.map_err(failed)?.ok_or_else(closed)?;
    Ok(Box::new(Listening {
        client,
        notify,
        receive,
        commands: VecDeque::new(),
        waiting_bytes: 0,
        underway: None,
        next_number: 0,
    }))
}

fn closed() -> String {
    "the database has closed the connection".to_owned()
}

impl Listening {
    /// Begins a statement with what waits.
    fn begin_statement(&mut self) {
        let mut texts = Vec::new();
        let mut commands = 0;
        for asked in self.commands.iter_mut().take(BATCH) {
            match asked {
                Asked::Notify(text) => texts.extend(text.take()),
                Asked::Answer => {}
                Asked::TooLarge => break,
            }
            commands += 1;
        }
        self.waiting_bytes -= texts.iter().map(String::len).sum::<usize>();
        let (client, notify) = (self.client.clone(), self.notify.clone());
        let statement = async move { client.execute(&notify, &[&texts]).await.map(drop) };
        self.underway = Some((statement.boxed(), commands));
    }

    /// The answer to the oldest command, if it is known.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, String>> {
        if self.underway.is_none() {
            match self.commands.front() {
                None => return Poll::Pending,
                Some(Asked::TooLarge) => {
                    self.commands.pop_front();
                    return Poll::Ready(Ok(Event::Refused("the message is too large".to_owned())));
                }
                Some(Asked::Notify(_) | Asked::Answer) => self.begin_statement(),
            }
        }
        let Some((statement, commands)) = &mut self.underway else { return Poll::Pending };
        let (result, commands) = match statement.as_mut().poll(cx) {
            Poll::Ready(result) => (result, *commands),
            Poll::Pending => return Poll::Pending,
        };
        self.underway = None;
        match result {
            Ok(()) => {
                self.commands.drain(..commands);
                Poll::Ready(Ok(Event::Done(commands)))
            }
            // For example because the queue of notifications of the server is full: nothing of it was sent. Who asked is
            // told, and the connection begins anew.
            Err(error) => Poll::Ready(Err(message(&error))),
        }
    }
}

impl Link for Listening {
    fn begin(&mut self, command: Command<'_>) {
        let asked = match command {
            Command::Publish(channel, message) => {
                self.next_number = self.next_number.wrapping_add(1);
                match notification::write(self.next_number, channel, message) {
                    Some(text) => {
                        self.waiting_bytes += text.len();
                        Asked::Notify(Some(text))
                    }
                    None => Asked::TooLarge,
                }
            }
            Command::Subscribe(_) | Command::Ping => Asked::Answer,
            Command::Unsubscribe(_) => return,
        };
        self.commands.push_back(asked);
    }

    fn is_full(&self) -> bool {
        self.waiting_bytes >= FULL_BYTES
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, String>> {
        loop {
            if let Poll::Ready(answer) = self.poll_answer(cx) {
                return Poll::Ready(answer);
            }
            match (self.receive)(cx) {
                Poll::Ready(Some(Ok(AsyncMessage::Notification(heard)))) => {
                    if heard.channel() == CHANNEL
                        && let Some((channel, message)) = notification::read(heard.payload())
                    {
                        return Poll::Ready(Ok(Event::Message { channel, message }));
                    }
                }
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(message(&error))),
                Poll::Ready(None) => return Poll::Ready(Err(closed())),
                // What was received may have ended the statement, which has then woken the task.
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
