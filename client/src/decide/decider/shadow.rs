//! Denials that shadow mode waives.

use weirgate_shared::{Asks, BucketKey, Effect, LimitMode, LimitName, MilliTokens};

use super::Decider;
use crate::bucket::BucketTarget;
use crate::values::{
    BucketRequest, Denied, NeverFits, denial_of, merge_denials, merge_two, never_status,
};

impl Decider<'_> {
    /// Returns an amount above its limit's capacity, from one request or from several on the same
    /// bucket. In shadow mode, waives it instead. An enforced amount counts without those in shadow
    /// mode.
    pub(super) fn never_fits(&mut self) -> Option<NeverFits> {
        let sum = |key: &BucketKey, limit: &LimitName, is_shadow: bool| -> MilliTokens {
            let counts = |target: &&BucketTarget| {
                target.bucket.key == *key && (is_shadow || !target.is_shadow)
            };
            let same = self.targets.iter().filter(counts);
            same.filter_map(|target| target.request.asks.enforced(limit.as_str()))
                .sum()
        };
        let mut above = vec![];
        for (at, target) in self.targets.iter().enumerate() {
            let BucketTarget {
                request, bucket, ..
            } = target;
            for limit in request
                .limits
                .iter()
                .filter(|limit| request.asks.enforced(limit.name().as_str()).is_some())
            {
                let requested = sum(&bucket.key, limit.name(), target.is_shadow);
                if requested > limit.rule().capacity {
                    above.push((at, limit.clone(), requested));
                }
            }
        }
        for (at, limit, requested) in above {
            let target = &mut self.targets[at];
            let (key, capacity) = (&target.bucket.key, limit.rule().capacity);
            if !target.is_shadow && limit.mode() != LimitMode::Shadow {
                let (entity, resource) = (key.entity.clone(), key.resource.clone());
                return Some(NeverFits {
                    entity,
                    resource,
                    limit: limit.name().to_string(),
                    requested,
                    capacity,
                });
            }
            let status = never_status(key, &limit, requested);
            waive(&mut target.request, |name| name == limit.name());
            let known = self.would_deny[at].take();
            self.would_deny[at] = merge_two(known, Some(denial_of(vec![status])));
        }
        None
    }

    /// Waives the amounts that are short, if all of them are in shadow mode. Returns whether any
    /// was removed.
    pub(super) fn waive_shadow_limits(&mut self, denials: &[(usize, Denied)]) -> bool {
        let is_shadow = |(at, denied): &(usize, Denied)| {
            denied
                .short()
                .all(|short| self.targets[*at].is_shadow || short.mode == LimitMode::Shadow)
        };
        if !denials.iter().all(is_shadow) {
            return false;
        }
        let mut has_waived = false;
        for (at, denied) in denials {
            let short: Vec<_> = denied.short().map(|status| status.limit.as_str()).collect();
            let request = &mut self.targets[*at].request;
            if waive(request, |name| short.contains(&name.as_str())) {
                has_waived = true;
                let known = self.would_deny[*at].take();
                self.would_deny[*at] =
                    Some(merge_denials(known.into_iter().chain([denied.clone()])));
            }
        }
        // Without a change, the same attempt would repeat indefinitely.
        has_waived
    }

    /// Waives what requests in shadow mode ask of buckets that deny an enforced request, because
    /// they may have taken what it lacks. Returns whether any amount was removed.
    pub(super) fn waive_shared_buckets(&mut self, denials: &[(usize, Denied)]) -> bool {
        let mut has_waived = false;
        for (at, denied) in denials {
            if self.targets[*at].is_shadow {
                continue;
            }
            let key = self.targets[*at].bucket.key.clone();
            for (other, target) in self.targets.iter_mut().enumerate() {
                if target.is_shadow && target.bucket.key == key && !target.request.asks.is_empty() {
                    target.request.asks = Asks::default();
                    let known = self.would_deny[other].take();
                    self.would_deny[other] = merge_two(known, Some(denied.clone()));
                    has_waived = true;
                }
            }
        }
        has_waived
    }

    /// Returns the denials of enforced requests: those in shadow mode are no part of the answer, and
    /// prolong no wait.
    pub(super) fn enforced(&self, denials: Vec<(usize, Denied)>) -> Vec<Denied> {
        let is_enforced = |(at, _): &(usize, Denied)| !self.targets[*at].is_shadow;
        let has_enforced = denials.iter().any(is_enforced);
        let counts = |denial: &(usize, Denied)| is_enforced(denial) || !has_enforced;
        let denials = denials.into_iter().filter(counts);
        denials.map(|(_, denied)| denied).collect()
    }
}

/// Leaves out the enforced amounts of some limits. Returns whether there were any.
fn waive(request: &mut BucketRequest, is_waived: impl Fn(&LimitName) -> bool) -> bool {
    let mut has_waived = false;
    request.asks.retain(|ask| {
        let waives = ask.effect == Effect::Enforce && is_waived(&ask.limit);
        has_waived |= waives;
        !waives
    });
    has_waived
}
