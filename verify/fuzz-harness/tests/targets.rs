//! Every decoder has its fuzz target, and `make fuzz` runs it.

use std::path::Path;

use weirgate_fuzz_harness::ALL;

#[test]
fn every_decoder_is_fuzzed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect(path);
    let (manifest, makefile) = (read("fuzz/Cargo.toml"), read("../Makefile"));
    let run = makefile
        .lines()
        .find_map(|line| line.strip_prefix("fuzz_targets := "))
        .expect("the Makefile lists them");
    let names: Vec<_> = ALL.iter().map(|(name, _)| *name).collect();
    assert_eq!(run.split(' ').collect::<Vec<_>>(), names);
    for name in &names {
        assert!(
            manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")),
            "{name}"
        );
        assert!(
            read(&format!("fuzz/fuzz_targets/{name}.rs"))
                .contains(&format!("weirgate_fuzz_harness::{name}(bytes)"))
        );
    }
    let targets = std::fs::read_dir(root.join("fuzz/fuzz_targets"))
        .unwrap()
        .count();
    assert_eq!(targets, names.len(), "every target is some decoder's");
}
