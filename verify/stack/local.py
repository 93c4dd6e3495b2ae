"""Runs both functions on a local table, by the commands of docs/deployment.md as they stand there: `make local-check`."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCKS = dict(re.findall(r"^```sh (\S+)\n(.*?)^```$", (ROOT / "docs/deployment.md").read_text(), re.M | re.S))
# Seconds for the builds that the commands begin with.
PATIENCE = 900


def shell(block):
    return ["bash", "-euo", "pipefail", "-c", BLOCKS[block]]


def listens(port):
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def terminal(block, port):
    """Runs a block that listens on a port, as a terminal of its own would."""
    if listens(port):
        sys.exit(f"local-check: another program listens on {port}: end it")
    process = subprocess.Popen(shell(block), cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + PATIENCE
        while not listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"local-check: the block {block} does not listen on {port}")
            time.sleep(0.1)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def answers(block):
    """Returns the answers of a block: a JSON value on each line."""
    said = subprocess.run(shell(block), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE).stdout
    return [json.loads(line) for line in said.splitlines()]


def main():
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with terminal("local-table", 8000), terminal("watch", 9000):
        events = list((ROOT / "events").glob("aggregator-*"))
        aggregated, reconciled = answers("invoke-aggregator"), answers("invoke-reconciler")
    if aggregated != [{"batchItemFailures": []}] * len(events):
        sys.exit(f"local-check: the aggregator answered {aggregated}")
    if [(run["errors"], run["buckets_seen"]) for run in reconciled] != [([], 0)]:
        sys.exit(f"local-check: the reconciler answered {reconciled}")


if __name__ == "__main__":
    main()
