//! Limits of two releases, side by side and one after the other: in the table, in the code and in a
//! file, with and without versions.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use weirgate::{ConfigLevel, Error, Limit, RateLimiter};

use crate::fixtures::fleet::{Fleet, granted, millis, pass, secs, tokens};
use crate::fixtures::stored::{File, configure, rpm};

/// What brings the limits of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Table,
    /// The code, with a version.
    Versioned(i64),
    Code,
    File,
}

const PLACES: [Place; 5] =
    [Place::Table, Place::Versioned(0), Place::Versioned(1_000_000), Place::Code, Place::File];

/// A process of a release, and what it asks.
struct Release {
    limiter: RateLimiter,
    place: Place,
    rate: i64,
    /// Kept as long as the process.
    _file: Option<File>,
}

impl Release {
    async fn new(fleet: &Fleet, place: Place, rate: i64) -> Self {
        let (mut builder, mut file) = (fleet.builder().await, None);
        match place {
            Place::Table => {
                configure(&fleet.limiter().await, &ConfigLevel::System, [rpm(rate)]).await;
            }
            Place::File => {
                let text =
                    format!("weirgate: 1\nsystem: {{limits: {{rpm: {{per_minute: {rate}}}}}}}\n");
                let written = File::new(&text);
                builder = builder.limits_file(written.limits());
                file = Some(written);
            }
            Place::Versioned(_) | Place::Code => {}
        }
        let limiter = builder.build().await.unwrap();
        Self { limiter, place, rate, _file: file }
    }

    async fn take(&self) {
        let ask = self.limiter.acquire("e-1", "gpt-4").take("rpm", 1);
        let ask = match self.place {
            Place::Table | Place::File => ask,
            Place::Code => ask.limits(&[rpm(self.rate)]),
            Place::Versioned(version) => ask.limits(&[rpm(self.rate)]).limits_version(version),
        };
        assert!(ask.send().await.unwrap().is_granted());
    }

    /// Takes for a minute, and checks that the bucket has its limits then.
    async fn holds(&self, fleet: &Fleet, what: &str) {
        for _ in 0..12 {
            self.take().await;
            pass(secs(5)).await;
        }
        self.take().await;
        let capacity = fleet.bucket().await.limits["rpm"].rule.capacity;
        assert_eq!(capacity, tokens(self.rate), "{what}");
    }
}

/// The place of the next release of limits in the same place.
const fn next(place: Place) -> Place {
    match place {
        Place::Versioned(version) => Place::Versioned(version + 1),
        other => other,
    }
}

/// All pairs of places, also of one with itself.
fn pairs() -> impl Iterator<Item = (Place, Place)> {
    PLACES
        .into_iter()
        .flat_map(|from| PLACES.map(|to| (from, if from == to { next(to) } else { to })))
        // Older limits of one place give way.
        .filter(|(from, to)| !matches!((from, to), (Place::Versioned(from), Place::Versioned(to)) if from > to))
}

#[tokio::test(start_paused = true)]
async fn limits_hold_a_minute_after_they_moved_to_another_place_and_back() {
    for (from, to) in pairs() {
        for has_deleted in [false, true] {
            if has_deleted && (from != Place::Table || to == Place::Table) {
                continue;
            }
            let fleet = Fleet::new().await;
            let what = format!("{from:?} to {to:?}, deleted: {has_deleted}");
            let old = Release::new(&fleet, from, 600).await;
            old.holds(&fleet, &what).await;
            let new = Release::new(&fleet, to, 400).await;
            if has_deleted {
                let level = ConfigLevel::System;
                assert!(new.limiter.admin().delete_config(&level).await.unwrap());
            }
            new.holds(&fleet, &what).await;
            let newer = Release::new(&fleet, next(to), 500).await;
            newer.holds(&fleet, &format!("{what}, again")).await;
            let back = Release::new(&fleet, next(from), 700).await;
            // Older limits of one place give way.
            if !matches!((from, to), (Place::Versioned(_), Place::Versioned(_))) {
                back.holds(&fleet, &format!("{what}, and back")).await;
            }
        }
    }
}

/// A bucket with limits of another place makes no request read the configuration again.
#[tokio::test(start_paused = true)]
async fn limits_that_moved_are_read_once_a_minute() {
    for from in PLACES {
        let fleet = Fleet::new().await;
        Release::new(&fleet, from, 600).await.take().await;
        let new = Release::new(&fleet, Place::Table, 400).await;
        let _ = fleet.dynamo.take_operations();
        new.holds(&fleet, &format!("{from:?}")).await;
        let reads = fleet.dynamo.take_operations()["BatchGetItem"];
        assert!(reads <= 3, "{from:?}: {reads}");
    }
}

