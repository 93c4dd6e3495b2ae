//! Envoy's rate limit service, and Kuadrant's.
//!
//! A call passes these files from top to bottom, and its answer goes back up:
//!
//! | file | what it does |
//! |---|---|
//! | `grpc` | listens: [`Grpc`]; path to method |
//! | `messages` | the messages of both services |
//! | `service` | [`RateLimitService`]: one call, before its deadline, and statuses without a decision |
//! | `kuadrant` | Kuadrant's calls: check, report, reserve, commit |
//! | `plan` | pure: what a call asks, and what it reports |
//! | `reports` | what a call reports is written, also after its answer |
//! | `decision` | peeks, and takes all that is asked, or nothing; why a call is denied |
//! | `statuses` | the answer: what is left of each limit, headers, a body, what was taken |

mod decision;
mod grpc;
mod kuadrant;
pub mod messages;
mod plan;
mod reports;
mod service;
mod statuses;

pub use grpc::{Grpc, serve_in_memory};
pub use plan::Plan;
pub use service::{Options, RateLimitService};
