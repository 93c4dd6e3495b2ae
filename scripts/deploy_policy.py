"""Writes scripts/deploy-roles.yaml: the roles that deploy the stack, with the permissions that its resources need.

CloudFormation's schema of each resource type lists the actions that its handlers call to create, read, update and delete it
(https://docs.aws.amazon.com/cloudformation-cli/latest/userguide/resource-type-schema.html). cfn-lint brings these schemas.
What only properties need that the template does not have is left out, by UNUSED; a template that has one of them fails.
What AWS's pages require beside the schema is added, by BESIDE_SCHEMA.
Each action gets the ARNs of the stack's resources of the types that it knows, by parliament's list of actions.

Usage: deploy_policy.py template.yaml scripts/deploy-roles.yaml [--check]
"""

import functools
import json
import pathlib
import sys

import cfnlint
import parliament

from variants import load

SCHEMAS = pathlib.Path(cfnlint.__file__).parent / "data" / "schemas"
HANDLERS = ("create", "read", "update", "delete")
# What SAM makes of its own types and of a function's parts.
OF_SAM = {"AWS::Serverless::Function": "AWS::Lambda::Function"}
OF_EVENTS = {"DynamoDB": "AWS::Lambda::EventSourceMapping", "ScheduleV2": "AWS::Scheduler::Schedule"}

