//! `POST /v1/acquire`.

use std::collections::BTreeMap;

use serde::Serialize;
use weirgate::http::{Policies, PolicyNames};
use weirgate::{Decision, Degraded, Denied, EpochMillis, LimitName, LimitStatus, MilliTokens};

use super::fields::{
    DAY_MS, Invalid, Object, bool, limits, list, millis, on_unavailable, text, tokens, whole,
    whole_tokens, wrong,
};
use super::json::Json;
use super::refusal::Refusal;
use super::response::json;
use crate::decide::{BucketRequest, Decider, Request, Take};

/// Most buckets in a request.
const MAX_BUCKETS: usize = 100;
/// Longest time for a decision, in ms.
const HOUR_MS: u64 = 3_600_000;

const OF_BUCKET: [&str; 6] = [
    "entity",
    "resource",
    "take",
    "limits",
    "limits_version",
    "cascading",
];
const OF_REQUEST: [&str; 5] = [
    "wait_ms",
    "lease_ms",
    "timeout_ms",
    "on_unavailable",
    "bypass",
];

/// The fields and the body of an answer.
pub(super) type Answer = (Vec<(&'static str, String)>, Vec<u8>);

#[derive(Serialize)]
struct GrantedBody<'a> {
    grant: &'a str,
    lease: Option<Lease>,
    amounts: &'a [BTreeMap<LimitName, MilliTokens>],
    limits: &'a [LimitStatus],
    would_deny: Option<Denied>,
    degraded: Option<Degraded>,
}

/// When the first lease of a grant expires.
#[derive(Serialize)]
pub(super) struct Lease {
    expires_at_ms: EpochMillis,
}

impl Lease {
    pub(super) fn until(expires: Option<EpochMillis>) -> Option<Self> {
        expires.map(|expires_at_ms| Self { expires_at_ms })
    }
}

/// Reads a request.
pub(super) fn read(body: &[u8]) -> Result<Request, Invalid> {
    let mut object = Object::parse(body)?;
    let mut request = Request {
        wait: object
            .optional("wait_ms", millis(0..=DAY_MS))?
            .unwrap_or_default(),
        lease: object.optional("lease_ms", millis(1..=DAY_MS))?,
        timeout: object.optional("timeout_ms", millis(1..=HOUR_MS))?,
        on_unavailable: object.optional("on_unavailable", on_unavailable)?,
        is_bypass: object.optional("bypass", bool)?.unwrap_or_default(),
        buckets: vec![],
    };
    if object.has("buckets") {
        let each = |json| {
            let mut object = Object::of(json)?;
            let bucket = bucket(&mut object)?;
            object.end(&OF_BUCKET)?;
            Ok(bucket)
        };
        request.buckets = object.required("buckets", |json| list(json, MAX_BUCKETS, each))?;
        if request.buckets.is_empty() {
            return Err(Invalid::of(
                "buckets",
                "must have 1 to 100 elements, got 0: add one",
            ));
        }
    } else {
        request.buckets = vec![bucket(&mut object)?];
    }
    object.end(&[&["buckets"][..], &OF_BUCKET, &OF_REQUEST].concat())?;
    Ok(request)
}

fn bucket(object: &mut Object<'_>) -> Result<BucketRequest, Invalid> {
    Ok(BucketRequest {
        entity: object.required("entity", text)?,
        resource: object.required("resource", text)?,
        takes: object.required("take", |json| Object::of(json)?.each(take))?,
        limits: object.optional("limits", limits)?,
        limits_version: object.optional("limits_version", whole)?,
        is_cascading: object.optional("cascading", bool)?.unwrap_or_default(),
    })
}

fn take(json: Json<'_>) -> Result<Take, Invalid> {
    match json {
        Json::Number(_) => tokens(json).map(Take::Exactly),
        Json::Object(_) => {
            let mut range = Object::of(json)?;
            let at_least = range.required("at_least", whole_tokens)?;
            let at_most = range.required("at_most", whole_tokens)?;
            range.end(&["at_least", "at_most"])?;
            Ok(Take::UpTo { at_least, at_most })
        }
        other => Err(wrong(
            "0 to 10^12 tokens, or {\"at_least\": 1, \"at_most\": 10}",
            &other,
        )),
    }
}

/// Returns how limits of a request are named in fields: those of the first bucket without a prefix.
fn names(request: &Request) -> PolicyNames {
    let first = request.buckets.first();
    first.map_or_else(PolicyNames::default, |bucket| {
        PolicyNames::default().own(&bucket.entity, &bucket.resource)
    })
}

/// Answers a request.
pub(super) async fn answer(decider: &Decider, request: &Request) -> Result<Answer, Refusal> {
    let decision = decider.acquire(request).await;
    match decision.map_err(|error| Refusal::no_decision(&error))? {
        Decision::Granted(granted) => {
            let (limits, amounts) = (granted.limits(), granted.amounts());
            let lease = Lease::until(granted.expires_at());
            let (would_deny, degraded) = (granted.would_deny(), granted.degraded().cloned());
            let fields = Policies::granted(&limits, &names(request))
                .with_degraded(degraded.is_some())
                .fields();
            // From here on only the token can settle; nothing awaits before the answer is written.
            let grant = granted.into_token();
            let body = json(&GrantedBody {
                grant: &grant,
                lease,
                amounts: &amounts,
                limits: &limits,
                would_deny,
                degraded,
            });
            Ok((fields, body))
        }
        Decision::Denied(denied) => Err(Refusal::denied(&denied, &names(request))),
        Decision::NeverFits(never) => Err(Refusal::never_fits(&never, &names(request))),
        Decision::Disabled(disabled) => Err(Refusal::disabled(&disabled)),
    }
}
