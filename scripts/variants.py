"""The template as it is deployed: in the forms that its conditions make of it, each Fn::If decided.

A form follows from values of parameters, by the template's own Conditions, so no form is one that no deployment has.
"""

import itertools
import re

from cfnlint.decode import cfn_yaml

# A value other than the default for each parameter that a condition reads. A real label of a stream is a time, whose colons
# parliament would take for parts of the ARN.
CHOICES = {
    "Alarms": "false",
    "MaxHourlyWriteUnits": 8000000,
    "Dashboard": "false",
    "AlarmEmail": "on-call@example.com",
    "RunbookUrl": "https://example.com/operations.md",
    "AlarmTopicArn": "arn:aws:sns:us-east-1:123456789012:on-call",
    "ExistingTableStreamArn": "arn:aws:dynamodb:us-east-1:123456789012:table/mine/stream/2026",
    "DeletionProtection": "false",
    "WarmThroughput": "20000",
    "MaxWriteRequestUnits": 5000,
    "Tracing": "true",
    "KmsKeyArn": "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000",
    "PermissionsBoundary": "arn:aws:iam::123456789012:policy/boundary",
    "ThrottledKeys": "true",
    "CallerPrincipals": "210987654321,arn:aws:iam::210987654321:role/caller",
    "SsmPrefix": "/weirgate/prod",
}
# The form with everything, the one by default, and a table of the deployer's own without and with everything else.
WHOLE = [name for name in CHOICES if name not in ("Alarms", "Dashboard", "ExistingTableStreamArn")]
OWN_TABLE = ["AlarmEmail", "AlarmTopicArn", "ExistingTableStreamArn", "Tracing", "KmsKeyArn", "PermissionsBoundary", "SsmPrefix"]
FORMS = [WHOLE, [], ["ExistingTableStreamArn", "Alarms", "Dashboard"], OWN_TABLE]


def load(path):
    return cfn_yaml.load(path)


def variants(path):
    """The first two forms: with everything, a key among it, and by default."""
    template = load(path)
    yield from (form(template, chosen) for chosen in FORMS[:2])


def forms(path):
    """All of FORMS."""
    template = load(path)
    yield from (form(template, chosen) for chosen in FORMS)


def combinations(template, most):
    """Each of FORMS with at most so many choices changed, but for what the Rules of the template refuse.

    Whatever depends on that many parameters is met in each way that is allowed, among few others and among many.
    """
    changes = [set(names) for count in range(most + 1) for names in itertools.combinations(CHOICES, count)]
    chosen = {frozenset(change.symmetric_difference(names)) for names in FORMS for change in changes}
    for names in sorted([name for name in CHOICES if name in each] for each in chosen):
        if is_allowed(template, names):
            yield names


def is_allowed(template, chosen):
    """Whether the template's Rules let these choices be deployed."""
    known = values(template, chosen)
    for rule in template.get("Rules", {}).values():
        if evaluate(rule["RuleCondition"], known, {}) and not all(evaluate(each["Assert"], known, {}) for each in rule["Assertions"]):
            return False
    return True


def form(template, chosen):
    """The template with these of CHOICES, all other parameters as by default. Conditions says how each was decided."""
    known, decided = values(template, chosen), {}
    for name in template["Conditions"]:
        decided[name] = is_met(template, name, known)
    form = decide({key: value for key, value in template.items() if key not in ("Conditions", "Rules")}, decided, known)
    for section in ("Resources", "Outputs"):
        made = {name: body for name, body in form[section].items() if decided.get(body.get("Condition"), True)}
        form[section] = {name: {key: value for key, value in body.items() if key != "Condition"} for name, body in made.items()}
    form["Conditions"] = decided
    return form


def values(template, chosen):
    known = {name: parameter.get("Default") for name, parameter in template["Parameters"].items()}
    return {**known, **{name: CHOICES[name] for name in chosen}}


def is_met(template, name, known):
    return evaluate(template["Conditions"][name], known, template["Conditions"])


def evaluate(node, known, conditions):
    """The value of a condition, from those of the parameters. CloudFormation compares them as text."""
    if not isinstance(node, dict):
        return str(node)
    ((function, of),) = node.items()
    if function == "Ref":
        return str(known[of])
    if function == "Condition":
        return evaluate(conditions[of], known, conditions)
    parts = [evaluate(part, known, conditions) for part in of]
    return {
        "Fn::Equals": lambda: parts[0] == parts[1],
        "Fn::Not": lambda: not parts[0],
        "Fn::And": lambda: all(parts),
        "Fn::Or": lambda: any(parts),
    }[function]()


def decide(node, decided, known):
    """The node with each Fn::If decided, what is split and selected of a parameter taken from its value, and texts put
    together where what they name is known: Fn::Sub with a name of its own is one without."""
    if isinstance(node, list):
        return [decide(child, decided, known) for child in node if not is_nothing(child, decided)]
    if not isinstance(node, dict):
        return node
    if "Fn::If" in node:
        return decide(node["Fn::If"][1 if decided[node["Fn::If"][0]] else 2], decided, known)
    node = {str(key): decide(child, decided, known) for key, child in node.items() if not is_nothing(child, decided)}
    if "Fn::Split" in node:
        separator, of = node["Fn::Split"]
        return known[of["Ref"]].split(separator)
    if "Fn::Select" in node and isinstance(node["Fn::Select"][1], list):
        index, of = node["Fn::Select"]
        return of[int(index)]
    if isinstance(node.get("Fn::Sub"), list):
        return together(*node["Fn::Sub"])
    return node


def together(text, names):
    """A text with names of its own: an attribute becomes the attribute's name, a value itself."""
    for name, value in names.items():
        if isinstance(value, dict):
            ((function, of),) = value.items()
            value = f"${{{'.'.join(of) if isinstance(of, list) else of}}}"
        text = text.replace(f"${{{name}}}", value)
    return {"Fn::Sub": text} if re.search(r"\$\{", text) else text


def is_nothing(node, decided):
    """Whether the node stands for AWS::NoValue, which leaves out what it is the value of."""
    if isinstance(node, dict) and "Fn::If" in node:
        return is_nothing(node["Fn::If"][1 if decided[node["Fn::If"][0]] else 2], decided)
    return node == {"Ref": "AWS::NoValue"}
