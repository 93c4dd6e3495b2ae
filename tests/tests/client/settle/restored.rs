//! Grants restored from tokens, in another process than the one that acquired.

use std::collections::BTreeMap;
use weirgate_tests::fleet::taken;
use weirgate_tests::stored::{set_config, set_entity};

use weirgate::{
    Config, ConfigLevel, Error, Grant, Limit, LimitMode, OnUnavailable, Prefetch, RateLimiter,
    Settlement,
};
use weirgate_testkit::Fault;

use weirgate_tests::fleet::shards::split;
use weirgate_tests::fleet::{
    Fleet, ask, granted, leased, millis, pass, secs, settle, slots, tokens,
};
use weirgate_tests::sharded::run;
use weirgate_tests::stored::{child, configure, entity};

fn limits() -> [Limit; 2] {
    [Limit::per_day("tpd", 1_000).unwrap(), slots(4)]
}

/// I4: neither the token's origin nor a restored grant that is dropped releases the lease, and it
/// ends once.
#[tokio::test(start_paused = true)]
async fn i4_only_a_release_ends_a_restored_lease_and_only_once() {
    let (fleet, [one, other]) = Fleet::of().await;
    let grant = leased(&one, &limits(), &[("slots", 3)], secs(60)).await;
    let (id, until) = (grant.lease_id().unwrap().to_owned(), grant.expires_at());
    let token = grant.into_token();
    drop(other.restore_grant(&token).unwrap());
    tokio::time::sleep(secs(1)).await;
    assert_eq!(fleet.tk_tc("slots").await.0, 1_000, "still held");

    let mut grant = other.restore_grant(&token).unwrap();
    assert_eq!((grant.lease_id(), grant.expires_at()), (Some(&*id), until));
    assert_eq!(grant.renew(secs(120)).await.unwrap(), Settlement::Applied);
    assert!(grant.expires_at() > until);
    assert_eq!(grant.release().await.unwrap(), Settlement::Applied);
    assert_eq!(fleet.tk_tc("slots").await.0, 4_000);
    let again = other.restore_grant(&token).unwrap();
    assert_eq!(again.release().await.unwrap(), Settlement::LeaseGone);
    assert_eq!(fleet.tk_tc("slots").await.0, 4_000);
}

