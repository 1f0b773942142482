//! Subscriptions with very many streams, many subscriptions, limits of both, and creations that are interrupted.

mod interrupted;
mod limits;
mod scale;
mod scene;
