//! Limits from a YAML file: every mistake has a line and a column, and a broken file changes
//! nothing.

use std::collections::BTreeSet;
use weirgate_tests::stored::{delete_config, set_config, set_entity};

use crate::fixtures::fleet::{Fleet, pass, secs, tokens};
use crate::fixtures::stored::{File, child, configure, of_entity, of_resource, on, take_of};
use weirgate::{
    Config, ConfigLevel, ConfigStatus, Decision, EffectiveBucket, Error, Limit, LimitMode,
    LimitsFile, RateLimiter,
};

const GOOD: &str = "\
weirgate: 1
system:
  limits:
    rpm: {per_minute: 1}
resources:
  gpt-4:
    limits:
      rpm: 600/minute,burst=700
      slots: 20
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
    fleet.limiter_with(|builder| builder.limits_file(file.clone())).await
}

/// The capacity in force, by the nearest level.
async fn rpm(limiter: &RateLimiter, entity: &str, resource: &str) -> i64 {
    let balances = limiter.peek(entity, resource).send().await.unwrap();
    balances.limit("rpm").expect("it is configured").capacity.whole_tokens()
}

#[tokio::test(start_paused = true)]
async fn the_nearest_level_of_the_file_wins() {
    let fleet = Fleet::new().await;
    let file = File::new(GOOD);
    let limiter = limiter(&fleet, &file.limits()).await;
    for (entity, resource, capacity) in [
        ("user-1", "gpt-4", 30),
        ("team-a", "gpt-4", 50),
        ("team-a", "other", 50),
        ("user-2", "gpt-4", 700),
        ("user-2", "other", 1),
    ] {
        assert_eq!(rpm(&limiter, entity, resource).await, capacity, "{entity} on {resource}");
    }
    let ask = |resource: &str| limiter.acquire("user-2", resource).take("rpm", 1).send();
    assert!(matches!(ask("legacy").await.unwrap(), Decision::Disabled(_)));
    assert!(ask("free").await.unwrap().is_granted());
    let _ = fleet.dynamo.take_operations();
    assert!(ask("free").await.unwrap().is_granted());
    assert_eq!(fleet.dynamo.take_requests(), 0);
    assert_eq!(
        limiter.peek("user-2", "free").send().await.unwrap().status,
        ConfigStatus::Unlimited
    );
    // What user-1 takes is taken of its parent too, and a soft limit goes into debt.
    let grant = take_of(&limiter, ["user-1", "gpt-4"], "rpm", 40).await.unwrap().granted().unwrap();
    let available: Vec<_> = grant.limits().iter().map(|status| status.available).collect();
    assert_eq!(available[0], tokens(-10));
    assert!(available.contains(&tokens(10)), "{available:?}");
    assert_eq!(fleet.dynamo.take_operations().keys().collect::<Vec<_>>(), ["UpdateItem"]);
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
    let limits = file.limits();
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
        error.to_string().contains(".yaml:4:11: system.limits.rpm: \"per_minuet\" is unknown"),
        "{error}"
    );

    for lost in [None, Some(""), Some("weirgate: 1\n"), Some("weirgate: 1\nsystem:\n")] {
        match lost {
            None => std::fs::remove_file(&*file.0).unwrap(),
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

#[test]
fn every_mistake_has_its_line_and_column_and_says_what_it_takes() {
    let rows = include_str!("mistakes.txt").lines().filter(|line| !line.starts_with('#'));
    assert!(rows.clone().count() >= 56);
    for row in rows {
        let (text, error) = row.split_once(" => ").expect(row);
        let (place, named) = error.split_once(' ').unwrap_or((error, ""));
        let file = File::new(&text.replace("\\n", "\n"));
        let error = LimitsFile::open(&*file.0).expect_err(row);
        let found = error.place.map(|(line, column)| format!("{line}:{column}"));
        assert_eq!(found.as_deref(), Some(place), "{row}: {error}");
        assert!(error.to_string().contains(named), "{row}: {error}");
    }
    let error = LimitsFile::open("/nowhere/limits.yaml").expect_err("it is not there");
    assert!(error.to_string().starts_with("/nowhere/limits.yaml: cannot be read"), "{error}");
}

/// What a level says, in the file or in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Says {
    Nothing,
    /// Limits, with a capacity that names the place.
    Limits,
    Disabled,
}

/// What one level says in both places.
#[derive(Debug, Clone, Copy)]
struct Both {
    file: Says,
    table: Says,
}

impl Both {
    fn all() -> [Self; 9] {
        let says = [Says::Nothing, Says::Limits, Says::Disabled];
        std::array::from_fn(|at| Self { file: says[at / 3], table: says[at % 3] })
    }

    /// Returns what counts at this level: the file's, or else the table's.
    fn wins(self, level: i64) -> Option<(Says, i64)> {
        match (self.file, self.table) {
            (Says::Nothing, Says::Nothing) => None,
            (Says::Nothing, table) => Some((table, 1_000 + level)),
            (file, _) => Some((file, 2_000 + level)),
        }
    }

    /// Says in the table what this level has there.
    async fn store(self, operator: &RateLimiter, level: &ConfigLevel, capacity: i64) {
        let config = match self.table {
            Says::Nothing => {
                delete_config(operator, level).await;
                return;
            }
            Says::Limits => Config::of([Limit::per_minute("rpm", capacity).unwrap()]),
            Says::Disabled => Config { status: ConfigStatus::Disabled, ..Config::default() },
        };
        set_config(operator, level, &config).await;
    }

    /// Returns the lines of this level in the file.
    fn lines(self, indent: usize, name: &str, capacity: i64) -> String {
        let indent = " ".repeat(indent);
        match self.file {
            Says::Nothing => String::new(),
            Says::Limits => {
                format!("{indent}{name}: {{limits: {{rpm: {{per_minute: {capacity}}}}}}}\n")
            }
            Says::Disabled => format!("{indent}{name}: {{status: disabled}}\n"),
        }
    }
}

/// An entity, with what its two levels say on each resource, and whether the file and the table
/// have a parent of it.
struct Case {
    name: String,
    on_resource: Both,
    alone: Both,
    parents: (bool, bool),
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        (0..81).map(|number| {
            let (one, two) = (number / 9, number % 9);
            // Each kind of parents beside each kind of either level.
            let parents = (one + two) % 4;
            Self {
                name: format!("e-{one}-{two}"),
                on_resource: Both::all()[one],
                alone: Both::all()[two],
                parents: (parents & 1 > 0, parents & 2 > 0),
            }
        })
    }

    /// Returns the part of the file that is about the entity.
    fn text(&self) -> String {
        let mut parts = String::new();
        if self.parents.0 {
            parts += "    parent: in-file\n";
        }
        match self.alone.file {
            Says::Nothing => {}
            Says::Limits => parts += "    limits: {rpm: {per_minute: 2001}}\n",
            Says::Disabled => parts += "    status: disabled\n",
        }
        if self.on_resource.file != Says::Nothing {
            parts += "    resources:\n";
            parts.extend((0..9).map(|at| self.on_resource.lines(6, &format!("r-{at}"), 2_000)));
        }
        match parts.is_empty() {
            true => parts,
            false => format!("  {}:\n{parts}", self.name),
        }
    }
}

