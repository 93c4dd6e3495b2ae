//! Rules files of both formats: what they say, what is refused and where, and how they change.

use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use weirgate::{Limit, LimitMode};
use weirgate_agent::rules::{Amount, Bucket, Matched, Rules, RulesSource, parse};

use crate::fixtures::temporary;

fn rules(text: &str) -> Rules {
    let mut rules = Rules::default();
    parse(Path::new("rules.yaml"), text, &mut rules).unwrap();
    rules
}

fn refused(text: &str) -> String {
    let error = parse(Path::new("rules.yaml"), text, &mut Rules::default()).unwrap_err();
    error.to_string()
}

fn find(rules: &Rules, domain: &str, entries: &[(&str, &str)]) -> Option<Matched> {
    let entries: Vec<_> = entries.iter().map(|(key, value)| (*key, value.as_bytes())).collect();
    rules.find(domain, &entries)
}

fn bucket(rules: &Rules, domain: &str, entries: &[(&str, &str)]) -> Bucket {
    match find(rules, domain, entries) {
        Some(Matched::Limited(bucket)) => bucket,
        other => panic!("{entries:?} is {other:?}"),
    }
}

/// The rule of native format around these lines.
fn native(rule: &str) -> String {
    format!("weirgate: 1\ndomains:\n  edge:\n    - {rule}\n")
}

const LIMITED: &str = "entity: e, resource: r, take: {rpm: hits}";

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
    let amounts: Vec<_> = any.terms.takes.iter().map(|take| (&*take.limit, take.amount)).collect();
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
        (rule.capacity.whole_tokens(), rule.refill_period_ms, limit.name().to_string())
    };
    let exact = of(&[("database", "users")]);
    assert_eq!(shown(&exact), (500, 1_000, "second".to_owned()));
    assert_eq!((&*exact.entity, &*exact.resource), ("database:users", "mongo:20cps"));
    assert!(!exact.terms.is_shadow);
    let number = of(&[("database", "007")]);
    assert_eq!(shown(&number), (7, 86_400_000, "day".to_owned()), "as it is written");
    assert_eq!(number.terms.label.as_deref(), Some("agents"));
    let wildcard = of(&[("database", "usage")]);
    assert_eq!(shown(&wildcard), (3, 60_000, "minute".to_owned()));
    assert!(wildcard.terms.is_shadow);
    let alone = of(&[("database", "other")]);
    assert_eq!(shown(&alone), (2, 7 * 86_400_000, "week".to_owned()));
    assert_eq!(alone.entity, "database:other", "each value has its own bucket");
    let deeper = of(&[("database", "other"), ("path", "/a")]);
    assert_eq!(shown(&deeper), (5, 30 * 86_400_000, "month".to_owned()));
    let free = find(&rules, "mongo cps", &[("database", "other"), ("path", "/a.png")]);
    assert!(matches!(free, Some(Matched::Unlimited)));
    // There is no way back from a value to the key alone.
    assert!(find(&rules, "mongo cps", &[("database", "users"), ("path", "/a")]).is_none());
    let banned = find(&rules, "mongo cps", &[("banned", "x")]);
    assert!(matches!(banned, Some(Matched::Blocked(_))));
    assert!(find(&rules, "mongo cps", &[("silent", "x")]).is_none());
    assert!(find(&rules, "mongo cps", &[("no", "x")]).is_none());
    assert!(find(&rules, "mongo cps", &[]).is_none());
}

#[test]
fn units_of_the_calendar_are_quotas_in_utc() {
    for (unit, expected) in [
        ("second", "second=5/second"),
        ("minute", "minute=5/minute"),
        ("hour", "hour=quota:5/hour"),
        ("DAY", "day=quota:5/day"),
        ("week", "week=quota:5/week"),
        ("month", "month=quota:5/month"),
        ("year", "year=quota:5/year"),
    ] {
        let limit = |units: &str| {
            let rules = rules(&format!(
                "{units}domain: d\ndescriptors: [{{key: a, rate_limit: {{unit: {unit}, requests_per_unit: 5}}}}]\n"
            ));
            let bucket = bucket(&rules, "d", &[("a", "b")]);
            bucket.terms.limits.as_ref().unwrap()[0].clone()
        };
        assert_eq!(limit("units: calendar\n").to_string(), expected);
        assert_eq!(limit("").rule().kind(), weirgate::LimitKind::Rate, "{unit}");
    }
}

/// The first block of a page whose fence has these words, and that begins with this line.
fn block(page: &str, words: &str, first: &str) -> String {
    let begin = format!("```{words}\n{first}\n");
    let (_, block) = page.split_once(&begin).unwrap();
    format!("{first}\n{}\n", block.split_once("\n```").unwrap().0)
}

#[test]
fn the_rules_of_the_guides_mean_what_the_guides_say() {
    let own = include_str!("../../../docs/guide/envoy.md");
    let own = rules(&block(own, "yaml rules.yaml", "weirgate: 1"));
    let llm = |key| bucket(&own, "edge", &[("generic_key", key), ("tenant", "a@b")]);
    assert_eq!(llm("llm").entity, "a@40b");
    assert!(!llm("llm").terms.is_settle && llm("llm-used").terms.is_settle);
    assert_eq!(llm("llm").terms.limits, llm("llm-used").terms.limits);
    let moved = include_str!("../../../docs/guide/from-envoy-ratelimit.md");
    let moved = rules(&block(moved, "yaml", "domain: edge"));
    let deep = bucket(&moved, "edge", &[("tenant", "acme"), ("path", "/export")]);
    assert_eq!((&*deep.entity, &*deep.resource), ("tenant:acme:path:@2fexport", "edge"));
    assert!(deep.terms.is_shadow);
    let free = find(&moved, "edge", &[("path", "/healthz")]);
    assert!(matches!(free, Some(Matched::Unlimited)));
}

