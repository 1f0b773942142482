//! What an application sees of the client, against a server that does as it is told.

mod failures;
mod following;
mod scene;
mod tls;
