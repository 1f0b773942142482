//! Bodies that were made lately, so that hooks that hear the same event share them.

use std::sync::Arc;

use bytes::Bytes;
use tidings_model::{LogId, Position, ProjectId};

use crate::event::Event;
use crate::hook::Format;

/// Number of bodies that are remembered.
const BODIES: usize = 64;
/// Bytes of a body that is remembered.
const BODY_BYTES: usize = 64 * 1024;

/// An event and its body in one format.
#[derive(Debug)]
pub(super) struct Rendered {
    /// The event.
    pub(super) event: Event,
    /// Its body.
    pub(super) body: Bytes,
}

/// The bodies of recent events. Each event has one place, so memory and time are bounded without a list.
#[derive(Debug)]
pub(super) struct Bodies(Vec<Option<(Key, Arc<Rendered>)>>);

/// What a body is made of. The project is that of the event, so it need not be compared.
type Key = ((LogId, Position), Format);

impl Default for Bodies {
    fn default() -> Self {
        Self((0..BODIES).map(|_| None).collect())
    }
}

impl Bodies {
    /// The body of an event in a format. `origin` says which event the record is; without it nothing is remembered.
    /// Returns `None` if the record is no event.
    pub(super) fn body(
        &mut self,
        record: &Bytes,
        origin: Option<(LogId, Position)>,
        format: Format,
        project: &ProjectId,
    ) -> Option<Arc<Rendered>> {
        let key = origin.map(|origin| (origin, format));
        let place = origin.map(|(log, position)| {
            let (commit, index) = position.parts();
            (log.get().wrapping_mul(31) ^ commit.get().wrapping_mul(7) ^ index) as usize % BODIES
        });
        if let (Some(key), Some(place)) = (key, place)
            && let Some((known, rendered)) = &self.0[place]
            && *known == key
        {
            return Some(rendered.clone());
        }
        let event = Event::from_record(record)?;
        let body = event.body(format, project);
        let small = body.len() <= BODY_BYTES;
        let rendered = Arc::new(Rendered { event, body });
        if let (Some(key), Some(place), true) = (key, place, small) {
            self.0[place] = Some((key, rendered.clone()));
        }
        Some(rendered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str) -> Bytes {
        let text = |text: &str| text.to_owned();
        let (event_type, id, ts) = (text("a"), text(id), text("t"));
        let json = Bytes::from_static(b"{\"a\":1}");
        Event { event_type, id, ts, about: None, id_chosen: false, json }.to_record()
    }

    #[test]
    fn hooks_that_hear_the_same_event_in_the_same_format_share_its_body() {
        let mut bodies = Bodies::default();
        let project = ProjectId::parse("shop").expect("an id");
        let mut body = |position: u128, format, id: &str| {
            let origin = Some((LogId::new(1), Position::new(position)));
            bodies.body(&record(id), origin, format, &project).expect("an event")
        };
        let first = body(1, Format::Envelope, "one");
        assert!(Arc::ptr_eq(&first, &body(1, Format::Envelope, "one")));
        assert!(!Arc::ptr_eq(&first, &body(1, Format::Raw, "one")));
        for position in 2..1000 {
            let id = position.to_string();
            assert_eq!(body(position, Format::Raw, &id).event.id, id);
        }
        assert!(bodies.body(&Bytes::from_static(b"x"), None, Format::Raw, &project).is_none());
    }
}
