//! Schedules: limits that are scaled at certain times.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weirgate_tests::stored::set_config;

use serde_json::json;
use weirgate::{
    Builder, Config, ConfigLevel, Decision, Denied, EffectiveLimits, FakeClock, Grant, Limit,
    LimitScale, OnUnavailable, RateLimiter, Resource, ZoneName,
};
use weirgate_shared::{EpochMillis, LimitsVersion};
use weirgate_testkit::Fault;
use weirgate_tests::fleet::PK;
use weirgate_tests::fleet::shards::{shards, split};
use weirgate_tests::fleet::{Fleet, START, millis, pass, secs, tokens};
use weirgate_tests::stored::File;

const HOUR: Duration = secs(3_600);

/// The tests begin on a Friday at 18:00: doubled from 19:00 to 20:00, in UTC.
const DOUBLED: &str = "schedule=0 19 * * 1-5 for 1h scale 2/1";

fn level() -> ConfigLevel {
    ConfigLevel::Resource(Resource::new("gpt-4").unwrap())
}

async fn set(limiter: &RateLimiter, limits: &[&str]) {
    let limits: Vec<Limit> = limits.iter().map(|text| text.parse().unwrap()).collect();
    let config = Config::of(limits);
    set_config(limiter, &level(), &config).await;
}

/// A process that keeps its configuration for so long.
async fn keeping(fleet: &Fleet, ttl: Duration) -> RateLimiter {
    fleet.limiter_with(|builder| builder.config_ttl(ttl)).await
}

async fn decide(limiter: &RateLimiter, amount: i64) -> Decision {
    let ask = limiter.acquire("e-1", "gpt-4").take("l", amount);
    ask.send().await.unwrap()
}

/// Takes tokens, and leaves them taken.
async fn take(limiter: &RateLimiter, amount: i64) -> bool {
    let grant = decide(limiter, amount).await.granted();
    grant.map(Grant::into_token).is_some()
}

/// Takes tokens under a lease that outlasts the test.
async fn hold(limiter: &RateLimiter, amount: i64) -> bool {
    let ask = limiter.acquire("e-1", "gpt-4").take("l", amount);
    let grant = ask.lease(24 * HOUR).send().await.unwrap().granted();
    grant.map(Grant::into_token).is_some()
}

async fn denied(limiter: &RateLimiter, amount: i64) -> Denied {
    match decide(limiter, amount).await {
        Decision::Denied(denied) => denied,
        other => panic!("{other:?} is no denial"),
    }
}

/// Time from now until so long after the start.
async fn pass_until(fleet: &Fleet, after: Duration) {
    let passed = u64::try_from(fleet.now().0 - START.0).unwrap();
    pass(after - millis(passed)).await;
}

/// The capacity of the limit in the bucket.
async fn capacity(fleet: &Fleet) -> i64 {
    let bucket = fleet.bucket().await;
    bucket.limits["l"].rule.capacity.whole_tokens()
}

/// The capacity as a process reads it.
async fn peeked(limiter: &RateLimiter) -> i64 {
    let balances = limiter.peek("e-1", "gpt-4").send().await.unwrap();
    balances.limit("l").unwrap().capacity.whole_tokens()
}

/// Counts the writes that change limits for a schedule.
fn boundary_writes(fleet: &Fleet) -> Arc<AtomicU64> {
    let count = Arc::<AtomicU64>::default();
    let counter = Arc::clone(&count);
    fleet.dynamo.fail_when(move |request| {
        let names = request["ExpressionAttributeNames"].as_object();
        let is_one = names.is_some_and(|names| names.values().any(|name| name == "cb"));
        counter.fetch_add(u64::from(is_one), Ordering::Relaxed);
        None
    });
    count
}

/// Counts the reads of configurations.
fn config_reads(fleet: &Fleet) -> Arc<AtomicU64> {
    let count = Arc::<AtomicU64>::default();
    let counter = Arc::clone(&count);
    fleet.dynamo.fail_reads(move |_, request| {
        let is_one = request.to_string().contains("#CONFIG");
        counter.fetch_add(u64::from(is_one), Ordering::Relaxed);
        None
    });
    count
}

