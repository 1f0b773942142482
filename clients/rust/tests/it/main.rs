//! Behaviour of the client as an application sees it, against a scripted server.

mod cases;
mod failures;
mod following;
mod scene;
mod tls;
