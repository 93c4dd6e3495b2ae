//! The agent: Weirgate for programs in any language, as a sidecar, as Envoy's rate limit service,
//! and as a Lambda extension.
//!
//! # Layout
//!
//! | module | what it does |
//! |---|---|
//! | `health_check` | asks a running agent for its health, for containers without a shell |
//! | `options` | flags and environment variables |
//! | `extension` | the life of a Lambda extension: register, wait, shut down |
//! | `json_api` | HTTP and JSON: acquire, settle, peek, usage, health, metrics |
//! | `rls` | Envoy's rate limit service, and Kuadrant's |
//! | `rules` | which descriptors are which entity, resource and amounts |
//! | `gated` | one request of any protocol, and its answer |
//! | `net` | connections and arriving bytes of all listeners, bounded together |
//! | `token` | the secret that requests of any protocol show |
//! | `functions` | the functions of a table in Redis |
//! | `log` | log lines |

pub mod extension;
pub mod functions;
pub mod gated;
pub mod health_check;
pub mod json_api;
pub mod log;
pub mod net;
pub mod options;
pub mod rls;
pub mod rules;
mod token;

pub use token::Token;
