//! Idempotency: a repeated request gets the answer to the first one. Answers are cached in memory, up to a
//! limit; beyond that they are searched for in the log.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tidings_engine::log::{Boundary, ReadError, Span};
use tidings_model::{LogId, Position, Producer, Timestamp, limits};

use crate::event::{Event, is_first_of};
use crate::rooms::Inner;
use crate::{Cursor, RoomError};

/// Most repetitions come soon. The log is searched within these times first, the shortest first.
const REPEATED_WITHIN: [Duration; 3] =
    [Duration::from_secs(10), Duration::from_secs(10 * 60), Duration::from_secs(6 * 60 * 60)];

/// The answer to a write: consecutive positions and the time of the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) first: Position,
    pub(crate) count: usize,
    pub(crate) at: Timestamp,
}

impl Answer {
    /// The answer to a request that was not found: below every floor.
    pub(crate) const LOST: Self = Self { first: Position::ZERO, count: 0, at: Timestamp::from_millis(0) };

    /// Cursor and time of each event, as in the first answer.
    pub(crate) fn events(self) -> Vec<(Cursor, Timestamp)> {
        let place = |n: usize| self.first.further(n as u64).expect("positions that were given");
        (0..self.count).map(|n| (Cursor::at(place(n)), self.at)).collect()
    }
}

/// A bounded cache of recent answers.
#[derive(Default)]
pub(crate) struct IdempotencyCache(Mutex<CachedAnswers>);

#[derive(Default)]
struct CachedAnswers {
    known: HashMap<Request, Answer>,
    /// All cached requests, oldest first.
    order: VecDeque<Request>,
}

/// Identifies a request: a room's log and a producer stamp.
type Request = (LogId, Producer);

impl IdempotencyCache {
    pub(crate) fn remember(&self, log: LogId, producer: &Producer, answer: Answer) {
        let (request, mut state) = ((log, producer.clone()), self.lock());
        if state.known.insert(request.clone(), answer).is_some() {
            return;
        }
        state.order.push_back(request);
        if state.order.len() > limits::REMEMBERED_ANSWERS
            && let Some(oldest) = state.order.pop_front()
        {
            state.known.remove(&oldest);
        }
    }

    pub(crate) fn recall(&self, log: LogId, producer: &Producer) -> Option<Answer> {
        self.lock().known.get(&(log, producer.clone())).copied()
    }

    fn lock(&self) -> MutexGuard<'_, CachedAnswers> {
        self.0.lock().expect("nobody panics while holding the answers")
    }
}

impl Inner {
    /// The first answer to a repeated request.
    pub(crate) async fn repeated(
        &self,
        log: LogId,
        producer: &Producer,
    ) -> Result<Vec<(Cursor, Timestamp)>, RoomError> {
        let floor = self.store.status(log).await?.floor;
        let answer = match self.idempotency.recall(log, producer) {
            Some(answer) => answer,
            None => {
                let found = self.search(log, producer, floor).await?.unwrap_or(Answer::LOST);
                // Remembered even when not found, so that further repetitions do not search again.
                self.idempotency.remember(log, producer, found);
                found
            }
        };
        if answer.first > floor { Ok(answer.events()) } else { Err(RoomError::Forgotten) }
    }

    /// Searches the log above the floor for the events of a request, newest first, within a limit.
    async fn search(
        &self,
        log: LogId,
        producer: &Producer,
        floor: Position,
    ) -> Result<Option<Answer>, RoomError> {
        let (now, mut through, mut left) = (self.now(), Position::MAX, limits::REPEAT_SEARCH_EVENTS);
        let begins = REPEATED_WITHIN.map(|within| Cursor::first_of(now - within).position().max(floor));
        for after in begins.into_iter().chain([floor]) {
            if let Some(answer) = self.search_between(log, producer, (after, through), &mut left).await? {
                return Ok(Some(answer));
            }
            through = after;
        }
        Ok(None)
    }

    /// Searches a range of positions, until `left` records have been examined.
    async fn search_between(
        &self,
        log: LogId,
        producer: &Producer,
        (mut after, through): (Position, Position),
        left: &mut usize,
    ) -> Result<Option<Answer>, RoomError> {
        let mut answer: Option<Answer> = None;
        // An append that begins inside the range may end behind it.
        while answer.is_some() || (*left > 0 && after < through) {
            let span = match answer {
                Some(_) => Span::after(after),
                None => {
                    Span { through, records: limits::READ_CHUNK_RECORDS.min(*left), ..Span::after(after) }
                }
            };
            let page = match self.store.read(log, span).await {
                Err(ReadError::Trimmed { floor, .. }) if answer.is_none() => {
                    after = floor;
                    continue;
                }
                page => page?,
            };
            if page.records.is_empty() {
                return Ok(None);
            }
            *left = left.saturating_sub(page.records.len());
            after = page.last(after);
            for record in &page.records {
                let found = match &mut answer {
                    Some(answer) => answer,
                    None if is_first_of(record, producer) => {
                        let Some(event) = Event::of(record) else { continue };
                        answer.insert(Answer { first: record.position, count: 0, at: event.emitted_at })
                    }
                    None => continue,
                };
                found.count += 1;
                if record.boundary == Boundary::Last {
                    return Ok(answer);
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_model::ProducerId;

    #[test]
    fn the_oldest_make_room_for_others() {
        let cache = IdempotencyCache::default();
        let stamp = |sequence| Producer { id: ProducerId::parse("p").expect("an id"), epoch: 0, sequence };
        let (log, answer) = (LogId::new(1), Answer { first: Position::new(7), count: 2, ..Answer::LOST });
        for n in 0..limits::REMEMBERED_ANSWERS as u64 + 10 {
            cache.remember(log, &stamp(n), Answer::LOST);
            cache.remember(log, &stamp(n), answer);
        }
        assert_eq!(cache.recall(log, &stamp(9)), None);
        assert_eq!(cache.recall(log, &stamp(10)), Some(answer));
        assert_eq!(cache.recall(LogId::new(2), &stamp(10)), None);
        assert_eq!(cache.lock().known.len(), limits::REMEMBERED_ANSWERS);
        assert_eq!(cache.lock().order.len(), limits::REMEMBERED_ANSWERS);
    }
}
