//! Pauses: what a report asks for, and that nothing is granted before the end, whatever becomes of the
//! shards.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use weirgate_shared::write::{
    Take, finish_writes, lower_balance, merge, merged, pause_ordered, pause_reported, split,
};
use weirgate_shared::{
    Asks, EditId, Effect, EpochMillis, EpochSeconds, Limit, MilliTokens, Millis, Pause, Shard,
    ShardIndex, WriteId,
};

use crate::model::table::Table;
use crate::model::{START, bucket, config, limit_name};

#[derive(Debug, Clone)]
enum Step {
    /// Time passes.
    Pass(i64),
    /// A vendor's answer reaches all shards.
    Report(Option<i64>),
    /// An operator pauses all shards for so long, or ends the pause.
    Order(Option<i64>),
    /// A process takes, by a view so many writes old.
    Take {
        shard: usize,
        back: usize,
        enforced: bool,
    },
    /// The aggregator begins a split by an image so many writes old.
    Split {
        shard: usize,
        back: usize,
    },
    /// All splits are finished.
    Finish,
    Merge,
}

fn step() -> impl Strategy<Value = Step> {
    let retry = || option::of(prop_oneof![1..3_000_i64, Just(5_000_000)]);
    prop_oneof![
        3 => prop_oneof![1..1_500_i64, 1..200_000_i64].prop_map(Step::Pass),
        2 => retry().prop_map(Step::Report),
        1 => option::of(1..3_000_i64).prop_map(Step::Order),
        4 => (0..4_usize, 0..4_usize, prop::bool::weighted(0.8)).prop_map(|(shard, back, enforced)| Step::Take { shard, back, enforced }),
        2 => (0..4_usize, 0..4_usize).prop_map(|(shard, back)| Step::Split { shard, back }),
        1 => Just(Step::Finish),
        1 => Just(Step::Merge),
    ]
}

/// The bucket in a table, and until when nothing may be granted.
struct World {
    table: Table,
    limits: [Limit; 1],
    now: EpochMillis,
    paused_until: EpochMillis,
    /// By then all shards grant again.
    over_at: EpochMillis,
    ids: u64,
}

impl World {
    fn new() -> Self {
        let limits = [Limit::per_minute("rpm", 60_000).unwrap()];
        Self {
            table: Table::of(&bucket(ShardIndex::UNSPLIT, &limits, START)),
            limits,
            now: START,
            paused_until: EpochMillis(0),
            over_at: EpochMillis(0),
            ids: 0,
        }
    }

    fn id(&mut self) -> WriteId {
        self.ids += 1;
        WriteId::from_bits(self.ids)
    }

    fn shards(&self) -> Vec<Shard> {
        let shards = self.table.shards().values();
        shards.map(|shard| Shard::clone(shard)).collect()
    }

    /// The shard at a place, as it is and as it was some writes ago.
    fn seen(&self, place: usize, back: usize) -> (Shard, Shard) {
        let shards = self.shards();
        let shard = shards[place % shards.len()].clone();
        let image = self.table.image(shard.key.shard, back).unwrap();
        (shard, Shard::clone(&image))
    }

    fn report(&mut self, retry_after: Option<i64>) {
        for shard in self.shards() {
            let asked = retry_after.map(Millis);
            if let Some(pause) = Pause::reported(&shard.key, shard.pause, asked, self.now) {
                assert!(self.table.update(pause_reported(&shard.key, pause)), "{pause:?}");
                let asked = retry_after.unwrap_or_default().min(3_600_000);
                let asked = EpochMillis(self.now.0 + asked.max(pause.lasts.0));
                self.paused_until = self.paused_until.max(asked);
                self.over_at = self.over_at.max(pause.until);
            }
        }
    }

