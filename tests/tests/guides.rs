//! The programs of the guides, run as a reader runs them. In memory they print what their pages
//! show; on a local table they hold the same limits. Each Rust block of a page is text of its program.
//!
//! `WRITTEN=1` writes the output into the pages.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use weirgate::{ConfigLevel, ConnectOptions, RateLimiter};
use weirgate_local::{LocalBackend, Options};
use weirgate_testkit::Temporary;

/// A page of `docs/guide/`, and its program in `client/examples/`.
struct Guide {
    page: &'static str,
    program: &'static str,
    source: &'static str,
}

macro_rules! guides {
    ($($page:literal $program:literal,)*) => {
        &[$(Guide {
            page: $page,
            program: $program,
            source: include_str!(concat!("../../client/examples/", $program, ".rs")),
        }),*]
    };
}

const GUIDES: &[Guide] = guides! {
    "choosing-limits" "choosing_limits",
    "llm-gateway" "llm_gateway",
    "vendor-slots" "vendor_slots",
    "api-with-tower" "tower_api",
    "multi-tenancy" "tenants",
    "failure-modes" "failure_modes",
    "from-zae-limiter" "from_zae_limiter",
    "from-redis" "from_redis",
};

fn guide(page: &str) -> &'static Guide {
    let found = GUIDES.iter().find(|guide| guide.page == page);
    found.expect("the guide is in the list")
}

impl Guide {
    /// Returns the program, which `cargo test` builds beside the tests.
    fn binary(&self) -> PathBuf {
        let this = std::env::current_exe().expect("this test has a path");
        let built = this.ancestors().nth(2).expect("it is in a folder");
        let built = built.join("examples").join(self.program);
        let build = "cargo build --locked --workspace --examples";
        assert!(built.exists(), "{built:?} is missing: {build}");
        built
    }

    fn path(&self) -> std::path::PathBuf {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide");
        folder.join(self.page).with_extension("md")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.path()).expect("the page can be read")
    }

    /// Runs the program with these variables. Returns what it printed.
    fn run(&self, variables: &[(&str, &str)]) -> String {
        let mut command = Command::new(self.binary());
        let command = command.env_clear().envs(variables.iter().copied());
        let Output { status, stdout, stderr } = command.output().expect("the program starts");
        let text = |bytes| String::from_utf8(bytes).expect("it prints text");
        let (stdout, stderr) = (text(stdout), text(stderr));
        assert!(status.success(), "{}: {stdout}{stderr}", self.page);
        stdout
    }
}

/// Returns the blocks of a page whose fence has these words.
fn blocks<'t>(text: &'t str, words: &str) -> Vec<&'t str> {
    let begin = format!("```{words}\n");
    let blocks = text.split(&*begin).skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

#[test]
fn every_rust_block_of_a_guide_is_text_of_its_program() {
    // Indentation may differ.
    let lines = |text: &str| {
        let lines = text.trim().lines().map(str::trim);
        lines.collect::<Vec<_>>().join("\n")
    };
    for guide in GUIDES {
        let (page, source) = (guide.text(), lines(guide.source));
        for block in blocks(&page, "rust") {
            assert!(source.contains(&lines(block)), "{}: {block}", guide.page);
        }
        let program = format!("client/examples/{}.rs", guide.program);
        assert!(page.contains(&program), "{} names {program}", guide.page);
        assert!(guide.source.lines().count() <= 147, "{program} is short");
    }
}

#[test]
fn in_memory_each_program_prints_what_its_page_shows() {
    let mut outdated = vec![];
    for guide in GUIDES {
        let (page, printed) = (guide.text(), guide.run(&[]));
        let [shown] = blocks(&page, "text output")[..] else {
            panic!("{}: the page has one block of output", guide.page);
        };
        if shown == printed {
            continue;
        }
        if std::env::var_os("WRITTEN").is_some() {
            let (old, new) =
                (format!("```text output\n{shown}```"), format!("```text output\n{printed}```"));
            std::fs::write(guide.path(), page.replacen(&old, &new, 1)).expect("it can be written");
        } else {
            outdated.push(format!("{}:\n{printed}", guide.page));
        }
    }
    assert!(outdated.is_empty(), "run this test with WRITTEN=1:\n{}", outdated.join("\n"));
}

#[test]
fn the_page_of_zae_limiter_has_what_is_left_out() {
    let guide = guide("from-zae-limiter");
    let page = guide.text();
    let output = Command::new(guide.binary()).output().expect("the program starts");
    let left_out = String::from_utf8(output.stderr).expect("it prints text");
    assert_eq!(blocks(&page, "text left out"), [left_out]);
}

