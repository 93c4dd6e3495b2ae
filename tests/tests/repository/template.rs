//! `template.yaml` says what the code says: the table, the filter, the variables, the permissions,
//! the log text.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use crate::fixtures::sharded::run_for;
use lambda_runtime::tracing::subscriber::util::SubscriberInitExt;
use serde_json::{Value, json};
use weirgate_aggregator::{Invocation, handle};
use weirgate_runtime::Settings;
use weirgate_shared::write::REVIEW_INTERVAL;
use weirgate_shared::{BUCKET_SK, EpochMillis, Hour, Shard, WriteId};
use weirgate_store::{ReturnValues, Table, WriteOutcome, indexes};
use weirgate_testkit::leased::{
    NOW, full, holding, id, key, limits, load, split_at, store, take, tokens,
};
use weirgate_testkit::policy::{Asked, Policy, enforce};
use weirgate_testkit::shape::require_listed;
use weirgate_testkit::template::{properties, template};
use weirgate_testkit::{Dynamo, Fault, Lines};

/// The texts of a list's values, in one order for all.
fn sorted(list: &Value) -> Vec<String> {
    let mut texts: Vec<_> =
        list.as_array().expect("a list").iter().map(ToString::to_string).collect();
    texts.sort();
    texts
}

#[tokio::test]
async fn the_table_is_the_one_that_the_store_creates() {
    let dynamo = Dynamo::new().await;
    let name = || serde_json::from_value(json!({"TableName": "weirgate"})).unwrap();
    let described = serde_json::to_value(dynamo.db().describe_table(name()).unwrap()).unwrap();
    let (local, deployed) = (&described["Table"], properties("Table"));
    assert_eq!(deployed["KeySchema"], local["KeySchema"]);
    assert_eq!(sorted(&deployed["AttributeDefinitions"]), sorted(&local["AttributeDefinitions"]));
    assert_eq!(
        deployed["StreamSpecification"]["StreamViewType"],
        local["StreamSpecification"]["StreamViewType"]
    );
    assert_eq!(deployed["BillingMode"], local["BillingModeSummary"]["BillingMode"]);

    let parts =
        |index: &Value| json!([index["IndexName"], index["KeySchema"], index["Projection"]]);
    let all = |table: &Value| -> Value {
        table["GlobalSecondaryIndexes"].as_array().unwrap().iter().map(parts).collect()
    };
    assert_eq!(sorted(&all(&deployed)), sorted(&all(local)));
    assert_eq!(all(&deployed).as_array().unwrap().len(), indexes().len());

    let name = || serde_json::from_value(json!({"TableName": "weirgate"})).unwrap();
    let ttl = serde_json::to_value(dynamo.db().describe_time_to_live(name()).unwrap()).unwrap();
    let attribute = &deployed["TimeToLiveSpecification"]["AttributeName"];
    assert_eq!(*attribute, ttl["TimeToLiveDescription"]["AttributeName"]);
}

/// Whether an event source filter takes a record: every leaf of the pattern lists the values it may
/// have.
fn matches(pattern: &Value, record: &Value) -> bool {
    match pattern {
        Value::Object(fields) => {
            fields.iter().all(|(name, pattern)| matches(pattern, &record[name]))
        }
        Value::Array(values) => values.contains(record),
        other => panic!("a filter's leaf is a list, not {other}"),
    }
}

/// The stream's records of a bucket that was made, was used three times in the last hour of a year,
/// and is taken from in the first one of the next.
async fn lived(dynamo: &Dynamo, table: &Table) -> Vec<Value> {
    let mut bucket = Shard { hour: Hour(Hour::of(NOW).0 - 1), ..full("e-1", &limits()) };
    bucket.acquires.total = 3;
    bucket.limits.get_mut("quota").unwrap().consumed = tokens(2).into();
    store(table, &bucket).await;
    let update = take(&bucket, &id("lease"), EpochMillis(NOW.0 + 1), 1, 1, &bucket, NOW);
    let done = table.update(&update, ReturnValues::None).await.unwrap();
    assert_eq!(done, WriteOutcome::Applied(None));
    dynamo.stream()
}

fn event(records: &[Value]) -> String {
    json!({"Records": records}).to_string()
}

