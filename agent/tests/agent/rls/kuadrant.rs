//! Kuadrant's calls: check, report, reserve, commit.

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;
use weirgate_agent::rls::{Options, messages};

use super::fixture::*;

pub(super) const TPD: [(&str, &str); 2] = [("tenant", "a"), ("model", "x")];

pub(super) async fn call<M, R>(agent: &Agent, method: &str, message: M) -> Result<R, Status>
where
    M: prost::Message + Default + 'static,
    R: prost::Message + Default + 'static,
{
    let path = format!("/kuadrant.service.ratelimit.v1.RateLimitService/{method}");
    let mut grpc = Grpc::new(agent.channel.clone());
    grpc.ready().await.unwrap();
    let path = PathAndQuery::try_from(path).unwrap();
    let codec = ProstCodec::<M, R>::default();
    let response = grpc.unary(Request::new(message), path, codec).await?;
    Ok(response.into_inner())
}

pub(super) fn own(entries: &[(&str, &str)]) -> Vec<messages::RateLimitDescriptor> {
    let entry = |(key, value): &(&str, &str)| messages::Entry {
        key: (*key).to_owned(),
        value: value.as_bytes().to_vec(),
    };
    vec![messages::RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..Default::default()
    }]
}

pub(super) async fn reserve(
    agent: &Agent,
    amount: u64,
    seconds: i64,
) -> Result<messages::ReserveResponse, Status> {
    let request = messages::ReserveRequest {
        domain: "edge".to_owned(),
        descriptors: own(&TPD),
        amount,
        ttl: Some(messages::Duration { seconds, nanos: 0 }),
    };
    call(agent, "Reserve", request).await
}

pub(super) async fn commit(agent: &Agent, id: &str, actual: u64) -> Result<bool, Status> {
    let request = messages::CommitRequest {
        domain: "edge".to_owned(),
        descriptors: own(&TPD),
        reservation_id: id.to_owned(),
        actual_amount: actual,
    };
    let response: messages::CommitResponse = call(agent, "Commit", request).await?;
    Ok(response.reservation_released)
}

#[tokio::test]
async fn a_commit_of_a_reservation_that_has_expired_is_a_report() {
    let agent = Agent::new(RULES).await;
    let held = reserve(&agent, 800, 1).await.unwrap();
    agent.clock.skew(60_000);
    // This take ends the lease and returns what it held.
    let limits = [weirgate::Limit::per_day("tpd", 1_000).unwrap()];
    let acquire = agent.other.acquire("a", "llm/x").limits(&limits);
    let taken = acquire.take("tpd", 900).send().await.unwrap();
    assert!(taken.is_granted());
    assert!(!commit(&agent, &held.reservation_id, 150).await.unwrap());
    assert_eq!(agent.counted("a", "llm/x", "tpd").0, 1_050);
}

#[tokio::test]
async fn an_absurd_commit_is_refused_and_its_reservation_stays() {
    let agent = Agent::new(RULES).await;
    let held = reserve(&agent, 800, 60).await.unwrap();
    for actual in [30_001, 1_000_000_000_001, u64::MAX] {
        for id in [&*held.reservation_id, "no token"] {
            let status = commit(&agent, id, actual).await.unwrap_err();
            assert!(status.message().contains(&actual.to_string()), "{status}");
            assert!(status.message().contains("report what was used"), "{status}");
            assert_eq!(agent.left("a", "llm/x", "tpd").await, 200);
        }
        let mut asked = request([hits(&TPD, actual)]);
        asked.hits_addend = u32::MAX;
        let answer: Result<RateLimitResponse, _> = call(&agent, "Report", asked).await;
        assert!(answer.unwrap_err().message().contains(&actual.to_string()));
    }
    assert!(commit(&agent, &held.reservation_id, 150).await.unwrap());
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 850);
}

/// The first write takes longer than the answer may.
#[tokio::test]
async fn a_commit_is_finished_although_its_time_is_over() {
    let short = Options { timeout: std::time::Duration::from_millis(300) };
    let agent = Agent::with(RULES, short, |builder| builder).await;
    let held = reserve(&agent, 800, 60).await.unwrap();
    agent.dynamo.fail_when(|_| Some(weirgate_testkit::Fault::ServerError));
    let status = commit(&agent, &held.reservation_id, 150).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Aborted, "{status}");
    agent.dynamo.fail_when(|_| None);
    // The gate counts it until it is finished.
    agent.gated.settling.close_and_drain().await;
    assert_eq!(agent.left("a", "llm/x", "tpd").await, 850);
}

fn both(names: [&str; 2], amount: u64) -> (messages::ReserveRequest, messages::CommitRequest) {
    let descriptors = names.map(|name| own(&[("tenant", name), ("model", "x")]).remove(0));
    let mut turned = descriptors.to_vec();
    turned.reverse();
    let reserve = messages::ReserveRequest {
        domain: "edge".to_owned(),
        descriptors: descriptors.to_vec(),
        amount: 800,
        ttl: None,
    };
    let commit = messages::CommitRequest {
        domain: "edge".to_owned(),
        // Another order than that of the reservation.
        descriptors: turned,
        reservation_id: String::new(),
        actual_amount: amount,
    };
    (reserve, commit)
}

