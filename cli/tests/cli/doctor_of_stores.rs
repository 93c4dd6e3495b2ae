//! `doctor` on servers of Redis with good and bad settings. Each remedy is tried.

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use weirgate_testkit::{RedisCluster, RedisServer, Temporary};

use super::fixtures::{Table, weirgate};

/// Time in which a replica follows, or is missed.
const BOUND: Duration = Duration::from_secs(30);

/// Starts a server that keeps its files in this folder.
fn serve(folder: &Temporary, arguments: &[&str]) -> RedisServer {
    RedisServer::with(&[&["--dir", folder.path()], arguments].concat())
}

/// State, text and remedy of a check, and the exit code of `doctor`.
struct Found {
    state: String,
    found: String,
    remedy: String,
    code: Option<i32>,
}

fn doctor(server: &RedisServer, check: &str) -> Found {
    doctor_at(&server.url(), check)
}

fn doctor_at(url: &str, check: &str) -> Found {
    let run = weirgate(["--store", url, "--json", "doctor"]);
    let diagnosis: Value =
        serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    let findings = diagnosis["findings"].as_array().expect("a list");
    let of = findings.iter().find(|finding| finding["check"] == check);
    let of = of.unwrap_or_else(|| panic!("no check {check}: {diagnosis}"));
    let text = |field: &str| of[field].as_str().expect("text").to_owned();
    Found { state: text("state"), found: text("found"), remedy: text("remedy"), code: run.code }
}

/// Runs `doctor` until a check finds something.
fn until(server: &RedisServer, check: &str, part: &str) -> Found {
    let begun = Instant::now();
    loop {
        let found = doctor(server, check);
        if found.found.contains(part) {
            return found;
        }
        assert!(begun.elapsed() < BOUND, "{}", found.found);
    }
}