    /// All shards get the change, after splits were finished.
    fn order(&mut self, lasts: Option<i64>) {
        self.finish();
        let last = self.shards().iter().filter_map(|shard| shard.edit).max();
        let edit = EditId::new(self.now, 1, last);
        let until = lasts.map(|lasts| self.now.plus(Millis(lasts)));
        for shard in self.shards() {
            let update = pause_ordered(&shard, edit, until).expect("no split is unfinished");
            assert!(self.table.update(update.clone()));
            assert!(!self.table.update(update), "I7: once");
        }
        self.paused_until = until.unwrap_or_default();
        self.over_at = self.paused_until;
    }

    fn finish(&mut self) {
        for shard in self.shards() {
            let writes = finish_writes(&shard).into_iter().flatten();
            writes.for_each(|update| assert!(self.table.update(update)));
        }
    }

    fn take(&mut self, view: &Shard, enforced: bool) -> bool {
        let effect = if enforced { Effect::Enforce } else { Effect::IntoDebt };
        let id = self.id();
        let take = Take {
            asks: Asks::of(effect, [(limit_name("rpm"), MilliTokens(1))]),
            acquires: 1,
            ..Take::nothing(&view.key, &self.limits, id, self.now)
        };
        self.table.update(take.plan(view, self.now))
    }

    fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Pass(time) => self.now = self.now.plus(Millis(time)),
            Step::Report(retry_after) => self.report(retry_after),
            Step::Order(lasts) => self.order(lasts),
            Step::Take { shard, back, enforced } => {
                let (shard, view) = self.seen(shard, back);
                let is_applied = self.take(&view, enforced);
                let is_paused = self.now < self.paused_until;
                prop_assert!(
                    !(is_applied && enforced && is_paused),
                    "granted in the pause by {view:?}"
                );
                let is_over = self.now >= self.over_at;
                if back == 0 && (is_over || !enforced) {
                    prop_assert!(is_applied, "not granted: {shard:?} at {:?}", self.now);
                }
            }
            Step::Split { shard, back } => {
                let (now, image) = self.seen(shard, back);
                if now.shard_count < 4
                    && now.escrow.is_none()
                    && image.shard() == now.shard()
                    && image.escrow.is_none()
                {
                    let id = self.id();
                    self.table.update(split(&image, 0, id, self.now));
                }
            }
            Step::Finish => self.finish(),
            Step::Merge => {
                self.finish();
                let shards = self.shards();
                let pairs =
                    shards.iter().flat_map(|lower| shards.iter().map(move |upper| (lower, upper)));
                for (lower, upper) in pairs {
                    if let Some(joined) = merged(lower, upper, self.now) {
                        prop_assert!(self.table.transact(&merge(lower, joined, &[upper])));
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(config(3_000))]

    /// By any view, through splits, merges and operators. What is over denies nothing.
    #[test]
    fn nothing_is_granted_before_the_end_of_a_pause(steps in vec(step(), 1..40)) {
        let mut world = World::new();
        for step in &steps {
            world.run(step)?;
        }
    }

    /// The balance is the lesser of what it was and of what the vendor has left, whatever was taken since
    /// the view; then it refills as before.
    #[test]
    fn a_lowered_balance_is_the_lesser_of_the_two(
        (capacity, rate, left) in (1..200_i64, 1..200_i64, 0..=1_000_i64), most in 0..220_i64, since in 0..3_000_i64, later in 0..3_000_i64, taken in 0..100_i64,
    ) {
        let limits = [Limit::custom("rpm", capacity, rate, 1_000).unwrap()];
        let name = limit_name("rpm");
        let mut view = bucket(ShardIndex::UNSPLIT, &limits, START);
        view.limits.get_mut(&name).unwrap().available = MilliTokens(capacity * left);
        let now = START.plus(Millis(since));
        let mut table = Table::of(&view);
        let id = WriteId::from_bits(1);
        let asks = Asks::of(Effect::IntoDebt, [(name.clone(), MilliTokens::from_tokens(taken))]);
        let take = Take { asks, acquires: 1, ..Take::nothing(&view.key, &limits, id, now) };
        prop_assert!(table.update(take.plan(&view, now)));
        let before = table.shards()[&0].clone();
        let most = MilliTokens::from_tokens(most);
        let update = lower_balance(&view, &name, most, now);
        prop_assert_eq!(update.is_some(), view.balance_at(&name, now) > most);
        let is_above = before.balance_at(&name, now) > most;
        if let Some(update) = update {
            prop_assert_eq!(table.update(update), is_above);
        }
        let after = table.shards()[&0].clone();
        let least = before.balance_at(&name, now).min(most);
        prop_assert_eq!(after.balance_at(&name, now), least);
        prop_assert_eq!(after.limits[&name].consumed, before.limits[&name].consumed);
        let then = now.plus(Millis(later));
        let flowed = MilliTokens(rate * later);
        prop_assert_eq!(after.balance_at(&name, then), (least + flowed).min(MilliTokens::from_tokens(capacity)));
    }

    /// The end is what was asked for, and up to 5 % later; equal reports write once, and none shortens a
    /// pause.
    #[test]
    fn a_reported_pause_ends_within_a_twentieth_after_what_was_asked(
        retry in 1..10_000_000_i64, shard in 0..64_u32, entity in "[a-z]{1,8}", again in 0..2_000_i64, known in option::of((-100_000..100_000_i64, 0..70_000_i64)),
    ) {
        let key = weirgate_shared::BucketKey::parse(&format!("n/BUCKET#{entity}#r#0")).unwrap().with_shard(shard);
        let known = known.map(|(until, lasts)| Pause { until: START.plus(Millis(until)), lasts: Millis(lasts) });
        let asked = retry.min(3_600_000);
        match Pause::reported(&key, known, Some(Millis(retry)), START) {
            Some(pause) => {
                let late = pause.until.0 - START.0 - asked;
                prop_assert!((0..=asked / 20).contains(&late), "{late} of {asked}");
                prop_assert!(known.is_none_or(|known| pause.until.0 >= known.until.0 + 1_000));
                let after = START.plus(Millis(again.min(999)));
                prop_assert_eq!(Pause::reported(&key, Some(pause), Some(Millis(retry)), after), None);
            }
            None => prop_assert!(known.is_some_and(|known| known.until.0 + 1_000 > START.0 + asked)),
        }
    }
}

/// Each pause that did not last long enough is followed by one that is twice as long, to a minute.
#[test]
fn without_a_retry_after_a_pause_doubles_while_it_is_too_short() {
    let key = bucket(ShardIndex::UNSPLIT, &[], START).key;
    let (mut now, mut known, mut lengths) = (START, None, vec![]);
    for _ in 0..9 {
        let pause = Pause::reported(&key, known, None, now).unwrap();
        assert_eq!(Pause::reported(&key, Some(pause), None, now), None, "in force");
        lengths.push(pause.lasts.0);
        (now, known) = (pause.until, Some(pause));
    }
    assert_eq!(lengths, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]);
    // The vendor named an end, which says nothing of the next one.
    let named = Pause::reported(&key, known, Some(Millis(3_600_000)), now).unwrap();
    let next = Pause::reported(&key, Some(named), None, named.until).unwrap();
    assert_eq!(next.lasts, Millis(1_000));
    // Calls went well for as long as it lasted.
    let later = now.plus(Millis(60_000));
    let again = Pause::reported(&key, known, None, later).unwrap();
    assert_eq!(again.lasts, Millis(1_000));
}

/// DynamoDB would delete an idle bucket with its pause otherwise.
#[test]
fn a_bucket_is_kept_until_the_end_of_its_pause() {
    let second = |after: i64| EpochSeconds::not_before(START.plus(Millis(after * 1_000)));
    for (ttl, lasts, kept) in [(60, 90, 90), (60, 30, 60), (60, 60, 60)] {
        let mut shard = bucket(ShardIndex::UNSPLIT, &[], START);
        shard.ttl = Some(second(ttl));
        let mut table = Table::of(&shard);
        let until = START.plus(Millis(lasts * 1_000));
        let update = pause_ordered(&shard, EditId(1), Some(until)).unwrap();
        assert!(table.update(update));
        assert_eq!(table.shards()[&0].ttl, Some(second(kept)), "{ttl} {lasts}");
    }
}