/// I4: the lease that was renewed for an hour ends with it, and the reconciler's `due`, which has moved
/// there, stays at or before its end.
#[tokio::test(start_paused = true)]
async fn i4_a_renewal_by_an_older_token_shortens_no_lease() {
    let (fleet, [one, other]) = Fleet::of().await;
    let table = fleet.dynamo.table().await;
    let restored = async |after| {
        pass(secs(after)).await;
        run(&table, fleet.now()).await.leases_restored
    };
    let lease = leased(&one, &limits(), &[("slots", 1)], secs(60)).await;
    let token = lease.into_token();
    let mut first = other.restore_grant(&token).unwrap();
    assert_eq!(first.renew(secs(3_600)).await.unwrap(), Settlement::Applied);
    let until = first.expires_at();
    assert_eq!(restored(61).await, 0);
    let mut second = one.restore_grant(&token).unwrap();
    assert_eq!(second.renew(secs(30)).await.unwrap(), Settlement::Applied);
    assert_eq!(second.expires_at(), until);
    assert_eq!(restored(31).await, 0);
    let bucket = fleet.bucket().await;
    assert_eq!(bucket.limits["slots"].available, tokens(3), "still held");
    assert_eq!(bucket.due_at, until);
    // The one that it was told of can be renewed further.
    assert_eq!(second.renew(secs(3_600)).await.unwrap(), Settlement::Applied);
    assert!(second.expires_at() > until);
    assert_eq!(first.renew(secs(1)).await.unwrap(), Settlement::Applied);
    assert_eq!(first.expires_at(), second.expires_at());
    assert_eq!(restored(3_600 - 61).await, 0);
    assert_eq!(restored(61 + 31).await, 1);
    assert_eq!(fleet.tk_tc("slots").await.0, 4_000);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_no_token_or_out_of_range_is_refused() {
    use weirgate_store::base64;
    let (_fleet, [limiter]) = Fleet::of().await;
    let token =
        leased(&limiter, &limits(), &[("tpd", 5), ("slots", 1)], secs(60)).await.into_token();
    let json = String::from_utf8(base64::decode(&token).unwrap()).unwrap();
    let refused = |token: &str| match limiter.restore_grant(token) {
        Err(Error::Invalid(text)) => text,
        other => panic!("{token}: {other:?}"),
    };
    for text in ["", "a token", "AAAA", "e30="] {
        assert!(refused(text).contains("not a grant token"), "{text}");
    }
    for (from, to, because) in [
        ("\"format\":1", "\"format\":2", "not a grant token"),
        ("\"namespace\":\"", "\"namespace\":\"x", "namespace"),
        ("\"tpd\":5000", "\"tpd\":-1", "amount"),
        ("\"tpd\":5000", "\"tpd\":9000000000000000000", "amount"),
        ("\"shards\":1", "\"shards\":65", "shard"),
        ("\"shard\":0", "\"shard\":1", "shard"),
        ("\"period_ms\":86400000", "\"period_ms\":0", "limit"),
        ("\"lease\":[\"", "\"lease\":[\"#", "lease"),
        ("]}]}]", "0]}]}]", "expiry"),
    ] {
        let changed = json.replacen(from, to, 1);
        assert_ne!(changed, json, "{json} has no {from}");
        let text = refused(&base64::encode(changed));
        assert!(text.contains(because), "{from} to {to}: {text}");
    }
    let _ = limiter.restore_grant(&token).unwrap();
}

/// The table is in the token, whatever the grant has.
#[tokio::test(start_paused = true)]
async fn a_token_of_another_table_or_namespace_is_refused() {
    use weirgate::testing::TestTable;
    use weirgate_store::base64;
    let own = TestTable::new().limiter().await;
    let (fleet, [other]) = Fleet::of().await;
    for takes in [vec![("tpd", 5)], vec![("tpd", 5), ("slots", 1)]] {
        for (from, to) in [(&own, &other), (&other, &own)] {
            let token = granted(from, &limits(), &takes).await.into_token();
            let refused = to.restore_grant(&token).unwrap_err().to_string();
            assert!(refused.contains("is of table"), "{refused}");
            assert!(refused.contains("use a limiter of the same table"), "{refused}");
            assert!(from.restore_grant(&token).is_ok());
        }
    }
    // A table has two names, and callers of other accounts use the ARN.
    let token = granted(&other, &limits(), &[("tpd", 5)]).await.into_token();
    let json = String::from_utf8(base64::decode(&token).unwrap()).unwrap();
    let arn = |name| format!("arn:aws:dynamodb:eu-west-1:111111111111:table/{name}");
    let of = |name: &str| base64::encode(json.replacen("\"weirgate\"", &format!("{name:?}"), 1));
    let by_arn = RateLimiter::builder("weirgate").table(fleet.dynamo.named(&arn("weirgate")).await);
    let by_arn = by_arn.build().await.unwrap();
    for (name, is_same) in [
        ("weirgate".to_owned(), true),
        (arn("weirgate"), true),
        (arn("other"), false),
        ("other".to_owned(), false),
        ("other/weirgate".to_owned(), false),
    ] {
        for limiter in [&other, &by_arn] {
            let restored = limiter.restore_grant(&of(&name));
            assert_eq!(restored.is_ok(), is_same, "{name}: {restored:?}");
        }
    }
    let staging = fleet.limiter_with(|builder| builder.namespace("staging")).await;
    let token = granted(&staging, &limits(), &[("tpd", 5)]).await.into_token();
    let refused = other.restore_grant(&token).unwrap_err().to_string();
    assert!(refused.contains("namespace \"staging\""), "{refused}");
}

/// One settlement writes a bounded number of items: a token of more parts is refused, and so is a
/// request that could get a grant of more, before it takes anything.
#[tokio::test(start_paused = true)]
async fn a_grant_has_a_bounded_number_of_parts_at_both_ends() {
    use weirgate_store::base64;
    let (fleet, [limiter]) = Fleet::of().await;
    let token = granted(&limiter, &limits(), &[("tpd", 5)]).await.into_token();
    let mut json: serde_json::Value =
        serde_json::from_slice(&base64::decode(&token).unwrap()).unwrap();
    let hold = json["holds"][0].clone();
    for (holds, parts, is_refused) in [
        (100, 10, false),
        (100, 11, true),
        (1, 1_024, false),
        (1, 1_025, true),
        (101, 1, true),
        (2, 600, true),
    ] {
        let mut many = hold.clone();
        many["parts"] = vec![hold["parts"][0].clone(); parts].into();
        json["holds"] = vec![many; holds].into();
        let restored = limiter.restore_grant(&base64::encode(json.to_string()));
        match restored {
            Ok(grant) => assert!(!is_refused && grant.parts() <= 1_024, "{holds} {parts}"),
            Err(Error::Invalid(_)) => assert!(is_refused, "{holds} {parts}"),
            Err(error) => panic!("{error}"),
        }
    }

    // A decision over 100 buckets is taken, and its tokens restore; one over 101 is refused.
    let config = Config::of(limits().to_vec());
    set_config(&limiter, &ConfigLevel::System, &config).await;
    for at in 1..=94 {
        let (id, parent) = (format!("c-{at}"), format!("c-{}", at - 1));
        set_entity(&limiter, &child(&id, &parent)).await;
    }
    let ask = |at: u32| limiter.acquire(&format!("c-{at}"), "gpt-4").take("tpd", 1);
    let both = limiter.acquire_all([ask(94), ask(4)]).send().await.unwrap();
    let mut parts = 0;
    for grant in both.granted().expect("100 buckets") {
        let grant = limiter.restore_grant(&grant.into_token()).unwrap();
        parts += grant.parts();
        let _ = grant.roll_back().await.unwrap();
    }
    assert_eq!(parts, 100);
    let _ = fleet.writes();
    let refused = limiter.acquire_all([ask(94), ask(5)]).send().await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("100 buckets at most"), "{refused}");
    assert_eq!(fleet.writes(), 0, "nothing is taken");
}