/// Of cron, what a window on the calendar has; the rest is named.
#[test]
fn each_quota_of_zae_limiter_that_a_window_has_is_converted() {
    let quotas = [
        ("reset_schedule: [{cron: '30 * * * *'}]", Some("quota:9/hour,at=:30")),
        (
            "reset_schedule: [{cron: '0 9 * * *', tz: Europe/Berlin}]",
            Some("quota:9/day,at=09:00,tz=Europe/Berlin"),
        ),
        (
            "reset_schedule: [{cron: '0 0 * * 0', tz: UTC}], soft: true",
            Some("quota:9/week,day=sunday,mode=soft"),
        ),
        ("reset_schedule: [{cron: '0 0 * * 1'}]", Some("quota:9/week")),
        ("reset_schedule: [{cron: '15 6 28 * *'}]", Some("quota:9/month,day=28,at=06:15")),
        ("reset_schedule: [{cron: '0 0 6 4 *'}]", Some("quota:9/year,month=4,day=6")),
        ("reset_after_seconds: 18000", Some("session:9/5h")),
        ("reset_schedule: [{cron: '0 0 31 * *'}]", None),
        ("reset_schedule: [{cron: '0 */6 * * *'}]", None),
        ("reset_schedule: [{cron: '* 3 * * *'}]", None),
        ("reset_schedule: [{cron: '0 0 1 * 1'}]", None),
        ("reset_schedule: [{cron: '0 0 1 * *', tz: Mars/Base}]", None),
        ("reset_schedule: [{cron: '0 0 1 * *'}, {cron: '0 0 15 * *'}]", None),
        ("reset_after_seconds: 0", None),
    ];
    let limits = quotas.iter().enumerate();
    let limits =
        limits.map(|(at, (fields, _))| format!("    q{at:02}: {{capacity: 9, {fields}}}\n"));
    let manifest = format!("system:\n  limits:\n{}", limits.collect::<String>());
    let file = Temporary::file("quotas.yaml", &manifest);
    let output = Command::new(guide("from-zae-limiter").binary()).arg(file.path()).output();
    let Output { stdout, stderr, .. } = output.expect("the program starts");
    let [limits, left_out] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
    for (at, (fields, expected)) in quotas.iter().enumerate() {
        match expected {
            Some(text) => assert!(
                limits.contains(&format!("    q{at:02}: {text}\n")),
                "{fields}: {limits}{left_out}"
            ),
            None => assert!(
                left_out.contains(&format!("system.q{at:02}, a quota: ")),
                "{fields}: {limits}{left_out}"
            ),
        }
    }
}

/// What an attacker tries is refused in each program, and no permanent error passes a request.
#[test]
fn unknown_keys_are_refused_and_permanent_errors_pass_nothing() {
    for (page, attack, answer) in [
        ("llm-gateway", "made-up", "401"),
        ("api-with-tower", "made-up", "401"),
        ("api-with-tower", "rows=broken", "400"),
        ("multi-tenancy", "key-of-eve", "401"),
    ] {
        let printed = guide(page).run(&[]);
        let mut lines = printed.lines().filter(|line| line.contains(attack));
        let line = lines.next().unwrap_or_else(|| panic!("{page}: {printed}"));
        assert!(line.contains(answer), "{page}: {line}");
    }
    let printed = guide("failure-modes").run(&[]);
    let mut permanent = printed.lines().filter(|line| line.contains("error, permanent")).peekable();
    assert!(permanent.peek().is_some(), "{printed}");
    for line in permanent {
        assert!(line.contains(" 500"), "{line}");
    }
    for line in printed.lines().filter(|line| line.contains("a limit that is not there")) {
        assert!(!line.contains("granted"), "{line}");
    }
}

