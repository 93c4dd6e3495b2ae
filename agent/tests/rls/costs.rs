//! What a call costs: hits of the request, of the descriptor, none, and the amounts of a rule.

use crate::fixture::*;

#[tokio::test]
async fn hits_of_a_descriptor_replace_those_of_the_request_and_none_mean_one() {
    let agent = Agent::new(RULES).await;
    let (a, b) = ([("tenant", "a")], [("tenant", "b")]);
    let asked = RateLimitRequest {
        hits_addend: 3,
        ..request([descriptor(&a), hits(&b, 5)])
    };
    let answer = agent.call(asked).await.unwrap();
    let left = |answer: &RateLimitResponse| {
        let left = answer.statuses.iter().map(|status| status.limit_remaining);
        left.collect::<Vec<_>>()
    };
    assert_eq!(left(&answer), [7, 5]);
    let answer = agent
        .call(request([descriptor(&a), descriptor(&b)]))
        .await
        .unwrap();
    assert_eq!(left(&answer), [6, 4]);
}

#[tokio::test]
async fn zero_hits_show_what_is_left_and_take_nothing() {
    let agent = Agent::new(RULES).await;
    let look = || agent.call(request([hits(&[("tenant", "a")], 0)]));
    let answer = look().await.unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
    assert_eq!(answer.statuses[0].limit_remaining, 10);
    assert_eq!(header(&answer, "ratelimit"), Some(r#""rpd";r=10;t=86400"#));
    assert_eq!(
        agent.counted("a", "api", "rpd"),
        (0, 0),
        "nothing is written"
    );
    agent
        .call(request([hits(&[("tenant", "a")], 10)]))
        .await
        .unwrap();
    let answer = look().await.unwrap();
    assert_eq!(answer.overall_code(), Code::Ok, "empty is not in debt");
    assert_eq!(answer.statuses[0].limit_remaining, 0);
}

#[tokio::test]
async fn zero_hits_are_denied_while_the_limit_is_in_debt_and_deny_the_rest_of_the_call() {
    let agent = Agent::new(RULES).await;
    let used = hits(&[("used", "a"), ("model", "x")], 1_500);
    agent.call(request([used])).await.unwrap();
    let look = hits(&[("tenant", "a"), ("model", "x")], 0);
    let both = || request([look.clone(), descriptor(&[("tenant", "a")])]);
    let answer = agent.call(both()).await.unwrap();
    assert_eq!(codes(&answer), [Code::OverLimit, Code::Ok]);
    assert_eq!(
        header(&answer, "retry-after"),
        Some("43200"),
        "500 of 1,000 a day"
    );
    assert_eq!(
        answer.statuses[1].limit_remaining, 10,
        "shown, and not taken"
    );
    agent.clock.skew(43_300_000);
    let answer = agent.call(both()).await.unwrap();
    assert_eq!(codes(&answer), [Code::Ok, Code::Ok]);
    assert_eq!(answer.statuses[1].limit_remaining, 9);
}

#[tokio::test]
async fn two_descriptors_of_one_bucket_take_the_sum() {
    let agent = Agent::new(RULES).await;
    let one = || hits(&[("tenant", "a")], 4);
    let answer = agent.call(request([one(), one()])).await.unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
    assert_eq!(agent.left("a", "api", "rpd").await, 2);
    let answer = agent
        .call(request([hits(&[("tenant", "a")], 2), one()]))
        .await
        .unwrap();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!(agent.left("a", "api", "rpd").await, 2);
}
