//! A `tower` layer that limits a server's requests: axum, hyper, tonic. Needs the feature `tower`.
//!
//! ```
//! use weirgate::tower::{GrantHandle, RateLimitLayer};
//! use weirgate::{Limit, RateLimiter};
//!
//! fn layer(limiter: RateLimiter) -> Result<impl Clone, weirgate::LimitError> {
//!     let limits = [Limit::per_minute("rpm", 600)?, Limit::concurrent("slots", 20)?];
//!     Ok(RateLimitLayer::new(limiter, move |limiter, request| {
//!         // Who is limited, and for what. `None` lets a request pass, uncounted.
//!         let key = request.headers.get("x-api-key")?.to_str().ok()?;
//!         Some(limiter.acquire(key, "api/search").limits(&limits).take("rpm", 1).take("slots", 1))
//!     }))
//! }
//! ```
//!
//! Authenticate first, and take the key from what was verified. Each key that a client makes up
//! costs writes (a bucket, its entries in the indexes, its usage) and has a full bucket of its own.
//!
//! `axum::Router::layer`, `tower::ServiceBuilder::layer` and `tonic::transport::Server::layer` take
//! it.
//!
//! # What it does
//!
//! - **Granted**: the request goes on, with a [`GrantHandle`] in its extensions by which a handler
//!   corrects what was taken. The answer gets the fields of [`crate::http`].
//! - **Not granted**: the request is answered without being passed on, by the fields and
//!   [`Problem`](crate::http::Problem) of [`crate::http`], which has the statuses: 429 for a
//!   denial. A gRPC request (content type `application/grpc`) is answered by a status,
//!   `RESOURCE_EXHAUSTED` for a denial, with the fields as its metadata and
//!   `grpc-retry-pushback-ms`, which gRPC clients that retry wait for.
//! - **No decision**: 503, unless [`RateLimitLayer::on_error`] lets the request pass. The error is
//!   logged.
//!
//! # When tokens go back
//!
//! | the request | its rate tokens | its slots |
//! |---|---|---|
//! | is answered | are used | go back when the body has ended and all handles are gone |
//! | is answered with a status that is [to be refunded](RateLimitLayer::refund_if) | go back | go back |
//! | fails (the service returns an error) or panics | go back | go back |
//! | goes away while it waits, is worked on, or its answer is streamed | are used | go back |
//!
//! Slots are held under a lease, of 60 s if the request does not say: one that lasts longer, as a
//! long stream may, says so ([`Acquire::lease`](crate::Acquire::lease)) or renews it by its handle.
//! After that they count as free.
//!
//! # Layout
//!
//! - `layer`: [`RateLimitLayer`] and its options
//! - `service`: [`RateLimit`]: decide, pass on, settle
//! - `handle`: [`GrantHandle`]: a handler's hold on what was taken
//! - `body`: [`LimitedBody`]: keeps slots until it has been sent
//! - `answer`: answers of the limiter itself, HTTP and gRPC

mod answer;
mod body;
mod handle;
mod layer;
mod service;

pub use body::LimitedBody;
pub use handle::GrantHandle;
pub use layer::{OnError, RateLimitLayer};
pub use service::RateLimit;
