//! Responses: values, or a problem (RFC 9457) and what a client may do next.

use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode, header};
use serde::Serialize;
use weirgate::http::{Policies, PolicyNames, Problem};
use weirgate::{Denied, Disabled, Error, NeverFits, PlanName};

use super::request_body::shown;
use crate::gated::{Outcome, SettleError};
use crate::log;
use crate::net::stream::{ARRIVAL, Unread};

/// The type of error bodies.
const PROBLEM: &str = "application/problem+json";

/// A request that was not granted.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    /// How it counts.
    pub(super) outcome: Outcome,
    fields: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

/// Whether something was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Applied {
    No,
    Unknown,
}

/// A problem, with what a client may do next.
#[derive(Serialize)]
struct ProblemBody<P> {
    #[serde(flatten)]
    problem: P,
    applied: Applied,
    retry: bool,
}

/// A settlement that stopped halfway also has the grant as it is now.
#[derive(Serialize)]
struct UnsettledBody {
    #[serde(flatten)]
    problem: Plain,
    #[serde(skip_serializing_if = "Option::is_none")]
    grant: Option<String>,
}

/// A denial also says how long to wait, and of a request that queues how long until its start with a
/// longer queue, in milliseconds.
#[derive(Serialize)]
struct DeniedBody<'a> {
    #[serde(flatten)]
    problem: &'a Problem,
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    starts_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missing_plan: Option<&'a PlanName>,
}

/// A request above a limit's capacity.
#[derive(Serialize)]
struct NeverFitsBody<'a> {
    #[serde(flatten)]
    problem: &'a Problem,
    #[serde(skip_serializing_if = "Option::is_none")]
    missing_plan: Option<&'a PlanName>,
}

/// A problem that its status names, or its type.
#[derive(Serialize)]
struct Plain {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
}

impl Refusal {
    pub(super) fn denied(denied: &Denied, names: &PolicyNames) -> Self {
        let ms = |wait: Duration| {
            // Rounded up: a client that waits so long has waited long enough.
            let ms = wait.as_micros().div_ceil(1_000);
            u64::try_from(ms).unwrap_or(u64::MAX)
        };
        let problem = &Problem::denied(denied, names);
        let body = DeniedBody {
            problem,
            retry_after_ms: denied.retry_after.map(ms),
            starts_in_ms: denied.starts_in.map(ms),
            missing_plan: denied.missing_plan.as_ref(),
        };
        Self {
            fields: Policies::denied(denied, names).fields(),
            ..Self::of(problem.status(), Outcome::Denied, body, Applied::No, false)
        }
    }

    pub(super) fn never_fits(never: &NeverFits, names: &PolicyNames) -> Self {
        let problem = &Problem::never_fits(never, names);
        let body = NeverFitsBody { problem, missing_plan: never.missing_plan.as_ref() };
        Self::of(problem.status(), Outcome::NeverFits, body, Applied::No, false)
    }

    pub(super) fn disabled(disabled: &Disabled) -> Self {
        let problem = Problem::disabled(disabled);
        Self::of(problem.status(), Outcome::Disabled, problem, Applied::No, false)
    }

    /// Returns the refusal of a request that is not what the API takes.
    pub(super) fn invalid(detail: String) -> Self {
        Self::plain(StatusCode::BAD_REQUEST, Outcome::Invalid, detail)
    }

    /// Returns the refusal of a request whose body was not read.
    pub(super) fn unread(unread: Unread, most: usize) -> Self {
        match unread {
            Unread::TooLarge(length) => Self::too_large(length, most),
            Unread::GaveWay => Self::gave_way(),
            Unread::Late => Self::plain(
                StatusCode::REQUEST_TIMEOUT,
                Outcome::Invalid,
                format!("the body must arrive within {ARRIVAL:?}: send it at once"),
            ),
            Unread::Broken(error) => {
                Self::invalid(format!("the body did not arrive whole: {error}; send it again"))
            }
        }
    }

    /// Returns the refusal of a request that arrived so slowly that others took its room.
    pub(super) fn gave_way() -> Self {
        Self::overloaded("too many requests are arriving at once".to_owned())
    }

    /// Returns the refusal of a settlement or a report that the end of the agent drops. It may still be
    /// applied.
    pub(super) fn stopping() -> Self {
        let detail =
            "the agent ended before the answer, so the outcome is unknown: do not repeat it";
        let problem = Plain::new(StatusCode::SERVICE_UNAVAILABLE, detail.to_owned());
        Self::of(503, Outcome::NoDecision, problem, Applied::Unknown, false)
    }

    fn too_large(length: usize, most: usize) -> Self {
        let detail = format!(
            "the body must have at most {most} bytes, got {length}: send fewer buckets in a request"
        );
        Self::plain(StatusCode::PAYLOAD_TOO_LARGE, Outcome::Invalid, detail)
    }

    /// Returns the refusal of a body that is encoded.
    pub(super) fn encoding(encoding: &str) -> Self {
        let encoding = shown(encoding);
        Self::invalid(format!(
            "Transfer-Encoding must be chunked, got {encoding:?}: send the body as it is"
        ))
    }

    pub(super) fn wrong_token(detail: &str) -> Self {
        Self::plain(StatusCode::UNAUTHORIZED, Outcome::Invalid, detail.to_owned())
    }

    pub(super) fn web_page() -> Self {
        let detail = "the agent answers programs, not web pages: send no Origin";
        Self::plain(StatusCode::FORBIDDEN, Outcome::Invalid, detail.to_owned())
    }