# Actions that handlers call for these properties alone, by type.
UNUSED = {
    "AWS::DynamoDB::Table": {
        "ImportSourceSpecification": "dynamodb:BatchWriteItem dynamodb:DeleteItem dynamodb:DescribeImport dynamodb:GetItem dynamodb:ImportTable "
        "dynamodb:PutItem dynamodb:Query dynamodb:Scan dynamodb:UpdateItem logs:CreateLogGroup logs:CreateLogStream "
        "logs:DescribeLogGroups logs:DescribeLogStreams logs:PutLogEvents logs:PutRetentionPolicy s3:GetObject s3:GetObjectMetadata s3:ListBucket",
        "KinesisStreamSpecification": "dynamodb:DisableKinesisStreamingDestination dynamodb:EnableKinesisStreamingDestination "
        "dynamodb:UpdateKinesisStreamingDestination kinesis:DescribeStream kinesis:PutRecords",
        # Of global tables, which Weirgate must not have.
        "Replicas": "dynamodb:AssociateTableReplica dynamodb:CreateTableReplica",
    },
    "AWS::Lambda::Function": {
        "CodeSigningConfigArn": "lambda:GetCodeSigningConfig lambda:PutFunctionCodeSigningConfig lambda:DeleteFunctionCodeSigningConfig",
        "CapacityProviderConfig": "lambda:PassCapacityProvider lambda:PutFunctionScalingConfig lambda:PublishVersion",
        "FileSystemConfigs": "elasticfilesystem:DescribeMountTargets s3files:ListMountTargets",
        "Layers": "lambda:GetLayerVersion",
        "RecursiveLoop": "lambda:PutFunctionRecursionConfig",
        "ReservedConcurrentExecutions": "lambda:PutFunctionConcurrency lambda:DeleteFunctionConcurrency",
        "RuntimeManagementConfig": "lambda:AssociateRuntimeAlias lambda:PutRuntimeManagementConfig",
        "VpcConfig": "ec2:DescribeNetworkInterfaces ec2:DescribeSecurityGroups ec2:DescribeSubnets ec2:DescribeVpcs",
        "KmsKeyArn": "kms:CreateGrant kms:Decrypt kms:DescribeKey kms:Encrypt kms:GenerateDataKey",
    },
    "AWS::Lambda::EventSourceMapping": {"KmsKeyArn": "kms:Decrypt kms:DescribeKey kms:GenerateDataKey"},
    "AWS::IAM::Role": {"ManagedPolicyArns": "iam:AttachRolePolicy iam:DetachRolePolicy", "Description": "iam:UpdateRoleDescription"},
    "AWS::IAM::ManagedPolicy": {
        "Groups": "iam:AttachGroupPolicy iam:DetachGroupPolicy",
        "Roles": "iam:AttachRolePolicy iam:DetachRolePolicy",
        "Users": "iam:AttachUserPolicy iam:DetachUserPolicy",
    },
    "AWS::Logs::LogGroup": {
        "BearerTokenAuthenticationEnabled": "logs:PutBearerTokenAuthentication",
        "DataProtectionPolicy": "firehose:TagDeliveryStream logs:CreateLogDelivery logs:DeleteDataProtectionPolicy logs:PutDataProtectionPolicy "
        "s3:REST.PUT.OBJECT",
        "DeletionProtectionEnabled": "logs:PutLogGroupDeletionProtection",
        "FieldIndexPolicies": "logs:DeleteIndexPolicy logs:PutIndexPolicy",
        "ResourcePolicyDocument": "logs:DeleteResourcePolicy logs:PutResourcePolicy",
    },
    "AWS::S3::Bucket": {
        "AbacStatus": "s3:PutBucketAbac",
        "AccelerateConfiguration": "s3:PutAccelerateConfiguration",
        "AccessControl": "s3:GetBucketAcl s3:PutBucketAcl s3:PutObjectAcl",
        "AnalyticsConfigurations": "s3:DeleteBucketAnalyticsConfiguration s3:PutAnalyticsConfiguration",
        "CorsConfiguration": "s3:DeleteBucketCors s3:PutBucketCORS",
        "IntelligentTieringConfigurations": "s3:PutIntelligentTieringConfiguration",
        "InventoryConfigurations": "s3:PutInventoryConfiguration",
        "LoggingConfiguration": "s3:PutBucketLogging",
        "MetadataTableConfiguration": "s3:CreateBucketMetadataTableConfiguration s3:DeleteBucketMetadataTableConfiguration "
        "s3tables:CreateNamespace s3tables:CreateTable s3tables:CreateTableBucket s3tables:GetTable s3tables:GetTableMetadataLocation "
        "s3tables:PutTableBucketPolicy s3tables:PutTableEncryption s3tables:PutTablePolicy s3tables:UpdateTableMetadataLocation",
        "MetadataConfiguration": "s3:UpdateBucketMetadataAnnotationTableConfiguration s3:UpdateBucketMetadataInventoryTableConfiguration "
        "s3:UpdateBucketMetadataJournalTableConfiguration",
        "MetricsConfigurations": "s3:DeleteBucketMetricsConfiguration s3:PutMetricsConfiguration",
        "NotificationConfiguration": "s3:PutBucketNotification",
        "ObjectLockEnabled": "s3:DeleteObject s3:PutBucketObjectLockConfiguration s3:PutObjectLockConfiguration",
        "ReplicationConfiguration": "iam:PassRole s3:DeleteBucketReplication s3:PutBucketReplication s3:PutReplicationConfiguration",
        "VersioningConfiguration": "s3:PutBucketVersioning",
        "WebsiteConfiguration": "s3:DeleteBucketWebsite s3:PutBucketWebsite",
    },
    "AWS::SNS::Topic": {
        "DataProtectionPolicy": "sns:PutDataProtectionPolicy",
        "DeliveryStatusLogging": "iam:GetRole iam:PassRole",
        # A resource of its own.
        "Subscription": "sns:Subscribe sns:Unsubscribe",
    },
    "AWS::SNS::Subscription": {"SubscriptionRoleArn": "iam:GetRole iam:PassRole"},
}
# What the schemas do not list, by type.
BESIDE_SCHEMA = {
    # "That principal, a user or role, must have the permissions on the KMS key that DynamoDB requires", the table's deployer.
    # https://docs.aws.amazon.com/kms/latest/developerguide/services-dynamodb.html
    "AWS::DynamoDB::Table": "kms:GenerateDataKey kms:GenerateDataKeyWithoutPlaintext kms:ReEncryptFrom kms:ReEncryptTo",
}
# Names in the schemas that are no actions of IAM.
NO_ACTIONS = {"s3:DeleteBucketTagging", "s3:DeleteBucketEncryption", "s3:DeleteBucketLifecycle", "s3:GetBucketObjectLockConfiguration"}
# What parliament does not know yet, or not for this resource, and what it is about.
NEWER = {
    "lambda:GetFunctionScalingConfig": "function",
    "s3:GetBucketAbac": "bucket",
    # https://docs.aws.amazon.com/AmazonS3/latest/userguide/buckets-tagging.html
    "s3:ListTagsForResource": "bucket",
    "s3:TagResource": "bucket",
    "s3:UntagResource": "bucket",
}
ARN = "arn:${AWS::Partition}:"


