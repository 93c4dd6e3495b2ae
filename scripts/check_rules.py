"""Holds the template against scripts/rules/template.guard with cfn-guard, in the forms of scripts/variants.py.

cfn-guard-rs has no command of its own, and of a long report it gives only the end. So each rule is run by itself, and
whatever is not a plain "this rule passes" is a failure; the report is only for saying why.

What may stand alone or in a list in a statement is made a list, and a resource a text such as "GetAtt Table.Arn": a rule
about "each resource" would otherwise be about the parts of a {"Fn::GetAtt": [...]} too.

Usage: check_rules.py template.yaml
"""

import json
import re
import sys
from pathlib import Path

try:
    from cfn_guard_rs.cfn_guard_rs import run_checks_rs
except ImportError:
    sys.exit(
        f"cfn-guard-rs is missing: it has no release for Python {sys.version_info.major}.{sys.version_info.minor}. "
        "Remove .venv/validate and run `make validate PYTHON=python3.12` (3.11 or 3.12)."
    )

from variants import forms

RULES = Path(__file__).parent / "rules" / "template.guard"


def rules():
    """Each rule by its name, with what stands before the first: variables that all of them use."""
    shared, *parts = re.split(r"^(?=rule )", RULES.read_text(), flags=re.MULTILINE)
    return {part.split()[1]: shared + part for part in parts}


def failures(template, texts):
    """Those of the rules that the template breaks, each with why; and those that are about nothing in it."""
    broken, idle, document = {}, set(), json.dumps(plain(template))
    for name, text in texts.items():
        try:
            report = run_checks_rs(document, text, False)
        except Exception as error:  # whatever it is, the rule has not passed
            broken[name] = f"cannot be run: {error}"
            continue
        try:
            passed = json.loads(report)
        except json.JSONDecodeError:
            passed = {"status": "FAIL"}
        if passed["status"] == "SKIP" or passed.get("not_applicable") == [name]:
            idle.add(name)
        elif passed["status"] != "PASS" or passed["compliant"] != [name]:
            broken[name] = "; ".join(sorted(set(why(text, report)))) or "the report does not say why"
    return broken, idle


def plain(node):
    """The node with the actions and resources of its statements as lists of text."""
    if isinstance(node, list):
        return [plain(child) for child in node]
    if not isinstance(node, dict):
        return node
    node = {key: plain(child) for key, child in node.items()}
    if "Effect" in node:
        for key in ("Action", "Resource"):
            if key in node:
                values = node[key] if isinstance(node[key], list) else [node[key]]
                node[key] = [reference(value) for value in values]
    return node


def reference(value):
    if not isinstance(value, dict):
        return value
    ((function, to),) = value.items()
    return f"{function.removeprefix('Fn::')} {'.'.join(to) if isinstance(to, list) else to}"


def why(text, report):
    """The messages of the rule that its report names."""
    return [message for message in re.findall(r"<<(.*?)>>", text) if f'"{message}"' in report]


def main(path):
    errors, idle, texts = {}, None, rules()
    for template in forms(path):
        broken, about_nothing = failures(template, texts)
        errors.update(broken)
        idle = about_nothing if idle is None else idle & about_nothing
    for name in sorted(idle):
        errors[name] = "is about nothing in the template, so it checks nothing"
    for name, reason in errors.items():
        print(f"{path}: {name}: {reason}")
    print(f"cfn-guard: {len(texts)} rules, {len(errors)} broken")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
