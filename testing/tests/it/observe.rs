//! What operators see.
