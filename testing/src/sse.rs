//! Reader of server-sent events that sees what a client sees.

use crate::http::Response;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Name of the event.
    pub name: String,
    /// Data of the event, lines joined.
    pub data: String,
    /// Id of the event, if it has one.
    pub id: Option<String>,
}

impl Event {
    /// The data as JSON.
    ///
    /// # Panics
    /// If it is not JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("{error} in {:?}", self.data))
    }
}

/// The events of one response.
pub struct Events {
    answer: Response,
    unread: Vec<u8>,
}

impl Events {
    /// Reads a response, which must be an event stream.
    pub fn of(answer: Response) -> Self {
        let content_type = answer.headers().get("content-type").expect("a content type");
        assert!(content_type.as_bytes().starts_with(b"text/event-stream"), "{content_type:?}");
        Self { answer, unread: Vec::new() }
    }

    /// The next event; `None` at the end of the response. Skips comments.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            while let Some(end) = self.unread.windows(2).position(|two| two == b"\n\n") {
                let block: Vec<u8> = self.unread.drain(..end + 2).collect();
                if let Some(event) = parse(std::str::from_utf8(&block).expect("events are UTF-8")) {
                    return Some(event);
                }
            }
            let bytes = self.answer.chunk().await.expect("the answer goes on")?;
            self.unread.extend_from_slice(&bytes);
        }
    }
}

fn parse(block: &str) -> Option<Event> {
    let mut event = Event::default();
    let mut data: Vec<&str> = Vec::new();
    for line in block.lines().filter(|line| !line.is_empty() && !line.starts_with(':')) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => event.name = value.to_owned(),
            "data" => data.push(value),
            "id" => event.id = Some(value.to_owned()),
            _ => {}
        }
    }
    event.data = data.join("\n");
    if event == Event::default() { None } else { Some(event) }
}