#[tokio::test]
async fn a_commit_that_failed_for_one_of_two_buckets_is_repeated_and_counts_once() {
    let patient = Options { timeout: std::time::Duration::from_secs(60) };
    let settings = |builder: weirgate::Builder| {
        let never = weirgate::CircuitBreakerConfig {
            failure_threshold: 0,
            ..weirgate::CircuitBreakerConfig::default()
        };
        let timeout = std::time::Duration::from_millis(300);
        builder.timeout(timeout).circuit_breaker(never)
    };
    for failing in ["a", "b"] {
        let agent = Agent::with(RULES, patient, settings).await;
        let (reserve, commit) = both(["a", "b"], 150);
        let held: messages::ReserveResponse = call(&agent, "Reserve", reserve).await.unwrap();
        let commit = messages::CommitRequest { reservation_id: held.reservation_id, ..commit };
        let key = format!("#{failing}#");
        agent.dynamo.fail_when(move |write| {
            let fault = weirgate_testkit::Fault::ServerError;
            write.to_string().contains(&key).then_some(fault)
        });
        let first: Result<messages::CommitResponse, _> =
            call(&agent, "Commit", commit.clone()).await;
        let status = first.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
        agent.dynamo.fail_when(|_| None);
        let again: messages::CommitResponse = call(&agent, "Commit", commit).await.unwrap();
        assert!(again.reservation_released);
        for name in ["a", "b"] {
            assert_eq!(agent.left(name, "llm/x", "tpd").await, 850, "{failing}: {name}");
            assert_eq!(agent.counted(name, "llm/x", "tpd").0, 150, "{failing}: {name}");
        }
    }
}

/// Slots and tokens of a child and its parent, from configurations. The child may be unlimited.
async fn chain(child: weirgate::ConfigStatus) -> Agent {
    const RULES: &str = r#"
weirgate: 1
domains:
  edge:
    - match: [tenant, model]
      entity: "{tenant}"
      resource: "{model}"
      take: {slots: 1, tpd: hits}
"#;
    let settings = |builder: weirgate::Builder| {
        let never = weirgate::CircuitBreakerConfig {
            failure_threshold: 0,
            ..weirgate::CircuitBreakerConfig::default()
        };
        let allow = weirgate::OnUnavailable::Allow;
        builder.on_unavailable(allow).circuit_breaker(never)
    };
    let agent = Agent::with(RULES, Options::default(), settings).await;
    let admin = agent.other.admin();
    for (entity, limits, status) in [
        ("a", ["tpd=1000/day", "slots=5"], child),
        ("team", ["tpd=10000/day", "slots=50"], weirgate::ConfigStatus::Enforced),
    ] {
        let level = weirgate::ConfigLevel::Entity(entity.try_into().unwrap());
        let limits = limits.map(|text| text.parse().unwrap());
        let config = weirgate::Config { status, ..weirgate::Config::of(limits) };
        admin.set_config(&level, &config).await.unwrap();
    }
    let kid = weirgate::Entity::new("a".try_into().unwrap());
    let kid = kid.child_of("team".try_into().unwrap(), true);
    admin.set_entity(&kid).await.unwrap();
    agent
}

/// Whatever the child's own limits are, and also if the usage is a report: of an id that is unknown, or after
/// a decision without the table.
#[tokio::test]
async fn i3_a_commit_counts_once_in_each_bucket_that_limits() {
    use weirgate::ConfigStatus::{Enforced, Unlimited};
    for status in [Enforced, Unlimited] {
        for way in ["held", "unknown", "outage"] {
            let agent = chain(status).await;
            let fault = (way == "outage").then_some(weirgate_testkit::Fault::ServerError);
            agent.dynamo.fail_when(move |_| fault);
            let held = reserve(&agent, 800, 60).await.unwrap();
            agent.dynamo.fail_when(|_| None);
            // What is held under an id that is unknown stays until its expiry.
            let (id, held) = match way {
                "unknown" => ("no token", 800),
                _ => (&*held.reservation_id, 0),
            };
            let committed = commit(&agent, id, 150).await;
            assert!(committed.is_ok(), "{status:?}, {way}: {committed:?}");
            let limited = ["team", "a"].into_iter();
            for entity in limited.take(if status == Enforced { 2 } else { 1 }) {
                let counted = agent.counted(entity, "x", "tpd").0;
                assert_eq!(counted, 150 + held, "{status:?}, {way}: {entity}");
            }
        }
    }
}

