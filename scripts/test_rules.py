"""Shows that every rule of scripts/rules/template.guard can fail: breaks the template for each promise of each, and sees that rule fail.

Two forms of the template are broken, the one with everything and the one by default. A promise is tried if some break is noticed
because of it alone: each line of a rule with a message is left out, and then not all of the rule's breaks may be noticed.

Usage: test_rules.py template.yaml
"""

import copy
import re
import sys

from check_rules import failures, rules
from variants import variants

GONE = object()
FENCE = "${aws:PrincipalTag/weirgate-namespace}"
KEYS, NULL = "ForAllValues:StringLike", "Null"
TRUST = "Properties.AssumeRolePolicyDocument.Statement.0"
OF_AGGREGATOR = "Resources.AggregatorRole.Properties.Policies.0.PolicyDocument.Statement"
OF_RECONCILER = "Resources.ReconcilerRole.Properties.Policies.0.PolicyDocument.Statement"
OF_ACQUIRE = "Resources.AcquirePolicy.Properties.PolicyDocument.Statement"
OF_ADMIN = "Resources.AdminPolicy.Properties.PolicyDocument.Statement"
OF_ERASE = "Resources.ErasePolicy.Properties.PolicyDocument.Statement"
OF_PURGE = "Resources.PurgePolicy.Properties.PolicyDocument.Statement"
OF_READ_FENCED = "Resources.ReadPolicyFenced.Properties.PolicyDocument.Statement"
OF_ADMIN_FENCED = "Resources.AdminPolicyFenced.Properties.PolicyDocument.Statement"
OF_BUCKET = "Resources.FailureBucketPolicy.Properties.PolicyDocument.Statement"
OF_QUEUE = "Resources.DeadLettersPolicy.Properties.PolicyDocument.Statement"
STREAM = "Resources.Aggregator.Properties.Events.Stream.Properties"
SCHEDULE = "Resources.Reconciler.Properties.Events.Schedule.Properties"
TABLE, BUCKET, QUEUE = "Resources.Table", "Resources.FailureBucket", "Resources.DeadLetters"
OF_TOPIC = "Resources.AlarmTopicPolicy.Properties.PolicyDocument.Statement"

