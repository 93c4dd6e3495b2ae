//! Which calls are allowed, and what the answer says.

use envoy_types::pb::google::protobuf::value::Kind;
use serde_json::Value;

use crate::fixture::*;

#[tokio::test]
async fn all_descriptors_are_taken_together_or_none_is() {
    let agent = Agent::new(RULES).await;
    let (rpd, tpd) = ([("tenant", "a")], [("tenant", "a"), ("model", "x")]);
    let both = |tokens| request([descriptor(&rpd), hits(&tpd, tokens)]);
    let allowed = agent.call(both(600)).await.unwrap();
    assert_eq!(allowed.overall_code(), Code::Ok);
    let denied = agent.call(both(600)).await.unwrap();
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert_eq!(codes(&denied), [Code::Ok, Code::OverLimit]);
    assert_eq!(
        agent.left("a", "api", "rpd").await,
        9,
        "the denied call took nothing"
    );
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 400);
}

#[tokio::test]
async fn statuses_are_in_the_order_of_the_descriptors_with_limit_remaining_and_reset() {
    let agent = Agent::new(RULES).await;
    let (rpd, tpd) = ([("tenant", "a")], [("tenant", "a"), ("model", "x")]);
    let (tpd, rpd, none) = (
        hits(&tpd, 250),
        descriptor(&rpd),
        descriptor(&[("no", "rule")]),
    );
    let answer = agent
        .call(request([tpd.clone(), none.clone(), rpd.clone()]))
        .await
        .unwrap();
    let shown = |status: &DescriptorStatus| {
        let limit = status.current_limit.as_ref();
        let limit = limit.map(|limit| (limit.name.clone(), limit.requests_per_unit, limit.unit()));
        let reset = status
            .duration_until_reset
            .as_ref()
            .map(|reset| reset.seconds);
        (limit, status.limit_remaining, reset)
    };
    let day = rate_limit::Unit::Day;
    let expected = [
        // The time in which what is left refills.
        (Some(("tpd".to_owned(), 1_000, day)), 750, Some(64_800)),
        (None, 0, None),
        (Some(("rpd".to_owned(), 10, day)), 9, Some(77_760)),
    ];
    assert_eq!(
        answer.statuses.iter().map(shown).collect::<Vec<_>>(),
        expected
    );
    // A denied call shows the limits that did not deny too.
    let much = RateLimitDescriptor {
        hits_addend: Some(envoy_types::pb::google::protobuf::UInt64Value { value: 800 }),
        ..tpd
    };
    let denied = agent.call(request([rpd, none, much])).await.unwrap();
    assert_eq!(codes(&denied), [Code::Ok, Code::Ok, Code::OverLimit]);
    let expected = [
        (Some(("rpd".to_owned(), 10, day)), 9, Some(77_760)),
        (None, 0, None),
        // 50 tokens are missing, at 1,000 a day, and no more may be sent until then.
        (Some(("tpd".to_owned(), 1_000, day)), 50, Some(4_320)),
    ];
    assert_eq!(
        denied.statuses.iter().map(shown).collect::<Vec<_>>(),
        expected
    );
}

