//! Local buckets, as limits change between and within outages.

use weirgate::{Class, Decision, Every, Grant, Limit, OnUnavailable, RateLimiter};
use weirgate_testkit::Fault;
use weirgate_tests::fleet::{Fleet, ask, is_granted, pass, rpm, secs};

use super::unavailable::{locally, outage};

/// Alternately asked by another part, or by other limits: nothing is taken twice.
#[tokio::test(start_paused = true)]
async fn i1_a_local_bucket_keeps_its_balances_whatever_its_limits_become() {
    let batch = Class::new("batch", 50).unwrap();
    let all = |rate| {
        let of = [rpm(rate), Limit::per_day("rpd", rate).unwrap()];
        [&of[..], &[Limit::concurrent("slots", rate / 10).unwrap()]].concat()
    };
    let pools = vec![rpm(600).with_classes([batch]).unwrap()];
    let (most, lower) = (all(600), all(300));
    // Each name with a limit of another kind.
    let others = vec![
        Limit::concurrent("rpm", 600).unwrap(),
        Limit::concurrent("rpd", 600).unwrap(),
        Limit::per_minute("slots", 600).unwrap(),
    ];
    for (name, other, percent) in ["rpm", "rpd", "slots"].into_iter().flat_map(|name| {
        let others = [(&most, 5), (&lower, 10), (&pools, 10), (&others, 10)];
        others.map(|(other, percent)| (name, other, percent))
    }) {
        let what = format!("{name}, {other:?}, {percent} %");
        let fleet = Fleet::new().await;
        let local = locally(&fleet, 10).await;
        outage(&fleet, Fault::LoseRequest);
        let mut grants = vec![];
        for round in 0..8 {
            let (limits, percent) = match round % 2 {
                0 => (&most, 10),
                _ => (other, percent),
            };
            // Each round takes what there is.
            loop {
                let has_it = limits.iter().any(|limit| limit.name().as_str() == name);
                let name = if has_it { name } else { "rpm" };
                let by = OnUnavailable::Local { percent };
                let ask = ask(&local, limits, &[(name, 1)]).on_unavailable(by);
                let Decision::Granted(grant) = ask.send().await.unwrap() else {
                    break;
                };
                if has_it {
                    grants.push(grant);
                }
            }
        }
        let given = grants.len();
        // And what refilled before the breaker opened.
        let least = if name == "slots" { 6 } else { 60 };
        assert!((least..=least + 2).contains(&given), "{what}: {given}");
    }
}

/// Takes all that a limit has now, of its class `batch` if it has that.
async fn take_all(local: &RateLimiter, limit: &Limit) -> Vec<Grant> {
    let mut grants = vec![];
    loop {
        let ask = ask(local, std::slice::from_ref(limit), &[("n", 1)]);
        let ask = match limit.classes().is_empty() {
            true => ask,
            false => ask.class("batch"),
        };
        let Decision::Granted(grant) = ask.send().await.unwrap() else {
            return grants;
        };
        grants.push(grant);
    }
}

/// An outage long after another one, since which a limit was raised, or has become one of another kind.
#[tokio::test(start_paused = true)]
async fn a_local_bucket_that_rested_has_the_limits_of_the_next_outage() {
    let hourly = |rate| Limit::per_hour("n", rate).unwrap();
    let held = |count| Limit::concurrent("n", count).unwrap();
    for (first, rest, next, expected) in [
        (hourly(1_000), secs(86_400), hourly(5_000), 500),
        (hourly(1_000), secs(0), hourly(5_000), 0),
        (hourly(1_000), secs(60), held(50), 0),
        (hourly(1_000), secs(3_600), held(50), 5),
        (held(50), secs(60), hourly(1_000), 100),
    ] {
        let fleet = Fleet::new().await;
        let local = locally(&fleet, 10).await;
        outage(&fleet, Fault::LoseRequest);
        assert!(!take_all(&local, &first).await.is_empty());
        pass(rest).await;
        let taken = take_all(&local, &next).await.len();
        assert_eq!(taken, expected, "{first:?}, then {next:?}");
    }
}

/// Grants outlast the limits that they were given by, and what ends with them returns to no others.
#[tokio::test(start_paused = true)]
async fn i1_what_a_local_bucket_gave_by_limits_of_one_kind_returns_to_none_of_another() {
    let hourly = Limit::per_hour("n", 1_000).unwrap();
    let quota = Limit::quota("n", 1_000, Every::day()).unwrap();
    let held = Limit::concurrent("n", 50).unwrap();
    for (first, next, least) in
        [(&hourly, &held, 5), (&quota, &held, 5), (&quota, &hourly, 0), (&held, &hourly, 0)]
    {
        for end in 0..3 {
            let what = format!("{first:?}, then {next:?}, {end}");
            let fleet = Fleet::new().await;
            let local = locally(&fleet, 10).await;
            outage(&fleet, Fault::LoseRequest);
            let given = take_all(&local, first).await;
            pass(secs(86_400)).await;
            let of_next = take_all(&local, next).await;
            assert!(of_next.len() >= least, "{what}: {}", of_next.len());
            let is_held = first == &held;
            for mut grant in given {
                match end {
                    0 => drop(grant),
                    1 => drop(grant.roll_back().await.unwrap()),
                    _ => drop(grant.adjust("n", 0).await.unwrap()),
                }
            }
            // Slots that are free begin again as another limit.
            let more = take_all(&local, next).await.len();
            let most = if is_held { 100 } else { 0 };
            assert_eq!(more, most, "{what}");
        }
    }
}

/// As in the table: a new class gets its part of what is there, and what an old one has goes back.
#[tokio::test(start_paused = true)]
async fn a_local_bucket_keeps_what_it_has_as_a_limit_gets_and_loses_classes() {
    let plain = || Limit::per_minute("n", 600).unwrap();
    let other = || Limit::per_minute("m", 600).unwrap();
    let of = |share| {
        let batch = Class::new("batch", share).unwrap();
        plain().with_classes([batch]).unwrap()
    };
    for (limits, rest, expected) in [
        (vec![plain(), of(50)], 0, 58),
        (vec![plain(), of(50)], 86_400, 60),
        (vec![of(50), plain()], 0, 58),
        (vec![of(50), plain()], 86_400, 60),
        (vec![plain(), of(50), plain(), of(50)], 0, 54),
        (vec![of(50), plain(), of(25), plain()], 0, 54),
        (vec![of(50), plain(), of(25), plain()], 86_400, 60),
        (vec![of(50), other(), plain()], 0, 58),
        (vec![plain(), other(), of(50)], 0, 58),
    ] {
        let fleet = Fleet::new().await;
        let local = locally(&fleet, 10).await;
        outage(&fleet, Fault::LoseRequest);
        let (last, before) = limits.split_last().unwrap();
        for limit in before {
            let limits = std::slice::from_ref(limit);
            assert!(is_granted(&local, limits, &[(limit.name().as_str(), 2)]).await);
        }
        pass(secs(rest)).await;
        let taken = take_all(&local, last).await.len();
        assert_eq!(taken, expected, "{limits:?}, after {rest} s");
    }
}
