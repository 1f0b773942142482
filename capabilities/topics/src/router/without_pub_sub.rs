//! Without pub/sub a handler has no topics. This does not compile:
//!
//! ```compile_fail,E0599
//! # use tidings_topics::{Message, router::{NoPubSub, Router}};
//! # #[derive(serde::Serialize, serde::Deserialize)] struct Ping(u32);
//! # impl Message for Ping { const TYPE: &'static str = "PING"; type Payload = Self; }
//! let router = Router::<(), NoPubSub>::new().on::<Ping, _, _>(|ctx, _| async move {
//!     let _ = ctx.topics();
//!     Ok(())
//! });
//! ```
//!
//! Nor does this:
//!
//! ```compile_fail,E0599
//! # use tidings_topics::{Message, router::{NoPubSub, Router}};
//! # #[derive(serde::Serialize, serde::Deserialize)] struct Ping(u32);
//! # impl Message for Ping { const TYPE: &'static str = "PING"; type Payload = Self; }
//! let router = Router::<(), NoPubSub>::new().on::<Ping, _, _>(|ctx, ping| async move {
//!     let _ = ctx.publish::<Ping>("room:1", &ping, Default::default()).await;
//!     Ok(())
//! });
//! ```
//!
//! The same without these lines does:
//!
//! ```no_run
//! # use tidings_topics::{Message, router::{NoPubSub, Router}};
//! # #[derive(serde::Serialize, serde::Deserialize)] struct Ping(u32);
//! # impl Message for Ping { const TYPE: &'static str = "PING"; type Payload = Self; }
//! let router = Router::<(), NoPubSub>::new().on::<Ping, _, _>(|ctx, ping| async move {
//!     ctx.reply::<Ping>(&ping);
//!     Ok(())
//! });
//! ```
