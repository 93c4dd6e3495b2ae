//! What a call asks and what it reports, one step per descriptor. Pure.

use std::sync::Arc;
use std::time::Duration;

use weirgate::Limit;

use crate::rls::messages::{RateLimitDescriptor, RateLimitOverride, Unit};
use crate::rules::{Amount, Bucket, Entry, Matched, Rules, Take, Terms};

/// Most descriptors of one call: as many requests can be one decision.
const MAX_DESCRIPTORS: usize = 100;
/// Most hits of a descriptor that make a difference: more fit into no limit. A report of more is
/// refused.
pub(super) const MAX_HITS: u64 = 1_000_000_000_000;

/// What a call asks and reports, one step per descriptor, in their order.
#[derive(Debug)]
pub struct Plan {
    pub(super) steps: Vec<Step>,
}

/// What one descriptor asks or reports.
#[derive(Debug)]
pub(super) enum Step {
    /// No rule matches.
    Pass,
    /// Its rule has no limit.
    Unlimited,
    /// No request is allowed. The hits.
    Blocked(Bucket, i64),
    /// Takes these amounts, if all of the call can be taken.
    Ask(BucketAmounts),
    /// Asks whether there is as much, and takes nothing.
    Peek(BucketAmounts),
    /// Debits what was used, into debt.
    Settle(BucketAmounts),
    /// Gives back what was not used.
    Refund(BucketAmounts),
    /// Reports what no limit can have: the bucket, and why it is refused. Refunds of the bucket are
    /// refused with it. It changes nothing of the others.
    Refused(Bucket, String),
}

/// Amounts of one bucket.
#[derive(Debug, Clone)]
pub(super) struct BucketAmounts {
    pub(super) bucket: Bucket,
    /// Tokens of each limit, in the order of the rule's takes.
    pub(super) tokens: Vec<i64>,
}

/// What a call means by its hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Envoy's: each descriptor and its rule say it.
    Decide,
    /// Only asks.
    Check,
    /// Only reports: also nothing, because a reservation of it ends then.
    Report,
    /// Takes, also by rules that otherwise report.
    Reserve,
}

impl BucketAmounts {
    /// Iterates over the limits with their tokens.
    pub(super) fn amounts(&self) -> impl Iterator<Item = (&str, i64)> {
        let takes = self.bucket.terms.takes.iter();
        takes.map(|take| &*take.limit).zip(self.tokens.iter().copied())
    }
}

impl Plan {
    /// Returns what `descriptors` ask, by the rules of `domain`. `hits` is the request's own.
    ///
    /// # Errors
    /// What a caller must change: an empty domain, none or too many descriptors, one without
    /// entries, or a limit without a unit.
    pub fn new(
        rules: &Rules,
        domain: &str,
        descriptors: &[RateLimitDescriptor],
        hits: u32,
    ) -> Result<Self, String> {
        Self::with(rules, domain, descriptors, hits, Purpose::Decide)
    }

    /// Returns the number of steps, one per descriptor.
    #[must_use]
    pub const fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Returns whether a descriptor asks something, so that there is a decision.
    pub(super) fn has_questions(&self) -> bool {
        let is_question = |step: &Step| matches!(step, Step::Ask(_) | Step::Peek(_));
        self.steps.iter().any(is_question)
    }

    /// Iterates over the buckets that the call concerns.
    pub fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.steps.iter().filter_map(|step| match step {
            Step::Pass | Step::Unlimited | Step::Refused(..) => None,
            Step::Blocked(bucket, _) => Some(bucket),
            Step::Ask(part) | Step::Peek(part) | Step::Settle(part) | Step::Refund(part) => {
                Some(&part.bucket)
            }
        })
    }

    pub(super) fn with(
        rules: &Rules,
        domain: &str,
        descriptors: &[RateLimitDescriptor],
        hits: u32,
        purpose: Purpose,
    ) -> Result<Self, String> {
        if domain.is_empty() {
            return Err(
                "domain is empty, must be one of the rules: set it in the filter".to_owned()
            );
        }
        let count = descriptors.len();
        if count == 0 || count > MAX_DESCRIPTORS {
            return Err(format!(
                "a request must have 1 to {MAX_DESCRIPTORS} descriptors, got {count}: limit the actions of the route"
            ));
        }
        let step = |descriptor| step(rules, domain, descriptor, hits, purpose);
        let steps = descriptors.iter().map(step).collect::<Result<_, _>>()?;
        Ok(Self { steps })
    }
}

/// Iterates over the steps that take, with their places.
pub(super) fn asks(plan: &Plan) -> impl Iterator<Item = (usize, &BucketAmounts)> {
    plan.steps.iter().enumerate().filter_map(|(at, step)| match step {
        Step::Ask(part) => Some((at, part)),
        _ => None,
    })
}

