//! The commands of `docs/operations.md`, each run on a deployed stack and held against what the page says of it.

mod page;
mod restore;
mod shell;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weirgate::{Config, Decision, EpochMillis, Level, Limit, RateLimiter, Table};
use weirgate_shared::{Attr, EntityId, Iso, Namespace, Resource, SnapshotKey, Window, attr};

use crate::demo::{Stack, connected, now};
use shell::Shell;

/// How long a function gets to do what it does within a second or two.
const PATIENCE: Duration = Duration::from_secs(60);

const NAMESPACE: &str = "prod";
const ENTITY: &str = "openai";
const RESOURCE: &str = "gpt-4";
const BUCKET: &str = "prod/BUCKET#openai#gpt-4#0";

/// Runs every procedure of the page once, on a stack of its own.
///
/// # Errors
/// The first thing that is not as the page says.
pub async fn run(progress: impl Fn(&str)) -> Result<(), String> {
    let built = std::env::current_exe().map_err(|error| format!("this program's own path is unknown: {error}"))?;
    let built = built.parent().map(PathBuf::from).unwrap_or_default();
    let stack = Stack::start_with(&built, &progress).await?;
    let mut environment = stack.environment();
    if let Some((_, path)) = environment.iter_mut().find(|(name, _)| name == "PATH") {
        *path = format!("{}:{path}", built.display());
    }
    let shell = Shell::new(stack.folder().to_owned(), environment)?;
    let mut drill = Drill {
        shell: &shell,
        endpoint: stack.endpoint.clone(),
        table: Table::new(connected(&stack.endpoint).await, stack.output("TableName")?),
        started: now(),
        taken: 0,
        progress: &progress,
    };
    drill.usage().await?;
    drill.discarded().await?;
    drill.stream().await?;
    drill.stuck().await?;
    drill.leases().await?;
    drill.limits().await?;
    drill.restore().await?;
    let left = shell.left();
    if left.is_empty() {
        Ok(())
    } else {
        Err(format!("these blocks of docs/operations.md are run by nobody: {left:?}"))
    }
}

struct Drill<'a, P> {
    shell: &'a Shell,
    endpoint: String,
    table: Table,
    started: EpochMillis,
    /// Acquires that were granted, and so should be counted.
    taken: i64,
    progress: &'a P,
}

