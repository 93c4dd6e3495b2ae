//! Lists have parts, and a page may have no entry; a list is printed whole anyway.

use serde_json::{Value, json};
use weirgate_shared::{Namespace, Resource, resource_partitions};
use weirgate_testkit::{Dynamo, Temporary};

use super::fixtures::Table;

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_empty_only_if_it_has_no_entries() {
    let dynamo = Dynamo::new().await;
    let table = Table::of(&dynamo);
    let (buckets, entities) = (["buckets", "--resource", "gpt-4"], ["entities", "list"]);
    table.text("limits set --system rpm=5/minute");
    for list in [&buckets[..], &entities] {
        let list = table.json(list);
        assert_eq!((&list["items"], &list["next"]), (&json!([]), &Value::Null));
    }
    let number = |list: &Value| list["items"].as_array().map(Vec::len);
    for user in 0..3 {
        let user = format!("user-{user}");
        table.text(["acquire", &user, "gpt-4", "rpm=1"]);
        table.text(["entities", "set", &user, "--parent", "team"]);
    }
    for (list, row) in [(&buckets[..], "user-1"), (&entities, "user-1")] {
        let text = table.run(list);
        assert!(text.stdout.contains(row), "{text:?}");
        assert_eq!(text.stderr, "", "nothing follows");
        assert_eq!(number(&table.json(list)), Some(3), "{list:?}");
        assert_eq!(table.json(list)["next"], Value::Null);
    }
    let (namespace, resource) = (Namespace::new("default"), Resource::new("gpt-4"));
    let (namespace, resource) = (namespace.expect("a name"), resource.expect("a name"));
    let parts: Vec<_> = resource_partitions(&namespace, &resource).take(2).collect();
    // Pages of nothing but items of others, which any writer can put into an index.
    for at in 0..250 {
        let children = "default/PARENT#team".to_owned();
        let parts = parts.iter().map(|part| ("GSI2", "BUCKET#!", part.clone()));
        for (index, before, part) in parts.chain([("GSI1", "CHILD#!", children)]) {
            dynamo.put(&json!({
                "PK": {"S": format!("other/BUCKET#x#y#{at}{part}")}, "SK": {"S": index},
                format!("{index}PK"): {"S": part}, format!("{index}SK"): {"S": format!("{before}{at}")},
            }));
        }
    }
    let found = table.json("entities children team");
    assert_eq!(number(&found), Some(3), "{found}");
    assert_eq!(number(&table.json(buckets)), Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_ends_by_itself_and_a_large_one_names_how_it_goes_on() {
    let dynamo = Dynamo::new().await;
    let table = Table::of(&dynamo);
    let child = |namespace: &str, name: &str| {
        dynamo.put(&json!({
            "PK": {"S": format!("{namespace}/ENTITY#{name}")}, "SK": {"S": "#META"},
            "GSI1PK": {"S": "default/PARENT#team"}, "GSI1SK": {"S": format!("CHILD#{name}")},
        }));
    };
    // Pages of nothing, and behind them the only entry.
    for at in 0..7_000 {
        child("other", &format!("!{at:05}"));
    }
    table.text("entities set user --parent team");
    let list = "entities children team";
    let found = table.json(list);
    assert_eq!((&found["items"], &found["next"]), (&json!(["user"]), &Value::Null));
    for at in 0..10_050 {
        child("default", &format!("child-{at:05}"));
    }
    let first = table.run(list);
    let more = first.stderr.trim_end().strip_prefix("more: ").expect("there is more");
    let rest = table.text([list, more].join(" ").as_str());
    let names = |text: &str| -> Vec<String> {
        let rows = text.lines().skip(1).map(str::trim_end);
        rows.map(str::to_owned).collect()
    };
    let all: Vec<String> = [names(&first.stdout), names(&rest)].concat();
    assert_eq!((all.len(), &*all[10_049], &*all[10_050]), (10_051, "child-10049", "user"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_read_whole_is_sorted() {
    let table = Table::new().await;
    table.text("limits set --system rpm=5/minute");
    // Each is in a part by its hash.
    for at in 0..12 {
        let name = format!("e-{:02}", at * 7 % 12);
        table.text(["entities", "set", &name, "--parent", "team"]);
        table.text(["limits", "set", "--entity", &name, "rpm=5/minute"]);
        table.text(["acquire", &name, "gpt-4", "rpm=1"]);
    }
    for list in [
        "entities list",
        "entities children team",
        "limits list --entities",
        "buckets --resource gpt-4",
    ] {
        let text = table.text(list);
        let names: Vec<_> = text.split_whitespace().filter(|word| word.starts_with("e-")).collect();
        assert!(names.len() == 12 && names.is_sorted(), "{list}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_says_which_entity_has_a_plan_without_limits() {
    let table = Table::new().await;
    table.text("limits set --plan pro rpm=5/minute");
    table.text("entities set acme --plan pro");
    assert_eq!(table.run("limits export").stderr, "");
    table.text("plans delete pro --force --yes");
    let export = table.run("limits export");
    let file = Temporary::file("lost-plan.yaml", &export.stdout);
    let other = Table::new().await;
    let applied = other.run(["limits", "apply", file.path(), "--yes"]);
    assert_eq!(applied.code, Some(2), "{applied:?}");
    for part in ["entity acme has plan pro", "weirgate limits set --plan pro"] {
        assert!(export.stderr.contains(part), "{part}: {export:?}");
    }
}