def own(service, name):
    return f"{ARN}{service}:${{AWS::Region}}:${{AWS::AccountId}}:{name}"


# Per type of CloudFormation: the service, what IAM calls the resource, its ARN up to the name, and the property with a given name.
NAMED = {
    "AWS::DynamoDB::Table": ("dynamodb", "table", own("dynamodb", "table/"), "TableName"),
    "AWS::Lambda::Function": ("lambda", "function", own("lambda", "function:"), "FunctionName"),
    "AWS::IAM::Role": ("iam", "role", ARN + "iam::${AWS::AccountId}:role${IamPath}", "RoleName"),
    "AWS::IAM::ManagedPolicy": ("iam", "policy", ARN + "iam::${AWS::AccountId}:policy${IamPath}", "ManagedPolicyName"),
    "AWS::Logs::LogGroup": ("logs", "log-group", own("logs", "log-group:"), "LogGroupName"),
    "AWS::S3::Bucket": ("s3", "bucket", ARN + "s3:::", "BucketName"),
    "AWS::SQS::Queue": ("sqs", "queue", own("sqs", ""), "QueueName"),
    "AWS::SNS::Topic": ("sns", "topic", own("sns", ""), "TopicName"),
    "AWS::CloudWatch::Alarm": ("cloudwatch", "alarm", own("cloudwatch", "alarm:"), "AlarmName"),
    "AWS::CloudWatch::Dashboard": ("cloudwatch", "dashboard", ARN + "cloudwatch::${AWS::AccountId}:dashboard/", "DashboardName"),
    "AWS::Scheduler::Schedule": ("scheduler", "schedule", own("scheduler", "schedule/default/"), "Name"),
    "AWS::SSM::Parameter": ("ssm", "parameter", own("ssm", "parameter"), "Name"),
}
# Lambda names mappings itself. The functions' code is in the deployer's bucket.
UNNAMED = {("lambda", "eventSourceMapping"): own("lambda", "event-source-mapping:*"), ("s3", "object"): ARN + "s3:::${CodeBucket}/*"}
# The role of another service, which the first Contributor Insights of an account make (the parameter ThrottledKeys).
INSIGHTS = "contributorinsights.dynamodb.amazonaws.com"
OF_SERVICES = {"iam:CreateServiceLinkedRole": ARN + "iam::${AWS::AccountId}:role/aws-service-role/" + INSIGHTS + "/*"}
OF_AGGREGATOR = ("ArnEquals", "lambda:FunctionArn", (own("lambda", "function:${StackName}-aggregator"),))
# Actions that are allowed with these values of a condition's key alone.
RESTRICTED = {
    "iam:PassRole": ("StringEquals", "iam:PassedToService", ("lambda.amazonaws.com", "scheduler.amazonaws.com")),
    "iam:CreateServiceLinkedRole": ("StringEquals", "iam:AWSServiceName", (INSIGHTS,)),
    "lambda:CreateEventSourceMapping": OF_AGGREGATOR,
    "lambda:UpdateEventSourceMapping": OF_AGGREGATOR,
    "lambda:DeleteEventSourceMapping": OF_AGGREGATOR,
}
# The key is used for the table alone, through DynamoDB. A handler may ask KMS itself for what tells nothing of the data: AWS's page
# above asks these of principals without the condition, too.
OF_KEY = ("StringEquals", "kms:ViaService", ("dynamodb.${AWS::Region}.${AWS::URLSuffix}",))
ASKED_OF_KMS = {"kms:DescribeKey", "kms:ListAliases", "kms:RevokeGrant"}
# With PermissionsBoundary, an action that knows this key is allowed under that boundary alone, and its removal is not.
BOUND, REMOVES_BOUNDARY = "iam:PermissionsBoundary", "iam:DeleteRolePermissionsBoundary"
# Several, because a managed policy has at most 6,144 characters.
POLICIES = {"Data": ("dynamodb", "s3", "sqs", "sns", "ssm"), "Functions": ("lambda", "logs", "scheduler"), "Roles": ("iam",), "Alarms": ("cloudwatch",)}
# Parameters that are the stack's own, with its pattern.
OF_STACK = ("IamPath", "SsmPrefix", "KmsKeyArn", "PermissionsBoundary")


