//! Which cursor is next.
