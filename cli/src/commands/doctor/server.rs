//! The server of a table in Redis.

use std::time::Duration;

use weirgate_shared::{docs, rounded_span};
use weirgate_store::{Replica, ServerFacts, StoreUrl, StreamFacts};

use super::finding::Finding;

/// Oldest major version with all that is sent.
const LEAST_VERSION: u64 = 7;
/// Seconds after which a replica is behind: it reports each second.
const LAG_SECONDS: u64 = 3;
/// Bytes that a replica lacks, above which it is behind: some thousand writes.
const BEHIND_BYTES: u64 = 1 << 20;
/// Difference of the clocks of two servers above which a failover changes what is granted, in ms.
const AHEAD_MS: i64 = 1_000;
/// Records that wait, above which the functions do not keep up.
const WAITING: u64 = 100_000;
/// Part of the memory that is worth a remedy, in percent.
const USED_PERCENT: u64 = 80;

/// Returns the findings about the server.
pub fn findings(url: &StoreUrl, facts: &ServerFacts) -> Vec<Finding> {
    let all = [
        version(url, facts),
        eviction(facts),
        memory(facts),
        persistence(facts),
        replicas(facts),
        functions(facts),
    ];
    all.into_iter().chain(writes(facts)).collect()
}

/// Returns the finding about a server that takes no writes.
fn writes(facts: &ServerFacts) -> Option<Finding> {
    let reason = facts.refuses.as_ref()?;
    let in_step = facts.replicas.iter().filter(|of| behind(of).is_none());
    let remedy = match reason.contains("NOREPLICAS") {
        true => {
            format!("bring a replica back, or CONFIG SET min-replicas-to-write {}", in_step.count())
        }
        false => "look at the server's log".to_owned(),
    };
    let found = format!("it takes none, so nothing is decided: {reason}");
    Some(Finding::problem("writes", found, remedy))
}

/// Returns the finding about commands that the user may not run, if there are any.
pub fn permissions(facts: &ServerFacts) -> Option<Finding> {
    let denied = facts.denied.join(", ");
    let remedy = match facts.denied.iter().find_map(|of| of.strip_prefix("the keys ")) {
        Some(keys) => format!("ACL SETUSER with ~{keys} and"),
        None => "ACL SETUSER with".to_owned(),
    };
    (!denied.is_empty()).then(|| {
        Finding::problem(
            "permissions",
            format!("not allowed: {denied}"),
            format!("{remedy} all commands of {}", docs!("guide/redis", "set-up")),
        )
    })
}

fn version(url: &StoreUrl, facts: &ServerFacts) -> Finding {
    let ServerFacts { version, .. } = facts;
    let number = version.split(' ').nth(1).unwrap_or_default();
    let major: Option<u64> = number.split('.').next().and_then(|major| major.parse().ok());
    match major {
        Some(major) if major >= LEAST_VERSION => {
            Finding::fine("server", format!("{version} at {url}"))
        }
        _ => Finding::problem(
            "server",
            format!("{version} at {url}: must be version {LEAST_VERSION}.0 or newer"),
            "upgrade it",
        ),
    }
}

fn eviction(facts: &ServerFacts) -> Finding {
    let check = "eviction";
    match &*facts.eviction {
        "noeviction" => Finding::fine(check, "nothing is evicted: maxmemory-policy is noeviction"),
        "" => Finding::unknown(
            check,
            "not checked: INFO does not tell the maxmemory-policy",
            "look at the parameters of the service: it must be noeviction",
        ),
        policy => Finding::problem(
            check,
            format!(
                "maxmemory-policy must be noeviction, got {policy}: a bucket that is evicted is full again"
            ),
            "CONFIG SET maxmemory-policy noeviction, and set it in redis.conf too",
        ),
    }
}

fn memory(facts: &ServerFacts) -> Finding {
    let check = "memory";
    let ServerFacts { memory_bytes, used_bytes, .. } = facts;
    let mib = |bytes: &u64| bytes >> 20;
    if *memory_bytes == 0 {
        let text = format!("{} MiB in use, without maxmemory", mib(used_bytes));
        return Finding::fine(check, text);
    }
    let percent = u128::from(*used_bytes) * 100 / u128::from(*memory_bytes);
    let text = format!("{percent}% of {} MiB in use", mib(memory_bytes));
    match percent < u128::from(USED_PERCENT) {
        true => Finding::fine(check, text),
        false => Finding::problem(
            check,
            format!("{text}: when it is full, each write fails, and nothing is decided"),
            "CONFIG SET maxmemory to more, and in redis.conf, or take a larger server",
        ),
    }
}

