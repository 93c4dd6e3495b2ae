//! Limits told to HTTP clients: whatever a limit's state, a client that follows the standards reads
//! it right.

use crate::fixtures::fleet;
use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use sfv::{BareItem, Key, List, ListEntry, Parser};
use weirgate::http::{Policies, PolicyNames, Problem};
use weirgate::{
    Degraded, Denied, Disabled, EntityId, EpochMillis, Error, Limit, LimitMode, LimitStatus,
    MilliTokens, NeverFits, Resource,
};
use weirgate_shared::{RefillRule, ShardIndex, parse_iso8601, refill_between};

/// The largest integer of a structured field.
const MOST: i64 = 999_999_999_999_999;

fn status(
    limit: &str,
    rule: RefillRule,
    available: i64,
    requested: i64,
    retry_after: Option<Duration>,
) -> LimitStatus {
    LimitStatus {
        entity: EntityId::new("user-1").unwrap(),
        resource: Resource::new("gpt-4").unwrap(),
        limit: limit.to_owned(),
        mode: LimitMode::Enforced,
        capacity: rule.capacity,
        refill_amount: rule.refill_amount,
        refill_period: Duration::from_millis(rule.refill_period_ms.try_into().unwrap()),
        available: MilliTokens(available),
        requested: MilliTokens(requested),
        is_requested: requested > 0,
        retry_after,
        paused_for: None,
        window: None,
        window_end: None,
        resets_in: None,
    }
}

fn of(limit: &Limit, available: i64, requested: i64, retry_after_ms: Option<u64>) -> LimitStatus {
    let retry_after = retry_after_ms.map(Duration::from_millis);
    status(limit.name().as_str(), *limit.rule(), available, requested, retry_after)
}

fn rpm() -> Limit {
    Limit::per_minute("rpm", 600).unwrap()
}

fn slots() -> Limit {
    Limit::concurrent("slots", 20).unwrap()
}

fn denied(limits: Vec<LimitStatus>, retry_after_ms: Option<u64>) -> Denied {
    Denied {
        retry_after: retry_after_ms.map(Duration::from_millis),
        starts_in: None,
        limits,
        degraded: None,
        missing_plan: None,
    }
}

fn told(limits: &[LimitStatus]) -> [String; 2] {
    let policies = Policies::granted(limits, &PolicyNames::default());
    [policies.rate_limit_policy(), policies.rate_limit()]
}

fn told_of(denied: &Denied) -> Vec<(&'static str, String)> {
    Policies::denied(denied, &PolicyNames::default()).fields()
}