/// The first of the levels, narrow to broad, that has a configuration wins, in the file or in the
/// table; so does a stop of it, and a parent in either place is taken from.
#[tokio::test(start_paused = true)]
async fn no_broad_level_of_one_place_hides_a_narrow_level_of_the_other() {
    let (fleet, [operator]) = Fleet::of().await;
    let (mut resources, mut entities) = (String::new(), String::new());
    for (parent, capacity) in [("in-table", 5_001), ("in-file", 5_002)] {
        let limits = [Limit::per_minute("rpm", capacity).unwrap()];
        configure(&operator, &of_entity(parent), limits).await;
    }
    for (at, both) in Both::all().into_iter().enumerate() {
        let name = format!("r-{at}");
        both.store(&operator, &of_resource(&name), 1_002).await;
        resources += &both.lines(2, &name, 2_002);
    }
    for case in Case::all() {
        let (name, alone) = (&case.name, of_entity(&case.name));
        case.alone.store(&operator, &alone, 1_001).await;
        for at in 0..9 {
            let level = on(name, &format!("r-{at}"));
            case.on_resource.store(&operator, &level, 1_000).await;
        }
        if case.parents.1 {
            set_entity(&operator, &child(name, "in-table")).await;
        }
        entities += &case.text();
    }
    for (run, system) in Both::all().into_iter().enumerate() {
        system.store(&operator, &ConfigLevel::System, 1_003).await;
        let text = format!(
            "weirgate: 1\n{}resources:\n{resources}entities:\n{entities}",
            system.lines(0, "system", 2_003)
        );
        let file = File::new(&text);
        let limiter = limiter(&fleet, &file.limits()).await;
        for (number, case) in Case::all().enumerate() {
            // Each case on one resource, so that each pair of a case and a resource has its run.
            let at = (number + number / 9 + run) % 9;
            let levels = [case.on_resource, case.alone, Both::all()[at], system];
            let expected = (0..).zip(levels).find_map(|(place, both)| both.wins(place));
            let what = format!("{}, {levels:?}", case.name);
            let parent = match case.parents {
                (true, _) => Some(5_002),
                (false, true) => Some(5_001),
                (false, false) => None,
            };
            let asked = take_of(&limiter, [&case.name, &format!("r-{at}")], "rpm", 1).await;
            match (asked, expected) {
                (Err(Error::NotConfigured { .. }), None)
                | (Ok(Decision::Disabled(_)), Some((Says::Disabled, _))) => {}
                (Ok(Decision::Granted(grant)), Some((Says::Limits, own))) => {
                    let statuses = grant.limits();
                    let found = statuses.iter().map(|status| status.capacity.whole_tokens());
                    let found: BTreeSet<_> = found.collect();
                    assert_eq!(
                        found,
                        [Some(own), parent].into_iter().flatten().collect(),
                        "{what}"
                    );
                    let _ = grant.roll_back().await.unwrap();
                }
                (other, _) => panic!("{what}: {expected:?}, got {other:?}"),
            }
        }
    }
}