def parts(template):
    """The stack's resources as CloudFormation has them: the logical id, the type and the properties of each."""
    for logical, resource in template["Resources"].items():
        kind, properties = resource["Type"], resource.get("Properties", {})
        yield logical, OF_SAM.get(kind, kind), properties
        if kind in OF_SAM:
            for name, event in properties.get("Events", {}).items():
                yield logical + name, OF_EVENTS[event["Type"]], event["Properties"]
            if "EventInvokeConfig" in properties:
                yield f"{logical}EventInvokeConfig", "AWS::Lambda::EventInvokeConfig", {}


def types(template):
    """The types of the stack's resources, each with the properties that are used."""
    found = {}
    for _, kind, properties in parts(template):
        found.setdefault(kind, set()).update(properties)
    return found


def schema(kind):
    names = json.loads((SCHEMAS / "providers" / "us-east-1.json").read_text())
    return json.loads((SCHEMAS / "resources" / f"{names[kind]}.json").read_text())


def needed(template):
    """Each action that deployments need, by the types that need it."""
    actions = {}
    for kind, used in types(template).items():
        unused, of = set(), schema(kind)
        listed = {action for handler in HANDLERS for action in of["handlers"].get(handler, {}).get("permissions", [])}
        for name, words in UNUSED.get(kind, {}).items():
            if name in used:
                sys.exit(f"{kind} has {name}: take it out of UNUSED")
            if gone := set(words.split()) - listed:
                sys.exit(f"{kind}: no handler calls {sorted(gone)}: take it out of UNUSED")
            unused |= set(words.split())
        tagging = of.get("tagging", {})
        if tagging.get("taggable"):
            listed |= set(tagging.get("permissions", []))
        for action in (listed - unused - NO_ACTIONS) | {*BESIDE_SCHEMA.get(kind, "").split()}:
            actions.setdefault(action, set()).add(kind)
    return actions


@functools.cache
def known(action):
    """What parliament knows about an action: the types of resources, each with the keys of conditions."""
    service, name = action.split(":")
    for entry in parliament.iam_definition:
        if entry["prefix"] == service:
            for privilege in entry["privileges"]:
                if privilege["privilege"].lower() == name.lower():
                    return privilege["resource_types"]
    sys.exit(f"{action}: parliament knows no such action: add it to NEWER or NO_ACTIONS")


def known_types(action):
    """The types of resources that an action knows."""
    return {NEWER[action]} if action in NEWER else {of["resource_type"].rstrip("*") for of in known(action)} - {""}


def is_bounded(action):
    """Whether a boundary restricts an action."""
    return action not in NEWER and any(BOUND in of["condition_keys"] for of in known(action))


def named(template):
    """The ARNs of the stack's resources, by service and by what IAM calls them: given names, or those that CloudFormation makes."""
    found = {kind: [arn] for kind, arn in UNNAMED.items()}
    for logical, kind, properties in parts(template):
        if kind in NAMED:
            service, part, arn, given = NAMED[kind]
            name = properties[given]["Fn::Sub"].replace("AWS::StackName", "StackName") if given in properties else f"${{StackName}}-{logical}-*"
            found.setdefault((service, part), []).append(arn + (name.replace(logical, logical.lower()) if part == "bucket" else name))
    return found


