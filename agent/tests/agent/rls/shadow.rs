//! Rules in shadow mode: whatever they find, clients see the answer of the other rules alone.

use super::fixture::*;

const RULES: &str = r#"
weirgate: 1
domains:
  edge:
    - match: [tenant]
      entity: "{tenant}"
      resource: api
      take: {rpd: hits}
      limits: {rpd: {per_day: 10}}
    - match: [tenant, model]
      entity: "{tenant}"
      resource: llm
      take: {tpd: hits}
      limits: {tpd: {per_day: 930}}
    - match: [trial]
      entity: "{trial}"
      resource: api
      take: {rpd: hits}
      limits: {rpd: {per_day: 3}}
      shadow: true
    - match: [stored]
      entity: "{stored}"
      resource: stored
      take: {rpd: hits}
      shadow: true
    - match: [stopped]
      entity: "{stopped}"
      resource: stopped
      take: {rpd: hits}
      limits: {rpd: {per_day: 3}}
      shadow: true
    - match: [mode]
      entity: "{mode}"
      resource: mode
      take: {m: hits}
      limits: {m: {per_day: 2, mode: shadow}}
    - match: [free]
      unlimited: true
"#;

/// Descriptors that are only reported: short, above the capacity, of a rate of 0, without a
/// configuration, stopped, of a limit in shadow mode, and only asked.
fn trials() -> Vec<RateLimitDescriptor> {
    let nothing = RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: 0,
            unit: envoy_types::pb::envoy::r#type::v3::RateLimitUnit::Hour.into(),
        }),
        ..descriptor(&[("trial", "blocked")])
    };
    vec![
        descriptor(&[("trial", "b")]),
        hits(&[("trial", "b")], 9),
        hits(&[("trial", "c")], 0),
        nothing,
        descriptor(&[("stored", "b")]),
        descriptor(&[("stopped", "b")]),
        descriptor(&[("mode", "b")]),
    ]
}

async fn agent() -> Agent {
    let agent = Agent::new(RULES).await;
    let level = weirgate::ConfigLevel::Resource("stopped".try_into().unwrap());
    let _ = agent.other.admin().stop(&level).send().await.unwrap();
    agent
}

/// The answer without the statuses of these places, which are those of no rule.
fn without(mut answer: RateLimitResponse, places: &[usize]) -> RateLimitResponse {
    for at in places.iter().rev() {
        let status = answer.statuses.remove(*at);
        let nothing = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
        assert_eq!(status, nothing, "it shows a trial");
    }
    answer
}

/// The trials of `chosen`, among these descriptors, and their places.
fn mixed(
    enforced: &[RateLimitDescriptor],
    chosen: usize,
) -> (Vec<RateLimitDescriptor>, Vec<usize>) {
    let mut all = vec![];
    for (at, trial) in trials().into_iter().enumerate() {
        if chosen >> at & 1 == 1 {
            all.push((true, trial));
        }
        if let Some(descriptor) = enforced.get(at) {
            all.push((false, descriptor.clone()));
        }
    }
    let places = all.iter().enumerate().filter(|(_, (is_trial, _))| *is_trial);
    let places = places.map(|(at, _)| at).collect();
    (all.into_iter().map(|(_, descriptor)| descriptor).collect(), places)
}

/// The answer as text.
fn text(mut answer: RateLimitResponse) -> String {
    let body = String::from_utf8(std::mem::take(&mut answer.raw_body)).unwrap();
    format!("{answer:?} {body}")
}

/// Returns whether texts are the same but for a hundredth of a time, as one of them was asked later.
fn is_alike(one: &str, other: &str) -> bool {
    let parts = |text: &str| -> Vec<String> {
        let is_digit = |letter: &char| letter.is_ascii_digit();
        let mut parts: Vec<String> = vec![];
        for letter in text.chars() {
            match parts.last_mut() {
                Some(last) if last.chars().all(|known| is_digit(&known) == is_digit(&letter)) => {
                    last.push(letter)
                }
                _ => parts.push(letter.to_string()),
            }
        }
        parts
    };
    let (one, other) = (parts(one), parts(other));
    let is_near =
        |(one, other): (&String, &String)| match (one.parse::<u64>(), other.parse::<u64>()) {
            (Ok(one), Ok(other)) => one.abs_diff(other) <= one / 100,
            _ => one == other,
        };
    one.len() == other.len() && one.iter().zip(&other).all(is_near)
}