/// A process that starts in an outage knows the limits of its file.
#[tokio::test(start_paused = true)]
async fn limits_of_a_file_decide_while_the_table_cannot_be_read() {
    let fleet = Fleet::new().await;
    let file = File::new(GOOD);
    let builder = fleet.builder().await;
    let limiter = builder.limits_file(file.limits());
    let local = weirgate::OnUnavailable::Local { percent: 100 };
    let limiter = limiter.on_unavailable(local).build().await.unwrap();
    fleet.fail_reads(weirgate_testkit::Fault::ServerError);
    fleet.fail_writes(weirgate_testkit::Fault::ServerError);
    let ask = |amount: i64| limiter.acquire("user-2", "gpt-4").take("rpm", amount).send();
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
        let limiter = builder.limits_file(file.limits());
        let limiter = limiter.build().await.unwrap();
        let ask = |entity: &str| limiter.acquire(entity, "gpt-4").take("rpm", 1).send();
        // The switches are known from now on.
        assert!(ask("user-2").await.unwrap().is_granted());
        let throttled = Fault::Throttle { key_range };
        fleet
            .dynamo
            .fail_reads(move |operation, _| (operation == "BatchGetItem").then_some(throttled));
        let answer = ask("user-3").await;
        assert!(answer.as_ref().is_err_and(Error::is_transient), "{answer:?}");
        // What was read before stays in force, at any age.
        pass(secs(61)).await;
        assert!(ask("user-2").await.unwrap().is_granted());
    }
}

