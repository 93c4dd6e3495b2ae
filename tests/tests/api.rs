//! `make api` lists the public surface of the crate `weirgate` in tests/data/api.txt, `make lint`
//! checks that it is listed.
//!
//! What is listed is a promise: an item may be added at any time, and goes or changes only with a
//! new version (before 1.0 a minor one).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use public_api::Builder;

const HEAD: &str = "Every public item of the crate `weirgate` with all features, made by `make api`. \
    An item goes or changes only with a new version.\n";

/// Writes the list instead if `WRITTEN` is set.
#[test]
#[ignore = "`JSON` must be the path of what rustdoc writes: run `make lint` or `make api`"]
fn the_public_surface_is_listed() {
    let json = std::env::var_os("JSON").expect("`JSON` is set by the Makefile");
    let done = match std::env::var_os("WRITTEN") {
        Some(_) => write(Path::new(&json)),
        None => check(Path::new(&json)),
    };
    done.unwrap_or_else(|message| panic!("{message}"));
}

fn list() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/api.txt")
}

/// The surface as it is now, a line for each item: of the crate, and of what it shows of others.
fn surface(json: &Path) -> Result<BTreeSet<String>, String> {
    let mut surface = items(json)?;
    let shown: BTreeSet<_> = surface
        .iter()
        .filter_map(|item| Some(item.strip_prefix("pub use weirgate::")?.to_owned()))
        .collect();
    for other in ["weirgate_shared", "weirgate_store"] {
        let path_of = |item: &str| {
            let path = &item[item.find(other)?..];
            let path = &path[..path.find(['(', '<', ' ']).unwrap_or(path.len())];
            Some(
                path.split(|c: char| !(c.is_alphanumeric() || c == '_'))
                    .map(str::to_owned)
                    .collect::<Vec<_>>(),
            )
        };
        let is_shown = |item: &String| {
            item.starts_with("pub ")
                && path_of(item).is_some_and(|path| path.iter().any(|name| shown.contains(name)))
        };
        surface.extend(
            items(&json.with_file_name(format!("{other}.json")))?.into_iter().filter(is_shown),
        );
    }
    Ok(surface)
}

fn items(json: &Path) -> Result<BTreeSet<String>, String> {
    let api = Builder::from_rustdoc_json(json).omit_blanket_impls(true).omit_auto_trait_impls(true);
    let api = api.omit_auto_derived_impls(true).build();
    let api = api.map_err(|error| format!("api: {}: {error}", json.display()))?;
    Ok(api.items().map(ToString::to_string).collect())
}

/// The surface that is listed, and of which version.
fn listed() -> (BTreeSet<String>, String) {
    let text = std::fs::read_to_string(list()).unwrap_or_default();
    let mut lines = text.lines();
    let version = lines.find_map(|line| line.strip_prefix("Version "));
    let items = lines.filter(|line| !line.is_empty()).map(str::to_owned);
    (items.collect(), version.unwrap_or_default().to_owned())
}

fn write(json: &Path) -> Result<(), String> {
    let (now, (before, version)) = (surface(json)?, listed());
    let gone: Vec<_> = before.difference(&now).map(String::as_str).collect();
    if !gone.is_empty() && version == env!("CARGO_PKG_VERSION") {
        let gone = gone.join("\n  ");
        return Err(format!(
            "api: these items are gone or changed, raise the version from {version} first:\n  {gone}"
        ));
    }
    let items: Vec<_> = now.into_iter().collect();
    let text = format!("{HEAD}\nVersion {}\n\n{}\n", env!("CARGO_PKG_VERSION"), items.join("\n"));
    std::fs::write(list(), text).map_err(|error| format!("api: {}: {error}", list().display()))
}

fn check(json: &Path) -> Result<(), String> {
    let (now, (listed, version)) = (surface(json)?, listed());
    let gone = listed.difference(&now).map(|item| format!("  - {item}"));
    let new = now.difference(&listed).map(|item| format!("  + {item}"));
    let changes: Vec<_> = gone.chain(new).collect();
    if changes.is_empty() && version == env!("CARGO_PKG_VERSION") {
        return Ok(());
    }
    Err(format!(
        "api: tests/data/api.txt is not the surface of the crate, run `make api`:\n{}",
        changes.join("\n")
    ))
}
