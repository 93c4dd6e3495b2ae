//! Envoy's rate limit service, and Kuadrant's.
//!
//! A call passes these files from top to bottom, and its answer goes back up:
//!
//! | file | what it does |
//! |---|---|
//! | `server` | listens: [`Grpc`] |
//! | `routes` | path to method |
//! | `messages` | the messages of both services |
//! | `service` | [`RateLimitService`]: one call, before its deadline |
//! | `kuadrant` | Kuadrant's calls: check, report, reserve, commit |
//! | `deadline` | when a call must be answered |
//! | `plan` | pure: what a call asks, and what it reports |
//! | `facts` | what a call reports is written, also after its answer |
//! | `decide` | peeks, and takes all that is asked, or nothing |
//! | `requests` | requests of the limiter for the parcels of a call |
//! | `refusal` | why a call is denied |
//! | `failure` | statuses of calls without a decision |
//! | `standing` | what is left of the limit of one descriptor |
//! | `taken` | what a call took, for the refund after its response |
//! | `answer` | standings as statuses, headers and a body |

mod answer;
mod deadline;
mod decide;
mod facts;
mod failure;
mod kuadrant;
pub mod messages;
mod plan;
mod refusal;
mod requests;
mod routes;
mod server;
mod service;
mod standing;
mod taken;

pub use plan::Plan;
pub use server::{Grpc, serve_in_memory};
pub use service::{Options, RateLimitService};