/// One rule of the bucket is a trial that is short, so its grant has nothing, and neither has an unlimited child.
#[tokio::test]
async fn i3_a_commit_settles_each_grant_by_what_it_was_asked_for() {
    const RULES: &str = r#"
weirgate: 1
domains:
  edge:
    - match: [trial, model]
      entity: "{trial}"
      resource: "{model}"
      take: {tpd: hits}
      shadow: true
    - match: [tenant, model]
      entity: "{tenant}"
      resource: "{model}"
      take: {rpd: hits}
"#;
    let agent = Agent::new(RULES).await;
    let level = weirgate::ConfigLevel::System;
    let limits = ["tpd=10/day", "rpd=1000/day"].map(|text| text.parse().unwrap());
    let config = weirgate::Config::of(limits);
    agent.other.admin().set_config(&level, &config).await.unwrap();
    for turned in [false, true] {
        let name = if turned { "b" } else { "a" };
        let mut descriptors =
            ["trial", "tenant"].map(|key| own(&[(key, name), ("model", "x")]).remove(0));
        let request = messages::ReserveRequest {
            domain: "edge".to_owned(),
            descriptors: descriptors.to_vec(),
            amount: 800,
            ttl: None,
        };
        let held: messages::ReserveResponse = call(&agent, "Reserve", request).await.unwrap();
        if turned {
            descriptors.reverse();
        }
        let request = messages::CommitRequest {
            domain: "edge".to_owned(),
            descriptors: descriptors.to_vec(),
            reservation_id: held.reservation_id,
            actual_amount: 150,
        };
        let committed: messages::CommitResponse = call(&agent, "Commit", request).await.unwrap();
        assert!(committed.reservation_released);
        assert_eq!(agent.counted(name, "x", "rpd").0, 150, "{turned}");
        assert_eq!(agent.counted(name, "x", "tpd").0, 0, "{turned}");
    }
}

/// By any process that reclaimed the lease of an expired reservation: its usage counts once in each bucket, and its
/// slots are free.
#[tokio::test]
async fn i3_a_commit_after_the_expiry_counts_once_in_each_bucket_of_a_chain() {
    for (of_kid, of_team) in [(0, 0), (900, 0), (0, 9_900), (900, 9_900)] {
        let agent = chain(weirgate::ConfigStatus::Enforced).await;
        let held = reserve(&agent, 800, 1).await.unwrap();
        assert_eq!(agent.left("a", "x", "tpd").await, 200);
        agent.clock.skew(60_000);
        let limits = |text: &str| [text.parse::<weirgate::Limit>().unwrap()];
        for (entity, taken, text) in
            [("a", of_kid, "tpd=1000/day"), ("team", of_team, "tpd=10000/day")]
        {
            if taken > 0 {
                let limits = limits(text);
                // Not from its parent.
                let take = agent.other.acquire(entity, "x").limits(&limits).take("tpd", taken);
                let take = take.send().await.unwrap();
                assert!(take.is_granted(), "{entity}");
            }
        }
        let _ = commit(&agent, &held.reservation_id, 150).await.unwrap();
        let used = async |entity| agent.counted(entity, "x", "tpd").0;
        assert_eq!(used("a").await, 150 + of_kid, "{of_kid}, {of_team}");
        // What the kid takes, its parent gives too.
        let of_kid_too = used("team").await;
        assert!([150 + of_team, 150 + of_team + of_kid].contains(&of_kid_too), "{of_kid_too}");
        let slots = agent.other.peek("a", "x").send().await.unwrap();
        let slots = slots.limits.into_iter().filter(|status| status.limit == "slots");
        for status in slots {
            assert_eq!(status.available.whole_tokens(), status.capacity.whole_tokens());
        }
    }
}

/// As with rules that were edited meanwhile.
#[tokio::test]
async fn i3_a_commit_by_rules_that_take_other_limits_settles_the_grant_of_its_bucket() {
    const RULES: &str = r#"
weirgate: 1
domains:
  edge:
    - match: [tenant, model]
      entity: "{tenant}"
      resource: "{model}"
      take: {tpd: hits}
    - match: [tenant, model, edited]
      entity: "{tenant}"
      resource: "{model}"
      take: {rpd: 1, tpd: hits}
"#;
    let agent = Agent::new(RULES).await;
    let level = weirgate::ConfigLevel::System;
    let limits = ["tpd=1000/day", "rpd=1000/day"].map(|text| text.parse().unwrap());
    let config = weirgate::Config::of(limits);
    agent.other.admin().set_config(&level, &config).await.unwrap();
    let request = messages::ReserveRequest {
        domain: "edge".to_owned(),
        descriptors: own(&[("tenant", "a"), ("model", "x")]),
        amount: 800,
        ttl: None,
    };
    let held: messages::ReserveResponse = call(&agent, "Reserve", request).await.unwrap();
    let request = messages::CommitRequest {
        domain: "edge".to_owned(),
        descriptors: own(&[("tenant", "a"), ("model", "x"), ("edited", "1")]),
        reservation_id: held.reservation_id,
        actual_amount: 150,
    };
    let committed: messages::CommitResponse = call(&agent, "Commit", request).await.unwrap();
    assert!(committed.reservation_released);
    assert_eq!(agent.counted("a", "x", "tpd").0, 150);
}