    /// Returns the refusal of a change of limits by an agent that makes none. Its type tells it from a
    /// stopped resource and a web page.
    pub(super) fn limit_changes_not_allowed() -> Self {
        let detail = "this agent changes no limits: start it with --allow-limit-changes \
                      (WEIRGATE_AGENT_ALLOW_LIMIT_CHANGES=true), or run `weirgate limits set`";
        let problem = Plain {
            kind: "limit-changes-not-allowed",
            title: "Limit Changes Not Allowed",
            ..Plain::new(StatusCode::FORBIDDEN, detail.to_owned())
        };
        Self::of(403, Outcome::Invalid, problem, Applied::No, false)
    }

    pub(super) fn unknown_path(path: &str) -> Self {
        let path = shown(path);
        let detail = format!(
            "there is no {path:?}: use /v1/acquire, /v1/settle, /v1/report, /v1/peek, /v1/usage, /v1/limits, /v1/limits/set, /v1/limits/delete, /healthz or /metrics"
        );
        Self::plain(StatusCode::NOT_FOUND, Outcome::Invalid, detail)
    }

    pub(super) fn wrong_method(allowed: &Method, path: &str, method: &Method) -> Self {
        let method = shown(method.as_str());
        let detail = format!("{path} takes {allowed}, got {method}: send {allowed}");
        Self {
            fields: vec![("allow", allowed.to_string())],
            ..Self::plain(StatusCode::METHOD_NOT_ALLOWED, Outcome::Invalid, detail)
        }
    }

    /// Returns the refusal of a request that the agent has no room for.
    pub(super) fn overloaded(what: String) -> Self {
        let detail = format!("{what}: try again in a second, or run more agents");
        let problem = Plain::new(StatusCode::SERVICE_UNAVAILABLE, detail);
        Self {
            fields: vec![("retry-after", "1".to_owned())],
            ..Self::of(503, Outcome::Overloaded, problem, Applied::No, true)
        }
    }

    /// Returns the refusal of a request on which no decision could be made.
    pub(super) fn no_decision(error: &Error) -> Self {
        Self::failed(error, error.is_unknown(), None)
    }

    /// Returns the refusal of a settlement that failed.
    pub(super) fn unsettled(error: SettleError) -> Self {
        Self::failed(&error.error, error.may_be_applied, error.grant)
    }

    /// Returns the answer before the table was reached: 503, because a repair makes it ready.
    pub(super) fn not_reached(error: &Error) -> Self {
        let detail = format!("the table was not reached: {error}");
        let problem = Plain::new(StatusCode::SERVICE_UNAVAILABLE, detail);
        Self::of(503, Outcome::NoDecision, problem, Applied::No, true)
    }

    fn failed(error: &Error, may_be_applied: bool, grant: Option<String>) -> Self {
        let applied = match may_be_applied {
            true => Applied::Unknown,
            false => Applied::No,
        };
        let detail = error.to_string();
        let (outcome, problem) = match error {
            Error::Invalid(_) => {
                let problem = Plain::new(StatusCode::BAD_REQUEST, detail);
                (Outcome::Invalid, problem)
            }
            error if error.is_transient() => {
                let problem = Plain::new(StatusCode::SERVICE_UNAVAILABLE, detail);
                (Outcome::NoDecision, problem)
            }
            error => {
                log::until_repaired(error);
                (Outcome::NoDecision, Plain::until_repaired(error, detail))
            }
        };
        let status = problem.status;
        let may_retry = error.is_transient() && !may_be_applied;
        let problem = UnsettledBody { problem, grant };
        let wait = match error {
            Error::Unavailable { retry_after, .. } => Some(retry_after.as_secs() + 1),
            _ => None,
        };
        let fields = wait.map(|seconds| ("retry-after", seconds.to_string()));
        Self {
            fields: fields.into_iter().collect(),
            ..Self::of(status, outcome, problem, applied, may_retry)
        }
    }

    fn plain(status: StatusCode, outcome: Outcome, detail: String) -> Self {
        let problem = Plain::new(status, detail);
        Self::of(status.as_u16(), outcome, problem, Applied::No, false)
    }

    fn of(
        status: u16,
        outcome: Outcome,
        problem: impl Serialize,
        applied: Applied,
        retry: bool,
    ) -> Self {
        let body = ProblemBody { problem, applied, retry };
        Self {
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            outcome,
            fields: vec![],
            body: json(&body),
        }
    }

    /// Returns the response.
    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        response(self.status, PROBLEM, self.fields, self.body)
    }
}

impl Plain {
    fn new(status: StatusCode, detail: String) -> Self {
        Self {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or_default(),
            status: status.as_u16(),
            detail,
        }
    }

    /// Returns the problem of an error that only a repair ends. Its type tells it from an unknown path
    /// (404), and from a fault of what stands between (500).
    fn until_repaired(error: &Error, detail: String) -> Self {
        let (status, kind, title) = match error {
            Error::NotConfigured { .. } => {
                (StatusCode::NOT_FOUND, "limits-not-configured", "Limits Not Configured")
            }
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "misconfigured", "Misconfigured"),
        };
        Self { kind, title, ..Self::new(status, detail) }
    }
}

/// The type of values.
pub(super) const JSON: &str = "application/json";

/// Returns a response.
pub(super) fn response(
    status: StatusCode,
    kind: &'static str,
    fields: Vec<(&'static str, String)>,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in fields {
        // Names of limits are printable ASCII in a field.
        if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(value)) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// Returns the JSON of a value.
pub(super) fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("values of the limiter are JSON")
}