#[test]
fn a_grant_tells_what_is_left_and_when_there_is_more() {
    assert_eq!(
        told(&[of(&rpm(), 599_000, 0, Some(0)), of(&slots(), 17_000, 0, Some(0))]),
        [
            r#""rpm";q=600;w=60, "slots";q=20;qu="concurrent-requests""#,
            r#""rpm";r=599;t=60, "slots";r=17"#
        ]
    );
    let slow = Limit::custom("slow", 100, 3, 70_000).unwrap();
    // Two and a half tokens are missing to the next whole one, at one in 23.3 s.
    assert_eq!(
        told(&[of(&slow, -1_500, 0, None)]),
        [r#""slow";q=100;w=2334"#, r#""slow";r=0;t=59"#]
    );
    assert_eq!(
        told(&[of(&slow, 100_000, 0, None)])[1],
        r#""slow";r=100;t=2334"#,
        "what is left refills in that time"
    );
    assert_eq!(
        Policies::granted(&[], &PolicyNames::default()).fields(),
        [],
        "an empty list is not sent"
    );
}

#[test]
fn a_denial_tells_when_what_was_asked_is_there_and_retry_after_agrees() {
    let day = Limit::per_day("rpd", 1_000).unwrap();
    let limits = vec![of(&rpm(), 3_500, 10_000, Some(650)), of(&day, 10_000, 10_000, Some(0))];
    let fields = told_of(&denied(limits, Some(650)));
    let [_, limit, after] = &fields[..] else { panic!("{fields:?}") };
    // Another of the thousand a day is 86 s away, but it is not what the client waits for.
    assert_eq!(limit.1, r#""rpm";r=3;t=1, "rpd";r=10"#);
    assert_eq!(after, &("retry-after", "1".to_owned()));
    let at_once = told_of(&denied(vec![of(&rpm(), 0, 1_000, Some(0))], Some(0)));
    assert_eq!(at_once[2].1, "1", "a client that is told 0 comes back in a loop");
    let forever = told_of(&denied(vec![of(&slots(), 0, 1_000, None)], None));
    assert_eq!(forever.len(), 2, "no time is told where time alone does not help: {forever:?}");
}

#[test]
fn a_quota_tells_the_length_of_its_window_and_the_time_to_its_end() {
    let quota = |text: &str, requested: i64, end: Option<(&str, u64)>| {
        let limit: Limit = text.parse().unwrap();
        let end = end.map(|(at, left)| (parse_iso8601(at).unwrap(), Duration::from_millis(left)));
        LimitStatus {
            refill_period: Duration::ZERO,
            window: limit.rule().window_code(),
            window_end: end.map(|(at, _)| at),
            resets_in: end.map(|(_, left)| left),
            retry_after: end.map(|(_, left)| left),
            ..status("rpd", *Limit::concurrent("rpd", 10).unwrap().rule(), 6_120, requested, None)
        }
    };
    let month = |requested| {
        let end = Some(("2026-03-01T00:00:00Z", 1_500));
        quota("rpd=quota:10/month", requested, end)
    };
    let told = |status: LimitStatus| told(&[status]);
    // February has 28 days, and March loses an hour in Berlin.
    for (text, end, policy) in [
        ("rpd=quota:10/month", "2026-03-01T00:00:00Z", 28 * 86_400),
        ("rpd=quota:10/month,tz=Europe/Berlin", "2026-03-31T22:00:00Z", 31 * 86_400 - 3_600),
        ("rpd=session:10/5h", "2026-03-31T22:00:00Z", 5 * 3_600),
    ] {
        let told = told(quota(text, 0, Some((end, 1_500))));
        assert_eq!(told[0], format!(r#""rpd";q=10;w={policy}"#));
        assert_eq!(told[1], r#""rpd";r=6;t=2"#);
    }
    let unused = told(quota("rpd=session:10/5h", 0, None));
    assert_eq!(unused, [r#""rpd";q=10;w=18000"#, r#""rpd";r=6"#]);
    let short = told_of(&denied(vec![month(7_000)], Some(1_500)));
    assert_eq!(short[1].1, r#""rpd";r=6;t=2"#);
    assert_eq!(short[2], ("retry-after", "2".to_owned()));
}

#[test]
fn a_shadow_limit_is_not_told_and_a_soft_one_is() {
    let shadow = LimitStatus { mode: LimitMode::Shadow, ..of(&rpm(), 0, 0, None) };
    let soft = LimitStatus { mode: LimitMode::Soft, ..of(&slots(), -1_000, 0, None) };
    assert_eq!(told(&[shadow.clone(), soft.clone()])[1], r#""slots";r=0"#);
    let why = denied(
        vec![shadow, soft, of(&Limit::per_day("rpd", 1).unwrap(), 0, 1_000, Some(9))],
        Some(9),
    );
    assert_eq!(told_of(&why)[1].1, r#""slots";r=0, "rpd";r=0;t=1"#);
    assert_eq!(
        body(&Problem::denied(&why, &PolicyNames::default()))["violated-policies"],
        json!(["rpd"])
    );
}

#[test]
fn a_limit_that_does_not_count_requests_has_its_unit() {
    let policy = |name: &str, names: &PolicyNames| {
        let limit = Limit::per_minute(name, 9).unwrap();
        Policies::granted(&[of(&limit, 9_000, 0, None)], names).rate_limit_policy()
    };
    for (name, unit) in [
        ("tpm", r#";qu="tokens""#),
        ("output_tokens", r#";qu="tokens""#),
        ("TPD-input", r#";qu="tokens""#),
        ("egress.bytes", r#";qu="content-bytes""#),
        ("rpm", ""),
        ("tpmx", ""),
        ("calls", ""),
    ] {
        let policy = policy(name, &PolicyNames::default());
        assert_eq!(policy, format!("\"{name}\";q=9{unit};w=60"));
    }
    let rows = PolicyNames::default().units(|limit| (limit == "rpm").then_some("a \"row\"\n"));
    assert_eq!(policy("rpm", &rows), r#""rpm";q=9;qu="a \"row\"_";w=60"#);
    assert_eq!(policy("tpm", &rows), r#""tpm";q=9;w=60"#);
}

#[test]
fn x_rate_limit_is_of_the_strictest_limit() {
    let tight = of(&slots(), 1_000, 0, None);
    let fields = |limits: &[LimitStatus]| {
        Policies::granted(limits, &PolicyNames::default())
            .with_x_rate_limit(true)
            .fields()
            .split_off(2)
    };
    let owned = |name, value: &str| (name, value.to_owned());
    assert_eq!(
        fields(&[of(&rpm(), 599_000, 0, None), tight]),
        [owned("x-ratelimit-limit", "20"), owned("x-ratelimit-remaining", "1")]
    );
    assert_eq!(fields(&[of(&rpm(), 599_000, 0, None)])[2], owned("x-ratelimit-reset", "60"));
    // The one in the way, though the other has less left.
    let why = denied(
        vec![of(&rpm(), 0, 0, Some(0)), of(&slots(), 5_000, 6_000, Some(7_001))],
        Some(7_001),
    );
    let fields = Policies::denied(&why, &PolicyNames::default())
        .with_x_rate_limit(true)
        .fields()
        .split_off(2);
    assert_eq!(
        fields,
        [
            owned("retry-after", "8"),
            owned("x-ratelimit-limit", "20"),
            owned("x-ratelimit-remaining", "5"),
            owned("x-ratelimit-reset", "8")
        ]
    );
}

fn body(problem: &Problem) -> Value {
    serde_json::from_str(&problem.json()).unwrap()
}

#[test]
fn a_denial_by_a_pause_says_so_and_that_nothing_is_left() {
    let mut paused = of(&slots(), 5_000, 1_000, Some(20_000));
    paused.paused_for = Some(Duration::from_secs(20));
    let why = denied(vec![paused.clone(), of(&rpm(), 3_500, 1_000, None)], Some(20_000));
    let problem = body(&Problem::denied(&why, &PolicyNames::default()));
    assert_eq!(
        (&problem["paused"], &problem["detail"], &problem["blocking"]),
        (
            &json!(true),
            &json!("limit \"slots\" is paused: retry after 20 s"),
            &json!({"policy": "slots", "quota": 20, "remaining": 0, "requested": 1}),
        )
    );
    assert!(told_of(&why)[1].1.contains(r#""slots";r=0;t=20"#), "{why:?}");
    // What is only reported is not seen, and one that waits for its tokens is not paused.
    paused.mode = LimitMode::Shadow;
    let why = denied(vec![paused, of(&rpm(), 0, 1_000, Some(100))], Some(100));
    let problem = body(&Problem::denied(&why, &PolicyNames::default()));
    assert_eq!(problem["paused"], Value::Null);
}

#[test]
fn a_problem_has_a_reason_and_a_remedy_and_no_entity() {
    let why = denied(
        vec![of(&rpm(), 3_500, 10_000, Some(650)), of(&slots(), 0, 1_000, Some(9_001))],
        Some(9_001),
    );
    let problem = Problem::denied(&why, &PolicyNames::default());
    assert_eq!(
        body(&problem),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "detail": "limit \"rpm\" has 3 of 600 left, 10 were requested; limit \"slots\" has 0 of 20 left, 1 were requested: retry after 10 s",
            "violated-policies": ["rpm", "slots"],
            "retry_after": 10,
            "blocking": {"policy": "slots", "quota": 20, "remaining": 0, "requested": 1},
        })
    );
    let unseen = Denied {
        degraded: Some(Degraded { reason: "no answer".to_owned() }),
        limits: vec![],
        ..denied(vec![], Some(1_000))
    };
    assert_eq!(unseen.to_string(), "the table is unavailable (no answer): denied, retry after 1s");
    assert_eq!(
        body(&Problem::denied(&unseen, &PolicyNames::default())),
        json!({
            "type": "about:blank",
            "title": "Too Many Requests",
            "status": 429,
            "detail": "the limits of this request cannot be checked at the moment: retry after 1 s",
            "retry_after": 1,
        })
    );
    let (entity, resource) = (why.limits[0].entity.clone(), why.limits[0].resource.clone());
    let (requested, capacity) = (MilliTokens(600_001), MilliTokens(600_000));
    let (entity_, resource_) = (entity.clone(), resource.clone());
    let never = NeverFits {
        entity,
        resource,
        limit: "rpm".to_owned(),
        requested,
        capacity,
        missing_plan: None,
    };
    let never = Problem::never_fits(&never, &PolicyNames::default());
    assert_eq!(
        (never.status(), never.to_string()),
        (413, "limit \"rpm\" has a capacity of 600, 601 were requested: request fewer".to_owned())
    );
    assert_eq!(body(&never)["retry_after"], Value::Null, "it is of no use to come back");
    let disabled =
        Problem::disabled(&Disabled { stopped_at: None, entity: entity_, resource: resource_ });
    assert_eq!(disabled.status(), 403);
    assert_eq!(body(&disabled)["type"].as_str(), Some("about:blank"));
    let timeout = Error::Timeout { bucket: "secret".to_owned(), after: Duration::ZERO, last: None };
    let errors = [
        Problem::unavailable(&timeout),
        Problem::unavailable(&Error::Invalid("secret".to_owned())),
    ];
    assert_eq!(errors.each_ref().map(Problem::status), [503, 500]);
    let kinds = errors.each_ref().map(|problem| body(problem)["type"].clone());
    assert_eq!(kinds, ["about:blank", "misconfigured"]);
    for problem in [problem, never, disabled].iter().chain(&errors) {
        assert!(
            !problem.json().contains("user-1") && !problem.json().contains("secret"),
            "{}",
            problem.json()
        );
        assert_eq!(body(problem)["status"], problem.status());
    }
}

fn rules() -> impl Strategy<Value = RefillRule> {
    let rate = (1..=10_i64.pow(15), 0..=10_i64.pow(15), 1..=366 * 86_400_000_i64);
    let modest = (1..=1_000_000_i64, 1..=1_000_000_i64, 1..=100_000_i64);
    prop_oneof![rate, modest].prop_map(|(capacity, refill, refill_period_ms)| RefillRule {
        capacity: MilliTokens(capacity),
        refill_amount: MilliTokens(refill),
        refill_period_ms,
    })
}

/// Any status, also such as no bucket has.
fn any_status() -> impl Strategy<Value = LimitStatus> {
    let limit = prop_oneof!["[a-c]", r#"[ -~]{0,6}"#, any::<String>()];
    let mode =
        prop_oneof![Just(LimitMode::Enforced), Just(LimitMode::Soft), Just(LimitMode::Shadow)];
    let amounts = prop_oneof![(any::<i64>(), any::<i64>()), (-9_000..9_000_i64, 0..9_000_i64)];
    let capacity = prop_oneof![any::<i64>(), 0..9_000_i64];
    let after = proptest::option::of(any::<Duration>());
    let entity = "[a-b]".prop_map(|id| EntityId::new(id).unwrap());
    let resource = "[a-b]".prop_map(|id| Resource::new(id).unwrap());
    (limit, mode, amounts, capacity, any::<i64>(), any::<Duration>(), after, entity, resource)
        .prop_map(
            |(
                limit,
                mode,
                (available, requested),
                capacity,
                refill,
                refill_period,
                retry_after,
                entity,
                resource,
            )| {
                let (capacity, refill_amount) = (MilliTokens(capacity), MilliTokens(refill));
                let (available, requested) = (MilliTokens(available), MilliTokens(requested));
                LimitStatus {
                    entity,
                    resource,
                    limit,
                    mode,
                    capacity,
                    refill_amount,
                    refill_period,
                    available,
                    requested,
                    is_requested: requested > MilliTokens::ZERO,
                    retry_after,
                    paused_for: None,
                    window: None,
                    window_end: None,
                    resets_in: None,
                }
            },
        )
}

/// A list's members: their names and integer parameters, as a parser reads them.
fn parsed(value: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let list: List = Parser::new(value).parse().unwrap_or_else(|error| panic!("{error}: {value}"));
    let member = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("{entry:?} in {value}") };
        let BareItem::String(name) = &item.bare_item else { panic!("{item:?} in {value}") };
        let integer = |(key, value): (&Key, &BareItem)| match value {
            BareItem::Integer(number) => Some((key.to_string(), i64::from(*number))),
            _ => None,
        };
        (name.as_str().to_owned(), item.params.iter().filter_map(integer).collect())
    };
    list.iter().map(member).collect()
}

fn parameters(known: &[(&str, Option<i64>)]) -> Vec<(String, i64)> {
    known.iter().filter_map(|(key, value)| value.map(|value| ((*key).to_owned(), value))).collect()
}

proptest! {
    #![proptest_config(fleet::config(1_000))]

    #[test]
    fn any_status_is_told_in_fields_that_parse_back(
        limits in proptest::collection::vec(any_status(), 0..5),
        retry_after in proptest::option::of(any::<Duration>()),
        is_denial: bool,
    ) {
        let why = Denied { retry_after, starts_in: None, limits, degraded: None, missing_plan: None };
        let policies = match is_denial {
            true => Policies::denied(&why, &PolicyNames::default()),
            false => Policies::granted(&why.limits, &PolicyNames::default()),
        };
        let told: Vec<_> = policies.iter().collect();
        // A limit that was asked several times is told once.
        let seen = why.limits.iter().filter(|status| status.mode != LimitMode::Shadow);
        let seen: BTreeSet<_> = seen.map(|status| (&status.entity, &status.resource, &status.limit)).collect();
        prop_assert_eq!(told.len(), seen.len());
        let fields = policies.clone().with_x_rate_limit(true).fields();
        for (name, value) in &fields {
            prop_assert!(value.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{name}: {value}");
        }
        if told.is_empty() {
            prop_assert!(!fields.iter().any(|(name, _)| name.starts_with("ratelimit")));
            return Ok(());
        }
        let quotas: Vec<_> = told.iter().map(|policy| {
            (policy.name.clone(), parameters(&[("q", Some(policy.quota)), ("w", policy.window_seconds)]))
        }).collect();
        prop_assert_eq!(parsed(&policies.rate_limit_policy()), quotas);
        let left: Vec<_> = told.iter().map(|policy| {
            (policy.name.clone(), parameters(&[("r", Some(policy.remaining)), ("t", policy.seconds)]))
        }).collect();
        prop_assert_eq!(parsed(&policies.rate_limit()), left);
        for (at, policy) in told.iter().enumerate() {
            prop_assert!(!told[..at].iter().any(|other| other.name == policy.name), "{} stands for two", policy.name);
            let numbers = [Some(policy.quota), policy.window_seconds, Some(policy.remaining), policy.seconds];
            prop_assert!(numbers.into_iter().flatten().all(|number| (0..=MOST).contains(&number)), "{policy:?}");
        }
        let text: Value = serde_json::from_str(&Problem::denied(&why, &PolicyNames::default()).json()).unwrap();
        prop_assert_eq!(&text["status"], &json!(429));
    }

    /// A client that spreads `r` over `t`, reads the fields again and goes on, exceeds at no time what
    /// the bucket admits, nor from its first answer on what refills.
    #[test]
    fn a_client_that_obeys_never_exceeds_the_refill(
        rule in rules().prop_filter("a rate", |rule| rule.kind().refills()),
        available in -10_i64.pow(6)..10_i64.pow(6),
        is_denied: bool,
        requested in 0..1_000_i64,
    ) {
        let rate = |seconds: i64| {
            i128::from(seconds) * 1000 * i128::from(rule.refill_amount.0) / i128::from(rule.refill_period_ms)
        };
        let mut balance = i128::from(available.min(rule.capacity.0));
        for turn in 0..20 {
            let now = i64::try_from(balance).unwrap();
            let asked = now + requested + 1;
            let is_denied = is_denied && turn % 2 == 0 && asked > 0 && asked <= rule.capacity.0;
            let policies = match is_denied {
                true => {
                    // Exact, as the bucket's own.
                    let wait = i128::from(asked - now) * i128::from(rule.refill_period_ms);
                    let wait = (wait / i128::from(rule.refill_amount.0) + 1).try_into().unwrap();
                    let short = status("rpm", rule, now, asked, Some(Duration::from_millis(wait)));
                    Policies::denied(&denied(vec![short], Some(wait)), &PolicyNames::default())
                }
                false => Policies::granted(&[status("rpm", rule, now, 0, None)], &PolicyNames::default()),
            };
            let policy = policies.iter().next().unwrap();
            let Some(seconds) = policy.seconds else {
                prop_assert!(policy.remaining == 0, "{policy:?} invites without a time");
                break;
            };
            let sent = i128::from(policy.remaining) * 1000;
            prop_assert!(sent <= rate(seconds), "{policy:?} refills {} of {sent}", rate(seconds));
            prop_assert!(sent <= balance.max(0), "{policy:?} of {balance}");
            balance = (balance - sent + rate(seconds)).min(rule.capacity.0.into());
        }
    }

    /// A limit that admits nothing says so, whatever its period is.
    #[test]
    fn a_limit_that_admits_nothing_has_no_quota_nothing_left_and_no_time(
        period_ms in 1..=366 * 86_400_000_u64,
        requested in 1..1_000_000_i64,
        is_denial: bool,
    ) {
        let nothing = LimitStatus {
            capacity: MilliTokens::ZERO,
            refill_amount: MilliTokens::ZERO,
            refill_period: Duration::from_millis(period_ms),
            ..of(&rpm(), 0, requested, None)
        };
        let why = denied(vec![nothing], None);
        let policies = match is_denial {
            true => Policies::denied(&why, &PolicyNames::default()),
            false => Policies::granted(&why.limits, &PolicyNames::default()),
        };
        let window = period_ms.div_ceil(1_000);
        let fields = policies.fields();
        prop_assert_eq!(&fields[0].1, &format!(r#""rpm";q=0;w={window}"#));
        prop_assert_eq!(&fields[1].1, r#""rpm";r=0"#);
        prop_assert_eq!(fields.len(), 2, "no time helps: {:?}", fields);
    }

    /// I5, as a client sees it: in whole seconds, which are never fewer than the exact time.
    #[test]
    fn i5_retry_after_is_never_too_early_nor_before_any_t(
        limits in proptest::collection::vec((rules(), 0..4_000_i64, 1..4_000_i64, 1..400_000_000_u64), 1..4),
    ) {
        let short = |(rule, available, more, ms): (RefillRule, i64, i64, u64)| {
            status("rpm", rule, available, available + more, Some(Duration::from_millis(ms)))
        };
        let limits: Vec<_> = limits.into_iter().map(short).collect();
        let why = Denied { retry_after: limits.iter().filter_map(|status| status.retry_after).max(), starts_in: None, limits, degraded: None, missing_plan: None };
        let policies = Policies::denied(&why, &PolicyNames::default());
        let seconds = policies.retry_after_seconds().unwrap();
        let exact = why.retry_after.unwrap();
        prop_assert!(seconds >= 1);
        let waited = Duration::from_secs(seconds.try_into().unwrap());
        prop_assert!(waited >= exact && waited < exact + Duration::from_secs(1));
        prop_assert!(policies.iter().all(|policy| policy.seconds.unwrap() <= seconds));
    }

    /// Whatever the instant at which the state was read, what is left has refilled when `t` is over, the
    /// next token is there, and after `w` an empty limit is full.
    #[test]
    fn t_and_w_are_never_too_early_and_not_late(
        rule in rules().prop_filter("a rate", |rule| rule.kind().refills()),
        available in -10_i64.pow(6)..10_i64.pow(6),
        now in 1_700_000_000_000..1_700_100_000_000_i64,
    ) {
        let available = available.min(rule.capacity.0);
        let policies = Policies::granted(&[status("rpm", rule, available, 0, None)], &PolicyNames::default());
        let policy = policies.iter().next().unwrap();
        let flowed = |seconds: i64| {
            let to = EpochMillis(now.saturating_add(seconds.saturating_mul(1000)));
            refill_between(&rule, ShardIndex::UNSPLIT, EpochMillis(now), to).0
        };
        let next = (policy.remaining + 1) * 1000;
        let more = if next <= rule.capacity.0 { next - available } else { 0 };
        let missing = more.max(policy.remaining * 1000);
        match policy.seconds {
            None => prop_assert!(missing == 0),
            Some(seconds) => {
                prop_assert!(flowed(seconds) >= missing, "{} of {missing} in {seconds} s", flowed(seconds));
                // At most the second it is rounded up by, and what the phase of the refill makes
                // uncertain.
                let early = seconds - 2 - rule.refill_period_ms / 1000;
                prop_assert!(early < 0 || flowed(early) < missing, "in {seconds} s, {} in {early} s", flowed(early));
            }
        }
        let window = policy.window_seconds.unwrap();
        prop_assert!(flowed(window) >= rule.capacity.0);
    }
}
