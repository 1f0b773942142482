//! Tests of egress against endpoints on this machine that behave in whatever way they please.

mod answers;
mod fixture;
mod guarding;
mod misbehaving;
mod pooling;
mod resolving;
mod tls;
