//! What an acquire costs where several processes use a limit, and what becomes of calls where they
//! ask for more than there is.

use std::time::Duration;

use weirgate::Limit;
use weirgate_testkit::Limits;
use weirgate_testkit::heat::{Arrivals, Load, Report, run};

use super::heat::{assert_usage_is_exact, small};

/// Runs processes that make so many calls an hour, all together.
async fn report(
    limit: Limit,
    (clients, calls_per_hour): (u32, u32),
    arrivals: Arrivals,
    seconds: u64,
) -> Report {
    let load = Load {
        clients,
        calls_per_second: f64::from(calls_per_hour) / 3_600.0,
        arrivals,
        lasts: Duration::from_secs(seconds),
        partitions: Limits::default(),
        ..small(limit, 1)
    };
    run(&load, 0).await
}

/// Time in which calls are made, in seconds.
const SECONDS: i64 = 8;

fn a_second(calls: u32) -> u32 {
    calls * 3_600
}

/// A full bucket states where its balance is cut, which fails beside another take. Processes that use
/// a part of a limit must not pay for that each time, however short or long its period is.
#[tokio::test(start_paused = true)]
async fn processes_below_the_rate_of_a_limit_pay_about_one_write_each() {
    use Arrivals::{Even, Random};
    let per_second = |rate| Limit::per_second("rpm", rate).unwrap();
    for (limit, clients, calls_per_hour, arrivals, seconds, most_percent) in [
        (per_second(1_000), 1, a_second(20), Even, 6, 105),
        (per_second(1_000), 100, a_second(200), Even, 6, 105),
        (per_second(1_000), 100, a_second(200), Random, 6, 125),
        (per_second(10), 10, a_second(7), Even, 60, 105),
        (Limit::per_hour("rpm", 60).unwrap(), 3, 9, Even, 14_400, 125),
    ] {
        let what = format!("{clients} processes, {calls_per_hour} calls an hour of {limit:?}");
        let report = report(limit, (clients, calls_per_hour), arrivals, seconds).await;
        assert!(
            report.writes * 100 <= report.granted * most_percent,
            "{} writes for {} grants: {what}",
            report.writes,
            report.granted
        );
        assert_eq!((report.denied, report.failed), (0, 0), "{what}");
        // A run of hours begins new ones.
        if seconds < 3_000 {
            assert_usage_is_exact(&report);
        }
    }
}

/// I2, I9: where servers ask for half as much again as the limit allows, the rest is denied. No call
/// waits until its deadline, and the limit is used.
#[tokio::test(start_paused = true)]
async fn i2_i9_servers_above_the_rate_get_all_tokens_and_denials() {
    for (rate, servers, most_percent) in [(400, 1, 100), (200, 30, 150), (200, 100, 250)] {
        let limit = Limit::per_second("rpm", rate).unwrap();
        let calls = a_second(u32::try_from(rate).unwrap() * 3 / 2);
        let report = report(limit, (servers, calls), Arrivals::Open, SECONDS.unsigned_abs()).await;
        let what = format!("{servers} servers: {report:?}");
        // The capacity, and the refill of the time in which calls are made.
        let entitled = u64::try_from(rate * (SECONDS + 1)).unwrap();
        assert!(report.granted * 100 >= entitled * 98, "{what}");
        assert!(report.denied * 4 > report.granted, "{what}");
        assert_eq!(report.failed, 0, "{what}");
        assert!(report.writes * 100 <= report.granted * most_percent, "{what}");
        assert_usage_is_exact(&report);
    }
}

/// I2, I9: the same for a bucket of several shards. A request that is short in each of them, as their
/// responses showed, is denied. It does not go from shard to shard for what is refilled meanwhile.
#[tokio::test(start_paused = true)]
async fn i2_i9_a_server_above_the_rate_of_shards_gets_tokens_and_denials() {
    for (servers, rate, most_percent) in [(1, 400_u32, 100), (30, 200, 330)] {
        let load = Load {
            clients: servers,
            calls_per_second: f64::from(rate) * 1.5,
            arrivals: Arrivals::Open,
            lasts: Duration::from_secs(SECONDS.unsigned_abs()),
            partitions: Limits::default(),
            ..small(Limit::per_second("rpm", rate.into()).unwrap(), 4)
        };
        let report = run(&load, 0).await;
        let what = format!("{servers} servers: {report:?}");
        let entitled = u64::try_from(i64::from(rate) * (SECONDS + 1)).unwrap();
        assert!(report.granted * 100 >= entitled * 95, "{what}");
        assert!(report.denied * 5 > report.granted, "{what}");
        assert_eq!(report.failed, 0, "{what}");
        assert!(report.writes * 100 <= report.granted * most_percent, "{what}");
        assert_usage_is_exact(&report);
    }
}
