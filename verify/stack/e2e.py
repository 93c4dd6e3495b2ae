"""Deploys the template to an emulated account as it is, drives it, and sees that the table counts every token: `make e2e`.

Then a second stack on the same table, and a release that is deployed by the commands of docs/deployment.md.
"""

import base64
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from account import Account, hold
from built import deploy, lay_out
from fences import BASH, commands, page
from processes import PROGRAMS, ROOT, Failed, run, until

# By resource: what an acquire takes, and how callers of two processes ask for it.
LOADS = {
    "gpt-4": ({"rpm": 1, "tpm": 500}, "openai --limit rpm=100/second,burst=200 --limit tpm=6_000_000/minute --rate 200 --wait 500ms"),
    "tenants": ({"rpm": 1, "tpm": 500}, "tenant --limit rpm=100/second --limit tpm=6_000_000/minute --rate 20 --entities 4"),
    "browsers": ({"slots": 1}, "fleet --limit slots=4 --rate 20 --wait 1s --hold 400ms"),
}
BLOCKS = commands(page("deployment"))
PROCESSOR = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
# What the page's commands name, and what they name here: the emulator knows no metric math and no saved queries, and its
# table goes with it.
HERE = [
    ("template-arm64.yaml", f"template-{PROCESSOR}.yaml"),
    ("AlarmEmail=on-call@example.com", "DeletionProtection=false Alarms=false Dashboard=false"),
]

# Neither the emulator nor the local backend throttles, and the emulator has no metrics.
CHECKED = ("contract, writes", "contract, transactions", "contract, lists", "contract, reads", "contract, reads of the functions",
           "run without faults", "processes on one key", "key with many leases", "killed process", "usage")


def expect(holds, otherwise):
    if not holds:
        raise Failed(otherwise)


def invoked(lambdas, function, event):
    """Returns the answer of a function, which must not fail, to an event of events/."""
    answer = lambdas.invoke(FunctionName=function, Payload=(ROOT / "events" / event).read_bytes())
    payload = json.load(answer["Payload"])
    expect("FunctionError" not in answer, f"{function}: {payload}")
    return payload


def works(lambdas, stack):
    """Both functions of a stack that was not used answer."""
    answer = invoked(lambdas, f"{stack}-aggregator", "aggregator-modify.json")
    expect(answer == {"batchItemFailures": []}, answer)
    answer = invoked(lambdas, f"{stack}-reconciler", "reconciler-schedule.json")
    expect(answer["errors"] == [], answer)
    return answer


def load(environment, resource):
    """Puts a load on a resource, and waits until its hours and days count exactly what was granted."""
    takes, how = LOADS[resource]
    entity, *options = how.split()
    amounts = [f"{limit}={amount}" for limit, amount in takes.items()]
    options += ["--processes", "2", "--in-flight", "16", "--for", "15s"]
    said = run([PROGRAMS / "weirgate", "--json", "--timeout", "30s", "load", entity, resource, *amounts, *options], env=environment)
    granted = json.loads(said)["outcomes"]["granted"]["acquires"]
    expected = {"tokens": {limit: granted * amount for limit, amount in takes.items()}, "acquires": granted}

    def is_counted(interval):
        command = [PROGRAMS / "weirgate", "--json", "usage", "--resource", resource, "--from", "2d", "--by", interval, "--total"]
        return json.loads(run(command, env=environment))["usage"] == expected
    for interval in ("hour", "day"):
        until(lambda of=interval: is_counted(of), f"the {interval}s of {resource} count {expected}")
    return f"{resource}: {expected}"


def drive(account, table):
    """The table counts what callers consumed. Returns a reader of the leases of a holder that was killed."""
    environment = {**account.credentials, "WEIRGATE_TABLE": table}
    _, leases = hold(environment, "killed", "batch-jobs", lease="10s")
    with ThreadPoolExecutor() as loads:
        for said in loads.map(lambda resource: load(environment, resource), LOADS):
            account.say(said)
    def records():
        return sum(line.get("records", 0) for line in account.lines() if isinstance(line, dict))
    until(records, "the aggregator says what it has read")
    account.say(f"usage is exact; the aggregator has read {records()} records")
    return leases


