"""Sees scripts/check_conditions.py notice each mistake that it is there for.

Usage: test_conditions.py template.yaml
"""

import sys
import tempfile

from check_conditions import check
from variants import is_allowed, load

OWN = "!If [OwnsTable, !GetAtt Table.Arn, !Select [0, !Split [/stream/, !Ref ExistingTableStreamArn]]]"
# A change of the template, and the text of the problem.
MISTAKES = [
    (f"Resource: {OWN}", "Resource: !GetAtt Table.Arn", "names Table, which is not there"),
    ("TABLE_NAME: !If [OwnsTable, !Ref Table, ", "TABLE_NAME: !If [OwnsTable, !Ref AlarmTopic, ", "names AlarmTopic, which is not there"),
    ("!If [HasAlarmEmail, !Ref AlarmTopic, !Ref AWS::NoValue]", "!Ref AlarmTopic", "names AlarmTopic, which is not there"),
    ("Value: !Ref Reconciler\n", "Value: !Ref Reconcilers\n", "ReconcilerName names Reconcilers, which is not there"),
    ("${RunbookUrl}#the-reconciler", "${RunbookUri}#the-reconciler", "names RunbookUri, which is not there"),
    ('  OwnsTable: !Equals [!Ref ExistingTableStreamArn, ""]', '  OwnsTable: !Not [!Equals [!Ref ExistingTableStreamArn, ""]]',
     "a part of a parameter is selected that its value does not have"),
    ("    Condition: OwnsTable\n", "", "AWS::DynamoDB::Table must not be there"),
    ('  HasAllAlarms: !Equals [!Ref Alarms, "true"]', '  HasAllAlarms: !Equals [!Ref Alarms, "yes"]', "the condition HasAllAlarms is always False"),
    ('  Traces: !Equals [!Ref Tracing, "true"]', '  Traces: !Equals [!Ref LogLevel, "TRACE"]', "LogLevel is in one alone"),
    ("!Select [1, !Split [/, !Ref ExistingTableStreamArn]]]\n", "!Select [0, !Split [/, !Ref ExistingTableStreamArn]]]\n",
     "the outputs must be of the existing table"),
    ("                  Action: [xray:PutTelemetryRecords, xray:PutTraceSegments]\n", "                  Action: []\n",
     "has a statement without actions"),
]
# Choices that the template's Rules refuse, and some that they must not.
REFUSED = [
    ["ExistingTableStreamArn", "WarmThroughput"],
    ["ExistingTableStreamArn", "MaxWriteRequestUnits"],
    ["ExistingTableStreamArn", "ThrottledKeys"],
    ["ExistingTableStreamArn", "CallerPrincipals"],
    ["Alarms", "AlarmEmail"],
    ["Alarms", "AlarmTopicArn"],
    ["Alarms", "MaxHourlyWriteUnits"],
]
ALLOWED = [[], ["Alarms"], ["MaxHourlyWriteUnits"], ["ExistingTableStreamArn"], ["ExistingTableStreamArn", "SsmPrefix"], ["AlarmEmail", "AlarmTopicArn"], ["WarmThroughput", "MaxWriteRequestUnits"]]


def main(path):
    with open(path) as file:
        text = file.read()
    failures = []
    for before, after, problem in MISTAKES:
        assert before in text, f"{path} has no {before!r}"
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text.replace(before, after))
            file.flush()
            errors, _ = check(load(file.name), most=2)
        if not any(problem in error for error in errors):
            failures.append(f"{before!r} -> {after!r}: {problem!r} expected, got {sorted(errors)}")
    template = load(path)
    for chosen, expected in [*((each, False) for each in REFUSED), *((each, True) for each in ALLOWED)]:
        if is_allowed(template, chosen) != expected:
            failures.append(f"{chosen} must {'' if expected else 'not '}be deployable")
    print(*failures, sep="\n", end="\n" if failures else "", file=sys.stderr)
    if not failures:
        print(f"check_conditions.py: {len(MISTAKES)} mistakes noticed, {len(REFUSED)} choices refused")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
