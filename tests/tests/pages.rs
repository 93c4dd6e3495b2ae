//! The names that the pages for contributors give exist: tests, paths, fuzz targets. The guides
//! state the numbers of the code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::routing::get;
use http::Request;
use tower::ServiceExt;
use weirgate::Limit;
use weirgate::tower::RateLimitLayer;
use weirgate_tools::number::Grouped;
use weirgate_tools::scaling::{Scenario, facts, idle, snapshot_units};

const README: &str = include_str!("../../README.md");
const TESTING: &str = include_str!("../../docs/testing.md");
const CONTRIBUTING: &str = include_str!("../../CONTRIBUTING.md");
const MAKEFILE: &str = include_str!("../../Makefile");

/// What the Makefile makes, so it is not in a checkout.
const MADE: [&str; 2] = [".venv/", ".tools/"];
/// Folders that hold nothing of the project, or what was built of it.
const SKIPPED: [&str; 9] = [
    ".git",
    ".tools",
    ".venv",
    "artifacts",
    "corpus",
    "dist",
    "found",
    "node_modules",
    "target",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file of the project, by its path from the root.
fn files() -> Vec<String> {
    let (mut found, mut folders) = (vec![], vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if !path.is_dir() {
                let path = path.strip_prefix(root()).unwrap();
                found.push(path.to_string_lossy().into_owned());
            } else if !SKIPPED.contains(&&*name) {
                folders.push(path);
            }
        }
    }
    found
}

/// The words in backticks of a page, without its blocks of code.
fn quoted(page: &str) -> Vec<&str> {
    let prose = page.split("```").step_by(2);
    prose
        .flat_map(|part| part.split('`').skip(1).step_by(2))
        .filter(|word| !word.contains(char::is_whitespace))
        .collect()
}

/// The words that `{one,other}` in a word stands for.
fn expanded(word: &str) -> Vec<String> {
    let parts = word
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match parts {
        None => vec![word.to_owned()],
        Some((before, (choices, after))) => choices
            .split(',')
            .map(|choice| format!("{before}{choice}{after}"))
            .collect(),
    }
}

fn is_lower(word: &str) -> bool {
    let letter = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    word.split('_')
        .all(|part| !part.is_empty() && part.chars().all(letter))
}

/// A name of three words or more is a function's.
fn names_function(word: &str) -> bool {
    is_lower(word) && word.matches('_').count() >= 2
}

/// A module of the integration tests, such as `load::heat`, or such a pair in lower case.
fn names_module(word: &str) -> bool {
    word.split_once("::")
        .is_some_and(|(suite, module)| is_lower(suite) && is_lower(module))
}

fn names_path(word: &str) -> bool {
    let extensions = [".rs", ".py", ".md", ".json", ".toml", ".yaml", ".txt"];
    let letter = |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
    let is_made = MADE.contains(&word) || word.starts_with("target/");
    let is_plain = word.len() > 1 && word.chars().all(letter);
    let named = word.contains('/') || extensions.iter().any(|end| word.ends_with(end));
    is_plain && named && !is_made
}

/// Returns the names of a page that exist nowhere.
fn unknown(page: &str, files: &[String], sources: &str) -> Vec<String> {
    // A path may begin below the root: the page names its folder before.
    let is_path = |path: &str| {
        let path = path.trim_end_matches('/');
        let (below, inside) = (format!("/{path}"), format!("{path}/"));
        let middle = format!("/{path}/");
        files.iter().any(|file| {
            file == path
                || file.ends_with(&below)
                || file.starts_with(&inside)
                || file.contains(&middle)
        })
    };
    let exists = |word: &str| match word {
        _ if names_function(word) => sources.contains(&format!("fn {word}(")),
        _ if names_module(word) => is_path(&format!("tests/tests/{}.rs", word.replace("::", "/"))),
        _ if names_path(word) => is_path(word),
        _ => true,
    };
    let words = quoted(page).into_iter().flat_map(expanded);
    words.filter(|word| !exists(word)).collect()
}

#[test]
fn every_test_path_and_module_that_the_pages_for_contributors_name_exists() {
    let files = files();
    let sources: String = files
        .iter()
        .filter(|file| file.ends_with(".rs"))
        .map(|file| std::fs::read_to_string(root().join(file)).unwrap())
        .collect();
    let none: [String; 0] = [];
    for page in [TESTING, CONTRIBUTING] {
        assert_eq!(unknown(page, &files, &sources), none);
    }
    for gone in [
        "a_test_that_is_gone",
        "client/src/gone.rs",
        "gone.json",
        "load::gone",
        "queue/{batch,gone}.rs",
    ] {
        let page = format!("A page names `{gone}`.");
        assert_eq!(unknown(&page, &files, &sources).len(), 1, "{gone}");
    }
}

