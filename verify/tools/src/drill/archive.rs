//! Expired audit events are not archived, and are archived from the failure bucket.

use serde_json::json;

use super::{Drill, expect, told};
use crate::demo::expired_audit_event;

impl<P: Fn(&str)> Drill<'_, P> {
    /// The emulator's time to live leaves no record, and it writes no failure objects. So the drill
    /// takes the record from an embedded table, and writes the object that Lambda would have written.
    pub(super) async fn archive(&self) -> Result<(), String> {
        let records = expired_audit_event().await?;
        let payload = json!({"Records": records}).to_string();
        let object = json!({"version": "1.0", "payload": payload}).to_string();
        let put = "bucket=$(aws lambda get-function-configuration --function-name \"$archiver\" --output text \
             --query Environment.Variables.ARCHIVE_BUCKET)
             [ \"$bucket\" = \"$archive\" ]
             aws lambda update-function-configuration --function-name \"$archiver\" --query FunctionName --output text \
             --environment 'Variables={ARCHIVE_BUCKET=missing}' >/dev/null
             expired=$(aws lambda list-event-source-mappings --function-name \"$archiver\" --output text \
             --query 'EventSourceMappings[0].UUID')
             printf %s \"$object\" > object.json
             aws s3 cp --quiet object.json \"s3://$failures/aws/lambda/$expired/shard/2026-11-20/object\"";
        self.shell.text(put, &[("object", &object)]).await?;
        let failed = self.shell.block("archive-again", &[]).await?;
        expect(failed.contains("itemIdentifier"), || {
            format!("without its bucket the archiver answers {failed}")
        })?;
        let why = self.shell.block("unarchived", &[]).await?;
        expect(why.contains("S3 refused it"), || {
            format!("the log has {why:?}")
        })?;

        // The emulator has no TLS, so the bucket's policy refuses every request, as it should.
        let mend = "aws s3api delete-bucket-policy --bucket \"$archive\"
             aws lambda update-function-configuration --function-name \"$archiver\" --query FunctionName \
             --output text --environment \"Variables={ARCHIVE_BUCKET=$archive}\"";
        self.shell.text(mend, &[]).await?;
        let list = "aws s3api list-objects-v2 --bucket \"$archive\" --query 'Contents[].[Key,LastModified]' --output json";
        let mut listed = vec![];
        for _ in 0..2 {
            let archived = self.shell.block("archive-again", &[]).await?;
            let answer = archived.replace(' ', "");
            expect(answer.trim() == r#"{"batchItemFailures":[]}"#, || {
                format!("the archiver answers {archived}")
            })?;
            listed.push(self.shell.text(list, &[]).await?);
        }
        let objects: Vec<[String; 2]> = serde_json::from_str(&listed[0]).map_err(told)?;
        let expected = "audit/prod/entity/user%3A1%40example.com/";
        expect(
            objects.len() == 1 && objects[0][0].starts_with(expected) && listed[0] == listed[1],
            || format!("the archive has {listed:?}"),
        )?;
        self.say(
            "an audit event that was given up was archived, and archived again without a change",
        );
        Ok(())
    }
}