#[tokio::test(start_paused = true)]
async fn a_rule_is_in_force_from_its_begin_to_its_end_in_each_process_without_a_read() {
    // What each of two processes can take before the rule, in it, and after it. A rate begins with the
    // balance that it has, and is cut at the end. Slots and quotas follow the capacity both ways.
    for (limit, whole, each) in
        [("l=60/hour", 60, [29, 29, 29]), ("l=6", 6, [3, 3, 0]), ("l=quota:6/day", 6, [3, 3, 0])]
    {
        let fleet = Fleet::new().await;
        let limiters = [keeping(&fleet, 24 * HOUR).await, keeping(&fleet, 24 * HOUR).await];
        set(&limiters[0], &[&format!("{limit},{DOUBLED}")]).await;
        // The first acquire reads the configuration.
        for limiter in &limiters {
            assert!(take(limiter, 0).await);
        }
        let (writes, reads) = (boundary_writes(&fleet), config_reads(&fleet));
        for (hour, amount) in (0..).zip(each) {
            if hour > 0 {
                pass_until(&fleet, hour * HOUR - millis(1)).await;
                for limiter in &limiters {
                    let before = if hour == 1 { whole } else { 2 * whole };
                    assert_eq!(peeked(limiter).await, before, "{limit} {hour}");
                }
                pass(millis(1)).await;
                for limiter in &limiters {
                    let after = if hour == 1 { 2 * whole } else { whole };
                    assert_eq!(peeked(limiter).await, after, "{limit} {hour}");
                }
            }
            for limiter in &limiters {
                assert!(amount == 0 || hold(limiter, amount).await, "{limit} {hour}");
            }
            for limiter in &limiters {
                assert!(!take(limiter, 3).await, "I1: {limit} {hour}");
            }
            // The second may try too, on its view from before.
            let count = writes.swap(0, Ordering::Relaxed);
            let most = if hour > 0 { 2 } else { 0 };
            assert!(count <= most, "{limit} {hour}: {count}");
            if amount > 0 {
                let scale = if hour == 1 { 2 } else { 1 };
                assert_eq!(capacity(&fleet).await, scale * whole, "{limit} {hour}");
            }
        }
        assert_eq!(reads.load(Ordering::Relaxed), 0, "{limit}");
    }
}

