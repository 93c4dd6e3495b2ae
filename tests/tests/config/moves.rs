//! Limits that move between the table, the code and a file, with and without versions.

use std::path::PathBuf;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use weirgate::{Config, ConfigLevel, Limit, LimitsFile, RateLimiter};

use crate::fixtures::fleet::{Fleet, millis, pass, secs, tokens};

/// What brings the limits of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Table,
    /// The code, with a version.
    Versioned(i64),
    Code,
    File,
}

const PLACES: [Place; 5] = [
    Place::Table,
    Place::Versioned(0),
    Place::Versioned(1_000_000),
    Place::Code,
    Place::File,
];

/// A process of a release, and what it asks.
struct Release {
    limiter: RateLimiter,
    place: Place,
    rate: i64,
    file: Option<PathBuf>,
}

impl Release {
    async fn new(fleet: &Fleet, place: Place, rate: i64) -> Self {
        let (mut builder, mut file) = (fleet.builder().await, None);
        match place {
            Place::Table => {
                let config = Config::of([limit(rate)]);
                let admin = fleet.limiter().await;
                let level = ConfigLevel::System;
                admin.set_config(&level, &config).await.unwrap();
            }
            Place::File => {
                let name = format!("weirgate-moves-{}.yaml", fastrand::u64(..));
                let path = std::env::temp_dir().join(name);
                let text =
                    format!("weirgate: 1\nsystem:\n  limits:\n    rpm: {{per_minute: {rate}}}\n");
                std::fs::write(&path, text).unwrap();
                builder = builder.limits_file(LimitsFile::open(&path).unwrap());
                file = Some(path);
            }
            Place::Versioned(_) | Place::Code => {}
        }
        let limiter = builder.build().await.unwrap();
        Self {
            limiter,
            place,
            rate,
            file,
        }
    }

    async fn take(&self) {
        let ask = self.limiter.acquire("e-1", "gpt-4").take("rpm", 1);
        let ask = match self.place {
            Place::Table | Place::File => ask,
            Place::Code => ask.limits(&[limit(self.rate)]),
            Place::Versioned(version) => ask.limits(&[limit(self.rate)]).limits_version(version),
        };
        assert!(ask.send().await.unwrap().is_granted());
    }

    /// Takes for a minute, and checks that the bucket has its limits then.
    async fn holds(&self, fleet: &Fleet, what: &str) {
        for _ in 0..60 {
            self.take().await;
            pass(secs(1)).await;
        }
        self.take().await;
        let capacity = fleet.bucket().await.limits["rpm"].rule.capacity;
        assert_eq!(capacity, tokens(self.rate), "{what}");
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file);
        }
    }
}

fn limit(rate: i64) -> Limit {
    Limit::per_minute("rpm", rate).unwrap()
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
                assert!(new.limiter.delete_config(&level).await.unwrap());
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
async fn releases_with_limits_of_two_places_side_by_side_cost_little_more_than_one() {
    for (one, other) in pairs() {
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
    f64::from(u32::try_from(fleet.writes()).unwrap()) / f64::from(asked)
}