#[tokio::test(start_paused = true)]
async fn releases_with_limits_of_two_places_cost_little_more_than_one() {
    // In the other order it is the same mixture.
    let is_new = |(one, other): &(Place, Place)| {
        let mut earlier = pairs().take_while(|pair| *pair != (*one, *other));
        earlier.all(|pair| pair != (*other, *one))
    };
    for (one, other) in pairs().filter(is_new) {
        let fleet = Fleet::slow(millis(5)).await;
        let per_acquire = side_by_side(&fleet, one, other, secs(40)).await;
        assert!(per_acquire <= 1.1, "{one:?}, {other:?}: {per_acquire}");
    }
}

/// Returns the writes an acquire of ten processes, half of each release.
async fn side_by_side(fleet: &Fleet, one: Place, other: Place, span: Duration) -> f64 {
    const PROCESSES: u32 = 10;
    const PER_SECOND: u32 = 20;
    let (mut tasks, start) = (JoinSet::new(), Instant::now());
    for process in 0..PROCESSES {
        let (place, rate) = match process % 2 {
            0 => (one, 600_000),
            _ => (other, 1_200_000),
        };
        let release = Release::new(fleet, place, rate).await;
        tasks.spawn(async move {
            let (mut turn, mut asked) = (process, 0_u32);
            loop {
                let at = start + secs(1) + turn * secs(1) / PER_SECOND;
                if at > start + span {
                    return asked;
                }
                sleep_until(at).await;
                release.take().await;
                asked += 1;
                turn += PROCESSES;
            }
        });
    }
    let _ = fleet.writes();
    let asked: u32 = tasks.join_all().await.into_iter().sum();
    let consumed = fleet.bucket().await.limits["rpm"].consumed;
    assert_eq!(consumed, tokens(asked.into()), "each counted once");
    f64::from(u32::try_from(fleet.writes()).unwrap()) / f64::from(asked)
}

/// The limits that a release brings in code. Both grant all that is asked.
fn limits(release: i64) -> [Limit; 2] {
    let tpm = Limit::per_minute("tpm", 6_000_000).unwrap();
    [rpm(600_000 * (release + 1)), tpm]
}

async fn capacity(fleet: &Fleet) -> i64 {
    let rule = fleet.bucket().await.limits["rpm"].rule;
    rule.capacity.whole_tokens()
}

#[tokio::test(start_paused = true)]
async fn new_limits_are_in_force_half_a_minute_after_the_old_release_is_gone() {
    let (fleet, [old, new]) = Fleet::of().await;
    for release in [0, 1, 0, 0] {
        let limiter = if release == 0 { &old } else { &new };
        let _ = granted(limiter, &limits(release), &[("rpm", 1)]).await;
    }
    assert_eq!(
        capacity(&fleet).await,
        1_200_000,
        "the first change is made at once, then the rule stands"
    );
    pass(secs(30)).await;
    let _ = granted(&old, &limits(0), &[("rpm", 1)]).await;
    assert_eq!(capacity(&fleet).await, 600_000);
    // The old release is gone.
    pass(secs(29)).await;
    let _ = granted(&new, &limits(1), &[("rpm", 1)]).await;
    assert_eq!(capacity(&fleet).await, 600_000);
    pass(secs(1)).await;
    let _ = granted(&new, &limits(1), &[("rpm", 1)]).await;
    assert_eq!(capacity(&fleet).await, 1_200_000);
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_only_one_release_has_is_added_and_changes_no_other() {
    let (fleet, [limiter]) = Fleet::of().await;
    for release in [0, 1] {
        let _ = granted(&limiter, &limits(release), &[("rpm", 1)]).await;
    }
    let more = [limits(0)[0].clone(), Limit::per_day("rpd", 9).unwrap()];
    let _ = granted(&limiter, &more, &[("rpm", 1), ("rpd", 1)]).await;
    let bucket = fleet.bucket().await;
    assert_eq!(
        bucket.limits.keys().map(|name| name.as_str()).collect::<Vec<_>>(),
        ["rpd", "rpm", "tpm"]
    );
    assert_eq!(bucket.limits["rpm"].rule, *limits(1)[0].rule());
}

#[tokio::test(start_paused = true)]
async fn a_version_without_limits_or_below_zero_is_refused_at_once() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = fleet.dynamo.take_operations();
    let alone = limiter.acquire("e-1", "gpt-4").take("rpm", 1).limits_version(3);
    let below = limiter.acquire("e-1", "gpt-4").limits(&limits(1));
    let below = below.take("rpm", 1).limits_version(-1);
    for (ask, text) in [(alone, "limits given with the call"), (below, "must be 0 or more, got -1")]
    {
        let error = ask.send().await.unwrap_err();
        assert!(matches!(&error, Error::Invalid(message) if message.contains(text)), "{error}");
    }
    assert!(fleet.dynamo.take_operations().is_empty());
}
