//! Every write that a process can plan from one view of a shard.

use std::collections::BTreeMap;

use weirgate_shared::write::{
    Action, BalanceChange, Contention, LeaseChange, LimitDelta, Roll, Settle, Take, Update,
    change_balances, expire, finish_writes, merge, merged, refill, sample, split,
    update_min_shards,
};
use weirgate_shared::{
    Asks, EditId, Effect, EpochMillis, Hour, Lease, Limit, LimitName, LimitsVersion, MilliTokens,
    Shard, VersionedLimits, WriteId,
};

use super::{settle, take};
use crate::windows::CALENDAR;

type Amounts = BTreeMap<LimitName, MilliTokens>;

/// Returns the writes of a process that sees `view`, of a process with the limits `brought`, and of
/// the functions.
pub fn planned(view: &Shard, brought: &[Limit], at: EpochMillis, by_others: bool) -> Vec<Update> {
    let roll = Roll { by_others, ..Roll::to(Hour::of(at)) };
    let mut updates = takes(view, brought, roll, at);
    updates.extend(settlements(view, roll, at));
    let all = |tokens| amounts(view.limits.keys(), tokens);
    let set = |amount| {
        let rates = view.limits.iter().filter(|(_, state)| !state.rule.kind().is_held());
        rates.map(|(name, _)| (name.clone(), amount)).collect()
    };
    let one = MilliTokens::from_tokens(1);
    let edit = EditId::new(at, 0, view.edit);
    updates.extend(
        refill(view, &all(1_000), at)
            .into_iter()
            .chain(change_balances(view, edit, &set(BalanceChange::SetTo(one)), CALENDAR, at))
            .chain(change_balances(view, edit, &set(BalanceChange::Raise(one)), CALENDAR, at))
            .chain(expire(view, at).map(|(update, _)| update))
            .chain([sample(view, at).0])
            .chain([0, 4].map(|count| update_min_shards(view, count, at))),
    );
    updates
}

/// Returns the writes that split `view`, finish its split, and merge it with its new half.
pub fn reshaped(view: &Shard, at: EpochMillis) -> Vec<Update> {
    let id = WriteId::from_bits(8);
    let begin = split(view, 0, id.clone(), at);
    let mut item = super::Item::of_bucket(view);
    let mut updates = vec![begin.clone()];
    if item.apply(&begin) {
        let half = item.bucket().escrow.unwrap();
        updates.extend(finish_writes(&item.bucket()).into_iter().flatten());
        assert!(item.apply(updates.last().unwrap()));
        let lower = item.bucket();
        if let Some(next) = merged(&lower, &half, at) {
            let merge = merge(&lower, next, &[&half]).into_iter();
            updates.extend(merge.map(|action| match action {
                Action::Update(update) => update,
                other => panic!("{other:?}"),
            }));
        }
    }
    updates
}

fn amounts<'a>(names: impl Iterator<Item = &'a LimitName>, tokens: i64) -> Amounts {
    names.map(|name| (name.clone(), MilliTokens::from_tokens(tokens))).collect()
}

fn takes(view: &Shard, brought: &[Limit], roll: Roll, at: EpochMillis) -> Vec<Update> {
    let of = |tokens| amounts(brought.iter().map(Limit::name), tokens);
    let none = Amounts::new;
    let id = WriteId::from_bits(4);
    let lease = Lease { expires_at: at, tokens: of(1), ..Lease::default() };
    let mut updates = vec![];
    for (needs, soft, counted) in [
        (of(1), none(), none()),
        (of(1), none(), of(1)),
        (of(30), none(), none()),
        (none(), of(1), none()),
        (none(), of(1), of(1)),
        (none(), none(), of(1)),
        (none(), none(), none()),
    ] {
        for leases in [vec![], vec![(id.clone(), lease.clone())]] {
            // The tokens of a lease are taken with it.
            if !leases.is_empty() && needs != of(1) {
                continue;
            }
            for contention in [
                Contention::Alone,
                Contention::Shared,
                Contention::SharedStale { others_per_day: 86_400_000 },
            ] {
                let scaled =
                    LimitsVersion { boundary: EpochMillis(60_000), ..LimitsVersion::new(7) };
                for version in [None, Some(LimitsVersion::new(7)), Some(scaled)] {
                    let op = WriteId::from_bits(3);
                    let take = Take {
                        limits: VersionedLimits { version, calendar: CALENDAR, ..brought.into() },
                        asks: Asks::of(Effect::Enforce, needs.clone())
                            .and(Effect::IntoDebt, soft.clone())
                            .and(Effect::Count, counted.clone()),
                        leases: leases.clone(),
                        roll,
                        contention,
                        ..take(&view.key, brought, BTreeMap::new(), op, at)
                    };
                    updates.push(take.plan(view, at));
                }
            }
        }
    }
    updates
}

/// Returns settlements of what a process may have taken from `view`: of a rate without a lease, of
/// any limit under one, and of amounts that bypassed a limit.
fn settlements(view: &Shard, roll: Roll, at: EpochMillis) -> Vec<Update> {
    let mut updates = vec![];
    let mut add = |lease: Option<(&WriteId, LeaseChange)>, amounts, acquires| {
        let settle = Settle {
            acquires,
            roll,
            ..settle(&view.key, WriteId::from_bits(3), lease, amounts, at)
        };
        updates.extend([settle.full(None), settle.full(Some(view)), settle.capped(view)]);
    };
    add(None, BTreeMap::new(), 0);
    add(None, BTreeMap::new(), 1);
    for (name, state) in &view.limits {
        let is_held = state.rule.kind().is_held();
        let one = MilliTokens(1);
        for (available, consumed) in [(one, -one), (-one, one), (MilliTokens::ZERO, one)] {
            let delta = LimitDelta {
                available,
                consumed,
                ceiling: (available > MilliTokens::ZERO).then(|| view.share(state)),
                window: state.rule.kind().has_window().then_some(state.window_end),
            };
            if !is_held || available == MilliTokens::ZERO {
                add(None, [(name.clone(), delta)].into(), 0);
            }
        }
    }
    for (id, lease) in view.leases.iter().flatten() {
        let held = lease.tokens.iter();
        let is_held = |name: &LimitName| {
            let state = view.limits.get(name);
            state.is_some_and(|state| state.rule.kind().is_held())
        };
        let back = held.filter(|(name, _)| is_held(name)).map(|(name, held)| {
            let delta = LimitDelta { available: *held, ..LimitDelta::default() };
            (name.clone(), delta)
        });
        add(Some((id, LeaseChange::End)), back.collect(), 0);
        add(Some((id, LeaseChange::Renew(at))), BTreeMap::new(), 0);
        for (name, held) in &lease.tokens {
            let (one, delta) = (MilliTokens(1), |available| LimitDelta {
                available,
                window: lease.windows.get(name).copied(),
                ..LimitDelta::default()
            });
            let more = [(name.clone(), (*held, *held + one))].into();
            let more = Some((id, LeaseChange::SetAmounts(more)));
            add(more, [(name.clone(), delta(-one))].into(), 0);
        }
    }
    updates
}
