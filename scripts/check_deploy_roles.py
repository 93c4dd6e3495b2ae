"""Deploys, updates and deletes the template on an evaluator of policies, with the roles of scripts/deploy-roles.yaml.

Each action that a handler of CloudFormation calls for a resource of the template is asked of MiniStack's evaluator, on the
ARN that the resource gets, in each form of scripts/variants.py. It must be allowed there, and refused on another stack's
resource of the type, in another account and in another Region. Each action, resource and value of a condition must be
needed, and each wider resource be noticed. Trust policies, attached policies and conditions must be exactly those expected.
All of it in each deployment of the roles in DEPLOYED: with a key, with a boundary, for a table that the stack has adopted,
and for either form in which GitHub's tokens name a repository.

Usage: check_deploy_roles.py template.yaml scripts/deploy-roles.yaml
"""

import copy
import json
import re
import sys

from ministack.core.iam_evaluator import EvalContext, evaluate, evaluate_trust_policy, parse_policy_document

import deploy_policy
from variants import CHOICES, FORMS, form, load

ACCOUNT, REGION, STACK = "123456789012", "eu-west-1", "weirgate"
# Its names begin with those of the stack, and its parameters' path is below the stack's.
OTHER, PREFIXES = STACK + "-staging", {STACK: f"/{STACK}", STACK + "-staging": f"/{STACK}/staging"}
VALUES = {
    "AWS::AccountId": ACCOUNT,
    "AWS::Region": REGION,
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
    "CodeBucket": "code",
    "ProviderArn": f"arn:aws:iam::{ACCOUNT}:oidc-provider/token.actions.githubusercontent.com",
}
KEY, BOUNDARY, ADOPTED = CHOICES["KmsKeyArn"], CHOICES["PermissionsBoundary"], "weirgate-restored"
# https://docs.github.com/en/actions/reference/security/oidc#immutable-subject-claims
NAMES, IDS = "acme/limits", "acme@1/limits@2"
# Deployments of the roles. The first two have every statement between them.
DEPLOYED = [
    {"Repository": IDS, "KmsKeyArn": KEY, "IamPath": "/"},
    {"Repository": NAMES, "KmsKeyArn": KEY, "IamPath": "/", "PermissionsBoundary": BOUNDARY, "TableName": ADOPTED},
    {"Repository": NAMES, "IamPath": "/team/"},
]
# Values that the parameters take, and some that they refuse. GitHub names owner and repository with their ids, or both without.
TAKEN = {
    "Repository": ([NAMES, IDS, "a.b-c_D/e.f"], ["acme", "acme@1/limits", "acme/limits@2", "acme@x/limits@2", "acme/*", "acme/limits:ref"]),
    "TableName": (["", ADOPTED], ["*", "weirgate-*", "a/b"]),
    "PermissionsBoundary": (["", BOUNDARY, "arn:aws:iam::aws:policy/PowerUserAccess"], ["*", "boundary", "arn:aws:iam::123456789012:role/boundary"]),
    "SsmPrefix": (["", "/weirgate", "/team/limits"], ["weirgate", "/weirgate/", "/aws/limits", "/SSM-limits", "/*"]),
    "KmsKeyArn": (["", KEY], ["*", "alias/limits"]),
    "IamPath": (["/", "/team/"], ["team", "/team"]),
}
# A managed policy has at most 6,144 characters, with the longest names too.
MOST, LONGEST = 6144, {
    "StackName": "s" * 32, "SsmPrefix": "/" + "s" * 32, "AWS::Region": "ap-southeast-1", "AWS::Partition": "aws-us-gov",
    "PermissionsBoundary": f"arn:aws-us-gov:iam::{ACCOUNT}:policy/" + "b" * 64,
}  # fmt: skip
# Per type of CloudFormation: the property with a resource's name, and what IAM calls it and its parts, with their ARNs.
OWN = {
    "AWS::DynamoDB::Table": ("TableName", {"table": "dynamodb:R:A:table/{}", "index": "dynamodb:R:A:table/{}/index/GSI1"}),
    "AWS::Lambda::Function": ("FunctionName", {"function": "lambda:R:A:function:{}"}),
    "AWS::IAM::Role": ("RoleName", {"role": "iam::A:role{path}{}"}),
    "AWS::IAM::ManagedPolicy": ("ManagedPolicyName", {"policy": "iam::A:policy{path}{}"}),
    "AWS::Logs::LogGroup": ("LogGroupName", {"log-group": "logs:R:A:log-group:{}"}),
    "AWS::S3::Bucket": ("BucketName", {"bucket": "s3:::{}"}),
    "AWS::SQS::Queue": ("QueueName", {"queue": "sqs:R:A:{}"}),
    "AWS::SNS::Topic": ("TopicName", {"topic": "sns:R:A:{}"}),
    "AWS::CloudWatch::Alarm": ("AlarmName", {"alarm": "cloudwatch:R:A:alarm:{}"}),
    "AWS::CloudWatch::Dashboard": ("DashboardName", {"dashboard": "cloudwatch::A:dashboard/{}"}),
    "AWS::Scheduler::Schedule": ("Name", {"schedule": "scheduler:R:A:schedule/default/{}"}),
    "AWS::SSM::Parameter": ("Name", {"parameter": "ssm:R:A:parameter{}"}),
}
AGGREGATOR = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{STACK}-aggregator"
# Restricted actions, with the operator and key of their condition, what CloudFormation sends, and what it never may.
SENT = {
    "iam:PassRole": ("StringEquals", "iam:PassedToService", ["lambda.amazonaws.com", "scheduler.amazonaws.com"], "ec2.amazonaws.com"),
    "iam:CreateServiceLinkedRole": ("StringEquals", "iam:AWSServiceName", [deploy_policy.INSIGHTS], "autoscaling.amazonaws.com"),
}
for verb in ("Create", "Update", "Delete"):
    SENT[f"lambda:{verb}EventSourceMapping"] = ("ArnEquals", "lambda:FunctionArn", [AGGREGATOR], AGGREGATOR.replace(STACK, OTHER))
