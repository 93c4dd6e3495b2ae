//! The algorithms of limiters on Redis, and a bucket of Weirgate, on the same arrivals: what each
//! admits, and which settings make GCRA and the bucket decide alike.
//!
//! ```sh
//! cargo run -p weirgate --all-features --example from_redis
//! ```

mod place;

use std::collections::VecDeque;
use std::process::ExitCode;
use std::time::Duration;

use place::{Outcome, Place, run};
use tokio::time::{Instant, sleep_until};
use weirgate::Limit;

/// Ten a second, in milliseconds since the start.
const RATE: i64 = 10;
const SECOND: i64 = 1_000;
const NAMES: [&str; 5] =
    ["fixed window", "sliding log", "GCRA, max_burst 9", "bucket, burst 10", "bucket, burst 4"];

/// `INCR` and `EXPIRE`: a counter for each second of the clock.
#[derive(Default)]
struct FixedWindow {
    second: i64,
    count: i64,
}

impl FixedWindow {
    fn admits(&mut self, now: i64) -> bool {
        if self.second != now / SECOND {
            (self.second, self.count) = (now / SECOND, 0);
        }
        self.count += 1; // a denied request counts too
        self.count <= RATE
    }
}

/// `ZADD`, `ZREMRANGEBYSCORE`, `ZCARD`: the instants of the last second.
#[derive(Default)]
struct SlidingLog(VecDeque<i64>);

impl SlidingLog {
    fn admits(&mut self, now: i64) -> bool {
        while self.0.front().is_some_and(|first| now - first >= SECOND) {
            self.0.pop_front();
        }
        let fits = self.0.len() < 10;
        if fits {
            self.0.push_back(now);
        }
        fits
    }
}

/// `CL.THROTTLE key 9 10 1`: the theoretical arrival time of GCRA, as redis-cell has it.
#[derive(Default)]
struct Gcra(i64);

impl Gcra {
    fn admits(&mut self, now: i64, max_burst: i64) -> bool {
        let interval = SECOND / RATE;
        let next = self.0.max(now) + interval;
        let fits = next - (max_burst + 1) * interval <= now;
        if fits {
            self.0 = next;
        }
        fits
    }
}

fn main() -> ExitCode {
    run(compare)
}

async fn compare(place: Place) -> Outcome {
    let limiter = place.builder().build().await?;
    let bucket = |burst| Limit::per_second("rps", RATE)?.with_burst(burst);
    let (large, small) = ([bucket(10)?], [bucket(4)?]);
    let (mut fixed, mut log, mut gcra) = <(FixedWindow, SlidingLog, Gcra)>::default();
    let (begun, arrivals) = (Instant::now(), arrivals());
    let mut decisions = vec![];
    for at in &arrivals {
        sleep_until(begun + Duration::from_millis(at.unsigned_abs())).await;
        let large = limiter.acquire("large", "api").limits(&large);
        let small = limiter.acquire("small", "api").limits(&small);
        decisions.push([
            fixed.admits(*at),
            log.admits(*at),
            gcra.admits(*at, 9),
            large.take("rps", 1).send().await?.is_granted(),
            small.take("rps", 1).send().await?.is_granted(),
        ]);
    }
    println!("{} arrivals in 3 s, limit {RATE} a second", arrivals.len());
    println!("{:<18} admitted, most in 200 ms, in 1 s", "");
    for (row, name) in NAMES.into_iter().enumerate() {
        let all = arrivals.iter().zip(&decisions);
        let times: Vec<i64> = all.filter(|(_, all)| all[row]).map(|(at, _)| *at).collect();
        let most = |span: i64| {
            let within =
                |first: &i64| times.iter().filter(|at| (0..span).contains(&(*at - *first))).count();
            times.iter().map(within).max().unwrap_or_default()
        };
        let (short, long) = (most(200), most(SECOND));
        println!("{name:<18} {:>8} {short:>16} {long:>7}", times.len());
    }
    let alike = decisions.iter().filter(|all| all[2] == all[3]).count();
    println!("GCRA and bucket decide alike: {alike} of {}", arrivals.len());
    Ok(())
}

/// Two crowds at both sides of a full second, then a steady stream above the rate.
fn arrivals() -> Vec<i64> {
    let crowds = [950; 12].into_iter().chain([1_050; 12]);
    crowds.chain((1_100..3_000).step_by(47)).collect()
}
