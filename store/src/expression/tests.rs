use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use weirgate_shared::write::{
    Action, Contention, LimitDelta, Roll, Settle, Take, UsageCopy, finish_writes, max_leases,
    merge, merged, recreate, refill, split,
};
use weirgate_shared::{
    ActivitySample, Asks, BucketKey, Counter, Effect, EpochMillis, Hour, ItemKey, Lease, Limit,
    MAX_BUCKET_LIMITS, MAX_LIMITS, MilliTokens, MilliTotal, Millis, Scaling, Shard, ShardUsageCopy,
    Snapshot, Window, WriteId,
};

#[test]
fn names_and_values_stand_behind_placeholders_and_are_sent_once() {
    let (dotted, lease) = (Path::of("b_a.b-c_tk"), Path::of("h").then("x"));
    let rendered = render(&Update {
        key: ItemKey { pk: "p".into(), sk: "s".into() },
        conditions: vec![
            Condition::AtLeast(dotted.clone(), Value::Int(5)),
            Condition::AbsentOr(
                Path::of("due"),
                Box::new(Condition::AtMost(Path::of("due"), Value::Int(9))),
            ),
        ],
        changes: vec![
            AttributeUpdate::Set(lease.clone(), Value::text("owner")),
            AttributeUpdate::SetIfAbsent(Path::of("due"), Value::Int(9)),
            AttributeUpdate::Add(dotted, Value::Int(-5)),
            AttributeUpdate::Remove(lease.then("e")),
            AttributeUpdate::Copy(Path::of("th"), Path::of("takes")),
            AttributeUpdate::Next(Path::of("birth"), Path::of("v"), 8),
            AttributeUpdate::DeleteFrom(Path::of("final"), Value::Numbers([3].into())),
        ],
    });
    assert_eq!(rendered.condition.unwrap(), "#0 >= :0 AND (attribute_not_exists(#1) OR #1 <= :1)");
    assert_eq!(
        rendered.update,
        "SET #2.#3 = :2,#1 = if_not_exists(#1, :1),#5 = #6,#7 = if_not_exists(#8, :4) + :5 \
         ADD #0 :3 DELETE #9 :6 REMOVE #2.#3.#4"
    );
    assert_eq!(rendered.names["#0"], "b_a.b-c_tk");
    assert_eq!((rendered.names.len(), rendered.values.len()), (10, 7));
}

/// Before a day begins, so that takes begin it: with as much as they can have to say.
const NOW: EpochMillis = EpochMillis(1_795_219_200_000 - 2_000);

/// Limits from the `first` on, no number of which is another's, so that each stands behind its
/// own placeholder.
fn limits(first: usize, count: usize) -> Vec<Limit> {
    let letter = |at: usize| char::from(b'a' + u8::try_from(at).expect("there are few"));
    let limit = |at: usize| {
        let name: String =
            std::iter::repeat_n('n', 62).chain([letter(at / 10), letter(at % 10)]).collect();
        let number = i64::try_from(at).expect("there are few") + 1;
        Limit::custom(&name, 1_000_000 * number, 1_000 * number, 3_000 + number)
            .expect("it is sound")
    };
    (first..first + count).map(limit).collect()
}

/// Sessions of these limits.
fn quotas(first: usize, count: usize) -> Vec<Limit> {
    let quota = |(limit, seconds): (&Limit, u64)| {
        let (name, tokens) = (limit.name().as_str(), limit.rule().capacity.whole_tokens());
        Limit::session(name, tokens, Duration::from_secs(seconds)).expect("it is sound")
    };
    let from = u64::try_from(first).expect("there are few") + 1;
    limits(first, count).iter().zip(from..).map(quota).collect()
}

/// The bucket with sessions, all of which have ended.
fn of_quotas(shard: &Shard, count: usize) -> Shard {
    let mut shard = shard.clone();
    for quota in quotas(0, count) {
        let state = shard.limits.get_mut(quota.name()).expect("it has all");
        (state.rule, state.window_end) = (*quota.rule(), NOW);
    }
    shard
}

