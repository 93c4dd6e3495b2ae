"""Runs both functions on a local table, by the commands of docs/deployment.md as they stand there: `make local-check`."""

import json
import signal
import sys

from fences import BASH, commands, page
from processes import ROOT, Failed, run, terminal

BLOCKS = commands(page("deployment"))
# Seconds for the builds that the commands begin with.
PATIENCE = 900


def opened(block, port):
    return terminal([*BASH, BLOCKS[block]], port, PATIENCE, signal.SIGTERM, cwd=ROOT)


def answers(block):
    """Returns the answers of a block: a JSON value on each line."""
    return [json.loads(line) for line in run([*BASH, BLOCKS[block]], cwd=ROOT, timeout=PATIENCE).splitlines()]


def main():
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with opened("local-table", 8000), opened("watch", 9000):
        events = list((ROOT / "events").glob("aggregator-*"))
        aggregated, reconciled = answers("invoke-aggregator"), answers("invoke-reconciler")
    if aggregated != [{"batchItemFailures": []}] * len(events):
        sys.exit(f"local-check: the aggregator answered {aggregated}")
    if [(run["errors"], run["buckets_seen"]) for run in reconciled] != [([], 0)]:
        sys.exit(f"local-check: the reconciler answered {reconciled}")


if __name__ == "__main__":
    try:
        main()
    except Failed as failed:
        sys.exit(f"local-check: {failed}")
