//! A function is stuck: a lag, a damaged snapshot, a failing reconciler, leases that are never
//! released, an undecodable item.

use std::time::{Duration, Instant};

use serde_json::Value;
use weirgate::{Decision, Grant, Limit};
use weirgate_shared::{Iso8601, Window};

use super::proxy::Proxy;
use super::{Drill, ENTITY, PATIENCE, expect, told};
use crate::demo::now;

/// A resource whose bucket has two shards.
const WIDE: &str = "wide";
/// Time of a lease that only its holder releases.
const HOUR: Duration = Duration::from_secs(3600);
/// A scheduled run may come before the manual one, but at most once a minute.
const TRIES: u32 = 3;

impl<P: Fn(&str)> Drill<'_, P> {
    pub(super) async fn stuck(&mut self) -> Result<(), String> {
        let put = "aws cloudwatch put-metric-data --namespace AWS/Lambda --metric-name IteratorAge --value 61234 \
             --dimensions \"FunctionName=$aggregator\"";
        self.shell.text(put, &[]).await?;
        let lag = self.shell.block("lag", &[]).await?;
        expect(lag.trim() == "61234.0", || {
            format!("the lag is said to be {lag}")
        })?;

        self.until_alarm("AggregatorLagAlarm", "ALARM").await?;

        let put = "aws cloudwatch put-metric-data --namespace AWS/DynamoDB --metric-name WriteAccountLimitThrottleEvents \
             --value 7 --dimensions \"TableName=$table\"";
        self.shell.text(put, &[]).await?;
        let why = self.shell.block("throttled", &[]).await?;
        expect(why.trim() == "WriteAccountLimit\ttable\t7.0", || {
            format!("the table is said to be throttled by {why}")
        })?;
        let quota = self.shell.block("concurrency", &[]).await?;
        expect(quota.split_whitespace().count() == 2, || {
            format!("the account's concurrency is said to be {quota}")
        })?;

        self.failing().await?;
        self.damaged().await
    }

    /// Rings the alarms on failed and on refused calls. The emulator adds up a metric over all
    /// functions, so an alarm rings for either of them. It evaluates alarms only when a metric is
    /// published.
    async fn failing(&self) -> Result<(), String> {
        let evaluate =
            "aws cloudwatch put-metric-data --namespace drill --metric-name tick --value 1";
        let fail = "aws lambda invoke --function-name \"$aggregator\" --payload null failed.json \
             --query FunctionError --output text";
        let error = self.shell.text(fail, &[]).await?;
        expect(error.trim() != "None", || {
            "the aggregator accepts an event without records".to_owned()
        })?;
        self.shell.text(evaluate, &[]).await?;
        self.until_alarm("AggregatorErrorsAlarm", "ALARM").await?;
        for (function, alarm) in [
            ("aggregator", "AggregatorThrottledAlarm"),
            ("reconciler", "ReconcilerThrottledAlarm"),
        ] {
            let refuse = format!(
                "aws lambda put-function-concurrency --function-name \"${function}\" \
                   --reserved-concurrent-executions 0 > reserved.json
                 AWS_MAX_ATTEMPTS=1 aws lambda invoke --function-name \"${function}\" refused.json 2>&1 || true
                 aws lambda delete-function-concurrency --function-name \"${function}\""
            );
            let said = self.shell.text(&refuse, &[]).await?;
            expect(said.contains("TooManyRequestsException"), || {
                format!("a function without concurrency says {said}")
            })?;
            self.shell.text(evaluate, &[]).await?;
            self.until_alarm(alarm, "ALARM").await?;
        }
        self.say("the alarms on failed and on refused calls rang");
        Ok(())
    }

    /// A snapshot of a bucket of two shards is spoiled. Each merge copies the second shard.
    async fn damaged(&self) -> Result<(), String> {
        let limit = Limit::per_minute("rpm", 100_000).map_err(told)?;
        self.configure(WIDE, limit.clone()).await?;
        let set_shards = async |count| {
            let shards = self
                .limiter()
                .await?
                .set_shards(ENTITY, WIDE, std::slice::from_ref(&limit), count)
                .await
                .map_err(told)?;
            expect(shards == count, || {
                format!("a bucket of {count} shards has {shards}")
            })
        };
        set_shards(2).await?;
        self.take_of(WIDE, 20).await?;
        set_shards(1).await?;
        let day = Iso8601(Window::Daily.start(now())).to_string();
        let snapshot = format!("#USAGE#wide#daily#{day}");
        let snapshot = ("snapshot", snapshot.as_str());
        let damage = "aws dynamodb update-item --table-name \"$table\" --key \"$(item prod/ENTITY#openai \"$snapshot\")\" \
             --update-expression 'SET q1 = :far' --condition-expression 'attribute_exists(q1)' \
             --expression-attribute-values '{\":far\":{\"S\":\"far\"}}'";
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.shell.text(damage, &[snapshot]).await {
            expect(Instant::now() < deadline, || {
                format!("a merged shard is not copied: {error}")
            })?;
        }
        set_shards(2).await?;
        let missing = self
            .shell
            .block("missing", &[("usage", "#USAGE#wide#hourly#")])
            .await?;
        let is_second = missing.trim_end().ends_with(" q1") && !missing.contains("q0");
        expect(is_second, || {
            format!("the second shard alone was copied, and missing says {missing}")
        })?;
        set_shards(1).await?;
        let log = self
            .until_said("refused", &[], |log| log.contains("attribute q1"))
            .await?;
        for named in [
            "interim copy to",
            "#USAGE#wide#daily#",
            "of shard 1 at",
            "rpm",
        ] {
            expect(log.contains(named), || {
                format!("the log does not say {named}: {log}")
            })?;
        }
        let read = self.counted(WIDE, Window::Daily).await;
        expect(read.is_err(), || {
            format!("a day that cannot be read counts {read:?}")
        })?;
        self.shell
            .block("strip", &[snapshot, ("attributes", "q1 #1 rpm#1")])
            .await?;
        self.until_counted_of(WIDE, 20).await?;
        set_shards(2).await?;
        self.take_of(WIDE, 40).await?;
        set_shards(1).await?;
        // What is left is in the snapshots alone.
        self.delete(WIDE, 0).await?;
        self.delete(WIDE, 1).await?;
        self.until_counted_of(WIDE, 60).await?;
        self.until_said("missing", &[("usage", "#USAGE#wide#")], str::is_empty)
            .await?;
        self.say("a damaged snapshot of two shards was named by the log, and made whole by the next copies");
        Ok(())
    }

    /// Runs a block until it says what it should.
    async fn until_said(
        &self,
        block: &str,
        variables: &[(&str, &str)],
        holds: impl Fn(&str) -> bool,
    ) -> Result<String, String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = self.shell.block(block, variables).await?;
            if holds(&said) {
                return Ok(said);
            }
            expect(Instant::now() < deadline, || format!("{block} says {said}"))?;
        }
    }

    pub(super) async fn reconciler(&mut self) -> Result<(), String> {
        let enabled = self.shell.block("schedule", &[]).await?;
        expect(enabled.contains("ENABLED"), || {
            format!("the schedule is {enabled}")
        })?;
        match self.shell.block("letters", &[]).await {
            Err(refused) if refused.contains("AccessDenied") => {}
            other => return Err(format!("dead letters were read without TLS: {other:?}")),
        }
        let proxy = Proxy::to(&self.endpoint).await.map_err(told)?;
        let over_tls = ("AWS_ENDPOINT_URL", proxy.endpoint.as_str());
        let send = "aws sqs send-message --queue-url \"$letters\" --message-body 'a run failed' --query MessageId";
        self.shell.text(send, &[over_tls]).await?;
        let letters = self.shell.block("letters", &[over_tls]).await?;
        expect(letters.contains("a run failed"), || {
            format!("the dead letters are {letters}")
        })?;
        // What the alarm watches: messages that are hidden from readers for a while count as well.
        let depth = "aws sqs get-queue-attributes --queue-url \"$letters\" --attribute-names All --output json \
             --query 'Attributes.[ApproximateNumberOfMessages,ApproximateNumberOfMessagesNotVisible]' | tr -dc '0-9,'";
        let before = self.shell.text(depth, &[over_tls]).await?;
        expect(before.trim() != "0,0", || {
            format!("a letter is there, and the depth is {before}")
        })?;
        self.shell.block("purge", &[over_tls]).await?;
        let after = self.shell.text(depth, &[over_tls]).await?;
        expect(after.trim() == "0,0", || {
            format!("the queue was purged, and its depth is {after}")
        })?;
        self.say("a dead letter was read, none without TLS, and the queue was purged");
        Ok(())
    }

    /// Runs the reconciler manually. Returns the number of due buckets, and its response.
    async fn reconcile(&self) -> Result<(u64, Value), String> {
        let said = self.shell.block("reconcile", &[]).await?;
        let read = || {
            let (due, rest) = said.split_once(" due\n200\tNone\n")?;
            Some((due.parse().ok()?, serde_json::from_str(rest).ok()?))
        };
        read().ok_or_else(|| format!("the reconciler said {said}"))
    }

    /// Two slots of two, under a lease, and its id.
    async fn hold(&self, resource: &str) -> Result<(Grant, String), String> {
        let (limiter, slots) = (
            self.limiter().await?,
            [Limit::concurrent("slots", 2).map_err(told)?],
        );
        let request = limiter
            .acquire("fleet", resource)
            .limits(&slots)
            .take("slots", 2)
            .lease(HOUR);
        let Decision::Granted(held) = request.send().await.map_err(told)? else {
            return Err(format!("2 slots of {resource} were refused"));
        };
        let lease = held.lease_id().ok_or("slots without a lease")?.to_owned();
        Ok((held, lease))
    }

    pub(super) async fn leases(&mut self) -> Result<(), String> {
        let pk = ("pk", "prod/BUCKET#fleet#jobs#0");
        let (mut is_by_hand, mut did) = (false, Value::Null);
        for _ in 0..TRIES {
            let (held, lease) = self.hold("jobs").await?;
            let shown = self.shell.block("leases", &[pk]).await?;
            expect(shown.contains(&lease) && shown.contains("drill"), || {
                format!("the lease is not shown: {shown}")
            })?;
            self.shell.block("expire", &[pk, ("lease", &lease)]).await?;
            let due;
            (due, did) = self.reconcile().await?;
            is_by_hand = due >= 1 && did["leases_restored"] == 1;
            let shown = self.shell.block("leases", &[pk]).await?;
            expect(!shown.contains(&lease), || {
                format!("the lease is still there: {shown}")
            })?;
            let told_so = held.release().await.map_err(told)?;
            expect(told_so != weirgate::Settlement::Applied, || {
                "a lease was given back twice".to_owned()
            })?;
            if is_by_hand {
                break;
            }
        }
        expect(is_by_hand, || {
            format!("of {TRIES} leases that were due no manual run returned one")
        })?;
        self.overdue(&did).await?;
        let _ = self.hold("jobs").await?;
        self.say("a lease was found, ended manually and returned by the reconciler, once");
        Ok(())
    }

    /// The alarm rings for a run that met a lease which was due for long, and ends with the next
    /// run. The emulator has no metric filters, so the drill puts their values.
    async fn overdue(&self, late: &Value) -> Result<(), String> {
        for (did, state) in [(late, "ALARM"), (&self.reconcile().await?.1, "OK")] {
            let age = did["oldest_due_age_ms"].to_string();
            let put = "aws cloudwatch put-metric-data --namespace Weirgate --metric-name \"$stack-oldest-due-ms\" \
                 --value \"$age\"";
            self.shell.text(put, &[("age", &age)]).await?;
            self.until_alarm("OverdueLeasesAlarm", state).await?;
        }
        self.say("the alarm on overdue leases rang, and ended with the next run");
        Ok(())
    }

    /// Waits until an alarm of the stack is in `state`.
    async fn until_alarm(&self, alarm: &str, state: &str) -> Result<(), String> {
        let ask = "name=$(aws cloudformation describe-stack-resource --stack-name \"$stack\" --output text \
             --logical-resource-id \"$alarm\" --query StackResourceDetail.PhysicalResourceId)
             aws cloudwatch describe-alarms --alarm-names \"$name\" --query 'MetricAlarms[].StateValue' --output text";
        let deadline = Instant::now() + PATIENCE;
        loop {
            let is_in = self.shell.text(ask, &[("alarm", alarm)]).await?;
            if is_in.trim() == state {
                return Ok(());
            }
            expect(Instant::now() < deadline, || {
                format!("{alarm} must be {state}, got {is_in}")
            })?;
        }
    }

    pub(super) async fn unreadable(&mut self) -> Result<(), String> {
        let pk = ("pk", "prod/BUCKET#fleet#broken#0");
        let (_held, lease) = self.hold("broken").await?;
        let damage = "aws dynamodb update-item --table-name \"$table\" --key \"$(item \"$pk\" '#STATE')\" \
             --update-expression 'SET b_slots_cp = :many' --expression-attribute-values '{\":many\":{\"S\":\"many\"}}'";
        self.shell.text(damage, &[pk]).await?;
        self.shell.block("expire", &[pk, ("lease", &lease)]).await?;
        let (_, did) = self.reconcile().await?;
        expect(did["undecodable"] == 1, || {
            format!("a bucket that cannot be read is not told: {did}")
        })?;
        let log = self.shell.block("undecodable", &[]).await?;
        for named in [
            "undecodable bucket",
            "undecodable record",
            "fleet#broken",
            "b_slots_cp",
        ] {
            expect(log.contains(named), || {
                format!("the log does not say {named}: {log}")
            })?;
        }
        self.shell
            .block(
                "correct",
                &[pk, ("attribute", "b_slots_cp"), ("number", "2000")],
            )
            .await?;
        let (_, did) = self.reconcile().await?;
        let shown = self.shell.block("leases", &[pk]).await?;
        let is_mended = did["undecodable"] == 0 && !shown.contains(&lease);
        expect(is_mended, || {
            format!("after it was mended the reconciler says {did}, and there are {shown}")
        })?;
        self.say("a bucket that could not be read was named by the log, mended, and its lease given back");
        Ok(())
    }
}
