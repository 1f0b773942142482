//! The paths of a pattern through a trie.

use tidings_model::Pattern;
use tidings_model::pattern::{Matcher, segments};

use super::hash::Hasher;

/// What an edge of a trie stands for: its kind, a separator, and the place of its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Label(u32);

/// Kind of an edge. Also the order of a node's edges without the literal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One segment with this text.
    Literal,
    /// `**`: any number of segments.
    Deep,
    /// `*`: any one segment.
    One,
    /// A segment that has `*` among other characters.
    Glob,
    /// Nothing: tells a pattern with this text from others whose path ends at the same node.
    Alias,
    /// Nothing, from the root: what follows is for names that have no other separator than this one.
    Uniform,
    /// Nothing, from the root: what follows is for names that have several kinds of separators.
    Mixed,
}

/// Separator before a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Separator {
    /// The segment is the first one.
    None,
    Colon,
    Dot,
    Slash,
}

const PLACE_BITS: u32 = 27;
/// Bytes of text that labels can refer to.
pub(super) const PLACES: usize = 1 << PLACE_BITS;

impl Label {
    /// A label. `place` is the place of the text, 0 for kinds that have none.
    pub fn new(kind: Kind, separator: Separator, place: u32) -> Self {
        Self((kind as u32) << (PLACE_BITS + 2) | (separator as u32) << PLACE_BITS | place)
    }

    pub fn bits(self) -> u32 {
        self.0
    }

    pub fn kind(self) -> Kind {
        match self.0 >> (PLACE_BITS + 2) {
            0 => Kind::Literal,
            1 => Kind::Deep,
            2 => Kind::One,
            3 => Kind::Glob,
            4 => Kind::Alias,
            5 => Kind::Uniform,
            _ => Kind::Mixed,
        }
    }

    pub fn separator(self) -> Separator {
        match self.0 >> PLACE_BITS & 3 {
            0 => Separator::None,
            1 => Separator::Colon,
            2 => Separator::Dot,
            _ => Separator::Slash,
        }
    }

    pub fn place(self) -> u32 {
        self.0 & (PLACES as u32 - 1)
    }
}

impl Kind {
    pub fn has_text(self) -> bool {
        matches!(self, Self::Literal | Self::Glob | Self::Alias)
    }
}

impl Separator {
    pub fn of(separator: Option<char>) -> Self {
        match separator {
            None => Self::None,
            Some(':') => Self::Colon,
            Some('.') => Self::Dot,
            Some(_) => Self::Slash,
        }
    }
}

/// One edge of a path, before its text has a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    pub kind: Kind,
    pub separator: Separator,
    /// Empty if the kind has none.
    pub text: &'a str,
    /// Hash of the text.
    pub hash: u64,
}

/// The steps from the root to a node.
pub(super) type Path<'a> = Vec<Step<'a>>;

/// The paths at whose ends a pattern's keys are. A pattern is known by its first path, which no other has.
///
/// Patterns that mean the same share nodes, so that a name has few to visit however many ways there are to write
/// `**.*.**`. Of several `**` in a row that have the same separator one is enough, and one at the beginning includes all
/// that follow. `*` and `**` in a row can change places, but only where a name has the same separator everywhere:
/// `**.*` matches `a:b.c`, `*.**` does not. So such a pattern has two paths: one for names that have only its own
/// separator, one for names that have several. Names that have only another one it does not match.
pub(super) fn paths<'a>(pattern: &'a Pattern, hasher: &Hasher) -> Vec<Path<'a>> {
    let exact = exact(pattern, hasher);
    let alias = || {
        let text = pattern.as_str();
        Step { kind: Kind::Alias, separator: Separator::None, text, hash: hasher.text(text.as_bytes()) }
    };
    let is_wild = |step: &Step<'_>| matches!(step.kind, Kind::Deep | Kind::One);
    if !exact.windows(2).any(|pair| pair.iter().all(is_wild) && pair[0].kind == Kind::Deep) {
        return vec![exact];
    }
    if let Some(separator) = only_separator(&exact).filter(|_| !is_sorted(&exact)) {
        let gate = |kind| Step { kind, separator, text: "", hash: 0 };
        let sorted = [vec![gate(Kind::Uniform)], sorted(&exact), vec![alias()]].concat();
        let exact = [vec![gate(Kind::Mixed)], exact].concat();
        return vec![exact, sorted];
    }
    let shorter = without_repeated(&exact);
    if shorter.len() == exact.len() { vec![exact] } else { vec![[shorter, vec![alias()]].concat()] }
}

/// The segments of a pattern as steps.
fn exact<'a>(pattern: &'a Pattern, hasher: &Hasher) -> Path<'a> {
    let named = segments(pattern.as_str());
    let steps = pattern.segments().iter().zip(named).map(|(segment, named)| {
        let kind = match segment.matcher {
            Matcher::Literal(_) => Kind::Literal,
            Matcher::One => Kind::One,
            Matcher::Glob(_) => Kind::Glob,
            Matcher::Deep => Kind::Deep,
        };
        let (text, hash) =
            if kind.has_text() { (named.text, hasher.text(named.text.as_bytes())) } else { ("", 0) };
        Step { kind, separator: Separator::of(segment.separator), text, hash }
    });
    steps.collect()
}

/// The separator of all steps but the first, if it is the same.
fn only_separator(steps: &[Step<'_>]) -> Option<Separator> {
    let separator = steps.get(1)?.separator;
    steps[1..].iter().all(|step| step.separator == separator).then_some(separator)
}

/// Whether no `*` comes after a `**` in any row of them.
fn is_sorted(steps: &[Step<'_>]) -> bool {
    !steps.windows(2).any(|pair| pair[0].kind == Kind::Deep && pair[1].kind == Kind::One)
}

/// With each `*` before each `**` in any row of them, and one `**` in such a row.
fn sorted<'a>(steps: &[Step<'a>]) -> Path<'a> {
    let kinds = |kind: Kind, count: usize| {
        std::iter::repeat_n(Step { kind, separator: Separator::None, text: "", hash: 0 }, count)
    };
    let mut sorted: Path<'a> = Vec::with_capacity(steps.len() + 2);
    for row in steps.chunk_by(|a, b| !a.kind.has_text() && !b.kind.has_text()) {
        if row[0].kind.has_text() {
            sorted.extend(row);
            continue;
        }
        let ones = row.iter().filter(|step| step.kind == Kind::One).count();
        sorted.extend(kinds(Kind::One, ones));
        sorted.extend(kinds(Kind::Deep, usize::from(ones < row.len())));
    }
    // Separators go with the place of a step; there are at most as many as before.
    for (step, at) in sorted.iter_mut().zip(steps) {
        step.separator = at.separator;
    }
    sorted
}

/// Without each `**` that follows one in the same row that includes it.
fn without_repeated<'a>(steps: &[Step<'a>]) -> Path<'a> {
    let mut kept: Path<'a> = Vec::with_capacity(steps.len() + 1);
    for step in steps {
        let row = kept.iter().rev().take_while(|step| step.kind == Kind::Deep);
        let includes = |before: &Step<'_>| [Separator::None, step.separator].contains(&before.separator);
        if step.kind != Kind::Deep || !row.into_iter().any(includes) {
            kept.push(*step);
        }
    }
    kept
}
