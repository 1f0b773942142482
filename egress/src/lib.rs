//! Egress: sends HTTP requests to endpoints that users chose.
//!
//! The endpoint is not trusted, and neither is whoever chose it. A request never reaches an address that is not public,
//! unless the operator allows it, and whatever an endpoint answers costs a bounded amount of time and memory. Read
//! [`Target`] (a valid URL), then [`Guard`] (which addresses may be reached), then [`Egress`] (sends a request, with a pool of
//! connections), and [`custom_headers`] (the headers that users may add).
//!
//! Invariant: a connection goes to an address that the guard has checked, never to a name. Redirects are not followed,
//! proxies in the environment are ignored, and nothing is decompressed.
//! Not here: retries, signatures, queues, circuit breakers and rate limits (whoever sends), HTTP/2.

mod allow;
mod connection;
mod deadline;
mod destination;
mod dial;
mod egress;
mod error;
mod guard;
mod header;
mod io;
mod metrics;
mod names;
mod pool;
mod ranges;
mod resolver;
mod retry_after;
mod target;

pub use allow::{AllowList, InvalidAllow};
pub use destination::{Destination, Host, Scheme};
pub use egress::{Answer, Egress, EgressOptions, Outgoing};
pub use error::{Phase, Scope, SendError};
pub use guard::{Forbidden, Guard};
pub use header::{InvalidHeader, check_custom_header, custom_headers};
pub use resolver::{Resolver, SystemResolver};
pub use target::{InvalidTarget, Target};
