//! What the rules of both formats mean.

use weirgate_agent::rules::{Amount, Bucket, Matched};

use crate::{bucket, find, rules};

#[test]
fn the_first_rule_that_matches_counts() {
    let rules = rules(
        r#"
weirgate: 1
domains:
  edge:
    - {match: [tenant: gold, path], entity: gold, resource: r, take: {rpm: 1}}
    - {match: [tenant: "g*", path], entity: "g:{tenant}", resource: r, take: {rpm: hits}}
    - {match: [tenant, path], entity: "{1}", resource: "r/{path}", take: {rpm: 2, tpm: hits}}
"#,
    );
    let of = |tenant| bucket(&rules, "edge", &[("tenant", tenant), ("path", "/x")]);
    assert_eq!(of("gold").entity, "gold");
    assert_eq!(of("green").entity, "g:green");
    let any = of("red");
    assert_eq!((&*any.entity, &*any.resource), ("red", "r/:2fx"));
    let amounts: Vec<_> = any
        .terms
        .takes
        .iter()
        .map(|take| (&*take.limit, take.amount))
        .collect();
    assert_eq!(amounts, [("rpm", Amount::Tokens(2)), ("tpm", Amount::Hits)]);
    assert!(
        find(&rules, "edge", &[("path", "/x"), ("tenant", "red")]).is_none(),
        "the order counts"
    );
    assert!(find(&rules, "edge", &[("tenant", "red")]).is_none());
    assert!(find(&rules, "other", &[("tenant", "red"), ("path", "/x")]).is_none());
}

const ENVOY: &str = r"
domain: mongo cps
descriptors:
  - key: database
    value: users
    rate_limit: {unit: second, requests_per_unit: 500}
  - key: database
    value: 007
    rate_limit: {unit: DAY, requests_per_unit: 7, name: agents}
  - key: database
    value: us*
    rate_limit: {unit: minute, requests_per_unit: 3}
    shadow_mode: true
  - key: database
    rate_limit: {unit: week, requests_per_unit: 2}
    descriptors:
      - key: path
        value: '*.png'
        rate_limit: {unlimited: true}
      - key: path
        rate_limit: {unit: month, requests_per_unit: 5}
  - key: banned
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: silent
";

#[test]
fn envoys_rules_are_found_by_value_then_by_wildcard_then_by_key_at_their_own_depth() {
    let rules = rules(ENVOY);
    let of = |entries: &[(&str, &str)]| bucket(&rules, "mongo cps", entries);
    let shown = |bucket: &Bucket| {
        let limit = &bucket.terms.limits.as_ref().unwrap()[0];
        let rule = limit.rule();
        (
            rule.capacity.whole_tokens(),
            rule.refill_period_ms,
            limit.name().to_string(),
        )
    };
    let exact = of(&[("database", "users")]);
    assert_eq!(shown(&exact), (500, 1_000, "second".to_owned()));
    assert_eq!(
        (&*exact.entity, &*exact.resource),
        ("database:users", "mongo:20cps")
    );
    assert!(!exact.terms.is_shadow);
    let number = of(&[("database", "007")]);
    assert_eq!(
        shown(&number),
        (7, 86_400_000, "day".to_owned()),
        "as it is written"
    );
    assert_eq!(number.terms.label.as_deref(), Some("agents"));
    let wildcard = of(&[("database", "usage")]);
    assert_eq!(shown(&wildcard), (3, 60_000, "minute".to_owned()));
    assert!(wildcard.terms.is_shadow);
    let alone = of(&[("database", "other")]);
    assert_eq!(shown(&alone), (2, 7 * 86_400_000, "week".to_owned()));
    assert_eq!(
        alone.entity, "database:other",
        "each value has its own bucket"
    );
    let deeper = of(&[("database", "other"), ("path", "/a")]);
    assert_eq!(shown(&deeper), (5, 30 * 86_400_000, "month".to_owned()));
    let free = find(
        &rules,
        "mongo cps",
        &[("database", "other"), ("path", "/a.png")],
    );
    assert!(matches!(free, Some(Matched::Unlimited)));
    // There is no way back from a value to the key alone.
    assert!(
        find(
            &rules,
            "mongo cps",
            &[("database", "users"), ("path", "/a")]
        )
        .is_none()
    );
    let banned = find(&rules, "mongo cps", &[("banned", "x")]);
    assert!(matches!(banned, Some(Matched::Blocked(_))));
    assert!(find(&rules, "mongo cps", &[("silent", "x")]).is_none());
    assert!(find(&rules, "mongo cps", &[("no", "x")]).is_none());
    assert!(find(&rules, "mongo cps", &[]).is_none());
}

/// The first block of a page that begins with this line.
fn block(page: &str, first: &str) -> String {
    let (_, block) = page.split_once(&format!("```yaml\n{first}\n")).unwrap();
    format!("{first}\n{}\n", block.split_once("\n```").unwrap().0)
}

#[test]
fn the_rules_of_the_guides_mean_what_the_guides_say() {
    let own = include_str!("../../../docs/guide/envoy.md");
    let own = rules(&block(own, "# rules.yaml"));
    let llm = |key| bucket(&own, "edge", &[("generic_key", key), ("tenant", "a@b")]);
    assert_eq!(llm("llm").entity, "a@40b");
    assert!(!llm("llm").terms.is_settle && llm("llm-used").terms.is_settle);
    assert_eq!(llm("llm").terms.limits, llm("llm-used").terms.limits);
    let moved = include_str!("../../../docs/guide/from-envoy-ratelimit.md");
    let moved = rules(&block(moved, "domain: edge"));
    let deep = bucket(&moved, "edge", &[("tenant", "acme"), ("path", "/export")]);
    assert_eq!(
        (&*deep.entity, &*deep.resource),
        ("tenant:acme:path:@2fexport", "edge")
    );
    assert!(deep.terms.is_shadow);
    let free = find(&moved, "edge", &[("path", "/healthz")]);
    assert!(matches!(free, Some(Matched::Unlimited)));
}

/// What `404` is, with what YAML allows around it.
const WRITTEN: [&str; 9] = [
    "404",
    "'404'",
    "&c 404",
    "!!str 404",
    "&c !!str \"404\"",
    "!!int 404",
    "*d",
    "*e",
    "*f",
];

#[test]
fn a_value_of_a_rule_is_what_yaml_says() {
    for written in WRITTEN {
        let listed = format!(
            "weirgate: 1\ndomains:\n  d:\n    - {{match: [x: &d 404, y: &e '404', z: &f !!str 404], unlimited: true}}\n    - {{match: [code: {written} ], entity: \"e:{{code}}\", resource: r, take: {{rpm: 1}}}}\n"
        );
        let nested = format!(
            "domain: d\ndescriptors:\n  - {{key: x, value: &d 404}}\n  - {{key: y, value: &e '404'}}\n  - {{key: z, value: &f !!str 404}}\n  - {{key: code, value: {written} , rate_limit: {{unit: hour, requests_per_unit: 1}}}}\n"
        );
        for text in [listed, nested] {
            let rules = rules(&text);
            bucket(&rules, "d", &[("code", "404")]);
            for other in ["", "405", written] {
                let found = find(&rules, "d", &[("code", other)]);
                assert_eq!(found.is_some(), other == "404", "{text}{other:?}");
            }
        }
    }
}
