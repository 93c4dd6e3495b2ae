//! What every command does, and its JSON.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use time::OffsetDateTime;
use weirgate_testkit::{Dynamo, Temporary};

use super::fixtures::{Table, weirgate};

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_set_shown_listed_and_deleted() {
    let table = Table::new().await;
    let done = table.json("limits set --resource gpt-4 rpm=5/minute slots=2,mode=soft");
    assert_eq!(&done["changed"], &json!(true));
    assert_eq!(&done["before"], &json!(null));
    assert_eq!(done["after"]["limits"][0]["refill_tokens"], 5, "{done}");
    let found = table.json("limits get --resource gpt-4");
    assert_eq!(found["level"], json!({"level": "resource", "resource": "gpt-4"}));
    assert_eq!(
        found["config"]["limits"][1],
        json!({"text": "slots=2,mode=soft", "name": "slots", "slots": 2, "mode": "soft"})
    );
    let list = table.json("limits list");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");
    let text = table.text("limits list");
    assert_eq!(list["items"][0]["level"]["resource"], "gpt-4", "{list}");
    assert!(text.contains("rpm=5/minute slots=2,mode=soft"), "{text}");
    assert_eq!(table.json("namespaces")["items"], json!(["default"]));
    let delete = "--principal ops limits delete --resource gpt-4 --yes";
    let deleted = table.json(delete);
    assert_eq!(deleted["before"], done["after"], "{deleted}");
    assert_eq!(table.json(delete), json!({"changed": false, "before": null, "after": null}));
    let events = table.json("audit --resource gpt-4");
    assert_eq!(events["items"][0]["change"]["kind"], "config", "{events}");
    assert_eq!(events["items"][0]["principal"], "ops", "{events}");
    assert_eq!(events["items"].as_array().map(Vec::len), Some(2), "{events}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_is_exported_by_time_and_kept_as_long_as_its_writer_says() {
    let dynamo = Dynamo::new().await;
    let table = Table::of(&dynamo);
    let set = ["limits", "set", "--system"];
    table.json([&set[..], &["rpm=5/minute"]].concat());
    let forever = [&["--audit-retention", "forever"], &set[..]].concat();
    table.json([&forever[..], &["rpm=6/minute"]].concat());
    let events = |more: &[&str]| {
        let listed = table.json([&["audit", "--system"], more].concat());
        listed["items"].as_array().expect("a list").clone()
    };
    let [newest, oldest] = &events(&["--from", "1h"])[..] else { panic!("two changes were made") };
    let kept = [newest, oldest].map(|event| {
        let id = event["id"].as_str().expect("an id");
        dynamo.item("default/AUDIT##SYSTEM", &format!("#AUDIT#{id}"))["ttl"].is_null()
    });
    assert_eq!(kept, [true, false]);
    let at = |event: &Value| event["at_ms"].as_i64().expect("a time");
    assert!(at(newest) >= at(oldest));
    for (more, expected) in
        [(["--from", "1h", "--to", "2100-01-01"], 2), (["--from", "2h", "--to", "1h"], 0)]
    {
        assert_eq!(events(&more).len(), expected, "{more:?}");
    }
    assert_eq!(events(&["--to", "1h"]).len(), 0);
    let text = table.text("--principal ops audit --system");
    let rows: Vec<Vec<_>> = text
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(rows[0], ["AT", "AUTHOR", "WHAT", "BEFORE", "AFTER", "OPERATION"], "{text}");
    let cells: Vec<_> = rows[1..].iter().map(|row| row[2..].join(" | ")).collect();
    let expected =
        ["system limit rpm | 5/minute | 6/minute | -", "system limit rpm | - | 5/minute | -"];
    assert_eq!(cells, expected, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_limit_of_a_level_is_changed_and_the_others_are_kept() {
    let table = Table::new().await;
    let set = ["limits", "set", "--system"];
    table.json([&set[..], &["rpm=5/minute", "slots=2", "--shadow"]].concat());
    let merge = [&set[..], &["rpm=6/minute"]].concat();
    let text = table.text(&merge);
    assert!(text.contains("5/minute") && text.contains("6/minute"), "{text}");
    assert!(!text.contains("slots") && text.ends_with("configured\n"), "{text}");
    let again = table.text(&merge);
    assert!(again.starts_with("no changes: "), "{again}");
    let events = table.json("audit --system");
    assert_eq!(events["items"].as_array().map(Vec::len), Some(2), "{events}");
    let kept = table.json("limits get --system");
    assert_eq!(kept["config"]["limits"][1]["slots"], 2, "{kept}");
    assert_eq!(kept["config"]["is_shadow"], true, "{kept}");
    for (change, status, is_shadow) in [
        ("--disabled", "disabled", true),
        ("--shadow=false", "disabled", false),
        ("--enforced", "enforced", false),
        ("--unlimited", "unlimited", false),
        ("slots=3", "unlimited", false),
        ("--shadow", "unlimited", true),
    ] {
        let after = &table.json([&set[..], &[change, "--yes"]].concat())["after"];
        assert_eq!(after["limits"].as_array().map(Vec::len), Some(2), "{after}");
        assert_eq!(
            (&after["status"], &after["is_shadow"]),
            (&json!(status), &json!(is_shadow)),
            "{change}"
        );
    }
    let replace = [&set[..], &["--replace", "rpm=6/minute"]].concat();
    let unasked = table.run(&replace);
    assert_eq!(unasked.code, Some(2), "{unasked:?}");
    let drops =
        "to drop limit slots, status unlimited, shadow of system in namespace default needs";
    assert!(unasked.stderr.contains(drops), "{unasked:?}");
    let replaced = table.json([&replace[..], &["--yes"]].concat());
    let rpm = &kept["config"]["limits"][0];
    assert_eq!(
        replaced["after"],
        json!({"limits": [rpm], "status": "enforced", "is_shadow": false})
    );
    // Nothing is asked where nothing is lost.
    for change in [
        &["--replace", "rpm=7/minute"][..],
        &["--replace", "rpm=7/minute", "--shadow"],
        &["--replace", "rpm=7/minute", "--unlimited", "--shadow=false"],
    ] {
        table.text([&set[..], change].concat());
    }
    table.text([&set[..], &["--disabled", "--yes"]].concat());
    let again = table.text([&set[..], &["--disabled", "slots=1"]].concat());
    assert!(again.ends_with("configured\n"), "{again}");
    let nothing = table.run(set);
    assert_eq!(nothing.code, Some(2), "{nothing:?}");
    assert!(nothing.stderr.contains("LIMIT"), "{nothing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entity_keeps_what_is_not_given() {
    let table = Table::new().await;
    table.text("limits set --plan pro rpm=5/minute");
    // Options, whether they change anything, then parent, cascades and plan.
    let nothing = (Value::Null, json!(false), Value::Null);
    let parent = |parent: &str, cascades: bool, plan: Value| (json!(parent), json!(cascades), plan);
    for (options, changed, after) in [
        ("", true, nothing.clone()),
        ("", false, nothing.clone()),
        ("--no-parent --no-cascades --no-plan", false, nothing),
        ("--parent team", true, parent("team", false, Value::Null)),
        ("--plan pro", true, parent("team", false, json!("pro"))),
        ("--cascades", true, parent("team", true, json!("pro"))),
        ("", false, parent("team", true, json!("pro"))),
        ("--parent org", true, parent("org", true, json!("pro"))),
        ("--no-plan", true, parent("org", true, Value::Null)),
        ("--no-cascades", true, parent("org", false, Value::Null)),
        ("--parent a --cascades", true, parent("a", true, Value::Null)),
        ("--no-parent --plan pro", true, (Value::Null, json!(false), json!("pro"))),
    ] {
        let set = table.json(&*format!("entities set user {options}"));
        assert_eq!(set["changed"], changed, "{options}");
        let entity = table.json("entities get user");
        let seen = (&entity["parent"], &entity["cascades"], &entity["plan"]);
        assert_eq!(seen, (&after.0, &after.1, &after.2), "{options}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn entities_have_parents_and_children() {
    let table = Table::new().await;
    assert_eq!(table.json("entities set user --parent team"), json!({"changed": true}));
    assert_eq!(
        table.json("entities get user"),
        json!({"id": "user", "parent": "team", "cascades": false, "display_name": null, "labels": {}})
    );
    let describe = ["entities", "describe", "user"];
    let change = ["--name", "Ann", "--label", "plan=pro", "--label", "x=a=b"];
    let done = table.json([&describe[..], &change].concat());
    let after = json!({"display_name": "Ann", "labels": {"plan": "pro", "x": "a=b"}});
    assert_eq!((&done["changed"], &done["after"]), (&json!(true), &after));
    let change = ["--name", "", "--label", "plan=free", "--remove-label", "x"];
    let done = table.json([&describe[..], &change].concat());
    let changed = json!({"display_name": null, "labels": {"plan": "free"}});
    assert_eq!((&done["before"], &done["after"]), (&after, &changed));
    let text = table.text("entities get user");
    assert!(text.contains("label plan") && text.contains("free"), "{text}");
    for (change, rule) in
        [(["--label", "a b=c"], "1 to 64 of A-Z a-z"), (["--name", "a\nb"], "1 to 256 bytes")]
    {
        let refused = table.run([&describe[..], &change].concat());
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(rule), "{refused:?}");
    }
    let unknown = table.run("entities describe unknown --name A");
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert_eq!(table.json("entities children team")["items"], json!(["user"]));
    assert_eq!(table.json("entities list")["items"], json!(["user"]));
    assert_eq!(table.json("entities delete user --yes"), json!({"changed": true}));
    let gone = table.run("entities get user");
    assert_eq!(gone.code, Some(1), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_taken_held_and_denied() {
    let table = Table::new().await;
    table.text("limits set --system rpd=2/day slots=1");
    let granted = table.json("acquire user gpt-4 rpd=1 slots=1 --lease 1h");
    assert_eq!(granted["decision"], "granted");
    let lease = granted["lease_id"].as_str().expect("slots have a lease").to_owned();
    let denied = table.run("--json acquire user gpt-4 slots=1");
    assert_eq!(denied.code, Some(3), "{denied:?}");
    let answer: Value = serde_json::from_str(&denied.stdout).expect("JSON");
    assert_eq!(answer["decision"], "denied", "{answer}");
    let never = table.run("acquire user gpt-4 rpd=3");
    assert_eq!(never.code, Some(4), "{never:?}");

    let buckets = table.json("buckets --entity user");
    assert_eq!(&buckets["items"][0]["leases"], &json!(1));
    assert_eq!(&buckets["items"][0]["shards"], &json!(1));
    let leases = table.json("leases list user gpt-4");
    assert!(leases.to_string().contains(&lease), "{leases}");
    assert_eq!(
        table.json(["leases", "release", "user", "gpt-4", &lease, "--yes"]),
        json!({"changed": true})
    );
    let balances = table.json("peek user gpt-4");
    let slots =
        balances["limits"].as_array().unwrap().iter().find(|limit| limit["limit"] == "slots");
    assert_eq!(slots.unwrap()["available_tokens"], 1, "{balances}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_queues_ends_at_its_start_or_at_once_with_its_start() {
    let table = Table::new().await;
    table.text(
        "limits set --system rpm=3600/day rps=10/second,burst=20 slots=1 month=quota:5/month",
    );
    table.text("acquire user gpt-4 rpm=3600");
    let now = || OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000;
    let starts = |answer: &Value| i128::from(answer["starts_at_ms"].as_i64().expect("a start"));
    let queued = table.json("acquire user gpt-4 rpm=30 --queue 1h --now");
    assert_eq!(queued["decision"], "granted", "{queued}");
    let until = now() + 30 * 24_000;
    assert!((now()..=until).contains(&starts(&queued)), "{queued}");
    let text = table.text("acquire user gpt-4 rpm=10 --queue 1h --now");
    let (_, line) = text.split_once("\nstarts 20").expect("a start");
    assert!(line.contains("Z, in "), "{text}");
    let denied = table.run("--json acquire user gpt-4 rpm=10 --queue 1s");
    assert_eq!(denied.code, Some(3), "{denied:?}");
    let answer: Value = serde_json::from_str(&denied.stdout).expect("JSON");
    assert!(answer["starts_in_ms"].as_i64() > Some(600_000), "{answer}");
    let denied = table.run("acquire user gpt-4 rpm=10 --queue 1s").stdout;
    assert!(denied.contains("; in a longer --queue it starts in "), "{denied}");

    table.text("acquire user quick rps=20");
    let served = table.json("acquire user quick rps=2 --queue 1m");
    assert!(starts(&served) <= now(), "it ends at the start: {served}");
    assert_eq!(served["lease_id"], Value::Null, "{served}");
    table.text("acquire user quick rps=15 --queue 1m --now");
    // All that was taken is repaid when the command begins.
    let weirgate = env!("CARGO_BIN_EXE_weirgate");
    let command = ["acquire", "user", "quick", "rps=5", "--queue", "1m", "--", weirgate];
    let peek = [
        "--json",
        "--table",
        "weirgate",
        "--endpoint-url",
        &table.endpoint,
        "peek",
        "user",
        "quick",
    ];
    let seen = table.run([&command[..], &peek[..]].concat());
    assert_eq!(seen.code, Some(0), "{seen:?}");
    let balances: Value = serde_json::from_str(&seen.stdout).expect("JSON");
    let limits = balances["limits"].as_array().expect("limits");
    let limit = limits.iter().find(|limit| limit["limit"] == "rps");
    assert!(limit.expect("it is there")["available_tokens"].as_f64() >= Some(0.0), "{balances}");

    for (take, reason) in [("slots=1", "\"slots\" has slots"), ("month=1", "\"month\" has a quota")]
    {
        let refused = table.run(format!("acquire user gpt-4 {take} --queue 1m").as_str());
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(reason), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_stop_start_and_correct() {
    let table = Table::new().await;
    table.text("limits set --system rpd=10/day");
    table.text("acquire user gpt-4 rpd=4");
    assert_eq!(table.json("stop --system --dry-run")["outcome"], json!("dry_run"));
    assert_eq!(table.run("acquire user gpt-4 rpd=1").code, Some(0));
    table.text("stop --resource gpt-4 --idempotency-key ticket-1 --yes");
    let stopped = table.run("--json acquire user gpt-4 rpd=1");
    assert_eq!(stopped.code, Some(5), "{stopped:?}");
    assert!(stopped.stdout.contains(r#""decision":"disabled""#), "{stopped:?}");
    assert!(table.json("switches").to_string().contains("gpt-4"));
    table.text("exempt --entity user");
    table.text("start --resource gpt-4");

    let available =
        |table: &Table| table.json("peek user gpt-4")["limits"][0]["available_tokens"].as_f64();
    table.text("drain user gpt-4 rpd --yes");
    assert!(available(&table).is_some_and(|tokens| tokens < 1.0));
    table.text("top-up user gpt-4 rpd=5 --idempotency-key ticket-2");
    table.text("top-up user gpt-4 rpd=5 --idempotency-key ticket-2");
    assert!(available(&table).is_some_and(|tokens| (5.0..6.0).contains(&tokens)));
    table.text("reset user gpt-4 --yes");
    assert_eq!(available(&table), Some(10.0));
    assert_eq!(table.json("split user gpt-4 --shards 2"), json!({"shards": 2}));
    let usage = table.json("usage --entity user --resource gpt-4");
    // Yesterday is not final yet, so it has a row, too.
    let today = usage["items"].as_array().and_then(|rows| rows.last());
    assert_eq!(today.unwrap()["usage"]["tokens"]["rpd"], 5, "{usage}");
    // So have all its hours, of which the table shows those with usage.
    let hourly = "usage --entity user --resource gpt-4 --by hour";
    let hours = table.json(hourly)["items"].as_array().unwrap().len();
    assert!(hours >= 24, "{hours}");
    let shown = table.text(hourly);
    let of_no_use = shown.lines().filter(|line| line.ends_with(" 0"));
    assert_eq!(of_no_use.count(), 0, "{shown}");
    assert!(shown.contains("gpt-4"), "{shown}");
    // As stacks of earlier releases could keep it.
    assert_eq!(table.text(format!("{hourly} --from 1h --kept 1d").as_str()), shown);
    let csv = table.text("usage --entity user --csv");
    assert!(csv.starts_with("entity,resource,"), "{csv}");
    assert!(table.text("usage --entity user --chart").contains("rpd"));
    let page = table.text("usage --entity user --html");
    assert!(page.contains("<td>gpt-4</td>") && page.contains(": 5</title></rect>"), "{page}");
    assert!(!page.contains("http") && !page.contains("<script"), "it loads nothing: {page}");
    let asked = table.run("erase user");
    assert_eq!(asked.code, Some(2), "{asked:?}");
    assert!(asked.stderr.contains("add --yes"), "{asked:?}");
    // All of the namespace, with what each operator asked for, and by which key.
    let audit = table.text("audit --from 1h");
    for operation in [
        "stop resource gpt-4 (ticket-1)",
        "add 5 to rpd of user on gpt-4 (ticket-2)",
        "set rpd to 0 of user on gpt-4",
        "reset every rate of user on gpt-4",
        "exempt entity user",
    ] {
        let lines = audit.lines().filter(|line| line.trim_end().ends_with(operation));
        assert_eq!(lines.count(), 1, "{operation}: {audit}");
    }
    let mut newest_first: Vec<_> = audit.lines().skip(1).map(|line| &line[..20]).collect();
    newest_first.reverse();
    assert!(newest_first.is_sorted() && newest_first.len() > 6, "{audit}");
    assert_eq!(table.json("erase user --yes")["shards"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_pause_and_resume_and_see_the_pause() {
    let table = Table::new().await;
    table.text("limits set --system rpd=10/day slots=2");
    let nothing = table.run("pause openai gpt-4 30s");
    assert_eq!(nothing.code, Some(2), "{nothing:?}");
    assert!(nothing.stderr.contains("acquire from it first"), "{nothing:?}");
    table.text("acquire openai gpt-4 rpd=4");
    for (span, must) in [("0s", "1ms to 1d"), ("25h", "1ms to 1d"), ("soon", "30s")] {
        let refused = table.run(["pause", "openai", "gpt-4", span]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(must), "{refused:?}");
    }
    let planned = table.text("pause openai gpt-4 30m --dry-run");
    assert!(planned.starts_with("openai on gpt-4: not paused -> paused until 20"), "{planned}");
    assert!(!table.text("peek openai gpt-4").contains("paused"));
    let paused = table.json("pause openai gpt-4 30m --idempotency-key ticket-3");
    assert_eq!((&paused["shards"], &paused["before_ms"]), (&json!(1), &json!(null)));
    let again = table.text("pause openai gpt-4 30m --idempotency-key ticket-3");
    assert!(again.contains("applied before"), "{again}");
    let denied = table.run("acquire openai gpt-4 rpd=1");
    assert_eq!(denied.code, Some(3), "{denied:?}");
    assert!(denied.stdout.contains("rpd is paused"), "{denied:?}");
    for command in ["peek openai gpt-4", "buckets --entity openai", "why openai gpt-4"] {
        let text = table.text(command);
        assert!(text.contains("paused, 29m") || text.contains("paused, 30m"), "{text}");
    }
    let why = table.json("why openai gpt-4");
    let next = why["next"].as_array().unwrap();
    assert_eq!((next.len(), &next[0]["command"]), (1, &json!("weirgate resume openai gpt-4")));
    let reason = next[0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("openai is paused, "), "{why}");
    let resumed = table.text("resume openai gpt-4");
    assert!(resumed.ends_with("-> not paused (applied)\n"), "{resumed}");
    let unchanged = table.text("resume openai gpt-4");
    assert!(unchanged.ends_with("not paused -> not paused (nothing to change)\n"), "{unchanged}");
    assert_eq!(table.run("acquire openai gpt-4 rpd=1").code, Some(0));
    let audit = table.text("audit --entity openai");
    for operation in ["pause openai on gpt-4 for 30m (ticket-3)", "resume openai on gpt-4"] {
        let lines = audit.lines().filter(|line| line.trim_end().ends_with(operation));
        assert_eq!(lines.count(), 1, "{operation}: {audit}");
    }
}

#[test]
fn shells_and_manuals_are_written() {
    for shell in ["bash", "zsh", "fish"] {
        let run = weirgate(["completions", shell]);
        assert!(run.code == Some(0) && run.stdout.contains("top-up"), "{shell}: {run:?}");
    }
    let folder = Temporary::folder();
    let run = weirgate(["man", folder.path()]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let page = std::fs::read_to_string(folder.join("weirgate-limits-apply.1"));
    assert!(page.expect("a page for each command").contains("limits plan"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_due_is_shown_and_then_done() {
    let table = Table::new().await;
    let hold = ["acquire", "user", "gpu", "slots=1", "--limit", "slots=2", "--lease", "1s"];
    table.text(hold);
    assert_eq!(table.text("reconcile --dry-run"), "0 due\n");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let text = loop {
        let text = table.text("reconcile --dry-run");
        if text != "0 due\n" || std::time::Instant::now() > end {
            break text;
        }
    };
    assert!(text.contains("end 1 expired leases (slots 1)"), "{text}");
    assert!(text.ends_with("\n1 due\n"), "{text}");
    let due = table.json("reconcile --dry-run --most 5");
    let item = &due["items"][0];
    assert_eq!(&item["entity"], &json!("user"), "{due}");
    assert_eq!(&item["leases"], &json!(1), "{due}");
    assert_eq!(item["tokens"], json!({"slots": 1}));
    assert_eq!(table.json("reconcile")["tokens_restored"], json!({"slots": 1}));
    assert_eq!(table.json("leases list user gpu")["items"], json!([]));
    assert_eq!(table.text("reconcile --dry-run"), "0 due\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_several_entities_are_told_apart_and_a_stop_is_named() {
    let table = Table::new().await;
    table.text("limits set --system rpm=5/day");
    let alone = table.text("peek user gpt-4");
    assert!(alone.starts_with("LIMIT "), "{alone}");
    table.text("entities set user --parent team --cascades");
    for command in ["acquire user gpt-4 rpm=1", "peek user gpt-4"] {
        let text = table.text(command);
        let rows: Vec<_> = text
            .lines()
            .skip_while(|line| !line.starts_with("ENTITY "))
            .map(|line| line.split_whitespace().take(3).collect::<Vec<_>>())
            .collect();
        let expected = [
            vec!["ENTITY", "LIMIT", "AVAILABLE"],
            vec!["user", "rpm", "4"],
            vec!["team", "rpm", "4"],
        ];
        assert_eq!(rows, expected, "{text}");
    }
    table.text("stop --entity team --yes");
    let stopped = table.text("peek user gpt-4");
    assert_eq!(stopped, "entity team is stopped: weirgate start --entity team ends that\n");
    table.text("start --entity team");
    table.text("limits set --resource gpt-4 --disabled --yes");
    let disabled = table.text("peek user gpt-4");
    assert_eq!(disabled, "disabled by its configuration\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_not_there_fails_and_a_change_without_a_name_has_its_number() {
    let table = Table::new().await;
    table.text("limits set --system slots=1");
    let gone = table.run("leases release user gpt-4 xxxx --yes");
    assert_eq!(gone.code, Some(1), "{gone:?}");
    assert!(gone.stdout.contains("weirgate leases list user gpt-4"), "{gone:?}");
    // No variable has the name of the user here.
    let events = table.json("audit");
    let author = events["items"][0]["principal"].as_str().expect("a text");
    assert!(author.starts_with("uid "), "{events}");
}

/// The audit takes a longer name than a lease, so a lease has the begin of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_author_of_each_length_changes_limits_and_takes_slots() {
    let table = Table::new().await;
    for length in [1, 64, 79, 256] {
        let (author, resource) = ("é".repeat(length), format!("r-{length}"));
        let by = ["--principal", &author];
        let set = ["limits", "set", "--resource", &resource, "slots=1"];
        table.text([&by[..], &set].concat());
        let audit = table.json(["audit", "--resource", &resource]);
        assert_eq!(audit["items"][0]["principal"], *author, "{audit}");
        let take = ["acquire", "e", &resource, "slots=1", "--lease", "1h"];
        table.text([&by[..], &take].concat());
        let leases = table.json(["leases", "list", "e", &resource]);
        let owner: String = author.chars().take(64).collect();
        assert_eq!(leases["items"][0]["owner"], *owner, "{leases}");
    }
    for author in [String::new(), "a".repeat(257)] {
        let run = table.run(["--principal", &author, "limits", "list"]);
        assert_eq!(run.code, Some(2), "{run:?}");
        for part in ["--principal <NAME>", "1 to 256 characters"] {
            assert!(run.stderr.contains(part), "{run:?}");
        }
    }
}

/// Whatever is there: `split` never merges, and `merge` neither splits nor makes a bucket.
#[tokio::test(flavor = "multi_thread")]
async fn split_makes_no_fewer_shards_and_merge_no_more() {
    let table = Table::new().await;
    table.text("limits set --system rpm=1000/minute");
    for command in ["split", "merge"] {
        for found in [0, 1, 4] {
            for asked in [1, 4, 8] {
                let bucket = format!("{command}-{found}-{asked} api");
                if found > 0 {
                    table.text(&*format!("split {bucket} --shards {found}"));
                }
                let run = table.run(&*format!("{command} {bucket} --shards {asked}"));
                let (code, shards) = match command {
                    "split" if asked < found => (2, found),
                    "split" => (0, asked),
                    _ if found == 0 => (1, 0),
                    _ if asked > found => (2, found),
                    _ => (0, asked),
                };
                assert_eq!(run.code, Some(code), "{bucket}: {run:?}");
                let found = table.json(&*format!("buckets --entity {command}-{found}-{asked}"));
                let stored = found["items"].get(0).map(|bucket| bucket["shards"].as_u64());
                let stored = stored.flatten().unwrap_or(0);
                assert_eq!(stored, shards, "{bucket}: {run:?}");
            }
        }
    }
}

/// The sum of an interval has all of it, whichever part was asked for: it says of which times it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_sum_of_usage_says_of_which_times_it_is() {
    let table = Table::new().await;
    table.text("limits set --system acquires=100/day start=100/day");
    table.text("acquire user api acquires=2 start=3");
    for by in ["hour", "day", "month"] {
        for from in ["1s", "2d"] {
            let usage = format!("usage --entity user --resource api --by {by} --from {from}");
            let rows = table.json(&*usage);
            let rows = rows["items"].as_array().unwrap();
            for sum in ["--total", "--top"] {
                let json = table.json(&*format!("{usage} {sum}"));
                let total = if sum == "--total" { &json } else { &json["items"][0] };
                let [start, end] =
                    ["start_ms", "end_ms"].map(|field| json[field].as_i64().unwrap());
                assert!(start <= rows[0]["start_ms"].as_i64().unwrap(), "{json}");
                assert_eq!(Some(end), rows.last().unwrap()["end_ms"].as_i64(), "{json}");
                assert_eq!(total["usage"]["tokens"]["start"], 3, "{json}");
                let run = table.run(&*format!("{usage} {sum}"));
                let said = format!("{}{}", run.stdout, run.stderr);
                assert!(said.contains("from 20") && said.contains(":00:00Z to 20"), "{run:?}");
                let (head, _) = run.stdout.split_once('\n').unwrap();
                assert!(head.contains("LIMIT ACQUIRES") && head.contains("LIMIT START"), "{run:?}");
            }
            let csv = table.text(&*format!("{usage} --csv"));
            let (head, _) = csv.split_once("\r\n").unwrap();
            let names: BTreeSet<_> = head.split(',').collect();
            assert_eq!(names.len(), head.split(',').count(), "{head}");
        }
    }
    let top = table.json(["usage", "--resource", "api", "--top", "limit acquires"]);
    assert_eq!(top["items"][0]["usage"]["tokens"]["acquires"], 2, "{top}");
}
