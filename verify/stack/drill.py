"""Runs every named block of docs/operations.md on a deployed stack, and sees that each does what the page says.

The procedures run in the order in which they stand here, on one stack: `make drill`. The drill itself does, with the AWS
SDK, what goes wrong, and what Lambda would do that the emulator does not.
"""

import json
import re
import shutil
import signal
import subprocess
import time
import unittest

from account import SAM, Account, hold
from built import deploy, lay_out
from fences import BASH, commands, page
from processes import PROGRAMS, ROOT, Failed, until

PAGE = page("operations")
BLOCKS = commands(PAGE)
# Version 1 of the CLI asks SQS at an address of its own, whatever the environment says.
AWS = 'aws() { command aws --endpoint-url "$AWS_ENDPOINT_URL" "$@"; }'
ENTITY = "openai"
KEY = "arn:aws:kms:us-east-1:000000000000:key/1"
# The emulator's name for a table without a name in the new stack, under which it looks for an imported one.
RESTORED = "weirgate-2-Table-7113D788A4B0E"
# A release's template, with the functions that are built.
RELEASED = [
    (r"(?m)^      FunctionName: .*-(.*)$", r"\g<0>\n      CodeUri: built/\1"),
    (r"(?m)^    CodeUri: \.\n", ""),
    (r"(?ms)^  (?:TableThrottled|AggregatorLag)Alarm:$.*?^$\n", ""),
]
# What a mapping is, beside its identity.
MAPPING = [
    "BatchSize", "MaximumBatchingWindowInSeconds", "ParallelizationFactor", "FilterCriteria", "FunctionResponseTypes",
    "BisectBatchOnFunctionError", "MaximumRetryAttempts", "MaximumRecordAgeInSeconds", "DestinationConfig", "StartingPosition",
]


def load_tests(_loader, _tests, _pattern):
    return unittest.TestSuite(map(Operations, (name for name in vars(Operations) if name.startswith("test_"))))


