//! What the bucket as a whole says to a request, from what is known of its shards. Pure but for reading the views.

use weirgate_shared::{EpochMillis, MilliTokens, Whole};

use super::{Request, Shards};
use crate::decision::{self, Denied};
use crate::limits::Limits;
use crate::line::{Needs, View};

/// What becomes of a request.
pub(super) enum Judgement {
    /// All shards together have not enough.
    Denied(Denied),
    /// This one has enough.
    One(u32),
    /// These have, each so much.
    Several(Vec<(u32, Needs)>),
}

impl Shards {
    /// The shards with the callers' own limits at `now`, as far as they are known: good for planning a write, and what
    /// they seem to lack proves nothing.
    pub(crate) fn known(&self, limits: &Limits, now: EpochMillis) -> Whole {
        let views = self.lines().into_iter().filter(|line| !line.is_absent()).filter_map(|line| line.view());
        Whole::new(views.map(|view| view.bucket.advanced(limits, now)).collect())
    }

    /// The shards with the callers' own limits at `now`, from views that are `fresh`.
    pub(crate) fn seen(&self, limits: &Limits, now: EpochMillis, fresh: impl Fn(&View) -> bool) -> Whole {
        let views = self
            .lines()
            .into_iter()
            .filter(|line| !line.is_absent())
            .filter_map(|line| line.view())
            .filter(|view| !view.is_outdated);
        Whole::new(views.filter(fresh).map(|view| view.bucket.advanced(limits, now)).collect())
    }
}

/// Judges a request by the `whole` bucket.
pub(super) fn judge(whole: &Whole, Request { needs, limits, .. }: &Request, now: EpochMillis) -> Judgement {
    if needs.iter().any(|(limit, need)| whole.holds(limit, now) < *need) {
        return Judgement::Denied(decision::denied(decision::status_of_whole(whole, limits, needs, now)));
    }
    let room =
        |shard: &weirgate_shared::Bucket| needs.iter().map(|(limit, need)| shard.holds(limit, now) - *need).min();
    let fits = |shard: &&weirgate_shared::Bucket| room(shard).is_none_or(|room| room >= MilliTokens::ZERO);
    let fitting: Vec<_> = whole.shards().iter().filter(fits).collect();
    // Not the best one: others who have looked at the same time would take it too.
    if let Some(one) = fastrand::choice(&fitting) {
        return Judgement::One(one.key.shard);
    }
    // Together they have enough, so the parts are there.
    Judgement::Several(whole.spread(needs, now).unwrap_or_default())
}
