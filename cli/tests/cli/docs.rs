//! The pages that texts of programs name.

use std::collections::BTreeSet;
use std::path::Path;

use weirgate::{AuditChange, ConfigLevel};

use super::fixtures::{commands, weirgate};

/// Returns the addresses of pages in the sources below a folder.
fn addresses(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            addresses(&path, found);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for call in text.split("docs!(").skip(1) {
            let arguments = call.split(')').next().unwrap();
            let parts: Vec<_> = arguments.split('"').skip(1).step_by(2).collect();
            found.insert(parts.join("#"));
        }
    }
}

#[test]
fn every_page_that_a_text_names_is_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = BTreeSet::new();
    for folder in ["agent", "cli", "client", "local", "store"] {
        addresses(&root.join(folder).join("src"), &mut found);
    }
    assert!(found.len() > 8, "{found:?}");
    for address in found {
        let run = weirgate(["docs", &address]);
        assert_eq!(run.code, Some(0), "{address}: {run:?}");
        assert!(run.stdout.starts_with('#'), "{address}: {run:?}");
    }
}

#[test]
fn a_page_or_section_that_is_unknown_is_an_error_that_leads_to_the_list() {
    let run = weirgate("docs operation");
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("`weirgate docs` lists, got \"operation\""), "{run:?}");
    let run = weirgate("docs operations#the-stream");
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("the-stream-is-lost, "), "{run:?}");
    let listed = weirgate("docs").stdout;
    assert!(listed.contains("guide/limits "), "{listed}");
    let json: serde_json::Value = serde_json::from_str(&weirgate("docs --json").stdout).unwrap();
    assert_eq!(json["items"][0]["page"], "architecture", "{json}");
    let page = "operations#the-stream-is-lost";
    let text = weirgate(["docs", page]).stdout;
    let json = weirgate(["docs", page, "--json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["page"], &json["text"]), (&page.into(), &text.into()));
}

#[test]
fn every_page_that_a_help_names_is_printed() {
    const NAMED: &str = "weirgate docs ";
    let mut found = BTreeSet::new();
    for command in commands(&[]) {
        let help = weirgate(&*format!("{command} --help")).stdout;
        // A name may be on the next line.
        let words: Vec<_> = help.split_whitespace().collect();
        let text = words.join(" ");
        let is_name = |c: char| c.is_ascii_alphanumeric() || "/-#".contains(c);
        found.extend(text.split(NAMED).skip(1).map(|rest| {
            let end = rest.find(|c| !is_name(c));
            rest[..end.unwrap_or(rest.len())].to_owned()
        }));
    }
    assert!(found.contains("guide/limits"), "{found:?}");
    for address in found.iter().filter(|address| !address.is_empty()) {
        let run = weirgate(["docs", address]);
        assert_eq!(run.code, Some(0), "{address}: {run:?}");
    }
}

/// Returns the words that a field may have, by the error of another one.
fn words<T: serde::de::DeserializeOwned>(field: &str) -> Vec<String> {
    let read = serde_json::from_value::<T>(serde_json::json!({ field: "-" }));
    let error = read.err().expect("it is unknown").to_string();
    let words = error.split('`').skip(3).step_by(2);
    words.map(str::to_owned).collect()
}

#[test]
fn the_guide_has_every_level_and_every_kind_of_change() {
    let guide = weirgate("docs guide/json").stdout;
    let all = [words::<ConfigLevel>("level"), words::<AuditChange>("kind")].concat();
    assert!(all.len() > 16, "{all:?}");
    for word in all {
        assert!(guide.contains(&format!("`{word}`")), "{word}");
    }
}