def tails(action, kind):
    """What follows a resource's name in the ARN that an action is asked about."""
    # https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_LogGroup.html
    if kind == "log-group":
        return ("",) if action in ("logs:TagResource", "logs:UntagResource", "logs:ListTagsForResource") else (":*",)
    # SAM names the version $LATEST. AWS does not say whether the ARN then ends with it.
    return ("", ":$LATEST") if action.endswith("EventInvokeConfig") else ("",)


def arns(action, of_stack):
    """The ARNs of the stack that an action is about; * if it knows none of them."""
    if action in OF_SERVICES:
        return (OF_SERVICES[action],)
    service = action.split(":")[0]
    known = {arn + tail for kind in known_types(action) for arn in of_stack.get((service, kind), ()) for tail in tails(action, kind)}
    return tuple(sorted(known)) or ("*",)


def statements(template, services):
    """One statement for each set of resources and each condition."""
    groups, of_stack = {}, named(template)
    for action in needed(template):
        if action.split(":")[0] in services:
            restriction = RESTRICTED.get(action, (BOUND,) if is_bounded(action) else ())
            groups.setdefault((action.split(":")[0], arns(action, of_stack), restriction), []).append(action)
    for (_, resources, restriction), actions in sorted(groups.items()):
        statement = {"Effect": "Allow", "Action": sorted(actions), "Resource": [each for arn in resources for each in of_table(arn)]}
        if restriction == (BOUND,):
            bounded = {**statement, "Action": [action for action in statement["Action"] if action != REMOVES_BOUNDARY]}
            bounded["Condition"] = {"StringEquals": {BOUND: {"Ref": "PermissionsBoundary"}}}
            statement = {"Fn::If": ["HasBoundary", bounded, statement]}
        elif restriction:
            statement["Condition"] = condition(restriction)
        yield statement


def condition(restriction):
    operator, key, values = restriction
    return {operator: {key: [sub(value) for value in values]}}


def of_table(arn):
    """The ARN; of a table, that of an adopted one with its indexes, which the pattern of the stack's own matches too."""
    prefix = NAMED["AWS::DynamoDB::Table"][2]
    if arn.startswith(prefix):
        yield {"Fn::If": ["HasTable", sub(prefix + "${TableName}"), sub(arn)]}
        yield {"Fn::If": ["HasTable", sub(prefix + "${TableName}/index/*"), {"Ref": "AWS::NoValue"}]}
    else:
        yield sub(arn)


def of_key(template):
    """The statements that a stack with a key needs: actions that know no resource are asked on *, uses of the key through a service."""
    groups = {}
    for action in sorted(needed(template)):
        if action.startswith("kms:"):
            groups.setdefault(("key" if known_types(action) else "*", action in ASKED_OF_KMS), []).append(action)
    for (resource, is_direct), actions in groups.items():
        statement = {"Effect": "Allow", "Action": actions, "Resource": [{"Ref": "KmsKeyArn"} if resource == "key" else resource]}
        if not is_direct:
            statement["Condition"] = condition(OF_KEY)
        yield {"Fn::If": ["HasKey", statement, {"Ref": "AWS::NoValue"}]}


def sub(arn):
    return {"Fn::Sub": arn} if "${" in arn else arn


def policies(template):
    """The managed policies of the role that CloudFormation assumes."""
    for name, services in POLICIES.items():
        more = of_key(template) if name == "Data" else ()
        yield name, {"Version": "2012-10-17", "Statement": [*statements(template, services), *more]}


