//! A body that says why not, for programs and people: `application/problem+json` (RFC 9457).

use std::fmt;

use serde::Serialize;

use crate::http::policy::{tokens, tokens_ceil};
use crate::http::{Policies, Policy, PolicyNames};
use crate::{Denied, Disabled, Error, NeverFits};

/// The problem type of the draft for requests above a quota.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// The type of problems that their status says all of.
const BLANK: &str = "about:blank";

/// Why a request was not served. It names limits and resources, and no entity.
///
/// | why | status | gRPC | because |
/// |---|---|---|---|
/// | [denied](Self::denied) | 429 | 8 | later it succeeds |
/// | [never fits](Self::never_fits) | 413 | 9 | it does not, unless it asks for less: clients repeat a 429 |
/// | [disabled](Self::disabled) | 403 | 7 | somebody wanted it to stop: clients repeat a 503 |
/// | [no decision](Self::unavailable), which may be made later | 503 | 14 | it is not the client's fault, and passes |
/// | [no decision](Self::unavailable) without a change | 500 | 13 | it is not the client's fault, and stays |
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
    #[serde(skip)]
    grpc_status: u8,
}

/// The limit in the way, in tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Blocking {
    policy: String,
    quota: i64,
    remaining: i64,
    asked: i64,
}

impl Problem {
    /// A denial. Beside what every problem has there are `violated-policies`, the names of the
    /// limits in the way; `retry_after`, in seconds, as in the field; and `blocking`, the limit
    /// that keeps the client waiting for longest, with its numbers in tokens.
    #[must_use]
    pub fn denied(denied: &Denied, names: &PolicyNames) -> Self {
        let policies = Policies::denied(denied, names);
        let blocking = |policy: &Policy| {
            let &Policy {
                quota,
                remaining,
                denied,
                ..
            } = policy;
            denied.map(|asked| Blocking {
                policy: policy.name.clone(),
                quota,
                remaining,
                asked,
            })
        };
        let violated: Vec<_> = policies.iter().filter_map(blocking).collect();
        let why = violated
            .iter()
            .map(Blocking::to_string)
            .collect::<Vec<_>>()
            .join("; ");
        let detail = match policies.retry_after_seconds() {
            Some(seconds) => format!("{why}: retry after {seconds} s"),
            None => why,
        };
        Self {
            violated: violated
                .into_iter()
                .map(|blocking| blocking.policy)
                .collect(),
            retry_after: policies.retry_after_seconds(),
            blocking: policies.strictest().and_then(blocking),
            kind: QUOTA_EXCEEDED,
            ..Self::new(
                (429, 8),
                "Request cannot be satisfied as assigned quota has been exceeded",
                detail,
            )
        }
    }

    /// More was asked than a limit holds when full. It has `violated-policies` and `blocking`, as a
    /// denial.
    #[must_use]
    pub fn never_fits(never: &NeverFits, names: &PolicyNames) -> Self {
        let (policy, quota) = (names.of_never(never), tokens(never.capacity));
        let blocking = Blocking {
            policy,
            quota,
            remaining: quota,
            asked: tokens_ceil(never.requested),
        };
        let Blocking { policy, asked, .. } = &blocking;
        let detail = format!("limit {policy:?} holds {quota} at most, {asked} asked: ask for less");
        let violated = vec![policy.clone()];
        Self {
            violated,
            blocking: Some(blocking),
            ..Self::new((413, 9), "Content Too Large", detail)
        }
    }

    /// The resource is disabled for the caller.
    #[must_use]
    pub fn disabled(disabled: &Disabled) -> Self {
        Self::new(
            (403, 7),
            "Forbidden",
            format!(
                "{} is disabled for this caller by the service",
                disabled.resource
            ),
        )
    }

    /// No decision could be made. The error itself is not told: it is the service's own business,
    /// and names its table.
    #[must_use]
    pub fn unavailable(error: &Error) -> Self {
        if error.is_transient() {
            let detail =
                "the service cannot tell now whether its limits allow this request: try again";
            Self::new((503, 14), "Service Unavailable", detail.to_owned())
        } else {
            let detail = "the service cannot tell whether its limits allow this request: its log says what to mend";
            Self::new((500, 13), "Internal Server Error", detail.to_owned())
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
            grpc_status,
        }
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The gRPC status code.
    #[must_use]
    pub const fn grpc_status(&self) -> u8 {
        self.grpc_status
    }

    /// The body, whose content type is `application/problem+json`.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers are JSON")
    }
}

/// Its detail: a sentence for people.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl fmt::Display for Blocking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            policy,
            quota,
            remaining,
            asked,
        } = self;
        write!(
            f,
            "limit {policy:?} has {remaining} of {quota} left, {asked} asked"
        )
    }
}
