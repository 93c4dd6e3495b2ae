//! A dry run says what the run would: it is refused by what refuses the run.

use weirgate_testkit::Temporary;

use super::fixtures::{Run, Table};

/// Runs that are refused: what prepares the table, and the command. A dry run of `purge` counts before the
/// namespace is stopped, too.
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
 => replay /nowhere";

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

#[tokio::test(flavor = "multi_thread")]
async fn what_refuses_a_run_refuses_its_dry_run() {
    let mut wrong = vec![];
    for row in REFUSED.lines() {
        let (before, command) = row.split_once(" => ").expect(row);
        let table = Table::new().await;
        for deed in before.split("; ").filter(|deed| !deed.is_empty()) {
            table.text(deed);
        }
        wrong.extend(differs(&table, command));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

const LIMITS: &str = "weirgate: 1\nsystem:\n  limits:\n    rpm: 60/minute\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_an_apply_is_refused_as_the_apply() {
    let mut wrong = vec![];
    for (name, text, deeds) in [
        ("outdated", LIMITS, &["limits set --system rpm=1/minute"][..]),
        (
            "kind",
            "weirgate: 1\nplans:\n  odd:\n    limits:\n      rpm: 5\nentities:\n  e:\n    plan: odd\n",
            &["acquire e api rpm=1 --limit rpm=60/minute"],
        ),
        ("applied", LIMITS, &[]),
        (
            "entity",
            "weirgate: 1\nentities:\n  e: {parent: team}\n",
            &["entities set e --parent other"],
        ),
        (
            "cycle",
            "weirgate: 1\nentities:\n  e: {parent: team}\n",
            &["entities set team --parent e"],
        ),
    ] {
        let table = Table::new().await;
        let file = Temporary::file(&format!("dry-{name}.yaml"), text);
        let plan = Temporary::file(&format!("dry-{name}.plan"), "");
        table.text(["limits", "plan", file.path(), "--out", plan.path()]);
        for deed in deeds {
            table.text(*deed);
        }
        let apply = format!("limits apply {}", plan.path());
        wrong.extend(match name {
            // The plan itself was applied before.
            "applied" => {
                table.text(["limits", "apply", plan.path()]);
                let dry = table.json(&*format!("{apply} --yes --dry-run"));
                let run = table.json(&*format!("{apply} --yes"));
                let is_same = dry["configs"] == serde_json::json!([]) && run["applied"] == 0;
                (!is_same).then(|| format!("{name}: {dry} {run}"))
            }
            _ => differs(&table, &apply),
        });
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
