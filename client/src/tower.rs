//! A `tower` layer that limits a server's requests: axum, hyper, tonic. Needs the feature `tower`.
//!
//! ```
//! use weirgate::tower::{GrantHandle, RateLimitLayer};
//! use weirgate::{Limit, RateLimiter};
//!
//! fn layer(limiter: RateLimiter) -> Result<impl Clone, weirgate::LimitError> {
//!     let limits = [Limit::per_minute("rpm", 600)?, Limit::concurrent("slots", 20)?];
//!     Ok(RateLimitLayer::new(limiter, move |limiter, request| {
//!         // The key is the entity. Without a readable one it is empty, which is answered with 400.
//!         let key = request.headers.get("x-api-key").and_then(|key| key.to_str().ok());
//!         let key = key.unwrap_or_default();
//!         // `None` would let the request pass, uncounted.
//!         Some(limiter.acquire(key, "api/search").limits(&limits).take("rpm", 1).take("slots", 1))
//!     }))
//! }
//! ```
//!
//! Authenticate first, and take the key from what was verified. Each key that a client invents
//! costs writes (a bucket, its index entries, its usage) and has a full bucket of its own.
//!
//! `axum::Router::layer`, `tower::ServiceBuilder::layer` and `tonic::transport::Server::layer` take
//! it.
//!
//! # What it does
//!
//! - **Granted**: the request goes on, with a [`GrantHandle`] in its extensions, through which a
//!   handler adjusts the taken amounts. The response gets the fields of [`crate::http`].
//! - **Not granted**: the layer responds itself, with the fields and the
//!   [`Problem`](crate::http::Problem) of [`crate::http`], which has the statuses: 429 for a
//!   denial. A gRPC request (content type `application/grpc`) gets a status, `RESOURCE_EXHAUSTED`
//!   for a denial, with the fields as metadata and `grpc-retry-pushback-ms`, which gRPC clients
//!   that retry wait for.
//! - **An invalid name**: 400, because the client sent it. It is no way around the limit.
//! - **No decision**: 503, unless [`RateLimitLayer::on_error`] lets the request pass. The error is
//!   logged.
//! - **Without DynamoDB**: a grant, a denial or a request that passes without a decision has the
//!   field `X-RateLimit-Degraded: true`.
//!
//! # When tokens return
//!
//! | the request | its rate tokens | its slots |
//! |---|---|---|
//! | gets a response | stay consumed | return when the body has ended and all handles are dropped |
//! | upgrades its connection (101, or a `CONNECT`) | stay consumed | return when the upgraded stream has ended |
//! | gets a response with a [refunded](RateLimitLayer::refund_if) status | return | return |
//! | fails (the service returns an error) or panics | return | return |
//! | is dropped at any time before its response has ended | stay consumed | return |
//!
//! Slots are held under a lease, of 60 s by default. A request that takes longer, such as a long
//! stream, sets a longer one ([`Acquire::lease`](crate::Acquire::lease)) or renews it through its
//! handle. After the expiry its slots count as free. For an upgraded stream the layer renews the lease.
//! It copies such a stream, so a handler cannot downcast it to the type of the server's.
//!
//! # Layout
//!
//! - `layer`: [`RateLimitLayer`]
//! - `options`: its options, and [`OnError`]
//! - `service`: [`RateLimit`]: decide, pass on, settle
//! - `handle`: [`GrantHandle`]: the handler's access to the grant
//! - `body`: [`LimitedBody`]: keeps slots until it has been sent
//! - `upgrade`: keeps slots until an upgraded connection has ended
//! - `answer`: responses of the limiter itself, HTTP and gRPC

mod answer;
mod body;
mod handle;
mod layer;
mod options;
mod service;
mod upgrade;

pub use body::LimitedBody;
pub use handle::GrantHandle;
pub use layer::RateLimitLayer;
pub use options::OnError;
pub use service::RateLimit;