/// What `404` is, with what YAML allows around it.
const WRITTEN: [&str; 9] =
    ["404", "'404'", "&c 404", "!!str 404", "&c !!str \"404\"", "!!int 404", "*d", "*e", "*f"];

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

#[test]
fn what_a_rules_file_cannot_say_is_refused_at_its_place() {
    let rows = include_str!("rules.txt").lines().filter(|line| !line.starts_with('#'));
    assert!(rows.clone().count() >= 50);
    for row in rows {
        let (text, message) = row.split_once(" => ").expect(row);
        let text = text.replace("\\n", "\n");
        let text = text.strip_prefix("- ").map_or(text.clone(), native);
        let error = refused(&text);
        assert!(error.contains(message), "{text}\n{error}\nlacks {message}");
        assert!(error.starts_with("rules.yaml:"), "{error}");
    }
    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    assert!(refused(&deep(100)).contains("nested deeper"));
    assert!(refused(&deep(5_000)).contains("recursion limit"));
}

fn folder() -> PathBuf {
    let folder = temporary("rules");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn tenant(limit: u32) -> String {
    format!(
        "domain: d\ndescriptors: [{{key: tenant, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}]\n"
    )
}

fn limit(source: &RulesSource) -> i64 {
    let bucket = bucket(&source.rules(), "d", &[("tenant", "a")]);
    let limit = &bucket.terms.limits.as_ref().unwrap()[0];
    limit.rule().capacity.whole_tokens()
}

/// Returns once the files have been checked twice. Time waits for the reads.
async fn settle(source: &RulesSource) {
    for _ in 0..3 {
        drop(source.rules());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn changed_rules_are_in_force_and_broken_ones_change_nothing() {
    let file = folder().join("rules.yaml");
    std::fs::write(&file, tenant(1)).unwrap();
    let source = RulesSource::open(vec![file.clone()]).unwrap();
    assert_eq!(limit(&source), 1);
    std::fs::write(&file, tenant(22)).unwrap();
    assert_eq!(limit(&source), 1, "one read is not enough");
    settle(&source).await;
    assert_eq!(limit(&source), 22);
    std::fs::write(&file, "domain: d\ndescriptors: [{key: 1, x: 1}]").unwrap();
    settle(&source).await;
    assert_eq!(limit(&source), 22);
    let error = source.error().unwrap().to_string();
    assert!(error.ends_with("rules.yaml:2:24: descriptors[0]: \"x\" is unknown, must be key, value, rate_limit, shadow_mode, descriptors"), "{error}");
    // What has no rules limits nothing, so it is none either.
    for nothing in [
        "",
        "# later",
        "domain: d\n",
        "domain: d\ndescriptors: []\n",
        "domain: d\ndescriptors:\n",
        "weirgate: 1\n",
        "weirgate: 1\ndomains: {}\n",
        "weirgate: 1\ndomains: {d: []}\n",
        "weirgate: 1\ndomains: {d: }\n",
    ] {
        std::fs::write(&file, nothing).unwrap();
        settle(&source).await;
        assert_eq!(limit(&source), 22, "{nothing:?}");
        assert!(source.error().is_some(), "{nothing:?}");
    }
    std::fs::remove_file(&file).unwrap();
    settle(&source).await;
    assert_eq!(limit(&source), 22);
    let error = source.error().unwrap().to_string();
    assert!(error.contains("cannot be read"), "{error}");
    std::fs::write(&file, tenant(333)).unwrap();
    settle(&source).await;
    assert_eq!(limit(&source), 333);
    assert_eq!(source.error(), None);
}

#[tokio::test(start_paused = true)]
async fn a_folder_stands_for_its_yaml_files_and_a_domain_is_in_one_of_them() {
    let folder = folder();
    std::fs::write(folder.join("d.yaml"), tenant(1)).unwrap();
    std::fs::write(folder.join("notes.txt"), "no rules").unwrap();
    let source = RulesSource::open(vec![folder.clone()]).unwrap();
    assert_eq!(limit(&source), 1);
    std::fs::write(folder.join("e.yml"), native(&format!("{{match: [a], {LIMITED}}}"))).unwrap();
    settle(&source).await;
    assert_eq!(source.rules().domains(), 2);
    std::fs::write(folder.join("f.yaml"), tenant(2)).unwrap();
    settle(&source).await;
    assert_eq!((source.rules().domains(), limit(&source)), (2, 1));
    let error = source.error().unwrap().to_string();
    assert!(error.contains("f.yaml:1:9: domain: the domain has rules already"), "{error}");
}

proptest! {
    #[test]
    fn a_rule_brings_every_rate_as_its_text_says(
        (name, amount, burst, period_ms) in ("[a-z]{1,6}", 1..=10_i64.pow(12), 1..=10_i64.pow(12), 1..=366 * 86_400_000_i64),
        mode in prop::sample::select(vec![LimitMode::Enforced, LimitMode::Shadow, LimitMode::Soft]),
    ) {
        // Some names are refused.
        if let Ok(limit) = Limit::custom(&name, burst, amount, period_ms) {
            let limit = limit.in_mode(mode);
            let rule = format!(
                "{{match: [a], entity: e, resource: r, take: {{\"{name}\": 1}}, limits: {{\"{name}\": \"{}\"}}}}",
                limit.text()
            );
            let found = bucket(&rules(&native(&rule)), "edge", &[("a", "x")]);
            prop_assert_eq!(found.terms.limits.as_deref(), Some(&[limit][..]));
        }
    }
}
