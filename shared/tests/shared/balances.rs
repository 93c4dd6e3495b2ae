//! An operator's change of balances: applied once, and exact whatever was taken since the view.

use crate::model::START;
use crate::model::{Item, config};
use proptest::prelude::*;
use weirgate_shared::write::{
    AttributeUpdate, BalanceChange, Path, Update, Value, change_balances,
};
use weirgate_shared::{EditId, Limit, LimitName, MilliTokens, Millis, Shard, ShardIndex};

const CAPACITY: i64 = 100_000;

fn name(name: &str) -> LimitName {
    LimitName::new(name).unwrap()
}

fn bucket() -> Shard {
    let limits = [
        Limit::per_minute("rpm", 100).unwrap(),
        Limit::per_minute("tpm", 100).unwrap(),
        Limit::concurrent("slots", 5).unwrap(),
    ];
    crate::model::bucket(ShardIndex::UNSPLIT, &limits, START)
}

/// Removes `amount` of `rpm`, as a take by another process since the view does.
fn take(item: &mut Item, view: &Shard, amount: i64) {
    let take = Update {
        key: view.key.item_key(),
        conditions: vec![],
        changes: vec![AttributeUpdate::Add(
            Path::of("b_rpm_tk"),
            Value::Int(-amount),
        )],
    };
    assert!(item.apply(&take));
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn i7_a_balance_is_set_once_and_others_are_only_credited(
        balance in -CAPACITY..=CAPACITY,
        amount in 0..=CAPACITY,
        taken in 0..CAPACITY,
        later in -5_000..120_000_i64,
    ) {
        let mut view = bucket();
        for limit in ["rpm", "tpm"] {
            view.limits.get_mut(limit).unwrap().available = MilliTokens(balance);
        }
        let mut item = Item::of_bucket(&view);
        take(&mut item, &view, taken);
        let now = START.plus(Millis(later));
        let change = [(name("rpm"), BalanceChange::SetTo(MilliTokens(amount)))].into();
        let update = change_balances(&view, EditId(1), &change, now).unwrap();
        prop_assert!(item.apply(&update));
        prop_assert!(!item.apply(&update), "a repeated request changed the balance again");
        let after = item.bucket();
        prop_assert_eq!(after.limits["rpm"].available, MilliTokens(amount));
        prop_assert_eq!(after.limits["rpm"].consumed, view.limits["rpm"].consumed);
        prop_assert_eq!(&after.limits["slots"], &view.limits["slots"]);
        let at = after.refilled_at;
        prop_assert!(at > view.refilled_at);
        prop_assert_eq!(after.balance_at(&name("tpm"), at), view.balance_at(&name("tpm"), at));
    }

    /// A take since the view may make the write fail, but never makes it wrong.
    #[test]
    fn i1_a_raise_adds_the_amount_once_and_never_passes_the_capacity(
        balance in -CAPACITY..=CAPACITY,
        amount in 0..=CAPACITY,
        taken in 0..CAPACITY,
        later in -5_000..120_000_i64,
    ) {
        let mut view = bucket();
        view.limits.get_mut("rpm").unwrap().available = MilliTokens(balance);
        let mut item = Item::of_bucket(&view);
        take(&mut item, &view, taken);
        let seen = item.bucket();
        let change = [(name("rpm"), BalanceChange::Raise(MilliTokens(amount)))].into();
        let update = change_balances(&view, EditId(1), &change, START.plus(Millis(later))).unwrap();
        let is_applied = item.apply(&update);
        prop_assert!(is_applied || taken > 0);
        prop_assert!(!is_applied || !item.apply(&update), "the amount was added twice");
        let after = item.bucket();
        if is_applied {
            let at = after.refilled_at;
            let flowed = weirgate_shared::refill_between(
                &seen.limits["rpm"].rule, seen.shard(), seen.refilled_at, at);
            let expected = (seen.limits["rpm"].available + flowed + MilliTokens(amount))
                .min(MilliTokens(CAPACITY));
            prop_assert_eq!(after.limits["rpm"].available, expected);
        }
    }
}

#[test]
fn slots_and_missing_limits_are_not_changed() {
    for limit in ["slots", "other"] {
        let change = [(name(limit), BalanceChange::SetTo(MilliTokens(1)))].into();
        assert_eq!(
            change_balances(&bucket(), EditId(1), &change, START),
            None,
            "{limit}"
        );
    }
}