/// One half of a bucket that has all the limits it can have, each with another balance, and has
/// counted as many others.
fn crowded(index: u32) -> Shard {
    let key = BucketKey::parse(&format!("default/BUCKET#e-1#gpt-4#{index}")).expect("a key");
    let mut shard = Shard::full(key, &limits(0, MAX_BUCKET_LIMITS), NOW);
    for (at, state) in (1..).zip(shard.limits.values_mut()) {
        (state.available, state.consumed) =
            (MilliTokens(7_000 * at), MilliTotal(11_000 * i128::from(at)));
    }
    let others = limits(MAX_BUCKET_LIMITS, MAX_BUCKET_LIMITS);
    shard.departed =
        others.iter().map(|limit| (limit.name().clone(), Counter::default())).collect();
    shard.shard_count = 2;
    shard.scaling = Scaling {
        hot_at: Some(NOW),
        sample: Some(ActivitySample { at: NOW, write_seq: 5 }),
        ..Scaling::default()
    };
    shard
}

fn id(bits: u64) -> WriteId {
    WriteId::from_bits(bits)
}

fn updates(actions: impl IntoIterator<Item = Action>) -> Vec<Update> {
    let update = |action| {
        if let Action::Update(update) = action { Some(update) } else { None }
    };
    actions.into_iter().filter_map(update).collect()
}

/// A take that brings as many limits as a call can, all of them changed, and takes of all of
/// them.
fn take(view: &Shard, brought: &[Limit], later: EpochMillis) -> Update {
    let needs = brought.iter().map(|limit| (limit.name().clone(), MilliTokens(1)));
    let needs = Asks::of(Effect::Enforce, needs);
    let op = id(1);
    let lease = |at| {
        let lease = Lease { expires_at: later, tokens: BTreeMap::new(), ..Lease::default() };
        (id(at), lease)
    };
    let take = Take {
        key: &view.key,
        limits: brought.into(),
        asks: needs,
        line: vec![],
        acquires: 1,
        // As many as a client puts into one write.
        leases: (100..).map(lease).take(max_leases(view.limit_count_with(brought))).collect(),
        roll: Roll::to(Hour::of(later)),
        write_id: op.clone(),
        request_split: true,
        contention: Contention::Alone,
        windows_begun: false,
        unconfirmed: &[op, id(2), id(3), id(4), id(5)],
    };
    take.plan(view, later)
}

/// Copies of all limits: without knowledge, and after an earlier life that had other ones.
fn copies() -> Vec<Update> {
    let copy = UsageCopy::of(&crowded(1).meter(), Window::Daily, true, 1);
    let mut usage = copy.usage.clone();
    usage.tokens = limits(2 * MAX_BUCKET_LIMITS, MAX_BUCKET_LIMITS)
        .iter()
        .zip(1..)
        .map(|(limit, at)| (limit.name().clone(), MilliTotal(at)))
        .collect();
    let earlier = ShardUsageCopy { write_seq: copy.birth - 1, usage, is_final: false };
    let seen = Snapshot { shards: [(copy.shard, earlier)].into(), ..Snapshot::default() };
    vec![copy.first(), copy.after(&seen).expect("it is of a later life")]
}

/// A settlement of as many limits as a call can take from.
fn settle(view: &Shard, brought: &[Limit], later: EpochMillis) -> Update {
    let settled = LimitDelta {
        available: MilliTokens(1),
        consumed: MilliTokens(-1),
        ceiling: Some(MilliTokens(1)),
        ..LimitDelta::default()
    };
    let amounts = brought.iter().map(|limit| (limit.name().clone(), settled)).collect();
    let roll = Roll::to(Hour::of(later));
    Settle { key: &view.key, write_id: id(1), lease: None, amounts, acquires: 1, roll }.capped(view)
}