fn step(
    rules: &Rules,
    domain: &str,
    descriptor: &RateLimitDescriptor,
    hits: u32,
    purpose: Purpose,
) -> Result<Step, String> {
    let entries: Vec<Entry<'_>> = descriptor
        .entries
        .iter()
        .map(|entry| (entry.key.as_str(), entry.value.as_slice()))
        .collect();
    if entries.is_empty() {
        return Err("a descriptor has no entries: every one needs a key and a value".to_owned());
    }
    // Of the request, 0 is what a caller sends that sets nothing.
    let reported = descriptor.hits_addend.unwrap_or(u64::from(hits.max(1)));
    let hits = i64::try_from(reported.min(MAX_HITS)).unwrap_or(i64::MAX);
    let matched = match &descriptor.limit {
        Some(limit) => match rules.find_overridden(domain, &entries) {
            Some(bucket) => overridden(bucket, limit)?,
            None => return Ok(Step::Pass),
        },
        None => match rules.find(domain, &entries) {
            Some(matched) => matched,
            None => return Ok(Step::Pass),
        },
    };
    let bucket = match matched {
        Matched::Unlimited => return Ok(Step::Unlimited),
        Matched::Blocked(bucket) => {
            let is_question = match purpose {
                Purpose::Check | Purpose::Reserve => true,
                Purpose::Report => false,
                Purpose::Decide => !descriptor.is_negative_hits && !bucket.terms.is_settle,
            };
            // No limit counts what was used, and nothing denies a report.
            return Ok(match is_question {
                true => Step::Blocked(bucket, hits),
                false => Step::Pass,
            });
        }
        Matched::Limited(bucket) => bucket,
    };
    let is_settle = bucket.terms.is_settle;
    let is_report = match purpose {
        Purpose::Check | Purpose::Reserve => false,
        Purpose::Report => true,
        Purpose::Decide => is_settle || descriptor.is_negative_hits,
    };
    if is_report && reported > MAX_HITS {
        return Ok(Step::Refused(bucket, too_large(reported)));
    }
    let tokens = |take: &Take| match take.amount {
        _ if hits == 0 => 0,
        Amount::Hits => hits,
        Amount::Tokens(tokens) => tokens,
    };
    let tokens = bucket.terms.takes.iter().map(tokens).collect();
    let part = BucketAmounts { bucket, tokens };
    Ok(match purpose {
        Purpose::Check => Step::Peek(part),
        Purpose::Reserve => Step::Ask(part),
        _ if hits > 0 && descriptor.is_negative_hits => Step::Refund(part),
        Purpose::Report => Step::Settle(part),
        // Nothing was used, and such a rule never denies.
        _ if is_settle && hits == 0 => Step::Pass,
        _ if is_settle => Step::Settle(part),
        _ if hits == 0 => Step::Peek(part),
        _ => Step::Ask(part),
    })
}

/// Returns the error of a report of more than any limit can have.
pub(super) fn too_large(hits: u64) -> String {
    format!("the hits of a report must be 0 to {MAX_HITS}, got {hits}: report what was used")
}

/// Replaces the limits of a bucket by the one that the descriptor brings.
fn overridden(bucket: Bucket, limit: &RateLimitOverride) -> Result<Matched, String> {
    const DAY: i64 = 86_400_000;
    let (unit, period) = match Unit::try_from(limit.unit) {
        Ok(Unit::Second) => ("second", 1_000),
        Ok(Unit::Minute) => ("minute", 60_000),
        Ok(Unit::Hour) => ("hour", 3_600_000),
        Ok(Unit::Day) => ("day", DAY),
        Ok(Unit::Week) => ("week", 7 * DAY),
        Ok(Unit::Month) => ("month", 30 * DAY),
        Ok(Unit::Year) => ("year", 365 * DAY),
        Ok(Unit::Unknown) | Err(_) => {
            return Err(format!(
                "the limit of a descriptor has the unit {}, must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR",
                limit.unit
            ));
        }
    };
    // Of several limits of the rule, the one that counts hits is replaced, and the others are left
    // out: they are configured for the rule's own case.
    let takes = &bucket.terms.takes;
    let counted = takes.iter().find(|take| take.amount == Amount::Hits);
    let counted = counted.or_else(|| takes.first());
    let take =
        counted.cloned().unwrap_or_else(|| Take { limit: unit.into(), amount: Amount::Hits });
    let rate = i64::from(limit.requests_per_unit);
    let limits = match rate {
        0 => None,
        _ => {
            let limit = Limit::custom(&take.limit, rate, rate, period);
            Some([limit.map_err(|error| error.to_string())?].into())
        }
    };
    let terms = Terms {
        takes: vec![take],
        limits,
        is_settle: bucket.terms.is_settle,
        is_shadow: bucket.terms.is_shadow,
        label: bucket.terms.label.clone(),
        period: Duration::from_millis(period.unsigned_abs()),
    };
    let bucket = Bucket { terms: Arc::new(terms), ..bucket };
    Ok(match rate {
        0 => Matched::Blocked(bucket),
        _ => Matched::Limited(bucket),
    })
}
