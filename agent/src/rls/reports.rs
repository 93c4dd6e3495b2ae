//! Writes what calls report. A caller may leave before a report is written: it is written anyway.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;
use tonic::Status;
use weirgate::{Error, Limit, RateLimiter};

use super::plan::{BucketAmounts, Step};
use super::without_decision::{overloaded, reported, status_of};
use crate::gated::GatedLimiter;
use crate::rules::Bucket;

/// What a call reports of one bucket: the difference of what was used and what was not, so an
/// estimate that comes back and the real usage are one write.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Report {
    entity: String,
    resource: String,
    limits: Option<Arc<[Limit]>>,
    /// Tokens used, by limit; negative ones return.
    used: BTreeMap<Box<str>, i64>,
}

/// Writes what `steps` report, and returns when that is done, or at the `deadline`: what is still
/// being written then counts as written, because repeating the call would count it twice. Returns
/// what became of the reports. `bytes` are those of the call, if it was not admitted.
///
/// # Errors
/// `UNAVAILABLE` if nothing is written, because too many requests are in flight. After that only
/// statuses that are not retried.
pub(super) async fn record(
    gated: &GatedLimiter,
    steps: &[Step],
    mut bytes: usize,
    deadline: Instant,
) -> Result<Recorded, Status> {
    let refused = steps.iter().find_map(|step| match step {
        Step::Refused(_, why) => Some(Status::invalid_argument(why)),
        _ => None,
    });
    if let Some(refused) = &refused {
        tracing::debug!(status = refused.message(), "a report was refused");
    }
    let mut admitted = vec![];
    for report in reports(steps) {
        // The write counts as a request in flight until its end.
        let permit = gated.settling.enter(std::mem::take(&mut bytes));
        let permit = permit.map_err(overloaded)?;
        admitted.push((report, permit));
    }
    let mut recorded = Recorded { is_written: !admitted.is_empty(), refused };
    let mut writes = vec![];
    for (report, permit) in admitted {
        let limiter = gated.limiter.clone();
        writes.push(tokio::spawn(async move {
            let written = report.write(&limiter).await;
            drop(permit);
            written.inspect_err(|error| {
                let Report { entity, resource, .. } = &report;
                tracing::warn!(%error, entity, resource, "a report was not written");
            })
        }));
    }
    for write in writes {
        match tokio::time::timeout_at(deadline, write).await {
            Err(_) => break,
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error @ Error::Invalid(_)))) => {
                recorded.refused.get_or_insert(status_of(&error));
            }
            Ok(Ok(Err(error))) => return Err(reported(status_of(&error))),
            Ok(Err(_)) => return Err(Status::internal("the task of a report failed")),
        }
    }
    Ok(recorded)
}

/// What became of the reports of a call.
#[derive(Debug)]
pub(super) struct Recorded {
    /// Whether anything is written.
    pub(super) is_written: bool,
    /// Why a report was refused, if one was. The others are written.
    pub(super) refused: Option<Status>,
}

/// Returns one report for each bucket that `steps` report of. An estimate returns only together with
/// its usage: a step that is refused keeps the refunds of its bucket.
fn reports(steps: &[Step]) -> Vec<Report> {
    let is_refused = |part: &BucketAmounts| {
        let of_part = (&part.bucket.entity, &part.bucket.resource);
        let is_of = |bucket: &Bucket| (&bucket.entity, &bucket.resource) == of_part;
        let mut steps = steps.iter();
        steps.any(|step| matches!(step, Step::Refused(bucket, _) if is_of(bucket)))
    };
    let mut reports: Vec<Report> = vec![];
    for step in steps {
        let (part, sign) = match step {
            Step::Settle(part) => (part, 1),
            Step::Refund(part) if !is_refused(part) => (part, -1),
            _ => continue,
        };
        let new = Report::of(part);
        let known = reports.iter().position(|report| report.is_like(&new));
        let at = known.unwrap_or_else(|| {
            reports.push(new);
            reports.len() - 1
        });
        for (limit, tokens) in part.amounts() {
            let used = reports[at].used.entry(limit.into()).or_default();
            *used = used.saturating_add(sign * tokens);
        }
    }
    reports
}

impl Report {
    fn of(part: &BucketAmounts) -> Self {
        let bucket = &part.bucket;
        Self {
            entity: bucket.entity.clone(),
            resource: bucket.resource.clone(),
            limits: bucket.terms.limits.clone(),
            used: BTreeMap::new(),
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        (&self.entity, &self.resource, &self.limits)
            == (&other.entity, &other.resource, &other.limits)
    }

    /// Writes the difference.
    async fn write(&self, limiter: &RateLimiter) -> Result<(), Error> {
        let mut debit = limiter.acquire(&self.entity, &self.resource).into_debt();
        let mut refund = limiter.refund(&self.entity, &self.resource);
        if let Some(limits) = &self.limits {
            debit = debit.shared_limits(limits);
            refund = refund.limits(limits);
        }
        let (mut is_debited, mut is_refunded) = (false, false);
        for (limit, used) in &self.used {
            if *used > 0 {
                debit = debit.take(limit, *used);
                is_debited = true;
            } else if *used < 0 {
                refund = refund.give_back(limit, used.saturating_neg());
                is_refunded = true;
            }
        }
        if is_debited {
            // A level that is stopped counts nothing, as for every request.
            let _ = debit.send().await?;
        }
        if is_refunded {
            refund.send().await?;
        }
        Ok(())
    }
}