def write(node, depth=0):
    """The node as YAML: short lists in one line."""
    pad = "  " * depth
    if isinstance(node, dict):
        if len(node) == 1 and next(iter(node)) in ("Fn::Sub", "Ref", "Fn::GetAtt"):
            ((function, of),) = node.items()
            return f"!{function.removeprefix('Fn::')} {of}"
        if list(node) == ["Fn::If"]:
            parts = "".join(f"\n{pad}  - {write(part, depth + 2).lstrip()}" for part in node["Fn::If"])
            return f"!If{parts}"
        lines = []
        for key, value in node.items():
            text = write(value, depth + 1)
            lines.append(f"{pad}{quoted(key)}:{text if text.startswith(chr(10)) else ' ' + text.lstrip()}")
        return "\n" + "\n".join(lines) if depth else "\n".join(lines)
    if isinstance(node, list):
        items = []
        for item in node:
            text = write(item, depth + 1)
            items.append(f"{pad}- {text.lstrip()}")
        return "\n" + "\n".join(items)
    return quoted(str(node))


def quoted(text):
    return json.dumps(text) if text in ("*", "2012-10-17", "") or ("token.actions" in text and ":" in text) else text


HEAD = """# Generated by scripts/deploy_policy.py from the template's resource types: do not edit, `make deploy-roles` writes it.
#
# CloudFormationRole makes and changes the stack; only CloudFormation can assume it. CiRole starts deployments from one GitHub
# environment by OpenID Connect, without stored keys: it passes CloudFormationRole, and can change nothing itself.
# docs/platform.md says how to use both. Not tried on AWS.
AWSTemplateFormatVersion: "2010-09-09"
Description: Roles that deploy Weirgate from GitHub Actions
Parameters:
  StackName:
    Type: String
    Default: weirgate
    # In lower case, as the failure bucket's name begins with it; short, as names of roles have 64 characters.
    AllowedPattern: ^[a-z][a-z0-9-]{0,31}$
    Description: Name of the stack that may be deployed
  CodeBucket:
    Type: String
    Description: Bucket of the functions' code and of the packaged template
  Repository:
    Type: String
    # https://docs.github.com/en/actions/reference/security/oidc#immutable-subject-claims
    AllowedPattern: ^([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+|[A-Za-z0-9_.-]+@[0-9]+/[A-Za-z0-9_.-]+@[0-9]+)$
    Description: >-
      GitHub repository that deploys, as its tokens name it - OWNER@ID/NAME@ID if it was made, renamed or transferred since
      July 15, 2026, or uses immutable subject claims; otherwise OWNER/NAME. docs/platform.md says how to find out.
  Environment:
    Type: String
    Default: production
    Description: Environment of that repository. Require a review for it, or every workflow can deploy.
  ProviderArn:
    Type: String
    Description: ARN of the account's provider of OpenID Connect for token.actions.githubusercontent.com
  TableName:
    Type: String
    Default: ""
    AllowedPattern: ^([A-Za-z0-9_.-]{3,255})?$
    Description: Name of a table that the stack has adopted, such as a restored one. Without it, that of a table which the stack made.
PARAMETERS
Conditions:
  HasKey: !Not [!Equals [!Ref KmsKeyArn, ""]]
  HasBoundary: !Not [!Equals [!Ref PermissionsBoundary, ""]]
  HasTable: !Not [!Equals [!Ref TableName, ""]]
"""
SAME = "The stack's parameter of this name"
# Where there is more to say about one, and its own default.
MORE = {
    "SsmPrefix": ("/weirgate", f"{SAME}, if it is set"),
    "PermissionsBoundary": ("", f"{SAME}. Roles are then made and changed under it alone, and keep it. Deploy the stack with it first."),
}


def of_stack(template):
    """The parameters that are the stack's own."""
    for name in OF_STACK:
        parameter = template["Parameters"][name]
        default, description = MORE.get(name, (parameter["Default"], SAME))
        yield {name: {"Type": "String", "Default": default, "AllowedPattern": parameter["AllowedPattern"], "Description": description}}


