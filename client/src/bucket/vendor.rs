//! What a bucket's vendor says: it is paused, by one conditional write for each shard, and its balance is
//! lowered to what the vendor has left.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::timeout;
use weirgate_shared::write::{lower_balance, pause_reported};
use weirgate_shared::{EpochMillis, LimitName, MilliTokens, Millis, Pause, Shard};
use weirgate_store::WriteOutcome;

use super::refresh::finish_split;
use super::state::BucketState;
use crate::queue::ShardState;
use crate::session::{Session, decode_shard};
use crate::values::{
    Amounts, ConfiguredRate, Error, VendorAdvice, VendorLimit, VendorReport, count,
};

/// Writes of a report to one shard at most, 3: another report came in between each time.
const MAX_WRITES: usize = 3;

/// Shortest time between two writes of a process that lower a balance, 1 s.
const LOWERING_INTERVAL: Millis = Millis(1_000);

impl BucketState {
    /// Does what the vendor said to a caller that has `taken` from the shard. Returns when the pause ends.
    pub(crate) async fn vendor_said(
        &self,
        session: &Session,
        report: &VendorReport,
        shard: Option<Arc<ShardState>>,
        taken: &Amounts,
    ) -> Result<Option<EpochMillis>, Error> {
        let ignored = u64::try_from(report.ignored()).unwrap_or(u64::MAX);
        count(&session.env.counters.vendor_fields_ignored, ignored);
        let said = async {
            let paused = match report.asks_to_pause() {
                true => self.pause(session, report.retry_after()).await?,
                false => None,
            };
            let shard = shard.unwrap_or_else(|| self.shard(0));
            self.advise(session, report, &shard);
            if let Some(view) = shard.view() {
                let most = followed(session, report, &view.shard, taken);
                if let Err(error) = self.lower(session, &shard, &view.shard, most).await {
                    // The next answer says it again.
                    tracing::debug!(%error, "balance not lowered to what the vendor has left");
                }
            }
            Ok(paused)
        };
        let within = session.settings.timeout;
        // Its writes can be repeated, so it ends wherever it is.
        let said = async {
            let request = || format!("pause of {}", self.key.item_key().pk);
            let said = timeout(within, said).await;
            said.unwrap_or_else(|_| Err(session.env.no_answer(&request(), within).into()))
        };
        session.at_home(said).await
    }

    /// Keeps what the vendor says its limits are, beside those that follow it. Without a view it is not known
    /// whether one does.
    fn advise(&self, session: &Session, report: &VendorReport, shard: &ShardState) {
        let Some(view) = shard.view() else { return };
        let settings = &session.settings;
        for said in report.limits() {
            let Some(limit) = said.limit else { continue };
            let configured = settings
                .vendor_limits
                .get(&said.counts)
                .and_then(|name| ConfiguredRate::of(name, view.shard.whole_rule(name)?));
            let advice = VendorAdvice {
                resource: self.key.resource.clone(),
                counts: said.counts,
                limit,
                configured,
            };
            let has_gauges = settings.has_resource_metrics;
            session.vendor_advices.record(advice, has_gauges);
        }
    }

    /// Lowers the balance that exceeds its most by the largest part of its capacity, if that was not
    /// done just now.
    async fn lower(
        &self,
        session: &Session,
        shard: &ShardState,
        view: &Shard,
        most: Vec<(LimitName, MilliTokens)>,
    ) -> Result<(), Error> {
        let now = session.now();
        // Limits count in different units: tokens by thousands, requests by one.
        let excess = |(name, most): &(LimitName, MilliTokens)| {
            let above = i128::from((view.balance_at(name, now) - *most).0) * 1_000_000;
            let capacity = view.limits.get(name).map_or(1, |state| view.share(state).0);
            above / i128::from(capacity.max(1))
        };
        let update = most
            .into_iter()
            .max_by_key(excess)
            .and_then(|(name, most)| lower_balance(view, &name, most, now));
        let Some(update) = update.filter(|_| self.summary().may_lower(now, LOWERING_INTERVAL))
        else {
            return Ok(());
        };
        let sent = session.env.ages.sent();
        let outcome = session.update_idempotent(&update).await?;
        let (WriteOutcome::Applied(item) | WriteOutcome::ConditionFailed(item)) = outcome;
        if let Some(item) = item {
            shard.record_response(decode_shard(&item)?, sent);
        }
        Ok(())
    }

