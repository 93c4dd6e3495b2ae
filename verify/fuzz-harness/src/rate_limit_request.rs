//! Calls of Envoy's rate limit service.

use std::path::Path;

use prost::Message;
use weirgate::{EntityId, Resource};
use weirgate_agent::rls::Plan;
use weirgate_agent::rls::messages::RateLimitRequest;
use weirgate_agent::rules::{Rules, parse};

/// Rules of both formats, for the domains `edge` and `mongo`.
const RULES: [&str; 2] = [
    r#"
weirgate: 1
domains:
  edge:
    - {match: [tenant], entity: "{tenant}", resource: api, take: {rpm: hits}}
    - {match: [tenant, model: "g*"], entity: "t:{tenant}", resource: "llm/{model}", take: {rpm: 1, tpm: hits}, settle: true}
    - {match: [path: "/static/*"], unlimited: true}
"#,
    "domain: mongo\ndescriptors: [{key: database, rate_limit: {unit: second, requests_per_unit: 5}}, {key: banned, rate_limit: {unit: day, requests_per_unit: 0}}]",
];

thread_local! {
    static PARSED: Rules = {
        let mut rules = Rules::default();
        for text in RULES {
            parse(Path::new("rules.yaml"), text, &mut rules).expect("the rules are valid");
        }
        rules
    };
}

/// Decodes a call from these bytes, and plans it.
pub fn rate_limit_request(bytes: &[u8]) {
    let Ok(request) = RateLimitRequest::decode(bytes) else {
        return;
    };
    let RateLimitRequest { domain, descriptors, hits_addend } = &request;
    PARSED.with(|rules| match Plan::new(rules, domain, descriptors, *hits_addend) {
        Ok(plan) => {
            assert_eq!(plan.steps(), descriptors.len());
            for bucket in plan.buckets() {
                EntityId::new(&*bucket.entity).expect("a name of an entity");
                Resource::new(&*bucket.resource).expect("a name of a resource");
            }
        }
        Err(message) => assert!(!message.is_empty()),
    });
}
