//! Limits from a YAML file: every mistake has a line and a column, and a broken file changes
//! nothing.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::fixtures::fleet::{Fleet, config, pass, secs, tokens};
use proptest::prelude::*;
use weirgate::{ConfigStatus, Decision, Error, Limit, LimitsFile, RateLimiter};

/// A file of its own, removed in the end.
struct File(PathBuf);

impl File {
    fn new(text: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "weirgate-{}-{}.yaml",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let file = Self(std::env::temp_dir().join(name));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.0, text).unwrap();
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const GOOD: &str = "\
weirgate: 1
system:
  limits:
    rpm: {per_minute: 1}
resources:
  gpt-4:
    limits:
      rpm: {per_minute: 600, burst: 700}
      slots: {concurrent: 20}
  legacy:
    status: disabled
  free:
    status: unlimited
entities:
  team-a:
    limits:
      rpm: {capacity: 50, refill_amount: 1, refill_period_ms: 250}
  user-1:
    parent: team-a
    resources:
      gpt-4:
        shadow: true
        limits:
          rpm: {per_minute: 30, mode: soft}
";

async fn limiter(fleet: &Fleet, file: &LimitsFile) -> RateLimiter {
    fleet
        .builder()
        .await
        .limits_file(file.clone())
        .build()
        .await
        .unwrap()
}

/// The capacity in force, by the nearest level.
async fn rpm(limiter: &RateLimiter, entity: &str, resource: &str) -> i64 {
    let balances = limiter.peek(entity, resource).send().await.unwrap();
    balances
        .limit("rpm")
        .expect("it is configured")
        .capacity
        .whole_tokens()
}

#[tokio::test(start_paused = true)]
async fn the_nearest_level_of_the_file_wins_and_the_table_is_read_once_for_nearer_ones() {
    let fleet = Fleet::new().await;
    let file = File::new(GOOD);
    let limiter = limiter(&fleet, &LimitsFile::open(&file.0).unwrap()).await;
    for (entity, resource, capacity) in [
        ("user-1", "gpt-4", 30),
        ("team-a", "gpt-4", 50),
        ("team-a", "other", 50),
        ("user-2", "gpt-4", 700),
        ("user-2", "other", 1),
    ] {
        assert_eq!(
            rpm(&limiter, entity, resource).await,
            capacity,
            "{entity} on {resource}"
        );
    }
    let ask = |resource: &str| limiter.acquire("user-2", resource).take("rpm", 1).send();
    assert!(matches!(
        ask("legacy").await.unwrap(),
        Decision::Disabled(_)
    ));
    assert!(ask("free").await.unwrap().is_granted());
    let _ = fleet.dynamo.take_operations();
    assert!(ask("free").await.unwrap().is_granted());
    assert_eq!(fleet.dynamo.take_requests(), 0);
    assert_eq!(
        limiter.peek("user-2", "free").send().await.unwrap().status,
        ConfigStatus::Unlimited
    );
    // What user-1 takes is taken of its parent too, and a soft limit goes into debt.
    let grant = limiter
        .acquire("user-1", "gpt-4")
        .take("rpm", 40)
        .send()
        .await
        .unwrap()
        .granted()
        .unwrap();
    let available: Vec<_> = grant
        .limits()
        .iter()
        .map(|status| status.available)
        .collect();
    assert_eq!(available[0], tokens(-10));
    assert!(available.contains(&tokens(10)), "{available:?}");
    assert_eq!(
        fleet.dynamo.take_operations().keys().collect::<Vec<_>>(),
        ["UpdateItem"]
    );
}

/// Returns the capacity once the file has been checked twice. Time waits for the reads.
async fn settled_rpm(limiter: &RateLimiter, entity: &str, resource: &str) -> i64 {
    for _ in 0..3 {
        rpm(limiter, entity, resource).await;
        tokio::time::sleep(secs(1)).await;
    }
    rpm(limiter, entity, resource).await
}

#[tokio::test(start_paused = true)]
async fn a_changed_file_is_heard_of_and_a_broken_one_changes_nothing() {
    let fleet = Fleet::new().await;
    let file = File::new("weirgate: 1\nsystem:\n  limits:\n    rpm: {per_minute: 10}\n");
    let limits = LimitsFile::open(&file.0).unwrap();
    let limiter = limiter(&fleet, &limits).await;
    assert_eq!(rpm(&limiter, "e-1", "gpt-4").await, 10);
    file.write("weirgate: 1\nsystem:\n  limits:\n    rpm: {per_minute: 200}\n");
    assert_eq!(settled_rpm(&limiter, "e-1", "gpt-4").await, 200);
    assert_eq!(limits.error(), None);

    file.write("weirgate: 1\nsystem:\n  limits:\n    rpm: {per_minuet: 3000}\n");
    assert_eq!(settled_rpm(&limiter, "e-1", "gpt-4").await, 200);
    let error = limits.error().expect("a key is not known");
    assert_eq!(error.place, Some((4, 11)));
    assert!(
        error
            .to_string()
            .contains(".yaml:4:11: system.limits.rpm: \"per_minuet\" is unknown"),
        "{error}"
    );

    for lost in [
        None,
        Some(""),
        Some("weirgate: 1\n"),
        Some("weirgate: 1\nsystem:\n"),
    ] {
        match lost {
            None => std::fs::remove_file(&file.0).unwrap(),
            Some(text) => file.write(text),
        }
        assert_eq!(settled_rpm(&limiter, "e-1", "gpt-4").await, 200);
        let error = limits.error().expect("there are no limits").to_string();
        let is_missing = error.contains("cannot be read");
        assert_eq!(is_missing, lost.is_none(), "{error}");
    }

    file.write("weirgate: 1\nsystem:\n  limits:\n    rpm: {per_minute: 40000}\n");
    assert_eq!(settled_rpm(&limiter, "e-1", "gpt-4").await, 40_000);
    assert_eq!(limits.error(), None);
}

/// Each of these halves is a valid file, and less than what is in force.
#[tokio::test(start_paused = true)]
async fn no_half_of_a_file_with_an_end_is_in_force() {
    let fleet = Fleet::new().await;
    let whole = format!("{GOOD}...\n");
    let file = File::new(&whole);
    let limits = LimitsFile::open(&file.0).unwrap();
    let limiter = limiter(&fleet, &limits).await;
    let lines: Vec<_> = whole.lines().collect();
    for kept in 0..lines.len() - 1 {
        file.write(&(lines[..kept].join("\n") + "\n"));
        assert_eq!(
            settled_rpm(&limiter, "user-1", "gpt-4").await,
            30,
            "{kept} lines"
        );
        assert!(limits.error().is_some(), "{kept} lines");
    }
    file.write(&whole.replace("per_minute: 30", "per_minute: 31"));
    assert_eq!(settled_rpm(&limiter, "user-1", "gpt-4").await, 31);
    assert_eq!(limits.error(), None);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_changed_during_a_freeze_is_heard_of_after_it() {
    let (fleet, text) = (Fleet::new().await, File::new(GOOD));
    let file = LimitsFile::open(&text.0).unwrap();
    let limiter = limiter(&fleet, &file).await;
    // By this clock from now on.
    pass(secs(1)).await;
    assert_eq!(rpm(&limiter, "e", "gpt-4").await, 700);
    text.write(&GOOD.replace("burst: 700", "burst: 7000"));
    fleet.clock.skew(1_000);
    assert_eq!(
        rpm(&limiter, "e", "gpt-4").await,
        700,
        "one read is not enough"
    );
    tokio::time::sleep(secs(2)).await;
    assert_eq!(rpm(&limiter, "e", "gpt-4").await, 7_000);
    // A clock that is set back makes it no younger.
    text.write(GOOD);
    fleet.clock.skew(-3_600_000);
    assert_eq!(settled_rpm(&limiter, "e", "gpt-4").await, 700);
}

#[tokio::test(start_paused = true)]
async fn what_the_file_says_nothing_about_is_in_the_table_or_nowhere() {
    let fleet = Fleet::new().await;
    let file =
        File::new("weirgate: 1\nresources:\n  gpt-4:\n    limits:\n      rpm: {per_minute: 10}\n");
    let limiter = limiter(&fleet, &LimitsFile::open(&file.0).unwrap()).await;
    let error = limiter
        .acquire("e-1", "other")
        .take("rpm", 1)
        .send()
        .await
        .expect_err("no limits are configured");
    assert!(matches!(error, Error::NotConfigured { .. }), "{error}");
    let level = weirgate::ConfigLevel::System;
    limiter
        .set_config(
            &level,
            &weirgate::Config::of([Limit::per_minute("rpm", 77).unwrap()]),
        )
        .await
        .unwrap();
    assert_eq!(rpm(&limiter, "e-1", "other").await, 77);
    assert_eq!(rpm(&limiter, "e-1", "gpt-4").await, 10);
}

#[test]
fn every_mistake_has_its_line_and_column_and_says_what_it_takes() {
    let cases: &[(&str, (usize, usize), &str)] = &[
        ("", (1, 1), "weirgate: 1"),
        (
            "system: {status: disabled}\n",
            (1, 1),
            "weirgate: 1 is missing",
        ),
        ("weirgate: 2\n", (1, 11), "must be 1"),
        (
            "weirgate: 1\nsytem: {}\n",
            (2, 1),
            "\"sytem\" is unknown, must be weirgate, system",
        ),
        (
            "weirgate: 1\nresources:\n  4gpt: {status: disabled}\n",
            (3, 9),
            "4gpt",
        ),
        (
            "weirgate: 1\nresources:\n  gpt: {status: off}\n",
            (3, 17),
            "enforced, disabled or unlimited",
        ),
        (
            "weirgate: 1\nsystem:\n  limits: [rpm]\n",
            (3, 11),
            "a list, must be a map",
        ),
        (
            "weirgate: 1\nsystem:\n  limits:\n    rpm: {per_minute: ten}\n",
            (4, 23),
            "\"ten\", must be a whole number",
        ),
        (
            "weirgate: 1\nsystem:\n  limits:\n    rpm: {per_minute: 0}\n",
            (4, 10),
            "capacity is 0",
        ),
        (
            "weirgate: 1\nsystem:\n  limits:\n    rpm: {per_minute: 1, per_day: 5}\n",
            (4, 10),
            "one of per_second",
        ),
        (
            "weirgate: 1\nsystem:\n  limits:\n    rpm: {capacity: 1}\n",
            (4, 10),
            "one of per_second",
        ),
        (
            "weirgate: 1\nsystem:\n  limits:\n    rpm: {per_day: 1, mode: hard}\n",
            (4, 29),
            "enforced, shadow or soft",
        ),
        (
            "weirgate: 1\nsystem:\n  limits:\n    wcu: {per_day: 1}\n",
            (4, 10),
            "wcu",
        ),
        (
            "weirgate: 1\nsystem:\n  shadow: maybe\n",
            (3, 11),
            "true or false",
        ),
        ("weirgate: 1\nsystem: {}\n", (2, 9), "enforces nothing"),
        (
            "weirgate: 1\nentities:\n  e:\n    parent: 'a b'\n",
            (4, 13),
            "a b",
        ),
        (
            "weirgate: 1\nsystem: {status: unlimited}\nentities:\n  a: {parent: b}\n  b: {parent: a}\n",
            (4, 15),
            "its own ancestor",
        ),
        (
            "weirgate: 1\nsystem: {status: unlimited}\nentities:\n  a: {parent: a}\n",
            (4, 15),
            "its own ancestor",
        ),
        ("weirgate: 1\n", (1, 1), "has no limits"),
        ("weirgate: 1\nentities: {}\n", (1, 1), "has no limits"),
        ("weirgate: 1\nweirgate: 1\n", (2, 1), "duplicated key"),
        (
            "weirgate: 1\nentities:\n  a: {status: disabled}\n  'a': {status: unlimited}\n",
            (4, 3),
            "entities: duplicated key \"a\"",
        ),
        (
            "weirgate: 1\nsystem:\n  limits:\n    rpm: {per_day: 1}\n    !!str rpm: {per_day: 2}\n",
            (5, 5),
            "duplicated key \"rpm\"",
        ),
        (
            "weirgate: 1\nsystem: &a {status: disabled}\nresources:\n  r:\n    <<: *a\n",
            (5, 5),
            "<< does not merge maps",
        ),
        ("weirgate: 1\nsystem: [\n", (3, 1), ""),
        (
            "weirgate: 1\n---\nweirgate: 1\n",
            (3, 1),
            "a second document",
        ),
    ];
    for (text, place, named) in cases {
        let file = File::new(text);
        let error = LimitsFile::open(&file.0).expect_err(text);
        assert_eq!(error.place, Some(*place), "{text:?}: {error}");
        assert!(
            error.to_string().contains(named),
            "{text:?}: {error} must say {named:?}"
        );
    }
    let error = LimitsFile::open("/nowhere/limits.yaml").expect_err("it is not there");
    assert!(
        error
            .to_string()
            .starts_with("/nowhere/limits.yaml: cannot be read"),
        "{error}"
    );
}

/// A few kilobytes of nesting overflowed the stack, which ends the process and not only the
/// reading.
#[test]
fn nesting_deeper_than_any_meaning_is_refused_with_its_place() {
    // The last two are ended by the scanner, which reads ahead.
    let (ours, theirs) = ("nested deeper", "recursion limit");
    for (part, place, says) in [
        ("? ", 33, ours),
        ("- ", 33, ours),
        ("[", 256, theirs),
        ("{", 256, theirs),
    ] {
        let file = File::new(&part.repeat(100_000));
        let error = LimitsFile::open(&file.0).expect_err(part);
        assert_eq!(error.place, Some((1, place)), "{part:?}: {error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn an_alias_stands_for_what_it_names_and_a_few_cannot_stand_for_millions() {
    let file =
        File::new("weirgate: 1\nresources:\n  a: &a {limits: {rpm: {per_minute: 1}}}\n  b: *a\n");
    assert!(LimitsFile::open(&file.0).is_ok());
    let line = |at: usize| {
        format!(
            "a{at}: &a{at} [{}]\n",
            vec![format!("*a{}", at - 1); 10].join(",")
        )
    };
    let text: String = std::iter::once("a0: &a0 [x]\n".to_owned())
        .chain((1..10).map(line))
        .collect();
    let error = LimitsFile::open(&File::new(&text).0).expect_err("they are a billion");
    assert!(error.to_string().contains("alias expansion"), "{error}");
    assert_eq!(error.place.map(|(line, _)| line), Some(5), "{error}");
}

proptest! {
    #![proptest_config(config(512))]

    /// Whatever a file holds, it is read or refused, with a place in it.
    #[test]
    fn any_text_is_read_or_refused_with_its_place(
        noise in "[a-z{}\\[\\]:,&*!|>'\"#%@` \\n0-9-]{0,60}",
        cut in 0..GOOD.len(),
        keep in any::<bool>(),
    ) {
        let text = if keep { format!("{}{noise}{}", &GOOD[..cut], &GOOD[cut..]) } else { noise };
        let file = File::new(&text);
        if let Err(error) = LimitsFile::open(&file.0) {
            let (line, column) = error.place.expect("it could be read");
            prop_assert!(line >= 1 && column >= 1 && line <= text.lines().count() + 2, "{}", error);
        }
    }
}

/// What a level says, in the file or in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Says {
    Nothing,
    /// Limits, with a capacity that names the place.
    Limits,
    Disabled,
}

const SAYS: [Says; 3] = [Says::Nothing, Says::Limits, Says::Disabled];

/// What one level says in both places.
#[derive(Debug, Clone, Copy)]
struct Both {
    file: Says,
    table: Says,
}

impl Both {
    const fn all() -> [Self; 9] {
        let mut all = [Self {
            file: Says::Nothing,
            table: Says::Nothing,
        }; 9];
        let mut at = 0;
        while at < 9 {
            all[at] = Self {
                file: SAYS[at / 3],
                table: SAYS[at % 3],
            };
            at += 1;
        }
        all
    }

    /// Returns what counts at this level: the file's, or else the table's.
    fn wins(self, level: i64) -> Option<(Says, i64)> {
        match (self.file, self.table) {
            (Says::Nothing, Says::Nothing) => None,
            (Says::Nothing, table) => Some((table, 1_000 + level)),
            (file, _) => Some((file, 2_000 + level)),
        }
    }
}

fn says(says: Says, capacity: i64) -> Option<weirgate::Config> {
    match says {
        Says::Nothing => None,
        Says::Limits => Some(weirgate::Config::of([
            Limit::per_minute("rpm", capacity).unwrap()
        ])),
        Says::Disabled => Some(weirgate::Config {
            status: ConfigStatus::Disabled,
            ..weirgate::Config::default()
        }),
    }
}

/// Returns the lines of a level of the file, under a name.
fn lines(indent: usize, name: &str, says: Says, capacity: i64) -> String {
    let indent = " ".repeat(indent);
    match says {
        Says::Nothing => String::new(),
        Says::Limits => {
            format!("{indent}{name}: {{limits: {{rpm: {{per_minute: {capacity}}}}}}}\n")
        }
        Says::Disabled => format!("{indent}{name}: {{status: disabled}}\n"),
    }
}

/// An entity, with what its two levels say on each resource, and where it has a parent.
struct Case {
    name: String,
    on_resource: Both,
    alone: Both,
    parents: (bool, bool),
}

/// The first of the levels, narrow to broad, that has a configuration wins, in the file or in the
/// table; so does a stop of it, and a parent in either place is taken from.
#[tokio::test(start_paused = true)]
async fn no_broad_level_of_one_place_hides_a_narrow_level_of_the_other() {
    let all = Both::all();
    let mut cases = vec![];
    for (one, on_resource) in all.into_iter().enumerate() {
        for (two, alone) in all.into_iter().enumerate() {
            for parents in [(false, false), (true, false), (false, true), (true, true)] {
                let name = format!("e-{one}-{two}-{}-{}", parents.0, parents.1);
                cases.push(Case {
                    name,
                    on_resource,
                    alone,
                    parents,
                });
            }
        }
    }
    let resource = |at: usize| weirgate::Resource::new(format!("r-{at}")).unwrap();
    let entity = |name: &str| weirgate::EntityId::new(name).unwrap();
    let level = weirgate::ConfigLevel::EntityResource;
    let (fleet, mut seen) = (Fleet::new().await, 0);
    let operator = fleet.limiter().await;
    let set = async |level: weirgate::ConfigLevel, config: Option<weirgate::Config>| {
        if let Some(config) = config {
            operator.set_config(&level, &config).await.unwrap();
        }
    };
    for (parent, capacity) in [("in-table", 5_001), ("in-file", 5_002)] {
        let parent = weirgate::ConfigLevel::Entity(entity(parent));
        set(parent, says(Says::Limits, capacity)).await;
    }
    for (at, both) in all.into_iter().enumerate() {
        let level = weirgate::ConfigLevel::Resource(resource(at));
        set(level, says(both.table, 1_002)).await;
    }
    let (mut resources, mut entities) = (String::new(), String::new());
    for (at, both) in all.into_iter().enumerate() {
        resources += &lines(2, resource(at).as_str(), both.file, 2_002);
    }
    // Each case on one resource, so that each pair of a case and a resource comes in some run.
    let resource_of = |run: usize, case: usize| (case + case / 9 + run) % 9;
    for case in &cases {
        let id = entity(&case.name);
        set(
            weirgate::ConfigLevel::Entity(id.clone()),
            says(case.alone.table, 1_001),
        )
        .await;
        for at in 0..9 {
            set(
                level(id.clone(), resource(at)),
                says(case.on_resource.table, 1_000),
            )
            .await;
        }
        if case.parents.1 {
            let (parent, cascades) = (Some(entity("in-table")), true);
            let child = weirgate::Entity {
                id,
                parent,
                cascades,
            };
            operator.set_entity(&child).await.unwrap();
        }
        let mut parts = String::new();
        if case.parents.0 {
            parts += "    parent: in-file\n";
        }
        match case.alone.file {
            Says::Nothing => {}
            Says::Limits => parts += "    limits: {rpm: {per_minute: 2001}}\n",
            Says::Disabled => parts += "    status: disabled\n",
        }
        if case.on_resource.file != Says::Nothing {
            parts += "    resources:\n";
            for at in 0..9 {
                parts += &lines(6, resource(at).as_str(), case.on_resource.file, 2_000);
            }
        }
        if !parts.is_empty() {
            entities += &format!("  {}:\n{parts}", case.name);
        }
    }
    for (run, system) in all.into_iter().enumerate() {
        match says(system.table, 1_003) {
            Some(config) => set(weirgate::ConfigLevel::System, Some(config)).await,
            None => drop(
                operator
                    .delete_config(&weirgate::ConfigLevel::System)
                    .await
                    .unwrap(),
            ),
        }
        let text = format!(
            "weirgate: 1\n{}resources:\n{resources}entities:\n{entities}",
            lines(0, "system", system.file, 2_003)
        );
        let file = File::new(&text);
        let limiter = limiter(&fleet, &LimitsFile::open(&file.0).unwrap()).await;
        for (number, case) in cases.iter().enumerate() {
            let at = resource_of(run, number);
            let levels = [case.on_resource, case.alone, all[at], system];
            let expected = (0..).zip(levels).find_map(|(place, both)| both.wins(place));
            let what = format!("{}, {levels:?}", case.name);
            let resource = resource(at);
            let asked = limiter
                .acquire(&case.name, resource.as_str())
                .take("rpm", 1);
            let parent = match case.parents {
                (true, _) => Some(5_002),
                (false, true) => Some(5_001),
                (false, false) => None,
            };
            match (asked.send().await, expected) {
                (Err(Error::NotConfigured { .. }), None)
                | (Ok(Decision::Disabled(_)), Some((Says::Disabled, _))) => {}
                (Ok(Decision::Granted(grant)), Some((Says::Limits, own))) => {
                    let statuses = grant.limits();
                    let capacity = |status: &weirgate::LimitStatus| status.capacity.whole_tokens();
                    let mut found: Vec<_> = statuses.iter().map(capacity).collect();
                    found.sort_unstable();
                    let mut all: Vec<_> = [Some(own), parent].into_iter().flatten().collect();
                    all.sort_unstable();
                    assert_eq!(found, all, "{what}");
                    let _ = grant.roll_back().await.unwrap();
                }
                (other, _) => panic!("{what}: {expected:?}, got {other:?}"),
            }
            seen += 1;
        }
    }
    assert_eq!(seen, 9 * 324);
}

/// The parent is in the table alone, and the limits are in the file alone.
#[tokio::test(start_paused = true)]
async fn a_stop_of_a_parent_in_the_table_reaches_children_with_limits_in_a_file() {
    let fleet = Fleet::new().await;
    let operator = fleet.limiter().await;
    let child = crate::fixtures::stored::child("e", "team");
    operator.set_entity(&child).await.unwrap();
    let text = "weirgate: 1\nsystem: {limits: {rpm: {per_minute: 10}}}\n";
    for text in [
        text.to_owned(),
        format!("{text}entities: {{e: {{limits: {{rpm: {{per_day: 9}}}}}}}}\n"),
    ] {
        let file = File::new(&text);
        let limiter = limiter(&fleet, &LimitsFile::open(&file.0).unwrap()).await;
        let ask = || limiter.acquire("e", "r").take("rpm", 1).send();
        assert!(ask().await.unwrap().is_granted());
        let team = weirgate::ConfigLevel::Entity(weirgate::EntityId::new("team").unwrap());
        operator.stop(&team).send().await.unwrap();
        pass(secs(60)).await;
        let stopped = ask().await.unwrap();
        assert!(matches!(stopped, Decision::Disabled(_)), "{stopped:?}");
        operator.start(&team).send().await.unwrap();
        pass(secs(60)).await;
        assert!(ask().await.unwrap().is_granted());
    }
}

/// A process that starts in an outage knows the limits of its file.
#[tokio::test(start_paused = true)]
async fn limits_of_a_file_decide_while_the_table_cannot_be_read() {
    let fleet = Fleet::new().await;
    let file = File::new(GOOD);
    let builder = fleet.builder().await;
    let limiter = builder.limits_file(LimitsFile::open(&file.0).unwrap());
    let local = weirgate::OnUnavailable::Local { percent: 100 };
    let limiter = limiter.on_unavailable(local).build().await.unwrap();
    fleet
        .dynamo
        .fail_reads(|_, _| Some(weirgate_testkit::Fault::ServerError));
    fleet
        .dynamo
        .fail_when(|_| Some(weirgate_testkit::Fault::ServerError));
    let ask = |amount: i64| {
        limiter
            .acquire("user-2", "gpt-4")
            .take("rpm", amount)
            .send()
    };
    assert!(ask(700).await.unwrap().is_granted());
    let denied = ask(700).await.unwrap();
    assert!(matches!(denied, Decision::Denied(_)), "{denied:?}");
}

/// A narrow level that a throttled read did not bring may be anything, so the file decides nothing.
#[tokio::test(start_paused = true)]
async fn a_throttled_read_of_the_table_lets_no_broad_level_of_the_file_decide() {
    use weirgate_testkit::Fault;
    for key_range in [false, true] {
        let fleet = Fleet::new().await;
        let file = File::new(GOOD);
        let builder = fleet.builder().await;
        let limiter = builder.limits_file(LimitsFile::open(&file.0).unwrap());
        let limiter = limiter.build().await.unwrap();
        let ask = |entity: &str| limiter.acquire(entity, "gpt-4").take("rpm", 1).send();
        // The switches are known from now on.
        assert!(ask("user-2").await.unwrap().is_granted());
        let throttled = Fault::Throttle { key_range };
        fleet
            .dynamo
            .fail_reads(move |operation, _| (operation == "BatchGetItem").then_some(throttled));
        let answer = ask("user-3").await;
        assert!(
            answer.as_ref().is_err_and(Error::is_transient),
            "{answer:?}"
        );
        // What was read before stays in force, at any age.
        pass(secs(61)).await;
        assert!(ask("user-2").await.unwrap().is_granted());
    }
}