fn cli(server: &RedisServer, words: &[&str]) -> String {
    let mut command = Command::new("redis-cli");
    command.args(["-p", &server.port().to_string()]).args(words);
    let output = command.output().expect("redis-cli runs");
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

#[test]
fn each_setting_that_loses_buckets_is_a_problem_until_its_remedy_is_done() {
    let folder = Temporary::folder();
    for (arguments, check, parts) in [
        (
            &["--maxmemory-policy", "volatile-ttl"][..],
            "eviction",
            ["must be noeviction", "got volatile-ttl"],
        ),
        (&[], "persistence", ["appendonly must be yes", "got no"]),
        (
            &["--appendonly", "yes", "--appendfsync", "no"],
            "persistence",
            ["appendfsync must be everysec or always", "got no"],
        ),
        (
            &["--appendonly", "yes", "--no-appendfsync-on-rewrite", "yes"],
            "persistence",
            ["no-appendfsync-on-rewrite must be no", "got yes"],
        ),
        (&["--maxmemory", "1"], "memory", ["% of 0 MiB in use", "nothing is decided"]),
    ] {
        let server = serve(&folder, arguments);
        let problem = doctor(&server, check);
        assert_eq!((&*problem.state, problem.code), ("problem", Some(1)));
        for part in parts {
            assert!(problem.found.contains(part), "{}", problem.found);
        }
        let mut words = problem.remedy.split([' ', ',']).collect::<Vec<_>>();
        words.truncate(4);
        assert_eq!(words[..2], ["CONFIG", "SET"], "{}", problem.remedy);
        if check == "memory" {
            words[3] = "1gb";
        }
        assert_eq!(cli(&server, &words), "OK\n", "{}", problem.remedy);
        let after = doctor(&server, check);
        assert_eq!(after.state, "fine", "{}", after.found);
    }
}

#[test]
fn a_server_with_its_file_and_a_replica_in_step_is_fine() {
    let (folder, other) = (Temporary::folder(), Temporary::folder());
    for fsync in ["always", "everysec"] {
        let server = serve(&folder, &["--appendonly", "yes", "--appendfsync", fsync]);
        let none = doctor(&server, "replicas");
        assert_eq!((&*none.state, none.code), ("advice", Some(0)));
        assert!(none.remedy.contains("REPLICAOF"), "{}", none.remedy);
        let primary = format!("127.0.0.1 {}", server.port());
        let replica = serve(&other, &["--replicaof", &primary]);
        let found = until(&server, "replicas", "in step: 1");
        assert_eq!((&*found.state, found.code), ("advice", Some(0)));
        assert!(found.found.contains("min-replicas-to-write is 0"));
        // A user may not be allowed to ask for the setting.
        for server in [&server, &replica] {
            let user = ["ACL", "SETUSER", "some", "on", ">pass", "~*", "+@all", "-config"];
            assert_eq!(cli(server, &user), "OK\n");
        }
        let by_user = || doctor_at(&server.url().replace("//", "//some:pass@"), "replicas");
        assert_eq!((&*by_user().state, by_user().found), ("advice", found.found.clone()));
        let remedy: Vec<_> = found.remedy.split([' ', ',']).take(4).collect();
        assert_eq!(cli(&server, &remedy), "OK\n", "{}", found.remedy);
        let found = doctor(&server, "replicas");
        assert_eq!((&*found.state, found.code), ("fine", Some(0)));
        assert_eq!(by_user().state, "fine");
        for check in ["server", "eviction", "memory", "persistence", "clock"] {
            let found = doctor(&server, check);
            assert_eq!(found.state, "fine", "{check}: {}", found.found);
        }
        assert!(doctor(&server, "persistence").found.contains(fsync));
        let version = cli(&server, &["INFO", "server"]);
        let version = version.lines().find_map(|line| line.strip_prefix("redis_version:"));
        let expected = format!("Redis {} at redis://", version.expect("a version"));
        let found = doctor(&server, "server").found;
        assert!(found.contains(&expected), "{found}");
        assert!(!found.contains("accept_eviction"), "{found}");
    }
}

/// Whatever its settings say: a user may not be allowed to read them.
#[test]
fn a_server_that_takes_no_writes_is_a_problem_until_its_remedy_is_done() {
    let folders = [Temporary::folder(), Temporary::folder()];
    for replicas in [0, 1] {
        let least = (replicas + 1).to_string();
        let server = serve(&folders[0], &["--min-replicas-to-write", &least]);
        let primary = format!("127.0.0.1 {}", server.port());
        let _replica = (replicas > 0).then(|| serve(&folders[1], &["--replicaof", &primary]));
        if replicas > 0 {
            until(&server, "replicas", "in step: 1");
        }
        let some = ["ACL", "SETUSER", "default", "-config"];
        assert_eq!(cli(&server, &some), "OK\n");
        let problem = doctor(&server, "writes");
        assert_eq!((&*problem.state, problem.code), ("problem", Some(1)));
        assert!(problem.found.contains("NOREPLICAS"), "{}", problem.found);
        let acquire = "acquire user api hits=1 --limit hits=9/day";
        let store = ["--store", &server.url()].map(str::to_owned);
        let acquire: Vec<_> = store.iter().map(|text| &**text).chain(acquire.split(' ')).collect();
        let refused = weirgate(&*acquire);
        assert_eq!(refused.code, Some(6), "{refused:?}");
        assert_eq!(cli(&server, &["ACL", "SETUSER", "default", "+config"]), "OK\n");
        let (_, remedy) = problem.remedy.split_once(", or ").expect("two remedies");
        let remedy: Vec<_> = remedy.split(' ').collect();
        assert_eq!(cli(&server, &remedy), "OK\n", "{remedy:?}");
        assert_eq!(weirgate(&*acquire).code, Some(0));
    }
}

#[test]
fn a_replica_that_stands_still_is_a_problem_and_one_is_not_asked_itself() {
    let folders = [Temporary::folder(), Temporary::folder()];
    let server = serve(&folders[0], &[]);
    let primary = format!("127.0.0.1 {}", server.port());
    let replica = serve(&folders[1], &["--replicaof", &primary]);
    until(&server, "replicas", "in step: 1");
    let refused = weirgate(["--store", &replica.url(), "doctor"]);
    let address = format!("a replica of 127.0.0.1:{}, which takes no", server.port());
    for part in [&*address, "give the URL of the primary"] {
        assert!(refused.stderr.contains(part), "{refused:?}");
    }

    let info = cli(&replica, &["INFO", "server"]);
    let process = info.lines().find_map(|line| line.strip_prefix("process_id:"));
    let process = process.and_then(|id| id.trim().parse().ok()).map(Pid::from_raw);
    let process = process.expect("a process");
    kill(process, Signal::SIGSTOP).expect("it stands still");
    let behind = until(&server, "replicas", "said nothing for");
    assert_eq!((&*behind.state, behind.code), ("problem", Some(1)));
    assert!(behind.found.contains(&format!("127.0.0.1:{}", replica.port())));
    assert!(behind.remedy.contains("look at the replica"));
    kill(process, Signal::SIGCONT).expect("it goes on");
    until(&server, "replicas", "in step: 1");
}

/// After a failover each request would fail.
#[test]
fn a_replica_that_cannot_succeed_its_primary_is_a_problem_until_its_remedy_is_done() {
    let folders = [Temporary::folder(), Temporary::folder()];
    let server = serve(&folders[0], &["--appendonly", "yes"]);
    let user = ["ACL", "SETUSER", "some", "on", ">pass", "~*", "+@all"];
    assert_eq!(cli(&server, &user), "OK\n");
    let url = server.url().replace("//", "//some:pass@");
    let primary = format!("127.0.0.1 {}", server.port());
    let replica = serve(&folders[1], &["--replicaof", &primary]);
    until(&server, "replicas", "in step: 1");
    let policy = |name| ["CONFIG", "SET", "maxmemory-policy", name];
    for (damage, part, remedy) in [
        (&["ACL", "DELUSER", "some"][..], "does not accept the user", &user[..]),
        (&policy("allkeys-lru"), "got allkeys-lru", &policy("noeviction")),
    ] {
        cli(&replica, damage);
        let problem = doctor_at(&url, "replicas");
        assert_eq!((&*problem.state, problem.code), ("problem", Some(1)));
        for part in [part, &format!("127.0.0.1:{}", replica.port())] {
            assert!(problem.found.contains(part), "{}", problem.found);
        }
        assert!(problem.remedy.contains("guide/redis#set-up"));
        assert_eq!(cli(&replica, remedy), "OK\n");
        let after = doctor_at(&url, "replicas");
        assert_ne!(after.state, "problem", "{}", after.found);
    }
}

#[test]
fn what_a_user_may_not_do_is_named_and_nothing_is_guessed() {
    let folder = Temporary::folder();
    let server = serve(&folder, &["--appendonly", "yes"]);
    for (rules, table, check, state, part) in [
        ("~* -config", "", "persistence", "unknown", "does not tell appendfsync"),
        ("~* -eval", "", "permissions", "problem", "not allowed: eval"),
        ("~* -evalsha", "", "permissions", "problem", "not allowed: evalsha"),
        ("~* -eval -evalsha", "", "permissions", "problem", "not allowed: eval, evalsha"),
        ("~* -@scripting", "", "permissions", "problem", "not allowed: eval, evalsha"),
        ("~other:*", "", "permissions", "problem", "not allowed: the keys weirgate:*"),
        (
            "~weirgate:*",
            "?table=limits",
            "permissions",
            "problem",
            "not allowed: the keys limits:*",
        ),
        ("~other:*", "", "functions", "unknown", "not checked"),
        ("~* -exists", "", "functions", "unknown", "not checked"),
    ] {
        let words = ["ACL", "SETUSER", "some", "reset", "on", ">pass", "+@all"];
        let words: Vec<_> = words.into_iter().chain(rules.split(' ')).collect();
        assert_eq!(cli(&server, &words), "OK\n");
        let url = server.url().replace("//", "//some:pass@");
        let found = doctor_at(&format!("{url}{table}"), check);
        assert_eq!(found.state, state, "{rules}: {}", found.found);
        assert!(
            found.found.ends_with(part) || state == "unknown" && found.found.contains(part),
            "{rules}: {}",
            found.found
        );
        assert!(!found.found.contains("pass@"), "{}", found.found);
        if check == "permissions" {
            assert_eq!(found.code, Some(1));
            assert!(found.remedy.starts_with("ACL SETUSER"), "{}", found.remedy);
            let keys = found.found.split("the keys ").nth(1);
            assert!(keys.is_none_or(|keys| found.remedy.contains(&format!("~{keys}"))));
        }
    }
}

#[test]
fn records_that_no_process_reads_are_a_problem_until_they_are_deleted() {
    let server = RedisServer::start();
    let records = "weirgate:{weirgate}:records";
    assert_eq!(doctor(&server, "functions").state, "fine");
    cli(&server, &["XADD", records, "*", "PK", "one"]);
    let problem = doctor(&server, "functions");
    assert_eq!((&*problem.state, problem.code), ("problem", Some(1)));
    assert!(problem.found.contains("1 records wait"), "{}", problem.found);
    cli(&server, &["SET", &format!("{records}:lock"), "agent"]);
    let found = doctor(&server, "functions").found;
    assert!(found.contains("a process runs them; 1 records"), "{found}");
    cli(&server, &["DEL", &format!("{records}:lock")]);
    let (_, remedy) = problem.remedy.split_once("DEL ").expect("it has one");
    assert_eq!(cli(&server, &["DEL", remedy]), "1\n", "{remedy}");
    assert_eq!(doctor(&server, "functions").state, "fine");
}

#[test]
fn a_user_of_a_cluster_needs_to_know_its_other_servers() {
    let cluster = RedisCluster::start();
    for (more, allowed) in [("-cluster|nodes", false), ("+cluster|nodes", true)] {
        for node in 0..cluster.nodes().len() {
            let user = ["ACL", "SETUSER", "some", "on", ">pass", "~*", "+@all", more];
            assert_eq!(cluster.run(node, &user), "OK");
        }
        let store = format!("redis://some:pass@127.0.0.1:{}", cluster.nodes()[0].port());
        let run = weirgate(["--store", &store, "doctor"]);
        let is_named = run.stdout.contains("not allowed: cluster|nodes");
        assert_eq!(is_named, !allowed, "{run:?}");
    }
}

/// Returns the block of the guide's page that begins with this fence.
fn block(fence: &str) -> &'static str {
    let page = include_str!("../../../docs/guide/redis.md");
    let (_, rest) = page.split_once(&format!("```{fence}\n")).expect("the page has it");
    rest.split("```").next().unwrap_or_default()
}

