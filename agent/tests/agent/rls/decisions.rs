//! Which calls are allowed, what they cost, and what the answer says.

use envoy_types::pb::google::protobuf::value::Kind;

use super::fixture::*;

#[tokio::test]
async fn statuses_are_in_the_order_of_the_descriptors_with_limit_remaining_and_reset() {
    let agent = Agent::new(RULES).await;
    let (rpd, tpd) = ([("tenant", "a")], [("tenant", "a"), ("model", "x")]);
    let (tpd, rpd, none) = (hits(&tpd, 250), descriptor(&rpd), descriptor(&[("no", "rule")]));
    let answer = agent.call(request([tpd.clone(), none.clone(), rpd.clone()])).await.unwrap();
    let shown = |status: &DescriptorStatus| {
        let limit = status.current_limit.as_ref();
        let limit = limit.map(|limit| (limit.name.clone(), limit.requests_per_unit, limit.unit()));
        let reset = status.duration_until_reset.as_ref().map(|reset| reset.seconds);
        (limit, status.limit_remaining, reset)
    };
    let day = rate_limit::Unit::Day;
    let expected = [
        // The time in which what is left refills.
        (Some(("tpd".to_owned(), 1_000, day)), 750, Some(64_800)),
        (None, 0, None),
        (Some(("rpd".to_owned(), 10, day)), 9, Some(77_760)),
    ];
    assert_eq!(answer.statuses.iter().map(shown).collect::<Vec<_>>(), expected);
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
    assert_eq!(denied.statuses.iter().map(shown).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_calendar_unit_has_the_length_of_its_window_and_the_time_to_its_end() {
    use rate_limit::Unit;
    const DAY: i64 = 86_400;
    const HOUR: i64 = 3_600;
    // It is 18:00 on Friday, 20 November 2026.
    let units = [
        ("hour", Unit::Hour, HOUR, HOUR),
        ("day", Unit::Day, DAY, 6 * HOUR),
        ("week", Unit::Week, 7 * DAY, 2 * DAY + 6 * HOUR),
        ("month", Unit::Month, 30 * DAY, 10 * DAY + 6 * HOUR),
        ("year", Unit::Year, 365 * DAY, 41 * DAY + 6 * HOUR),
    ];
    let descriptors = units.map(|(unit, ..)| {
        format!("  - {{key: {unit}, rate_limit: {{unit: {unit}, requests_per_unit: 10}}}}\n")
    });
    let rules = format!("domain: edge\nunits: calendar\ndescriptors:\n{}", descriptors.concat());
    let agent = Agent::new(&rules).await;
    for (name, unit, length, left) in units {
        let answer = agent.call(request([descriptor(&[(name, "x")])])).await.unwrap();
        let policy = format!(r#""{name}";q=10;w={length}"#);
        assert_eq!(header(&answer, "ratelimit-policy"), Some(&*policy));
        let limit = format!(r#""{name}";r=9;t={left}"#);
        assert_eq!(header(&answer, "ratelimit"), Some(&*limit));
        let status = &answer.statuses[0];
        assert_eq!(status.current_limit.as_ref().unwrap().unit(), unit);
        assert_eq!(status.duration_until_reset.as_ref().unwrap().seconds, left);
    }
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
    let units = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Month, Unit::Year];
    let descriptors = seconds.map(|(unit, _)| {
        format!("  - {{key: {unit}, rate_limit: {{unit: {unit}, requests_per_unit: 0}}}}\n")
    });
    let envoy = format!("domain: edge\ndescriptors:\n{}", descriptors.concat());
    let (native, envoy) = (Agent::new(RULES).await, Agent::new(&envoy).await);
    for ((unit, seconds), code) in seconds.into_iter().zip(units) {
        let own = RateLimitDescriptor {
            limit: Some(RateLimitOverride { requests_per_unit: 0, unit: code.into() }),
            ..descriptor(&[("tenant", "a")])
        };
        for (agent, descriptor, name) in
            [(&native, own, "rpd"), (&envoy, descriptor(&[(unit, "x")]), unit)]
        {
            let answer = agent.call(request([descriptor])).await.unwrap();
            assert_eq!(codes(&answer), [Code::OverLimit]);
            let policy = format!(r#""{name}";q=0;w={seconds}"#);
            assert_eq!(header(&answer, "ratelimit-policy"), Some(&*policy));
            assert_eq!(header(&answer, "ratelimit"), Some(&*format!(r#""{name}";r=0"#)));
            assert_eq!(header(&answer, "retry-after"), None);
            let status = &answer.statuses[0];
            let current = status.current_limit.as_ref().unwrap();
            assert_eq!((current.requests_per_unit, status.limit_remaining), (0, 0));
            assert_eq!(current.unit().as_str_name().to_lowercase(), unit);
            // Without one the filter sends 0, which is now.
            assert_eq!(status.duration_until_reset.as_ref().unwrap().seconds, seconds);
        }
    }
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
    agent.other.admin().set_config(&level, &config).await.unwrap();
    // What this process knows is a minute old at most.
    agent.clock.skew(61_000);
    assert_eq!(ask().await.unwrap().statuses[0].limit_remaining, 1);
    assert_eq!(ask().await.unwrap().overall_code(), Code::OverLimit);
}

/// No descriptor is of a class, whatever its entries are: that of the entity's configuration counts.
#[tokio::test]
async fn a_class_comes_from_the_configuration_alone() {
    let rules = r#"
weirgate: 1
domains:
  edge:
    - match: [stored, class]
      entity: "{stored}"
      resource: stored
      take: {rpd: hits}
    - match: [brought, class]
      entity: "{brought}"
      resource: api
      take: {rpd: hits}
      limits: {rpd: "100/day,class=batch:10%:50%"}
"#;
    let agent = Agent::new(rules).await;
    let limit = weirgate::Class::new("batch", 10).unwrap().leaving(50);
    let limit = weirgate::Limit::per_day("rpd", 100).unwrap().with_classes([limit.unwrap()]);
    for (entity, class) in [("a", None), ("b", Some("batch"))] {
        let level = weirgate::ConfigLevel::Entity(entity.try_into().unwrap());
        let config = weirgate::Config {
            class: class.map(|class| class.try_into().unwrap()),
            ..weirgate::Config::of([limit.clone().unwrap()])
        };
        let admin = agent.other.admin();
        admin.set_config(&level, &config).await.unwrap();
    }
    let taken = async |key, entity, amount| {
        let entries = [(key, entity), ("class", "batch")];
        let answer = agent.call(request([hits(&entries, amount)])).await.unwrap();
        (answer.overall_code(), answer.statuses[0].limit_remaining)
    };
    for (key, entity) in [("stored", "a"), ("brought", "c")] {
        assert_eq!(taken(key, entity, 90).await, (Code::Ok, 10), "{key}");
        assert_eq!(taken(key, entity, 6).await.0, Code::OverLimit, "{key}");
        assert_eq!(taken(key, entity, 5).await, (Code::Ok, 5), "{key}");
    }
    assert_eq!(taken("stored", "b", 46).await.0, Code::OverLimit);
    assert_eq!(taken("stored", "b", 45).await, (Code::Ok, 55));
    assert_eq!(taken("stored", "b", 10).await, (Code::Ok, 45));
    assert_eq!(taken("stored", "b", 1).await.0, Code::OverLimit);
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
    agent.other.admin().set_config(&level, &config).await.unwrap();
    for _ in 0..2 {
        let both = request([descriptor(&[("stored", "a")]), descriptor(&[("tenant", "a")])]);
        let status = agent.call(both).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("Reserve"), "{status}");
        let balances = agent.other.peek("a", "stored").send().await.unwrap();
        let slots = balances.limit("rpd").unwrap().available;
        assert_eq!(slots.whole_tokens(), 3);
        assert_eq!(agent.left("a", "api", "rpd").await, 10);
    }
}
