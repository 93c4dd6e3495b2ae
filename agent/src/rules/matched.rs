//! What the rules say about a descriptor.

use std::sync::Arc;
use std::time::Duration;

use weirgate::Limit;

/// One entry of a descriptor: its key and its value. A value may come from a header, so it can be any
/// bytes.
pub type Entry<'e> = (&'e str, &'e [u8]);

/// What a rule takes of its bucket.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Amounts, by limit.
    pub takes: Vec<Take>,
    /// Limits given in the call; `None` for those that are configured.
    pub limits: Option<Arc<[Limit]>>,
    /// Whether the amounts are debited after the fact: into debt, without asking.
    pub is_settle: bool,
    /// Whether a denial is only reported.
    pub is_shadow: bool,
    /// Name of the limit in a status; `None` for that of the limit.
    pub label: Option<Box<str>>,
    /// Period of a rate of 0, which is no limit.
    pub period: Duration,
}

/// An amount of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Take {
    /// Name of the limit.
    pub limit: Box<str>,
    /// How much.
    pub amount: Amount,
}

/// How much a descriptor takes of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// The hits of the descriptor or of the request.
    Hits,
    /// The same for each request.
    Tokens(i64),
}

/// What the rules say about one descriptor.
#[derive(Debug)]
pub enum Matched {
    /// It is limited.
    Limited(Bucket),
    /// It is known, and has no limit.
    Unlimited,
    /// It is known, and its rate is 0 requests: every one is denied.
    Blocked(Bucket),
}

/// The bucket of one descriptor.
#[derive(Debug, Clone)]
pub struct Bucket {
    /// Name of the entity.
    pub entity: String,
    /// Name of the resource.
    pub resource: String,
    /// What is taken.
    pub terms: Arc<Terms>,
}