# (rule, where, what stands there instead), one for each thing the rule asks for.
BREAKS = [
    ("table_outlives_the_stack", f"{TABLE}.DeletionPolicy", "Delete"),
    ("table_outlives_the_stack", f"{TABLE}.UpdateReplacePolicy", GONE),
    ("table_is_protected_unless_asked", f"{TABLE}.Properties.DeletionProtectionEnabled", GONE),
    ("table_is_protected_unless_asked", "Parameters.DeletionProtection.Default", "false"),
    ("table_can_be_restored", f"{TABLE}.Properties.PointInTimeRecoverySpecification", GONE),
    ("table_can_be_restored", f"{TABLE}.Properties.PointInTimeRecoverySpecification.PointInTimeRecoveryEnabled", False),
    ("table_can_be_restored", "Parameters.RecoveryPeriodInDays.Default", 1),
    ("stream_has_both_images", f"{TABLE}.Properties.StreamSpecification.StreamViewType", "NEW_IMAGE"),
    ("indexes_hold_keys_only", f"{TABLE}.Properties.GlobalSecondaryIndexes.2.Projection.ProjectionType", "ALL"),
    ("indexes_hold_keys_only", f"{TABLE}.Properties.LocalSecondaryIndexes", [{"IndexName": "LSI1"}]),
    ("table_scales_and_can_be_replaced", f"{TABLE}.Properties.BillingMode", "PROVISIONED"),
    ("table_scales_and_can_be_replaced", f"{TABLE}.Properties.TableName", "weirgate"),
    ("buckets_outlive_the_stack", f"{BUCKET}.DeletionPolicy", GONE),
    ("buckets_outlive_the_stack", f"{BUCKET}.DeletionPolicy", "Retain"),
    ("buckets_outlive_the_stack", f"{BUCKET}.UpdateReplacePolicy", "Delete"),
    ("buckets_outlive_the_stack", "Resources.FailureBucketPolicy.DeletionPolicy", GONE),
    ("buckets_outlive_the_stack", "Resources.FailureBucketPolicy.UpdateReplacePolicy", GONE),
    ("buckets_are_private", f"{BUCKET}.Properties.PublicAccessBlockConfiguration", GONE),
    ("buckets_are_private", f"{BUCKET}.Properties.PublicAccessBlockConfiguration.BlockPublicAcls", False),
    ("buckets_are_private", f"{BUCKET}.Properties.PublicAccessBlockConfiguration.BlockPublicPolicy", False),
    ("buckets_are_private", f"{BUCKET}.Properties.PublicAccessBlockConfiguration.IgnorePublicAcls", False),
    ("buckets_are_private", f"{BUCKET}.Properties.PublicAccessBlockConfiguration.RestrictPublicBuckets", False),
    ("buckets_are_private", f"{BUCKET}.Properties.OwnershipControls.Rules.0.ObjectOwnership", "ObjectWriter"),
    ("buckets_are_encrypted_and_forget", f"{BUCKET}.Properties.BucketEncryption", GONE),
    ("buckets_are_encrypted_and_forget", f"{BUCKET}.Properties.LifecycleConfiguration", GONE),
    ("queues_are_encrypted_and_patient", f"{QUEUE}.Properties.MessageRetentionPeriod", 345600),
    ("logs_end", "Resources.ReconcilerLogs.Properties.RetentionInDays", GONE),
    ("buckets_take_tls_only", "Resources.FailureBucketPolicy", GONE),
    ("buckets_take_tls_only", "Resources.Another", {"Type": "AWS::S3::Bucket"}),
    ("buckets_take_tls_only", f"{OF_BUCKET}.0.Action", "s3:PutObject"),
    ("buckets_take_tls_only", f"{OF_BUCKET}.0.Resource", {"Fn::GetAtt": ["FailureBucket", "Arn"]}),
    ("buckets_take_tls_only", f"{OF_BUCKET}.0.Resource", {"Fn::Sub": "${FailureBucket.Arn}/*"}),
    ("buckets_take_tls_only", f"{OF_BUCKET}.0.Resource.1", {"Fn::Sub": "${FailureBucket.Arn}/some/*"}),
    ("buckets_take_tls_only", f"{OF_BUCKET}.0.Condition", GONE),
    ("buckets_take_tls_only", f"{OF_BUCKET}.0.Condition.StringEquals", {"aws:PrincipalAccount": "1"}),
    ("buckets_take_tls_only", f"{OF_BUCKET}.0.Condition.Bool.aws:SecureTransport", "true"),
    ("buckets_take_tls_only", OF_BUCKET, []),
    ("buckets_take_tls_only", f"{OF_BUCKET}.0.Effect", "Allow"),
    ("buckets_take_tls_only", f"{OF_BUCKET}.0.Principal", {"AWS": "1"}),
    ("queues_take_tls_only", "Resources.DeadLettersPolicy", GONE),
    ("queues_take_tls_only", "Resources.Another", {"Type": "AWS::SQS::Queue"}),
    ("queues_take_tls_only", f"{OF_QUEUE}.0.Action", "sqs:SendMessage"),
    ("queues_take_tls_only", f"{OF_QUEUE}.0.Resource", {"Fn::GetAtt": ["FailureBucket", "Arn"]}),
    ("queues_take_tls_only", f"{OF_QUEUE}.0.Condition", GONE),
    ("queues_take_tls_only", f"{OF_QUEUE}.0.Condition.StringEquals", {"aws:PrincipalAccount": "1"}),
    ("queues_take_tls_only", f"{OF_QUEUE}.0.Condition.Bool.aws:SecureTransport", "true"),
    ("queues_take_tls_only", OF_QUEUE, []),
    ("queues_take_tls_only", f"{OF_QUEUE}.0.Effect", "Allow"),
    ("queues_take_tls_only", f"{OF_QUEUE}.0.Principal", {"AWS": "1"}),
    ("nothing_allows_a_wildcard_action", f"{OF_AGGREGATOR}.0.Action", "dynamodb:*"),
    ("nothing_allows_a_wildcard_action", f"{OF_AGGREGATOR}.0.Action.1", "dynamodb:Update*"),
    ("nothing_allows_a_wildcard_action", f"{OF_AGGREGATOR}.0.NotAction", "dynamodb:DeleteTable"),
    ("nothing_allows_a_wildcard_action", f"{OF_ACQUIRE}.0.Action", "dynamodb:Update?tem"),
    ("nothing_allows_a_wildcard_action", f"{OF_ACQUIRE}.0.NotAction", "dynamodb:DeleteTable"),
    ("nothing_allows_a_wildcard_resource", f"{OF_AGGREGATOR}.1.Resource", "*"),
    ("nothing_allows_a_wildcard_resource", f"{OF_AGGREGATOR}.1.Resource", {"Fn::Sub": "${Table.Arn}/stream/*"}),
    ("nothing_allows_a_wildcard_resource", f"{OF_AGGREGATOR}.1.Resource", [{"Ref": "Table"}, "arn:aws:s3:::some"]),
    ("nothing_allows_a_wildcard_resource", f"{OF_AGGREGATOR}.1.NotResource", "*"),
    ("nothing_allows_a_wildcard_resource", f"{OF_ADMIN}.1.Resource", [{"Fn::Sub": "${Table.Arn}/index/*"}]),
    ("nothing_allows_a_wildcard_resource", f"{OF_ADMIN}.1.Resource", {"Fn::Sub": "${FailureBucket.Arn}/*"}),
    ("nothing_allows_a_wildcard_resource", f"{OF_ADMIN}.1.NotResource", "*"),
    ("roles_and_policies_take_the_path_and_roles_the_boundary", "Resources.ScheduleRole.Properties.Path", GONE),
    ("roles_and_policies_take_the_path_and_roles_the_boundary", "Resources.ReadPolicy.Properties.Path", "/"),
    ("alarms_say_when_they_end", "Resources.DeadLettersAlarm.Properties.AlarmActions", GONE),
    ("alarms_say_when_they_end", "Resources.DeadLettersAlarm.Properties.OKActions", GONE),
    ("roles_are_their_own", "Resources.AggregatorRole.Properties.ManagedPolicyArns", ["arn:aws:iam::aws:policy/Any"]),
    ("roles_are_their_own", "Resources.AggregatorRole.Properties.RoleName", "mine"),
    ("roles_are_their_own", "Resources.ReadPolicy.Properties.ManagedPolicyName", "mine"),
    ("roles_are_their_own", "Resources.ReadPolicy.Properties.Description", "May be read"),
    ("roles_are_their_own", f"Resources.AggregatorRole.{TRUST}.Principal.Service", "ec2.amazonaws.com"),
    ("roles_are_their_own", f"Resources.AggregatorRole.{TRUST}.Action", "sts:*"),
    ("schedulers_of_other_accounts_are_kept_out", f"Resources.ScheduleRole.{TRUST}.Condition", GONE),
    ("fenced_policies_fence_every_statement", f"{OF_READ_FENCED}.0.Condition", GONE),
    ("fenced_policies_fence_every_statement", f"{OF_READ_FENCED}.1.Condition.{KEYS}", GONE),
    ("fenced_policies_fence_every_statement", f"{OF_READ_FENCED}.1.Condition.{KEYS}.dynamodb:LeadingKeys", "*"),
    ("fenced_policies_fence_every_statement", f"{OF_READ_FENCED}.1.Condition.{KEYS}.dynamodb:LeadingKeys", f"{FENCE}*"),
    ("fenced_policies_fence_every_statement", f"{OF_ADMIN_FENCED}.2.Condition.{KEYS}.dynamodb:LeadingKeys", "*/ENTITY#*"),
    ("fenced_policies_fence_every_statement", f"{OF_ADMIN_FENCED}.3.Condition.{KEYS}.dynamodb:LeadingKeys", "*"),
    ("fenced_policies_fence_every_statement", f"{OF_ADMIN_FENCED}.3.Action", ["dynamodb:BatchGetItem", "dynamodb:UpdateItem"]),
    ("fenced_policies_fence_every_statement", f"{OF_READ_FENCED}.0.Condition.{NULL}.dynamodb:LeadingKeys", GONE),
    ("fenced_policies_fence_every_statement", f"{OF_READ_FENCED}.0.Condition.{NULL}.aws:PrincipalTag/weirgate-namespace", "true"),
    ("fenced_policies_fence_every_statement", f"{OF_READ_FENCED}.1", {"Effect": "Allow", "Action": ["kms:Decrypt", "dynamodb:Scan"]}),
    ("callers_ask_no_index_but_these", f"{OF_ADMIN}.1.Resource.0", {"Fn::Sub": "${Table.Arn}/index/DueIndex"}),
    ("leading_keys_are_never_absent", f"{OF_ACQUIRE}.0.Condition.{NULL}", GONE),
    ("deletes_are_part_of_a_transaction", f"{OF_ADMIN}.2.Condition.ForAnyValue:StringEquals", GONE),
    ("leading_keys_are_never_absent", f"{OF_ERASE}.0.Condition.{NULL}", GONE),
    ("deletes_are_part_of_a_transaction", f"{OF_ERASE}.1.Condition.ForAnyValue:StringEquals", GONE),
    ("deletes_are_part_of_a_transaction", f"{OF_PURGE}.1.Condition", GONE),
    ("deletes_are_part_of_a_transaction", f"{OF_PURGE}.1.Action", ["dynamodb:DeleteItem", "dynamodb:Scan"]),
    ("deletes_are_part_of_a_transaction", f"{OF_ADMIN}.2.Action", ["dynamodb:DeleteItem", "dynamodb:UpdateItem"]),
    ("deletes_are_part_of_a_transaction", f"{OF_RECONCILER}.2.Condition", GONE),
    ("deletes_are_part_of_a_transaction", f"{OF_RECONCILER}.2.Action", ["dynamodb:DeleteItem", "dynamodb:UpdateItem"]),
    ("functions_have_roles_and_logs_of_their_own", "Resources.Aggregator.Properties.Role", GONE),
    ("functions_have_roles_and_logs_of_their_own", "Resources.Aggregator.Properties.Policies", ["AdministratorAccess"]),
    ("functions_have_roles_and_logs_of_their_own", "Resources.Reconciler.Properties.LoggingConfig.LogGroup", GONE),
    ("functions_have_roles_and_logs_of_their_own", "Resources.Reconciler.Properties.Timeout", GONE),
    ("functions_have_roles_and_logs_of_their_own", "Resources.Reconciler.Properties.FunctionUrlConfig", {"AuthType": "NONE"}),
    ("functions_have_roles_and_logs_of_their_own", "Resources.Another", {"Type": "AWS::Lambda::Permission"}),
    ("streams_lose_nothing", f"{STREAM}.StartingPosition", "LATEST"),
    ("streams_lose_nothing", f"{STREAM}.FunctionResponseTypes", GONE),
    ("streams_lose_nothing", f"{STREAM}.BisectBatchOnFunctionError", False),
    ("streams_lose_nothing", f"{STREAM}.DestinationConfig.OnFailure.Destination", {"Fn::GetAtt": ["DeadLetters", "Arn"]}),
    ("streams_lose_nothing", f"{STREAM}.MaximumRetryAttempts", 10),
    ("streams_lose_nothing", f"{STREAM}.MaximumRecordAgeInSeconds", 21600),
    ("streams_lose_nothing", f"{STREAM}.MetricsConfig", GONE),
    ("schedules_lose_nothing", f"{SCHEDULE}.DeadLetterConfig", GONE),
    ("schedules_lose_nothing", f"{SCHEDULE}.RoleArn", GONE),
    ("schedules_lose_nothing", "Resources.Reconciler.Properties.EventInvokeConfig.DestinationConfig", GONE),
]
ENCRYPTION = "Properties.BucketEncryption.ServerSideEncryptionConfiguration.0.ServerSideEncryptionByDefault"
BREAKS_WITH_KEY = [
    ("a_given_key_encrypts_all", "Resources.AlarmTopic.Properties.KmsMasterKeyId", "alias/aws/sns"),
    ("nothing_allows_a_wildcard_resource", f"{OF_AGGREGATOR}.5.Action", ["xray:PutTelemetryRecords", "xray:GetTraceSummaries"]),
    ("roles_and_policies_take_the_path_and_roles_the_boundary", "Resources.ScheduleRole.Properties.PermissionsBoundary", GONE),
    ("topics_take_alarms_of_this_stack_by_tls", "Resources.AlarmTopicPolicy", GONE),
    ("topics_take_alarms_of_this_stack_by_tls", "Resources.AlarmTopicPolicy.Properties.Topics.0", "arn:aws:sns:us-east-1:1:other"),
    ("topics_take_alarms_of_this_stack_by_tls", f"{OF_TOPIC}.0.Action", "sns:Subscribe"),
    ("topics_take_alarms_of_this_stack_by_tls", f"{OF_TOPIC}.0.Resource", "*"),
    ("topics_take_alarms_of_this_stack_by_tls", f"{OF_TOPIC}.0.Principal", "*"),
    ("topics_take_alarms_of_this_stack_by_tls", f"{OF_TOPIC}.0.Condition.StringEquals", GONE),
    ("topics_take_alarms_of_this_stack_by_tls", f"{OF_TOPIC}.0.Condition.ArnLike.aws:SourceArn", "arn:aws:cloudwatch:us-east-1:1:alarm:*"),
    ("topics_take_alarms_of_this_stack_by_tls", f"{OF_TOPIC}.1", GONE),
    ("topics_take_alarms_of_this_stack_by_tls", f"{OF_TOPIC}.1.Effect", "Allow"),
    ("topics_take_alarms_of_this_stack_by_tls", f"{OF_TOPIC}.1.Principal", {"AWS": "1"}),
    ("topics_take_alarms_of_this_stack_by_tls", f"{OF_TOPIC}.1.Condition.Bool.aws:SecureTransport", "true"),
    ("a_given_key_encrypts_all", f"{TABLE}.Properties.SSESpecification.KMSMasterKeyId", GONE),
    ("a_given_key_encrypts_all", f"{TABLE}.Properties.SSESpecification.SSEEnabled", False),
    ("a_given_key_encrypts_all", f"{BUCKET}.{ENCRYPTION}", {"SSEAlgorithm": "AES256"}),
    ("a_given_key_encrypts_all", f"{QUEUE}.Properties.KmsMasterKeyId", "alias/aws/sqs"),
    ("a_given_key_encrypts_all", "Resources.AggregatorLogs.Properties.KmsKeyId", GONE),
    ("queues_are_encrypted_and_patient", f"{QUEUE}.Properties.KmsMasterKeyId", GONE),
    ("keys_are_used_through_one_service", f"{OF_AGGREGATOR}.6.Condition", GONE),
    ("keys_are_used_through_one_service", f"{OF_RECONCILER}.6.Condition.StringEquals.kms:ViaService", {"Fn::Sub": "*"}),
    ("keys_are_used_through_one_service", f"{OF_ACQUIRE}.2.Condition", GONE),
    ("keys_are_used_through_one_service", f"{OF_ACQUIRE}.1", {"Effect": "Allow", "Action": ["dynamodb:GetItem", "kms:Decrypt"]}),
]
# Without one.
BREAKS_WITHOUT_KEY = [
    ("buckets_are_encrypted_and_forget", f"{BUCKET}.{ENCRYPTION}.SSEAlgorithm", GONE),
    ("queues_are_encrypted_and_patient", f"{QUEUE}.Properties.SqsManagedSseEnabled", GONE),
    ("queues_are_encrypted_and_patient", f"{QUEUE}.Properties.SqsManagedSseEnabled", False),
]


