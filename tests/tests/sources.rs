//! What the sources must not hold: a second constructor of SDK clients, and a second TLS stack.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every Rust source of the workspace, with its path from the root.
fn sources() -> Vec<(String, String)> {
    let mut found = vec![];
    let mut folders: Vec<_> =
        ["client", "decoders", "functions", "shared", "store", "tests"].map(|folder| root().join(folder)).into();
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
    // Its retry policy keeps a write that adds from being applied twice: a second constructor would not have it.
    let builds = |text: &str| {
        // `SharedHttpClient::new(` is another name.
        let own = |at: usize| !text[..at].ends_with(|last: char| last.is_alphanumeric());
        text.match_indices(concat!("Client::", "new(")).any(|(at, _)| own(at))
            || text.contains(concat!("from_", "conf("))
    };
    let found: Vec<_> = sources().into_iter().filter(|(_, text)| builds(text)).map(|(name, _)| name).collect();
    assert_eq!(found, ["store/src/connect.rs"]);
}

#[test]
fn there_is_one_tls_stack_and_it_is_not_the_legacy_one() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let is_locked = |name: &str, version: &str| lock.contains(&format!("name = \"{name}\"\nversion = \"{version}"));
    assert!(is_locked("rustls", "0.23."), "the check finds what is there");
    for (name, version) in [
        ("hyper", "0.14."),
        ("rustls", "0.21."),
        ("hyper-rustls", "0.24."),
        ("aws-lc-sys", ""),
        ("openssl-sys", ""),
        ("native-tls", ""),
    ] {
        assert!(!is_locked(name, version), "{name} {version} is in Cargo.lock: default features of an SDK crate?");
    }
}