/// A misspelt limit is an error whatever else the request has: an entity without limits, one in
/// shadow mode, a parent, a restored grant.
#[tokio::test(start_paused = true)]
async fn a_misspelt_limit_is_an_error_beside_any_other_entity() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let system = Config::of(limits().to_vec());
    set_config(&limiter, &ConfigLevel::System, &system).await;
    let unlimited = Config { status: weirgate::ConfigStatus::Unlimited, ..Config::default() };
    set_config(&limiter, &ConfigLevel::Entity(entity("vip")), &unlimited).await;
    set_entity(&limiter, &child("vip", "team")).await;
    let ask = |entity: &str| limiter.acquire(entity, "gpt-4").take("tpd", 1);
    let kinds: [fn(weirgate::Acquire<'_>) -> weirgate::Acquire<'_>; 4] = [
        |ask| ask,
        |ask| ask.shadow(),
        |ask| ask.take("slots", 1).lease(secs(60)),
        |ask| ask.bypass(),
    ];
    for (others, kind) in [vec![], vec!["vip"], vec!["vip", "b"], vec!["b", "c"]]
        .iter()
        .flat_map(|others| kinds.map(|kind| (others, kind)))
    {
        for is_restored in [false, true] {
            let all = std::iter::once("a").chain(others.iter().copied());
            let requests = all.map(|entity| kind(ask(entity)));
            let grants = limiter.acquire_all(requests).send().await.unwrap().granted().unwrap();
            for mut grant in grants {
                if is_restored {
                    grant = limiter.restore_grant(&grant.into_token()).unwrap();
                }
                for limit in ["tdp", "tp", "tpdd", "rpm"] {
                    let calls = [
                        grant.adjust(limit, 3).await.map(drop),
                        grant.check_adjust(limit).map(drop),
                        grant.take_more(limit, 1).await.map(drop),
                        grant.give_back(limit, 0).await.map(drop),
                    ];
                    let is_invalid =
                        |call: &Result<(), Error>| matches!(call, Err(Error::Invalid(_)));
                    assert!(calls.iter().all(is_invalid), "{others:?} {limit}: {calls:?}");
                }
                let _ = grant.adjust("tpd", 2).await.unwrap();
                let _ = grant.roll_back().await.unwrap();
            }
        }
        for misspelt in [ask("a").take("tdp", 1), ask("a").take_up_to("tdp", 0, 1)] {
            let all = others.iter().map(|entity| kind(ask(entity))).chain([misspelt]);
            let refused = limiter.acquire_all(all.collect::<Vec<_>>()).send().await;
            assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        }
    }
    let refund = limiter.refund("a", "gpt-4").give_back("tdp", 1).send().await;
    assert!(matches!(refund, Err(Error::Invalid(_))), "{refund:?}");
}

