//! One function for each decoder of external bytes, and for the code that uses its result.
//!
//! Each takes any bytes and panics if a guarantee is broken. The fuzz target in `fuzz/` and the
//! properties in `tests/` call the same functions, so both stay current.
//!
//! # Layout
//!
//! - `stream`: an event of the table's stream, and the writes that it leads to
//! - `item`: an item of the table, as every kind there is
//! - `plans`: every write that can be planned for a bucket that was read
//! - `key`: the keys of an item, and names
//! - `answer`: what DynamoDB answers to the SDK, dates and errors among it
//! - `failure_object`: what the failure bucket holds, as a replay reads it
//! - `grant_token`: the token of a grant, from another process
//! - `connection`: what the agent's sockets receive
//! - `agent_request`: a body that the agent receives over HTTP
//! - `limits_file`: a limits file
//! - `rules_file`: a rules file of the agent, in both formats
//! - `rate_limit_request`: a call of Envoy's rate limit service, and its plan
//! - `environment`: the functions' variables, what the SDK makes of them, the
//!   least level of the log, and when invocations end

mod agent_request;
mod answer;
mod connection;
mod environment;
mod failure_object;
mod grant_token;
mod item;
mod key;
mod limits_file;
mod plans;
mod rate_limit_request;
mod rules_file;
mod stream;

pub use item::item;
pub use stream::stream;

/// A decoder under test, with the name of the folder of its corpus.
pub type Decoder = (&'static str, fn(&[u8]));

/// All decoders.
pub const ALL: [Decoder; 13] = [
    ("stream", stream),
    ("item", item),
    ("key", key::key),
    ("answer", answer::answer),
    ("limits_file", limits_file::limits_file),
    ("environment", environment::environment),
    ("failure_object", failure_object::failure_object),
    ("grant_token", grant_token::grant_token),
    ("agent_request", agent_request::agent_request),
    ("rules_file", rules_file::rules_file),
    ("rate_limit_request", rate_limit_request::rate_limit_request),
    ("http_connection", connection::http_connection),
    ("grpc_connection", connection::grpc_connection),
];