fn persistence(facts: &ServerFacts) -> Finding {
    let check = "persistence";
    if !facts.is_appended {
        return Finding::problem(
            check,
            "appendonly must be yes, got no: a restart loses the writes since the last snapshot, or all",
            "CONFIG SET appendonly yes, and set it in redis.conf too",
        );
    }
    if facts.has_append_failed {
        return Finding::problem(
            check,
            "the last write of the append-only file failed: a restart loses what follows",
            "look at the server's log, and make room on its disk",
        );
    }
    if facts.is_fsync_put_off {
        return Finding::problem(
            check,
            "no-appendfsync-on-rewrite must be no, got yes: a crash of its machine during a rewrite of the file loses half \
             a minute",
            "CONFIG SET no-appendfsync-on-rewrite no, and set it in redis.conf too",
        );
    }
    match &*facts.fsync {
        "always" => Finding::fine(check, "appendonly is yes, appendfsync always"),
        "everysec" => Finding::fine(
            check,
            "appendonly is yes, appendfsync everysec: a crash loses two seconds at most",
        ),
        "" => Finding::unknown(
            check,
            "appendonly is yes; not checked: the server does not tell appendfsync",
            "allow the user config|get, or look at the parameters of the service: it must be everysec or always",
        ),
        fsync => Finding::problem(
            check,
            format!(
                "appendfsync must be everysec or always, got {fsync}: a crash of its machine loses half a minute"
            ),
            "CONFIG SET appendfsync everysec, and set it in redis.conf too",
        ),
    }
}

fn replicas(facts: &ServerFacts) -> Finding {
    let check = "replicas";
    if facts.replicas.is_empty() {
        return Finding::advice(
            check,
            "there is none: while the server is down, nothing is decided",
            "add one: REPLICAOF HOST PORT on another server, with HOST and PORT of this one",
        );
    }
    let unfit: Vec<_> = facts.replicas.iter().filter_map(|of| of.refuses.as_deref()).collect();
    if !unfit.is_empty() {
        return Finding::problem(
            check,
            format!("after a failover nothing is decided: {}", unfit.join("; ")),
            concat!(
                "give each server the settings and the user of ",
                docs!("guide/redis", "set-up")
            ),
        );
    }
    let behind: Vec<_> = facts.replicas.iter().filter_map(behind).collect();
    if !behind.is_empty() {
        return Finding::problem(
            check,
            format!("{}: a failover now admits again what they lack", behind.join("; ")),
            "look at the replica and its network",
        );
    }
    let other: Vec<_> = facts.replicas.iter().filter_map(other_clock).collect();
    if !other.is_empty() {
        return Finding::problem(
            check,
            format!(
                "{}: after a failover, buckets refill by the difference at once, or not for as long",
                other.join("; ")
            ),
            "synchronize the clocks of all servers",
        );
    }
    let bytes = facts.replicas.iter().map(|replica| replica.behind_bytes);
    let most = bytes.max().unwrap_or_default();
    let count = facts.replicas.len();
    let mut in_step = format!("in step: {count}, at most {most} bytes behind");
    let silent = facts.replicas.iter().filter(|of| of.ahead_ms.is_none());
    let silent: Vec<_> = silent.map(|replica| &*replica.address).collect();
    if !silent.is_empty() {
        in_step += &format!("; not checked: the clock of {}", silent.join(", "));
    }
    // A server of a cluster that is cut off from most others takes no writes.
    match facts.least_replicas {
        Some(0) if !facts.is_of_cluster => Finding::advice(
            check,
            format!(
                "{in_step}; min-replicas-to-write is 0: a primary that is cut off from them goes on to grant what its \
                 successor grants too"
            ),
            "CONFIG SET min-replicas-to-write 1, and set it in redis.conf too",
        ),
        _ if silent.is_empty() => Finding::fine(check, in_step),
        _ => Finding::unknown(check, in_step, "compare the clocks of all servers"),
    }
}

/// Returns how far the clock of a replica is from that of its primary, if that matters.
fn other_clock(replica: &Replica) -> Option<String> {
    let ahead = replica.ahead_ms.filter(|ahead| ahead.abs() >= AHEAD_MS)?;
    let word = if ahead < 0 { "behind" } else { "ahead" };
    let by = rounded_span(Duration::from_millis(ahead.unsigned_abs()));
    Some(format!("the clock of {} is {by} {word}", replica.address))
}

