//! Tests of topics as applications use them.

mod abort;
mod axum_app;
mod blind;
mod closing;
mod concurrency;
mod contract;
mod examples;
mod fan_out;
mod first_poll;
mod history;
mod lifecycle;
mod model;
mod nodes;
mod order;
mod places;
mod publishing;
mod recorder;
mod rollback;
mod router;
mod support;
