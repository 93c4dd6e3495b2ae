//! The reconciler fails, leases are never released, an item cannot be read.

use std::time::{Duration, Instant};

use serde_json::Value;
use weirgate::{Decision, Grant, Limit};

use super::proxy::Proxy;
use super::{Drill, PATIENCE, expect, told};

/// Time of a lease that only its holder releases.
const HOUR: Duration = Duration::from_secs(3600);
/// A scheduled run may come before the manual one, but at most once a minute.
const TRIES: u32 = 3;

impl<P: Fn(&str)> Drill<'_, P> {
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
            let due = due.lines().last()?.parse().ok()?;
            Some((due, serde_json::from_str(rest).ok()?))
        };
        read().ok_or_else(|| format!("the reconciler said {said}"))
    }

    /// Two slots of two, under a lease, and its id.
    pub(super) async fn hold(
        &self,
        resource: &str,
        lease: Duration,
    ) -> Result<(Grant, String), String> {
        let (limiter, slots) = (
            self.limiter().await?,
            [Limit::concurrent("slots", 2).map_err(told)?],
        );
        let request = limiter
            .acquire("fleet", resource)
            .limits(&slots)
            .take("slots", 2)
            .lease(lease);
        let Decision::Granted(held) = request.send().await.map_err(told)? else {
            return Err(format!("2 slots of {resource} were refused"));
        };
        let lease = held.lease_id().ok_or("slots without a lease")?.to_owned();
        Ok((held, lease))
    }

    /// What the page's command shows of the leases on a resource.
    pub(super) async fn shown_leases(&self, resource: &str) -> Result<String, String> {
        let of = [("entity", "fleet"), ("resource", resource)];
        self.shell.block("leases", &of).await
    }

    pub(super) async fn leases(&mut self) -> Result<(), String> {
        let (held, lease) = self.hold("jobs", HOUR).await?;
        let shown = self.shown_leases("jobs").await?;
        expect(shown.contains(&lease) && shown.contains("drill"), || {
            format!("the lease is not shown: {shown}")
        })?;
        let of = [
            ("entity", "fleet"),
            ("resource", "jobs"),
            ("lease", lease.as_str()),
        ];
        self.shell.block("end-lease", &of).await?;
        let shown = self.shown_leases("jobs").await?;
        expect(!shown.contains(&lease), || {
            format!("the lease is still there: {shown}")
        })?;
        let released = held.release().await.map_err(told)?;
        expect(released != weirgate::Settlement::Applied, || {
            "a lease was given back twice".to_owned()
        })?;
        let late = self.expired().await?;
        self.overdue(&late).await?;
        let _ = self.hold("jobs", HOUR).await?;
        self.say("a lease was found and ended, another one expired and was returned by the reconciler, each once");
        Ok(())
    }

    /// A lease expired long ago, and a manual run of the reconciler returns its slots. Returns the
    /// run's response.
    async fn expired(&self) -> Result<Value, String> {
        for _ in 0..TRIES {
            let (held, lease) = self.hold("jobs", HOUR).await?;
            self.backdate("prod/BUCKET#fleet#jobs#0", &lease).await?;
            let (due, did) = self.reconcile().await?;
            let shown = self.shown_leases("jobs").await?;
            expect(!shown.contains(&lease), || {
                format!("the lease is still there: {shown}")
            })?;
            let released = held.release().await.map_err(told)?;
            expect(released != weirgate::Settlement::Applied, || {
                "a lease was given back twice".to_owned()
            })?;
            if due >= 1 && did["leases_restored"] == 1 {
                return Ok(did);
            }
        }
        Err(format!(
            "of {TRIES} leases that expired no manual run returned one"
        ))
    }

    /// Makes it so that a lease has expired, and its shard been due, since 1970.
    async fn backdate(&self, pk: &str, lease: &str) -> Result<(), String> {
        let edit = "aws dynamodb update-item --table-name \"$table\" --key \"$(item \"$pk\" '#STATE')\" \
             --update-expression 'SET h.#lease.e = :past, due = :past ADD v :one' \
             --expression-attribute-names \"{\\\"#lease\\\":\\\"$lease\\\"}\" --expression-attribute-values \
             '{\":past\":{\"N\":\"1\"},\":one\":{\"N\":\"1\"}}'";
        self.shell
            .text(edit, &[("pk", pk), ("lease", lease)])
            .await?;
        Ok(())
    }

    /// The alarm rings for a run that met a lease which was due for long, and ends with the next
    /// run. The emulator reads no metrics from log lines, so the drill puts their values.
    async fn overdue(&self, late: &Value) -> Result<(), String> {
        for (did, state) in [(late, "ALARM"), (&self.reconcile().await?.1, "OK")] {
            let age = did["oldest_due_age_ms"].to_string();
            let put = "aws cloudwatch put-metric-data --namespace Weirgate --metric-name oldest_due_age_ms \
                 --dimensions \"stack=$stack,function=reconciler\" --value \"$age\"";
            self.shell.text(put, &[("age", &age)]).await?;
            self.until_alarm("OverdueLeasesAlarm", state).await?;
        }
        self.say("the alarm on overdue leases rang, and ended with the next run");
        Ok(())
    }

    /// Waits until an alarm of the stack is in `state`.
    pub(super) async fn until_alarm(&self, alarm: &str, state: &str) -> Result<(), String> {
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
        let (_held, lease) = self.hold("broken", HOUR).await?;
        let damage = "aws dynamodb update-item --table-name \"$table\" --key \"$(item \"$pk\" '#STATE')\" \
             --update-expression 'SET b_slots_cp = :many ADD v :one' --expression-attribute-values \
             '{\":many\":{\"S\":\"many\"},\":one\":{\"N\":\"1\"}}'";
        self.shell.text(damage, &[pk]).await?;
        self.backdate(pk.1, &lease).await?;
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
        let shown = self.shown_leases("broken").await?;
        let is_mended = did["undecodable"] == 0 && !shown.contains(&lease);
        expect(is_mended, || {
            format!("after it was mended the reconciler says {did}, and there are {shown}")
        })?;
        self.say("a bucket that could not be read was named by the log, mended, and its lease given back");
        Ok(())
    }
}
