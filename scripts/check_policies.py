"""Runs parliament over every policy document of the template.

cfn-lint and checkov accept actions that do not exist (`dynamodb:TransactWriteItems` is one); parliament knows all there are,
with the resources and condition keys each one takes. It reads plain JSON, so names of the template are first replaced by
ARNs of the right form. A reference this script does not know is an error, not something to leave out. Each document is
looked at in the forms of scripts/variants.py.

Usage: check_policies.py template.yaml
"""

import json
import re
import sys

import parliament

from variants import CHOICES, forms

ACCOUNT = "123456789012"
REGION = "us-east-1"

# ARN of each attribute that a policy of ours refers to, by type of the resource.
ARNS = {
    ("AWS::DynamoDB::Table", "Arn"): f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{{}}",
    # A real label is a time; parliament would take its colons for parts of the ARN.
    ("AWS::DynamoDB::Table", "StreamArn"): f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{{}}/stream/label",
    ("AWS::Logs::LogGroup", "Arn"): f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/lambda/{{}}:*",
    ("AWS::S3::Bucket", "Arn"): "arn:aws:s3:::{}",
    ("AWS::SQS::Queue", "Arn"): f"arn:aws:sqs:{REGION}:{ACCOUNT}:{{}}",
    ("AWS::SNS::Topic", "Ref"): f"arn:aws:sns:{REGION}:{ACCOUNT}:{{}}",
    ("AWS::Serverless::Function", "Arn"): f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{{}}",
}
REFS = {
    "AWS::AccountId": ACCOUNT,
    "AWS::Region": REGION,
    "AWS::Partition": "aws",
    "AWS::StackName": "stack",
    "AWS::URLSuffix": "amazonaws.com",
    "KmsKeyArn": CHOICES["KmsKeyArn"],
    "ExistingTableStreamArn": CHOICES["ExistingTableStreamArn"],
}

# Findings that are not mended, by document, kind and action, with the reason. One that is no longer found is an error.
SKIPS = {
    (
        "AggregatorRole.Properties.Policies[0].PolicyDocument",
        "RESOURCE_MISMATCH",
        "dynamodb:ListStreams",
    ): "It knows no resource but *, on which it tells of every table. Lambda names it among what a mapping's role must "
    "be allowed on its stream, and takes a role that allows it there, as roles of the Serverless Framework do.",
}


def resolve(node, resources):
    """The node with every Ref, Fn::GetAtt and Fn::Sub replaced by what it could stand for."""
    if isinstance(node, list):
        return [resolve(child, resources) for child in node]
    if not isinstance(node, dict):
        return node
    if "Ref" in node:
        name = node["Ref"]
        return REFS[name] if name in REFS else attribute(name, "Ref", resources)
    if "Fn::GetAtt" in node:
        name = node["Fn::GetAtt"]
        return attribute(*(name if isinstance(name, list) else name.split(".", 1)), resources)
    if "Fn::Sub" in node:
        return re.sub(
            r"\$\{([^}]+)\}",
            lambda m: REFS[m[1]] if m[1] in REFS else attribute(*m[1].split(".", 1), resources),
            node["Fn::Sub"],
        )
    return {key: resolve(child, resources) for key, child in node.items()}


def attribute(name, attr, resources):
    return ARNS[resources[name]["Type"], attr].format(name.lower())


def documents(node, path):
    """Every policy document below the node, with the place it was found at."""
    if isinstance(node, list):
        for i, child in enumerate(node):
            yield from documents(child, f"{path}[{i}]")
    elif isinstance(node, dict) and "Statement" in node:
        yield path, node
    elif isinstance(node, dict):
        for key, child in node.items():
            yield from documents(child, f"{path}.{key}")


def single_actions(document):
    """The document with one action per statement: parliament takes a list for right if any of its actions fits the resource.

    A trust policy has no resource, its role is meant; parliament calls that malformed, so it is given one.
    """
    statements = []
    for statement in document["Statement"]:
        actions = statement["Action"]
        for action in actions if isinstance(actions, list) else [actions]:
            single = {**statement, "Action": action}
            if "Principal" in single and "Resource" not in single:
                single["Resource"] = f"arn:aws:iam::{ACCOUNT}:role/role"
            # Sids must be unique.
            single.pop("Sid", None)
            statements.append(single)
    return {**document, "Statement": statements}


def findings(place, document, resources):
    """What parliament has against the document, as (kind, action, text)."""
    plain = single_actions(resolve(document, resources))
    for finding in parliament.analyze_policy_string(json.dumps(plain)).findings:
        detail = finding.detail[0] if isinstance(finding.detail, list) else finding.detail
        action = detail.get("action") if isinstance(detail, dict) else None
        yield finding.issue, action, f"{place}: {finding.issue}: {finding.detail}"


def main(path):
    errors, skipped, places = set(), set(), set()
    for template in forms(path):
        for place, document in documents(template["Resources"], ""):
            place = place[1:]
            places.add(place)
            try:
                for kind, action, text in findings(place, document, template["Resources"]):
                    if (place, kind, action) in SKIPS:
                        skipped.add((place, kind, action))
                    else:
                        errors.add(text)
            except KeyError as unknown:
                errors.add(f"{place}: no idea what {unknown} stands for; add it to {sys.argv[0]}")
    errors |= {f"{' '.join(skip)}: is skipped, but no longer found: remove it" for skip in SKIPS.keys() - skipped}
    # No documents means that this script has gone blind.
    if not places:
        errors.add("no policy documents found")
    for error in sorted(errors):
        print(f"{path}: {error}")
    print(f"parliament: {len(places)} policy documents, {len(errors)} findings, {len(skipped)} skipped")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
