"""Renders the template for combinations of the choices that its conditions depend on, and sees that each is whole.

In a rendered template nothing may name a resource, parameter or attribute that is not in it, no list of actions or
resources may be empty, and no output may be about what is not there. Over all of them, each condition is met in some and
not in others, and each resource is in some. A parameter that conditions read must have a choice in scripts/variants.py.

Usage: check_conditions.py template.yaml
"""

import re
import sys

from variants import CHOICES, combinations, form, load

# What a choice must make of the template, and must not: conditions are right, not only whole.
TABLE = "AWS::DynamoDB::Table"
EXPECTED = {
    "Alarms": ("AWS::CloudWatch::Alarm", False),
    "AlarmEmail": ("AWS::SNS::Topic", True),
    "MaxHourlyWriteUnits": ("HourlyWritesAlarm", True),
    "ExistingTableStreamArn": (TABLE, False),
    "SsmPrefix": ("AWS::SSM::Parameter", True),
}


def named(node):
    """Every name in Ref, Fn::GetAtt and Fn::Sub below the node."""
    if isinstance(node, list):
        for child in node:
            yield from named(child)
    elif isinstance(node, dict):
        for key, child in node.items():
            if key == "Ref":
                yield child
            elif key == "Fn::GetAtt":
                yield child[0] if isinstance(child, list) else child.split(".")[0]
            elif key == "Fn::Sub":
                # ${aws:...} is IAM's own, and stays in policies.
                yield from (name.split(".")[0] for name in re.findall(r"\$\{([^!}]+)\}", child) if not name.startswith("aws:"))
            else:
                yield from named(child)


def events(resources):
    """The mappings and schedules that SAM makes of a function's events: they are named after both."""
    for name, resource in resources.items():
        for event in resource.get("Properties", {}).get("Events", {}):
            yield f"{name}{event}"


def statements(node):
    if isinstance(node, list):
        for child in node:
            yield from statements(child)
    elif isinstance(node, dict):
        if "Effect" in node:
            yield node
        for child in node.values():
            yield from statements(child)


def problems(template):
    """What is wrong with one rendered template."""
    resources, parameters = template["Resources"], template["Parameters"]
    known = {*resources, *events(resources), *parameters}
    for section in ("Resources", "Outputs"):
        for name, body in template[section].items():
            for other in set(named(body)):
                if not other.startswith("AWS::") and other not in known:
                    yield f"{name} names {other}, which is not there"
    for name, body in resources.items():
        for statement in statements(body):
            if not statement.get("Action") or ("Resource" not in statement and "AssumeRolePolicyDocument" not in body["Properties"]):
                yield f"{name} has a statement without actions or resources"


def unexpected(template, chosen):
    """The choices that do not make of the template what they are for."""
    has = {*template["Resources"], *(resource["Type"] for resource in template["Resources"].values())}
    for choice, (what, is_made) in EXPECTED.items():
        if (what in has) != (is_made == (choice in chosen)):
            yield f"{what} must {'' if is_made == (choice in chosen) else 'not '}be there"
    if "ExistingTableStreamArn" in chosen:
        value = CHOICES["ExistingTableStreamArn"]
        name, arn = value.split("/")[1], value.split("/stream/")[0]
        outputs = [template["Outputs"][output]["Value"] for output in ("TableName", "TableArn", "TableStreamArn")]
        if outputs != [name, arn, {"Ref": "ExistingTableStreamArn"}]:
            yield f"the outputs must be of the existing table, got {outputs}"


def check(template, most=3):
    """The problems of the combinations, each with the first choices that have it; and how many were rendered."""
    errors, met, made, count = {}, {}, set(), 0
    asked = {name for condition in template["Conditions"].values() for name in named(condition)}
    for name in asked ^ CHOICES.keys():
        errors[f"conditions read {sorted(asked)}, scripts/variants.py has choices for {sorted(CHOICES)}: {name} is in one alone"] = []
    if not errors:
        for chosen in combinations(template, most):
            count += 1
            try:
                rendered = form(template, chosen)
            except IndexError:
                errors.setdefault("a part of a parameter is selected that its value does not have", chosen)
                continue
            made |= rendered["Resources"].keys()
            for name, is_met in rendered["Conditions"].items():
                met.setdefault(name, set()).add(is_met)
            for problem in (*problems(rendered), *unexpected(rendered, chosen)):
                errors.setdefault(problem, chosen)
        for name, values in met.items():
            if len(values) == 1:
                errors[f"the condition {name} is always {values.pop()}"] = []
        for name in template["Resources"].keys() - made:
            errors[f"the resource {name} is never made"] = []
    return errors, count


def main(path):
    errors, count = check(load(path))
    for problem, chosen in sorted(errors.items()):
        print(f"{path}: {problem}{f' with {chosen}' if chosen else ''}")
    print(f"conditions: {count} combinations rendered, {len(errors)} problems")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
