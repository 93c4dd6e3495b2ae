//! Limits from a file into the table: differences, plans, changes.

use serde_json::{Value, json};

use super::fixtures::{File, Table};

const FILE: &str = "\
weirgate: 1
system:
  limits:
    rpm: {per_minute: 60}
resources:
  gpt-4:
    limits:
      tpm: {per_minute: 1_000, burst: 2_000}
      slots: {concurrent: 3}
entities:
  user-1:
    parent: team-a
    resources:
      gpt-4:
        limits:
          rpm: {per_minute: 30}
";

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_applied_once_and_its_repetition_changes_nothing() {
    let table = Table::new().await;
    let (file, plan) = (File::new("apply.yaml", FILE), File::new("apply.plan", ""));
    let planned = table.json(["limits", "plan", file.path(), "--out", plan.path()]);
    let saved: Value =
        serde_json::from_str(&std::fs::read_to_string(plan.path()).unwrap()).unwrap();
    assert_eq!(planned, saved);
    let levels: Vec<_> = saved["configs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| &change["level"]["level"])
        .collect();
    assert_eq!(levels, ["system", "resource", "entity_resource"]);
    assert_eq!(
        saved["entities"][0]["after"],
        json!({"id": "user-1", "parent": "team-a", "cascades": true})
    );

    let apply = ["limits", "apply", plan.path()];
    assert_eq!(
        table.json(apply),
        json!({"applied": 4, "applied_before": 0})
    );
    assert_eq!(
        table.json(apply),
        json!({"applied": 0, "applied_before": 4})
    );
    let found = table.json("limits get --resource gpt-4");
    assert_eq!(found["config"]["limits"][1]["capacity_tokens"], 2000);
    let entity = table.json("entities get user-1");
    assert_eq!(entity["parent"], "team-a");

    let diff = table.run(["limits", "diff", file.path(), "--exit-code"]);
    assert_eq!(diff.code, Some(0), "{diff:?}");
    assert_eq!(diff.stdout.as_str(), "no changes\n", "{diff:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_difference_has_every_field_before_and_after() {
    let table = Table::new().await;
    table.text("limits set --resource gpt-4 tpm=500/minute old=1");
    let file = File::new("diff.yaml", FILE);
    let run = table.run(["limits", "diff", file.path(), "--exit-code"]);
    assert_eq!(run.code, Some(7), "{run:?}");
    let rows: Vec<Vec<_>> = run
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    for row in [
        "resource gpt-4 tpm.capacity 500 2000",
        "resource gpt-4 tpm.refill 500/minute 1000/minute",
        "resource gpt-4 old.slots 1 -",
        "resource gpt-4 slots.slots - 3",
        "entity user-1 parent - team-a",
        "system rpm.capacity - 60",
        "4 changes",
    ] {
        let row: Vec<_> = row.split(' ').collect();
        assert!(rows.contains(&row), "{row:?}: {}", run.stdout);
    }
    assert!(
        !run.stdout.contains("tpm.mode"),
        "it does not change: {}",
        run.stdout
    );
    // Without the option, differences are no failure.
    assert_eq!(table.run(["limits", "diff", file.path()]).code, Some(0));
    assert_eq!(table.json("limits get --system")["config"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_is_outdated_changes_nothing() {
    let table = Table::new().await;
    let (file, plan) = (File::new("old.yaml", FILE), File::new("old.plan", ""));
    table.text(["limits", "plan", file.path(), "--out", plan.path()]);
    // Set and deleted: the value is the one that was planned with, its version is not.
    table.text("limits set --resource gpt-4 rpm=1/minute");
    table.text("limits delete --resource gpt-4");
    let run = table.run(["limits", "apply", plan.path()]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(
        run.stderr
            .contains("the configuration of resource gpt-4 has changed since"),
        "{run:?}"
    );
    assert_eq!(table.json("limits get --system")["config"], Value::Null);

    let other = table.run(["--namespace", "other", "limits", "apply", plan.path()]);
    assert_eq!(other.code, Some(2), "{other:?}");
    assert!(
        other
            .stderr
            .contains(r#"the plan is for namespace "default", got "other""#),
        "{other:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_file_is_reported_with_line_and_column() {
    let table = Table::new().await;
    let file = File::new(
        "broken.yaml",
        "weirgate: 1\nsystem:\n  limits:\n    rpm: {per_week: 60}\n",
    );
    for command in ["diff", "plan", "apply"] {
        let run = table.run(["limits", command, file.path()]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains("broken.yaml:4:11: "), "{run:?}");
    }
    let plan = File::new("broken.plan", r#"{"weirgate_plan":1,"#);
    let run = table.run(["limits", "apply", plan.path()]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("line 1 column"), "{run:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limits_file_is_shown_and_applied_after_a_confirmation() {
    let table = Table::new().await;
    let file = File::new("confirm.yaml", FILE);
    let apply = ["limits", "apply", file.path()];
    let count = || {
        table.json("limits list --resources")["items"]
            .as_array()
            .map(Vec::len)
    };
    let unasked = table.run(apply);
    assert_eq!((unasked.code, count()), (Some(2), Some(0)), "{unasked:?}");
    assert!(unasked.stderr.contains("add --yes"), "{unasked:?}");
    assert!(unasked.stdout.ends_with("\n4 changes\n"), "{unasked:?}");
    for (typed, code, changed) in [("no\n", 2, 0), ("\n", 2, 0), ("yes\n", 0, 1)] {
        let asked = table.run_typing(typed, apply);
        assert_eq!(
            (asked.code, count()),
            (Some(code), Some(changed)),
            "{asked:?}"
        );
        assert!(asked.stderr.contains("Type yes"), "{asked:?}");
    }
    table.text("limits delete --system");
    let again = [&apply[..], &["--yes"]].concat();
    assert_eq!(
        table.json(&again),
        json!({"applied": 1, "applied_before": 0})
    );
    assert_eq!(table.text(&again), "no changes\napplied: 0\n");
    let missing = table.run("limits apply no-such-file");
    assert!(
        missing.code == Some(2) && missing.stderr.contains("no-such-file"),
        "{missing:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn more_levels_than_one_request_reads_are_planned_and_applied() {
    let table = Table::new().await;
    let mut text = "weirgate: 1\nentities:\n".to_owned();
    for number in 0..250 {
        text += &format!(
            "  user-{number}: {{limits: {{rpm: {{per_minute: {}}}}}, parent: team}}\n",
            number + 1
        );
    }
    let (file, plan) = (File::new("many.yaml", &text), File::new("many.plan", ""));
    table.text(["limits", "plan", file.path(), "--out", plan.path()]);
    assert_eq!(table.json(["limits", "apply", plan.path()])["applied"], 500);
    let found = table.json("limits get --entity user-249");
    assert_eq!(found["config"]["limits"][0]["capacity_tokens"], 250);
    assert_eq!(table.text(["limits", "diff", file.path()]), "no changes\n");
}

/// The cycle is with an entity that the file does not have.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_whose_end_state_has_a_cycle_changes_nothing() {
    let table = Table::new().await;
    table.text("entities set a --parent b --cascades");
    let file = File::new(
        "cycle.yaml",
        "weirgate: 1\nsystem:\n  limits: {rpm: {per_minute: 5}}\nentities:\n  b: {parent: c}\n  c: {parent: a}\n",
    );
    let plan = File::new("cycle.plan", "");
    table.text(["limits", "plan", file.path(), "--out", plan.path()]);
    let run = table.run(["limits", "apply", plan.path()]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("its own ancestor"), "{run:?}");
    assert_eq!(table.json("limits get --system")["config"], Value::Null);
}