#[test]
fn the_page_has_every_fuzz_target_and_its_run_no_other() {
    let targets: BTreeSet<_> = MAKEFILE
        .lines()
        .find_map(|line| line.strip_prefix("fuzz_targets := "))
        .expect("the Makefile lists them")
        .split(' ')
        .collect();
    let rows = |head: &str| -> BTreeSet<_> {
        let (_, table) = TESTING.split_once(head).expect("the page has the table");
        let rows = table.lines().skip(2).take_while(|row| row.starts_with('|'));
        rows.filter_map(|row| row.split('`').nth(1)).collect()
    };
    assert_eq!(rows("| target | reads | then runs | and checks |"), targets);
    let run = rows("| target | inputs | inputs a second |");
    assert!(!run.is_empty() && run.is_subset(&targets), "{run:?}");
}

/// The lines of a page as one, so that a sentence is found wherever it is wrapped.
fn unwrapped(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_pages_state_the_computed_shards_units_and_dollars() {
    let costs = unwrapped(include_str!("../../docs/guide/costs.md"));
    let shared = Scenario {
        acquires: 10_000,
        acquires_per_write: facts::ACQUIRES_PER_SHARED_WRITE,
    };
    assert_eq!(shared.numbers().shards, 1);
    let shards = format!(
        "10,000 acquires a second on one key take {} shards if each caller is alone, and one shard if {} acquires \
         share a write.",
        Scenario::alone(10_000).numbers().shards,
        facts::ACQUIRES_PER_SHARED_WRITE
    );
    assert!(costs.contains(&shards), "{shards}");

    // Of the hour at its end, of the day at its begin and end, and of both in between.
    let row = format!(
        "usage of an acquire, hour and day: {0} an hour and {1} a day for each bucket, and {1} in {2} acquires",
        snapshot_units(1),
        facts::WINDOWS * snapshot_units(1),
        Grouped(facts::INTERIM_WRITES),
    );
    assert!(costs.contains(&row), "{row}");

    let month = idle().0 * 730;
    assert!((2_500_000_000_000..3_500_000_000_000).contains(&month));
    for page in [
        README,
        include_str!("../../docs/deployment.md"),
        include_str!("../../docs/guide/start.md"),
    ] {
        assert!(
            unwrapped(page)
                .to_lowercase()
                .contains("about three dollars a month")
        );
    }
}

#[test]
fn the_live_page_costs_what_its_guide_states() {
    let guide = unwrapped(include_str!("../../docs/guide/live-page.md"));
    let default = |source: &str| {
        let (before, _) = source.split_once("read_units: NonZeroU32").unwrap();
        let (_, value) = before.rsplit_once("default_value = \"").unwrap();
        value.split_once('"').unwrap().0.parse::<u64>().unwrap()
    };
    let of_page = default(include_str!("../../cli/src/commands/page.rs"));
    let of_local = default(include_str!("../../cli/src/commands/local.rs"));
    let cents = of_page * 86_400 * facts::READ_UNIT_PRICE / 10_000_000_000;
    let states = format!(
        "{of_page} for a table on AWS, which is 0.{cents} USD a day in us-east-1 while a page is open all day, and \
         {of_local} for `weirgate local`."
    );
    assert!(guide.contains(&states), "{states}");
    let (_, most) = include_str!("../../page/src/poller.rs")
        .split_once("const MAX_BUCKETS: usize = ")
        .unwrap();
    let most = most.split_once(';').unwrap().0.parse().unwrap();
    let states = format!("At most {} buckets of a resource are shown.", Grouped(most));
    assert!(guide.contains(&states), "{states}");
}

/// The layer of the guide, on a table in memory.
#[tokio::test(start_paused = true)]
async fn the_guide_shows_what_a_denied_request_is_answered() {
    let (limiter, _) = weirgate::testing::limiter().await;
    let limits = [
        Limit::per_minute("requests", 5).unwrap(),
        Limit::concurrent("slots", 2).unwrap(),
    ];
    let layer = RateLimitLayer::new(limiter, move |limiter, request| {
        let key = request.headers.get("x-api-key")?.to_str().ok()?;
        let acquire = limiter.acquire(key, "hello").limits(&limits);
        Some(acquire.take("requests", 1).take("slots", 1))
    });
    let app = Router::new()
        .route("/hello", get(async || "hello"))
        .layer(layer);
    let ask = async || {
        let request = Request::get("/hello").header("x-api-key", "alice");
        let response = app.clone().oneshot(request.body(Body::empty()).unwrap());
        let (head, body) = response.await.unwrap().into_parts();
        (head, to_bytes(body, 10_000).await.unwrap())
    };
    for _ in 0..5 {
        assert_eq!(ask().await.0.status, 200);
        // The slot returns in the background.
        tokio::task::yield_now().await;
    }
    let (head, body) = ask().await;
    let guide = include_str!("../../docs/guide/http.md");
    let (_, shown) = guide.split_once("```text\nHTTP/1.1 ").unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    let (fields, problem) = shown.split_once("\n\n").unwrap();
    let mut fields = fields.lines();
    assert_eq!(fields.next(), Some(&*head.status.to_string()));
    for field in fields {
        let (name, value) = field.split_once(": ").unwrap();
        assert_eq!(head.headers[name], value, "{name}");
    }
    let json = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
    assert_eq!(json(problem.as_bytes()), json(&body));
}
