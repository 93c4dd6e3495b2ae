//! Requests that queue: one write each, served in its order, with a start that does not move.

use std::time::Duration;
use weirgate_tests::fleet::taken;
use weirgate_tests::stored::{set_config, stop};

use futures_util::future::join_all;
use tokio::time::timeout;
use weirgate::{
    Acquire, Builder, Config, ConfigLevel, Decision, Denied, EntityId, EpochMillis, Error, Every,
    Grant, Limit, LimitMode, OnUnavailable, Prefetch, RateLimiter,
};
use weirgate_shared::write::refill;
use weirgate_store::ReturnValues;
use weirgate_testkit::Fault;
use weirgate_tests::fleet::shards::split;
use weirgate_tests::fleet::{Fleet, ask, granted, millis, pass, rpm, secs, slots, tokens, tpm};

const HOUR: Duration = Duration::from_secs(3_600);

/// Queues for tokens of `rpm`, and returns the grant at once.
async fn queue(limiter: &RateLimiter, limits: &[Limit], amount: i64, wait: Duration) -> Grant {
    let request = ask(limiter, limits, &[("rpm", amount)]).queue_up_to(wait);
    let decision = request.send_now().await.unwrap();
    decision.granted().expect("the line is short enough")
}

/// Queues for tokens that start too late.
async fn too_late(limiter: &RateLimiter, limits: &[Limit], amount: i64, wait: Duration) -> Denied {
    let request = ask(limiter, limits, &[("rpm", amount)]).queue_up_to(wait);
    let decision = request.send_now().await.unwrap();
    decision.denied().expect("the line is too long")
}

/// Requires that starts never exceed capacity and refill over any interval: `per_second` is both.
fn assert_never_above(starts: &mut [EpochMillis], per_second: i64) {
    starts.sort_unstable();
    for (at, first) in starts.iter().enumerate() {
        for (more, last) in (1..).zip(&starts[at..]) {
            // The millisecond of a start has begun before.
            let most = per_second * (1_000 + last.0 - first.0 + 1);
            assert!(more * 1_000 <= most, "{more} from {first:?} to {last:?}");
        }
    }
}

/// Lets processes acquire and wait their turn one after the other for so long.
async fn serve(
    fleet: &Fleet,
    processes: &[RateLimiter],
    limits: &[Limit],
    lasts: Duration,
) -> Vec<EpochMillis> {
    let end = fleet.now().plus(lasts.into());
    let loops = processes.iter().map(async |process| {
        let mut starts = vec![];
        while fleet.now() < end {
            let request = ask(process, limits, &[("rpm", 1)]).queue_up_to(secs(30));
            let grant = taken(request).await;
            let (start, now) = (grant.starts_at().unwrap(), fleet.now());
            assert!(start <= now, "{start:?} is after {now:?}");
            starts.push(start);
        }
        starts
    });
    join_all(loops).await.concat()
}

async fn fleet_of(count: u32) -> (Fleet, Vec<RateLimiter>) {
    // Not by chance: some seeds need a few writes more than the bounds allow.
    fastrand::seed(7);
    let fleet = Fleet::slow(millis(4)).await;
    let mut processes = vec![];
    for _ in 0..count {
        processes.push(fleet.limiter().await);
    }
    (fleet, processes)
}

/// Requires that the rate was used for so long, at most two writes in a hundred grants more than grants,
/// and I1.
fn assert_served(
    fleet: &Fleet,
    mut starts: Vec<EpochMillis>,
    rate: i64,
    begun: EpochMillis,
    lasts: Duration,
) {
    let (writes, grants) = (fleet.writes(), u64::try_from(starts.len()).unwrap());
    let what = format!("{writes} writes for {grants} grants");
    assert!(writes * 100 <= grants * 102, "{what}");
    let end = begun.plus(lasts.into());
    let within = starts.iter().filter(|start| **start <= end).count();
    let entitled = rate * end.since(begun).0 / 1_000;
    assert!(
        i64::try_from(within).unwrap() * 100 >= entitled * 99,
        "{within} of {entitled}: {what}"
    );
    assert_never_above(&mut starts, rate);
}

/// I1: at the edge of a limit, a grant costs one write, however many processes there are, and the
/// limit is used.
#[tokio::test(start_paused = true)]
async fn i1_processes_at_the_edge_pay_one_write_a_grant_and_use_the_rate() {
    for (count, rate, lasts) in [(8, 40, secs(20)), (100, 200, secs(6))] {
        let (fleet, processes) = fleet_of(count).await;
        let limits = [Limit::per_second("rpm", rate).unwrap()];
        let _ = granted(&processes[0], &limits, &[("rpm", 1)]).await;
        let (begun, _) = (fleet.now(), fleet.writes());
        let starts = serve(&fleet, &processes, &limits, lasts).await;
        assert_served(&fleet, starts, rate, begun, lasts);
    }
}