/// An error unless `holds`.
fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl<P: Fn(&str)> Drill<'_, P> {
    fn say(&self, what: &str) {
        (self.progress)(what);
    }

    /// A caller that knows nothing yet.
    async fn limiter(&self) -> Result<RateLimiter, String> {
        let table = Table::new(connected(&self.endpoint).await, self.table.name());
        RateLimiter::builder("drill").table(table).namespace(NAMESPACE).owner("drill").build().await.map_err(told)
    }

    async fn decide(&self, tokens: i64) -> Result<Decision, String> {
        let limiter = self.limiter().await?;
        limiter.acquire(ENTITY, RESOURCE).take("rpm", tokens).send().await.map_err(told)
    }

    /// Takes one token, `times` times.
    async fn take(&mut self, times: i64) -> Result<(), String> {
        let limiter = self.limiter().await?;
        for _ in 0..times {
            let decision = limiter.acquire(ENTITY, RESOURCE).take("rpm", 1).send().await.map_err(told)?;
            expect(decision.is_granted(), || format!("a caller was refused: {decision:?}"))?;
        }
        self.taken += times;
        Ok(())
    }

    /// Acquires that the snapshots of one kind of window count.
    async fn counted(&self, window: Window) -> Result<i64, String> {
        let mut keys = vec![];
        let mut start = window.start(self.started);
        while start <= now() {
            let key = SnapshotKey {
                namespace: Namespace::new(NAMESPACE).map_err(told)?,
                entity: EntityId::new(ENTITY).map_err(told)?,
                resource: Resource::new(RESOURCE).map_err(told)?,
                window,
                start,
            };
            keys.push(key.item_key());
            start = window.end(start);
        }
        let mut sum = 0;
        for item in self.table.read(&keys).await.map_err(told)? {
            for (name, value) in item.attributes() {
                if let (attr::TOTAL_EVENTS, Attr::N(number)) = (name, value) {
                    let whole = number.split('.').next().unwrap_or_default();
                    sum += whole.parse::<i64>().map_err(|error| format!("{name} is {number}: {error}"))?;
                }
            }
        }
        Ok(sum)
    }

    /// Waits until hours and days count `expected`, and no more.
    async fn until_counted(&self, expected: i64) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let counted = [self.counted(Window::Hourly).await?, self.counted(Window::Daily).await?];
            if counted == [expected; 2] {
                return Ok(());
            }
            let is_over = counted.iter().any(|counted| *counted > expected) || Instant::now() >= deadline;
            expect(!is_over, || format!("hours and days count {counted:?} acquires, and {expected} were made"))?;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    async fn usage(&mut self) -> Result<(), String> {
        let config = Config::of([Limit::per_minute("rpm", 100_000).map_err(told)?]);
        let level = Level::Resource(RESOURCE.try_into().map_err(told)?);
        self.limiter().await?.set_config(&level, &config).await.map_err(told)?;
        self.take(20).await?;
        self.until_counted(20).await?;
        self.say("20 acquires, counted");
        let mapping = self.shell.block("mapping", &[]).await?;
        expect(mapping.contains("Enabled"), || format!("the mapping is said to be {mapping}"))?;
        self.shell.block("lag", &[]).await?;
        Ok(())
    }

    /// Takes, while the records go past the function as if it had failed with them; gives them back as Lambda would
    /// have written them.
    async fn discard(&mut self, times: i64) -> Result<String, String> {
        self.drop_mapping().await?;
        self.take(times).await?;
        let read = "shard=$(aws dynamodbstreams describe-stream --stream-arn \"$stream\" --output text \
             --query 'StreamDescription.Shards[-1].ShardId')
             iterator=$(aws dynamodbstreams get-shard-iterator --stream-arn \"$stream\" --shard-id \"$shard\" \
             --shard-iterator-type TRIM_HORIZON --query ShardIterator --output text)
             aws dynamodbstreams get-records --shard-iterator \"$iterator\" --query Records --output json
             echo ---; echo \"$stream\"";
        let said = self.shell.text(read, &[]).await?;
        let (records, stream) = said.split_once("---").ok_or("the stream was not read")?;
        let stream = stream.trim();
        let mut records: Vec<Value> = serde_json::from_str(records).map_err(told)?;
        records.retain(|record| record["dynamodb"]["Keys"]["PK"]["S"] == BUCKET);
        let times = usize::try_from(times).map_err(told)?;
        let mut records = records.split_off(records.len().saturating_sub(times));
        expect(records.len() == times, || format!("the stream has {} records of {times}", records.len()))?;
        for record in &mut records {
            record["eventSourceARN"] = json!(stream);
            record["eventSource"] = json!("aws:dynamodb");
        }
        let payload = json!({"Records": records}).to_string();
        let object = json!({
            "requestContext": {"condition": "RetryAttemptsExhausted", "approximateInvokeCount": 101},
            "version": "1.0",
            "DDBStreamBatchInfo": {"streamArn": stream, "batchSize": times},
            "payload": payload,
        });
        self.map("LATEST").await?;
        Ok(object.to_string())
    }

    /// A mistake: the mapping is deleted.
    async fn drop_mapping(&self) -> Result<(), String> {
        let delete = "aws lambda delete-event-source-mapping --uuid \"$mapping\" --query State --output text";
        self.shell.text(delete, &[]).await.map(drop)
    }

    /// Another one: it is made anew where the stream ends.
    async fn map(&self, position: &str) -> Result<(), String> {
        let map = "aws lambda create-event-source-mapping --function-name \"$aggregator\" --event-source-arn \"$stream\" \
             --starting-position \"$position\" --function-response-types ReportBatchItemFailures --query UUID --output text";
        self.shell.text(map, &[("position", position)]).await.map(drop)
    }

    async fn put_object(&self, object: &str, name: &str) -> Result<(), String> {
        let put = "printf '%s' \"$object\" | aws s3 cp --quiet - \"s3://$failures/aws/lambda/drill/$name\"";
        self.shell.text(put, &[("object", object), ("name", name)]).await.map(drop)
    }

    async fn discarded(&mut self) -> Result<(), String> {
        let object = self.discard(7).await?;
        self.put_object(&object, "first").await?;
        self.take(5).await?;
        self.until_counted(self.taken - 7).await?;
        let gap = self.missing().await?;
        expect(gap.len() == 1 && gap[0].1 - gap[0].0 == 7, || format!("missing is {gap:?}, not 7 writes"))?;
        self.shell.block("why", &[]).await?;
        let said = self.shell.block("replay", &[]).await?;
        expect(said.contains("daily 7 counted, 0 before; nothing was written"), || said.clone())?;
        self.until_counted(self.taken).await?;
        let again = self.shell.block("replay", &[]).await?;
        expect(again.contains("daily 0 counted, 7 before"), || again.clone())?;
        self.until_counted(self.taken).await?;
        let gap = self.missing().await?;
        expect(gap.is_empty(), || format!("{gap:?} is missing after the replay"))?;
        self.say("7 discarded records, replayed twice, counted once");
        Ok(())
    }

    /// The missing ranges of the day, but for what lies before its first count.
    async fn missing(&self) -> Result<Vec<(i64, i64)>, String> {
        let said = self.shell.block("missing", &[]).await?;
        let parts = said.split_whitespace().filter_map(|word| word.split_once('-'));
        let numbers = parts.filter_map(|(after, through)| Some((after.parse().ok()?, through.parse().ok()?)));
        Ok(numbers.filter(|(after, _): &(i64, i64)| *after != 0).collect())
    }

    async fn stream(&mut self) -> Result<(), String> {
        self.drop_mapping().await?;
        self.take(6).await?;
        self.shell.block("again", &[]).await?;
        self.until_counted(self.taken).await?;
        self.say("the mapping was deleted and made anew: all of the last 24 hours came again, counted once");

        let disable =
            "aws lambda update-event-source-mapping --uuid \"$mapping\" --no-enabled --query State --output text";
        self.shell.text(disable, &[]).await?;
        self.take(4).await?;
        self.shell.block("enable", &[]).await?;
        self.until_counted(self.taken).await?;
        self.say("the mapping was disabled and enabled: it went on where it had stopped");
        Ok(())
    }

    async fn stuck(&mut self) -> Result<(), String> {
        let day = Iso(Window::Daily.start(now())).to_string();
        let day = day.get(..10).unwrap_or_default().to_owned();
        let damage = "aws dynamodb update-item --table-name \"$table\" --update-expression 'SET q0 = :far' \
             --expression-attribute-values '{\":far\":{\"S\":\"far\"}}' \
             --key \"$(item prod/ENTITY#openai \"#USAGE#gpt-4#daily#${day}T00:00:00Z\")\"";
        self.shell.text(damage, &[("day", &day)]).await?;
        self.take(3).await?;
        let deadline = Instant::now() + PATIENCE;
        while self.counted(Window::Hourly).await? != self.taken {
            expect(Instant::now() < deadline, || "the hours do not go on beside a damaged day".to_owned())?;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let log = self.shell.block("why", &[]).await?;
        let named = "#USAGE#gpt-4#daily#";
        expect(log.contains("cannot be read") && log.contains(named), || format!("the log does not say it: {log}"))?;
        self.shell.block("mend", &[("limits", "rpm"), ("day", &day)]).await?;
        self.shell.block("enable", &[]).await?;
        self.take(2).await?;
        self.until_counted(self.taken).await?;
        self.say("a damaged snapshot was named by the log, and made anew from its hours");
        let enabled = self.shell.block("schedule", &[]).await?;
        expect(enabled.contains("ENABLED"), || format!("the schedule is {enabled}"))?;
        // The emulator speaks no TLS, and the queue's policy lets nobody read it without.
        match self.shell.block("letters", &[]).await {
            Err(refused) if refused.contains("AccessDenied") => {}
            other => return Err(format!("dead letters were read without TLS: {other:?}")),
        }
        Ok(())
    }

    async fn leases(&mut self) -> Result<(), String> {
        let slots = [Limit::concurrent("slots", 2).map_err(told)?];
        let ask = || async {
            let limiter = self.limiter().await?;
            let request =
                limiter.acquire("fleet", "jobs").limits(&slots).take("slots", 2).lease(Duration::from_secs(3600));
            request.send().await.map_err(told)
        };
        let Decision::Granted(held) = ask().await? else { return Err("slots were refused".to_owned()) };
        let lease = held.lease_id().ok_or("slots without a lease")?.to_owned();
        let pk = ("pk", "prod/BUCKET#fleet#jobs#0");
        let shown = self.shell.block("leases", &[pk]).await?;
        expect(shown.contains(&lease) && shown.contains("drill"), || format!("the lease is not shown: {shown}"))?;
        self.shell.block("expire", &[pk, ("lease", &lease)]).await?;
        let done = self.shell.block("reconcile", &[]).await?;
        expect(done.contains("due") && done.contains("200"), || format!("the reconciler said {done}"))?;
        let shown = self.shell.block("leases", &[pk]).await?;
        expect(!shown.contains(&lease), || format!("the lease is still there: {shown}"))?;
        let told_so = held.release().await.map_err(told)?;
        expect(told_so != weirgate::Settlement::Done, || "a lease was given back twice".to_owned())?;
        expect(ask().await?.is_granted(), || "the slots are not back".to_owned())?;
        self.say("a lease was found, ended by hand and given back by the reconciler, once");
        Ok(())
    }

    async fn limits(&mut self) -> Result<(), String> {
        let shown = self.shell.block("limits", &[]).await?;
        expect(shown.contains("100000000") && shown.contains("set_config"), || format!("the limits are {shown}"))?;
        self.shell.block("set-limit", &[("milli", "5000")]).await?;
        let decision = self.decide(6).await?;
        expect(matches!(decision, Decision::NeverFits(_)), || format!("6 of 5 tokens: {decision:?}"))?;
        self.shell.block("set-limit", &[("milli", "600000")]).await?;
        self.shell.block("disable", &[]).await?;
        let decision = self.decide(1).await?;
        expect(matches!(decision, Decision::Disabled(_)), || format!("disabled, and yet {decision:?}"))?;
        self.shell.block("disable", &[("status", "enforced")]).await?;
        self.take(1).await?;
        self.shell.block("balance", &[("milli", "-500000")]).await?;
        let decision = self.decide(1).await?;
        expect(matches!(decision, Decision::Denied(_)), || format!("drained, and yet {decision:?}"))?;
        self.shell.block("balance", &[("milli", "600000")]).await?;
        self.take(1).await?;
        self.until_counted(self.taken).await?;
        self.say("a limit was lowered, raised, disabled and enforced; a bucket drained and filled; usage stays exact");
        Ok(())
    }
}
