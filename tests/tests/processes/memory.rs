//! What a tenant can make the reconciler need: memory and log lines. It runs in a process of its
//! own, whose memory is measured, and asks a database in this one.

use std::process::Command;
use std::time::Duration;

use lambda_runtime::tracing::subscriber::util::SubscriberInitExt;
use peak_alloc::PeakAlloc;
use serde_json::{Value, json};
use weirgate_reconciler::{Config, Deadline, reconcile};
use weirgate_shared::{BucketKey, EpochMillis, Limit, due_shards};
use weirgate_store::{ConnectOptions, Table, connect};
use weirgate_testkit::leased::{NOW, full, holding, load, store};
use weirgate_testkit::server::serve;
use weirgate_testkit::{Dynamo, Lines, import};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// What the reconciler may need, of the 256 MB that it has.
const MOST_MB: f64 = 128.0;
const MOST_LOG_BYTES: f64 = 1_000_000.0;

const ENDPOINT: &str = "WEIRGATE_TEST_ENDPOINT";

/// Items of about 380 KB that are no buckets, in all partitions of the index: a text, a text that
/// no log line takes as it is, and the shapes of which a byte in the table takes most bytes of an
/// answer and most memory. The last ones are just small enough to be read.
fn shapes(items: usize) -> [(usize, Value); 4] {
    let nulls = |count| json!({"L": vec![json!({"NULL": true}); count]});
    let [text, control] = ["x", "\u{1}"].map(|text| json!({"S": text.repeat(380_000)}));
    [(items, text), (16, control), (4, nulls(185_000)), (16, nulls(105_000))]
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |number| number.parse().expect("a number"))
}

/// Set `ITEMS` to 1600 for what 40 cents buy, and `ENTRIES` to 300000 for as many small ones beside
/// them.
#[tokio::test]
async fn unreadable_items_cost_the_reconciler_little_memory_and_few_lines() {
    let (items, entries) = (number("ITEMS", 64), number("ENTRIES", 1_000));
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    let partitions: Vec<_> = due_shards().collect();
    let mut all = 0;
    for (kind, (items, shape)) in shapes(items).into_iter().enumerate() {
        for at in 0..items {
            let hostile = json!({
                "PK": {"S": format!("evil/BUCKET#e-{kind}-{at}#r#0")},
                "SK": {"S": "#STATE"},
                "due_shard": {"S": partitions[at % if kind < 2 { 16 } else { 4 }]},
                "due": {"N": "0"},
                "pad": shape,
            });
            dynamo.put(&hostile);
        }
        all += items;
    }
    let small = |at: usize| {
        json!({
            "PK": {"S": format!("evil/BUCKET#s-{at}#r#0")},
            "SK": {"S": "#STATE"},
            "due_shard": {"S": partitions[at % 16]},
            "due": {"N": "0"},
        })
    };
    import(&dynamo, (0..entries).map(small));
    all += entries;
    let key = BucketKey::parse("good/BUCKET#e#gpt-4#0").unwrap();
    let expired = holding(
        full("e", &[Limit::concurrent("slots", 4).unwrap()]),
        "a1",
        EpochMillis(NOW.0 - 1),
        &[("slots", 1)],
    );
    store(&table, &weirgate_shared::Shard { key: key.clone(), ..expired }).await;

    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::a_run_of_the_reconciler", "--ignored", "--nocapture"])
        .env(ENDPOINT, serve(&dynamo))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(child.status.success(), "{told}{}", String::from_utf8_lossy(&child.stderr));
    let number = |name: &str| -> f64 {
        let value = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.unwrap_or_else(|| panic!("no {name} in {told}")).parse().unwrap()
    };
    println!("{all} items: {:.0} MB, {} bytes of log", number("memory_mb"), number("log_bytes"));
    assert!(number("memory_mb") <= MOST_MB, "{told}");
    assert!(number("log_bytes") <= MOST_LOG_BYTES, "{told}");
    assert_eq!(number("leases_restored"), 1.0, "{told}");
    let all = f64::from(u32::try_from(all).unwrap());
    assert_eq!((number("undecodable"), number("postponed")), (all, all), "{told}");
    assert!(load(&table, &key).await.unwrap().due_at.is_none());
}

#[tokio::test]
#[ignore = "the test above starts it, in a process of its own"]
async fn a_run_of_the_reconciler() {
    let local_endpoint = Some(std::env::var(ENDPOINT).expect("the test above sets it"));
    let timeout = Duration::from_secs(60);
    let connection =
        ConnectOptions { local_endpoint, request_timeout: timeout, ..ConnectOptions::default() };
    let table = Table::new(connect(connection).await, "weirgate");
    let config = Config { table_name: "weirgate".to_owned(), page: 100 };
    let lines = Lines::default();
    let writer = lines.clone();
    let guard = weirgate_runtime::subscriber("", move || writer.clone()).set_default();
    let summary = reconcile(&table, &config, &|| NOW, Deadline::after(Duration::from_secs(3_600)))
        .await
        .unwrap();
    drop(guard);
    println!("\nmemory_mb: {}", MEMORY.peak_usage_as_mb());
    println!("log_bytes: {}", lines.text().len());
    println!("leases_restored: {}", summary.leases_restored);
    println!("undecodable: {}", summary.undecodable);
    println!("postponed: {}", summary.postponed);
}