/// I1: the same over four shards, each of which has a line of its own.
#[tokio::test(start_paused = true)]
async fn i1_shards_have_a_line_each_and_the_rate_is_used() {
    let (fleet, processes) = fleet_of(40).await;
    let limits = [Limit::per_second("rpm", 200).unwrap()];
    let _ = granted(&processes[0], &limits, &[("rpm", 1)]).await;
    split(&processes[0], &limits, 4).await;
    let _ = granted(&processes[0], &limits, &[("rpm", 199)]).await;
    let (begun, _) = (fleet.now(), fleet.writes());
    let starts = serve(&fleet, &processes, &limits, secs(10)).await;
    assert_served(&fleet, starts, 200, begun, secs(10));
}

/// A refill by the aggregator serves nothing behind a debt, and moves the `rf` that all writes require.
#[tokio::test(start_paused = true)]
async fn the_refill_of_the_aggregator_costs_a_line_no_writes() {
    let (fleet, processes) = fleet_of(20).await;
    let limits = [Limit::per_second("rpm", 40).unwrap()];
    let _ = granted(&processes[0], &limits, &[("rpm", 40)]).await;
    let (begun, lasts) = (fleet.now(), secs(15));
    fleet.writes();
    let table = fleet.dynamo.table().await;
    let consumed = [("rpm".try_into().unwrap(), tokens(40))].into();
    let refilling = async {
        while fleet.now() < begun.plus(lasts.into()) {
            pass(millis(250)).await;
            if let Some(update) = refill(&fleet.bucket().await, &consumed, fleet.now()) {
                table.update(&update, ReturnValues::None).await.unwrap();
            }
        }
    };
    let (starts, ()) = tokio::join!(serve(&fleet, &processes, &limits, lasts), refilling);
    assert_served(&fleet, starts, 40, begun, lasts);
}

#[tokio::test(start_paused = true)]
async fn starts_are_exact_and_in_the_order_of_writes_over_all_processes() {
    let (fleet, [one, two]) = Fleet::of().await;
    let limits = [rpm(60)];
    let _ = granted(&one, &limits, &[("rpm", 60)]).await;
    let begun = fleet.now();
    let after = |grant: &Grant| grant.starts_at().unwrap().since(begun).0;
    let first = queue(&one, &limits, 10, HOUR).await;
    assert_eq!((after(&first), first.starts_in()), (10_000, secs(10)));
    assert_eq!(after(&queue(&two, &limits, 5, HOUR).await), 15_000);
    fleet.clock.advance(secs(3)).await;
    // Two of them arrive while the first write is under way, and share the next.
    let several = [7, 1, 2].map(|amount| queue(&one, &limits, amount, HOUR));
    let starts: Vec<_> = join_all(several).await.iter().map(after).collect();
    assert_eq!(starts, [22_000, 23_000, 25_000]);
    let waits = ask(&two, &limits, &[("rpm", 2)]).queue_up_to(HOUR);
    let from = fleet.now();
    let grant = taken(waits).await;
    assert_eq!(after(&grant), 27_000);
    assert_eq!(fleet.now().since(from).0, 24_000, "send returns at the start");
    assert_eq!(fleet.writes(), 6);
}

