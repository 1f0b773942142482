//! Pattern matching: finds which of many patterns match a name.
//!
//! [`Matcher`] maps patterns to keys. [`tidings_model::pattern`] defines what a pattern means; a property test
//! checks that the matcher finds exactly what asking every pattern finds.
//!
//! The patterns are in levels. A level is an [`arena::Arena`]: an immutable trie in a few flat arrays, found by
//! [`walk::Walk`], which follows all branches of the trie at once. `builder` makes arenas, `path` says which edges
//! a pattern takes, `edges` and `segments` are the two hash tables of a trie. A pattern that is added goes into a small
//! arena that is copied for each change; one that is removed is marked in its level (`level`). [`Matcher::compact`]
//! merges levels (`merge`).

mod arena;
mod builder;
mod complexity;
mod dead;
mod edges;
mod hash;
mod level;
mod matcher;
mod merge;
mod path;
mod segments;
#[cfg(test)]
mod tests;
mod trie;
mod walk;

pub use matcher::Matcher;