#[test]
fn the_settings_of_the_guide_keep_what_a_server_has_that_runs() {
    let folder = Temporary::folder();
    let settings = block("text redis.conf");
    let server = serve(&folder, &["--save", "3600 1"]);
    assert_eq!(cli(&server, &["SET", "other", "data"]), "OK\n");
    for line in settings.lines() {
        let set: Vec<_> = ["CONFIG", "SET"].into_iter().chain(line.split(' ')).collect();
        assert_eq!(cli(&server, &set), "OK\n", "{line}");
    }
    let begun = Instant::now();
    let is_rewritten = || {
        let info = cli(&server, &["INFO", "persistence"]);
        let is_idle = |name: &str| info.contains(&format!("{name}:0"));
        is_idle("aof_rewrite_in_progress") && is_idle("aof_rewrite_scheduled")
    };
    while !is_rewritten() {
        assert!(begun.elapsed() < BOUND, "it does not write its file");
    }
    assert_eq!(cli(&server, &["SHUTDOWN"]), "");
    let file = folder.join("redis.conf");
    std::fs::write(&file, settings).expect("it is written");
    let server = serve(&folder, &["--include", file.to_str().expect("a path is UTF-8")]);
    assert_eq!(cli(&server, &["GET", "other"]), "data\n");
}

