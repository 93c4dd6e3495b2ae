"""Deploys, updates and deletes the template on an evaluator of policies, with the roles of scripts/deploy-roles.yaml.

Each action that a handler of CloudFormation calls for a resource of the template is asked of MiniStack's evaluator, on the
ARN that the resource gets, in each form of scripts/variants.py: it must be allowed, and on another stack's resource of the
type it must not be. Without any one of the listed actions, or of the conditions, an answer must be another one.

Usage: check_deploy_roles.py template.yaml scripts/deploy-roles.yaml
"""

import copy
import json
import re
import sys

from ministack.core.iam_evaluator import EvalContext, evaluate, evaluate_trust_policy, parse_policy_document

import deploy_policy
from variants import CHOICES, FORMS, form, load

ACCOUNT, REGION, STACK, OTHER = "123456789012", "eu-west-1", "weirgate", "other"
VALUES = {
    "AWS::AccountId": ACCOUNT,
    "AWS::Region": REGION,
    "AWS::Partition": "aws",
    "CodeBucket": "code",
    "Repository": "acme/limits",
    "ProviderArn": f"arn:aws:iam::{ACCOUNT}:oidc-provider/token.actions.githubusercontent.com",
    "KmsKeyArn": CHOICES["KmsKeyArn"],
}
# A managed policy has at most 6,144 characters.
MOST = 6144
# Per type of CloudFormation: the property with a resource's name, and what IAM calls it and its parts, with their ARNs.
OWN = {
    "AWS::DynamoDB::Table": ("TableName", {"table": "dynamodb:R:A:table/{}", "index": "dynamodb:R:A:table/{}/index/GSI1"}),
    "AWS::Lambda::Function": ("FunctionName", {"function": "lambda:R:A:function:{}"}),
    "AWS::IAM::Role": ("RoleName", {"role": "iam::A:role/{}"}),
    "AWS::IAM::ManagedPolicy": ("ManagedPolicyName", {"policy": "iam::A:policy/{}"}),
    "AWS::Logs::LogGroup": ("LogGroupName", {"log-group": "logs:R:A:log-group:{}"}),
    "AWS::S3::Bucket": ("BucketName", {"bucket": "s3:::{}"}),
    "AWS::SQS::Queue": ("QueueName", {"queue": "sqs:R:A:{}"}),
    "AWS::SNS::Topic": ("TopicName", {"topic": "sns:R:A:{}"}),
    "AWS::CloudWatch::Alarm": ("AlarmName", {"alarm": "cloudwatch:R:A:alarm:{}"}),
    "AWS::CloudWatch::Dashboard": ("DashboardName", {"dashboard": "cloudwatch::A:dashboard/{}"}),
    "AWS::Scheduler::Schedule": ("Name", {"schedule": "scheduler:R:A:schedule/default/{}"}),
    "AWS::SSM::Parameter": ("Name", {"parameter": "ssm:R:A:parameter{}"}),
}
# Restricted actions, with the key of their condition, what CloudFormation sends, and what it never may.
SENT = {
    "iam:PassRole": ("iam:passedtoservice", ["lambda.amazonaws.com", "scheduler.amazonaws.com"], "ec2.amazonaws.com"),
    "iam:CreateServiceLinkedRole": ("iam:awsservicename", [deploy_policy.INSIGHTS], "autoscaling.amazonaws.com"),
}
# What `sam deploy` with a role does as the caller, and the stack's events that it reads.
BY_CALLER = (
    "CreateChangeSet DescribeChangeSet ExecuteChangeSet DeleteChangeSet DescribeStacks DescribeStackEvents DescribeStackResource "
    "DescribeStackResources SetStackPolicy"
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


def arns(template, stack):
    """The ARNs of a stack's resources, by service and by what IAM calls them."""
    values = parameters(template) | VALUES | {"AWS::StackName": stack, "SsmPrefix": f"/{stack}"}
    found = {("s3", "object"): ["arn:aws:s3:::code/template.yaml" if stack == STACK else "arn:aws:s3:::mine/template.yaml"]}
    found["lambda", "eventSourceMapping"] = [arn("lambda:R:A:event-source-mapping:0b5e0d1f")]
    schedules = [
        (event["Properties"], "AWS::Scheduler::Schedule")
        for of in template["Resources"].values()
        for event in of.get("Properties", {}).get("Events", {}).values()
        if event["Type"] == "ScheduleV2"
    ]
    resources = [(of.get("Properties", {}), deploy_policy.OF_SAM.get(of["Type"], of["Type"]), name) for name, of in template["Resources"].items()]
    for properties, kind, *logical in [*resources, *schedules]:
        if kind in OWN:
            named, parts = OWN[kind]
            given = resolved(properties.get(named), values)
            name = given or f"{stack}-{logical[0]}-1A2B3C4D5E6F"
            for part, text in parts.items():
                text = arn(text.format(name.lower() if part == "bucket" else name))
                found.setdefault((text.split(":")[2], part), []).append(text)
    return found


def arn(text):
    service, region, account, name = text.split(":", 3)
    return f"arn:aws:{service}:{REGION if region else ''}:{ACCOUNT if account else ''}:{name}"


def requests(template):
    """What deployments of a form of the template ask: action, resource, context, and whether it may be allowed."""
    own, others = arns(template, STACK), arns(template, OTHER)
    insights = arn(f"iam::A:role/aws-service-role/{deploy_policy.INSIGHTS}/AWSServiceRoleForDynamoDBCloudWatchContributorInsights")
    for action in deploy_policy.needed(template):
        service = action.split(":")[0]
        if service == "kms":
            yield action, CHOICES["KmsKeyArn"], {}, True
            yield action, CHOICES["KmsKeyArn"][:-1] + "1", {}, False
        elif action in SENT:
            key, services, never = SENT[action]
            for resource in own["iam", "role"] if action == "iam:PassRole" else [insights]:
                yield from ((action, resource, {key: each}, True) for each in services)
                yield action, resource, {key: never}, False
            yield from ((action, resource, {key: services[0]}, False) for resource in others["iam", "role"])
        else:
            kinds = [(service, kind) for kind in deploy_policy.known_types(action) if kind in deploy_policy.ARNS.get(service, ())]
            if not kinds:
                yield action, "*", {}, True
            for kind in kinds:
                yield from ((action, resource, {}, True) for resource in own.get(kind, ()))
                are_apart = kind[1] != "eventSourceMapping"
                yield from ((action, resource, {}, False) for resource in others.get(kind, ()) if are_apart)


def of_caller():
    """What the role that starts deployments asks."""
    for stack, is_own in ((STACK, True), (OTHER, False)):
        yield from ((f"cloudformation:{name}", arn(f"cloudformation:R:A:stack/{stack}/1"), {}, is_own) for name in BY_CALLER)
    transform = f"arn:aws:cloudformation:{REGION}:aws:transform/Serverless-2016-10-31"
    yield "cloudformation:CreateChangeSet", transform, {}, True
    yield "cloudformation:GetTemplateSummary", "*", {}, True
    key = "iam:passedtoservice"
    for name, service, is_allowed in (
        ("CloudFormationRole.Arn", "cloudformation.amazonaws.com", True),
        ("CloudFormationRole.Arn", "lambda.amazonaws.com", False),
        ("admin", "cloudformation.amazonaws.com", False),
    ):
        yield "iam:PassRole", arn(f"iam::A:role/{name}"), {key: service}, is_allowed
    for bucket, is_allowed in (("code", True), ("other", False)):
        yield from ((f"s3:{verb}Object", f"arn:aws:s3:::{bucket}/weirgate", {}, is_allowed) for verb in ("Get", "Put"))
    for action, resource in (("cloudformation:DeleteStack", f"stack/{STACK}/1"), ("cloudformation:UpdateStack", f"stack/{STACK}/1")):
        yield action, arn(f"cloudformation:R:A:{resource}"), {}, False
    yield "dynamodb:DeleteItem", arn(f"dynamodb:R:A:table/{STACK}-Table-1"), {}, False


def untrusted(role):
    """Wrong answers about who may assume the role that starts deployments: GitHub's jobs of one environment."""
    document, issuer = role["Properties"]["AssumeRolePolicyDocument"], "token.actions.githubusercontent.com"
    own = "repo:acme/limits:environment:production"
    for provider, audience, subject in (
        (VALUES["ProviderArn"], "sts.amazonaws.com", own),
        (VALUES["ProviderArn"] + ".example", "sts.amazonaws.com", own),
        (VALUES["ProviderArn"], "https://github.com/acme", own),
        (VALUES["ProviderArn"], "sts.amazonaws.com", own + "s"),
        (VALUES["ProviderArn"], "sts.amazonaws.com", "repo:acme/limits:ref:refs/heads/main"),
        (VALUES["ProviderArn"], "sts.amazonaws.com", "repo:other/limits:environment:production"),
    ):
        context = {f"{issuer}:aud": audience, f"{issuer}:sub": subject}
        asks = EvalContext(provider, "FederatedUser", ACCOUNT, "sts:AssumeRoleWithWebIdentity", "*", REGION, service_context=context)
        must = (provider, audience, subject) == (VALUES["ProviderArn"], "sts.amazonaws.com", own)
        if evaluate_trust_policy(document, provider, asks) != must:
            yield f"CiRole by {provider} {context}: must be {'trusted' if must else 'refused'}"


def wrong(documents, asked):
    """The answers that are not those that must be."""
    policies = [parse_policy_document(document) for document in documents]
    for action, resource, context, is_allowed in asked:
        asks = EvalContext("arn:aws:sts::1:assumed-role/deploys/1", "AssumedRole", ACCOUNT, action, resource, REGION, service_context=context)
        if (evaluate(asks, policies).decision == "Allow") != is_allowed:
            yield f"{action} on {resource} {context or ''}: must be {'allowed' if is_allowed else 'refused'}"


def weakened(documents):
    """The documents without each of their actions and conditions."""
    for at, document in enumerate(documents):
        for number, statement in enumerate(document["Statement"]):
            for action in statement["Action"]:
                changed = copy.deepcopy(documents)
                changed[at]["Statement"][number]["Action"].remove(action)
                # No action at all would be every action.
                if not changed[at]["Statement"][number]["Action"]:
                    del changed[at]["Statement"][number]
                yield f"without {action} on {statement['Resource']}", changed
            if "Condition" in statement:
                changed = copy.deepcopy(documents)
                del changed[at]["Statement"][number]["Condition"]
                yield f"without the condition of {statement['Action']}", changed


def main(template_path, roles_path):
    written = form(load(roles_path), ["KmsKeyArn"])
    values = parameters(written) | VALUES | {"StackName": STACK, "SsmPrefix": f"/{STACK}"}
    roles = resolved(written["Resources"], values)
    deploys = [of["Properties"]["PolicyDocument"] for name, of in roles.items() if name.endswith("Policy")]
    starts = [policy["PolicyDocument"] for policy in roles["CiRole"]["Properties"]["Policies"]]
    template, found, count = load(template_path), list(untrusted(roles["CiRole"])), 0
    # All forms, so that an action of one form alone may be listed.
    asked = [ask for chosen in FORMS for ask in requests(form(template, chosen))]
    for name, documents, asks in (("CloudFormationRole", deploys, asked), ("CiRole", starts, list(of_caller()))):
        unique = list({json.dumps(ask, sort_keys=True): ask for ask in asks}.values())
        answers = list(wrong(documents, unique))
        found += [f"{name}: {each}" for each in answers]
        count += len(unique)
        for mistake, changed in weakened(documents):
            if list(wrong(changed, unique)) == answers:
                found.append(f"{name}: {mistake} the same is allowed: leave it out")
    found += [f"a policy of {len(text)} characters: at most {MOST}" for text in (re.sub(r"\s", "", json.dumps(each)) for each in deploys) if len(text) > MOST]
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{roles_path}: {count} requests of deployments, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
