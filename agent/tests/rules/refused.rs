//! What is refused, and where.

use crate::{LIMITED, native, refused};

#[test]
fn what_a_rules_file_cannot_say_is_refused_at_its_place() {
    let cases = [
        ("", "1:1: the file is empty"),
        ("a: 1", "\"a\" is unknown, must be weirgate, domains"),
        ("domains: {e: []}", "weirgate: 1 is missing"),
        (
            "weirgate: 2\ndomains: {e: []}",
            "1:11: weirgate is 2, must be 1",
        ),
        ("weirgate: 1", "domains is missing"),
        (
            "weirgate: 1\ndomains: {e: []}\nmore: 1",
            "3:1: the file: \"more\" is unknown",
        ),
        (
            &native("{match: [a]}"),
            "4:7: domains.edge[0]: a rule needs match",
        ),
        (&native(&format!("{{{LIMITED}}}")), "match is missing"),
        (
            &native(&format!("{{match: [], {LIMITED}}}")),
            "has 0 entries",
        ),
        (
            &native(&format!("{{match: [a], {LIMITED}, unlimited: true}}")),
            "a rule needs match",
        ),
        (
            &native(&format!("{{match: [a], {LIMITED}, wait: 1}}")),
            "\"wait\" is unknown, must be match",
        ),
        (
            &native("{match: [a], entity: \"{b}\", resource: r, take: {rpm: 1}}"),
            "{b} is not in match",
        ),
        (
            &native("{match: [a], entity: \"{2}\", resource: r, take: {rpm: 1}}"),
            "{2} is no entry of match",
        ),
        (
            &native("{match: [a, a], entity: \"{a}\", resource: r, take: {rpm: 1}}"),
            "{a} is twice in match",
        ),
        (
            &native("{match: [a, b], entity: \"{a}{b}\", resource: r, take: {rpm: 1}}"),
            "two values without a ':'",
        ),
        (
            &native("{match: [a], entity: \"a b\", resource: r, take: {rpm: 1}}"),
            "entity \"a b\" is not a valid name",
        ),
        (
            &native("{match: [a], entity: e, resource: r, take: {}}"),
            "takes nothing",
        ),
        (
            &native("{match: [a], entity: e, resource: r, take: {rpm: 0}}"),
            "rpm is 0, must be hits",
        ),
        (
            &native("{match: [a], entity: e, resource: r, take: {\"#\": 1}}"),
            "limit \"#\" is not a valid name",
        ),
        (
            &native(
                "{match: [a], entity: e, resource: r, take: {rpm: 1}, limits: {tpm: {per_day: 1}}}",
            ),
            "limit \"rpm\" is taken and not among these",
        ),
        (
            &native(
                "{match: [a], entity: e, resource: r, take: {rpm: 1}, limits: {rpm: {concurrent: 1}}}",
            ),
            "\"concurrent\" is unknown",
        ),
        (
            &native(
                "{match: [a], entity: e, resource: r, take: {rpm: 1}, limits: {rpm: {per_day: 0}}}",
            ),
            "capacity is 0, must be 1",
        ),
        (
            "domain: d\ndescriptors: []\nx: 1",
            "\"x\" is unknown, must be domain, descriptors",
        ),
        ("domain: ''\ndescriptors: []", "domain is missing"),
        (
            "domain: d\ndescriptors: [{value: a}]",
            "descriptors[0]: key is missing",
        ),
        (
            "domain: d\ndescriptors: [{key: a}, {key: a}]",
            "2:25: descriptors[1]: the same key and value",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: minute}}]",
            "a limit needs unit and requests_per_unit",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: fortnight, requests_per_unit: 1}}]",
            "\"fortnight\", must be second, minute",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true, unit: day}}]",
            "unlimited has no unit",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: -1}}]",
            "capacity is -1",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: x}]}}]",
            "replaces of envoyproxy/ratelimit has no counterpart",
        ),
        (
            "domain: d\ndescriptors: [{key: a, quota_mode: true}]",
            "2:36: descriptors[0].quota_mode: quota_mode of envoyproxy/ratelimit",
        ),
        (
            "domain: d\ndescriptors: [{key: a, detailed_metric: true}]",
            "detailed_metric of envoyproxy/ratelimit",
        ),
        (
            "domain: d\ndescriptors: [{key: a, value: '*'}, {key: a, value: &v '*'}]",
            "2:37: descriptors[1]: the same key and value",
        ),
        (
            "domain: d\ndescriptors: [{key: a, value: 7}, {key: a, value: !!str 7}]",
            "2:35: descriptors[1]: the same key and value",
        ),
        (
            "domain: d\ndescriptors: [{key: a, value: b*}, {key: a, value: 'b*'}]",
            "2:36: descriptors[1]: the same key and value",
        ),
        ("domain: d\n", "1:1: the file: descriptors is missing"),
        (
            "domain: d\ndescriptors: []",
            "1:1: the file: descriptors is missing",
        ),
        (
            "weirgate: 1\ndomains: {e: []}",
            "2:14: domains.e: the domain has no rules",
        ),
        (
            &native(&format!(
                "{{match: [a, b: 7], {LIMITED}}}\n    - {{match: [a, {{\"b\": '7'}}], unlimited: true}}"
            )),
            "5:7: domains.edge[1]: the same match is in this list before",
        ),
        (
            &native(&format!(
                "{{match: [a], {LIMITED}, \"settle\": true, settle: true}}"
            )),
            "duplicated key \"settle\"",
        ),
        (
            &native("{match: [a], entity: e, resource: r, take: {rpm: 1, 'rpm': 2}}"),
            "4:59: domains.edge[0].take: duplicated key \"rpm\"",
        ),
        (
            "weirgate: 1\ndomains: {7: [{match: [a], unlimited: true}], '7': []}",
            "2:47: domains: duplicated key \"7\"",
        ),
        (
            "weirgate: 1\ndomains: {a: &a [{match: [a], unlimited: true}], <<: *a}",
            "domains: << does not merge maps",
        ),
        ("a: [", "2:1: "),
    ];
    for (text, message) in cases {
        let error = refused(text);
        assert!(error.contains(message), "{text}\n{error}\nlacks {message}");
        assert!(error.starts_with("rules.yaml:"), "{error}");
    }
    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    assert!(refused(&deep(100)).contains("nested deeper"));
    assert!(refused(&deep(5_000)).contains("recursion limit"));
}