#[test]
fn the_settings_and_the_user_of_the_guide_are_right_and_enough() {
    let folder = Temporary::folder();
    let file = folder.join("redis.conf");
    let settings = ["text redis.conf", "text redis.conf with a user"].map(block);
    std::fs::write(&file, settings.concat()).expect("it is written");
    let server = serve(&folder, &["--include", file.to_str().expect("a path is UTF-8")]);
    let password = Temporary::file("guide-password", "change-me\n");
    let url = format!("redis://weirgate@127.0.0.1:{}/1", server.port());
    let mut table = Table::at(&url);
    let file = ["--store-password-file", password.path()];
    table.options.extend(file.map(str::to_owned));
    let diagnosis = table.json("doctor");
    for finding in diagnosis["findings"].as_array().expect("a list") {
        // Without a replica.
        let expected = match finding["check"].as_str() {
            Some("replicas") => "advice",
            // The user may not ask for it.
            Some("persistence") => "unknown",
            _ => "fine",
        };
        assert_eq!(finding["state"], expected, "{finding}");
    }
    let allowed = "allowed: read, list, acquire, administer, erase, purge";
    assert!(diagnosis.to_string().contains(allowed), "{diagnosis}");
    table.text("limits set --resource gpt-4 rpm=5/day slots=2");
    table.text("entities set user --parent team");
    let granted = table.json("acquire user gpt-4 rpm=2 slots=1 --lease 1h");
    let lease = granted["lease_id"].as_str().expect("slots have a lease");
    table.text(["leases", "release", "user", "gpt-4", lease, "--yes"]);
    table.text("buckets --resource gpt-4");
    table.text("reconcile");
    table.text("erase user --yes");
    table.text("purge --dry-run");
}
