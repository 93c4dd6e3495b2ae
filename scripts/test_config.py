"""Sees scripts/check_config.py refuse each mistake that it is there for, and accept a deployer's own choices; and `make deploy`
set the stack policy on a stack that exists, on no other.

Usage: test_config.py samconfig.toml template.yaml
"""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import check_config

ROOT = Path(__file__).resolve().parent.parent

TOPIC = "arn:aws:sns:REGION:ACCOUNT:TOPIC"
OURS = "arn:aws:sns:eu-central-1:123456789012:on-call"

# A change of the shipped file, the environment that is deployed (none: the file as shipped), and the text of the error.
REFUSED = [
    ("environment=pre", "environment=prod", None, "its tags must say environment=pre"),
    ("LogRetentionDays=7", "LogRetention=7", None, "the template has no parameter LogRetention"),
    ("LogRetentionDays=7", "LogRetentionDays=8", "pre", "LogRetentionDays must be one of"),
    ('"DeletionProtection=false", "LogRetentionDays=7"', '"LogRetentionDays=7"', None, "pre: DeletionProtection must be false, got true"),
    ("DeletionProtection=true", "DeletionProtection=false", None, "prod: DeletionProtection must be true, got false"),
    (f', "AlarmTopicArn={TOPIC}"', "", None, "prod: AlarmTopicArn must be there"),
    (TOPIC, "on-call", "prod", "AlarmTopicArn must match"),
    (TOPIC, TOPIC, "prod", "AlarmTopicArn must be a topic of yours"),
    (TOPIC, TOPIC, "local", "got local"),
    (TOPIC, TOPIC, "staging", "got staging"),
    ('stack_name = "weirgate-pre"', "", "pre", "it has no stack_name"),
    ("CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", None, "capabilities must be CAPABILITY_IAM"),
    ("CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND", "default", "capabilities must have CAPABILITY_IAM, got CAPABILITY_AUTO_EXPAND"),
    ('capabilities = "CAPABILITY_IAM"\n', "", "pre", "capabilities must have CAPABILITY_IAM, got None"),
    ("resolve_s3 = true\n", "", "pre", "it has neither resolve_s3 nor s3_bucket"),
    ("LogRetentionDays=7", "SsmPrefix=/aws/limits", "pre", "SsmPrefix must match"),
    ("LogRetentionDays=7", "SsmPrefix=/SSM-limits", "pre", "SsmPrefix must match"),
    ("LogRetentionDays=7", "SsmPrefix=" + "/a" * 15, "pre", "SsmPrefix must match"),
    ("LogRetentionDays=7", "WarmThroughput=1", "pre", "WarmThroughput must match"),
    ("LogRetentionDays=7", "WarmThroughput=3999", "pre", "WarmThroughput must match"),
    ("LogRetentionDays=7", "WarmThroughput=04000", "pre", "WarmThroughput must match"),
    ("LogRetentionDays=7", "SnapshotTtlDays=2", "pre", "SnapshotTtlDays must be from 3 to 3650"),
    ("LogRetentionDays=7", "SnapshotTtlDays=3651", "pre", "SnapshotTtlDays must be from 3 to 3650"),
    ("LogRetentionDays=7", "MaxWriteRequestUnits=-1", "pre", "MaxWriteRequestUnits must be 0 or more"),
    ("LogRetentionDays=7", "SnapshotTtlDays=9d", "pre", "SnapshotTtlDays must be from 3 to 3650"),
    ("LogRetentionDays=7", "RetentionDays=7", None, "the template has no parameter RetentionDays"),
    ('"Alarms=false", ', "", None, "local: Alarms must not be on"),
    ("LogRetentionDays=7", "Alarms=false", None, "pre: Alarms must be on"),
    (TOPIC, "", "prod", "neither AlarmTopicArn nor AlarmEmail"),
    (f"AlarmTopicArn={TOPIC}", "Alarms=false", "prod", "neither AlarmTopicArn nor AlarmEmail"),
    (f"AlarmTopicArn={TOPIC}", "AlarmEmail=on-call", "prod", "AlarmEmail must match"),
    ('["Architecture=x86_64", "DeletionProtection=false", "Alarms=false", "Dashboard=false"]\ncap', '["DeletionProtection=false", "Alarms=false", "Dashboard=false"]\ncap', None,
     "Architecture must be the same"),
    ('on_failure = "DELETE"\n', "", None, "prod: on_failure must be DELETE, got None"),
    ("[pre.", "[staging.", None, "environments must be"),
    ("version = 0.1\n", 'version = 0.1\n[bare.global.parameters]\nstack_name = "bare"\n', "bare", "capabilities must have CAPABILITY_IAM"),
    ('["DeletionProtection=false", "LogRetentionDays=7"]', "{LogRetentionDays = 8}", "pre", "LogRetentionDays must be one of"),
    ('["DeletionProtection=false", "LogRetentionDays=7"]', '"ParameterKey=LogRetention,ParameterValue=7"', "pre",
     "the template has no parameter LogRetention"),
    *((mistake, text, "pre", f"parameter_overrides must be Key=Value, got {got}; write it so")
      for mistake, text, got in [("LogRetentionDays=7", "LogRetentionDays:7", "LogRetentionDays:7"), ("LogRetentionDays=7", "LogRetentionDays", "LogRetentionDays"),
                                 ('"LogRetentionDays=7"', '"LogRetentionDays", "7"', "7"), ("LogRetentionDays=7", "", "")]),
]
# What a deployer may choose.
ACCEPTED = [
    (TOPIC, OURS, "prod"),
    ('parameter_overrides = ["DeletionProtection=false", "LogRetentionDays=7"]', f'parameter_overrides = ["AlarmTopicArn={OURS}"]', "pre"),
    ('stack_name = "weirgate"\n', 'stack_name = "limits"\n', "default"),
    ("[pre.", "[staging.", "staging"),
    ("environment=pre", "stage=test", "pre"),
    ("LogRetentionDays=7", "SsmPrefix=/weirgate/aws/ssm", "pre"),
    ("LogRetentionDays=7", "SsmPrefix=" + "/a" * 14, "pre"),
    *(("LogRetentionDays=7", f"WarmThroughput={units}", "pre") for units in (0, 4000, 9999, 10000, 40000)),
    *(("LogRetentionDays=7", f"SnapshotTtlDays={days}", "pre") for days in (3, 3650)),
    ("LogRetentionDays=7", "MaxWriteRequestUnits=0", "pre"),
    ("CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "pre"),
    ('"CAPABILITY_IAM"', '["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM"]', "pre"),
    ("resolve_s3 = true", 's3_bucket = "artefacts"', "pre"),
    ('["DeletionProtection=false", "LogRetentionDays=7"]', '"DeletionProtection=false LogRetentionDays=7"', "pre"),
    (TOPIC, OURS, "default"),
    (f"AlarmTopicArn={TOPIC}", "AlarmEmail=on-call@example.com", "prod"),
    (TOPIC, f'{OURS}", "AlarmEmail=on-call@example.com', "prod"),
    ('"LogRetentionDays=7"', '"Alarms=false"', "pre"),
    ('["DeletionProtection=false", "LogRetentionDays=7"]', '{DeletionProtection = "false", LogRetentionDays = "7"}', "pre"),
    ('["DeletionProtection=false", "LogRetentionDays=7"]',
     '"ParameterKey=DeletionProtection,ParameterValue=false ParameterKey=LogRetentionDays,ParameterValue=7"', "pre"),
    # For all commands.
    ('stack_name = "weirgate-pre"\n', 'stack_name = "weirgate-pre"\ncapabilities = "CAPABILITY_IAM"\nresolve_s3 = true\n[bare.global.parameters]\n'
     'stack_name = "bare"\ncapabilities = "CAPABILITY_IAM"\nresolve_s3 = true\n', "bare"),
]


def run(text, template, environment):
    """The exit code, and what was printed."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            code = check_config.main(file.name, template, *([environment] if environment else []))
    return code, said.getvalue()


# The commands of `make deploy` as make prints them, with a CLI and a `sam` that write down what they are asked.
FAKE = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$*" in *describe-stacks*) echo "$STATUS"; case "$STATUS" in "An error"*) exit 254 ;; esac ;; esac
"""
ERROR = "An error occurred (%s) when calling the DescribeStacks operation: %s"
ABSENT = ERROR % ("ValidationError", "Stack with id weirgate-pre does not exist")
EXPIRED = ERROR % ("ExpiredToken", "The security token included in the request is expired")


def calls(status, settings="", environment="pre"):
    """The exit code of `make deploy`, and what it asks, in its order, if that is the answer about the stack after the deployment,
    and the environment has these settings too."""
    printed = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "--old-file=cargo", "--old-file=.venv/sam/.cross",
         "--old-file=.venv/aws/.installed", "deploy", f"ENV={environment}"],
        cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for name in ("sam", "aws"):
            (folder / f".venv/{name}/bin").mkdir(parents=True)
            (folder / f".venv/{name}/bin/{name}").write_text(FAKE)
            (folder / f".venv/{name}/bin/{name}").chmod(0o755)
        (folder / ".venv/sam/bin/python").symlink_to(sys.executable)
        for name in ("scripts", "template.yaml", "stack-policy.json"):
            (folder / name).symlink_to(ROOT / name)
        shipped = (ROOT / "samconfig.toml").read_text()
        of_deploy = f"[{environment}.deploy.parameters]\n"
        (folder / "samconfig.toml").write_text(shipped.replace(of_deploy, of_deploy + settings))
        environment = {**os.environ, "CALLS": str(folder / "calls"), "STATUS": status}
        script = printed.replace(str(ROOT), str(folder))
        ran = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment, capture_output=True)
        return ran.returncode, [line.rstrip("\n") for line in open(folder / "calls")]