async fn deliver(table: &Table, records: &[Value]) {
    let config = weirgate_aggregator::Config::read(|name| {
        (name == "TABLE_NAME").then(|| "weirgate".to_owned())
    });
    // A batch of two records splits a shard that is marked.
    let config = weirgate_aggregator::Config { hot_units: 0, ..config.unwrap() };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    let invocation = Invocation { now: NOW, deadline };
    let handled = handle(&event(records), table, &config, invocation).await.unwrap();
    assert!(handled.response.is_ok());
}

#[tokio::test]
async fn the_stream_filter_takes_every_record_of_a_bucket_and_no_snapshot() {
    let filters =
        &properties("Aggregator")["Events"]["Stream"]["Properties"]["FilterCriteria"]["Filters"];
    let patterns: Vec<Value> = filters
        .as_array()
        .unwrap()
        .iter()
        .map(|filter| serde_json::from_str(filter["Pattern"].as_str().unwrap()).unwrap())
        .collect();
    let taken = |record: &Value| patterns.iter().any(|pattern| matches(pattern, record));
    assert_eq!(patterns[0]["dynamodb"]["Keys"]["SK"]["S"], json!([BUCKET_SK]));

    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    let records = lived(&dynamo, &table).await;
    let names: Vec<_> =
        records.iter().map(|record| record["eventName"].as_str().unwrap()).collect();
    assert_eq!(names, ["INSERT", "MODIFY"]);
    assert!(records.iter().all(taken));

    deliver(&table, &records).await;
    let own = dynamo.stream();
    assert!(
        !own.is_empty() && !own.iter().any(taken),
        "snapshots would invoke it indefinitely: {own:?}"
    );
    let bucket = key("e-1").item_key();
    dynamo.delete(&bucket.pk, &bucket.sk);
    let removed = dynamo.stream();
    assert_eq!(removed[0]["eventName"], "REMOVE");
    assert!(taken(&removed[0]), "the last image of a removed bucket has its usage");
}

#[test]
fn the_local_backend_has_the_batches_and_timeouts_of_the_template() {
    let stream = &properties("Aggregator")["Events"]["Stream"]["Properties"];
    assert_eq!(stream["BatchSize"], weirgate_local::BATCH_SIZE);
    for (function, timeout) in [
        ("Aggregator", weirgate_local::AGGREGATOR_TIMEOUT),
        ("Reconciler", weirgate_local::RECONCILER_TIMEOUT),
    ] {
        assert_eq!(properties(function)["Timeout"], timeout.as_secs());
    }
}

/// A parameter's default, as the function's environment has it.
fn default(parameter: &Value) -> String {
    let default = &parameter["Default"];
    default.as_str().map_or_else(|| default.to_string(), str::to_owned)
}

/// Checks one function's variables against what its configuration asks for. Those that no
/// operator changes are `left` to their defaults.
fn check_variables<C: PartialEq + std::fmt::Debug, E: std::fmt::Debug>(
    function: &str,
    left: &[&str],
    read: impl Fn(&dyn Fn(&str) -> Option<String>) -> Result<C, E>,
) {
    let (template, function) = (template(), properties(function));
    let variables = function["Environment"]["Variables"].as_object().unwrap();
    let asked = RefCell::new(BTreeSet::new());
    let table = |name: &str| (name == "TABLE_NAME").then(|| "weirgate".to_owned());
    let alone = read(&|name| {
        asked.borrow_mut().insert(name.to_owned());
        table(name)
    });
    // Those of any function.
    let settings = Settings::read(|name| {
        asked.borrow_mut().insert(name.to_owned());
        None
    });
    let asked = asked.into_inner();
    let given = variables.keys().map(String::as_str);
    let others = left.iter().copied().chain(["AWS_LAMBDA_LOG_LEVEL"]);
    assert_eq!(
        asked,
        given.chain(others).map(str::to_owned).collect(),
        "the variables it reads are those it gets, and those that are left"
    );
    assert_eq!(variables[Settings::STACK_NAME], json!({"Ref": "AWS::StackName"}));
    assert_eq!(variables[Settings::LOG_LEVEL], json!({"Ref": "LogLevel"}));
    let level = &template["Parameters"]["LogLevel"];
    assert_eq!(level["Default"], settings.unwrap().log_level);
    for level in level["AllowedValues"].as_array().unwrap() {
        let with = |name: &str| {
            let level = level.as_str().unwrap().to_owned();
            (name == Settings::LOG_LEVEL).then_some(level)
        };
        Settings::read(with).unwrap();
    }

    let parameter = |name: &str| &template["Parameters"][variables[name]["Ref"].as_str().unwrap()];
    let given = |name: &str| variables.contains_key(name).then(|| default(parameter(name)));
    let deployed = read(&|name| table(name).or_else(|| given(name)));
    assert_eq!(deployed.unwrap(), alone.unwrap(), "the template's defaults are the code's");

    for name in variables.keys().filter(|name| parameter(name)["Type"] == "Number") {
        let with = |value: i64| {
            read(&|asked| table(asked).or_else(|| (asked == name).then(|| value.to_string())))
                .is_ok()
        };
        if let Some(allowed) = parameter(name)["AllowedValues"].as_array() {
            let allowed: Vec<_> = allowed.iter().filter_map(Value::as_i64).collect();
            let most = allowed.iter().max().expect("some value is allowed");
            let wrong = (0..=most * 2).find(|value| with(*value) != allowed.contains(value));
            assert_eq!(
                wrong, None,
                "{name}: what can be deployed can be started, and nothing else"
            );
            continue;
        }
        let (least, most) =
            (parameter(name)["MinValue"].as_i64(), parameter(name)["MaxValue"].as_i64());
        let (least, most) = (least.unwrap(), most.unwrap());
        assert!(with(least) && with(most), "{name}: what can be deployed can be started");
        assert!(!with(least - 1) && !with(most + 1), "{name}: what can be started can be deployed");
    }
}

