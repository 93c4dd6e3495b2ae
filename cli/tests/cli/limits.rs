//! Limits from a file into the table: differences, plans, changes.

use serde_json::{Value, json};
use weirgate_testkit::{Dynamo, Temporary};

use super::fixtures::Table;

const FILE: &str = "\
weirgate: 1
system:
  limits:
    rpm: {per_minute: 60}
resources:
  gpt-4:
    limits:
      tpm: 1_000/minute,burst=2_000
      slots: 3
entities:
  user-1:
    parent: team-a
    resources:
      gpt-4:
        limits:
          rpm: {per_minute: 30}
";

/// Returns the configuration of a level.
fn config(table: &Table, level: &str) -> Value {
    let run = table.run(&*format!("--json limits get {level}"));
    match run.code {
        Some(0) => serde_json::from_str::<Value>(&run.stdout).unwrap()["config"].clone(),
        code => {
            let is_missing = run.stderr.contains("has no configuration");
            assert!(is_missing && code == Some(1), "{run:?}");
            Value::Null
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_applied_once_and_its_repetition_changes_nothing() {
    let table = Table::new().await;
    let (file, plan) = (Temporary::file("apply.yaml", FILE), Temporary::file("apply.plan", ""));
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
    assert_eq!(table.json(apply), json!({"applied": 4, "applied_before": 0}));
    assert_eq!(table.json(apply), json!({"applied": 0, "applied_before": 4}));
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
    let file = Temporary::file("diff.yaml", FILE);
    let run = table.run(["limits", "diff", file.path(), "--exit-code"]);
    assert_eq!(run.code, Some(7), "{run:?}");
    let rows: Vec<Vec<_>> =
        run.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    for row in [
        "resource gpt-4 limit tpm 500/minute 1000/minute,burst=2000",
        "resource gpt-4 limit old 1 -",
        "resource gpt-4 limit slots - 3",
        "entity user-1 parent - team-a",
        "system limit rpm - 60/minute",
        "4 changes",
    ] {
        let row: Vec<_> = row.split(' ').collect();
        assert!(rows.contains(&row), "{row:?}: {}", run.stdout);
    }
    let is_usual = |row: &Vec<_>| row.contains(&"shadow") || row.contains(&"status");
    assert!(!rows.iter().any(is_usual), "both are as usual: {}", run.stdout);
    // Without the option, differences are no failure.
    assert_eq!(table.run(["limits", "diff", file.path()]).code, Some(0));
    assert_eq!(config(&table, "--system"), Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_is_outdated_changes_nothing() {
    let table = Table::new().await;
    let (file, plan) = (Temporary::file("old.yaml", FILE), Temporary::file("old.plan", ""));
    table.text(["limits", "plan", file.path(), "--out", plan.path()]);
    // Set and deleted: the value is the one that was planned with, its version is not.
    table.text("limits set --resource gpt-4 rpm=1/minute");
    table.text("limits delete --resource gpt-4 --yes");
    let run = table.run(["limits", "apply", plan.path()]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(
        run.stderr.contains("the configuration of resource gpt-4 has changed since"),
        "{run:?}"
    );
    assert_eq!(config(&table, "--system"), Value::Null);

    let other = table.run(["--namespace", "other", "limits", "apply", plan.path()]);
    assert_eq!(other.code, Some(2), "{other:?}");
    assert!(
        other.stderr.contains(r#"the plan is for namespace "default", got "other""#),
        "{other:?}"
    );
}

/// What another operator does after the plan, and whether the plan can still be applied: only what an interrupted run
/// of the plan itself leaves behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_undoes_no_change_of_a_parent_that_another_operator_made() {
    let table = Table::new().await;
    for (planned, since, code) in [
        ("team", "", 0),
        ("team", "--no-parent", 2),
        ("team", "--parent team --no-cascades", 2),
        ("team", "--parent else --cascades", 2),
        ("other", "--parent else --cascades", 2),
        ("other", "--parent team --no-cascades", 2),
        ("other", "--no-parent", 0),
    ] {
        table.text("limits set --plan basic rpm=5/minute");
        table.text("entities set u1 --parent team --cascades --plan basic");
        let text = format!(
            "weirgate: 1\nplans:\n  pro: {{limits: {{rpm: 9/minute}}}}\nentities:\n  u1: {{parent: {planned}, plan: pro}}\n"
        );
        let (file, plan) =
            (Temporary::file("moves.yaml", &text), Temporary::file("moves.plan", ""));
        table.text(["limits", "plan", file.path(), "--out", plan.path()]);
        if !since.is_empty() {
            table.text(&*format!("entities set u1 {since}"));
        }
        let found = table.json("entities get u1");
        let run = table.run(["limits", "apply", plan.path()]);
        assert_eq!(run.code, Some(code), "{planned} {since}: {run:?}");
        if code == 2 {
            assert!(run.stderr.contains("entity u1 has changed since"), "{run:?}");
            assert_eq!(table.json("entities get u1"), found, "{planned} {since}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_file_is_reported_with_line_and_column() {
    let table = Table::new().await;
    let file = Temporary::file(
        "broken.yaml",
        "weirgate: 1\nsystem:\n  limits:\n    rpm: {per_week: 60}\n",
    );
    for command in ["diff", "plan", "apply"] {
        let run = table.run(["limits", command, file.path()]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains("broken.yaml:4:11: "), "{run:?}");
    }
    for text in [
        "weirgate: 1\nsystem:\n  limits:\n    rpm: 5/minute\n    rpm: 6/minute\n",
        "weirgate: 1\nsystem:\n  limits:\n    rpm: 5/minute\n    \"rpm\": {per_minute: 6}\n",
    ] {
        let file = Temporary::file("twice.yaml", text);
        let run = table.run(["limits", "diff", file.path()]);
        assert_eq!(run.code, Some(2), "{run:?}");
        for part in ["twice.yaml:5:5: ", "duplicated key \"rpm\": put the two together"] {
            assert!(run.stderr.contains(part), "{run:?}");
        }
    }
    let plan = Temporary::file("broken.plan", r#"{"weirgate_plan":1,"#);
    let run = table.run(["limits", "apply", plan.path()]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("line 1 column"), "{run:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limits_file_is_shown_and_applied_after_a_confirmation() {
    let table = Table::new().await;
    let file = Temporary::file("confirm.yaml", FILE);
    let apply = ["limits", "apply", file.path()];
    let count = || table.json("limits list --resources")["items"].as_array().map(Vec::len);
    let unasked = table.run(apply);
    assert_eq!((unasked.code, count()), (Some(2), Some(0)), "{unasked:?}");
    assert!(unasked.stderr.contains("add --yes"), "{unasked:?}");
    assert!(unasked.stdout.ends_with("\n4 changes\n"), "{unasked:?}");
    for (typed, code, changed) in [("no\n", 2, 0), ("\n", 2, 0), ("yes\n", 0, 1)] {
        let asked = table.run_typing(typed, apply);
        assert_eq!((asked.code, count()), (Some(code), Some(changed)), "{asked:?}");
        assert!(asked.stderr.contains("Type yes"), "{asked:?}");
    }
    table.text("limits delete --system --yes");
    // The same command makes other changes then.
    let other = || drop(table.text("limits set --system rpm=7/minute"));
    let raced = table.run_asked(other, apply);
    assert_eq!(raced.code, Some(1), "{raced:?}");
    let says = raced.stderr.contains("run it again") && !raced.stderr.contains("plan");
    assert!(says, "{raced:?}");
    table.text("limits delete --system --yes");
    let as_json = ["--json", "limits", "apply", file.path()];
    let asked = table.run_typing("no\n", as_json);
    let (shown, _) = asked.stderr.split_once("Type yes").expect("it asks");
    assert!(shown.contains("60/minute\n1 change\n"), "{asked:?}");
    assert_eq!(asked.stdout, "", "{asked:?}");
    let again = [&apply[..], &["--yes"]].concat();
    assert_eq!(table.json(&again), json!({"applied": 1, "applied_before": 0}));
    assert_eq!(table.text(&again), "no changes\napplied: 0\n");
    let missing = table.run("limits apply no-such-file");
    assert!(missing.code == Some(2) && missing.stderr.contains("no-such-file"), "{missing:?}");
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
    let (file, plan) = (Temporary::file("many.yaml", &text), Temporary::file("many.plan", ""));
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
    let file = Temporary::file(
        "cycle.yaml",
        "weirgate: 1\nsystem:\n  limits: {rpm: {per_minute: 5}}\nentities:\n  b: {parent: c}\n  c: {parent: a}\n",
    );
    let plan = Temporary::file("cycle.plan", "");
    table.text(["limits", "plan", file.path(), "--out", plan.path()]);
    let run = table.run(["limits", "apply", plan.path()]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("its own ancestor"), "{run:?}");
    assert_eq!(config(&table, "--system"), Value::Null);
}

/// Every kind of level, a resource and an entity that only this level names, and a parent without
/// cascade.
const ALL_LEVELS: &str = "\
weirgate: 1
system:
  status: unlimited
resources:
  gpt-4:
    shadow: true
    limits:
      rpm: 600/minute,burst=800
      slots: 20,mode=soft
  kinds:
    class: batch
    limits:
      s: session:200/5h,mode=soft
      tpd: 1000/day,class=batch:10%:30%,class=night:5%
      tpm: quota:10000/month,day=15,at=09:00,tz=Europe/Berlin
      wps: 10/second,schedule=0 8 * * 1-5 for 10h scale 2/1 tz Europe/Berlin
entities:
  \"007\":
    parent: team-a
    cascades: false
    limits:
      rpm: 5/1h30m
  user-1:
    parent: team-a
    resources:
      \"api:v1\":
        status: disabled
      embed:
        limits:
          tpm: 1000/second
";

#[tokio::test(flavor = "multi_thread")]
async fn an_export_is_applied_to_an_empty_table_and_exported_the_same() {
    let table = Table::new().await;
    assert_eq!(table.text("limits export"), "weirgate: 1\n");
    let file = Temporary::file("all.yaml", ALL_LEVELS);
    table.text(["limits", "apply", file.path(), "--yes"]);
    // What no limits file has is in none.
    table.text("entities set alone");
    table.text("--namespace other limits set --system rpm=1/minute");
    assert_eq!(table.text("limits export"), ALL_LEVELS);
    for prune in [&[][..], &["--prune"]] {
        let apply = [&["limits", "apply", file.path()], prune].concat();
        assert_eq!(table.text(apply), "no changes\napplied: 0\n", "nothing is asked");
    }
    let exported = table.json("limits export");
    assert_eq!(exported["configs"].as_array().map(Vec::len), Some(6));
    assert_eq!(exported["entities"].as_array().map(Vec::len), Some(2));
    let other = Table::new().await;
    let again = Temporary::file("again.yaml", &table.text("limits export"));
    other.text(["limits", "apply", again.path(), "--yes"]);
    assert_eq!(other.text("limits export"), ALL_LEVELS);
    let listed = table.text("limits list");
    for row in [
        "system                       unlimited",
        "resource gpt-4               rpm=600/minute,burst=800 slots=20,mode=soft, shadow: denies nothing",
        "entity 007                   rpm=5/1h30m",
        "entity user-1 on resource api:v1  disabled",
        "entity user-1 on resource embed   tpm=1000/second",
    ] {
        let words: Vec<_> = row.split_whitespace().collect();
        let mut rows = listed.lines().map(|line| line.split_whitespace());
        assert!(rows.any(|row| row.eq(words.iter().copied())), "{row}: {listed}");
    }
    let of_resource = table.json("limits list --resource gpt-4");
    assert_eq!(of_resource["items"][0]["level"]["level"], "resource", "its own too");
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_are_set_and_shown() {
    let table = Table::new().await;
    table.text(
        "limits set --entity acme --resource api \
         tpm=quota:10000/month,day=15,at=09:00,tz=europe/berlin s=session:200/5h,mode=soft",
    );
    let found = table.json("limits get --entity acme --resource api");
    let [session, month] = [0, 1].map(|at| found["config"]["limits"][at].clone());
    assert_eq!(session["window"], json!({"session_ms": 18_000_000}));
    assert_eq!(
        month["window"],
        json!({"every": "month", "day": 15, "at": "09:00", "tz": "Europe/Berlin"})
    );
    let balances = table.text("peek acme api");
    let row = |limit: &str| {
        let mut rows = balances.lines().filter(|row| row.starts_with(limit));
        rows.next()
            .unwrap_or_else(|| panic!("{balances}"))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let month = row("tpm ");
    assert!(
        month.starts_with("tpm 10000 10000 resets on 15 ") && month.contains(" 09:00 (Berlin)"),
        "{month}"
    );
    assert!(row("s ").contains("5h from the first use"), "{balances}");
    let why = table.json("why acme api");
    let resets = why["limits"][1]["resets"].as_str();
    assert!(resets.is_some_and(|text| text.ends_with(" 09:00 (Berlin)")), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_set_and_shown() {
    // In force at all times, with a boundary each minute.
    let rule = "* * * * * for 1m scale 2/1 tz Europe/Berlin";
    let (table, limit) = (Table::new().await, format!("rpm=600/minute,schedule={rule}"));
    table.text(["limits", "set", "--resource", "api", &limit]);
    assert_eq!(table.text("limits get --resource api").trim(), limit);
    let found = table.json("limits get --resource api");
    assert_eq!(
        found["config"]["limits"][0]["schedule"],
        json!([{"cron": "* * * * *", "for": "1m", "scale": "2/1", "tz": "Europe/Berlin"}])
    );
    table.text("acquire acme api rpm=1000");
    for asked in ["why acme api", "why fresh api"] {
        let why = table.json(asked);
        let limit = &why["limits"][0];
        assert_eq!(limit["capacity_tokens"], 1_200, "{why}");
        assert_eq!(limit["from"]["level"], "resource", "{why}");
        let scale = limit["scale"].as_str();
        let is_shown = |text: &str| text.starts_with("2/1 until ") && text.ends_with(" (Berlin)");
        assert!(scale.is_some_and(is_shown), "{why}");
        assert!(table.text(asked).contains("resource api: 2/1 until "));
    }
    table.text("split fresh api --shards 2");
}

#[tokio::test(flavor = "multi_thread")]
async fn classes_are_set_shown_applied_and_used() {
    let table = Table::new().await;
    let limit = "tpm=1000/day,class=batch:10%:30%,class=night:5%";
    let set = ["limits", "set", "--resource", "api", limit, "--class", "batch"];
    let told = table.text(set);
    assert!(told.contains("class      -       batch"), "{told}");
    assert_eq!(
        table.text("limits get --resource api").trim(),
        format!("{limit}\ncallers are of class batch")
    );
    let listed = table.text("limits list");
    assert!(listed.contains(&format!("{limit}, callers are of class batch")), "{listed}");
    let map = "weirgate: 1\nresources:\n  api:\n    class: batch\n    limits:\n      tpm:\n        \
               per_day: 1000\n        classes: {night: {at_least: 5%}, batch: {at_least: 10%, leaves: 30%}}\n";
    let moved = Temporary::file("moved.yaml", &map.replace("class: batch", "class: night"));
    let diff = table.run(["limits", "diff", moved.path(), "--exit-code"]);
    assert!(diff.code == Some(7) && diff.stdout.contains("class  batch   night"), "{diff:?}");

    // A request cannot choose another class than the configured one.
    for class in ["", "--class night"] {
        let never = table.run(format!("acquire acme api tpm=596 {class}").as_str());
        assert_eq!(never.code, Some(4), "{never:?}");
    }
    table.text("acquire acme api tpm=100");
    for asked in ["why acme api", "peek acme api"] {
        let found = table.json(asked);
        assert_eq!(found["limits"].as_array().map(Vec::len), Some(1), "{found}");
        assert_eq!(found["limits"][0]["limit"], "tpm", "{found}");
        assert_eq!(found["limits"][0]["capacity_tokens"], 1_000, "{found}");
    }
    assert_eq!(table.json("why acme api")["limits"][0]["from"]["level"], "resource");
    let buckets = table.text("buckets --entity acme");
    assert!(buckets.contains("tpm 900/1000"), "{buckets}");
    let usage = table.json("usage --entity acme --total");
    assert_eq!(usage["usage"]["tokens"], json!({"tpm": 100}), "{usage}");
    table.text("limits set --resource api --class night");
    let audit = table.text("audit --resource api");
    assert!(audit.contains("resource api class"), "{audit}");

    let own = "acquire user gpu rpm=9 --limit rpm=100/day,class=batch:10%:50%";
    table.text(format!("{own} --class batch").as_str());
    let denied =
        table.run("acquire user gpu rpm=46 --limit rpm=100/day,class=batch:10%:50% --class batch");
    assert_eq!(denied.code, Some(4), "{denied:?}");
    let refused = table.run(format!("{own} --class other").as_str());
    assert!(
        refused.code == Some(2)
            && refused.stderr.contains("class \"other\" is not among those of the limits: batch"),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_removes_what_the_file_has_not_and_asks_for_that_apart() {
    let table = Table::new().await;
    let (all, few) = (
        Temporary::file("prune-all.yaml", ALL_LEVELS),
        Temporary::file(
            "few.yaml",
            "weirgate: 1\nresources:\n  gpt-4:\n    limits:\n      rpm: 5/minute\n",
        ),
    );
    table.text(["limits", "apply", all.path(), "--yes"]);
    table.text(["--namespace", "other", "limits", "apply", all.path(), "--yes"]);
    let kept = table.text(["limits", "diff", few.path()]);
    assert!(kept.ends_with("\n1 change\n"), "{kept}");
    let prune = ["limits", "apply", few.path(), "--prune"];
    let shown = table.text([&prune[..], &["--dry-run"]].concat());
    let count = "8 changes, of which 7 remove limits of a level, a parent or a plan\n";
    assert!(shown.ends_with(count), "{shown}");
    assert!(shown.contains("limit tpm") && !shown.contains("other"), "{shown}");
    for typed in ["yes\nno\n", "no\nprune\n", "prune\n"] {
        let declined = table.run_typing(typed, prune);
        assert_eq!(declined.code, Some(2), "{typed:?}: {declined:?}");
        assert_eq!(table.text("limits export"), ALL_LEVELS, "{typed:?}");
    }
    let asked = table.run_typing("yes\nprune\n", prune);
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let question = format!("remove 7 levels, parents and plans that {} does not have", few.path());
    assert!(asked.stderr.contains(&question), "{asked:?}");
    let left = table.text("limits export");
    assert_eq!(left, std::fs::read_to_string(few.path()).unwrap());
    assert_eq!(table.text("--namespace other limits export"), ALL_LEVELS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saved_plan_prunes_what_it_was_made_with_and_nothing_later() {
    let table = Table::new().await;
    table.text("limits set --resource old rpm=5/minute");
    let file = Temporary::file("later.yaml", FILE);
    let plan = Temporary::file("later.plan", "");
    let made = ["limits", "plan", file.path(), "--prune", "--out", plan.path()];
    let planned = table.json(made);
    let removed = planned["configs"].as_array().unwrap();
    assert_eq!(removed.last().unwrap()["after"], Value::Null, "{planned}");
    table.text("limits set --resource new rpm=5/minute");
    let twice = table.run(["limits", "apply", plan.path(), "--prune"]);
    assert!(twice.code == Some(2) && twice.stderr.contains("leave --prune out"));
    let unasked = table.run(["limits", "apply", plan.path()]);
    assert_eq!(unasked.code, Some(2), "{unasked:?}");
    for part in ["remove 1 levels, parents and plans", "add --yes"] {
        assert!(unasked.stderr.contains(part), "{part}: {unasked:?}");
    }
    let shown = table.text(["limits", "apply", plan.path(), "--dry-run"]);
    assert!(shown.contains("1 remove"), "{shown}");
    let declined = table.run_typing("yes\n", ["limits", "apply", plan.path()]);
    assert_eq!(declined.code, Some(2), "{declined:?}");
    assert!(table.json("limits get --resource old")["config"].is_object());
    table.text(["limits", "apply", plan.path(), "--yes"]);
    assert_eq!(config(&table, "--resource old"), Value::Null);
    assert!(config(&table, "--resource new").is_object());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limits_file_comes_from_standard_input() {
    let table = Table::new().await;
    let shown = table.run_reading(FILE, "limits diff -");
    assert!(shown.stdout.ends_with("\n4 changes\n"), "{shown:?}");
    let unasked = table.run_reading(FILE, "limits apply -");
    assert!(unasked.code == Some(2) && unasked.stderr.contains("add --yes"), "{unasked:?}");
    let done = table.run_reading(FILE, "limits apply - --yes");
    assert_eq!(done.code, Some(0), "{done:?}");
    let wrong = table.run_reading("weirgate: 2\n", "limits diff -");
    assert!(wrong.stderr.contains("standard input:1:11: "), "{wrong:?}");
}

/// Only other means can write a part of a token.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_limits_file_has_is_no_export() {
    let dynamo = Dynamo::new().await;
    let table = Table::of(&dynamo);
    table.text("limits set --system rpm=5/minute");
    let mut item = dynamo.item("default/SYSTEM#", "#CONFIG");
    item["limits"]["M"]["rpm"]["M"]["ra"] = json!({"N": "1500"});
    dynamo.put(&item);
    let refused = table.run("limits export");
    assert_eq!((refused.code, &*refused.stdout), (Some(1), ""), "{refused:?}");
    assert!(refused.stderr.contains("rpm=1.5/minute"), "{refused:?}");
}

/// By each way to change limits; the same is told before anything is written.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_kind_is_refused_by_every_command_that_plans_or_makes_it() {
    let table = Table::new().await;
    table.text("limits set --resource lv s=40/minute");
    table.text("acquire e lv s=1");
    let level = "{limits: {s: 4}}";
    let files = [
        format!("weirgate: 1\nentities:\n  e:\n    resources:\n      lv: {level}\n"),
        format!("weirgate: 1\nentities:\n  e: {level}\n"),
        format!("weirgate: 1\nresources:\n  lv: {level}\n"),
    ];
    let levels = ["--entity e --resource lv", "--entity e", "--resource lv"];
    for is_deleted in [false, true] {
        for (level, file) in levels.iter().zip(&files) {
            if is_deleted && level.starts_with("--entity e --") {
                continue;
            }
            let file = Temporary::file("kind.yaml", file);
            let set = format!("limits set {level} s=4");
            let dry = format!("{set} --dry-run");
            let [diff, plan] =
                ["diff", "plan"].map(|name| format!("limits {name} {}", file.path()));
            let apply = format!("limits apply {} --yes", file.path());
            let prune = format!("{apply} --prune");
            for command in [set, dry, diff, plan, apply, prune] {
                let run = table.run(&*command);
                assert_eq!((run.code, &*run.stdout), (Some(2), ""), "{command}: {run:?}");
                for part in ["\"s\"", "a rate", "slots", "another name", "of e on lv"] {
                    assert!(run.stderr.contains(part), "{command}: {run:?}");
                }
                assert!(!run.stderr.contains("that are left"), "{command}: {run:?}");
            }
            let acquire = "acquire e lv s=1 --limit s=40/minute";
            assert_eq!(table.run(acquire).code, Some(0));
        }
        if !is_deleted {
            table.text("limits delete --resource lv --yes");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_overwrites_only_a_plan() {
    let table = Table::new().await;
    let (file, other) = (Temporary::file("in.yaml", FILE), Temporary::file("other", "my notes\n"));
    let plan = Temporary::file("new.plan", "");
    std::fs::remove_file(plan.path()).unwrap();
    let link = Temporary::file("link.yaml", "");
    std::fs::remove_file(link.path()).unwrap();
    std::os::unix::fs::symlink(file.path(), link.path()).unwrap();
    let read = |file: &Temporary| std::fs::read_to_string(file.path()).unwrap();
    for (out, force) in
        [(&file, &[][..]), (&file, &["--force"]), (&link, &["--force"]), (&other, &[])]
    {
        let words = [&["limits", "plan", file.path(), "--out", out.path()], force].concat();
        let refused = table.run(words);
        assert_eq!((refused.code, &*refused.stdout), (Some(2), ""), "{refused:?}");
        for part in ["--out must be", out.path(), "name another one"] {
            assert!(refused.stderr.contains(part), "{part}: {refused:?}");
        }
        assert_eq!((&*read(&file), &*read(&other)), (FILE, "my notes\n"));
    }
    for _ in ["new", "a plan"] {
        table.text(["limits", "plan", file.path(), "--out", plan.path()]);
        assert!(read(&plan).starts_with("{\"weirgate_plan\""));
    }
    let forced = ["limits", "plan", file.path(), "--out", other.path(), "--force"];
    table.text(forced);
    assert_eq!(read(&other), read(&plan));
    let printed = table.text(["limits", "plan", file.path(), "--out", "-"]);
    assert_eq!(printed, read(&plan));
    assert!(!std::path::Path::new("-").exists());
    let applied = table.run_reading(&printed, "limits apply -");
    assert_eq!(applied.code, Some(0), "{applied:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comment_makes_no_plan() {
    let table = Table::new().await;
    let text = format!("# from a \"weirgate_plan\"\n{FILE}");
    let done = table.run_reading(&text, "limits apply - --yes");
    assert_eq!(done.code, Some(0), "{done:?}");
}

/// Plans, their entities and their removal: as commands, and as a file that is exported and applied.
#[tokio::test(flavor = "multi_thread")]
async fn plans_are_set_listed_exported_applied_and_deleted() {
    let table = Table::new().await;
    let refused = table.run("entities set acme --plan pro");
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("plan pro has no limits"), "{refused:?}");
    table.text("limits set --system rpm=60/minute");
    table.text("limits set --plan pro rpm=600/minute");
    table.text("limits set --plan pro --resource gpt-4 rpm=900/minute");
    table.text("entities set acme --parent team --cascades");
    table.text("entities set acme --plan pro");
    let entity = table.json("entities get acme");
    assert_eq!((&entity["parent"], &entity["plan"]), (&json!("team"), &json!("pro")));
    table.text("entities set acme --parent org");
    let entity = table.json("entities get acme");
    assert_eq!((&entity["parent"], &entity["plan"]), (&json!("org"), &json!("pro")));
    let plans = table.json("plans list");
    assert_eq!(plans["items"][0]["resources"]["gpt-4"]["limits"][0]["text"], "rpm=900/minute");
    assert_eq!(plans["items"][0]["default"]["limits"][0]["text"], "rpm=600/minute");
    assert_eq!(plans["items"][0]["plan"], "pro");
    assert_eq!(table.json("entities list --plan pro")["items"], json!(["acme"]));
    let why = table.text("why acme gpt-4");
    assert!(why.contains("* plan pro on resource gpt-4"), "{why}");

    let both = table.run("limits get --plan pro --entity acme");
    assert_eq!(both.code, Some(2), "{both:?}");
    for name in ["a/b", "a#b"] {
        let run = table.run(["limits", "set", "--plan", name, "rpm=1/minute"]);
        assert!(run.code == Some(2) && run.stderr.contains("is not a valid name"), "{run:?}");
    }

    let exported = table.text("limits export");
    assert!(exported.contains("plans:\n  pro:\n    limits:"), "{exported}");
    assert!(exported.contains("  acme:\n    plan: pro\n    parent: org"), "{exported}");
    let file = Temporary::file("plans.yaml", &exported);
    assert_eq!(table.text(["limits", "diff", file.path()]), "no changes\n");
    // Another table gets the same; there the plans come before their entities.
    let other = Table::new().await;
    other.text(["limits", "apply", file.path(), "--yes"]);
    assert_eq!(other.text("limits export"), exported);
    // What the file lacks is removed after its entities have left it.
    let file =
        Temporary::file("less.yaml", "weirgate: 1\nsystem:\n  limits:\n    rpm: 60/minute\n");
    other.text(["limits", "apply", file.path(), "--prune", "--yes"]);
    assert_eq!(other.json("plans list")["items"], json!([]));
    assert_eq!(other.json("entities get acme")["plan"], Value::Null);

    table.text("acquire acme gpt-4 rpm=3");
    let used = table.json("usage --plan pro --from 1h --by hour");
    assert_eq!(used["items"][0]["entity"], "acme", "{used}");
    table.text("stop --plan pro --yes");
    assert_eq!(table.run("acquire acme gpt-4 rpm=1").code, Some(5));
    table.text("start --plan pro");

    let refused = table.run("plans delete pro --yes");
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("plan pro is in use: entities with it are 1,"), "{refused:?}");
    table.text("plans delete pro --force --yes");
    let why = table.text("why acme gpt-4");
    assert!(why.contains("plan pro has no limits"), "{why}");
    assert!(why.contains("plan pro has no limits: those of "), "{why}");
    let doctor = table.run("doctor");
    let says = "entities have plans without limits: pro (entities: 1)";
    assert!(doctor.stdout.contains(says), "{doctor:?}");
    let note = "plan pro has no limits: run `weirgate limits set --plan pro rpm=600/minute`, or give the entity another";
    for (amount, code) in [(1, 0), (900, 4)] {
        let run = table.run(format!("acquire acme gpt-4 rpm={amount}").as_str());
        assert_eq!(run.code, Some(code), "{run:?}");
        assert!(run.stderr.contains(note), "{run:?}");
    }
    let answer = table.json("acquire acme gpt-4 rpm=1");
    assert_eq!(answer["missing_plan"], "pro", "{answer}");
    table.text("limits set --entity acme rpm=60/minute");
    let why = table.text("why acme gpt-4");
    let is_right = why.contains("plan pro has no limits") && !why.contains("those of");
    assert!(is_right, "{why}");
    table.text("limits delete --entity acme --yes");
    assert_eq!(table.json("audit --plan pro")["items"].as_array().unwrap().len(), 6);
}

/// Rules of a limit, and an optional part of each: its text, and its text in an export.
const PARTS: [(&str, &str); 8] = [
    ("rpm=500/minute", "burst=800"),
    ("rpm=500/minute", "mode=shadow"),
    ("rpm=500/minute", "class=batch:10%:30%"),
    ("rpm=500/minute", "schedule=0 8 * * 1-5 for 10h scale 2/1"),
    ("rpm=20", "mode=soft"),
    ("rpm=session:200/5h", "mode=soft"),
    ("rpm=quota:100/month", "day=15"),
    ("rpm=quota:100/day", "tz=Europe/Berlin"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_a_limit_that_is_not_named_is_dropped_after_a_confirmation() {
    let table = Table::new().await;
    for (at, (rule, part)) in PARTS.into_iter().enumerate() {
        let level = format!("e-{at}");
        let set = ["limits", "set", "--entity", &level];
        let shown = || table.text(["limits", "get", "--entity", &level]);
        let whole = format!("{rule},{part}");
        table.text([&set[..], &[&whole]].concat());
        let before = shown();
        for options in [&[][..], &["--replace"]] {
            let unasked = table.run([&set[..], options, &[rule]].concat());
            assert_eq!(unasked.code, Some(2), "{whole}: {unasked:?}");
            let drops =
                format!("to drop {part} of limit rpm of entity {level} in namespace default");
            assert!(unasked.stderr.contains(&drops), "{whole}: {unasked:?}");
            assert_eq!(shown(), before, "{whole}");
        }
        let declined = table.run_typing("no\n", [&set[..], &[rule]].concat());
        assert_eq!(declined.code, Some(2), "{whole}: {declined:?}");
        let confirmed = table.run_typing("yes\n", [&set[..], &[rule]].concat());
        assert_eq!(confirmed.code, Some(0), "{whole}: {confirmed:?}");
        let again = table.text([&set[..], &[rule]].concat());
        assert!(again.starts_with("no changes: "), "{whole}: {again}");
        // Nothing is asked where nothing is lost.
        table.text([&set[..], &[&whole]].concat());
        assert_eq!(shown(), before, "{whole}");
    }
    // Slots have no burst, so another kind drops it.
    table.text("limits set --system rpm=5/minute,burst=8,mode=shadow");
    let other = table.run("limits set --system rpm=5");
    assert_eq!(other.code, Some(2), "{other:?}");
    let drops = "to drop burst=8 of limit rpm, mode=shadow of limit rpm of system";
    assert!(other.stderr.contains(drops), "{other:?}");
    // A part is named by its usual value too.
    table.text("limits set --system rpm=9/minute,burst=9,mode=enforced");
    assert_eq!(table.text("limits get --system"), "rpm=9/minute\n");
}

/// For each limit before, and each one that replaces it.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_audit_shows_as_before_restores_it() {
    let table = Table::new().await;
    let texts = PARTS.map(|(rule, part)| format!("{rule},{part}"));
    let named = |at: usize, text: &str| text.replacen("rpm", &format!("limit{at}"), 1);
    for (at, before) in texts.iter().enumerate() {
        let level = format!("e-{at}");
        let set = |limits: &[String]| {
            let limits: Vec<_> = limits.iter().map(String::as_str).collect();
            let set = ["limits", "set", "--yes", "--entity", &level];
            table.text([&set[..], &limits].concat())
        };
        let shown = || table.text(["limits", "get", "--entity", &level]);
        let all: Vec<_> = (0..texts.len()).map(|at| named(at, before)).collect();
        set(&all);
        let expected = shown();
        let others = texts.iter().enumerate();
        let others: Vec<_> = others.map(|(at, text)| named(at, text)).collect();
        set(&others);
        assert_ne!(shown(), expected, "{before}");
        let audit = table.json(["audit", "--entity", &level]);
        let limits = audit["items"][0]["change"]["before"]["limits"].as_array();
        let limits = limits.expect("a list").iter();
        let limits = limits.map(|limit| limit["text"].as_str().expect("a text").to_owned());
        set(&limits.collect::<Vec<_>>());
        assert_eq!(shown(), expected, "{before}: {audit}");
    }
}