def begin_acceptance(account, table):
    """Tries the table by `weirgate doctor --acceptance`, and a local backend beside it, as on AWS."""
    environment = {**os.environ, **account.credentials, "WEIRGATE_TABLE": table}
    command = [PROGRAMS / "weirgate", "--json", "doctor", "--acceptance", "--yes"]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end_acceptance(account, acceptance):
    """Nothing failed but what is not explained, and what the emulated account has was checked."""
    out, errors = acceptance.communicate(timeout=300)
    expect(acceptance.returncode in (0, 1) and out, f"the acceptance failed ({acceptance.returncode}): {errors[-1000:]}")
    rows = {row["check"]: row for row in json.loads(out)["rows"]}
    for check, row in rows.items():
        account.say(f"{check}: {row['outcome']}, {row['figure'] or row['note']}; local: {row['local'] or row['local_note']}")
        expect(row["outcome"] != "failed", row)
    for check in CHECKED:
        expect(rows[check]["outcome"] == "passed" == rows[check]["local_outcome"], rows[check])


def deploy_beside(account, sam, outputs):
    """A second stack uses the table of the first one: `ExistingTableStreamArn`."""
    name, stream = "weirgate-beside", outputs["TableStreamArn"]
    deploy(account, sam, name, "--parameter-overrides", f"Architecture={PROCESSOR}", "Alarms=false", "Dashboard=false",
           f"ExistingTableStreamArn={stream}")
    own = account.outputs(name)
    for output in ("TableName", "TableArn", "TableStreamArn"):
        expect(own[output] == outputs[output], f"{output} must be {outputs[output]}, got {own[output]}")
    expect(account.client("dynamodb").list_tables()["TableNames"] == [outputs["TableName"]], "the second stack has a table of its own")
    lambdas = account.client("lambda")
    mappings = lambdas.list_event_source_mappings(FunctionName=f"{name}-aggregator")["EventSourceMappings"]
    expect([mapping["EventSourceArn"] for mapping in mappings] == [stream], mappings)
    works(lambdas, name)


def deploy_release(account, outputs):
    """A release is deployed with the AWS CLI alone."""
    folder = account.folder / "dist"
    run([sys.executable, ROOT / "scripts/dist.py", "functions", folder, PROCESSOR, account.folder / "built"])
    environment = {**account.credentials, "PATH": f"{ROOT}/.venv/aws/bin:/usr/bin:/bin", "HOME": str(folder)}
    for block in ("deploy-release", "protect-release"):
        text = BLOCKS[block]
        if block == "deploy-release":
            for there, here in HERE:
                expect(there in text, f"the block {block} of docs/deployment.md must contain {there}")
                text = text.replace(there, here)
        run([*BASH, text], cwd=folder, env=environment)
    own = account.outputs("weirgate")["TableName"]
    expect(own != outputs["TableName"], f"the release's table is {own}")
    lambdas = account.client("lambda")
    sums = (folder / "SHA256SUMS").read_text().splitlines()
    for function in ("aggregator", "reconciler"):
        runs = lambdas.get_function_configuration(FunctionName=f"weirgate-{function}")["CodeSha256"]
        expected = f"{base64.b64decode(runs).hex()}  {function}-{PROCESSOR}.zip"
        expect(expected in sums, f"{function} does not run its zip: {sums}")
    expect(works(lambdas, "weirgate")["buckets_seen"] == 0, "the release's table is not new")


def main():
    account = Account("e2e")
    sam = lay_out(account.folder, "false")
    account.say("sam deploy")
    deploy(account, sam, "weirgate-local")
    outputs = account.outputs("weirgate-local")
    account.say(f"driving {outputs['TableName']}")
    leases = drive(account, outputs["TableName"])
    # The emulator's stream would lag behind both at once.
    acceptance = begin_acceptance(account, outputs["TableName"])
    try:
        account.say("sam deploy of a second stack on the same table")
        deploy_beside(account, sam, outputs)
        account.say("deploying a release with the AWS CLI")
        deploy_release(account, outputs)
        account.say("the acceptance")
        end_acceptance(account, acceptance)
        # No request uses the holder's bucket, so only a schedule can have ended the lease.
        until(lambda: not leases(), "the reconciler returns a killed holder's slots")
    finally:
        acceptance.kill()
        acceptance.wait()
    account.say("done")


if __name__ == "__main__":
    try:
        main()
    except Failed as failed:
        sys.exit(f"e2e: {failed}")
