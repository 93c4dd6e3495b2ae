//! Denials that shadow mode waives.

use weirgate_shared::{BucketKey, LimitMode, LimitName, MilliTokens};

use super::Decider;
use crate::bucket::BucketTarget;
use crate::values::{Denied, NeverFits, denial_of, merge_denials, merge_two, never_status};

impl Decider<'_> {
    /// Returns an amount above its limit's capacity, from one request or from several on the same
    /// bucket. In shadow mode, waives it instead.
    pub(super) fn never_fits(&mut self) -> Option<NeverFits> {
        let sum = |key: &BucketKey, limit: &LimitName| -> MilliTokens {
            let same = self
                .targets
                .iter()
                .filter(|target| target.bucket.key == *key);
            same.filter_map(|target| target.request.amounts.get(limit))
                .copied()
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
                .filter(|limit| request.amounts.contains_key(limit.name()))
            {
                let requested = sum(&bucket.key, limit.name());
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
            target.request.amounts.remove(limit.name());
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
            let amounts = &mut self.targets[*at].request.amounts;
            let before = amounts.len();
            amounts
                .retain(|limit: &LimitName, _: &mut MilliTokens| !short.contains(&limit.as_str()));
            if amounts.len() < before {
                has_waived = true;
                let known = self.would_deny[*at].take();
                self.would_deny[*at] =
                    Some(merge_denials(known.into_iter().chain([denied.clone()])));
            }
        }
        // Without a change, the same attempt would repeat indefinitely.
        has_waived
    }
}