/// Returns the numbers of a line, in their order.
fn numbers(line: &str) -> Vec<i64> {
    line.split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

/// Returns the numbers of the first line that begins with `with`.
fn numbers_of(printed: &str, with: &str) -> Vec<i64> {
    let line = printed.lines().find(|line| line.trim_start().starts_with(with));
    numbers(&line.unwrap_or_else(|| panic!("no line {with:?} in {printed}"))[with.len()..])
}

/// A program on a local table of its own, and what it printed.
async fn on_a_table(page: &str) -> String {
    let backend = LocalBackend::start(Options::default()).await.expect("the backend starts");
    let variables = backend.variables();
    let printed = guide(page).run(&variables);
    backend.stop().await;
    printed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_namespace_a_program_keeps_away_from_the_default_one() {
    let backend = LocalBackend::start(Options::default()).await.expect("the backend starts");
    let variables = backend.variables().into_iter();
    let variables: Vec<_> = variables.filter(|(name, _)| *name != "WEIRGATE_NAMESPACE").collect();
    guide("multi-tenancy").run(&variables);
    for (namespace, is_there) in [("examples", true), ("default", false)] {
        let connection = ConnectOptions {
            local_endpoint: Some(backend.endpoint_url().to_owned()),
            ..ConnectOptions::default()
        };
        let limiter = RateLimiter::builder("weirgate").namespace(namespace);
        let limiter = limiter.connection(connection).build().await;
        let limiter = limiter.expect("the table is there");
        let level = ConfigLevel::Resource("api".try_into().expect("a name"));
        let config = limiter.admin().config(&level).await.expect("it can be read");
        assert_eq!(config.is_some(), is_there, "{namespace}");
    }
    backend.stop().await;
}

/// Returns a text without its waits, which are shorter on a table that takes time itself, and without
/// slots that may be on their way back.
fn without_waits(text: &str) -> String {
    let mut text = text.to_owned();
    for before in ["again in ", "retry-after: ", ";t="] {
        let parts: Vec<_> = text.split(before).collect();
        let parts = parts.iter().enumerate().map(|(at, part)| match at {
            0 => *part,
            _ => part.trim_start_matches(|letter: char| letter.is_ascii_digit()),
        });
        text = parts.collect::<Vec<_>>().join(before);
    }
    // A slot returns after the response, so it may be missing from the next one.
    let lines =
        text.lines().map(|line| line.split(", \"slots\"").next().unwrap_or(line).to_owned() + "\n");
    lines.collect()
}

/// The limits of these are so slow that the time of a real table changes no number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_local_table_these_programs_print_the_same() {
    for page in ["api-with-tower", "multi-tenancy", "failure-modes"] {
        let (printed, in_memory) = (on_a_table(page).await, guide(page).run(&[]));
        assert_eq!(without_waits(&printed), without_waits(&in_memory), "{page}");
    }
    assert_eq!(without_waits("\"r\";r=3;t=12, again in 7 s"), "\"r\";r=3;t=, again in  s\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_calls_than_slots_and_the_slot_of_a_killed_environment_returns_once() {
    for printed in [on_a_table("vendor-slots").await, guide("vendor-slots").run(&[])] {
        let served = printed.lines().find(|line| line.contains("events served"));
        let [4, 4, 1..=2] = numbers(served.expect("a line"))[..] else {
            panic!("{printed}");
        };
        assert!(printed.ends_with("slots that are free after 2s: 2\n"), "{printed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_spends_what_the_vendor_used_and_no_token_twice() {
    for printed in [on_a_table("llm-gateway").await, guide("llm-gateway").run(&[])] {
        let served = printed.lines().filter(|line| line.contains(" 200, "));
        let used: Vec<i64> = served.map(|line| numbers(line)[2]).collect();
        assert_eq!(used.len(), 5, "{printed}");
        // No call is left, and each token of the vendor counts once.
        let account = [0, used.iter().sum()];
        assert_eq!(numbers_of(&printed, "the account:"), account, "{printed}");
        let most = numbers_of(&printed, "most calls at once:")[0];
        assert!((1..=2).contains(&most), "{printed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_is_the_capacity_and_a_second_brings_the_rate() {
    let printed = on_a_table("choosing-limits").await;
    for burst in [1, 10, 40] {
        let line = printed.lines().find(|line| numbers(line).first() == Some(&burst));
        let [_, at_once, then] = numbers(line.expect("a line of the burst"))[..] else {
            panic!("{printed}");
        };
        // The burst itself takes time, in which the rate goes on.
        assert!(at_once >= burst, "{printed}");
        assert!((1..=11).contains(&then), "{printed}");
    }
    for line in ["after that 100 are granted", "after that it is granted", "never fits"] {
        assert!(printed.contains(line), "{printed}");
    }
}

/// In exact time the two are one algorithm.
#[test]
fn gcra_and_a_bucket_decide_alike() {
    let printed = guide("from-redis").run(&[]);
    let [alike, all] = numbers_of(&printed, "GCRA and bucket decide alike")[..] else {
        panic!("{printed}");
    };
    assert!(alike == all && all > 50, "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_local_table_a_bucket_admits_at_most_its_capacity_and_the_refill() {
    let begun = std::time::Instant::now();
    let printed = on_a_table("from-redis").await;
    let seconds = i64::try_from(begun.elapsed().as_secs()).expect("a few seconds") + 1;
    for (name, capacity) in [("bucket, burst 10", 10), ("bucket, burst 4", 4)] {
        let [admitted, ..] = numbers_of(&printed, name)[..] else {
            panic!("{printed}");
        };
        let most = capacity + 10 * seconds;
        assert!((capacity..=most).contains(&admitted), "{name}, {seconds} s: {printed}");
    }
}

#[test]
fn the_converted_manifest_is_a_limits_file_with_all_that_it_can_have() {
    let printed = guide("from-zae-limiter").run(&[]);
    let file = Temporary::file("limits.yaml", &printed);
    let contents = weirgate::LimitsFileContents::read(&*file).expect("it is a limits file");
    assert_eq!(contents.configs.len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lambda_runs_the_function_of_the_vendor_slots() {
    let backend = LocalBackend::start(Options::default()).await.expect("the backend starts");
    // Its environment is Lambda's, with the table.
    let mut command = Command::new("env");
    command.arg("WEIRGATE_TABLE=weirgate").arg(guide("vendor-slots").binary());
    let event = r#"{"event": 7}"#;
    let invoked = weirgate_testkit::lambda::invoke(command, backend.endpoint_url(), event).await;
    assert_eq!(invoked.answers[0], r#"{"answer":"found {\"event\":7}","status":200}"#);
    backend.stop().await;
}
