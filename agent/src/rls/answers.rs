//! Answers: statuses, headers, a body, and what was taken, for the refund after the response.
//!
//! Envoy keeps that as dynamic metadata of the request, which no client can set. A refund whose hits
//! are read from it exists only after a grant.

use std::collections::BTreeMap;

use weirgate::Denied;
use weirgate::http::{Policies, PolicyNames, Problem};

use super::decision::{Decided, Refusal};
use super::messages::{Code, HeaderValue, RateLimitResponse, Struct, Value, value};
use super::plan::{BucketAmounts, Plan, Step};
use super::statuses::DescriptorResult;

/// Returns the answer to a call.
pub(super) fn answer(plan: &Plan, decided: &Decided) -> RateLimitResponse {
    let names = names(plan);
    let statuses = decided.results.iter().map(DescriptorResult::message).collect();
    let (code, fields, problem) = match &decided.refusal {
        None => {
            let fields = Policies::granted(&decided.limits, &names).fields();
            (Code::Ok, fields, None)
        }
        Some(Refusal::Denied(denied)) => {
            let fields = Policies::denied(denied, &names).fields();
            (Code::OverLimit, fields, Some(Problem::denied(denied, &names)))
        }
        Some(Refusal::NeverFits(never)) => {
            let problem = Problem::never_fits(never, &names);
            (Code::OverLimit, vec![], Some(problem))
        }
        Some(Refusal::Disabled(disabled)) => {
            let problem = Problem::disabled(disabled);
            (Code::OverLimit, vec![], Some(problem))
        }
    };
    let fields = fields.into_iter();
    let mut headers: Vec<_> = fields.map(|(name, value)| header(name, value)).collect();
    if problem.is_some() {
        headers.push(header("content-type", "application/problem+json".to_owned()));
    }
    RateLimitResponse {
        overall_code: code.into(),
        statuses,
        response_headers_to_add: headers,
        raw_body: problem.map_or_else(Vec::new, |problem| problem.json().into_bytes()),
        dynamic_metadata: metadata(plan, decided),
    }
}

/// Returns the names of the limits: those of the first bucket have their own. A trial is no bucket that
/// clients could know of.
fn names(plan: &Plan) -> PolicyNames {
    let mut asked = plan.steps.iter().filter_map(|step| match step {
        Step::Ask(part) | Step::Peek(part) => Some(&part.bucket),
        Step::Blocked(bucket, _) => Some(bucket),
        Step::Pass | Step::Unlimited | Step::Settle(_) | Step::Refund(_) | Step::Refused(..) => {
            None
        }
    });
    let own = asked.find(|bucket| !bucket.terms.is_shadow);
    match own {
        Some(bucket) => PolicyNames::default().own(&bucket.entity, &bucket.resource),
        None => PolicyNames::default(),
    }
}

fn header(key: &str, value: String) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value }
}

/// Field of the tokens that were taken.
const TAKEN: &str = "taken";

/// Returns the tokens that a call took, by resource and limit: `{taken: {llm: {tpd: 40000}}}`. Of
/// several buckets with the same resource and limit, the smallest amount counts; a trial counts only
/// where no other has the two. `None` if nothing was taken from the table.
fn metadata(plan: &Plan, decided: &Decided) -> Option<Struct> {
    let mut taken = BTreeMap::<&str, BTreeMap<&str, u32>>::new();
    let parts = decided.grants.iter().filter_map(|(at, grant)| match &plan.steps[*at] {
        Step::Ask(part) => Some((part, grant)),
        _ => None,
    });
    let (trials, enforced): (Vec<_>, Vec<_>) =
        parts.partition(|(part, _)| part.bucket.terms.is_shadow);
    let enforced_limits: Vec<_> = enforced.iter().flat_map(|(part, _)| limits(part)).collect();
    for (part, grant) in enforced.into_iter().chain(trials) {
        for take in &part.bucket.terms.takes {
            let key = (&*part.bucket.resource, &*take.limit);
            if part.bucket.terms.is_shadow && enforced_limits.contains(&key) {
                continue;
            }
            // Without DynamoDB, a local bucket took it, or nothing did. Where shadow mode waived it in a bucket of
            // the chain, that one gave nothing.
            let mut short = grant.would_deny().into_iter().flat_map(Denied::short);
            let amount = match short.any(|short| *short.limit == *take.limit) {
                false if grant.degraded().is_none() => grant.amount(&take.limit).whole_tokens(),
                _ => 0,
            };
            let amount = u32::try_from(amount.max(0)).unwrap_or(u32::MAX);
            let limits = taken.entry(&part.bucket.resource).or_default();
            let least = limits.entry(&take.limit).or_insert(amount);
            *least = amount.min(*least);
        }
    }
    let resources = taken.into_iter().filter_map(|(resource, limits)| {
        let limits = limits.into_iter().filter(|(_, amount)| *amount > 0);
        let limits = limits.map(|(limit, amount)| (limit, value::Kind::Number(amount.into())));
        Some((resource, value::Kind::Fields(fields(limits)?)))
    });
    fields([(TAKEN, value::Kind::Fields(fields(resources)?))])
}

/// Iterates over the resource and the limits that a part takes.
fn limits(part: &BucketAmounts) -> impl Iterator<Item = (&str, &str)> {
    let takes = part.bucket.terms.takes.iter();
    takes.map(|take| (&*part.bucket.resource, &*take.limit))
}

/// Returns a message of these fields; `None` if there are none.
fn fields<'f>(fields: impl IntoIterator<Item = (&'f str, value::Kind)>) -> Option<Struct> {
    let field = |(name, kind): (&str, _)| (name.to_owned(), Value { kind: Some(kind) });
    let fields: BTreeMap<_, _> = fields.into_iter().map(field).collect();
    (!fields.is_empty()).then_some(Struct { fields })
}
