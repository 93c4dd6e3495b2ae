//! Rules files of both formats: what they say, what is refused and where, and how they change.

mod files;
mod formats;
mod refused;

use std::path::Path;

use weirgate_agent::rules::{Bucket, Matched, Rules, parse};

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
    let entries: Vec<_> = entries
        .iter()
        .map(|(key, value)| (*key, value.as_bytes()))
        .collect();
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
