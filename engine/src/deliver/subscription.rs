//! Subscriptions: the cursor of one reader, in the log or in the ring of a channel.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_model::Position;

use super::channel::{Channel, End};
use super::{Batch, Frame, Lost};
use crate::log::{Page, Span};

/// One reader's cursor in a channel. Leaves the channel when dropped.
pub struct Subscription {
    channel: Arc<Channel>,
    slot: usize,
    /// Position of the last record that the reader has taken.
    after: Position,
    /// Lowest stamp of frames that the reader accepts.
    stamp: u64,
    read_state: ReadState,
    /// Records of the channel before this reader's next one; `None` until it has reached the ring.
    records_read: Option<u64>,
    /// Whether the reader has ever reached the tail.
    caught_up: bool,
    /// Whether the first frame was given. It is given even when nothing is new, because it carries the
    /// reader's position.
    has_first_frame: bool,
    over: Option<Step>,
}

enum ReadState {
    /// Behind the ring, about to read the log.
    Log,
    /// Behind the ring, reading the log up to a position.
    Reading(BoxFuture<'static, Result<Page, Lost>>, Position),
    /// Behind the ring, with a frame that another reader read from the log.
    Kept(Frame),
    /// In the ring, before the frame of this number.
    Ring(u64),
}

/// The result of polling a subscription or a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// At least one frame was taken.
    Frames,
    /// The log is closed, and the reader has taken its last frame.
    Closed,
    /// The log cannot be read any more, or not from the reader's position.
    Lost(Lost),
    /// The reader of a bundle is more bytes behind than it may be.
    TooSlow,
}

impl Subscription {
    pub(super) fn new(channel: Arc<Channel>, after: Position, stamp: u64) -> Self {
        let slot = channel.lock().enter(after);
        let read_state = ReadState::Log;
        Self {
            channel,
            slot,
            after,
            stamp,
            read_state,
            records_read: None,
            caught_up: false,
            has_first_frame: false,
            over: None,
        }
    }

    /// Position of the last record that the reader has taken.
    pub fn position(&self) -> Position {
        self.after
    }

    /// Whether the reader has ever reached the tail.
    pub fn has_caught_up(&self) -> bool {
        self.caught_up
    }

    /// Number of records that the reader has not taken yet; `None` until it has reached the tail once.
    pub fn lag(&self) -> Option<u64> {
        let records_read = self.records_read.filter(|_| self.caught_up)?;
        Some(self.channel.lock().pushed.saturating_sub(records_read))
    }

    /// Passes the next frames to `take`, until they have at least `room` bytes. Pending when nothing is new;
    /// the waker may also be called spuriously.
    pub fn poll_frames(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        take: &mut impl FnMut(&Frame),
    ) -> Poll<Step> {
        loop {
            if let Some(over) = self.over {
                return Poll::Ready(over);
            }
            match &mut self.read_state {
                ReadState::Ring(next) => {
                    let next = *next;
                    if let Some(step) = ready!(self.poll_ring(cx, next, room, take)) {
                        return Poll::Ready(step);
                    }
                }
                ReadState::Log => ready!(self.begin(cx)),
                ReadState::Kept(frame) => {
                    let frame = frame.clone();
                    self.read_state = ReadState::Log;
                    self.pass(&frame);
                    take(&frame);
                    return Poll::Ready(Step::Frames);
                }
                ReadState::Reading(reading, through) => {
                    let through = *through;
                    let read = match reading.poll_unpin(cx) {
                        Poll::Ready(read) => read,
                        Poll::Pending => {
                            // Registers with the channel too: the log may end during the read.
                            self.channel.lock().wait(self.slot, cx.waker());
                            return Poll::Pending;
                        }
                    };
                    self.read_state = ReadState::Log;
                    match read {
                        Ok(page) => {
                            take(&self.own(&page, through));
                            return Poll::Ready(Step::Frames);
                        }
                        Err(lost) => self.over = Some(Step::Lost(lost)),
                    }
                }
            }
        }
    }

    /// Waits for the next frames, at least one, or the end of the channel.
    pub async fn next(&mut self, room: usize, mut take: impl FnMut(&Frame)) -> Step {
        std::future::poll_fn(|cx| self.poll_frames(cx, room, &mut take)).await
    }

