//! What the sources must not hold: a second constructor of SDK clients.

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
    let mut folders: Vec<_> = members
        .split('"')
        .skip(1)
        .step_by(2)
        .map(|member| root().join(member))
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path
                    .strip_prefix(root())
                    .unwrap()
                    .to_string_lossy()
                    .into_owned();
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
        text.match_indices(concat!("Client::", "new("))
            .any(|(at, _)| own(at))
            || text.contains(concat!("from_", "conf("))
    };
    let found: Vec<_> = sources()
        .into_iter()
        .filter(|(name, text)| !name.starts_with("verify/sim/src/model/") && builds(text))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(found, ["store/src/connect.rs"]);
}