def roles(template):
    """The whole file."""
    stack = ARN + "cloudformation:${AWS::Region}:${AWS::AccountId}:stack/${StackName}/*"
    transform = ARN + "cloudformation:${AWS::Region}:aws:transform/Serverless-2016-10-31"
    resources = {}
    for name, document in policies(template):
        resources[f"{name}Policy"] = {"Type": "AWS::IAM::ManagedPolicy", "Properties": {"PolicyDocument": document}}
    resources["CloudFormationRole"] = {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "AssumeRolePolicyDocument": {
                "Version": "2012-10-17",
                "Statement": [
                    {
                        "Effect": "Allow",
                        "Principal": {"Service": "cloudformation.amazonaws.com"},
                        "Action": "sts:AssumeRole",
                        # The ARN has the account. AWS documents no `aws:SourceAccount` of this request.
                        "Condition": {"ArnLike": {"aws:SourceArn": {"Fn::Sub": stack}}},
                    }
                ],
            },
            "ManagedPolicyArns": [{"Ref": f"{name}Policy"} for name in POLICIES],
        },
    }
    deploy = [
        "CreateChangeSet", "DeleteChangeSet", "DescribeChangeSet", "DescribeStackEvents", "DescribeStackResource", "DescribeStackResources",
        "DescribeStacks", "ExecuteChangeSet", "SetStackPolicy",
    ]  # fmt: skip
    # A change set with tags needs these, and AWS does not say on which of the two.
    # https://docs.aws.amazon.com/service-authorization/latest/reference/list_awscloudformation.html
    tag = ["TagResource", "UntagResource"]
    change_set = ARN + "cloudformation:${AWS::Region}:${AWS::AccountId}:changeSet/*"
    resources["CiRole"] = {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "AssumeRolePolicyDocument": {
                "Version": "2012-10-17",
                "Statement": [
                    {
                        "Effect": "Allow",
                        "Principal": {"Federated": {"Ref": "ProviderArn"}},
                        "Action": "sts:AssumeRoleWithWebIdentity",
                        "Condition": {
                            "StringEquals": {
                                "token.actions.githubusercontent.com:aud": "sts.amazonaws.com",
                                "token.actions.githubusercontent.com:sub": {"Fn::Sub": "repo:${Repository}:environment:${Environment}"},
                            }
                        },
                    }
                ],
            },
            "Policies": [
                {
                    "PolicyName": "deploy",
                    "PolicyDocument": {
                        "Version": "2012-10-17",
                        "Statement": [
                            {"Effect": "Allow", "Action": [f"cloudformation:{name}" for name in deploy], "Resource": [{"Fn::Sub": stack}]},
                            {"Effect": "Allow", "Action": [f"cloudformation:{name}" for name in tag], "Resource": [{"Fn::Sub": stack}, {"Fn::Sub": change_set}]},
                            {"Effect": "Allow", "Action": ["cloudformation:CreateChangeSet"], "Resource": [{"Fn::Sub": transform}]},
                            {"Effect": "Allow", "Action": ["cloudformation:GetTemplateSummary"], "Resource": ["*"]},
                            {"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject"], "Resource": [{"Fn::Sub": ARN + "s3:::${CodeBucket}/*"}]},
                            {
                                "Effect": "Allow",
                                "Action": ["iam:PassRole"],
                                "Resource": [{"Fn::GetAtt": "CloudFormationRole.Arn"}],
                                "Condition": {"StringEquals": {"iam:PassedToService": "cloudformation.amazonaws.com"}},
                            },
                        ],
                    },
                }
            ],
        },
    }
    parameters = "".join(write(each, 1) for each in of_stack(template)).removeprefix("\n")
    outputs = {f"{name}Arn": {"Value": {"Fn::GetAtt": f"{name}.Arn"}} for name in ("CiRole", "CloudFormationRole")}
    return HEAD.replace("PARAMETERS", parameters) + write({"Resources": resources, "Outputs": outputs}) + "\n"


def main(path, output, *options):
    template = load(path)
    text = roles(template)
    if "--check" not in options:
        pathlib.Path(output).write_text(text)
    written = pathlib.Path(output).read_text()
    if written != text:
        sys.exit(f"{output} is not what this script writes: run make deploy-roles")
    print(f"{output}: {len(needed(template))} actions of {len(types(template))} resource types")


if __name__ == "__main__":
    main(*sys.argv[1:])
