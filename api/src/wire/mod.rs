//! Converts headers, queries, offsets and bodies to values and back.

pub mod body;
pub mod coding;
pub mod cursor;
pub mod head;
pub mod header;
pub mod json;
pub mod offset;
pub mod payload;
pub mod query;
pub mod request;
pub mod time;

#[cfg(test)]
mod properties;
