//! Envoy's rate limit service, and Kuadrant's.
//!
//! A call passes these files from top to bottom, and its answer goes back up:
//!
//! | file | what it does |
//! |---|---|
//! | `grpc` | listens: [`Grpc`]; path to method |
//! | `messages` | the messages of both services |
//! | `service` | [`RateLimitService`]: one call, before its deadline |
//! | `without_decision` | when a call must be answered, and its status if there is no decision |
//! | `kuadrant` | Kuadrant's calls: check, report, reserve, commit |
//! | `plan` | pure: what a call asks, and what it reports |
//! | `reports` | what a call reports is written, also after its answer |
//! | `decision` | peeks, and takes all that is asked, or nothing; why a call is denied |
//! | `statuses` | what is left of the limit of one descriptor |
//! | `answers` | statuses, headers, a body, and what was taken |

mod answers;
mod decision;
mod grpc;
mod kuadrant;
pub mod messages;
mod plan;
mod reports;
mod service;
mod statuses;
mod without_decision;

pub use grpc::{Grpc, serve_in_memory};
pub use plan::Plan;
pub use service::{Options, RateLimitService};