class Operations(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.ran, cls.set_up = set(), {}
        cls.account = account = Account("drill")
        sam = lay_out(account.folder, "true")
        account.say("sam deploy")
        deploy(account, sam, "weirgate")
        cls.dynamodb, cls.streams = account.client("dynamodb"), account.client("dynamodbstreams")
        cls.lambdas, cls.s3, cls.logs = account.client("lambda"), account.client("s3"), account.client("logs")
        cls.cloudformation, cls.cloudwatch = account.client("cloudformation"), account.client("cloudwatch")
        cls.outputs = account.outputs("weirgate")
        cls.table = cls.outputs["TableName"]
        path = ":".join(map(str, [PROGRAMS, sam.parent, ROOT / ".venv/aws/bin", SAM.parent, "/usr/local/bin:/usr/bin:/bin"]))
        cls.environment = {
            **account.credentials, "PATH": path, "HOME": str(account.folder), "AWS_PAGER": "", "SAM_CLI_TELEMETRY": "0", "USER": "drill",
            "WEIRGATE_NAMESPACE": "prod",
        }

    # Steps

    def ran_as(self, command, **variables):
        environment = {**self.environment, **variables}
        return subprocess.run(command, cwd=self.account.folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def bash(self, text, **variables):
        ran = self.ran_as([*BASH, f"{AWS}\n{text}"], **variables)
        if ran.returncode:
            raise Failed(ran.stdout + ran.stderr)
        return ran.stdout

    def setup(self, stack="weirgate", key=None, **_):
        """Returns what the page's `setup` sets. It runs again if it would find something else."""
        found = self.lambdas.list_event_source_mappings(FunctionName=f"{stack}-aggregator")["EventSourceMappings"]
        what = stack, key, *(mapping["UUID"] for mapping in found)
        if what not in self.set_up:
            names = " ".join({*re.findall(r"(?:^|\s)(\w+)=", BLOCKS["setup"], re.M)})
            variables = {"stack": stack} if key is None else {"stack": stack, "key": key}
            self.set_up[what] = self.bash(f"{BLOCKS['setup']}\ndeclare -p {names}; declare -f output item", **variables)
            self.ran.add("setup")
        return self.set_up[what]

    def block(self, name, before="", **variables):
        """Runs a block of the page as an operator does, after `setup`. Returns its output."""
        self.ran.add(name)
        try:
            return self.bash(f"{self.setup(**variables)}\n{before}\n{BLOCKS[name]}", **variables)
        except Failed as error:
            raise Failed(f"the block {name}: {error}") from None

    def refused(self, name, saying, **variables):
        with self.assertRaises(Failed) as refused:
            self.block(name, **variables)
        self.assertIn(saying, str(refused.exception))

    def until_said(self, name, *texts, **variables):
        return until(lambda: (said := self.block(name, **variables)) and all(text in said for text in texts) and said,
                     f"{name} says {texts}")

    def weirgate(self, *arguments):
        return self.ran_as(["weirgate", *arguments], WEIRGATE_TABLE=self.table)

    def succeeds(self, *arguments):
        ran = self.weirgate(*arguments)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        return ran.stdout

    def decided(self, resource, take):
        """Returns the decision on an acquire."""
        said = self.weirgate("acquire", ENTITY, resource, take, "--json").stdout
        return json.loads(said)["decision"]

    def configure(self, resource, limit="rpm=100000/minute"):
        self.succeeds("limits", "set", "--resource", resource, limit)

    def take(self, resource, times):
        for _ in range(times):
            self.assertEqual(self.decided(resource, "rpm=1"), "granted")

    def take_and_delete(self, resource, times):
        """Takes from a new bucket and deletes it, so that only the stream has what was used."""
        self.configure(resource)
        self.take(resource, times)
        self.delete(resource)

    def item(self, resource, shard=0, entity=ENTITY):
        return {"PK": {"S": f"prod/BUCKET#{entity}#{resource}#{shard}"}, "SK": {"S": "#STATE"}}

    def delete(self, resource, shard=0):
        self.dynamodb.delete_item(TableName=self.table, Key=self.item(resource, shard))

    def update(self, key, expression, values, names=None, condition="attribute_exists(PK)"):
        self.dynamodb.update_item(
            TableName=self.table, Key=key, UpdateExpression=expression, ConditionExpression=condition,
            ExpressionAttributeValues=values, **({"ExpressionAttributeNames": names} if names else {}))

    def acquires(self, resource, interval):
        ran = self.weirgate("usage", "--entity", ENTITY, "--resource", resource, "--from", "2d", "--by", interval, "--total", "--json")
        return json.loads(ran.stdout)["usage"]["acquires"] if ran.returncode == 0 else None

    def until_counted(self, resource, expected):
        """Waits until hours and days count the acquires of a resource, and never more."""
        def is_counted():
            counted = [self.acquires(resource, interval) for interval in ("hour", "day")]
            self.assertFalse(any(count and count > expected for count in counted), f"{counted} of {expected}")
            return counted == [expected, expected]
        until(is_counted, f"{expected} acquires of {resource} are counted")

    def mapping(self):
        """Returns the aggregator's only mapping."""
        mappings = self.lambdas.list_event_source_mappings(FunctionName=self.outputs["AggregatorName"])["EventSourceMappings"]
        self.assertEqual(len(mappings), 1)
        return mappings[0]

    def unmap(self):
        self.lambdas.delete_event_source_mapping(UUID=self.mapping()["UUID"])

    def discarded(self, resource, times):
        """Uses a bucket while no record reaches the function. Returns the object that Lambda would write of them."""
        self.unmap()
        self.take_and_delete(resource, times)
        # The table may be one that was adopted.
        arn = self.dynamodb.describe_table(TableName=self.table)["Table"]["LatestStreamArn"]
        shard = self.streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"][-1]["ShardId"]
        iterator = self.streams.get_shard_iterator(StreamArn=arn, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
        records = self.streams.get_records(ShardIterator=iterator["ShardIterator"])["Records"]
        records = [record for record in records if record["dynamodb"]["Keys"] == self.item(resource)]
        self.assertEqual(len(records), times + 1, "with the deletion")
        for record in records:
            record.update(eventSourceARN=arn, eventSource="aws:dynamodb")
        payload = json.dumps({"Records": records}, default=lambda time: time.timestamp())
        self.lambdas.create_event_source_mapping(
            FunctionName=self.outputs["AggregatorName"], EventSourceArn=arn, StartingPosition="LATEST",
            FunctionResponseTypes=["ReportBatchItemFailures"])
        return json.dumps({
            "requestContext": {"condition": "RetryAttemptsExhausted", "approximateInvokeCount": 101},
            "version": "1.0",
            "DDBStreamBatchInfo": {"streamArn": arn, "batchSize": len(records)},
            "payload": payload,
        })

    def metric(self, namespace, name, value, dimension, of):
        # A minute ago, as a period ends before it can be asked for.
        data = {"MetricName": name, "Value": value, "Timestamp": time.time() - 60, "Dimensions": [{"Name": dimension, "Value": of}]}
        self.cloudwatch.put_metric_data(Namespace=namespace, MetricData=[data])

    def release(self):
        """What the page reads of a release: its template, and its bucket."""
        template = (self.account.folder / "template.yaml").read_text()
        for pattern, by in RELEASED:
            template = re.sub(pattern, by, template)
        (self.account.folder / "template-arm64.yaml").write_text(template)
        self.s3.create_bucket(Bucket="my-releases")

    def hold(self, resource):
        """Returns the lease of two slots of two, whose holder was killed."""
        return hold({**self.environment, "WEIRGATE_TABLE": self.table}, ENTITY, resource, "1h")[0]

    def leases(self, resource):
        return [lease["id"] for lease in json.loads(self.succeeds("leases", "list", ENTITY, resource, "--json"))["items"]]

    def expire(self, resource, lease):
        """A lease has ended, and its shard been due, since 1970."""
        self.update(self.item(resource), "SET h.#lease.e = :past, due = :past ADD v :one", {":past": {"N": "1"}, ":one": {"N": "1"}},
                    {"#lease": lease})

    def damage(self, resource, attribute):
        self.update(self.item(resource), f"SET {attribute} = :many ADD v :one", {":many": {"S": "many"}, ":one": {"N": "1"}})

    def reconcile(self):
        """Runs the reconciler manually. Returns its summary."""
        # A terminal goes on after the exit code 1, which is of an unreadable item.
        said = self.block("reconcile", "set +e")
        self.assertIn(" due\n200\tNone\n", said)
        return json.loads(said.split("200\tNone\n")[1])

    # Procedures, each from the state in which the one before leaves the stack

    def test_usage_is_exact_before_the_stream_brings_it(self):
        type(self).declared = {key: self.mapping().get(key) for key in MAPPING}
        self.configure("gpt-4")
        self.take("gpt-4", 20)
        self.until_counted("gpt-4", 20)

    def test_discarded_records_are_replayed(self):
        discarded = self.discarded("discarded", 7)
        self.s3.put_object(Bucket=self.outputs["FailureBucketName"], Key="aws/lambda/drill/first", Body=discarded)
        self.take_and_delete("later", 5)
        self.until_counted("later", 5)
        self.until_counted("discarded", 0)
        # What the function logs while DynamoDB is unavailable.
        group = {"logGroupName": f"/aws/lambda/{self.outputs['AggregatorName']}", "logStreamName": "drill"}
        self.logs.create_log_stream(**group)
        self.logs.put_log_events(**group, logEvents=[{"timestamp": round(time.time() * 1000), "message": "a write failed: throttled"}])
        self.assertIn("throttled", self.block("why"))
        said = self.block("replay")
        self.assertIn(" copies planned; nothing was written\n", said)
        self.assertRegex(said, " made, 0 already there\n$")
        self.until_counted("discarded", 7)
        self.assertIn(" records: 0 copies made, ", self.block("replay"))
        self.until_counted("discarded", 7)

    def test_a_deleted_mapping_is_created_again(self):
        self.unmap()
        self.take_and_delete("unmapped", 6)
        self.block("again")
        self.assertEqual({key: self.mapping().get(key) for key in MAPPING}, self.declared, "it is the template's")
        # The emulator does not keep it, and `StreamUnreadAlarm` needs it.
        self.assertIn('--metrics-config \'{"Metrics":["EventCount"]}\'', BLOCKS["again"])
        self.until_counted("unmapped", 6)
        self.until_counted("discarded", 7)

    def test_a_disabled_mapping_is_enabled(self):
        self.lambdas.update_event_source_mapping(UUID=self.mapping()["UUID"], Enabled=False)
        self.until_said("mapping", "\tDisabled\t")
        self.refused("doctor", "it is Disabled")
        self.take_and_delete("disabled", 4)
        self.block("enable")
        self.until_counted("disabled", 4)
        self.until_said("mapping", "\tEnabled\t")

    def test_the_doctor_finds_a_stack_that_works(self):
        # The alarms on absence ring while a stack is new, so a problem is no failure.
        try:
            said = self.block("doctor")
        except Failed as problem:
            said = str(problem)
        for found in ("it reads the stream", "-aggregator is active, version", "-reconciler is active, version",
                      "-reconciler is enabled, rate(", ", none rings", "allowed: read, list, acquire"):
            self.assertIn(found, said)

    def test_a_manual_mapping_is_handed_back_to_the_stack(self):
        self.release()
        for block in ("hand-back", "hand-back-release"):
            with self.subTest(block):
                self.unmap()
                self.block("again")
                def of_stack():
                    found = self.cloudformation.describe_stack_resource(StackName="weirgate", LogicalResourceId="AggregatorStream")
                    return found["StackResourceDetail"]["PhysicalResourceId"]
                self.assertNotEqual(self.mapping()["UUID"], before := of_stack())
                tags = self.tags_of("weirgate")
                self.block(block)
                self.assertEqual(self.tags_of("weirgate"), tags)
                self.assertIn({"Key": "application", "Value": "weirgate"}, tags)
                self.assertEqual(self.mapping()["UUID"], of_stack(), "it is the stack's, and the only one")
                self.assertNotEqual(of_stack(), before)
                self.take_and_delete(block, 5)
                self.until_counted(block, 5)

    def tags_of(self, stack):
        return sorted(self.cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["Tags"], key=lambda tag: tag["Key"])

    def test_what_throttles_the_table_is_found_and_a_maximum_is_removed(self):
        self.metric("AWS/DynamoDB", "WriteAccountLimitThrottleEvents", 7, "TableName", self.table)
        self.assertEqual(self.block("throttled"), "WriteAccountLimit\ttable\t7.0\n")
        self.dynamodb.update_table(TableName=self.table, OnDemandThroughput={"MaxWriteRequestUnits": 9000})
        self.block("uncap")
        limits = self.dynamodb.describe_table(TableName=self.table)["Table"].get("OnDemandThroughput", {})
        self.assertIn(limits.get("MaxWriteRequestUnits"), (None, -1))

    def test_lag_and_concurrency_are_shown(self):
        self.metric("AWS/Lambda", "IteratorAge", 61234, "FunctionName", self.outputs["AggregatorName"])
        self.assertEqual(self.block("lag"), "61234.0\n")
        self.assertEqual(len(self.block("concurrency").split()), 2)

    def test_a_damaged_snapshot_is_named_and_completed(self):
        self.configure("wide")
        self.succeeds("split", ENTITY, "wide", "--shards", "2")
        self.take("wide", 20)
        self.succeeds("merge", ENTITY, "wide", "--shards", "1")
        snapshot = time.strftime("#USAGE#wide#daily#%Y-%m-%dT00:00:00Z", time.gmtime())
        key = {"PK": {"S": f"prod/ENTITY#{ENTITY}"}, "SK": {"S": snapshot}}

        def is_spoiled():
            try:
                self.update(key, "SET q1 = :far", {":far": {"S": "far"}}, condition="attribute_exists(q1)")
                return True
            except self.dynamodb.exceptions.ConditionalCheckFailedException:
                return False
        until(is_spoiled, "the merged shard is copied")
        self.succeeds("split", ENTITY, "wide", "--shards", "2")
        missing = self.block("missing", usage="#USAGE#wide#hourly#")
        self.assertRegex(missing, r" q1\n$")
        self.assertNotIn("q0", missing)
        self.succeeds("merge", ENTITY, "wide", "--shards", "1")
        self.until_said("refused", "attribute q1", "interim copy to", "#USAGE#wide#daily#", "of shard 1 at", "rpm")
        self.assertIsNone(self.acquires("wide", "day"), "an unreadable day counts nothing")
        self.block("strip", snapshot=snapshot, attributes="q1 #1 rpm#1")
        self.until_counted("wide", 20)
        self.succeeds("split", ENTITY, "wide", "--shards", "2")
        self.take("wide", 40)
        self.succeeds("merge", ENTITY, "wide", "--shards", "1")
        self.delete("wide", 0)
        self.delete("wide", 1)
        self.until_counted("wide", 60)
        until(lambda: not self.block("missing", usage="#USAGE#wide#"), "no final copy is missing")

    def test_dead_letters_are_read_and_purged(self):
        self.refused("letters", "AccessDenied")
        # The queue refuses requests without TLS, which the emulator has not: one that says so removes that policy.
        sqs = self.account.client("sqs")
        sqs.meta.events.register("before-sign.sqs", lambda request, **_: request.headers.add_header("X-Forwarded-Proto", "https"))
        queue = self.outputs["DeadLetterQueueUrl"]
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": ""})
        sqs.send_message(QueueUrl=queue, MessageBody="a run failed")
        self.assertIn("a run failed", self.block("letters"))

        def depth():
            found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
            return [int(found[name]) for name in ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")]
        self.assertEqual(sum(depth()), 1)
        self.block("purge")
        self.assertEqual(sum(depth()), 0)

    def test_a_disabled_schedule_is_enabled(self):
        scheduler = self.account.client("scheduler")
        schedule = scheduler.get_schedule(Name="weirgate-reconciler")
        kept = {key: schedule[key] for key in ("Name", "GroupName", "ScheduleExpression", "FlexibleTimeWindow", "Target")}
        scheduler.update_schedule(**kept, State="DISABLED")
        self.assertEqual(self.block("schedule"), "DISABLED\n")
        lease = self.hold("crashed")
        self.expire("crashed", lease)
        self.assertEqual(self.leases("crashed"), [lease])
        # As long as no schedule interferes.
        summary = self.reconcile()
        self.assertEqual(summary["leases_restored"], 1, summary)
        self.assertEqual(self.leases("crashed"), [])
        self.block("enable-schedule")
        self.assertEqual(self.block("schedule"), "ENABLED\n")
        again = scheduler.get_schedule(Name="weirgate-reconciler")
        self.assertEqual({key: again[key] for key in kept}, kept)

    def test_a_lease_is_ended(self):
        lease = self.hold("jobs")
        self.assertIn(lease, self.block("leases", resource="jobs"))
        self.block("end-lease", resource="jobs", lease=lease)
        self.assertNotIn(lease, self.block("leases", resource="jobs"))
        self.hold("jobs")

    def test_an_unreadable_bucket_is_named_and_corrected(self):
        lease = self.hold("broken")
        self.damage("broken", "b_slots_cp")
        self.assertNotEqual(self.weirgate("acquire", ENTITY, "broken", "slots=1", "--limit", "slots=2").returncode, 0)
        self.expire("broken", lease)
        self.reconcile()
        log = self.until_said("undecodable", "undecodable bucket", "undecodable record")
        for named in (f"{ENTITY}#broken", "b_slots_cp", "many"):
            self.assertIn(named, log)
        self.block("correct", pk=self.item("broken")["PK"]["S"], attribute="b_slots_cp", number="2000")
        self.assertEqual(self.reconcile()["undecodable"], 0)
        self.assertEqual(self.leases("broken"), [])

    def test_a_wrong_deployment_of_limits_is_found_and_undone(self):
        def deploy(name, author, per_minute):
            file = self.account.folder / name
            file.write_text(f"weirgate: 1\nresources:\n  orders:\n    limits:\n      rpm: {{per_minute: {per_minute}}}\n")
            self.succeeds("--principal", author, "limits", "plan", str(file), "--out", "limits.plan")
            self.succeeds("--principal", author, "limits", "apply", "limits.plan")
        deploy("good.yaml", "deploy-480", 600)
        self.take("orders", 20)
        deploy("limits.yaml", "deploy-481", 6)
        self.assertIn("denied", [self.decided("orders", "rpm=1") for _ in range(8)])
        explained = self.block("explain", resource="orders")
        self.assertRegex(explained, r"deploy-481 +resource orders limit rpm +600/minute +6/minute")
        self.assertIn("--resource orders", explained)
        self.assertIn("orders", self.block("compare", good="good.yaml"))
        self.block("undo", good="good.yaml")
        self.block("refill", resource="orders")
        self.take("orders", 20)

    def test_limits_are_changed_and_callers_stopped(self):
        taken, shown = self.acquires("gpt-4", "day"), self.block("limits")
        self.assertIn("100000/minute", shown)
        self.assertIn("drill", shown)
        self.assertIn("7/minute", self.block("set-limit", limit="rpm=7/minute,burst=5"))
        self.assertEqual(self.decided("gpt-4", "rpm=6"), "never_fits")
        # The undo: what was before has no burst.
        self.refused("set-limit", "to drop burst=5 of limit rpm")
        self.assertRegex(self.block("set-limit", yes="--yes"), r"7/minute,burst=5 +600/minute")
        self.block("stop")
        self.assertEqual(self.decided("gpt-4", "rpm=1"), "disabled")
        self.block("start")
        self.take("gpt-4", 1)
        self.block("balance")
        self.assertEqual(self.decided("gpt-4", "rpm=100"), "denied")
        self.block("balance", edit="reset")
        self.assertEqual(self.decided("gpt-4", "rpm=500"), "granted")
        self.until_counted("gpt-4", taken + 2)

    def test_slots_are_lowered_while_held(self):
        self.configure("seats", "slots=2")
        lease = json.loads(self.succeeds("acquire", ENTITY, "seats", "slots=2", "--lease", "1h", "--json"))["lease_id"]
        self.refused("balance", "error: ", resource="seats", limits="slots")
        level = {"level": "--resource seats", "audit": "--resource seats"}
        self.block("set-limit", limit="slots=1", **level)
        self.assertIn("slots=1", self.block("limits", **level))
        self.assertEqual(self.decided("seats", "slots=1"), "denied")
        self.succeeds("leases", "release", ENTITY, "seats", lease, "--yes")
        decided = [self.decided("seats", "slots=1"), self.decided("seats", "slots=1")]
        self.assertEqual(decided, ["granted", "denied"])
        self.block("set-limit", limit="slots=2", **level)
        self.assertEqual(self.decided("seats", "slots=1"), "granted")

    def test_a_table_that_is_left_over_is_deleted(self):
        self.assertEqual(self.block("leftovers"), "")
        self.dynamodb.create_table(
            TableName="weirgate-Table-LEFT", BillingMode="PAY_PER_REQUEST", DeletionProtectionEnabled=True,
            AttributeDefinitions=[{"AttributeName": "PK", "AttributeType": "S"}], KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}])
        self.assertEqual([line.split("\t")[0] for line in self.block("leftovers").splitlines()], ["weirgate-Table-LEFT"])
        self.block("delete-leftover", leftover="weirgate-Table-LEFT")
        self.assertEqual(self.block("leftovers"), "")

    def test_a_table_is_restored_and_adopted_by_a_new_stack(self):
        self.release()
        old, lost, taken = self.table, self.discarded("replayed", 3), self.acquires("gpt-4", "day")
        backup = self.block("backup").strip()
        # The restored table has not got these, so without `raise` it would use their numbers again.
        self.take("gpt-4", 9)
        self.until_counted("gpt-4", taken + 9)
        self.block("restore", restored="look-here", key=KEY)
        self.assertEqual(self.stream_of("look-here"), ("ACTIVE", None))
        self.block("restore-backup", restored=RESTORED, backup=backup, key="")
        type(self).table = RESTORED
        self.until_counted("gpt-4", taken)
        self.assertEqual(self.block("raise", restored=RESTORED), "0\n")
        # The key is in the imported table, or the deployment that gives it once more is refused.
        printed = 'aws() { printf "%s\\n" "$@"; }'
        with_key, without = (self.block("import", printed, restored=RESTORED, key=key) for key in (KEY, ""))
        self.assertIn((ROOT / "scripts/restored-table.yaml").read_text().rstrip(), without)
        self.assertEqual(with_key.replace(f"\n      SSESpecification: {{SSEEnabled: true, SSEType: KMS, KMSMasterKeyId: '{KEY}'}}", ""), without)
        self.assertNotEqual(with_key, without)
        self.block("import", restored=RESTORED)
        self.block("adopt")
        self.assertEqual(self.stream_of(RESTORED), ("ACTIVE", True))
        self.block("protect")
        self.assertIn("LogicalResourceId/Table", self.cloudformation.get_stack_policy(StackName="weirgate-2")["StackPolicyBody"])
        self.block("adopt-release")
        self.assertEqual(self.stream_of(RESTORED), ("ACTIVE", True))
        self.take("gpt-4", 4)
        self.take_and_delete("adopted", 4)
        self.until_counted("gpt-4", taken + 4)
        self.until_counted("adopted", 4)
        self.until_counted("replayed", 0)
        shutil.rmtree(failures := self.account.folder / "failures", ignore_errors=True)
        failures.mkdir()
        (failures / "old").write_text(lost)
        self.assertRegex(self.block("replay-old", stack="weirgate-2", restored=RESTORED, old=old), " copies made, 0 already there\n$")
        self.until_counted("replayed", 3)

    def stream_of(self, table):
        found = self.dynamodb.describe_table(TableName=table)["Table"]
        return found["TableStatus"], found.get("StreamSpecification", {}).get("StreamEnabled") or None

    def test_a_stack_is_removed_and_then_what_it_keeps(self):
        iam = self.account.client("iam")
        trust = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
        iam.create_role(RoleName="caller", AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}))
        iam.attach_role_policy(RoleName="caller", PolicyArn=self.outputs["AcquirePolicyArn"])
        self.block("detach")
        self.assertEqual(iam.list_attached_role_policies(RoleName="caller")["AttachedPolicies"], [])
        self.block("remove")
        table, failures = self.outputs["TableName"], self.outputs["FailureBucketName"]
        self.assertEqual(self.stream_of(table)[0], "ACTIVE")
        self.s3.head_bucket(Bucket=failures)
        # The other stack is there for `setup`; an operator's shell still has the names.
        self.block("remove-kept", f"table={table} failures={failures}", stack="weirgate-2")
        self.assertNotIn(table, self.dynamodb.list_tables()["TableNames"])
        self.assertNotIn(failures, [bucket["Name"] for bucket in self.s3.list_buckets()["Buckets"]])

    def test_every_block_of_the_page_has_a_name_and_was_run(self):
        self.assertEqual(PAGE.count("\n```sh"), len(BLOCKS), "each has a name of its own")
        self.assertEqual(set(BLOCKS) - self.ran, set())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main(verbosity=2, failfast=True)
