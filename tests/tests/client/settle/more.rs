//! More of a limit within a grant, and a part of it given back.

use weirgate::{Decision, Error, Grant, Limit, LimitMode, OnUnavailable, Settlement};
use weirgate_testkit::Fault;
use weirgate_tests::stored::set_entity;

use super::restored::sums;
use weirgate_tests::fleet::{
    Fleet, ask, granted, leased, pass, secs, settle, slots, taken, tokens, tpm,
};
use weirgate_tests::stored::{child, configure, configured, of_entity, rpm};

fn limits() -> [Limit; 3] {
    [rpm(60), tpm(600), slots(4)]
}

async fn more(grant: &mut Grant, limit: &str, tokens: i64) -> Decision<()> {
    grant.take_more(limit, tokens).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn more_is_taken_with_one_write_or_denied_and_is_the_same_acquire() {
    let (fleet, [limiter]) = Fleet::of().await;
    let mut grant = granted(&limiter, &limits(), &[("rpm", 1), ("tpm", 400)]).await;
    fleet.writes();
    assert!(more(&mut grant, "tpm", 150).await.is_granted());
    assert_eq!((fleet.writes(), grant.amount("tpm")), (1, tokens(550)));
    assert_eq!(fleet.tk_tc("tpm").await, (50_000, 550_000));
    assert_eq!(fleet.bucket().await.acquires.total, 1, "one acquire");
    let Decision::Denied(denied) = more(&mut grant, "tpm", 60).await else {
        panic!("50 are left");
    };
    assert_eq!(denied.retry_after, Some(secs(1)));
    assert_eq!(fleet.tk_tc("tpm").await, (50_000, 550_000));
    let Decision::NeverFits(never) = more(&mut grant, "tpm", 601).await else {
        panic!("601 of 600");
    };
    assert_eq!(never.capacity, tokens(600));
    // The total is adjusted, and returned, as one.
    assert_eq!(grant.adjust("tpm", 500).await.unwrap(), Settlement::Applied);
    assert_eq!(fleet.tk_tc("tpm").await, (100_000, 500_000));
    assert_eq!(grant.roll_back().await.unwrap(), Settlement::Applied);
    assert_eq!(fleet.tk_tc("tpm").await, (600_000, 0));
    assert_eq!(fleet.bucket().await.acquires.total, 1);
}

#[tokio::test(start_paused = true)]
async fn more_under_a_lease_is_held_and_returned_with_it() {
    let (fleet, [limiter]) = Fleet::of().await;
    let mut grant = leased(&limiter, &limits(), &[("slots", 1), ("tpm", 100)], secs(30)).await;
    pass(secs(10)).await;
    assert!(more(&mut grant, "slots", 2).await.is_granted());
    assert!(more(&mut grant, "tpm", 50).await.is_granted());
    let until = grant.expires_at();
    let leases = limiter.admin().leases("e-1", "gpt-4").await.unwrap().items;
    assert!(leases.iter().all(|lease| Some(lease.expires_at) == until), "{leases:?}");
    assert_eq!(grant.renew(secs(60)).await.unwrap(), Settlement::Applied);
    assert!(!more(&mut grant, "slots", 2).await.is_granted());
    assert_eq!(fleet.bucket().await.limits["slots"].available, tokens(1));
    assert_eq!(grant.release().await.unwrap(), Settlement::Applied);
    assert_eq!(fleet.bucket().await.limits["slots"].available, tokens(4));
    assert_eq!(limiter.admin().leases("e-1", "gpt-4").await.unwrap().items, []);
    // A holder that dies.
    let mut grant = leased(&limiter, &limits(), &[("slots", 1)], secs(30)).await;
    assert!(more(&mut grant, "slots", 3).await.is_granted());
    std::mem::forget(grant);
    pass(secs(31)).await;
    let _ = granted(&limiter, &limits(), &[("slots", 4)]).await;
}

#[tokio::test(start_paused = true)]
async fn more_is_taken_from_every_bucket_of_the_grant_or_from_none() {
    let fleet = Fleet::new().await;
    let limiter = configured(&fleet, &weirgate::ConfigLevel::System, [rpm(10)]).await;
    set_entity(&limiter, &child("e-1", "team")).await;
    let take = |entity: &str, amount| limiter.acquire(entity, "gpt-4").take("rpm", amount).send();
    let mut grant = take("e-1", 1).await.unwrap().granted().unwrap();
    let _other = take("team", 6).await.unwrap();
    assert!(more(&mut grant, "rpm", 2).await.is_granted());
    assert!(!more(&mut grant, "rpm", 2).await.is_granted(), "the team has 1");
    pass(secs(1)).await;
    let left = limiter.peek("e-1", "gpt-4").send().await.unwrap();
    let left: Vec<_> = left.limits.iter().map(|limit| limit.available.whole_tokens()).collect();
    assert_eq!(left, [7, 1]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_taken_or_given_back_is_refused_with_the_remedy() {
    let (fleet, [limiter]) = Fleet::of().await;
    let says = |error: Error, text: &str| {
        assert!(matches!(&error, Error::Invalid(said) if said.contains(text)), "{error}");
    };
    let mut grant = granted(&limiter, &limits(), &[("rpm", 3)]).await;
    says(grant.take_more("cpm", 1).await.unwrap_err(), "limit \"cpm\" is not among");
    says(grant.take_more("slots", 1).await.unwrap_err(), "the grant has no lease");
    says(grant.take_more("rpm", -1).await.unwrap_err(), "0 to 10^12");
    // The item keeps a limit that this request did not bring.
    let mut fewer = granted(&limiter, &limits()[..1], &[("rpm", 1)]).await;
    says(
        fewer.take_more("tpm", 1).await.unwrap_err(),
        "limit \"tpm\" is not among the limits of this acquire",
    );
    let _ = fewer.roll_back().await.unwrap();
    says(
        grant.give_back("rpm", 4).await.unwrap_err(),
        "grant holds 3 of \"rpm\", 4 were to be given back",
    );
    assert_eq!(grant.give_back("rpm", 2).await.unwrap(), Settlement::Applied);
    assert_eq!((grant.amount("rpm"), fleet.tk_tc("rpm").await), (tokens(1), (59_000, 1_000)));
    let mut late = leased(&limiter, &limits(), &[("rpm", 1), ("slots", 2)], secs(5)).await;
    assert_eq!(late.give_back("slots", 1).await.unwrap(), Settlement::Applied);
    assert_eq!(fleet.bucket().await.limits["slots"].available, tokens(3));
    pass(secs(5)).await;
    says(late.take_more("rpm", 1).await.unwrap_err(), "the lease of this grant has expired");
    let away = fleet.limiter_with(|builder| builder.on_unavailable(OnUnavailable::Allow)).await;
    fleet.dynamo.fail_reads(|_, _| Some(Fault::ServerError));
    let mut degraded = granted(&away, &limits(), &[("rpm", 1)]).await;
    says(degraded.take_more("rpm", 1).await.unwrap_err(), "made without the table");
}

/// A request whose response is lost takes once, as an acquire does.
#[tokio::test(start_paused = true)]
async fn i7_more_is_taken_once_whatever_becomes_of_the_response() {
    for fault in [Fault::LoseAnswer, Fault::LoseRequest, Fault::ServerErrorApplied] {
        let (fleet, [limiter]) = Fleet::of().await;
        let mut grant = granted(&limiter, &limits(), &[("tpm", 100)]).await;
        fleet.fail(&[fault]);
        assert!(more(&mut grant, "tpm", 50).await.is_granted());
        assert_eq!(fleet.tk_tc("tpm").await.1, 150_000, "{fault:?}");
        fleet.fail(&[]);
        // A call that is dropped returns what it took.
        let fleet = Fleet::slow(secs(1)).await;
        let limiter = fleet.limiter().await;
        let mut grant = granted(&limiter, &limits(), &[("tpm", 100)]).await;
        let half = std::time::Duration::from_millis(500);
        let dropped = tokio::time::timeout(half, grant.take_more("tpm", 50)).await;
        assert!(dropped.is_err());
        pass(secs(10)).await;
        assert_eq!(fleet.tk_tc("tpm").await.1, 100_000);
        let _ = ask(&limiter, &limits(), &[("tpm", 1)]).send().await.unwrap();
    }
}

/// The decision for outages is for acquires: only the table takes more of a grant.
#[tokio::test(start_paused = true)]
async fn i1_more_is_not_granted_without_the_table_whatever_is_stored() {
    let local = OnUnavailable::Local { percent: 10 };
    for stored in [OnUnavailable::Allow, OnUnavailable::Deny, local] {
        for is_shadow in [false, true] {
            let (fleet, [operator]) = Fleet::of().await;
            let store = operator.admin().store_on_unavailable(Some(stored));
            store.send().await.unwrap();
            let build = |builder: weirgate::Builder| {
                let timeout = std::time::Duration::from_millis(200);
                builder.shadow(is_shadow).timeout(timeout)
            };
            let limiter = fleet.limiter_with(build).await;
            let mut grant = granted(&limiter, &limits(), &[("tpm", 100)]).await;
            fleet.fail_writes(Fault::ServerError);
            fleet.fail_reads(Fault::ServerError);
            let acquire = ask(&limiter, &limits(), &[("tpm", 1)]).send().await;
            assert!(acquire.is_ok(), "the stored decision is in force");
            for _ in 0..2 {
                let more = grant.take_more("tpm", 50).await;
                let error = more.expect_err("nothing was taken");
                assert!(error.is_transient(), "{stored:?}: {error}");
                assert_eq!(grant.amount("tpm"), tokens(100));
            }
        }
    }
}

/// I1, I3, I4: what is denied leaves every balance, every lease and all usage as they were, whatever the
/// modes of the limits are and wherever the denial comes from; and what is taken more is returned whole.
#[tokio::test(start_paused = true)]
async fn i1_more_that_is_denied_or_given_back_leaves_nothing_behind() {
    let modes = [LimitMode::Enforced, LimitMode::Shadow, LimitMode::Soft];
    let modes = modes.iter().flat_map(|kid| modes.map(|team| (*kid, team)));
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    for ((kid, team), (is_leased, is_restored)) in
        modes.flat_map(|modes| ways.map(|way| (modes, way)))
    {
        let name = format!("{kid:?} below {team:?}, leased {is_leased}, restored {is_restored}");
        let (fleet, [limiter]) = Fleet::of().await;
        set_entity(&limiter, &child("kid", "team")).await;
        let year = 365 * 86_400_000;
        for (of, mode, most) in [("kid", kid, 10), ("team", team, 100), ("alone", kid, 10)] {
            let limits = [("rpm", most, mode), ("tpm", 1_000, LimitMode::Enforced)];
            let limits = limits.map(|(name, most, mode)| {
                Limit::custom(name, most, 1, year).unwrap().in_mode(mode)
            });
            configure(&limiter, &of_entity(of), limits.to_vec()).await;
        }
        let one = |entity: &str| {
            let ask = limiter.acquire(entity, "gpt-4").take("rpm", 6);
            let ask = ask.take("tpm", 100);
            if is_leased { ask.lease(secs(3_600)) } else { ask }
        };
        let both = limiter.acquire_all([one("kid"), one("alone")]).send().await;
        let both = both.unwrap().granted().unwrap().into_iter();
        let mut grants: Vec<_> = both
            .map(|grant| match is_restored {
                true => limiter.restore_grant(&grant.into_token()).unwrap(),
                false => grant,
            })
            .collect();
        let all = |grants: &[Grant]| -> Vec<_> { grants.iter().map(Grant::amounts).collect() };
        let before = (sums(&fleet), all(&grants));
        // One limit of each is there, or waived, and another one is short.
        for more in [
            [(0, "rpm", 3), (0, "tpm", 950)],
            [(0, "rpm", 5), (0, "tpm", 950)],
            [(0, "rpm", 3), (1, "tpm", 950)],
            [(1, "rpm", 5), (0, "tpm", 950)],
            [(1, "rpm", 5), (1, "tpm", 1_001)],
        ] {
            for _ in 0..2 {
                let decision = Grant::take_more_of(&mut grants, &more).await.unwrap();
                assert!(!decision.is_granted(), "{name}: {more:?}");
                settle().await;
                let after = (sums(&fleet), all(&grants));
                assert_eq!(after, before, "{name}: {more:?}");
            }
        }
        let more = [(0, "rpm", 5), (0, "tpm", 50)];
        let decision = Grant::take_more_of(&mut grants, &more).await.unwrap();
        assert_eq!(decision.is_granted(), kid != LimitMode::Enforced, "{name}");
        if decision.is_granted() {
            assert_eq!(grants[0].amount("rpm"), tokens(11), "{name}: the team gave it");
            let _ = grants[0].give_back("tpm", 50).await.unwrap();
            let _ = grants[0].give_back("rpm", 5).await.unwrap();
            assert_eq!(all(&grants), before.1, "{name}");
            let mut after = sums(&fleet);
            // The leases of what was taken more are empty, and end with the others.
            after.retain(|name, _| !name.ends_with(" h"));
            after.iter().for_each(|(key, sum)| assert_eq!(before.0[key], *sum, "{name}: {key}"));
        }
        for grant in grants {
            let _ = grant.roll_back().await.unwrap();
        }
        for (key, left) in sums(&fleet) {
            let full = match key.rsplit_once(' ').unwrap() {
                (bucket, "b_rpm_tk") if bucket.contains("#team#") => 100_000,
                (_, "b_rpm_tk") => 10_000,
                (_, "b_tpm_tk") => 1_000_000,
                (_, "h" | "b_rpm_tc" | "b_tpm_tc") => 0,
                _ => continue,
            };
            assert_eq!(left, full, "{name}: {key}");
        }
    }
}

/// A release with amounts is one write under a lease, and repeating it, or a part of it, by the old text
/// changes nothing in the buckets without a lease.
#[tokio::test(start_paused = true)]
async fn i7_a_token_that_is_settled_again_counts_once_in_every_bucket() {
    for steps in [
        vec!["adjust", "release_with"],
        vec!["adjust", "adjust", "release_with"],
        vec!["adjust", "give_back", "roll_back"],
        vec!["release_with", "release_with", "roll_back"],
        vec!["give_back", "adjust", "roll_back"],
    ] {
        let (fleet, [limiter]) = Fleet::of().await;
        set_entity(&limiter, &child("kid", "team")).await;
        let year = 365 * 86_400_000;
        let tpm = Limit::custom("tpm", 1_000, 1, year).unwrap();
        configure(&limiter, &of_entity("kid"), vec![tpm.clone(), slots(4)]).await;
        configure(&limiter, &of_entity("team"), vec![tpm]).await;
        let ask = limiter.acquire("kid", "gpt-4").take("slots", 1);
        let token = taken(ask.take("tpm", 400)).await.into_token();
        for (at, step) in steps.iter().enumerate() {
            let mut grant = limiter.restore_grant(&token).unwrap();
            fleet.writes();
            let _ = match *step {
                "adjust" => grant.adjust("tpm", 300).await.unwrap(),
                "give_back" => grant.give_back("tpm", 100).await.unwrap(),
                "roll_back" => grant.roll_back().await.unwrap(),
                _ => grant.release_with(&[("tpm", tokens(300))], &[]).await.unwrap(),
            };
            if at == 0 {
                assert_eq!(fleet.writes(), 2, "{step}: one for each bucket");
            }
            let sums = sums(&fleet);
            let team =
                sums.iter().find(|(key, _)| key.contains("#team#") && key.ends_with("tpm_tk"));
            assert_eq!(*team.unwrap().1, 700_000, "{steps:?}, {at}");
        }
    }
}
