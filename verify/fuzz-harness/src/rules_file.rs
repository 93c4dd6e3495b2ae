//! Rules files of both formats.

use std::path::Path;

use weirgate::{EntityId, Resource};
use weirgate_agent::rules::{Matched, Rules, parse};

/// Descriptors that a file is asked for: those of the corpus, and odd ones.
const ASKED: [&[(&str, &[u8])]; 6] = [
    &[],
    &[("tenant", b"acme")],
    &[("tenant", b"\xff")],
    &[("database", b"users"), ("path", b"")],
    &[("generic_key", b"llm"), ("tenant", b"a b")],
    &[("", b"")],
];

/// Reads a file of these bytes, and looks descriptors up.
pub fn rules_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let mut rules = Rules::default();
    if let Err(error) = parse(Path::new("rules.yaml"), text, &mut rules) {
        // To YAML a carriage return alone ends a line too.
        let lines = bytes.split(|byte| b"\r\n".contains(byte)).count();
        let is_placed =
            error.place.is_some_and(|(line, column)| (1..=lines + 1).contains(&line) && column > 0);
        assert!(is_placed, "{error} is at no place of {lines} lines");
        return;
    }
    for entries in ASKED {
        for domain in ["edge", "mongo", ""] {
            let Some(Matched::Limited(bucket) | Matched::Blocked(bucket)) =
                rules.find(domain, entries)
            else {
                continue;
            };
            EntityId::new(&*bucket.entity).expect("a name of an entity");
            Resource::new(&*bucket.resource).expect("a name of a resource");
        }
    }
}
