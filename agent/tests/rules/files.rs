//! Files and folders of rules, and how they change.

use std::path::PathBuf;
use std::time::Duration;

use weirgate_agent::rules::RulesSource;

use crate::{LIMITED, bucket, native};

fn folder(name: &str) -> PathBuf {
    let name = format!("rules-{name}-{}", std::process::id());
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
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
    let file = folder("changed").join("rules.yaml");
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
    let folder = folder("folder");
    std::fs::write(folder.join("d.yaml"), tenant(1)).unwrap();
    std::fs::write(folder.join("notes.txt"), "no rules").unwrap();
    let source = RulesSource::open(vec![folder.clone()]).unwrap();
    assert_eq!(limit(&source), 1);
    std::fs::write(
        folder.join("e.yml"),
        native(&format!("{{match: [a], {LIMITED}}}")),
    )
    .unwrap();
    settle(&source).await;
    assert_eq!(source.rules().domains(), 2);
    std::fs::write(folder.join("f.yaml"), tenant(2)).unwrap();
    settle(&source).await;
    assert_eq!((source.rules().domains(), limit(&source)), (2, 1));
    let error = source.error().unwrap().to_string();
    assert!(
        error.contains("f.yaml:1:9: domain: the domain has rules already"),
        "{error}"
    );
}