def tests_of_deploy():
    before = ["sam build --config-env pre", "sam deploy --config-env pre"]
    policy = "cloudformation set-stack-policy --stack-policy-body file://stack-policy.json --stack-name weirgate-pre"
    for settings, place in (("", ""), ('region = "eu-west-1"\n', "--region eu-west-1 "),
                            ('profile = "of pre"\nregion = "eu-west-1"\n', "--region eu-west-1 --profile of pre ")):
        for status, expected, is_set in (
                ("CREATE_COMPLETE", 0, True), ("UPDATE_COMPLETE", 0, True), ("REVIEW_IN_PROGRESS", 0, False), (ABSENT, 0, False),
                (EXPIRED, 1, False)):
            code, asked = calls(status, settings)
            of_stacks = [call for call in asked[2:] if call.startswith(f"aws {place}cloudformation ")]
            yield f"{settings}{status}: {code} {asked}", (
                asked[:2] == before and of_stacks == asked[2:] and code == expected
                and (asked[-1] == f"aws {place}{policy}") == is_set)


def main(path, template):
    with open(path) as file:
        shipped = file.read()
    failures = []
    for before, after, environment, error in REFUSED:
        assert before in shipped, f"{path} has no {before!r}"
        code, said = run(shipped.replace(before, after), template, environment)
        if code != 1 or error not in said:
            failures.append(f"{before!r} -> {after!r} for {environment}: {error!r} expected, got {code}: {said}")
    for before, after, environment in ACCEPTED:
        assert before in shipped, f"{path} has no {before!r}"
        text = shipped.replace(before, after)
        code, said = run(text, template, environment)
        if code != 0:
            failures.append(f"{before!r} -> {after!r} for {environment}: it must pass, got {said}")
    failures += [f"make deploy: {what}" for what, holds in tests_of_deploy() if not holds]
    print(*failures, sep="\n", file=sys.stderr)
    if not failures:
        print(f"check_config.py: {len(REFUSED)} mistakes refused, {len(ACCEPTED)} choices accepted")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