#[tokio::test]
async fn any_mixture_of_trials_is_answered_as_the_other_rules_alone() {
    let (one, other) = (agent().await, agent().await);
    let enforced = |turn: u64| {
        let llm = hits(&[("tenant", "a"), ("model", "x")], turn % 5 * 100);
        match turn % 4 {
            0 => vec![descriptor(&[("tenant", "a")])],
            1 => vec![llm],
            2 => vec![llm, descriptor(&[("tenant", "a")]), descriptor(&[("free", "x")])],
            _ => vec![hits(&[("tenant", "a")], 11), descriptor(&[("no", "rule")])],
        }
    };
    for turn in 0..128_u64 {
        let chosen = usize::try_from(turn).unwrap() * 37 % 128;
        let enforced = enforced(turn);
        let (all, places) = mixed(&enforced, chosen);
        let mixture = one.call(request(all)).await.unwrap();
        let alone = other.call(request(enforced)).await.unwrap();
        let mut mixture = without(mixture, &places);
        // What a trial took returns by the same metadata, which no client sees.
        mixture.dynamic_metadata = alone.dynamic_metadata.clone();
        let (mixture, alone) = (text(mixture), text(alone));
        assert!(
            is_alike(&mixture, &alone),
            "turn {turn}, trials {chosen:b}: {mixture} for {alone}"
        );
    }
    for trial in trials() {
        let alone = one.call(request([trial])).await.unwrap();
        assert_eq!(alone.overall_code(), Code::Ok);
        assert!(alone.response_headers_to_add.is_empty() && alone.raw_body.is_empty());
        let _ = without(alone, &[0]);
    }
}

/// In shadow mode the agent limits nothing, whatever a rule says.
#[tokio::test]
async fn an_agent_in_shadow_mode_shows_nothing() {
    let options = weirgate_agent::rls::Options::default();
    let agent = Agent::with(RULES, options, |builder| builder.shadow(true)).await;
    let nothing =
        RateLimitDescriptor { limit: trials()[3].limit, ..descriptor(&[("tenant", "blocked")]) };
    for _ in 0..3 {
        for descriptor in [
            hits(&[("tenant", "a")], 9),
            hits(&[("tenant", "a")], 99),
            hits(&[("tenant", "a")], 0),
            nothing.clone(),
        ] {
            let answer = agent.call(request([descriptor])).await.unwrap();
            assert_eq!(answer.overall_code(), Code::Ok);
            assert!(answer.response_headers_to_add.is_empty() && answer.raw_body.is_empty());
            let _ = without(answer, &[0]);
        }
    }
}

/// Whatever becomes of the trials of a call, it is decided by its other rules.
#[tokio::test]
async fn a_trial_without_a_decision_hides_no_other() {
    use weirgate_testkit::Fault;
    for fault in
        [Fault::Throttle { key_range: true }, Fault::ServerError, Fault::Conflict, Fault::Forbidden]
    {
        let agent = agent().await;
        let is_of_trial = |write: &serde_json::Value| write.to_string().contains("#b#");
        agent.dynamo.fail_when(move |write| is_of_trial(write).then_some(fault));
        let call = || {
            let both = [descriptor(&[("trial", "b")]), descriptor(&[("tenant", "a")])];
            agent.call(request(both))
        };
        for turn in 0..12 {
            let expected = if turn < 10 { Code::Ok } else { Code::OverLimit };
            let answer = call().await.unwrap();
            assert_eq!(answer.overall_code(), expected, "{fault:?}, {turn}");
        }
    }
}