fn functions(facts: &ServerFacts) -> Finding {
    let check = "functions";
    let Some(StreamFacts { key, waiting, is_read }) = &facts.stream else {
        if !facts.denied.is_empty() {
            let text = "not checked: the user may not do all that is needed to ask for them";
            return Finding::unknown(check, text, "allow it what permissions names");
        }
        let text = "none has run them: usage of past hours is not copied";
        return Finding::fine(check, text);
    };
    let records = format!("{waiting} records wait in {key}");
    match (is_read, *waiting) {
        (true, ..WAITING) => Finding::fine(check, format!("a process runs them; {records}")),
        (true, _) => Finding::problem(
            check,
            format!("they do not keep up: {records}, which keeps the last million"),
            "look at what the agent that runs them logs",
        ),
        (false, _) => Finding::problem(
            check,
            format!(
                "no process runs them, and {records}: they take memory, and usage of past hours is not copied"
            ),
            format!(
                "start an agent with --functions; where none shall run them any more, DEL {key}"
            ),
        ),
    }
}

/// Returns how far a replica is behind, if it is.
fn behind(replica: &Replica) -> Option<String> {
    let Replica { address, state, lag_seconds, behind_bytes, .. } = replica;
    if state != "online" {
        return Some(format!("{address} is not online but {state}"));
    }
    if *lag_seconds >= LAG_SECONDS {
        return Some(format!(
            "{address} said nothing for {lag_seconds} s, and lacks {behind_bytes} bytes"
        ));
    }
    (*behind_bytes > BEHIND_BYTES).then(|| format!("{address} lacks {behind_bytes} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::finding::State;

    /// What no server of this machine is or says.
    #[test]
    fn an_old_server_is_a_problem_and_a_silent_one_is_unknown() {
        let url = StoreUrl::parse("redis://host").expect("it is one");
        let state = |facts: &ServerFacts| findings(&url, facts).into_iter().map(|of| of.state);
        let hosted = ServerFacts {
            version: "Valkey 8.1.0".to_owned(),
            is_appended: true,
            ..ServerFacts::default()
        };
        let states: Vec<_> = state(&hosted).collect();
        let expected =
            [State::Fine, State::Unknown, State::Fine, State::Unknown, State::Advice, State::Fine];
        assert_eq!(states, expected);
        for version in ["Redis 6.2.14", "Redis 10", "Redis "] {
            let facts = ServerFacts { version: version.to_owned(), ..hosted.clone() };
            let is_old = version != "Redis 10";
            let expected = if is_old { State::Problem } else { State::Fine };
            assert_eq!(state(&facts).next(), Some(expected), "{version}");
        }
        let full = ServerFacts {
            memory_bytes: 100 << 20,
            used_bytes: 80 << 20,
            has_append_failed: true,
            ..hosted
        };
        let problems: Vec<_> = findings(&url, &full)
            .into_iter()
            .filter(|finding| finding.state == State::Problem)
            .map(|finding| finding.check)
            .collect();
        assert_eq!(problems, ["memory", "persistence"]);
    }

    #[test]
    fn a_replica_with_another_clock_is_a_problem_with_the_difference() {
        let finding = |ahead_ms| {
            replicas(&ServerFacts {
                replicas: vec![Replica {
                    address: "db:6379".to_owned(),
                    state: "online".to_owned(),
                    lag_seconds: 0,
                    behind_bytes: 0,
                    ahead_ms,
                    refuses: None,
                }],
                ..ServerFacts::default()
            })
        };
        for ahead_ms in [0, 999, -999] {
            assert_eq!(finding(Some(ahead_ms)).state, State::Fine, "{ahead_ms}");
        }
        let silent = finding(None);
        assert_eq!(silent.state, State::Unknown, "{silent:?}");
        let text = "not checked: the clock of db:6379";
        assert!(silent.found.contains(text), "{silent:?}");
        for (ahead_ms, text) in [
            (60_000, "the clock of db:6379 is 1m ahead"),
            (-2_000, "the clock of db:6379 is 2s behind"),
        ] {
            let finding = finding(Some(ahead_ms));
            assert_eq!(finding.state, State::Problem);
            assert!(finding.found.contains(text), "{finding:?}");
        }
    }

    #[test]
    fn functions_that_do_not_run_or_do_not_keep_up_are_a_problem() {
        for (waiting, is_read, state) in [
            (0, true, State::Fine),
            (WAITING - 1, true, State::Fine),
            (WAITING, true, State::Problem),
            (0, false, State::Problem),
        ] {
            let stream = Some(StreamFacts { key: "records".to_owned(), waiting, is_read });
            let finding = functions(&ServerFacts { stream, ..ServerFacts::default() });
            assert_eq!(finding.state, state, "{finding:?}");
        }
    }
}
