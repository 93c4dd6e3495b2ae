//! A response body with the reason for a refusal: `application/problem+json` (RFC 9457).

use std::fmt;

use serde::Serialize;

use crate::http::policy::{shown, tokens, tokens_ceil};
use crate::http::{Policies, Policy, PolicyNames};
use crate::{Denied, Disabled, Error, LimitStatus, NeverFits};

/// The problem type of the draft for requests above a quota.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// The type of problems that need no more than their status.
const BLANK: &str = "about:blank";
/// The type of problems that only a repair ends.
const MISCONFIGURED: &str = "misconfigured";

/// The reason that a request was not served. It names limits and resources, but no entity.
///
/// | reason | status | gRPC | because |
/// |---|---|---|---|
/// | [denied](Self::denied) | 429 | 8 | a later attempt succeeds |
/// | [never fits](Self::never_fits) | 413 | 9 | less may fit; clients repeat a 429 |
/// | an invalid key (`tower`) | 400 | 3 | the client sent it |
/// | [disabled](Self::disabled) | 403 | 7 | the operator stopped it; clients repeat a 503 |
/// | [no decision](Self::unavailable) for now | 503 | 14 | a server fault, temporary |
/// | [no decision](Self::unavailable) until a repair | 500 | 13 | a server fault, permanent |
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocking: Option<Blocking>,
    #[serde(rename = "paused", skip_serializing_if = "std::ops::Not::not")]
    is_paused: bool,
    #[serde(skip)]
    grpc_status: u8,
}

/// The short limit with the longest wait, in tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Blocking {
    policy: String,
    quota: i64,
    remaining: i64,
    requested: i64,
}

impl Problem {
    /// Returns the problem of a denial. It also has `violated-policies`, the names of the short
    /// limits; `retry_after`, in seconds, as in the field; and `blocking`, the short limit with the
    /// longest wait, with its numbers in tokens. If a bucket is paused, `paused` is true.
    #[must_use]
    pub fn denied(denied: &Denied, names: &PolicyNames) -> Self {
        let policies = Policies::denied_with_balances(denied, names);
        let blocking = |policy: &Policy| {
            let &Policy { quota, remaining, denied, .. } = policy;
            denied.map(|requested| Blocking {
                policy: policy.name.clone(),
                quota,
                remaining,
                requested,
            })
        };
        let says = |(policy, status): (&Policy, &LimitStatus)| match status.paused_for {
            Some(_) => policy.denied.map(|_| format!("limit {:?} is paused", policy.name)),
            None => Some(blocking(policy)?.to_string()),
        };
        let statuses = policies.iter().zip(shown(&denied.limits));
        let says: Vec<_> = statuses.filter_map(says).collect();
        // Denied without a look at the limits.
        let (kind, title, why) = match says.is_empty() {
            true => (
                BLANK,
                "Too Many Requests",
                "the limits of this request cannot be checked at the moment".to_owned(),
            ),
            false => (
                QUOTA_EXCEEDED,
                "Request cannot be satisfied as assigned quota has been exceeded",
                says.join("; "),
            ),
        };
        let violated: Vec<_> = policies.iter().filter_map(blocking).collect();
        let detail = match policies.retry_after_seconds() {
            Some(seconds) => format!("{why}: retry after {seconds} s"),
            None => why,
        };
        Self {
            is_paused: denied.is_paused(),
            violated: violated.into_iter().map(|blocking| blocking.policy).collect(),
            retry_after: policies.retry_after_seconds(),
            blocking: policies.strictest().and_then(blocking),
            kind,
            ..Self::new((429, 8), title, detail)
        }
    }

    /// Returns the problem of a request above a limit's capacity. It has `violated-policies` and
    /// `blocking`, as a denial.
    #[must_use]
    pub fn never_fits(never: &NeverFits, names: &PolicyNames) -> Self {
        let (policy, quota) = (names.of_never(never), tokens(never.capacity));
        let blocking =
            Blocking { policy, quota, remaining: quota, requested: tokens_ceil(never.requested) };
        let Blocking { policy, requested, .. } = &blocking;
        let detail = format!(
            "limit {policy:?} has a capacity of {quota}, {requested} were requested: request fewer"
        );
        let violated = vec![policy.clone()];
        Self {
            violated,
            blocking: Some(blocking),
            ..Self::new((413, 9), "Content Too Large", detail)
        }
    }

    /// Returns the problem of a disabled resource.
    #[must_use]
    pub fn disabled(disabled: &Disabled) -> Self {
        Self::new(
            (403, 7),
            "Forbidden",
            format!("{} is disabled for this caller by the service", disabled.resource),
        )
    }

    /// Returns the problem of a request whose key is no valid name. It omits the key, which may be a
    /// secret.
    #[cfg(feature = "tower")]
    pub(crate) fn invalid_name(error: &weirgate_shared::NameError) -> Self {
        let weirgate_shared::NameError { kind, rule, value } = error;
        let length = value.chars().count();
        let detail = format!(
            "the {kind} of this request must be {rule}, got {length} characters that are not: send a valid key"
        );
        Self::new((400, 3), "Bad Request", detail)
    }

    /// Returns the problem of a request without a decision: of type `misconfigured` if only a repair
    /// brings one. It omits the error, which is internal and names the table.
    #[must_use]
    pub fn unavailable(error: &Error) -> Self {
        if error.is_transient() {
            let detail = "the limits of this request could not be checked at the moment: try again";
            Self::new((503, 14), "Service Unavailable", detail.to_owned())
        } else {
            let detail = "the limits of this request could not be checked: the log of the service names the cause and the remedy";
            Self {
                kind: MISCONFIGURED,
                ..Self::new((500, 13), "Internal Server Error", detail.to_owned())
            }
        }
    }

    fn new((status, grpc_status): (u16, u8), title: &'static str, detail: String) -> Self {
        let (kind, violated, retry_after, blocking) = (BLANK, vec![], None, None);
        Self {
            kind,
            title,
            status,
            detail,
            violated,
            retry_after,
            blocking,
            is_paused: false,
            grpc_status,
        }
    }

    /// Returns the HTTP status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// Returns the gRPC status code.
    #[must_use]
    pub const fn grpc_status(&self) -> u8 {
        self.grpc_status
    }

    /// Returns the body; its content type is `application/problem+json`.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers are JSON")
    }
}

/// Writes the detail, a sentence for people.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl fmt::Display for Blocking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, quota, remaining, requested } = self;
        write!(f, "limit {policy:?} has {remaining} of {quota} left, {requested} were requested")
    }
}