/// What DynamoDB takes: 4 KB of each expression, and 300 operators and functions.
#[test]
fn no_planned_write_of_as_many_limits_as_a_bucket_takes_is_too_long() {
    let (lower, upper, later) = (crowded(0), crowded(1), NOW.plus(Millis(5_000)));
    let used = limits(0, 1)
        .iter()
        .map(|limit| (limit.name().clone(), MilliTokens(1_000_000_000)))
        .collect();
    let tomorrow = NOW.plus(Millis(86_400_000));
    let joined = merged(&lower, &upper, tomorrow).expect("they are halves");
    let changed: Vec<_> = limits(10, MAX_LIMITS)
        .iter()
        .map(|limit| {
            Limit::custom(limit.name().as_str(), limit.rule().capacity.0, 7, 77)
                .expect("it is sound")
        })
        .collect();
    let held = BTreeMap::from([(changed[0].name().clone(), MilliTokens(1))]);
    let lease = |at| {
        (
            id(at),
            Lease {
                expires_at: NOW,
                tokens: held.clone(),
                owner: "w".to_owned(),
                ..Lease::default()
            },
        )
    };
    let forgotten =
        Shard { leases: Some((0..30).map(lease).collect()), shard_count: 1, ..lower.clone() };
    let half_made = Shard { escrow: Some(Box::new(upper.clone())), ..lower.clone() };
    let mut rich = lower.clone();
    rich.refilled_at = NOW.plus(Millis(3_600_000));
    let new = Shard {
        limits: lower.limits.clone().into_iter().take(MAX_LIMITS).collect(),
        ..lower.clone()
    };
    let writes = [
        ("split", vec![split(&lower, 0, id(1), later)]),
        (
            "new half of a split",
            vec![finish_writes(&half_made).expect("it is not finished")[0].clone()],
        ),
        ("refill", vec![refill(&lower, &used, later).expect("it is dry")]),
        ("copy", copies()),
        ("merge", updates(merge(&lower, joined, &[&upper]))),
        ("fill", updates(recreate(upper.shard(), &lower, |_| MilliTokens::ZERO, id(2), later))),
        (
            "take of what is there, in a new hour",
            vec![take(&rich, &limits(10, MAX_LIMITS), NOW.plus(Millis(3_600_000)))],
        ),
        ("take of changed limits", vec![take(&lower, &changed, later)]),
        ("take of changed limits and what leases held", vec![take(&forgotten, &changed, later)]),
        ("take of new limits", vec![take(&new, &limits(MAX_LIMITS, MAX_LIMITS), later)]),
        ("settlement", vec![settle(&lower, &limits(10, MAX_LIMITS), later)]),
        (
            "take of quotas, whose windows it begins, and what leases held",
            vec![take(
                &of_quotas(&forgotten, MAX_BUCKET_LIMITS),
                &quotas(10, MAX_LIMITS),
                tomorrow,
            )],
        ),
        (
            "take of rates that become quotas",
            vec![take(&forgotten, &quotas(10, MAX_LIMITS), later)],
        ),
    ];
    // The fewer limits, the more leases.
    let few = (1..=MAX_LIMITS).map(|count| {
        let shard = |first| Shard::full(lower.key.clone(), &limits(first, count), NOW);
        let hour = NOW.plus(Millis(3_600_000));
        let takes = [shard(10), shard(0)].map(|view| take(&view, &changed[..count], hour));
        ("take of few limits", takes.to_vec())
    });
    for (kind, updates) in writes.into_iter().chain(few) {
        assert!(!updates.is_empty(), "{kind}");
        for update in updates {
            let Expression { update, condition, names, .. } = render(&update);
            let condition = condition.unwrap_or_default();
            let longest = update.len().max(condition.len());
            assert!(longest <= 4096, "{kind}: {longest} bytes");
            assert!(operators(&condition) <= 300, "{kind}: {condition}");
            assert!(
                names.values().map(String::len).max() >= Some(64),
                "{kind}: the names are the longest"
            );
        }
    }
}

fn operators(condition: &str) -> usize {
    let words = ["AND", "OR", "=", "<>", ">=", "<="];
    condition.split(' ').filter(|word| words.contains(word) || word.contains("attribute_")).count()
}
