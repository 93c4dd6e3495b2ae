//! What decides about a bucket, and what to run next.

use serde_json::{Value, json};
use weirgate_testkit::Dynamo;

use super::fixtures::Table;

fn next(reasons: &Value) -> Vec<&str> {
    let next = reasons["next"].as_array().expect("a list");
    next.iter().filter_map(|next| next["command"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_limit_has_the_level_that_it_comes_from_and_its_balance() {
    let table = Table::new().await;
    let why = "why user-1 gpt-4";
    let nothing = table.json(why);
    assert_eq!((&nothing["limits"], &nothing["stopped_at"]), (&json!([]), &Value::Null));
    let set = "weirgate limits set --resource gpt-4 rpm=600/minute";
    assert_eq!(next(&nothing), [set], "what it names can be run");
    table.text(&set["weirgate ".len()..]);
    table.text("limits set --entity team rpm=5/day");
    table.text("entities set user-1 --parent team --cascades");
    table.text("acquire user-1 gpt-4 rpm=5");
    let reasons = table.json(why);
    let limits = reasons["limits"].as_array().expect("a list");
    let found: Vec<_> = limits
        .iter()
        .map(|limit| {
            (
                &limit["entity"],
                &limit["from"]["level"],
                &limit["from"]["resource"],
                &limit["from"]["entity"],
            )
        })
        .collect();
    let (own, parent) = (json!("user-1"), json!("team"));
    let (resource, entity, gpt) = (json!("resource"), json!("entity"), json!("gpt-4"));
    let none = &Value::Null;
    assert_eq!(found, [(&own, &resource, &gpt, none), (&parent, &entity, none, &parent)]);
    assert_eq!(reasons["levels"].as_array().map(Vec::len), Some(6), "{reasons}");
    let saturation = &limits[0]["saturation"];
    assert_eq!(saturation["used_tokens"], 5, "{saturation}");
    assert!(saturation["over_ms"].as_i64() > Some(0), "{saturation}");
    // Nothing is used while it is measured.
    let measured = table.json("why user-1 gpt-4 --over 50ms");
    let saturation = &measured["limits"][0]["saturation"];
    assert_eq!(saturation["percent"], 0, "{saturation}");
    let over_ms = saturation["over_ms"].as_i64();
    assert!((50..600_000).contains(&over_ms.expect("a span")), "{saturation}");
    let usage = "weirgate usage --entity team --resource gpt-4 --by hour --from 1d";
    assert_eq!(next(&reasons), [usage], "the parent's limit is used up");
    let text = table.text(why);
    for part in [
        "* resource gpt-4",
        "user-1 has the parent team, and also takes from it",
        "rpm=600/minute",
        "% in ",
        "resource gpt-4 limit rpm",
        usage,
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_denies_is_named_with_the_command_that_ends_it() {
    let table = Table::new().await;
    table.text("entities set user-1 --parent team");
    table.text("limits set --system slots=1");
    let why = "why user-1 gpt-4";
    for (deed, command) in [
        ("stop --resource gpt-4 --yes", "weirgate start --resource gpt-4"),
        ("stop --entity team --yes", "weirgate start --entity team"),
        ("stop --entity user-1 --yes", "weirgate start --entity user-1"),
        ("limits set --system --disabled --yes", "weirgate limits set --system --enforced"),
        ("acquire user-1 gpt-4 slots=1 --lease 1h", "weirgate leases list user-1 gpt-4"),
    ] {
        table.text(deed);
        let reasons = table.json(why);
        let found = next(&reasons);
        assert_eq!(found, [command], "{deed}: {reasons}");
        assert_eq!(reasons["stopped_at"].is_null(), !deed.starts_with("stop"), "{deed}");
        table.text(&command["weirgate ".len()..]);
    }
    let text = table.text(why);
    assert!(text.contains("100% held") && text.contains("OWNER"), "{text}");
    // Callers bring another limit than the table's.
    table.text("limits set --resource gpt-4 rpm=60/minute");
    table.text("acquire user-2 gpt-4 rpm=1 --limit rpm=70/minute");
    let reasons = table.json("why user-2 gpt-4");
    assert_eq!(reasons["limits"][0]["from"], Value::Null, "{reasons}");
    assert_eq!(next(&reasons), ["weirgate audit --resource gpt-4"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_level_without_limits_is_told_to_run_can_be_run() {
    let table = Table::new().await;
    table.text("limits set --system rpm=5/minute");
    for status in ["--disabled", "--unlimited"] {
        table.text(["limits", "set", "--resource", "gpt-4", status, "--yes"]);
        let reasons = table.json("why user-1 gpt-4");
        let found = next(&reasons);
        assert_eq!(found[0], "weirgate limits delete --resource gpt-4", "{reasons}");
        table.text(&*format!("{} --yes", &found[0]["weirgate ".len()..]));
        table.text("acquire user-1 gpt-4 rpm=1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_another_kind_is_named_with_the_command_that_ends_it() {
    let table = Table::new().await;
    for (brought, configured) in
        [("a=4/1h30m,burst=7", "a=4"), ("b=4/minute", "b=4"), ("c=4", "c=4/minute")]
    {
        let name = &brought[..1];
        let take = format!("acquire e {name} {name}=1 --lease 1s");
        table.text(&*format!("{take} --limit {brought}"));
        table.text(&*format!("limits set --resource {name} {configured}"));
        let failed = table.run(&*take);
        assert_eq!(failed.code, Some(2), "{failed:?}");
        for part in ["'weirgate limits set'", "'weirgate erase e'"] {
            assert!(failed.stderr.contains(part), "{part}: {failed:?}");
        }
        let reasons = table.json(&*format!("why e {name}"));
        let command = format!("weirgate limits set --resource {name} {brought}");
        assert_eq!(next(&reasons)[0], command, "{reasons}");
        table.text(&command["weirgate ".len()..]);
        table.text(&*take);
    }
}

/// States in which an acquire of one token may be refused: what makes them.
const STATES: [(&str, &[&str]); 24] = [
    ("nothing is configured", &[]),
    ("stopped system", &[SET, "stop --system --yes"]),
    ("stopped resource", &[SET, "stop --resource api --yes"]),
    ("stopped entity", &[SET, "stop --entity e --yes"]),
    ("stopped bucket", &[SET, "stop --entity e --resource api --yes"]),
    ("stopped parent", &[SET, PARENT, "stop --entity team --yes"]),
    (
        "stopped plan",
        &["limits set --plan pro rpm=10/day", "entities set e --plan pro", "stop --plan pro --yes"],
    ),
    ("disabled entity", &[SET, "limits set --entity e --disabled --yes"]),
    ("disabled resource", &[SET, "limits set --resource api --disabled --yes"]),
    ("disabled parent", &[SET, PARENT, "limits set --entity team --disabled --yes"]),
    (
        "disabled bucket of the parent",
        &[SET, PARENT, "limits set --entity team --resource api --disabled --yes"],
    ),
    ("unlimited entity", &[SET, "limits set --entity e --unlimited"]),
    ("unlimited parent", &[SET, PARENT, "limits set --entity team --unlimited"]),
    (
        "disabled parent of an unlimited one",
        &[PARENT, "limits set --entity e --unlimited", "limits set --entity team --disabled --yes"],
    ),
    ("used up", &[SET, "acquire e api rpm=10"]),
    (
        "used up at the parent",
        &[SET, PARENT, "limits set --entity team rpm=1/day", "acquire e api rpm=1"],
    ),
    ("slots are held", &["limits set --system rpm=1", "acquire e api rpm=1 --lease 1h"]),
    ("paused", &[SET, "acquire e api rpm=1", "pause e api 1h"]),
    (
        "paused parent",
        &[
            SET,
            PARENT,
            "limits set --entity team rpm=10/day",
            "acquire e api rpm=1",
            "pause team api 1h",
        ],
    ),
    (
        "a line",
        &[
            "limits set --system rpm=2/hour",
            "acquire e api rpm=2",
            "acquire e api rpm=1 --queue 1h --now",
        ],
    ),
    (
        "a class of the configuration is used up",
        &[
            "limits set --entity e rpm=10/day,class=batch:10%:90% --class batch",
            "acquire e api rpm=1",
        ],
    ),
    (
        "a class of the parent is used up",
        &[
            PARENT,
            "limits set --entity e rpm=100/day,class=batch:10%:90% --class batch",
            "limits set --entity team rpm=10/day,class=batch:10%:90%",
            "acquire e api rpm=1",
        ],
    ),
    ("another kind", &["acquire e api rpm=1 --limit rpm=5 --lease 1h", SET]),
    (
        "a plan without limits",
        &[
            "limits set --plan pro rpm=10/day",
            "entities set e --plan pro",
            "plans delete pro --force --yes",
        ],
    ),
];

const SET: &str = "limits set --system rpm=10/day";
const PARENT: &str = "entities set e --parent team --cascades";

/// Requires that `why` names what refuses an acquire of one token.
fn assert_explained(table: &Table, state: &str, option: &str) {
    let acquire = table.run(&*format!("acquire e api rpm=1{option}"));
    let why = table.run(&*format!("--json why e api{option}"));
    let reasons: Value = serde_json::from_str(&why.stdout).expect("JSON");
    let reasons = reasons["next"].as_array().expect("a list");
    let is_silent = |next: &Value| {
        let reason = next["reason"].as_str();
        reason.is_some_and(|text| text.starts_with("nothing here denies"))
    };
    if acquire.code != Some(0) {
        let is_told = !reasons.is_empty() && !reasons.iter().any(is_silent);
        assert!(is_told, "{state}: {acquire:?}: {why:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_refuses_an_acquire_of_one_token_is_always_named() {
    for (state, deeds) in STATES {
        let dynamo = Dynamo::new().await;
        let table = Table::of(&dynamo);
        for deed in deeds {
            table.text(*deed);
        }
        if state.starts_with("stopped") {
            // A level whose switch cannot be read counts as stopped.
            for mut item in dynamo.items() {
                let text = item.to_string();
                if text.contains(r#"{"S":"stopped"}"#) && item["SK"]["S"] != "#AUDIT" {
                    let changed = text.replace(r#"{"S":"stopped"}"#, r#"{"S":"halted"}"#);
                    item = serde_json::from_str(&changed).expect("JSON");
                    dynamo.put(&item);
                }
            }
            let why = table.run("--json why e api");
            let reasons: Value = serde_json::from_str(&why.stdout).expect("JSON");
            let unreadable = reasons["unreadable"].as_array().map_or(0, Vec::len);
            assert!(unreadable > 0 && why.code == Some(1), "{state}: {why:?}");
        }
        assert_explained(&table, state, "");
    }
    let table = Table::new().await;
    table.text("limits set --system rpm=10/day,class=batch:10%:90%");
    let take = "acquire e api rpm=1 --class batch";
    table.text(take);
    assert_eq!(table.run(take).code, Some(3));
    assert_explained(&table, "a class of the call is used up", " --class batch");
    assert_explained(&table, "an unknown class", " --class night");
    let peeked = table.json("peek e api rpm=1 --class batch");
    assert_ne!(peeked["retry_after_ms"], 0, "{peeked}");
    let load = "load e api rpm=1 --class batch --rate 1 --for 1s";
    let report = table.json(load);
    assert_eq!(report["outcomes"]["denied"]["acquires"], 1, "{report}");
}