/// What is in force, as acquires find it, with the levels of the file and of the table.
#[tokio::test(start_paused = true)]
async fn effective_limits_have_the_level_that_each_bucket_has_them_from() {
    let fleet = Fleet::new().await;
    let file = File::new(GOOD);
    let limiter = limiter(&fleet, &file.limits()).await;
    let admin = limiter.admin();
    let rate = |tokens| Limit::per_minute("rpm", tokens).unwrap();
    let effective = async |entity: &str, resource: &str| {
        let (entity, resource) = (entity.try_into().unwrap(), resource.try_into().unwrap());
        admin.effective_limits(&entity, &resource).await.unwrap()
    };
    // The table has a narrower level than the file, a level of both, and a grandparent.
    configure(&limiter, &on("user-2", "gpt-4"), [rate(7)]).await;
    configure(&limiter, &ConfigLevel::System, [rate(9)]).await;
    configure(&limiter, &of_entity("company"), [rate(8)]).await;
    admin.set_entity(&child("team-a", "company")).await.unwrap();

    let found = effective("user-1", "gpt-4").await;
    let own = EffectiveBucket {
        entity: "user-1".try_into().unwrap(),
        level: Some(on("user-1", "gpt-4")),
        status: Some(ConfigStatus::Enforced),
        limits: vec![rate(30).in_mode(LimitMode::Soft)],
        scales: vec![],
    };
    assert_eq!(found.buckets[0], own);
    let from = |at: usize| {
        let bucket = &found.buckets[at];
        (bucket.entity.to_string(), bucket.level.clone().unwrap())
    };
    assert_eq!(from(1), ("team-a".to_owned(), of_entity("team-a")));
    assert_eq!(from(2), ("company".to_owned(), of_entity("company")));
    assert_eq!(found.buckets.len(), 3);
    let of_file: Vec<_> = found.levels.iter().map(|of| of.is_from_file).collect();
    assert_eq!(of_file, [true, false, true, true]);
    assert_eq!(found.levels[1].config, None);
    assert_eq!(found.levels[3].config, Some(Config::of([rate(1)])), "the file wins");

    let table = effective("user-2", "gpt-4").await;
    assert_eq!(table.buckets[0].limits, [rate(7)]);
    assert_eq!(table.levels[0].config, Some(Config::of([rate(7)])));
    assert!(!table.levels[0].is_from_file);
    let disabled = effective("user-2", "legacy").await;
    assert_eq!(disabled.buckets[0].status, Some(ConfigStatus::Disabled));

    // Each is what an acquire gets.
    for (entity, resource) in [("user-1", "gpt-4"), ("user-2", "gpt-4"), ("company", "x")] {
        let balances = limiter.peek(entity, resource).send().await.unwrap();
        let mut seen: Vec<_> = (balances.limits.iter())
            .map(|status| (status.entity.to_string(), status.capacity))
            .collect();
        let buckets = effective(entity, resource).await.buckets;
        let mut expected: Vec<_> = buckets
            .iter()
            .flat_map(|bucket| bucket.limits.iter().map(|limit| (&bucket.entity, limit)))
            .map(|(entity, limit)| (entity.to_string(), limit.rule().capacity))
            .collect();
        seen.sort();
        expected.sort();
        assert_eq!(seen, expected, "{entity} on {resource}");
    }

    let alone = GOOD.replace("parent: team-a", "parent: team-a\n    cascades: false");
    let file = File::new(&alone);
    let alone = self::limiter(&fleet, &file.limits()).await;
    let (entity, resource) = ("user-1".try_into().unwrap(), "gpt-4".try_into().unwrap());
    let own_only = alone.admin().effective_limits(&entity, &resource).await;
    assert_eq!(own_only.unwrap().buckets, [own]);

    let empty = fleet.limiter().await;
    delete_config(&empty, &ConfigLevel::System).await;
    let (entity, resource) = ("no-one".try_into().unwrap(), "x".try_into().unwrap());
    let none = empty.admin().effective_limits(&entity, &resource).await.unwrap();
    assert_eq!((none.buckets.len(), &none.buckets[0].level), (1, &None));
    assert_eq!((none.buckets[0].status, none.levels.len()), (None, 4));
}
