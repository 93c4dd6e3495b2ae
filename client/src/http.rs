//! Limits for HTTP clients: the fields `RateLimit-Policy`, `RateLimit` and `Retry-After`, the older
//! `X-RateLimit-*`, and problem bodies. Plain strings and numbers, for any server.
//!
//! The feature `tower` has a layer that does all of it (`weirgate::tower`). Manually:
//!
//! ```
//! use weirgate::http::{PolicyNames, Policies, Problem};
//! use weirgate::{Decision, Grant};
//!
//! /// Status, fields and body of an answer.
//! fn answer(decision: &Decision) -> (u16, Vec<(&'static str, String)>, String) {
//!     let names = PolicyNames::default();
//!     match decision {
//!         Decision::Granted(grant) => {
//!             let policies = Policies::granted(&grant.limits(), &names);
//!             let policies = policies.with_degraded(grant.degraded().is_some());
//!             (200, policies.fields(), "done".to_owned())
//!         }
//!         Decision::Denied(denied) => {
//!             let problem = Problem::denied(denied, &names);
//!             (problem.status(), Policies::denied(denied, &names).fields(), problem.json())
//!         }
//!         Decision::NeverFits(never) => {
//!             let problem = Problem::never_fits(never, &names);
//!             (problem.status(), vec![], problem.json())
//!         }
//!         Decision::Disabled(disabled) => {
//!             let problem = Problem::disabled(disabled);
//!             (problem.status(), vec![], problem.json())
//!         }
//!     }
//! }
//! ```
//!
//! # What a client sees
//!
//! ```text
//! RateLimit-Policy: "rpm";q=600;w=60, "slots";q=20;qu="concurrent-requests"
//! RateLimit: "rpm";r=0;t=1, "slots";r=17
//! Retry-After: 1
//! ```
//!
//! The fields are those of draft-ietf-httpapi-ratelimit-headers-11: structured fields (RFC 9651), a
//! member per limit.
//!
//! | parameter | is |
//! |---|---|
//! | `q` | the limit's capacity, in whole tokens |
//! | `w` | the seconds in which an empty limit is full again, or the length of a quota's window; none for slots |
//! | `qu` | what a token is, if not a request: `concurrent-requests` for slots, and what [`PolicyNames::units`] says |
//! | `r` | the balance, in whole tokens rounded down; 0 in debt |
//! | `t` | the seconds, rounded up, in which `r` refills and one more token is available; after a denial until the requested amount is |
//!
//! - A client that spreads `r` over `t`, as the draft suggests, never exceeds the refill: of 99,999
//!   tokens of 100,000 a day, `t` is a day. After a denial, `r` is at most what refills in `t`.
//! - The unit `tokens` is not in the draft's registry, which has none for what is not counted in
//!   requests or bytes. Without a unit a client would take tokens for requests.
//! - For a quota, `t` is the time to the end of its window, in which `r` can be spent.
//! - A limit that admits nothing has `q=0`, its period as `w`, `r=0` and no `t`.
//! - After a denial only short limits have a `t`, so none is later than `Retry-After`. Neither is
//!   ever too early; for slots it is when enough leases expire, and a release can make it sooner.
//! - A concurrency limit has no `t`: time adds nothing to it.
//! - Soft limits are sent like others, but never deny: a client that reads 0 left can slow down.
//! - Shadow limits, and all limits of a request or a limiter in shadow mode, are not sent. They are a
//!   trial, and clients must not react to it.
//! - `X-RateLimit-Degraded: true` is sent with a decision that was made without DynamoDB. Such a
//!   grant was not counted, or only by this server's part of the limits; a denial by
//!   [`Deny`](crate::OnUnavailable) says nothing of the limits. Without it, the table has decided.
//! - In a split bucket, `r` is the balance of the shard that decided, which is less than the
//!   bucket's.
//!
//! # Layout
//!
//! - `policy`: [`Policies`]: limits in whole tokens and seconds
//! - `names`: [`PolicyNames`]: unique names of limits
//! - `fields`: policies as field values
//! - `problem`: [`Problem`]: a body with the reason for a refusal (RFC 9457)

mod fields;
mod names;
mod policy;
mod problem;

#[cfg(feature = "tower")]
pub(crate) use fields::DEGRADED;
pub use names::{PolicyName, PolicyNames, PolicyUnit};
#[cfg(feature = "tower")]
pub(crate) use policy::seconds;
pub use policy::{Policies, Policy};
pub use problem::Problem;