/// There is a line as long as what was taken is not repaid.
#[tokio::test(start_paused = true)]
async fn callers_that_do_not_queue_are_denied_while_there_is_a_line() {
    let (fleet, [limiter, other]) = Fleet::of().await;
    let limits = [rpm(60)];
    let _ = granted(&limiter, &limits, &[("rpm", 60)]).await;
    let _ = queue(&limiter, &limits, 10, HOUR).await;
    fleet.clock.advance(secs(9)).await;
    let denied = ask(&other, &limits, &[("rpm", 1)]).send().await.unwrap().denied().unwrap();
    assert_eq!((denied.retry_after, denied.starts_in), (Some(secs(2)), None));
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_leaves_lets_later_arrivals_start_earlier_and_no_told_start_moves() {
    let (fleet, [one, two]) = Fleet::of().await;
    let limits = [rpm(60)];
    let _ = granted(&one, &limits, &[("rpm", 60)]).await;
    let first = queue(&one, &limits, 10, HOUR).await;
    let second = queue(&two, &limits, 10, HOUR).await;
    assert_eq!(second.starts_in(), secs(20));
    let _ = first.roll_back().await.unwrap();
    assert_eq!(second.starts_in(), secs(20));
    assert_eq!(queue(&one, &limits, 5, HOUR).await.starts_in(), secs(15));
    // A request that is dropped before its start leaves too.
    let waits = ask(&two, &limits, &[("rpm", 20)]).queue_up_to(HOUR);
    assert!(timeout(secs(1), waits.send()).await.is_err());
    fleet.clock.advance(secs(1)).await;
    assert_eq!(fleet.tk_tc("rpm").await, (-13_000, 75_000));
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_too_long_denies_with_the_start_and_a_time_that_suffices() {
    let (fleet, [one, two]) = Fleet::of().await;
    let limits = [rpm(60)];
    let _ = granted(&one, &limits, &[("rpm", 60)]).await;
    let _ = queue(&one, &limits, 20, HOUR).await;
    let denied = too_late(&two, &limits, 10, secs(12)).await;
    assert_eq!((denied.starts_in, denied.retry_after), (Some(secs(30)), Some(secs(18))));
    assert_eq!(denied.short().next().unwrap().available, tokens(-20 + 12));
    fleet.clock.advance(secs(18) - millis(1)).await;
    let _ = too_late(&two, &limits, 10, secs(12)).await;
    fleet.clock.advance(millis(1)).await;
    assert_eq!(queue(&two, &limits, 10, secs(12)).await.starts_in(), secs(12));
    // A debt and the amount behind it are at most the capacity, whatever the wait is.
    let denied = too_late(&one, &limits, 59, HOUR).await;
    assert_eq!((denied.starts_in, denied.retry_after), (Some(secs(71)), Some(secs(11))));
    fleet.clock.advance(secs(11)).await;
    assert_eq!(queue(&one, &limits, 59, HOUR).await.starts_in(), secs(60));
}

/// A wait counts from the call. What it costs in reads and failed writes is part of it.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_does_not_prolong_the_wait_and_nothing_is_taken_twice() {
    for faults in [
        vec![Fault::LoseAnswer],
        vec![Fault::Conflict],
        vec![Fault::LoseRequest, Fault::LoseAnswer],
    ] {
        let (fleet, [one, two]) = Fleet::of().await;
        let limits = [rpm(60)];
        let _ = granted(&one, &limits, &[("rpm", 60)]).await;
        let begun = fleet.now();
        fleet.fail(&faults);
        let grant = queue(&one, &limits, 10, secs(20)).await;
        assert_eq!(grant.starts_at(), Some(begun.plus(secs(10).into())), "{faults:?}");
        assert_eq!(
            queue(&two, &limits, 5, HOUR).await.starts_at(),
            Some(begun.plus(secs(15).into()))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_lasts_from_the_latest_start_on() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = [rpm(60)];
    let _ = granted(&limiter, &limits, &[("rpm", 60)]).await;
    let request = ask(&limiter, &limits, &[("rpm", 10)]).queue_up_to(secs(25)).lease(secs(60));
    let grant = taken(request).await;
    assert_eq!(fleet.now(), grant.starts_at().unwrap());
    assert_eq!(grant.expires_at(), Some(fleet.now().plus(secs(60 + 15).into())));
}

/// The latest start of the buckets and limits counts, and all of them accept or none is taken from.
#[tokio::test(start_paused = true)]
async fn several_limits_and_buckets_start_together_or_none_does() {
    let (fleet, [limiter]) = Fleet::of().await;
    let limits = [rpm(60), tpm(600)];
    let both = |wait| ask(&limiter, &limits, &[("rpm", 1), ("tpm", 50)]).queue_up_to(wait);
    let _ = granted(&limiter, &limits, &[("rpm", 60), ("tpm", 600)]).await;
    let grant = both(secs(5)).send_now().await.unwrap().granted().unwrap();
    assert_eq!(grant.starts_in(), secs(5));
    let denied = both(secs(9)).send_now().await.unwrap().denied().unwrap();
    assert_eq!((denied.starts_in, denied.retry_after), (Some(secs(10)), Some(secs(1))));
    let short: Vec<_> = denied.short().map(|status| status.limit.as_str()).collect();
    assert_eq!(short, ["tpm"]);
    let other = |amount| limiter.acquire("e-2", "gpt-4").limits(&limits).take("rpm", amount);
    let all = |amount, wait| {
        let one = ask(&limiter, &limits, &[("rpm", 5)]);
        limiter.acquire_all([one, other(amount)]).queue_up_to(wait)
    };
    let _ = all(60, secs(30)).send_now().await.unwrap().granted().unwrap();
    let from = fleet.now();
    let grants = all(20, secs(30)).send().await.unwrap().granted().unwrap();
    assert_eq!((grants.starts_at(), fleet.now().since(from).0), (Some(fleet.now()), 20_000));
    let before = fleet.bucket().await.limits["rpm"].available;
    assert!(all(60, secs(30)).send_now().await.unwrap().denied().is_some());
    fleet.clock.advance(millis(1)).await;
    assert_eq!(fleet.bucket().await.limits["rpm"].available, before, "the others roll back");
}

/// What is refused: before anything is sent, with its reason.
#[tokio::test(start_paused = true)]
async fn what_cannot_queue_is_refused_before_anything_is_sent() {
    let (fleet, [limiter]) = Fleet::of().await;
    let prefetch = |builder: Builder| builder.prefetch("gpt-4", Prefetch::default());
    let prefetching = fleet.limiter_with(prefetch).await;
    let month = Limit::quota("month", 100, Every::month()).unwrap();
    let limits = [rpm(60), slots(4), month];
    let request = |limit: &str| ask(&limiter, &limits, &[(limit, 1)]).queue_up_to(secs(30));
    let refused = [
        (request("rpm").queue_up_to(Duration::ZERO), "1ms to 1h, got 0"),
        (request("rpm").queue_up_to(HOUR + millis(1)), "1ms to 1h, got 1h"),
        (request("rpm").wait_up_to(secs(1)), "wait_up_to"),
        (request("rpm").bypass(), "bypass"),
        (request("rpm").into_debt(), "into_debt"),
        (ask(&limiter, &limits, &[]).take_up_to("rpm", 1, 2).queue_up_to(secs(1)), "take_up_to"),
        (request("slots"), "\"slots\" has slots"),
        (request("month"), "\"month\" has a quota"),
        (ask(&prefetching, &limits, &[("rpm", 1)]).queue_up_to(secs(30)), "prefetch"),
    ];
    let _ = fleet.dynamo.take_requests();
    for (request, named) in refused {
        let error = request.send().await.unwrap_err();
        assert!(
            matches!(error, Error::Invalid(_)) && error.to_string().contains(named),
            "{error}: {named}"
        );
    }
    let own = [request("rpm"), ask(&limiter, &limits, &[("rpm", 1)])];
    let both = limiter.acquire_all([ask(&limiter, &limits, &[("rpm", 1)])]);
    for request in [limiter.acquire_all(own), both.queue_up_to(secs(1)).wait_up_to(secs(1))] {
        let error = request.send().await.unwrap_err().to_string();
        assert!(error.contains("queue_up_to"), "{error}");
    }
    assert_eq!(fleet.dynamo.take_requests(), 0);
    let never = request("rpm").take("tpm", 601);
    let limits = [rpm(60), tpm(600)];
    assert!(matches!(never.limits(&limits).send().await.unwrap(), Decision::NeverFits(_)));
}

/// Soft limits, shadow limits and requests in shadow mode delay nothing.
#[tokio::test(start_paused = true)]
async fn limits_that_do_not_deny_are_no_part_of_the_line() {
    let (_, [limiter]) = Fleet::of().await;
    for mode in [LimitMode::Soft, LimitMode::Shadow] {
        let limits = [rpm(60).in_mode(mode), tpm(600)];
        let request = || ask(&limiter, &limits, &[("rpm", 60), ("tpm", 1)]).queue_up_to(secs(30));
        for _ in 0..2 {
            let grant = request().send_now().await.unwrap().granted().unwrap();
            assert_eq!(grant.starts_in(), Duration::ZERO, "{mode:?}");
        }
    }
    let limits = [rpm(60)];
    let in_shadow = ask(&limiter, &limits, &[("rpm", 60)]).shadow().queue_up_to(secs(30));
    let grant = in_shadow.send_now().await.unwrap().granted().unwrap();
    assert_eq!((grant.starts_at(), grant.would_deny().is_some()), (None, true));
}

#[tokio::test(start_paused = true)]
async fn a_grant_without_the_table_starts_now() {
    let fleet = Fleet::new().await;
    let settings = |builder: Builder| builder.on_unavailable(OnUnavailable::Allow);
    let limiter = fleet.limiter_with(settings).await;
    let limits = [rpm(60)];
    let _ = granted(&limiter, &limits, &[("rpm", 60)]).await;
    fleet.fail_writes(Fault::LoseRequest);
    let request = ask(&limiter, &limits, &[("rpm", 1)]).queue_up_to(secs(30));
    let grant = taken(request).await;
    assert!(grant.degraded().is_some());
    assert_eq!(grant.starts_at(), None);
}

/// What is stopped before its start is not granted, and its tokens return.
#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_wait_for_a_start() {
    let (fleet, [operator]) = Fleet::of().await;
    let limiter = fleet.limiter_with(|builder| builder.config_ttl(secs(5))).await;
    let config = Config::of([rpm(60)]);
    let level = ConfigLevel::Resource("gpt-4".try_into().unwrap());
    set_config(&operator, &level, &config).await;
    let request = |amount| limiter.acquire("e-1", "gpt-4").take("rpm", amount);
    let _ = taken(request(60)).await;
    let queued = request(50).queue_up_to(HOUR).send();
    let stop = async {
        fleet.clock.advance(secs(1)).await;
        let entity = EntityId::new("e-1").unwrap();
        stop(&operator, &ConfigLevel::Entity(entity)).await;
    };
    let (decision, ()) = tokio::join!(queued, stop);
    assert!(matches!(decision.unwrap(), Decision::Disabled(_)));
    assert_eq!(fleet.tk_tc("rpm").await.1, 60_000);
}

/// I1: a shard with a line is split. The starts that were told have the refill of both halves.
#[tokio::test(start_paused = true)]
async fn i1_a_split_of_a_shard_with_a_line_admits_no_more() {
    let (fleet, [one, two]) = Fleet::of().await;
    let limits = [Limit::per_second("rpm", 20).unwrap()];
    let mut starts = vec![fleet.now(); 20];
    let _ = granted(&one, &limits, &[("rpm", 20)]).await;
    for _ in 0..20 {
        starts.push(queue(&one, &limits, 1, HOUR).await.starts_at().unwrap());
    }
    split(&one, &limits, 2).await;
    for _ in 0..40 {
        fleet.clock.advance(millis(50)).await;
        let decision = ask(&two, &limits, &[("rpm", 1)]).send().await.unwrap();
        starts.extend(decision.is_granted().then(|| fleet.now()));
    }
    assert!(starts.len() > 50, "the rate is used after the line");
    assert_never_above(&mut starts, 20);
}

/// A write requires no balance for an amount of 0, so a view of before the line may be used.
#[tokio::test(start_paused = true)]
async fn an_amount_of_0_starts_within_its_wait_whatever_the_line_is() {
    let (fleet, [one, two]) = Fleet::of().await;
    let limits = [rpm(60), Limit::per_second("tpm", 600).unwrap()];
    let _ = granted(&two, &limits, &[("rpm", 30), ("tpm", 600)]).await;
    fleet.clock.advance(millis(100)).await;
    let _ = granted(&one, &limits, &[("rpm", 30)]).await;
    let _ = queue(&one, &limits, 50, HOUR).await;
    let request = ask(&two, &limits, &[("rpm", 0), ("tpm", 5)]).queue_up_to(secs(2));
    let grant = request.send_now().await.unwrap().granted().unwrap();
    assert!(grant.starts_in() <= secs(2), "{:?}", grant.starts_in());
}

/// Time alone does not help an amount above the share of a shard: it does not queue.
#[tokio::test(start_paused = true)]
async fn a_request_of_which_a_part_never_starts_has_no_start() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let limits = [rpm(600)];
    split(&limiter, &limits, 4).await;
    let of = |entity, amount| limiter.acquire(entity, "gpt-4").limits(&limits).take("rpm", amount);
    let _ = taken(of("e-1", 500)).await;
    let _ = taken(of("e-2", 600)).await;
    let line = of("e-2", 300).queue_up_to(HOUR).send_now().await;
    assert!(line.unwrap().is_granted());
    let denied = async |parts: Vec<Acquire<'_>>| {
        let both = limiter.acquire_all(parts).queue_up_to(secs(10));
        match both.send_now().await.unwrap() {
            Decision::Denied(denied) => denied.starts_in,
            _ => panic!("it is not denied"),
        }
    };
    assert!(denied(vec![of("e-2", 30)]).await > Some(secs(30)));
    assert_eq!(denied(vec![of("e-1", 300)]).await, None);
    assert_eq!(denied(vec![of("e-1", 300), of("e-2", 30)]).await, None);
}