# "At a minimum, DynamoDB requires" these of the principal that makes a table with a key of its own, where `ReEncrypt*` and
# `GenerateDataKey*` are of data keys that are symmetric: https://docs.aws.amazon.com/kms/latest/developerguide/services-dynamodb.html
OF_KEY = "Encrypt Decrypt ReEncryptFrom ReEncryptTo GenerateDataKey GenerateDataKeyWithoutPlaintext DescribeKey CreateGrant"
OF_KEY = {f"kms:{name}" for name in OF_KEY.split()}
for action in OF_KEY - {"kms:DescribeKey"}:
    SENT[action] = ("StringEquals", "kms:ViaService", [f"dynamodb.{REGION}.amazonaws.com"], f"s3.{REGION}.amazonaws.com")
CONDITIONS = {action: {operator: {key: services}} for action, (operator, key, services, _) in SENT.items()}
# With a boundary: what makes a role's permissions, or its boundary, is allowed under that boundary alone; nothing removes it.
# https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies_boundaries.html
BOUND = "iam:PermissionsBoundary"
UNDER_BOUNDARY = ("iam:CreateRole", "iam:PutRolePolicy", "iam:DeleteRolePolicy", "iam:PutRolePermissionsBoundary")
REMOVES_BOUNDARY = "iam:DeleteRolePermissionsBoundary"
# The stacks' mappings cannot be told apart: their ids are random.
OF_ANY_STACK = {("lambda", "eventSourceMapping")}
# Actions that know no resource, so they are allowed on those of every stack.
ON_ALL = set(
    "kms:ListAliases lambda:CreateEventSourceMapping logs:DeleteQueryDefinition logs:DescribeIndexPolicies logs:DescribeLogGroups "
    "logs:DescribeQueryDefinitions logs:DescribeResourcePolicies logs:PutQueryDefinition sns:GetSubscriptionAttributes "
    "sns:SetSubscriptionAttributes sns:Unsubscribe".split()
)
STACK_ARN = f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/{STACK}/*"
ISSUER = "token.actions.githubusercontent.com"
# Per role: the principal that may assume it, by which action, and under which condition.
TRUSTED = {
    "CloudFormationRole": (
        {"Service": "cloudformation.amazonaws.com"},
        "sts:AssumeRole",
        {"ArnLike": {"aws:SourceArn": STACK_ARN}},
    ),
    "CiRole": (
        {"Federated": VALUES["ProviderArn"]},
        "sts:AssumeRoleWithWebIdentity",
        {"StringEquals": {f"{ISSUER}:aud": "sts.amazonaws.com", f"{ISSUER}:sub": "repo:REPOSITORY:environment:production"}},
    ),
}
CI_CONDITIONS = {"iam:PassRole": {"StringEquals": {"iam:PassedToService": "cloudformation.amazonaws.com"}}}
# What `sam deploy` with a role does as the caller, and the stack's events that it reads. A change set with tags needs the
# last two: https://docs.aws.amazon.com/service-authorization/latest/reference/list_awscloudformation.html
BY_CALLER = (
    "CreateChangeSet DescribeChangeSet ExecuteChangeSet DeleteChangeSet DescribeStacks DescribeStackEvents DescribeStackResource "
    "DescribeStackResources SetStackPolicy TagResource UntagResource"
).split()


def resolved(node, values):
    """The node, whose conditions are decided, with values in place of references."""
    if isinstance(node, list):
        return [resolved(each, values) for each in node]
    if not isinstance(node, dict):
        return node
    if list(node) == ["Ref"]:
        return values.get(node["Ref"], node["Ref"])
    if list(node) == ["Fn::GetAtt"]:
        of = node["Fn::GetAtt"]
        return f"arn:aws:iam::{ACCOUNT}:role/{'.'.join(of) if isinstance(of, list) else of}"
    if list(node) == ["Fn::Sub"]:
        return re.sub(r"\$\{([^}]+)\}", lambda found: str(values[found[1]]), node["Fn::Sub"])
    return {key: resolved(value, values) for key, value in node.items()}


def parameters(template):
    return {name: of["Default"] for name, of in template["Parameters"].items() if "Default" in of}


def arns(template, stack, path, table=None):
    """The ARNs of a stack's resources, by service and by what IAM calls them. An adopted table keeps its name."""
    values = parameters(template) | VALUES | {"AWS::StackName": stack, "SsmPrefix": PREFIXES[stack], "IamPath": path}
    found = {("s3", "object"): ["arn:aws:s3:::code/template.yaml" if stack == STACK else "arn:aws:s3:::mine/template.yaml"]}
    found["lambda", "eventSourceMapping"] = [arn("lambda:R:A:event-source-mapping:0b5e0d1f")]
    for logical, kind, properties in deploy_policy.parts(template):
        if kind in OWN:
            given, parts = OWN[kind]
            name = resolved(properties.get(given), values) or f"{stack}-{logical}-1A2B3C4D5E6F"
            name = table if table and kind == "AWS::DynamoDB::Table" else name
            for part, text in parts.items():
                text = arn(text.format(name.lower() if part == "bucket" else name, path=resolved(properties.get("Path"), values)))
                found.setdefault((text.split(":")[2], part), []).append(text)
    return found


def arn(text):
    service, region, account, name = text.split(":", 3)
    return f"arn:aws:{service}:{REGION if region else ''}:{ACCOUNT if account else ''}:{name}"


def elsewhere(resource):
    """The same resource in another Region and in another account, where its ARN has them."""
    parts = resource.split(":", 5)
    for at, other in ((3, "ap-south-1"), (4, "210987654321")):
        if len(parts) == 6 and parts[at]:
            yield ":".join([*parts[:at], other, *parts[at + 1 :]])


def requests(template, deployed):
    """What deployments of a form of the template ask: action, resource, context, and whether it may be allowed."""
    path, table, boundary = deployed["IamPath"], deployed.get("TableName"), deployed.get("PermissionsBoundary")
    own, others = arns(template, STACK, path, table), arns(template, OTHER, path)
    # A table that another stack has adopted, or that this one has not.
    for kind in [kind for kind in own if kind[0] == "dynamodb"]:
        others[kind] += arns(template, STACK, path, None if table else ADOPTED)[kind]
    own["kms", "key"], others["kms", "key"] = [KEY], [KEY[:-1] + "1"]
    linked = arn(f"iam::A:role/aws-service-role/{deploy_policy.INSIGHTS}/AWSServiceRoleForDynamoDBCloudWatchContributorInsights")
    for action in sorted({*deploy_policy.needed(template), *OF_KEY}):
        service = action.split(":")[0]
        may, context, refused = service != "kms" or "KmsKeyArn" in deployed, {}, []
        if action in SENT:
            _, key, services, never = SENT[action]
            context, refused = {key.lower(): services[0]}, [{}, {key.lower(): never}]
        if boundary and action in UNDER_BOUNDARY:
            context, refused = {BOUND.lower(): boundary}, [{}, {BOUND.lower(): boundary + "2"}]
        if boundary and action == REMOVES_BOUNDARY:
            may, context, refused = False, {BOUND.lower(): boundary}, [{}]
        kinds = [(service, kind) for kind in deploy_policy.known_types(action) if (service, kind) in own]
        resources, foreign = set(), set()
        for kind in kinds:
            tails = deploy_policy.tails(action, kind[1])
            resources |= {resource + tail for resource in own[kind] for tail in tails}
            if kind not in OF_ANY_STACK:
                foreign |= {resource + tail for resource in others.get(kind, ()) for tail in tails}
        if action == "iam:CreateServiceLinkedRole":
            resources, foreign = {linked}, resources | foreign
        for resource in resources or {"*"}:
            yield action, resource, context, may
            yield from ((action, other, context, False) for other in elsewhere(resource))
            if action in SENT:
                yield from ((action, resource, {key.lower(): each}, may) for each in services)
            yield from ((action, resource, each, False) for each in refused)
        yield from ((action, resource, context, False) for resource in foreign)


def of_caller():
    """What the role that starts deployments asks."""
    own, transform = arn(f"cloudformation:R:A:stack/{STACK}/1"), f"arn:aws:cloudformation:{REGION}:aws:transform/Serverless-2016-10-31"
    for name in BY_CALLER:
        yield f"cloudformation:{name}", own, {}, True
        yield from ((f"cloudformation:{name}", other, {}, False) for other in (own.replace(STACK, OTHER), *elsewhere(own)))
    # AWS does not say whether the stack or the change set is asked about.
    for name in ("TagResource", "UntagResource"):
        yield f"cloudformation:{name}", arn("cloudformation:R:A:changeSet/deploy/1"), {}, True
        yield from ((f"cloudformation:{name}", other, {}, False) for other in elsewhere(arn("cloudformation:R:A:changeSet/deploy/1")))
    yield "cloudformation:CreateChangeSet", transform, {}, True
    yield from (("cloudformation:CreateChangeSet", other, {}, False) for other in elsewhere(transform))
    yield "cloudformation:GetTemplateSummary", "*", {}, True
    key = "iam:passedtoservice"
    for name, service, is_allowed in (
        ("CloudFormationRole.Arn", "cloudformation.amazonaws.com", True),
        ("CloudFormationRole.Arn", "lambda.amazonaws.com", False),
        ("admin", "cloudformation.amazonaws.com", False),
    ):
        yield "iam:PassRole", arn(f"iam::A:role/{name}"), {key: service}, is_allowed
        yield from (("iam:PassRole", other, {key: service}, False) for other in elsewhere(arn(f"iam::A:role/{name}")))
    for bucket, is_allowed in (("code", True), ("other", False)):
        yield from ((f"s3:{verb}Object", f"arn:aws:s3:::{bucket}/weirgate", {}, is_allowed) for verb in ("Get", "Put"))
    for action, resource in (("cloudformation:DeleteStack", f"stack/{STACK}/1"), ("cloudformation:UpdateStack", f"stack/{STACK}/1")):
        yield action, arn(f"cloudformation:R:A:{resource}"), {}, False
    yield "dynamodb:DeleteItem", arn(f"dynamodb:R:A:table/{STACK}-Table-1"), {}, False


def untrusted_stacks(role):
    """Wrong answers about stacks for which CloudFormation may assume its role: the one. AWS documents no other key of its request."""
    own = arn(f"cloudformation:R:A:stack/{STACK}/1")
    # MiniStack's services call as root.
    caller = arn("iam::A:root")
    for stack in (own, own.replace(STACK, OTHER), *elsewhere(own), None):
        context = {"aws:sourcearn": stack} if stack else {}
        asks = EvalContext(caller, "Root", ACCOUNT, "sts:AssumeRole", "*", REGION, service_context=context)
        if evaluate_trust_policy(role["AssumeRolePolicyDocument"], caller, asks) != (stack == own):
            yield f"CloudFormationRole for {stack}: must be {'trusted' if stack == own else 'refused'}"


def untrusted(role, repository):
    """Wrong answers about GitHub's jobs that may assume the role that starts deployments: those of one environment."""
    own = f"repo:{repository}:environment:production"
    others = [NAMES, IDS, "acme@1/limits@3", "acme@3/limits@2", "other/limits", "other@1/limits@2"]
    for provider, audience, subject in (
        (VALUES["ProviderArn"], "sts.amazonaws.com", own),
        (VALUES["ProviderArn"] + ".example", "sts.amazonaws.com", own),
        (VALUES["ProviderArn"], "https://github.com/acme", own),
        (VALUES["ProviderArn"], "sts.amazonaws.com", own + "s"),
        (VALUES["ProviderArn"], "sts.amazonaws.com", f"repo:{repository}:ref:refs/heads/main"),
        *((VALUES["ProviderArn"], "sts.amazonaws.com", f"repo:{other}:environment:production") for other in others if other != repository),
    ):
        context = {f"{ISSUER}:aud": audience, f"{ISSUER}:sub": subject}
        asks = EvalContext(provider, "FederatedUser", ACCOUNT, "sts:AssumeRoleWithWebIdentity", "*", REGION, service_context=context)
        must = (provider, audience, subject) == (VALUES["ProviderArn"], "sts.amazonaws.com", own)
        if evaluate_trust_policy(role["AssumeRolePolicyDocument"], provider, asks) != must:
            yield f"CiRole by {provider} {context}: must be {'trusted' if must else 'refused'}"


def misbuilt(resources, deployed):
    """What is not exactly as expected: resources, properties, trust policies and attached policies."""
    managed = [name for name, of in resources.items() if of["Type"] == "AWS::IAM::ManagedPolicy"]
    if {*resources} - {*managed} != {*TRUSTED}:
        yield f"the resources must be policies and {sorted(TRUSTED)}"
    for name in managed:
        if list(resources[name]["Properties"]) != ["PolicyDocument"]:
            yield f"{name} must have a document alone"
    for name, (principal, action, condition) in TRUSTED.items():
        role = resources[name]["Properties"]
        condition = json.loads(json.dumps(condition).replace("REPOSITORY", deployed["Repository"]))
        own = {"ManagedPolicyArns": managed} if name == "CloudFormationRole" else {"Policies": role.get("Policies")}
        statement = {"Effect": "Allow", "Principal": principal, "Action": action, "Condition": condition}
        if role != {"AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [statement]}, **own}:
            yield f"{name} must trust {principal} under {condition}, and have no policies but {own}"
    yield from untrusted_stacks(resources["CloudFormationRole"]["Properties"])
    yield from untrusted(resources["CiRole"]["Properties"], deployed["Repository"])


def malformed(documents, conditions, on_all):
    """Statements with more than actions, resources and the expected condition, and actions that are on * or not."""
    found = set()
    for statement in (each for document in documents for each in document["Statement"]):
        if {*statement} - {"Condition"} != {"Effect", "Action", "Resource"} or statement["Effect"] != "Allow":
            yield f"{statement}: must be of Effect, Action and Resource"
        for action in statement["Action"]:
            if re.search(r"[*?]", action):
                yield f"{action}: must be one action"
            if statement.get("Condition") != conditions.get(action):
                yield f"{action}: its condition must be {conditions.get(action)}"
        if "*" in statement["Resource"]:
            found |= {*statement["Action"]}
    if found != on_all:
        yield f"on * are {sorted(found ^ on_all)} too, or not"


def wrong(documents, asked):
    """The answers that are not those that must be."""
    policies = [parse_policy_document(document) for document in documents]
    for action, resource, context, is_allowed in asked:
        asks = EvalContext("arn:aws:sts::1:assumed-role/deploys/1", "AssumedRole", ACCOUNT, action, resource, REGION, service_context=context)
        if (evaluate(asks, policies).decision == "Allow") != is_allowed:
            yield f"{action} on {resource} {context or ''}: must be {'allowed' if is_allowed else 'refused'}"


def changes(documents):
    """The documents with one change each: its description, the actions that it is about, and the documents."""
    for at, document in enumerate(documents):
        for number, statement in enumerate(document["Statement"]):

            def changed(change, at=at, number=number):
                copied = [*documents]
                copied[at] = copy.deepcopy(documents[at])
                change(copied[at]["Statement"][number])
                # No action or resource at all would be every one.
                copied[at]["Statement"] = [each for each in copied[at]["Statement"] if each["Action"] and each["Resource"]]
                return copied

            actions = statement["Action"]
            for action in actions:
                yield f"without {action} on {statement['Resource']}", [action], changed(lambda of: of["Action"].remove(action))
            for resource in statement["Resource"]:
                yield f"{actions} without {resource}", actions, changed(lambda of: of["Resource"].remove(resource))
                for wider in wider_than(resource):
                    yield f"{actions} with {wider}", actions, changed(lambda of: of["Resource"].append(wider))
            if "Condition" in statement:
                yield f"{actions} without its condition", actions, changed(lambda of: of.pop("Condition"))
            for operator, key, value in values_of(statement.get("Condition", {})):
                rest = [each for each in listed(statement["Condition"][operator][key]) if each != value]
                yield f"{actions} without {key} {value}", actions, changed(lambda of: of["Condition"][operator].update({key: rest}))


def values_of(condition):
    return [(operator, key, value) for operator, keys in condition.items() for key, values in keys.items() for value in listed(values)]


def listed(value):
    return value if isinstance(value, list) else [value]


def wider_than(resource):
    """The resource in every Region, in every account, and with every name that begins with the stack's."""
    parts = resource.split(":", 5)
    for at in (3, 4):
        if len(parts) == 6 and parts[at]:
            yield ":".join([*parts[:at], "*", *parts[at + 1 :]])
    if len(parts) == 6 and STACK in parts[5]:
        yield ":".join([*parts[:5], parts[5][: parts[5].rindex(STACK)] + STACK + "*"])


def problems(resources, asked, by_caller, deployed):
    """All problems of the roles; each change of a role must change an answer."""
    yield from misbuilt(resources, deployed)
    deploys = [of["Properties"]["PolicyDocument"] for of in resources.values() if of["Type"] == "AWS::IAM::ManagedPolicy"]
    starts = [policy["PolicyDocument"] for policy in resources["CiRole"]["Properties"].get("Policies", ())]
    has_key, boundary = "KmsKeyArn" in deployed, deployed.get("PermissionsBoundary")
    conditions = CONDITIONS | ({action: {"StringEquals": {BOUND: boundary}} for action in UNDER_BOUNDARY} if boundary else {})
    yield from (f"CloudFormationRole: {each}" for each in malformed(deploys, conditions, ON_ALL if has_key else ON_ALL - {"kms:ListAliases"}))
    yield from (f"CiRole: {each}" for each in malformed(starts, CI_CONDITIONS, {"cloudformation:GetTemplateSummary"}))
    for name, documents, asks in (("CloudFormationRole", deploys, asked), ("CiRole", starts, by_caller)):
        answers = [*wrong(documents, asks)]
        yield from (f"{name}: {each}" for each in answers)
        # Changes are alike in every deployment; those with a key have all.
        for change, actions, changed in changes(documents) if has_key else ():
            few = [ask for ask in asks if ask[0] in actions]
            if all(each in answers for each in wrong(changed, few)):
                yield f"{name}: {change} the same is allowed: leave it out, or ask for it"


def statement_of(resources, action):
    """The statement of an action in the first policy with it."""
    documents = [of["Properties"]["PolicyDocument"] for of in resources.values() if "PolicyDocument" in of["Properties"]]
    return next(each for document in documents for each in document["Statement"] if action in each["Action"])


def replaced(action, key, old, new):
    """A mistake in the statement of an action: this text of its part in place of another."""

    def change(resources):
        statement = statement_of(resources, action)
        statement[key] = json.loads(json.dumps(statement.get(key)).replace(old, new))

    return change


def of_role(name, change):
    return lambda resources: change(resources[name]["Properties"])


def trust(role):
    return role["AssumeRolePolicyDocument"]["Statement"][0]


ADMIN = "arn:aws:iam::aws:policy/AdministratorAccess"
# Each must be noticed.
MISTAKES = {
    "a removed action": lambda of: statement_of(of, "sqs:CreateQueue")["Action"].remove("sqs:CreateQueue"),
    "an added action": lambda of: statement_of(of, "dynamodb:CreateTable")["Action"].append("dynamodb:GetItem"),
    "GetItem in place of another": replaced("dynamodb:CreateTable", "Action", "DescribeTable", "GetItem"),
    "all actions of a service": replaced("sqs:CreateQueue", "Action", "CreateQueue", "*"),
    "a list of aliases on the key": replaced("kms:ListAliases", "Resource", "*", CHOICES["KmsKeyArn"]),
    "a wide ARN": replaced("iam:CreateRole", "Resource", "-AggregatorRole-*", "-*"),
    "every queue": replaced("sqs:CreateQueue", "Resource", f"{STACK}-DeadLetters-*", "*"),
    "another account": replaced("iam:CreateRole", "Resource", ACCOUNT, "210987654321"),
    "every account": replaced("iam:CreateRole", "Resource", ACCOUNT, "*"),
    "another Region": replaced("sqs:CreateQueue", "Resource", REGION, "ap-south-1"),
    "an added service": replaced("iam:PassRole", "Condition", '"lambda.amazonaws.com"', '"lambda.amazonaws.com", "glue.amazonaws.com"'),
    "a removed condition": lambda of: statement_of(of, "iam:PassRole").pop("Condition"),
    "a key that is used directly": lambda of: statement_of(of, "kms:Decrypt").pop("Condition", None),
    "a key that is used by any service": replaced("kms:Decrypt", "Condition", f"dynamodb.{REGION}", "*"),
    "a key of which DynamoDB makes no grant": lambda of: statement_of(of, "kms:CreateGrant")["Action"].remove("kms:CreateGrant"),
    "a mapping to any function": lambda of: statement_of(of, "lambda:CreateEventSourceMapping").pop("Condition"),
    "everything but": lambda of: statement_of(of, "iam:CreateRole").update(NotAction=["iam:CreateUser"]),
    "policies on the other role": of_role("CiRole", lambda role: role.update(ManagedPolicyArns=["DataPolicy"])),
    "a policy not attached": of_role("CloudFormationRole", lambda role: role["ManagedPolicyArns"].pop()),
    "a policy of its own": of_role("CloudFormationRole", lambda role: role.update(Policies=[])),
}
MISTAKES_UNDER_BOUNDARY = {
    "roles without a boundary": lambda of: statement_of(of, "iam:CreateRole").pop("Condition", None),
    "any boundary": replaced("iam:CreateRole", "Condition", BOUNDARY, "*"),
    "a boundary that can be removed": lambda of: statement_of(of, "iam:GetRole")["Action"].append(REMOVES_BOUNDARY),
    "every table": replaced("dynamodb:CreateTable", "Resource", ADOPTED, "*"),
}
for name in TRUSTED:
    MISTAKES |= {
        f"{name}: any principal": of_role(name, lambda role: trust(role).update(Principal="*")),
        f"{name}: any time": of_role(name, lambda role: trust(role).pop("Condition")),
        f"{name}: one condition less": of_role(name, lambda role: next(iter(trust(role)["Condition"].values())).popitem()),
        f"{name}: AdministratorAccess": of_role(name, lambda role: role.setdefault("ManagedPolicyArns", []).append(ADMIN)),
    }


def mistaken(roles):
    """The values that a parameter must take and does not, and those that it must refuse and does not."""
    for name, (taken, refused) in TAKEN.items():
        pattern = roles["Parameters"].get(name, {}).get("AllowedPattern")
        for value in (*taken, *refused):
            if pattern is None or bool(re.search(pattern, value)) != (value in taken):
                yield f"{name} must {'take' if value in taken else 'refuse'} {value!r}: AllowedPattern is {pattern}"


def main(template_path, roles_path):
    template, found, count = load(template_path), [*mistaken(load(roles_path))], 0
    by_caller = [*of_caller()]
    for number, deployed in enumerate(DEPLOYED):
        written = load(roles_path)
        for name, value in deployed.items():
            written["Parameters"].setdefault(name, {})["Default"] = value
        written = form(written, [])
        values = parameters(written) | VALUES | {"StackName": STACK, "SsmPrefix": PREFIXES[STACK]}
        resources = resolved(written["Resources"], values)
        # All forms, so that an action of one form alone may be listed.
        asked = [ask for chosen in FORMS for ask in requests(form(template, chosen), deployed)]
        asked = [*{json.dumps(ask, sort_keys=True): ask for ask in asked}.values()]
        count += len(asked) + len(by_caller)
        found += [f"{deployed}: {each}" for each in problems(resources, asked, by_caller, deployed)]
        for of in resolved(written["Resources"], values | LONGEST).values():
            text = re.sub(r"\s", "", json.dumps(of["Properties"].get("PolicyDocument")))
            if len(text) > MOST:
                found.append(f"a policy of {len(text)} characters: at most {MOST}")
        for mistake, change in (MISTAKES if number == 0 else MISTAKES_UNDER_BOUNDARY if number == 1 else {}).items():
            changed = copy.deepcopy(resources)
            change(changed)
            if changed == resources or not any(problems(changed, asked, by_caller, deployed)):
                found.append(f"not noticed: {mistake}")
    print(*found, sep="\n", end="\n" if found else "")
    mistakes = len(MISTAKES) + len(MISTAKES_UNDER_BOUNDARY)
    print(f"{roles_path}: {count} requests of {len(DEPLOYED)} deployments, {mistakes} mistakes, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