/// The later boundary overrules, and each boundary is written once, whatever the clocks are.
#[tokio::test(start_paused = true)]
async fn processes_on_both_sides_of_a_boundary_follow_the_bucket() {
    for skew in [900, -900] {
        let fleet = Fleet::new().await;
        let other = FakeClock::at(START);
        other.skew(skew);
        let limiters = [fleet.limiter().await, fleet.limiter_by(&other).await];
        set(&limiters[0], &[&format!("l=1000/hour,{DOUBLED}")]).await;
        for limiter in &limiters {
            assert!(take(limiter, 1).await);
        }
        let (writes, reads) = (boundary_writes(&fleet), config_reads(&fleet));
        for hour in [1, 2] {
            pass_until(&fleet, hour * HOUR - secs(3)).await;
            // A write of limits moves `rf`, and takes do not.
            let state = async || (capacity(&fleet).await, fleet.bucket().await.refilled_at);
            let mut seen = vec![state().await];
            for limiter in &limiters {
                assert!(take(limiter, 0).await);
            }
            reads.store(0, Ordering::Relaxed);
            for _ in 0..120 {
                for limiter in &limiters {
                    assert!(take(limiter, 1).await);
                }
                seen.push(state().await);
                pass(millis(50)).await;
            }
            seen.dedup();
            let expected = if hour == 1 { [1_000, 2_000] } else { [2_000, 1_000] };
            let seen: Vec<_> = seen.into_iter().map(|(capacity, _)| capacity).collect();
            assert_eq!(seen, expected, "one change, and none back");
            // The other may have tried, on a view from before.
            assert!(writes.swap(0, Ordering::Relaxed) <= 2);
            assert_eq!(reads.load(Ordering::Relaxed), 0, "a boundary is no change");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_removed_schedule_overrules_at_once_and_permanently() {
    let fleet = Fleet::new().await;
    let ahead = FakeClock::at(START);
    ahead.skew(900);
    let (limiter, other) = (fleet.limiter().await, fleet.limiter_by(&ahead).await);
    set(&limiter, &[&format!("l=100/hour,{DOUBLED}")]).await;
    pass_until(&fleet, HOUR + secs(60)).await;
    for limiter in [&limiter, &other] {
        assert!(take(limiter, 1).await);
    }
    assert_eq!(capacity(&fleet).await, 200);
    set(&limiter, &["l=100/hour"]).await;
    for _ in 0..30 {
        for limiter in [&limiter, &other] {
            assert!(take(limiter, 1).await);
            assert_eq!(capacity(&fleet).await, 100);
        }
        pass(millis(100)).await;
    }
    let version = fleet.bucket().await.config_version.unwrap();
    assert_eq!(version, LimitsVersion::new(2));
    // And one that is set again.
    set(&other, &[&format!("l=100/hour,{DOUBLED}")]).await;
    assert!(take(&other, 1).await && take(&limiter, 1).await);
    assert_eq!(capacity(&fleet).await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_cached_denial_ends_at_the_boundary() {
    let (fleet, [limiter]) = Fleet::of().await;
    set(&limiter, &[&format!("l=quota:6/day,{DOUBLED}")]).await;
    assert!(take(&limiter, 6).await);
    pass_until(&fleet, HOUR - millis(1)).await;
    let denial = denied(&limiter, 1).await;
    assert_eq!(denial.retry_after, Some(5 * HOUR + millis(1)), "as in force");
    fleet.dynamo.take_operations();
    assert_eq!(denied(&limiter, 1).await.short().count(), 1);
    assert_eq!(fleet.dynamo.take_requests(), 0, "it is cached");
    pass(millis(1)).await;
    assert!(take(&limiter, 6).await);
}

#[tokio::test(start_paused = true)]
async fn what_never_fits_does_until_the_boundary_alone() {
    let (fleet, [limiter]) = Fleet::of().await;
    set(&limiter, &[&format!("l=6,{DOUBLED}")]).await;
    pass_until(&fleet, HOUR - millis(1)).await;
    let Decision::NeverFits(never) = decide(&limiter, 7).await else {
        panic!("above the capacity")
    };
    assert_eq!(never.capacity, tokens(6));
    pass(millis(1)).await;
    assert!(take(&limiter, 7).await);
    pass(HOUR).await;
    assert!(matches!(decide(&limiter, 7).await, Decision::NeverFits(_)));
}

#[tokio::test(start_paused = true)]
async fn what_is_in_force_is_told_with_the_scale_and_the_next_boundary() {
    let (fleet, [limiter]) = Fleet::of().await;
    set(&limiter, &[&format!("l=6,{DOUBLED}"), "m=5/second"]).await;
    let (entity, resource) = ("e-1".try_into().unwrap(), "gpt-4".try_into().unwrap());
    for (hour, text, scale) in [(0, "l=6", "1/1"), (1, "l=12", "2/1")] {
        pass_until(&fleet, hour * HOUR).await;
        let effective = limiter.admin().effective_limits(&entity, &resource).await;
        let effective = effective.unwrap();
        let own = &effective.buckets[0];
        let texts: Vec<_> = own.limits.iter().map(ToString::to_string).collect();
        assert_eq!(texts, [text, "m=5/second"]);
        let expected = LimitScale {
            limit: "l".try_into().unwrap(),
            scale: scale.parse().unwrap(),
            until: START.plus(((hour + 1) * HOUR).into()),
            tz: ZoneName::UTC,
        };
        assert_eq!(own.scales, [expected]);
        let configured = effective.levels[2].config.as_ref().unwrap();
        assert_eq!(configured.limits[0].to_string(), format!("l=6,{DOUBLED}"));
        let json = serde_json::to_value(&effective).unwrap();
        assert_eq!(serde_json::from_value::<EffectiveLimits>(json).unwrap(), effective);
    }
}

/// Berlin's clock is set ahead on 28 March 2027, and back on 31 October.
#[tokio::test(start_paused = true)]
async fn a_rule_follows_the_clock_of_its_zone_through_daylight_saving() {
    let (fleet, [limiter]) = Fleet::of().await;
    let office = "schedule=0 8 * * * for 10h scale 2/1 tz Europe/Berlin";
    set(&limiter, &[&format!("l=5/second,{office}")]).await;
    let march: EpochMillis = EpochMillis(1_806_105_600_000); // 27 March 2027, 00:00 UTC
    let october = EpochMillis(1_824_854_400_000); // 30 October 2027
    for (midnight, hours) in [(march, [7, 17, 30, 40]), (october, [6, 16, 31, 41])] {
        for (hour, scale) in hours.into_iter().zip([2, 1, 2, 1]) {
            let at = u64::try_from(midnight.0 - START.0).unwrap();
            pass_until(&fleet, millis(at) + hour * HOUR - millis(1)).await;
            let largest = async || {
                let fits = take(&limiter, 10).await;
                assert!(fits || take(&limiter, 5).await);
                if fits { 2 } else { 1 }
            };
            assert_eq!(largest().await, 3 - scale, "before {hour}");
            pass(millis(1)).await;
            assert!(take(&limiter, 0).await);
            pass(secs(2)).await;
            assert_eq!(largest().await, scale, "{hour}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_configured_limit_has_a_schedule() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let limits: [Limit; 1] = [format!("l=6,{DOUBLED}").parse().unwrap()];
    let refused = "limit \"l\" has a schedule, which only a configured limit can have: set it for a level, and \
                   leave the limits out of the call";
    let ask = limiter.acquire("e-1", "gpt-4").limits(&limits).take("l", 1);
    assert!(ask.send().await.unwrap_err().to_string().contains(refused));
    let split = limiter.admin().set_shards("e-1", "gpt-4", &limits, 2).await;
    assert!(split.unwrap_err().to_string().contains(refused));
    let refund = limiter.refund("e-1", "gpt-4").limits(&limits).give_back("l", 1);
    assert!(refund.send().await.unwrap_err().to_string().contains(refused));
}

/// An operator's write, a split and a merge keep the boundary, so a process behind it undoes none.
#[tokio::test(start_paused = true)]
async fn all_shards_have_the_boundary_of_their_limits() {
    let (fleet, [limiter]) = Fleet::of().await;
    set(&limiter, &[&format!("l=1000/hour,{DOUBLED}")]).await;
    assert!(take(&limiter, 1).await);
    pass_until(&fleet, HOUR).await;
    let apply = limiter.admin().apply_limits("e-1", "gpt-4").send().await;
    assert_eq!(apply.unwrap().shards, 1);
    let boundary = EpochMillis(START.0 + 3_600_000);
    let version = LimitsVersion { number: 1, boundary };
    assert_eq!(fleet.bucket().await.config_version, Some(version));
    let limits = ["l=2000/hour".parse().unwrap()];
    for count in [4, 1] {
        split(&limiter, &limits, count).await;
        let all = shards(&fleet).await;
        assert_eq!(all.len(), usize::try_from(count).unwrap());
        for shard in all {
            assert_eq!(shard.config_version, Some(version), "{:?}", shard.key);
        }
    }
}

/// The boundary of a clock that was wrong does not stand until the right ones reach it.
#[tokio::test(start_paused = true)]
async fn a_boundary_that_is_far_ahead_is_overruled() {
    let (fleet, [limiter]) = Fleet::of().await;
    set(&limiter, &[&format!("l=100/hour,{DOUBLED}")]).await;
    assert!(take(&limiter, 1).await);
    let mut item = fleet.dynamo.item(PK, "#STATE");
    item["cb"] = json!({"N": (START.0 + 3_600_000).to_string()});
    item["b_l_cp"] = json!({"N": "200000"});
    fleet.dynamo.put(&item);
    let other = fleet.limiter().await;
    assert!(take(&other, 1).await);
    assert_eq!(capacity(&fleet).await, 100);
    pass_until(&fleet, HOUR).await;
    assert!(take(&limiter, 1).await && take(&other, 1).await);
    assert_eq!(capacity(&fleet).await, 200);
}

/// While DynamoDB is away, the boundaries pass too.
#[tokio::test(start_paused = true)]
async fn a_local_bucket_follows_the_schedule() {
    let fleet = Fleet::new().await;
    let local = OnUnavailable::Local { percent: 100 };
    let limiter =
        fleet.limiter_with(|builder| builder.on_unavailable(local).timeout(millis(100))).await;
    set(&limiter, &[&format!("l=quota:6/day,{DOUBLED}")]).await;
    assert!(take(&limiter, 0).await);
    fleet.dynamo.fail_when(|_| Some(Fault::ServerError));
    fleet.fail_reads(Fault::ServerError);
    assert!(take(&limiter, 6).await && !take(&limiter, 1).await);
    pass_until(&fleet, HOUR).await;
    // Of 12, as from the table.
    assert!(take(&limiter, 6).await && !take(&limiter, 1).await);
}

/// A process that the limits file gives a schedule has it without a version: the first that passes
/// the boundary changes the bucket.
#[tokio::test(start_paused = true)]
async fn a_schedule_of_a_file_is_in_force_in_time() {
    let fleet = Fleet::new().await;
    let file = File::new(
        "weirgate: 1\nsystem:\n  limits:\n    l: {quota: 6, every: day, schedule: [{cron: \"0 19 * * *\", for: 1h, scale: 2/1}]}\n",
    );
    let of_file = |builder: Builder| builder.limits_file(file.limits());
    let limiter = fleet.limiter_with(of_file).await;
    let behind = fleet.limiter_with(of_file).await;
    assert!(take(&limiter, 6).await && !take(&behind, 1).await);
    pass_until(&fleet, HOUR).await;
    assert!(take(&behind, 3).await && take(&limiter, 3).await && !take(&limiter, 1).await);
    assert_eq!(capacity(&fleet).await, 12);
    pass(HOUR).await;
    assert!(!take(&limiter, 1).await);
}
