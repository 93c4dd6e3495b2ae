//! Standings as statuses, headers and a body.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use weirgate::http::{Policies, Policy, PolicyNames, Problem};
use weirgate::{Denied, LimitMode, LimitStatus};

use super::decision::Decided;
use super::decision::Refusal;
use super::messages::{
    self, Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitResponse, Struct, Unit, Value,
    value,
};
use super::plan::{BucketAmounts, Plan, Step};
use crate::rules::Terms;

/// Returns the answer to a call.
pub(super) fn answer(plan: &Plan, decided: &Decided) -> RateLimitResponse {
    let names = names(plan);
    let statuses = decided
        .results
        .iter()
        .map(DescriptorResult::message)
        .collect();
    let (code, fields, problem) = match &decided.refusal {
        None => {
            let fields = Policies::granted(&decided.limits, &names).fields();
            (Code::Ok, fields, None)
        }
        Some(Refusal::Denied(denied)) => {
            let fields = Policies::denied(denied, &names).fields();
            (
                Code::OverLimit,
                fields,
                Some(Problem::denied(denied, &names)),
            )
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
        headers.push(header(
            "content-type",
            "application/problem+json".to_owned(),
        ));
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
        Step::Pass | Step::Unlimited | Step::Settle(_) | Step::Refund(_) | Step::Refused(_) => None,
    });
    let own = asked.find(|bucket| !bucket.terms.is_shadow);
    match own {
        Some(bucket) => PolicyNames::default().own(&bucket.entity, &bucket.resource),
        None => PolicyNames::default(),
    }
}

fn header(key: &str, value: String) -> HeaderValue {
    HeaderValue {
        key: key.to_owned(),
        value,
    }
}

/// What is left of the limit of one descriptor.
#[derive(Debug, Default)]
pub(super) struct DescriptorResult {
    pub(super) is_over: bool,
    pub(super) is_unlimited: bool,
    /// The limit that matters most: the one that denies, or the one with the smallest part left.
    pub(super) status: Option<LimitStatus>,
    /// Name of the limit, instead of its own.
    pub(super) label: Option<Box<str>>,
}

impl DescriptorResult {
    /// Returns the result by the limits of the bucket, of which those of `terms` count. What is only
    /// reported is over for no client, and has no limit that one could see.
    pub(super) fn of(limits: &[LimitStatus], terms: &Terms, is_over: bool) -> Self {
        if terms.is_shadow {
            return Self::default();
        }
        let mut status = strictest(limits, |status| {
            terms.takes.iter().any(|take| *take.limit == *status.limit)
        });
        // What denies may be a limit of a parent, which has other names.
        if is_over && status.is_none_or(|status| !status.is_short()) {
            status = strictest(limits, LimitStatus::is_short).or(status);
        }
        Self {
            is_over,
            is_unlimited: false,
            status: status.cloned(),
            label: terms.label.clone(),
        }
    }

    pub(super) fn message(&self) -> DescriptorStatus {
        let code = if self.is_over {
            Code::OverLimit
        } else {
            Code::Ok
        };
        let Some(status) = &self.status else {
            return DescriptorStatus {
                code: code.into(),
                limit_remaining: if self.is_unlimited { u32::MAX } else { 0 },
                ..DescriptorStatus::default()
            };
        };
        let name = self.label.as_deref().unwrap_or(&status.limit);
        let policy = policy(status);
        DescriptorStatus {
            code: code.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: whole(status.capacity.whole_tokens()),
                unit: unit(status).into(),
                name: name.to_owned(),
            }),
            limit_remaining: whole(policy.as_ref().map_or(0, |policy| policy.remaining)),
            duration_until_reset: policy.and_then(|policy| reset(status, &policy)),
        }
    }
}

/// Returns the limit that denies for the longest time, or else the one with the smallest part of
/// its capacity left.
fn strictest(
    limits: &[LimitStatus],
    is_meant: impl Fn(&LimitStatus) -> bool,
) -> Option<&LimitStatus> {
    let order = |status: &&LimitStatus| {
        let part = i128::from(status.available.0) * 1_000_000;
        let left = part / i128::from(status.capacity.0.max(1));
        let wait = status.retry_after.unwrap_or(Duration::MAX);
        let short = status.is_short().then_some(Reverse(wait));
        (short.is_none(), short, left)
    };
    let is_shown = |status: &&LimitStatus| status.mode != LimitMode::Shadow && is_meant(status);
    let meant = limits.iter().filter(is_shown);
    meant.min_by_key(order)
}

fn whole(tokens: i64) -> u32 {
    u32::try_from(tokens.max(0)).unwrap_or(u32::MAX)
}

/// Returns the unit in which the whole limit comes back, if there is one.
fn unit(status: &LimitStatus) -> Unit {
    const DAY: u64 = 86_400;
    if status.capacity != status.refill_amount || status.refill_period.subsec_nanos() > 0 {
        return Unit::Unknown;
    }
    match status.refill_period.as_secs() {
        1 => Unit::Second,
        60 => Unit::Minute,
        3_600 => Unit::Hour,
        DAY => Unit::Day,
        seconds if seconds == 7 * DAY => Unit::Week,
        seconds if seconds == 30 * DAY => Unit::Month,
        seconds if seconds == 365 * DAY => Unit::Year,
        _ => Unit::Unknown,
    }
}

/// Returns the numbers that the fields of an answer have of the limit: as long as the request does not
/// fit, those of a denial.
fn policy(status: &LimitStatus) -> Option<Policy> {
    let (limits, names) = (vec![status.clone()], PolicyNames::default());
    let policies = match status.retry_after.filter(|_| status.is_short()) {
        None => Policies::granted(&limits, &names),
        wait => Policies::denied(
            &Denied {
                retry_after: wait,
                limits,
                degraded: None,
            },
            &names,
        ),
    };
    policies.iter().next().cloned()
}

/// Returns the time until the request fits, or in which what is left refills. `None` for slots. A
/// limit that admits nothing has its period: the filter would send 0 otherwise, which is now.
fn reset(status: &LimitStatus, policy: &Policy) -> Option<messages::Duration> {
    let is_blocked = status.capacity.0 <= 0;
    let seconds = policy
        .seconds
        .or(policy.window_seconds.filter(|_| is_blocked));
    seconds.map(|seconds| messages::Duration { seconds, nanos: 0 })
}

/// Field of the tokens that were taken.
const TAKEN: &str = "taken";

/// Returns the tokens that a call took, by resource and limit: `{taken: {llm: {tpd: 40000}}}`. Of
/// several buckets with the same resource and limit, the smallest amount counts; a trial counts only
/// where no other has the two. `None` if nothing was taken from the table.
fn metadata(plan: &Plan, decided: &Decided) -> Option<Struct> {
    let mut taken = BTreeMap::<&str, BTreeMap<&str, u32>>::new();
    let parts = decided
        .grants
        .iter()
        .filter_map(|(at, grant)| match &plan.steps[*at] {
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
            // Without DynamoDB, a local bucket took it, or nothing did.
            let amount = match grant.degraded() {
                None => grant.amount(&take.limit).whole_tokens(),
                Some(_) => 0,
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
