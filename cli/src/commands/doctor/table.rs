//! The table, its indexes and its stream; the clock.

use std::time::Duration;

use weirgate_shared::{docs, rounded_span};
use weirgate_store::{ErrorKind, IndexState, StoreError, Table, TableFacts};

use super::finding::{DEPLOY, Finding};

/// Difference of the clocks that is worth a remedy, in ms. Callers correct their clocks by
/// DynamoDB's, so even more than this makes no decision wrong.
const SKEW_MS: i64 = 1_000;

/// Returns the findings about the table.
pub async fn findings(table: &Table, facts: &TableFacts) -> Vec<Finding> {
    let mut findings = vec![state(table, facts), keys(facts)];
    findings.extend(replicas(facts));
    findings.push(stream(facts));
    findings.push(match table.expires_items().await {
        Ok(true) => Finding::fine("expiry", "expired items are deleted"),
        Ok(false) => Finding::problem(
            "expiry",
            "time to live is off: unused buckets, snapshots and audit events stay, and cost storage",
            format!("turn it on for the attribute ttl, or {DEPLOY}"),
        ),
        Err(error) => unknown("expiry", "dynamodb:DescribeTimeToLive", &error),
    });
    findings.push(match table.is_recoverable().await {
        Ok(true) => {
            Finding::fine("recovery", "the table can be restored to any second of its last days")
        }
        Ok(false) => Finding::advice(
            "recovery",
            "point-in-time recovery is off: what is deleted by mistake is lost",
            concat!("turn it on; how to restore: ", docs!("operations", "the-table-is-restored")),
        ),
        Err(error) => unknown("recovery", "dynamodb:DescribeContinuousBackups", &error),
    });
    findings
}

fn state(table: &Table, facts: &TableFacts) -> Finding {
    let name = table.name();
    if !matches!(facts.status.as_str(), "ACTIVE" | "UPDATING") {
        let text = format!("{name} is {}", facts.status);
        return Finding::problem("table", text, "wait until it is ACTIVE");
    }
    if !facts.is_on_demand {
        return Finding::advice(
            "table",
            format!("{name} has provisioned capacity, which throttles callers above it"),
            concat!("switch it to on-demand, or provision for the peak: ", docs!("scaling")),
        );
    }
    Finding::fine("table", format!("{name} is active, billed on demand"))
}

fn keys(facts: &TableFacts) -> Finding {
    if !facts.has_right_keys {
        let text = "its keys are not PK and SK: this is no table of Weirgate";
        return Finding::problem("indexes", text, "check --table");
    }
    let states = facts.indexes.iter().filter_map(|(name, state)| match state {
        IndexState::Active => None,
        IndexState::Other(status) => Some(format!("{name} is {status}")),
        IndexState::Different => Some(format!("{name} has other keys or another projection")),
        IndexState::Missing => Some(format!("{name} is missing")),
    });
    let states: Vec<_> = states.collect();
    if states.is_empty() {
        return Finding::fine("indexes", "all four are active");
    }
    Finding::problem(
        "indexes",
        format!("{}: lists, and the reconciler, miss what it has", states.join(", ")),
        format!("wait for one that is being created; otherwise {DEPLOY}"),
    )
}

/// Returns a finding about a global table: with eventual consistency two Regions grant the same
/// tokens, with strong consistency there are no transactions.
pub fn replicas(facts: &TableFacts) -> Option<Finding> {
    let regions = facts.replicas.join(", ");
    (!regions.is_empty()).then(|| {
        Finding::problem(
            "replicas",
            format!("this is a global table, with a replica in {regions}: its Regions grant the same tokens"),
            concat!(
                "remove the replicas, and deploy a stack in each Region: ",
                docs!("deployment", "one-region")
            ),
        )
    })
}

fn stream(facts: &TableFacts) -> Finding {
    match (&facts.stream_arn, facts.has_images) {
        (Some(_), true) => Finding::fine("stream", "on, with new and old images"),
        (Some(_), false) => Finding::problem(
            "stream",
            "its records have no new and old images, so the aggregator cannot count usage",
            concat!(
                "turn it off, and on with NEW_AND_OLD_IMAGES; then ",
                docs!("operations", "the-stream-is-lost")
            ),
        ),
        (None, _) => Finding::problem(
            "stream",
            "it is off: no usage is counted, no hot bucket is split",
            format!("turn it on with NEW_AND_OLD_IMAGES, or {DEPLOY}"),
        ),
    }
}

/// Returns the finding about this machine's clock, as the responses so far date it. `other` has the clock that
/// counts.
pub fn clock(table: &Table, other: &str) -> Finding {
    let clock = table.skew();
    let ahead = clock.local().0.saturating_sub(clock.now().0);
    let word = if ahead < 0 { "behind" } else { "ahead" };
    let by = rounded_span(Duration::from_millis(ahead.unsigned_abs()));
    let text = format!("this machine's clock is {by} {word}");
    match ahead.abs() {
        0 => Finding::fine("clock", format!("as that of {other}")),
        1..SKEW_MS => Finding::fine("clock", text),
        _ => Finding::advice(
            "clock",
            text,
            format!("synchronize it; until then, Weirgate corrects it by that of {other}"),
        ),
    }
}

fn unknown(check: &'static str, action: &str, error: &StoreError) -> Finding {
    let remedy = match error.kind {
        ErrorKind::AccessDenied => format!("use credentials that allow {action}"),
        _ => String::new(),
    };
    let reason = match error.reason.starts_with("UnknownOperation") {
        true => "this endpoint cannot tell",
        false => &error.reason,
    };
    Finding::unknown(check, format!("not checked: {reason}"), remedy)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weirgate_shared::EpochMillis;
    use weirgate_store::{Clock, RedisOptions, SystemClock};
    use weirgate_testkit::RedisServer;

    use super::*;
    use crate::commands::doctor::finding::State;

    #[test]
    fn a_global_table_is_a_problem() {
        let mut facts = TableFacts {
            status: "ACTIVE".to_owned(),
            is_on_demand: true,
            has_right_keys: true,
            indexes: [].into(),
            stream_arn: None,
            has_images: true,
            replicas: vec![],
        };
        assert!(replicas(&facts).is_none());
        facts.replicas = vec!["eu-west-1".to_owned(), "us-west-2".to_owned()];
        let finding = replicas(&facts).expect("it is global");
        assert_eq!(finding.state, State::Problem);
        assert!(finding.found.contains("eu-west-1, us-west-2"), "{finding:?}");
    }
    /// This machine's clock, ahead by so many ms.
    #[derive(Debug)]
    struct Ahead(i64);

    impl Clock for Ahead {
        fn now(&self) -> EpochMillis {
            EpochMillis(SystemClock.now().0 + self.0)
        }
    }

    #[tokio::test]
    async fn a_clock_that_is_not_that_of_the_server_is_named_with_the_difference() {
        let server = RedisServer::start();
        for (ahead, state, found) in [
            (0, State::Fine, "clock"),
            (90_000, State::Advice, "1m30s ahead"),
            (-90_000, State::Advice, "behind"),
        ] {
            let options =
                RedisOptions { clock: Arc::new(Ahead(ahead)), ..RedisOptions::new(server.url()) };
            let table = Table::on_redis(&options).expect("the URL is one");
            table.warm().await.expect("it is there");
            let finding = clock(&table, "the server");
            assert_eq!(finding.state, state, "{finding:?}");
            assert!(finding.found.contains(found) || ahead == 0, "{finding:?}");
            let has_remedy = finding.remedy.contains("that of the server");
            assert_eq!(has_remedy, ahead != 0, "{finding:?}");
        }
    }
}