#[test]
fn each_function_gets_the_variables_it_reads_with_the_same_values() {
    check_variables("Aggregator", &["WRITE_CONCURRENCY"], |lookup| {
        weirgate_aggregator::Config::read(lookup)
    });
    check_variables("Reconciler", &["RECONCILE_PAGE"], |lookup| {
        weirgate_reconciler::Config::read(lookup)
    });
}

/// A role allows what its function asked since the last call and what is asked in its name, nothing
/// else.
fn check_role(role: &str, asked: &Mutex<Asked>, by_lambda: &[(&str, &str)]) {
    let (role, asked) = (Policy::of(role, false), std::mem::take(&mut *asked.lock().unwrap()));
    require_listed(&asked.shapes);
    let refused: Vec<_> = asked.calls.iter().filter(|call| !role.allows(call, None)).collect();
    assert!(refused.is_empty(), "{refused:?}");
    let by_lambda =
        by_lambda.iter().map(|(on, action)| ((*on).to_owned(), format!("dynamodb:{action}")));
    assert_eq!(role.actions(), asked.actions().into_iter().chain(by_lambda).collect());
}

#[tokio::test]
async fn each_role_allows_the_calls_that_its_function_makes_and_no_others() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    let mut records = lived(&dynamo, &table).await;
    records[1]["dynamodb"]["NewImage"]["hot"] = json!({"BOOL": true});
    let asked = enforce(&dynamo, None, None);
    table.warm().await.unwrap();
    // Once as it should be, once more as it was, once with its writes refused: all it ever asks
    // for.
    deliver(&table, &records).await;
    deliver(&table, &records).await;
    dynamo.fail_next([Some(Fault::Conflict), Some(Fault::LoseAnswer)]);
    deliver(&table, &records[1..]).await;
    let polling = ["DescribeStream", "GetRecords", "GetShardIterator", "ListStreams"];
    check_role("AggregatorRole", &asked, &polling.map(|action| ("Table.StreamArn", action)));
    assert!(load(&table, &key("e-1").with_shard(1)).await.is_some(), "it was split");

    store(&table, &holding(full("e-2", &limits()), "a", EpochMillis(NOW.0 - 1), &[("slots", 1)]))
        .await;
    // A bucket of four shards: one deleted manually, two cold.
    let bucket = full("e-3", &limits());
    store(&table, &bucket).await;
    for shard in [0, 0, 1] {
        let shard = load(&table, &bucket.key.with_shard(shard)).await.unwrap();
        split_at(&table, &shard, WriteId::from_bits(0), NOW).await;
    }
    let gone = bucket.key.with_shard(3).item_key();
    dynamo.delete(&gone.pk, &gone.sk);
    // A bucket that was made again beside the half of its former life.
    let again = full("e-4", &limits());
    store(&table, &again).await;
    split_at(&table, &again, WriteId::from_bits(0), NOW).await;
    dynamo.delete(&again.key.item_key().pk, BUCKET_SK);
    store(&table, &again).await;
    let asked = enforce(&dynamo, None, None);
    table.warm().await.unwrap();
    dynamo.fail_next([Some(Fault::LoseRequest)]);
    let run = async |now| {
        let done = run_for(&table, now, 1, Duration::from_secs(50)).await;
        done.unwrap()
    };
    assert_eq!(run(NOW).await.leases_restored, 1);
    let summary = run(NOW.plus(REVIEW_INTERVAL)).await;
    assert_eq!((summary.shards_merged, summary.shards_repaired), (1, 2));
    check_role("ReconcilerRole", &asked, &[]);
}

