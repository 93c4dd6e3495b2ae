//! Records are discarded and replayed; the stream's mapping is lost and made again.

use serde_json::{Value, json};

use super::{Drill, ENTITY, NAMESPACE, expect, told};

/// A resource whose records are discarded.
const DISCARDED: &str = "discarded";

/// Makes what the page reads of a release: its bucket, and its template, with the functions that are
/// built. As the drill's `sam build`, it leaves out the alarm of metric math.
const RELEASE: &str = r"aws s3 mb s3://my-releases
sed -e 's|^      FunctionName: .*-\(.*\)$|&\n      CodeUri: built/\1|' -e '/^    CodeUri: \.$/d' \
  -e '/^  TableThrottledAlarm:$/,/^$/d' template.yaml > template-arm64.yaml";

impl<P: Fn(&str)> Drill<'_, P> {
    /// Takes from a resource and deletes its bucket, while the records pass the function by.
    /// Returns the object that Lambda would have written if the function had failed.
    pub(super) async fn discard(&self, resource: &str, times: i64) -> Result<String, String> {
        self.drop_mapping().await?;
        self.take_and_delete(resource, times).await?;
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
        let pk = format!("{NAMESPACE}/BUCKET#{ENTITY}#{resource}#0");
        records.retain(|record| record["dynamodb"]["Keys"]["PK"]["S"] == *pk);
        // With the record of the deletion.
        let expected = usize::try_from(times + 1).map_err(told)?;
        expect(records.len() == expected, || {
            format!("the stream has {} records of {expected}", records.len())
        })?;
        for record in &mut records {
            record["eventSourceARN"] = json!(stream);
            record["eventSource"] = json!("aws:dynamodb");
        }
        let payload = json!({"Records": records}).to_string();
        let object = json!({
            "requestContext": {"condition": "RetryAttemptsExhausted", "approximateInvokeCount": 101},
            "version": "1.0",
            "DDBStreamBatchInfo": {"streamArn": stream, "batchSize": expected},
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

    /// Another one: it is made again where the stream ends.
    async fn map(&self, position: &str) -> Result<(), String> {
        let map = "aws lambda create-event-source-mapping --function-name \"$aggregator\" --event-source-arn \"$stream\" \
             --starting-position \"$position\" --function-response-types ReportBatchItemFailures --query UUID --output text";
        self.shell
            .text(map, &[("position", position)])
            .await
            .map(drop)
    }

    async fn put_object(&self, object: &str, name: &str) -> Result<(), String> {
        let put = "printf '%s' \"$object\" | aws s3 cp --quiet - \"s3://$failures/aws/lambda/drill/$name\"";
        self.shell
            .text(put, &[("object", object), ("name", name)])
            .await
            .map(drop)
    }

    pub(super) async fn discarded(&mut self) -> Result<(), String> {
        let object = self.discard(DISCARDED, 7).await?;
        self.put_object(&object, "first").await?;
        self.take_and_delete("later", 5).await?;
        self.until_counted_of("later", 5).await?;
        self.until_counted_of(DISCARDED, 0).await?;
        // What the function says when DynamoDB is away, which it never is here.
        let log = "aws logs create-log-stream --log-group-name \"/aws/lambda/$aggregator\" --log-stream-name drill
             aws logs put-log-events --log-group-name \"/aws/lambda/$aggregator\" --log-stream-name drill \
             --log-events \"[{\\\"timestamp\\\":$(date +%s%3N),\\\"message\\\":\\\"a write failed: throttled\\\"}]\"";
        self.shell.text(log, &[]).await?;
        let why = self.shell.block("why", &[]).await?;
        expect(why.contains("throttled"), || {
            format!("the log does not say why records failed: {why}")
        })?;
        let said = self.shell.block("replay", &[]).await?;
        let is_made = said.contains(" copies planned; nothing was written\n")
            && said.ends_with(" made, 0 already there\n");
        expect(is_made, || said.clone())?;
        self.until_counted_of(DISCARDED, 7).await?;
        let again = self.shell.block("replay", &[]).await?;
        expect(again.contains(" records: 0 copies made, "), || {
            again.clone()
        })?;
        self.until_counted_of(DISCARDED, 7).await?;
        self.say("8 discarded records, replayed twice: usage is exact");
        Ok(())
    }

    pub(super) async fn stream(&mut self) -> Result<(), String> {
        self.drop_mapping().await?;
        self.take_and_delete("unmapped", 6).await?;
        self.shell.block("again", &[]).await?;
        self.until_counted_of("unmapped", 6).await?;
        self.until_counted_of(DISCARDED, 7).await?;
        self.say("the mapping was deleted and made again: all of the last 24 hours came again, and usage is exact");

        let disable = "aws lambda update-event-source-mapping --uuid \"$mapping\" --no-enabled --query State --output text";
        self.shell.text(disable, &[]).await?;
        let mapping = self.shell.block("mapping", &[]).await?;
        expect(mapping.contains("Disabled"), || {
            format!("the disabled mapping is said to be {mapping}")
        })?;
        self.doctor("it is Disabled").await?;
        self.take_and_delete("disabled", 4).await?;
        self.shell.block("enable", &[]).await?;
        self.until_counted_of("disabled", 4).await?;
        let mapping = self.shell.block("mapping", &[]).await?;
        expect(mapping.contains("Enabled"), || {
            format!("the enabled mapping is said to be {mapping}")
        })?;
        for finds in [
            "it reads the stream",
            "-aggregator is active, version",
            "-reconciler is active, version",
            "-reconciler is enabled, rate(",
            ", none rings",
            "allowed: read, list, acquire",
        ] {
            self.doctor(finds).await?;
        }
        self.say("the mapping was disabled and enabled: it went on where it had stopped");
        self.hand_back().await
    }

    /// The page's doctor finds this. The alarms on absence ring meanwhile, so problems are no error.
    async fn doctor(&self, finds: &str) -> Result<(), String> {
        let (Ok(said) | Err(said)) = self.shell.block("doctor", &[]).await;
        expect(said.contains(finds), || {
            format!("the doctor does not find {finds:?}: {said}")
        })
    }

    /// From the repository, and then from a release.
    async fn hand_back(&mut self) -> Result<(), String> {
        self.hand_back_by("hand-back", "handed-back").await?;
        self.shell.text(RELEASE, &[]).await?;
        self.drop_mapping().await?;
        self.shell.block("again", &[]).await?;
        self.hand_back_by("hand-back-release", "handed-back-by-release")
            .await
    }

    /// The stack has a mapping of its own again, and that is the only one. Usage of `resource` is
    /// counted by it.
    async fn hand_back_by(&mut self, block: &str, resource: &str) -> Result<(), String> {
        let of_stack = "aws cloudformation describe-stack-resource --stack-name \"$stack\" \
             --logical-resource-id AggregatorStream --query StackResourceDetail.PhysicalResourceId --output text";
        let gone = self.shell.text(of_stack, &[]).await?;
        let by_hand = self.shell.text("echo \"$mapping\"", &[]).await?;
        expect(gone != by_hand, || {
            "the mapping is the stack's before it was given back".to_owned()
        })?;
        self.shell.block(block, &[]).await?;
        let recreated = self.shell.text(of_stack, &[]).await?;
        let all = self.shell.block("mapping", &[]).await?;
        let is_only = all.lines().count() == 1
            && all.starts_with(recreated.trim())
            && all.contains("Enabled");
        expect(is_only && recreated != gone, || {
            format!("the stack's mapping is {recreated}, and there are {all}")
        })?;
        self.take_and_delete(resource, 5).await?;
        self.until_counted_of(resource, 5).await?;
        self.say(&format!(
            "the mapping that was created manually was given back to the stack by {block}"
        ));
        Ok(())
    }
}
