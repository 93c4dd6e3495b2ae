//! A function is stuck: a lag, failed and refused calls, a damaged snapshot.

use std::time::Instant;

use weirgate::Limit;
use weirgate_shared::{Iso8601, Window};

use super::{Drill, ENTITY, PATIENCE, expect, told};
use crate::demo::now;

/// A resource whose bucket has two shards.
const WIDE: &str = "wide";

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
        let cap = "aws dynamodb update-table --table-name \"$table\" --on-demand-throughput MaxWriteRequestUnits=9000";
        self.shell.text(cap, &[]).await?;
        self.shell.block("uncap", &[]).await?;
        let capped = "aws dynamodb describe-table --table-name \"$table\" --output text \
             --query Table.OnDemandThroughput.MaxWriteRequestUnits";
        let capped = self.shell.text(capped, &[]).await?;
        expect(["-1", "None"].contains(&capped.trim()), || {
            format!("the table still takes {capped} at most")
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
}