/// What goes into debt is bounded by what refills, however it is reported.
#[tokio::test(start_paused = true)]
async fn no_report_goes_further_into_debt_than_a_month_refills() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let year = 365 * 86_400_000;
    for (limit, most) in [
        (Limit::per_second("r", 10).unwrap(), 25_920_000),
        (Limit::per_day("r", 1_000).unwrap(), 30_000),
        (Limit::per_day("r", 1_000).unwrap().with_burst(50_000).unwrap(), 100_000),
        (Limit::custom("r", 7, 7, year).unwrap(), 14),
        (Limit::per_second("r", 1_000_000_000_000).unwrap(), 1_000_000_000_000),
    ] {
        let resource = format!("r{most}");
        let ask =
            |limit: &Limit| limiter.acquire("e-1", &resource).limits(std::slice::from_ref(limit));
        let soft = limit.clone().in_mode(LimitMode::Soft);
        for amount in [most + 1, 999_999_999_999, 1_000_000_000_000] {
            if amount <= most {
                continue;
            }
            let refused = |error: Error| {
                let text = error.to_string();
                assert!(matches!(error, Error::Invalid(_)), "{text}");
                let most = match most {
                    1_000_000_000_000 => "10^12".to_owned(),
                    most => most.to_string(),
                };
                assert!(text.contains(&format!("0 to {most} tokens")), "{text}");
                assert!(text.contains(&format!("got {amount}")), "{text}");
            };
            refused(ask(&limit).take("r", amount).into_debt().send().await.unwrap_err());
            refused(ask(&soft).take("r", amount).send().await.unwrap_err());
            let mut grant = taken(ask(&limit).take("r", 1)).await;
            refused(grant.adjust("r", amount).await.unwrap_err());
            let mut restored = limiter.restore_grant(&grant.into_token()).unwrap();
            refused(restored.adjust("r", amount).await.unwrap_err());
            assert_eq!(restored.amount("r"), tokens(1));
            let _ = restored.roll_back().await.unwrap();
        }
        let _ = ask(&limit).take("r", most).into_debt().send().await.unwrap();
    }
}

/// Ways to a grant of 100 of `tpm`.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Plain,
    Leased,
    /// One shard does not have enough: the grant has parts of several.
    Split,
    SplitLeased,
    Prefetched,
    Bypass,
    /// The entity cascades to its parent, and both have limits.
    Cascaded,
    /// `tpm` is a soft limit, and in debt.
    Soft,
    /// `tpm` is a shadow limit, and exhausted: none is taken.
    Shadow,
    /// The request is in shadow mode, and granted.
    ShadowRequest,
    /// The table did not answer: none is taken.
    Degraded,
}

const KINDS: [Kind; 11] = [
    Kind::Plain,
    Kind::Leased,
    Kind::Split,
    Kind::SplitLeased,
    Kind::Prefetched,
    Kind::Bypass,
    Kind::Cascaded,
    Kind::Soft,
    Kind::Shadow,
    Kind::ShadowRequest,
    Kind::Degraded,
];

async fn of_kind(kind: Kind, fleet: &Fleet) -> (RateLimiter, Grant) {
    let mut limits = vec![Limit::per_day("tpm", 120).unwrap(), slots(40)];
    let mut builder = fleet.builder().await;
    match kind {
        Kind::Prefetched => {
            limits[0] = Limit::per_day("tpm", 100_000_000).unwrap();
            builder = builder.prefetch("gpt-4", Prefetch::default());
        }
        Kind::Soft => limits[0] = limits[0].clone().in_mode(LimitMode::Soft),
        Kind::Shadow => limits[0] = limits[0].clone().in_mode(LimitMode::Shadow),
        Kind::Degraded => builder = builder.on_unavailable(OnUnavailable::Allow),
        _ => {}
    }
    let limiter = builder.build().await.unwrap();
    let mut request = ask(&limiter, &limits, &[("tpm", 100)]);
    match kind {
        Kind::Plain => {}
        Kind::Leased => request = request.take("slots", 2).lease(secs(60)),
        Kind::Split => split(&limiter, &limits, 4).await,
        Kind::SplitLeased => {
            split(&limiter, &limits, 4).await;
            request = request.take("slots", 2).lease(secs(60));
        }
        Kind::Prefetched => {
            while limiter.stats().prefetch_hits == 0 {
                let _ = granted(&limiter, &limits, &[("tpm", 1)]).await;
                pass(millis(1)).await;
            }
        }
        Kind::Bypass => request = request.bypass(),
        Kind::ShadowRequest => request = request.shadow(),
        Kind::Degraded => fleet.fail_reads(Fault::ServerError),
        Kind::Cascaded => {
            set_entity(&limiter, &child("e-1", "team")).await;
            let level = ConfigLevel::Entity(entity("team"));
            configure(&limiter, &level, limits).await;
        }
        Kind::Soft | Kind::Shadow => {
            let _ = granted(&limiter, &limits, &[("tpm", 90)]).await;
        }
    }
    let grant = taken(request).await;
    fleet.fail_reads(None);
    (limiter, grant)
}