/// `docs/operations.md` looks for it where records were discarded.
#[tokio::test]
async fn a_write_that_fails_says_why_in_the_words_that_the_page_looks_for() {
    let dynamo = Dynamo::new().await;
    let records = lived(&dynamo, &dynamo.table().await).await;
    let page = include_str!("../../../docs/operations.md");
    assert!(page.contains(r#"--filter-pattern '"a write failed"'"#));
    let lines = Lines::default();
    let writer = lines.clone();
    let _guard = weirgate_runtime::subscriber("", move || writer.clone()).set_default();
    dynamo.fail_next([None, Some(Fault::Forbidden)]);
    deliver(&dynamo.table().await, &records).await;
    let text = lines.text();
    let line = text.lines().find(|line| line.contains("a write failed")).expect("it is told");
    assert!(line.contains("not permitted") && line.contains("default/ENTITY#e-1"), "{line}");
}

#[test]
fn each_function_is_built_from_the_binary_of_its_name() {
    for (function, package) in [("Aggregator", "aggregator"), ("Reconciler", "reconciler")] {
        let binary =
            template()["Resources"][function]["Metadata"]["BuildProperties"]["Binary"].take();
        let root = env!("CARGO_MANIFEST_DIR");
        let manifest =
            std::fs::read_to_string(format!("{root}/../functions/{package}/Cargo.toml")).unwrap();
        let bin = manifest
            .split("[[bin]]\n")
            .nth(1)
            .expect("the binary's name is not left to the package's");
        assert_eq!(bin.lines().next(), Some(&*format!("name = {binary}")), "{function}");
    }
}

/// CloudFormation updates what a resource depends on first, so the reconciler's mark speaks for both.
#[test]
fn the_reconciler_is_updated_after_the_aggregator() {
    assert_eq!(template()["Resources"]["Reconciler"]["DependsOn"], "Aggregator");
}

/// `weirgate doctor` compares it with its own.
#[test]
fn each_functions_description_ends_with_the_version() {
    let ending = format!(". Weirgate {}", env!("CARGO_PKG_VERSION"));
    for function in ["Aggregator", "Reconciler"] {
        let description = template()["Resources"][function]["Properties"]["Description"].take();
        let description = description.as_str().expect("it has one");
        assert!(description.ends_with(&ending), "{function}: {description}");
    }
}

/// A new stack takes it in after a restore.
#[test]
fn a_restored_table_is_the_one_of_the_template() {
    let restored =
        weirgate_testkit::template::read(include_str!("../../../scripts/restored-table.yaml"));
    let (mut deployed, restored) =
        (properties("Table"), &restored["Resources"]["Table"]["Properties"]);
    let kept = ["AttributeDefinitions", "BillingMode", "GlobalSecondaryIndexes", "KeySchema"];
    // The deployment after the import turns on what the parameters ask for.
    for index in deployed["GlobalSecondaryIndexes"].as_array_mut().expect("a list") {
        let insights =
            index.as_object_mut().map(|of| of.remove("ContributorInsightsSpecification"));
        assert!(insights.is_some_and(|of| of.is_some()), "{index}");
    }
    for name in kept {
        assert_eq!(deployed[name], restored[name], "{name}");
    }
    // If it were imported with a stream, the deployment after it would find nothing to change and
    // give it none.
    let names = restored.as_object().expect("properties are a mapping").keys().map(String::as_str);
    assert_eq!(names.collect::<BTreeSet<_>>(), kept.into());
}
