use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_model::Position;

use super::channel::{Channel, End};
use super::{Batch, Frame, Lost};
use crate::log::{Page, Span};

/// One reader's cursor. Leaves its channel when dropped.
pub struct Subscription {
    channel: Arc<Channel>,
    slot: usize,
    /// The last it has heard.
    after: Position,
    /// It is not shown a lower stamp than this.
    stamp: u64,
    read_state: ReadState,
    /// How many records the channel had told before this reader's next one, once it has reached the ring.
    heard: Option<u64>,
    /// Whether it has ever had all there was.
    caught_up: bool,
    /// The first frame is given also when there is nothing new: it tells where the reader is.
    greeted: bool,
    over: Option<Step>,
}

enum ReadState {
    /// In the log, about to read.
    Log,
    /// In the log, reading up to a position.
    Reading(BoxFuture<'static, Result<Page, Lost>>, Position),
    /// In the log, with a frame that another reader has read there.
    Kept(Frame),
    /// In the ring, at the frame of this number.
    Ring(u64),
}

/// What a reader is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There are frames.
    Frames,
    /// The log is closed, as the last frame said.
    Closed,
    /// The log cannot be read any more, or not from here.
    Lost(Lost),
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
            heard: None,
            caught_up: false,
            greeted: false,
            over: None,
        }
    }

    /// The last it has heard.
    pub fn position(&self) -> Position {
        self.after
    }

    /// Whether it has ever had all there was.
    pub fn has_caught_up(&self) -> bool {
        self.caught_up
    }

    /// How many records it has not heard yet; none until it has once had all there was.
    pub fn lag(&self) -> Option<u64> {
        let heard = self.heard.filter(|_| self.caught_up)?;
        Some(self.channel.lock().told.saturating_sub(heard))
    }

    /// Gives the next frames to `take`, until they have at least so many bytes. Pending when there is nothing new; the
    /// waker is called when there is, and may be called without need.
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
                            // The log may end meanwhile.
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

    /// The next frames, of which there is at least one, or how it ended.
    pub async fn next(&mut self, room: usize, mut take: impl FnMut(&Frame)) -> Step {
        std::future::poll_fn(|cx| self.poll_frames(cx, room, &mut take)).await
    }

    /// Frames from the ring; none when the reader has to look elsewhere.
    fn poll_ring(
        &mut self,
        cx: &mut Context<'_>,
        next: u64,
        room: usize,
        take: &mut impl FnMut(&Frame),
    ) -> Poll<Option<Step>> {
        let Self { channel, slot, after, stamp, read_state, heard, caught_up, over, .. } = self;
        let mut state = channel.lock();
        let Some(frames) = state.frames(next) else {
            // It was so slow that the ring has gone on without it.
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
            *heard = heard.map(|heard| heard + records);
            *read_state = ReadState::Ring(next + taken);
            *over = closed.then_some(Step::Closed);
            return Poll::Ready(Some(Step::Frames));
        }
        if next < state.end() {
            // Its stamp is higher than what the others are shown.
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

    /// Goes on to the ring if it can, otherwise begins to read the log, or waits.
    fn begin(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.channel.lock();
        if self.greeted
            && let Some(next) = state.locate(self.after)
        {
            let first = state.frames(next).and_then(|mut frames| frames.next());
            let shown = first.map_or_else(|| self.channel.encode.stamp(), |frame| frame.stamp);
            if shown >= self.stamp {
                state.note(self.slot, self.after, Some(next));
                self.heard = Some(state.told_before(next));
                self.read_state = ReadState::Ring(next);
                return Poll::Ready(());
            }
        }
        if self.greeted && self.after >= state.head {
            match state.ended {
                Some(End::Lost(lost)) => {
                    self.over = Some(Step::Lost(lost));
                    return Poll::Ready(());
                }
                // The frame that says so is not for it, so it asks the log.
                Some(End::Closed) => {}
                None => {
                    state.wait(self.slot, cx.waker());
                    return Poll::Pending;
                }
            }
        }
        // Not beyond the head: that is where a frame begins, so that is where it can go on to the ring.
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

    /// A frame of its own, from the log.
    fn own(&mut self, page: &Page, through: Position) -> Frame {
        let after = self.after;
        // When all that was to be read is gone there is nothing more to read up to there.
        let next = if page.records.is_empty() { after.max(through) } else { page.last(after) };
        let up_to_date = next >= page.status.tail;
        let closed = page.status.closed && up_to_date;
        let batch = Batch { records: &page.records, next, up_to_date, closed };
        let stamp = self.channel.encode.stamp().max(self.stamp);
        let frame = Frame::of(&batch, after, &*self.channel.encode, stamp);
        self.pass(&frame);
        // Many come to the same read_state, as the start is one; they need not all hold a copy.
        let before = self.channel.lock().keep(frame.clone(), through);
        drop(before);
        frame
    }

    /// Goes past a frame that was not in the ring.
    fn pass(&mut self, frame: &Frame) {
        self.after = frame.next;
        self.heard = self.heard.map(|heard| heard + frame.records as u64);
        self.channel.lock().note(self.slot, self.after, None);
        self.greeted = true;
        // A reader that is ahead in time is soon shown what the others are.
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
