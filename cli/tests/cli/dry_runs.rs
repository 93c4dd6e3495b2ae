//! A dry run says what the run would: it is refused by what refuses the run.

use serde_json::json;
use weirgate_testkit::Temporary;

use super::fixtures::{Run, Table};

/// Runs that are refused: what prepares the table, and the command. `plan` plans a file, whose plan is `PLAN`.
/// A dry run of `purge` counts before the namespace is stopped, too.
const REFUSED: &str = "\
limits set --resource api s=40/minute; acquire e api s=1 => limits set --resource api s=4
limits set --plan pro a=1; entities set e --plan pro => limits delete --plan pro
limits set --system s=4; limits set --resource api s=4/minute; acquire e api s=1 => limits delete --resource api
limits set --plan pro a=1; entities set e --plan pro => plans delete pro
limits set --plan pro a=1/minute; entities set e --plan pro; acquire e api a=1; limits set --system a=1 => plans delete pro --force
limits set --plan pro a=1/minute; entities set e --plan pro; acquire e api a=1; limits set --system a=1 => entities delete e
 => leases release e api 0000000000011
 => leases release e api x
 => stop --entity e/
limits set --system a=1/day; acquire e api a=1 => reset e api b
limits set --system a=1/day; acquire e api a=1 => reset e api a=2
limits set --system a=1; acquire e api a=1 --lease 1h => drain e api a
 => drain e api
 => top-up e api a=1
limits set --system a=1/day; acquire e api a=1 => top-up e api b=1
 => pause e api 30s
limits set --system a=1; acquire e api a=1 --lease 1h => erase e
 => replay /nowhere
plan {system: {limits: {rpm: 60/minute}}}; limits set --system rpm=1/minute => limits apply PLAN
plan {plans: {odd: {limits: {rpm: 5}}}, entities: {e: {plan: odd}}}; acquire e api rpm=1 --limit rpm=60/minute => limits apply PLAN
plan {entities: {e: {parent: team}}}; entities set e --parent other => limits apply PLAN
plan {entities: {e: {parent: team}}}; entities set team --parent e => limits apply PLAN";

/// Returns a command as it asks for nothing.
fn yes(command: &str) -> String {
    let asks = !["top-up", "pause", "resume", "replay"].contains(&word(command));
    format!("{command}{}", if asks { " --yes" } else { "" })
}

fn word(command: &str) -> &str {
    command.split(' ').next().unwrap_or_default()
}

/// Returns what is wrong with a dry run of a command that is refused.
fn differs(table: &Table, command: &str) -> Option<String> {
    let command = yes(command);
    let dry = table.run(&*format!("{command} --dry-run"));
    let run = table.run(&*command);
    let is_same = |one: &Run, other: &Run| one.code == other.code && one.stderr == other.stderr;
    (run.code == Some(0) || !is_same(&dry, &run)).then(|| format!("{command}: {dry:?} {run:?}"))
}

/// Plans a limits file of this text.
fn planned(table: &Table, text: &str, plan: &Temporary) {
    let file = Temporary::file("limits.yaml", text);
    table.text(["limits", "plan", file.path(), "--out", plan.path()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_refuses_a_run_refuses_its_dry_run() {
    let mut wrong = vec![];
    for row in REFUSED.lines() {
        let (before, command) = row.split_once(" => ").expect(row);
        let table = Table::new().await;
        let plan = Temporary::file("limits.plan", "");
        for deed in before.split("; ").filter(|deed| !deed.is_empty()) {
            match deed.strip_prefix("plan {") {
                Some(fields) => planned(&table, &format!("{{weirgate: 1, {fields}"), &plan),
                None => drop(table.text(deed)),
            }
        }
        wrong.extend(differs(&table, &command.replace("PLAN", plan.path())));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_a_plan_that_was_applied_changes_nothing_as_its_run() {
    let (table, plan) = (Table::new().await, Temporary::file("limits.plan", ""));
    planned(&table, "{weirgate: 1, system: {limits: {rpm: 60/minute}}}", &plan);
    let apply = ["limits", "apply", plan.path(), "--yes"];
    table.text(apply);
    let dry = table.json([&apply[..], &["--dry-run"]].concat());
    let run = table.json(apply);
    assert_eq!((&dry["configs"], &run["applied"]), (&json!([]), &json!(0)), "{dry} {run}");
}
