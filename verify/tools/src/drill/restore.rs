//! The table is restored, and taken in by a new stack.

use weirgate::Table;

use super::{Drill, expect};
use crate::demo::connected;

/// The emulator's name for a table without a name in the new stack. After an import, the emulator
/// looks the table up by this name; CloudFormation keeps the imported name.
const RESTORED: &str = "weirgate-2-Table-7113D788A4B0E";

/// A resource whose records were discarded before the backup.
const REPLAYED: &str = "replayed";

impl<P: Fn(&str)> Drill<'_, P> {
    pub(super) async fn restore(&mut self) -> Result<(), String> {
        let old = self.table.name().to_owned();
        // Discarded before the backup, and replayed after the restore.
        let (object, taken) = (self.discard(REPLAYED, 3).await?, self.taken);
        let backup = self.shell.block("backup", &[]).await?;
        // The restored table does not know of these: it would give their numbers again without the
        // step that raises them.
        self.take(9).await?;
        self.until_counted(self.taken).await?;

        let look = "aws dynamodb describe-table --table-name \"$restored\" --output text \
             --query '[Table.TableStatus,Table.StreamSpecification.StreamEnabled]'";
        let named = ("restored", "look-here");
        let key = ("key", "arn:aws:kms:us-east-1:000000000000:key/1");
        self.shell.block("restore", &[named, key]).await?;
        let state = self.shell.text(look, &[named]).await?;
        expect(state.contains("ACTIVE") && !state.contains("True"), || {
            format!("the restored table is {state}")
        })?;

        let named = ("restored", RESTORED);
        self.shell
            .block("restore-backup", &[named, ("backup", backup.trim())])
            .await?;
        self.table = Table::new(connected(&self.endpoint).await, named.1);
        self.taken = taken;
        self.until_counted(taken).await?;
        let left = self.shell.block("raise", &[named]).await?;
        expect(left.trim() == "0", || {
            format!("not below their numbers are all buckets but {left}")
        })?;
        self.shell.block("import", &[named]).await?;
        self.shell.block("adopt", &[]).await?;
        let state = self.shell.text(look, &[named]).await?;
        expect(state.contains("True"), || {
            format!("the adopted table has no stream: {state}")
        })?;
        self.shell.block("protect", &[]).await?;
        let policy = "aws cloudformation get-stack-policy --stack-name weirgate-2 --query StackPolicyBody --output text";
        let policy = self.shell.text(policy, &[]).await?;
        expect(policy.contains("LogicalResourceId/Table"), || {
            format!("the new stack's policy is {policy}")
        })?;
        self.shell.block("adopt-release", &[]).await?;
        let state = self.shell.text(look, &[named]).await?;
        expect(state.contains("True"), || {
            format!("by a release the adopted table has no stream: {state}")
        })?;
        self.say("restored from a backup, and adopted by a new stack, which a release replaced");

        self.take(4).await?;
        self.take_and_delete("adopted", 4).await?;
        self.until_counted(self.taken).await?;
        self.until_counted_of("adopted", 4).await?;
        self.until_counted_of(REPLAYED, 0).await?;
        self.say("usage goes on after the restore, exactly");
        let write =
            "mkdir -p failures && rm -rf failures/* && printf '%s' \"$object\" > failures/old";
        let new = ("stack", "weirgate-2");
        self.shell.text(write, &[new, ("object", &object)]).await?;
        let said = self
            .shell
            .block("replay-old", &[new, named, ("old", &old)])
            .await?;
        expect(said.ends_with(" copies made, 0 already there\n"), || {
            said.clone()
        })?;
        self.until_counted_of(REPLAYED, 3).await?;
        self.say("what the old table had discarded is copied for the new one");
        Ok(())
    }

    /// A table of a failed deployment is found beside the stack's own, and deleted.
    pub(super) async fn leftovers(&self) -> Result<(), String> {
        let none = self.shell.block("leftovers", &[]).await?;
        expect(none.is_empty(), || {
            format!("the stack's own table is left over: {none}")
        })?;
        let create = "aws dynamodb create-table --table-name \"$stack-Table-LEFT\" --billing-mode PAY_PER_REQUEST \
             --attribute-definitions AttributeName=PK,AttributeType=S --key-schema AttributeName=PK,KeyType=HASH \
             --deletion-protection-enabled --query TableDescription.TableName --output text";
        let name = self.shell.text(create, &[]).await?;
        let found = self.shell.block("leftovers", &[]).await?;
        let names: Vec<_> = found
            .lines()
            .filter_map(|line| line.split('\t').next())
            .collect();
        expect(names == [name.trim()], || {
            format!("{name} is left over, and found are {found}")
        })?;
        self.shell
            .block("delete-leftover", &[("leftover", name.trim())])
            .await?;
        let none = self.shell.block("leftovers", &[]).await?;
        expect(none.is_empty(), || format!("after it was deleted: {none}"))?;
        self.say("a left-over table was told from the stack's own, and deleted");
        Ok(())
    }

    /// Both stacks are removed; the first one's table and bucket with it.
    pub(super) async fn removed(&self) -> Result<(), String> {
        let policy = "aws cloudformation describe-stacks --stack-name \"$stack\" --output text \
             --query 'Stacks[0].Outputs[?OutputKey==`AcquirePolicyArn`].OutputValue'";
        let policy = self.shell.text(policy, &[]).await?;
        let attach = "aws iam create-role --role-name caller --query Role.Arn --assume-role-policy-document \
             '{\"Version\":\"2012-10-17\",\"Statement\":[{\"Effect\":\"Allow\",\"Principal\":{\"Service\":\"ec2.amazonaws.com\"},\"Action\":\"sts:AssumeRole\"}]}'
             aws iam attach-role-policy --role-name caller --policy-arn \"$policy\"";
        self.shell
            .text(attach, &[("policy", policy.trim())])
            .await?;
        let attached = "aws iam list-attached-role-policies --role-name caller --query 'length(AttachedPolicies)'";
        expect(self.shell.text(attached, &[]).await?.trim() == "1", || {
            "no policy was attached".to_owned()
        })?;
        self.shell.block("detach", &[]).await?;
        expect(self.shell.text(attached, &[]).await?.trim() == "0", || {
            "the policy is still attached".to_owned()
        })?;
        // What the page's setup reads while the stack is there.
        let kept = self
            .shell
            .text("echo \"$table $failures $archive\"", &[])
            .await?;
        let names: Vec<_> = kept.split_whitespace().collect();
        let [table, failures, archive] = names[..] else {
            return Err(format!("the stack keeps {kept}"));
        };
        self.shell.block("remove", &[]).await?;
        // The other stack is there for setup, and these are kept.
        let of = [
            ("stack", "weirgate-2"),
            ("kept", table),
            ("bucket", failures),
            ("old", archive),
        ];
        let look = "aws dynamodb describe-table --table-name \"$kept\" --query Table.TableStatus --output text
             aws s3 ls \"s3://$bucket\" > objects && aws s3 ls \"s3://$old\" > objects && echo there";
        let there = self.shell.text(look, &of).await?;
        expect(there == "ACTIVE\nthere\n", || {
            format!("of a removed stack there is {there}")
        })?;
        self.shell
            .block_with(
                "remove-kept",
                "table=$kept failures=$bucket archive=$old",
                &of,
            )
            .await?;
        let gone = self.shell.text(look, &of).await;
        expect(gone.is_err(), || {
            format!("the table was deleted, and there is {gone:?}")
        })?;
        self.say("a stack was removed, its table and bucket kept, and then deleted");
        Ok(())
    }
}
