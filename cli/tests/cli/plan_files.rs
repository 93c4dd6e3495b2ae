//! Files with plans: what is planned can be applied, or nothing changes.

use weirgate_testkit::Temporary;

use super::fixtures::Table;

/// The file gives an entity a plan that neither it nor the table has.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_a_plan_that_does_not_exist_changes_nothing() {
    let table = Table::new().await;
    let text =
        "weirgate: 1\nsystem:\n  limits:\n    rpm: 60/minute\nentities:\n  acme:\n    plan: pro\n";
    let file = Temporary::file("missing.yaml", text);
    let before = table.text("limits export");
    for command in ["diff", "plan", "apply"] {
        let out = Temporary::file("missing.plan", "");
        let more: &[&str] = match command {
            "plan" => &["--out", out.path()],
            "apply" => &["--yes"],
            _ => &[],
        };
        let refused = table.run([&["limits", command, file.path()], more].concat());
        assert_eq!(refused.code, Some(2), "{command}: {refused:?}");
        let says = refused.stderr.contains("plan pro has no limits");
        assert!(says, "{command}: {refused:?}");
    }
    assert_eq!(table.text("limits export"), before);
}

/// The file keeps the plan of an entity, and prunes the plan; or it moves the entity to a plan that has slots
/// under the name of a rate of its bucket.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_takes_a_plan_in_use_away_is_applied_whole_or_changes_nothing() {
    let kept =
        "weirgate: 1\nsystem:\n  limits:\n    rpm: 60/minute\nentities:\n  acme:\n    plan: pro\n";
    let moved = "weirgate: 1\nsystem:\n  limits:\n    tpm: 60/minute\nplans:\n  odd:\n    limits:\n      rpm: 5\n\
                 entities:\n  acme:\n    plan: odd\n";
    for (text, more) in [(kept, &["--prune"][..]), (moved, &[])] {
        let table = Table::new().await;
        table.text("limits set --plan pro rpm=600/minute");
        table.text("entities set acme --plan pro");
        if text == moved {
            table.text("acquire acme gpt-4 rpm=1");
        }
        let file = Temporary::file("limits.yaml", text);
        let before = table.text("limits export");
        let applied = table.run([&["limits", "apply", file.path(), "--yes"], more].concat());
        let after = table.text("limits export");
        assert!(applied.code == Some(0) || before == after, "{applied:?}\n{before}{after}");
    }
}

/// A file renames a plan: the new one is set, its entities move, the old one is removed.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_renames_a_plan() {
    let table = Table::new().await;
    table.text("limits set --plan pro rpm=600/minute");
    table.text("entities set acme --plan pro");
    let text = "weirgate: 1\nplans:\n  pro2:\n    limits:\n      rpm: 600/minute\nentities:\n  acme:\n    plan: pro2\n";
    let file = Temporary::file("renamed.yaml", text);
    table.text(["limits", "apply", file.path(), "--prune", "--yes"]);
    assert_eq!(table.text("limits export"), text);
}
