//! Limits told to HTTP clients: the fields `RateLimit-Policy`, `RateLimit` and `Retry-After`, the
//! older `X-RateLimit-*`, and problem bodies. Plain strings and numbers, for any server.
//!
//! The feature `tower` has a layer that does all of it (`weirgate::tower`). By hand:
//!
//! ```
//! use weirgate::http::{PolicyNames, Policies, Problem};
//! use weirgate::{Decision, Grant};
//!
//! /// Status, fields and body of an answer.
//! fn answer(decision: &Decision) -> (u16, Vec<(&'static str, String)>, String) {
//!     let names = PolicyNames::default();
//!     match decision {
//!         Decision::Granted(grant) => (200, Policies::granted(&grant.limits(), &names).fields(), "done".to_owned()),
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
//! The fields are those of draft-ietf-httpapi-ratelimit-headers-10: structured fields (RFC 9651), a
//! member per limit.
//!
//! | parameter | is |
//! |---|---|
//! | `q` | the limit's capacity, in whole tokens |
//! | `w` | the seconds in which an empty limit is full again; none for slots |
//! | `qu` | `concurrent-requests` for slots. Of rates none is said, whatever their tokens are: the draft knows no LLM tokens |
//! | `r` | what is left, in whole tokens rounded down; 0 in debt |
//! | `t` | the seconds, rounded up, until one more token is there; after a denial until what was asked is there |
//!
//! - After a denial only limits in the way have a `t`, so that none is later than `Retry-After`.
//!   Neither is ever too early; where slots are in the way, it is when enough leases expire, and a
//!   release makes it sooner.
//! - A full limit has no `t`, nor has a number of slots that could be held: time brings neither any
//!   more.
//! - Soft limits are told like others, and deny nobody: who reads that nothing is left can slow
//!   down by himself.
//! - Shadow limits are not told. They are somebody's trial, which its subjects must not act on.
//! - Of a bucket of several shards `r` is what the shard that was asked has left, which is less.
//!
//! # Layout
//!
//! - `policy`: [`Policies`]: limits in whole tokens and seconds
//! - `names`: [`PolicyNames`]: what limits are called, so that each name stands for one
//! - `fields`: policies as field values
//! - `problem`: [`Problem`]: a body that says why not (RFC 9457)

mod fields;
mod names;
mod policy;
mod problem;

pub use names::{PolicyName, PolicyNames};
pub use policy::{Policies, Policy};
pub use problem::Problem;
