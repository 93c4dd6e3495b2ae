//! What the sources must not hold: a second constructor of SDK clients, names of functions and paths of
//! pages in texts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every Rust source of the workspace, with its path from the root.
fn sources() -> Vec<(String, String)> {
    let mut found = vec![];
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = manifest
        .split_once("\nmembers = [")
        .and_then(|(_, after)| after.split_once(']'))
        .unwrap()
        .0;
    let mut folders: Vec<_> =
        members.split('"').skip(1).step_by(2).map(|member| root().join(member)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found
}

#[test]
fn only_the_stores_connect_builds_an_sdk_client() {
    // Its retry policy keeps a write that adds from being applied twice: a second constructor would
    // not have it.
    let builds = |text: &str| {
        // `SharedHttpClient::new(` is another name; and the model's clients are its own, as it
        // knows no SDK.
        let own = |at: usize| !text[..at].ends_with(|last: char| last.is_alphanumeric());
        text.match_indices(concat!("Client::", "new(")).any(|(at, _)| own(at))
            || text.contains(concat!("from_", "conf("))
    };
    let found: Vec<_> = sources()
        .into_iter()
        .filter(|(name, text)| !name.starts_with("verify/sim/src/model/") && builds(text))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(found, ["store/src/connect.rs"]);
}

/// Returns the string literals of a source before its tests, without those of comments.
fn literals(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    // Literals of one character that would begin a string or a comment.
    let mut rest = source.replace("'\"'", "").replace("b'\"'", "");
    let mut found = vec![];
    while let Some(at) = rest.find(['"', '/']) {
        let (raw, code) = (rest[..at].ends_with("r#"), rest.split_off(at));
        let (skipped, end) = match &code {
            code if code.starts_with("//") => (0, code.find('\n')),
            code if code.starts_with('/') => (0, Some(1)),
            code if raw => (1, code[1..].find("\"#").map(|end| end + 1)),
            code => {
                let mut is_escaped = false;
                let end = code[1..].find(|character| {
                    let is_end = character == '"' && !is_escaped;
                    is_escaped = character == '\\' && !is_escaped;
                    is_end
                });
                (1, end.map(|end| end + 1))
            }
        };
        let end = end.unwrap_or(code.len());
        if skipped == 1 {
            found.push(code[1..end].to_owned());
        }
        rest = code[(end + skipped).min(code.len())..].to_owned();
    }
    found
}

/// Returns the string literals of a crate whose texts programs show, each with its file.
fn shown_literals() -> Vec<(String, String)> {
    let shown = ["agent", "cli", "client", "functions", "local", "shared", "store"];
    let is_shown = |name: &str| {
        let folder = name.split('/').next().unwrap_or_default();
        shown.contains(&folder) && name.contains("/src/")
    };
    let sources = sources().into_iter().filter(|(name, _)| is_shown(name));
    let found: Vec<_> = sources
        .flat_map(|(name, text)| literals(&text).into_iter().map(move |text| (name.clone(), text)))
        .collect();
    assert!(found.len() > 3_000, "{}", found.len());
    found
}

/// The command line and the agent show errors of all these crates to people without Rust. What a
/// builder refuses is read by its callers only.
#[test]
fn no_text_of_a_program_names_a_function() {
    let names = |text: &String| {
        let mut calls = text.match_indices("()");
        calls.any(|(at, _)| text[..at].ends_with(|last: char| last.is_alphanumeric()))
    };
    let found: Vec<_> = shown_literals()
        .into_iter()
        .filter(|(name, text)| name != "client/src/api/builder.rs" && names(text))
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// A span has one notation, which the command line reads again: `exact_span` and `rounded_span` write
/// it, and Rust's `{:?}` writes 30 minutes as `1800s`.
#[test]
fn no_text_of_a_program_has_a_duration_as_rust_writes_it() {
    let mut found = vec![];
    let sources: BTreeMap<_, _> = sources().into_iter().collect();
    for (name, text) in shown_literals() {
        let source = &sources[&name];
        let shown = text.match_indices(":?}").filter_map(|(at, _)| {
            let (_, variable) = text[..at].rsplit_once('{')?;
            let mut types = ["Duration", "Option<Duration>"].iter();
            let is_span = types.any(|of| source.contains(&format!(" {variable}: {of}")));
            is_span.then(|| format!("{name}: {{{variable}:?}} in {text:?}"))
        });
        found.extend(shown);
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// A path leads nowhere without a checkout; `docs!` makes an address.
#[test]
fn no_text_of_a_program_names_a_page_by_its_path() {
    // `weirgate docs` takes a page's path in the checkout, too.
    let is_part = |text: &String| text.starts_with("../") || ["docs/", ".md"].contains(&&**text);
    let names = |text: &String| text.contains("docs/") || text.contains(".md");
    let is_path = |text: &String| names(text) && !is_part(text);
    let found: Vec<_> = shown_literals().into_iter().filter(|(_, text)| is_path(text)).collect();
    // The template's default, which is replaced.
    let default = ("cli/src/commands/doctor/alarms.rs", "docs/operations.md");
    assert_eq!(found, [(default.0.to_owned(), default.1.to_owned())]);
}

/// Returns the names of the crates that a crate is built with on this platform, as `cargo tree` tells.
fn dependencies(name: &str, features: &[&str]) -> Vec<String> {
    let run = std::process::Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["tree", "--locked", "--offline", "--edges", "normal,build"])
        .args(["--prefix", "none", "--package", name])
        .args(["--features", &features.join(",")])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let text = String::from_utf8(run.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

/// Functions get the ends of windows, never zones. The client has them as a feature.
#[test]
fn only_the_feature_calendar_brings_a_calendar() {
    let has_calendar = |name: &str, features: &[&str]| {
        let found = dependencies(name, features);
        assert!(found.iter().any(|found| found == name), "{name}: {found:?}");
        found.iter().any(|found| {
            let zones = ["jiff", "chrono-tz", "tzfile"];
            found.starts_with("jiff-") || zones.contains(&found.as_str())
        })
    };
    for name in [
        "weirgate-shared",
        "weirgate-store",
        "weirgate-runtime",
        "weirgate-aggregator",
        "weirgate-reconciler",
    ] {
        assert!(!has_calendar(name, &[]), "{name}");
    }
    let manifest = std::fs::read_to_string(root().join("client/Cargo.toml")).unwrap();
    let (_, features) = manifest.split_once("\n[features]\n").unwrap();
    let (features, _) = features.split_once("\n[").unwrap();
    let names = features.lines().filter_map(|line| {
        let name = line.split_once(" = ")?.0;
        (!name.starts_with([' ', '#'])).then_some(name)
    });
    let (calendar, others): (Vec<_>, Vec<_>) = names.partition(|name| *name == "calendar");
    assert_eq!((calendar.len(), others.is_empty()), (1, false));
    assert!(!has_calendar("weirgate", &others), "{others:?}");
    assert!(has_calendar("weirgate", &calendar));
}
