//! What cannot be read is a row of its own, and the exit code says that there is one.

use serde_json::{Value, json};
use weirgate_testkit::Dynamo;

use super::fixtures::Table;

/// A table with three buckets, of which one is damaged, and a damaged configuration.
async fn damaged() -> (Dynamo, Table) {
    let dynamo = Dynamo::new().await;
    let table = Table::of(&dynamo);
    for level in [&["--resource", "gpt-4"][..], &["--resource", "search"]] {
        table.text([&["limits", "set"], level, &["rpm=60/minute", "slots=5"]].concat());
    }
    for user in ["user-1", "user-2", "user-3"] {
        let acquire = ["acquire", user, "gpt-4", "rpm=1", "slots=1", "--lease", "1h"];
        table.text(acquire);
        table.text(acquire);
    }
    let pk = "default/BUCKET#user-2#gpt-4#0";
    let mut bucket = dynamo.item(pk, "#STATE");
    let id = bucket["h"]["M"].as_object().and_then(|leases| leases.keys().next().cloned());
    bucket["h"]["M"][id.expect("a lease")]["M"]["e"] = json!({"S": "soon"});
    dynamo.put(&bucket);
    for mut item in dynamo.items() {
        if item["PK"]["S"] == "default/RESOURCE#search" {
            item["status"] = json!({"M": {}});
            for (name, value) in item.as_object_mut().expect("an item") {
                if value["N"].is_string() && name != "v" {
                    *value = json!({"S": "x"});
                }
            }
            dynamo.put(&item);
        }
    }
    (dynamo, table)
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_reports_show_the_others_and_say_what_is_missing() {
    let (_dynamo, table) = damaged().await;
    let usage = ["usage", "--resource", "gpt-4", "--by", "hour"];
    for (list, present, missing) in [
        (&["buckets", "--resource", "gpt-4"][..], &["user-1", "user-3"][..], "user-2"),
        (&["buckets", "--entity", "user-2"], &[], "user-2"),
        (&["leases", "list", "user-2", "gpt-4"], &["slots"], "user-2"),
        (&["limits", "list", "--resources"], &["gpt-4"], "search"),
        (&usage, &["user-1", "user-3"], "user-2"),
        (&[&usage[..], &["--csv"]].concat(), &["user-1", "user-3"], "user-2"),
        (&[&usage[..], &["--html"]].concat(), &["user-1", "user-3"], "user-2"),
        (&[&usage[..], &["--top"]].concat(), &["user-1", "user-3"], "user-2"),
        (&[&usage[..], &["--total"]].concat(), &["incomplete: interim, complete until"], "user-2"),
    ] {
        let text = table.run(list);
        let all = format!("{}{}", text.stdout, text.stderr);
        assert_eq!(text.code, Some(1), "{list:?}: {text:?}");
        for present in present {
            assert!(text.stdout.contains(present), "{list:?}: {text:?}");
        }
        assert!(all.contains(missing) && all.contains("correct or delete the item"), "{all}");
        if list.contains(&"--csv") || list.contains(&"--html") {
            continue;
        }
        let json = table.run([&["--json"], list].concat());
        assert_eq!(json.code, Some(1), "{list:?}: {json:?}");
        let json: Value = serde_json::from_str(&json.stdout).expect("JSON");
        let entry = &json["unreadable"][0];
        let names = [&entry["entity"], &entry["resource"]];
        assert!(names.iter().any(|name| **name == missing), "{json}");
        assert!(
            entry["error"].as_str().is_some_and(|text| text.starts_with("attribute ")),
            "{json}"
        );
    }
    // Everything else is as it was.
    assert_eq!(table.run("buckets --entity user-1").code, Some(0));
    assert!(table.json("buckets --entity user-1")["unreadable"].is_null());
}

/// Each page of a bucket's rows lacks all its shards that cannot be read.
#[tokio::test(flavor = "multi_thread")]
async fn an_item_is_listed_once_however_many_pages_lack_it() {
    let dynamo = Dynamo::new().await;
    let table = Table::of(&dynamo);
    table.text("limits set --system rpm=60/minute");
    table.text("split user-1 gpt-4 --shards 2");
    for mut item in dynamo.items() {
        let pk = item["PK"]["S"].as_str().unwrap_or_default().to_owned();
        if pk.starts_with("default/BUCKET#user-1#") && item["SK"]["S"] == "#STATE" {
            for (name, value) in item.as_object_mut().expect("an item") {
                if value["N"].is_string() && !["v", "due"].contains(&&**name) {
                    *value = json!({"S": "x"});
                }
            }
            dynamo.put(&item);
        }
    }
    let of = "usage --entity user-1 --resource gpt-4 --from 400d --kept 500d --json";
    for options in ["", " --total"] {
        let run = table.run(&*format!("{of}{options}"));
        let json: Value = serde_json::from_str(&run.stdout).expect("JSON");
        assert_eq!(json["unreadable"].as_array().map(Vec::len), Some(2), "{run:?}");
    }
}
