//! A frame in a ring, and runs of frames that are sent as one.

use std::sync::Arc;

use bytes::BytesMut;

use super::Frame;
use super::bundle::Shared;

/// Bytes of frames that are joined at most. A client that is being cut is sent no more than that of what it should
/// not get any more.
const RUN_BYTES: usize = 16 * 1024;
/// Bytes of a frame beyond which copying it costs more than another piece of a write.
const JOINED_BYTES: usize = 4 * 1024;

/// A frame in a ring.
pub(super) struct Published {
    pub(super) frame: Frame,
    /// Number of the bundle that does not receive it.
    pub(super) except: Option<u64>,
    /// The other rings that have it.
    pub(super) copies: Option<Copies>,
    /// Bytes of all frames up to this one, inclusive.
    pub(super) through: u64,
    /// The run that begins with this frame.
    pub(super) run: Option<Box<Run>>,
}

/// A frame that is in the rings of several patterns: which a bundle does not receive from here.
#[derive(Clone)]
pub(super) struct Copies {
    pub(super) route: Arc<Route>,
    /// Number of the route's groups before this ring. Their members receive the frame there.
    pub(super) before: usize,
}

/// Where a frame was published that patterns match.
pub(super) struct Route {
    /// The name under which it was published.
    pub(super) name: Arc<str>,
    /// Bytes of the name as patterns see it, which is the end of it.
    pub(super) path_bytes: usize,
    /// Numbers of the patterns that match the name, ascending. The first one of a bundle is where it receives the frame; a
    /// bundle without one receives it from the ring of the name.
    pub(super) groups: Box<[u64]>,
}

impl Route {
    /// The name as patterns see it.
    pub(super) fn path(&self) -> &str {
        &self.name[self.name.len() - self.path_bytes..]
    }
}

impl Copies {
    /// The groups whose members receive the frame there.
    pub(super) fn elsewhere(&self) -> &[u64] {
        &self.route.groups[..self.before]
    }
}

impl Published {
    /// The frame, if a bundle receives it from here.
    pub(super) fn frame_for(&self, bundle: &Shared) -> Option<&Frame> {
        let is_elsewhere = || self.copies.as_ref().is_some_and(|copies| bundle.has_any(copies.elsewhere()));
        (self.except != Some(bundle.number()) && !is_elsewhere()).then_some(&self.frame)
    }
}

/// Consecutive frames in one chunk, for members that receive all of them.
pub(super) struct Run {
    pub(super) frame: Frame,
    /// Number of frames in it.
    pub(super) count: usize,
    /// Bytes of all frames up to its last one, inclusive.
    pub(super) through: u64,
    /// Numbers of the bundles that do not receive all of them.
    excepts: Vec<u64>,
    /// Groups whose members receive some of them there.
    elsewhere: Vec<u64>,
}

impl Run {
    /// Whether a bundle receives all of its frames.
    pub(super) fn is_for(&self, bundle: &Shared) -> bool {
        !self.excepts.contains(&bundle.number()) && !bundle.has_any(&self.elsewhere)
    }
}

/// Joins consecutive frames into runs. The frames become slices of what was joined, so nothing is kept twice.
pub(super) fn join(frames: &mut [&mut Published]) {
    let mut rest = frames;
    while let Some(first) = rest.first() {
        let alone = first.frame.bytes.len() > JOINED_BYTES;
        let mut bytes = 0;
        let fitting = rest.iter().take_while(|published| {
            let len = published.frame.bytes.len();
            bytes += len;
            len <= JOINED_BYTES && bytes <= RUN_BYTES
        });
        let count = if alone { 1 } else { fitting.count() };
        let (some, others) = rest.split_at_mut(count);
        join_all(some);
        rest = others;
    }
}

fn join_all(frames: &mut [&mut Published]) {
    let ([first, .., last], count) = (&*frames, frames.len()) else { return };
    let through = last.through;
    let (mut excepts, mut elsewhere) = (Vec::new(), Vec::new());
    let start = first.through - first.frame.bytes.len() as u64;
    // The frames between two totals.
    let mut joined = BytesMut::with_capacity(usize::try_from(through - start).unwrap_or_default());
    for published in frames.iter() {
        published.frame.bytes.as_slice().iter().for_each(|chunk| joined.extend_from_slice(chunk));
        excepts.extend(published.except.filter(|except| !excepts.contains(except)));
        for group in published.copies.iter().flat_map(Copies::elsewhere) {
            if !elsewhere.contains(group) {
                elsewhere.push(*group);
            }
        }
    }
    let joined = joined.freeze();
    let mut at = 0;
    for published in frames.iter_mut() {
        let end = at + published.frame.bytes.len();
        published.frame.bytes = joined.slice(at..end).into();
        at = end;
    }
    let frame = Frame::ephemeral(joined.into());
    frames[0].run = Some(Box::new(Run { frame, count, through, excepts, elsewhere }));
}