    /// Takes frames from the ring. Returns `None` when the reader's state has changed and must be looked at
    /// again.
    fn poll_ring(
        &mut self,
        cx: &mut Context<'_>,
        next: u64,
        room: usize,
        take: &mut impl FnMut(&Frame),
    ) -> Poll<Option<Step>> {
        let Self { channel, slot, after, stamp, read_state, records_read, caught_up, over, .. } = self;
        let mut state = channel.lock();
        let Some(frames) = state.frames(next) else {
            // The reader was so slow that its next frame was dropped from the ring.
            state.note(*slot, *after, None);
            *read_state = ReadState::Log;
            return Poll::Ready(None);
        };
        let (mut taken, mut bytes, mut records, mut closed) = (0, 0, 0, false);
        for frame in frames.take_while(|frame| frame.stamp >= *stamp) {
            if bytes >= room && taken > 0 {
                break;
            }
            taken += 1;
            bytes += frame.bytes.len();
            records += frame.records as u64;
            closed = frame.closed;
            *after = frame.next;
            take(frame);
        }
        if taken > 0 {
            state.note(*slot, *after, Some(next + taken));
            *records_read = records_read.map(|records_read| records_read + records);
            *read_state = ReadState::Ring(next + taken);
            *over = closed.then_some(Step::Closed);
            return Poll::Ready(Some(Step::Frames));
        }
        if next < state.end() {
            // The reader asked for a higher stamp than this frame has, so it reads the log itself.
            state.note(*slot, *after, None);
            *read_state = ReadState::Log;
            return Poll::Ready(None);
        }
        if let Some(end) = state.ended {
            *over = Some(end.into());
            return Poll::Ready(None);
        }
        *caught_up = true;
        state.wait(*slot, cx.waker());
        Poll::Pending
    }

    /// Moves to the ring if the reader has reached it; otherwise begins to read the log, or waits.
    fn begin(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.channel.lock();
        if self.has_first_frame
            && let Some(next) = state.locate(self.after)
        {
            let first = state.frames(next).and_then(|mut frames| frames.next());
            let shown = first.map_or_else(|| self.channel.encode.stamp(), |frame| frame.stamp);
            if shown >= self.stamp {
                state.note(self.slot, self.after, Some(next));
                self.records_read = Some(state.records_before(next));
                self.read_state = ReadState::Ring(next);
                return Poll::Ready(());
            }
        }
        if self.has_first_frame && self.after >= state.head {
            match state.ended {
                Some(End::Lost(lost)) => {
                    self.over = Some(Step::Lost(lost));
                    return Poll::Ready(());
                }
                // The closing frame has too low a stamp for this reader, so it reads the log.
                Some(End::Closed) => {}
                None => {
                    state.wait(self.slot, cx.waker());
                    return Poll::Pending;
                }
            }
        }
        // Not beyond the head: a frame begins there, so that is where the reader can move to the ring.
        let bytes = self.channel.limits.own_bytes;
        let through = state.head;
        if let Some(frame) = state.kept(self.after, through, self.channel.encode.stamp().max(self.stamp)) {
            self.read_state = ReadState::Kept(frame);
            return Poll::Ready(());
        }
        let span = Span { through, bytes, ..Span::after(self.after) };
        drop(state);
        let source = self.channel.source.clone();
        self.read_state = ReadState::Reading(async move { source.read(span).await }.boxed(), through);
        Poll::Ready(())
    }

    /// Encodes a page of the log as a frame for this reader.
    fn own(&mut self, page: &Page, through: Position) -> Frame {
        let after = self.after;
        // An empty page means that the records up to `through` are gone, so there is nothing left to read
        // before it.
        let next = if page.records.is_empty() { after.max(through) } else { page.last(after) };
        let up_to_date = next >= page.status.tail;
        let closed = page.status.closed && up_to_date;
        let batch = Batch { records: &page.records, next, up_to_date, closed };
        let stamp = self.channel.encode.stamp().max(self.stamp);
        let frame = Frame::of(&batch, after, &*self.channel.encode, stamp);
        self.pass(&frame);
        // Many readers resume from the same position, usually the start; they share this frame.
        let before = self.channel.lock().keep(frame.clone(), through);
        drop(before);
        frame
    }

    /// Moves past a frame that was not in the ring.
    fn pass(&mut self, frame: &Frame) {
        self.after = frame.next;
        self.records_read = self.records_read.map(|records_read| records_read + frame.records as u64);
        self.channel.lock().note(self.slot, self.after, None);
        self.has_first_frame = true;
        // A reader that asked for a stamp in the future gets the shared frames again as soon as possible.
        self.stamp = self.stamp.min(self.channel.encode.stamp().saturating_add(1));
        if frame.closed {
            self.over = Some(Step::Closed);
        }
    }
}

impl From<End> for Step {
    fn from(end: End) -> Self {
        match end {
            End::Closed => Self::Closed,
            End::Lost(lost) => Self::Lost(lost),
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let waker = self.channel.lock().leave(self.slot);
        drop(waker);
    }
}