/// How a grant settles before it is released.
#[derive(Debug, Clone, Copy)]
enum Step {
    AdjustDown,
    AdjustUp,
    GiveBack,
    TakeMore,
    /// More than there is, which shadow mode waives.
    TakeTooMuch,
    Renew,
    Release,
    ReleaseWith,
    RollBack,
}

const STEPS: [Step; 9] = [
    Step::AdjustDown,
    Step::AdjustUp,
    Step::GiveBack,
    Step::TakeMore,
    Step::TakeTooMuch,
    Step::Renew,
    Step::Release,
    Step::ReleaseWith,
    Step::RollBack,
];

/// Settles, and returns all that the grant answers.
async fn settled(step: Step, mut grant: Grant) -> String {
    let answer = match step {
        Step::AdjustDown => format!("{:?}", grant.adjust("tpm", 30).await),
        Step::AdjustUp => format!("{:?}", grant.adjust("tpm", 150).await),
        Step::GiveBack => format!("{:?}", grant.give_back("tpm", 40).await),
        Step::TakeMore | Step::TakeTooMuch => {
            let more = if matches!(step, Step::TakeMore) { 10 } else { 30 };
            let decision = grant.take_more("tpm", more).await;
            format!("{:?}", decision.map(|decision| decision.is_granted()))
        }
        Step::Renew => format!("{:?}", grant.renew(secs(90)).await),
        Step::Release => String::new(),
        Step::ReleaseWith => {
            let (actual, back) = ([("tpm", tokens(60))], [("tpm", tokens(20))]);
            return format!("{:?}", grant.release_with(&actual, &back).await);
        }
        Step::RollBack => return format!("{:?}", grant.roll_back().await),
    };
    let (amount, until) = (grant.amount("tpm"), grant.expires_at());
    format!("{answer} {amount} {until:?} {:?}", grant.release().await)
}

/// Sums over the shards of each bucket: balances, consumption, acquires, leases. A random shard is
/// asked first, so the shards one by one differ.
pub(crate) fn sums(fleet: &Fleet) -> BTreeMap<String, i64> {
    let mut sums = BTreeMap::new();
    for item in fleet.dynamo.items() {
        let Some(bucket) = item["PK"]["S"].as_str().filter(|_| item["SK"]["S"] == "#STATE") else {
            continue;
        };
        let bucket = bucket.rsplit_once('#').unwrap().0;
        for (name, value) in item.as_object().unwrap() {
            let counts = name == "takes" || name.ends_with("_tk") || name.ends_with("_tc");
            let value = match name.as_str() {
                "h" => i64::try_from(value["M"].as_object().unwrap().len()).unwrap(),
                _ if counts => value["N"].as_str().unwrap().parse().unwrap(),
                _ => continue,
            };
            *sums.entry(format!("{bucket} {name}")).or_default() += value;
        }
    }
    sums
}

/// However a grant was taken, its token settles in another process as the grant itself would.
#[tokio::test(start_paused = true)]
async fn a_token_settles_as_its_grant_whatever_kind_it_is() {
    for kind in KINDS {
        for step in STEPS {
            let mut outcomes = vec![];
            for by_token in [false, true] {
                let fleet = Fleet::new().await;
                let (limiter, mut grant) = of_kind(kind, &fleet).await;
                let is_waived = matches!(kind, Kind::Shadow | Kind::Degraded);
                let amount = tokens(if is_waived { 0 } else { 100 });
                assert_eq!(grant.amount("tpm"), amount, "{kind:?}");
                if by_token {
                    let other = fleet.limiter().await;
                    grant = other.restore_grant(&grant.into_token()).unwrap();
                }
                let answer = settled(step, grant).await;
                // What was prefetched and not used goes back.
                limiter.shutdown().await.unwrap();
                settle().await;
                outcomes.push((answer, sums(&fleet)));
            }
            assert_eq!(outcomes[0], outcomes[1], "{kind:?}, {step:?}");
        }
    }
}