#[tokio::test]
async fn an_allowed_call_has_the_rate_limit_fields_and_a_denied_one_the_problem_too() {
    let agent = Agent::new(RULES).await;
    let ask = || agent.call(request([hits(&[("tenant", "a")], 10)]));
    let allowed = ask().await.unwrap();
    assert_eq!(header(&allowed, "ratelimit"), Some(r#""rpd";r=0;t=8640"#));
    assert_eq!(
        header(&allowed, "ratelimit-policy"),
        Some(r#""rpd";q=10;w=86400"#)
    );
    assert_eq!(header(&allowed, "content-type"), None);
    assert!(allowed.raw_body.is_empty());
    let denied = ask().await.unwrap();
    assert_eq!(header(&denied, "ratelimit"), Some(r#""rpd";r=0;t=86400"#));
    assert_eq!(header(&denied, "retry-after"), Some("86400"));
    assert_eq!(
        header(&denied, "content-type"),
        Some("application/problem+json")
    );
    let body: Value = serde_json::from_slice(&denied.raw_body).unwrap();
    assert_eq!(body["status"], 429);
    assert_eq!(body["violated-policies"], serde_json::json!(["rpd"]));
    assert_eq!(body["retry_after"], 86_400);
}

#[tokio::test]
async fn a_descriptor_matches_by_value_by_wildcard_and_by_key_in_the_order_of_the_rules() {
    let agent = Agent::new(RULES).await;
    let path = |path| request([descriptor(&[("plan", "free"), ("path", path)])]);
    let free = agent.call(path("/static/a.png")).await.unwrap();
    assert_eq!(free.statuses[0].limit_remaining, u32::MAX, "unlimited");
    assert!(free.statuses[0].current_limit.is_none());
    let limited = agent.call(path("/v1/chat")).await.unwrap();
    assert_eq!(limited.statuses[0].limit_remaining, 8, "the rule takes two");
    let other = request([descriptor(&[("plan", "paid"), ("path", "/v1/chat")])]);
    let passed = agent.call(other).await.unwrap();
    assert!(passed.statuses[0].current_limit.is_none(), "no rule");
    let deeper = request([descriptor(&[
        ("plan", "free"),
        ("path", "/"),
        ("more", "1"),
    ])]);
    assert!(
        agent.call(deeper).await.unwrap().statuses[0]
            .current_limit
            .is_none()
    );
}

#[tokio::test]
async fn a_rule_in_shadow_mode_reports_and_never_denies() {
    let agent = Agent::new(RULES).await;
    let trial = || request([hits(&[("trial", "a")], 8), hits(&[("tenant", "b")], 1)]);
    for _ in 0..3 {
        let answer = agent.call(trial()).await.unwrap();
        assert_eq!(codes(&answer), [Code::Ok, Code::Ok]);
        let shown = header(&answer, "ratelimit").unwrap();
        assert!(!shown.contains("r=2"), "a trial is not shown: {shown}");
    }
    assert_eq!(
        agent.left("a", "api", "rpd").await,
        2,
        "what is short is not taken"
    );
    assert_eq!(agent.decider.limiter.stats().shadow_denied, 2);
    let never = request([hits(&[("trial", "a")], 11)]);
    assert_eq!(agent.call(never).await.unwrap().overall_code(), Code::Ok);
}

#[tokio::test]
async fn a_limit_in_the_descriptor_replaces_that_of_the_rule() {
    let agent = Agent::new(RULES).await;
    let limit = |requests_per_unit, unit: envoy_types::pb::envoy::r#type::v3::RateLimitUnit| {
        request([RateLimitDescriptor {
            limit: Some(RateLimitOverride {
                requests_per_unit,
                unit: unit.into(),
            }),
            ..descriptor(&[("tenant", "a")])
        }])
    };
    use envoy_types::pb::envoy::r#type::v3::RateLimitUnit as Unit;
    let answer = agent.call(limit(3, Unit::Hour)).await.unwrap();
    let status = &answer.statuses[0];
    let current = status.current_limit.as_ref().unwrap();
    assert_eq!(
        (current.requests_per_unit, current.unit()),
        (3, rate_limit::Unit::Hour)
    );
    assert_eq!(status.limit_remaining, 2);
    let none = agent.call(limit(0, Unit::Hour)).await.unwrap();
    assert_eq!(
        none.overall_code(),
        Code::OverLimit,
        "no request is allowed"
    );
    let unknown = agent.call(limit(3, Unit::Unknown)).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::InvalidArgument);
    assert!(unknown.message().contains("MINUTE"), "{unknown}");
}

/// Of both formats and all units: nothing is left, and no time helps.
#[tokio::test]
async fn a_rate_of_0_has_fields_that_say_so() {
    use envoy_types::pb::envoy::r#type::v3::RateLimitUnit as Unit;
    let seconds = [
        ("second", 1),
        ("minute", 60),
        ("hour", 3_600),
        ("day", 86_400),
        ("month", 2_592_000),
        ("year", 31_536_000),
    ];
    let units = [
        Unit::Second,
        Unit::Minute,
        Unit::Hour,
        Unit::Day,
        Unit::Month,
        Unit::Year,
    ];
    let descriptors = seconds.map(|(unit, _)| {
        format!("  - {{key: {unit}, rate_limit: {{unit: {unit}, requests_per_unit: 0}}}}\n")
    });
    let envoy = format!("domain: edge\ndescriptors:\n{}", descriptors.concat());
    let (native, envoy) = (Agent::new(RULES).await, Agent::new(&envoy).await);
    for ((unit, seconds), code) in seconds.into_iter().zip(units) {
        let own = RateLimitDescriptor {
            limit: Some(RateLimitOverride {
                requests_per_unit: 0,
                unit: code.into(),
            }),
            ..descriptor(&[("tenant", "a")])
        };
        for (agent, descriptor, name) in [
            (&native, own, "rpd"),
            (&envoy, descriptor(&[(unit, "x")]), unit),
        ] {
            let answer = agent.call(request([descriptor])).await.unwrap();
            assert_eq!(codes(&answer), [Code::OverLimit]);
            let policy = format!(r#""{name}";q=0;w={seconds}"#);
            assert_eq!(header(&answer, "ratelimit-policy"), Some(&*policy));
            assert_eq!(
                header(&answer, "ratelimit"),
                Some(&*format!(r#""{name}";r=0"#))
            );
            assert_eq!(header(&answer, "retry-after"), None);
            let status = &answer.statuses[0];
            let current = status.current_limit.as_ref().unwrap();
            assert_eq!((current.requests_per_unit, status.limit_remaining), (0, 0));
            assert_eq!(current.unit().as_str_name().to_lowercase(), unit);
            // Without one the filter sends 0, which is now.
            assert_eq!(
                status.duration_until_reset.as_ref().unwrap().seconds,
                seconds
            );
        }
    }
}

#[tokio::test]
async fn a_limit_in_the_descriptor_of_an_unlimited_rule_limits_it() {
    let agent = Agent::new(RULES).await;
    let file = [("plan", "free"), ("path", "/static/a.png")];
    let limited = |requests_per_unit| RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit,
            unit: envoy_types::pb::envoy::r#type::v3::RateLimitUnit::Hour.into(),
        }),
        ..descriptor(&file)
    };
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        let answer = agent.call(request([limited(2)])).await.unwrap();
        assert_eq!(codes(&answer), [expected]);
    }
    let answer = agent.call(request([limited(0)])).await.unwrap();
    assert_eq!(codes(&answer), [Code::OverLimit]);
    // The names are those of the other format.
    let (_, acquires) = agent.counted("plan:free:path:@2fstatic@2fa.png", "edge", "hour");
    assert_eq!(acquires, 2);
    let answer = agent.call(request([descriptor(&file)])).await.unwrap();
    assert_eq!(codes(&answer), [Code::Ok], "unlimited without it");
}

#[tokio::test]
async fn more_than_a_capacity_is_denied_with_its_own_problem() {
    let agent = Agent::new(RULES).await;
    for tokens in [11, u64::MAX] {
        let never = request([
            hits(&[("tenant", "a")], tokens),
            descriptor(&[("tenant", "b")]),
        ]);
        let answer = agent.call(never).await.unwrap();
        assert_eq!(codes(&answer), [Code::OverLimit, Code::Ok]);
        let body: Value = serde_json::from_slice(&answer.raw_body).unwrap();
        assert_eq!(body["status"], 413, "a retry does not help");
        assert_eq!(header(&answer, "retry-after"), None);
    }
    assert_eq!(agent.left("b", "api", "rpd").await, 10);
}

/// The refund after the response reads it there, so it exists only after a grant.
#[tokio::test]
async fn a_grant_has_what_it_took_as_metadata_and_a_denial_has_none() {
    let agent = Agent::new(RULES).await;
    let (rpd, tpd) = ([("tenant", "a")], [("tenant", "a"), ("model", "x")]);
    let trial = [("trial", "b")];
    let ask = |trials| request([descriptor(&rpd), hits(&tpd, 600), hits(&trial, trials)]);
    let granted = agent.call(ask(4)).await.unwrap();
    let taken = |answer: &RateLimitResponse, path: [&str; 3]| {
        let mut fields = answer.dynamic_metadata.clone()?.fields;
        for name in &path[..2] {
            let Some(Kind::StructValue(inner)) = fields.remove(*name)?.kind else {
                return None;
            };
            fields = inner.fields;
        }
        match fields.remove(path[2])?.kind? {
            Kind::NumberValue(tokens) => Some(tokens),
            _ => None,
        }
    };
    assert_eq!(taken(&granted, ["taken", "llm/x", "tpd"]), Some(600.0));
    let least = taken(&granted, ["taken", "api", "rpd"]);
    assert_eq!(least, Some(1.0), "the smallest of two buckets");
    let denied = agent.call(ask(1)).await.unwrap();
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert!(denied.dynamic_metadata.is_none());
    // The trial is short, so nothing of it was taken.
    let waived = agent.call(request([hits(&trial, 8)])).await.unwrap();
    assert_eq!(waived.overall_code(), Code::Ok);
    assert!(waived.dynamic_metadata.is_none());
}

#[tokio::test]
async fn a_level_that_is_stopped_is_denied_and_says_so() {
    let agent = Agent::new(RULES).await;
    let level = weirgate::ConfigLevel::Resource("api".try_into().unwrap());
    let _ = agent.other.stop(&level).send().await.unwrap();
    let answer = agent
        .call(request([descriptor(&[("tenant", "a")])]))
        .await
        .unwrap();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    let body: Value = serde_json::from_slice(&answer.raw_body).unwrap();
    assert_eq!(body["status"], 403);
}

#[tokio::test]
async fn limits_come_from_the_table_where_a_rule_brings_none() {
    let agent = Agent::new(RULES).await;
    let ask = || agent.call(request([hits(&[("stored", "a")], 2)]));
    let missing = ask().await.unwrap_err();
    assert_eq!(missing.code(), tonic::Code::FailedPrecondition, "{missing}");
    let config = weirgate::Config {
        limits: vec![weirgate::Limit::per_day("rpd", 3).unwrap()],
        ..weirgate::Config::default()
    };
    let level = weirgate::ConfigLevel::Resource("stored".try_into().unwrap());
    agent.other.set_config(&level, &config).await.unwrap();
    // What this process knows is a minute old at most.
    agent.clock.skew(61_000);
    assert_eq!(ask().await.unwrap().statuses[0].limit_remaining, 1);
    assert_eq!(ask().await.unwrap().overall_code(), Code::OverLimit);
}

#[tokio::test]
async fn a_trial_on_a_level_that_is_stopped_denies_nothing() {
    let agent = Agent::new(RULES).await;
    let level = weirgate::ConfigLevel::Resource("api".try_into().unwrap());
    let _ = agent.other.stop(&level).send().await.unwrap();
    let trial = || descriptor(&[("trial", "b")]);
    let tpd = || hits(&[("tenant", "a"), ("model", "x")], 600);
    let alone = agent.call(request([trial()])).await.unwrap();
    assert_eq!(
        (alone.overall_code(), codes(&alone)),
        (Code::Ok, vec![Code::Ok])
    );
    assert!(alone.raw_body.is_empty());
    let granted = agent.call(request([trial(), tpd()])).await.unwrap();
    assert_eq!(codes(&granted), [Code::Ok, Code::Ok]);
    assert_eq!(granted.statuses[1].limit_remaining, 400);
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 400);
    let denied = agent.call(request([trial(), tpd()])).await.unwrap();
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert_eq!(codes(&denied), [Code::Ok, Code::OverLimit]);
    let body: Value = serde_json::from_slice(&denied.raw_body).unwrap();
    assert_eq!(body["status"], 429, "not for the level that is stopped");
    let stopped = request([trial(), descriptor(&[("tenant", "b")])]);
    let stopped = agent.call(stopped).await.unwrap();
    assert_eq!(codes(&stopped), [Code::Ok, Code::OverLimit]);
}

/// No later call of Envoy releases a slot.
#[tokio::test]
async fn slots_are_refused_and_the_rest_of_the_call_is_not_taken() {
    let agent = Agent::new(RULES).await;
    let config = weirgate::Config {
        limits: vec![weirgate::Limit::concurrent("rpd", 3).unwrap()],
        ..weirgate::Config::default()
    };
    let level = weirgate::ConfigLevel::Resource("stored".try_into().unwrap());
    agent.other.set_config(&level, &config).await.unwrap();
    for _ in 0..2 {
        let both = request([
            descriptor(&[("stored", "a")]),
            descriptor(&[("tenant", "a")]),
        ]);
        let status = agent.call(both).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("Reserve"), "{status}");
        let balances = agent.other.peek("a", "stored").send().await.unwrap();
        let slots = balances.limit("rpd").unwrap().available;
        assert_eq!(slots.whole_tokens(), 3);
        assert_eq!(agent.left("a", "api", "rpd").await, 10);
    }
}