def broken(template, where, value):
    """The template with something else at a place. What is to be replaced must be there; what is added must not."""
    template = copy.deepcopy(template)
    node, *path = template, *where.split(".")
    # The dots of a key in quotes are its own; no key of ours has any, but conditions have colons.
    for part in path[:-1]:
        node = node[int(part) if isinstance(node, list) else part]
    last = int(path[-1]) if isinstance(node, list) else path[-1]
    if value is GONE:
        del node[last]
    else:
        if isinstance(node, dict) and last in node and node[last] == value:
            raise ValueError(f"{where} is {value!r} already")
        node[last] = value
    return template


def main(path):
    with_key, without_key = variants(path)
    tries = [(with_key, *each) for each in BREAKS + BREAKS_WITH_KEY]
    tries += [(without_key, *each) for each in BREAKS + BREAKS_WITHOUT_KEY]
    errors, texts, promises = [], rules(), 0
    for rule, text in texts.items():
        ways = [(where, value, broken(form, where, value)) for form, of, where, value in tries if of == rule]

        def unnoticed(text):
            said = [(where, value, failures(template, {rule: text})[0].get(rule, "holds")) for where, value, template in ways]
            return [each for each in said if each[2] == "holds" or each[2].startswith("cannot be run")]

        errors += [f"{rule}: {where} {'gone' if value is GONE else f'= {value}'}: {said}" for where, value, said in unnoticed(text)]
        if not ways:
            errors.append(f"{rule} is tried by no break")
        for promise in re.finditer("^.*<<.*\n", text, flags=re.MULTILINE):
            promises += 1
            if not unnoticed(text[: promise.start()] + text[promise.end() :]):
                errors.append(f"{rule}: no break is noticed by this alone: {promise[0].strip()}")
    errors += [f"{rule}: there is no such rule" for rule in {rule for _, rule, *_ in tries} - texts.keys()]
    for error in errors:
        print(error[:400])
    print(f"cfn-guard: {len(texts)} rules, {promises} promises, broken in {len(tries)} ways, {len(errors)} not noticed")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