    /// Pauses all shards as far as they are not paused as long. Returns the last end of their pauses;
    /// `None` if the bucket has no item.
    async fn pause(
        &self,
        session: &Session,
        retry_after: Option<Duration>,
    ) -> Result<Option<EpochMillis>, Error> {
        // Of many answers at once one is written; the others then know its pause.
        let _one = self.pausing.lock().await;
        let (mut known, mut last) = (0, None);
        let mut halves = vec![];
        // A response shows the number of shards, and unfinished splits.
        loop {
            let count = self.summary().max_shards_seen();
            let due = (known..count).chain(halves).map(|shard| self.shard(shard));
            let pauses = due.map(|shard| pause_shard(session, shard, retry_after));
            let paused = try_join_all(pauses).await?;
            let parents = paused.iter().filter_map(|paused| paused.parent.as_deref());
            halves = parents.clone().filter_map(new_half).collect();
            for parent in parents {
                finish_split(session, parent).await?;
            }
            last = paused.iter().filter_map(|paused| paused.end).chain(last).max();
            known = count;
            let is_all = self.summary().max_shards_seen() <= known && halves.is_empty();
            if last.is_none() || is_all {
                return Ok(last);
            }
        }
    }
}

/// What became of a pause of one shard.
#[derive(Default)]
struct PausedShard {
    /// End of its pause; `None` if it has no item.
    end: Option<EpochMillis>,
    /// The shard, if its split is unfinished: another process may make the new half from an image
    /// without the pause, so it is made first, and then paused too.
    parent: Option<Arc<Shard>>,
}

/// Returns the number of the new half in the escrow of a shard.
fn new_half(parent: &Shard) -> Option<u32> {
    parent.escrow.as_ref().map(|half| half.key.shard)
}

/// Pauses one shard.
async fn pause_shard(
    session: &Session,
    shard: Arc<ShardState>,
    retry_after: Option<Duration>,
) -> Result<PausedShard, Error> {
    let mut known = shard.view().and_then(|view| view.shard.pause);
    let mut parent = None;
    for _ in 0..MAX_WRITES {
        let (now, asked) = (session.now(), retry_after.map(Into::into));
        let Some(pause) = Pause::reported(&shard.key, known, asked, now) else {
            break;
        };
        let sent = session.env.ages.sent();
        let update = pause_reported(&shard.key, pause);
        let item = match session.update_idempotent(&update).await? {
            WriteOutcome::Applied(item) | WriteOutcome::ConditionFailed(item) => item,
        };
        let Some(item) = item else {
            return Ok(PausedShard::default());
        };
        let seen = shard.record_response(decode_shard(&item)?, sent);
        known = seen.pause;
        parent = new_half(&seen).map(|_| seen);
    }
    let end = known.map(|pause| pause.until);
    Ok(PausedShard { end, parent })
}

/// Returns the most that balances of the shard may be, of the limits that follow the vendor: of one with
/// classes the pools together, of which the shared one is lowered first. None falls below its leases.
fn followed(
    session: &Session,
    report: &VendorReport,
    shard: &Shard,
    taken: &Amounts,
) -> Vec<(LimitName, MilliTokens)> {
    let of = |limit: &LimitName, pool: &LimitName| pool.base() == limit.as_str();
    let most = |said: &VendorLimit| {
        let name = session.settings.vendor_limits.get(&said.counts)?;
        let whole = shard.whole_rule(name)?;
        let tokens = |amount: u64| i64::try_from(amount).ok()?.checked_mul(1_000).map(MilliTokens);
        // More than the capacity is of another limit than ours.
        let remaining = tokens(said.remaining?).filter(|left| *left <= whole.capacity)?;
        let leases = shard.leases.iter().flatten();
        let held = leases.flat_map(|(_, lease)| &lease.tokens);
        let held = held.filter(|(pool, _)| of(name, pool)).map(|(_, amount)| *amount);
        let taken = taken.iter().filter(|(pool, _)| of(name, pool));
        let margin = (whole.capacity / 20)
            .max(taken.map(|(_, amount)| *amount).sum())
            .max(held.max().unwrap_or_default())
            .max(tokens(said.rounded_to)?);
        Some((name, shard.shard().share(remaining) + margin))
    };
    let now = session.now();
    let mut all = vec![];
    for (limit, most) in report.limits().iter().filter_map(most) {
        let pools = shard.limits.keys().filter(|pool| of(limit, pool));
        let balances: Vec<_> = pools.map(|pool| (pool, shard.balance_at(pool, now))).collect();
        let mut above = balances.iter().map(|(_, balance)| *balance).sum::<MilliTokens>() - most;
        for (pool, balance) in balances {
            let leases = shard.leases.iter().flatten();
            let held = leases.filter_map(|(_, lease)| lease.tokens.get(pool).copied());
            let less = above.min(balance - held.sum::<MilliTokens>());
            if less > MilliTokens::ZERO {
                all.push((pool.clone(), balance - less));
                above -= less;
            }
        }
    }
    all
}
