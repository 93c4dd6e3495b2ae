"""The move of docs/guide/from-zae-limiter.md, with zae-limiter itself on the same local database: `make guides`.

Runs with the Python of .venv/bench, which has zae-limiter.
"""

import contextlib
import json
import os
import pathlib
import re
import socket
import sys
import tempfile
import unittest

from fences import commands, page
from processes import LOCAL, PROGRAMS, ROOT, TARGET, end_with_signals, run, started

BLOCKS = commands(page("guide/from-zae-limiter"))
# Entities with the longest id, whose keys fill more than a page of a query: 1 MB.
ENTITIES = 2_200
# The levels that the table of zae_table.py becomes. The resources disable user-5 too, and user-7 is enabled, with the limits
# of the resource.
LEVELS = """weirgate: 1
system:
  limits:
    rpm: 60/minute
resources:
  gpt-4:
    limits:
      monthly: quota:5000000/month
      rpm: 5/hour
      tpm: 100000/minute,burst=150000
  legacy:
    status: disabled
  old:
    status: disabled
    limits:
      rpm: 30/minute
entities:
  team-a:
    resources:
      gpt-4:
        limits:
          rpm: 1000/day
          tpm: 100000/minute,burst=150000
  user-5:
    limits:
      rpm: 7/minute
    resources:
      legacy:
        status: disabled
      old:
        status: disabled
  user-6:
    resources:
      old:
        status: disabled
        limits:
          rpm: 8/minute
  user-7:
    resources:
      old:
        limits:
          rpm: 30/minute
  user-8:
    status: disabled
    resources:
      gpt-4:
        status: disabled
        limits:
          rpm: 9/minute
  user-9:
    resources:
      gpt-4:
        status: disabled
"""
PARENTS = ["weirgate entities set user-1 --parent team-a --cascades", "weirgate entities set user-5 --parent team-b"]
CHILDREN = "  user-1:\n    parent: team-a\n  user-5:\n    parent: team-b\n    cascades: false\n"
LEFT_OUT = ["left out: system.on_unavailable", "left out: resources.gpt-4.cascade", "left out: resources.internal.disabled: bypass"]


class Move(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        """A checkout as the page expects it, and a local backend."""
        opened = contextlib.ExitStack()
        self.addCleanup(opened.close)
        self.folder = pathlib.Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="weirgate-move-")))
        for name, there in {"client": ROOT / "client", "target": TARGET}.items():
            (self.folder / name).symlink_to(there)
        # The programs are built already.
        (self.folder / "cargo").write_text("#!/bin/sh\n[ \"$1 $2 $3\" = 'build -p weirgate' ]\n")
        (self.folder / "cargo").chmod(0o755)
        self.backend = opened.enter_context(started(LOCAL))
        path = [self.folder, pathlib.Path(sys.executable).parent, PROGRAMS, os.environ["PATH"]]
        self.environment = {
            **os.environ, **self.backend["variables"], "PATH": ":".join(map(str, path)), "AWS_DEFAULT_REGION": "us-east-1",
            "PYTHONPATH": str(ROOT / "clients/python/src"),
        }

    def shell(self, lines, **variables):
        """Runs lines of shell, up to the first that fails. Returns what they printed."""
        return run(["sh", "-ec", lines], cwd=self.folder, env={**self.environment, **variables})

    def table(self, more=""):
        """Makes the table of zae-limiter."""
        self.shell(f"python client/examples/zae_limiter/zae_table.py {self.backend['endpoint_url']} {more}")

    def agent(self):
        command = [PROGRAMS / "weirgate-agent", "--listen", "127.0.0.1:0", "--namespace", "prod"]
        return started(command, env=self.environment)

    def both(self, agent, call):
        """Runs the loop of the page, for calls of a user to this agent. Returns the counts of decisions."""
        of = "client/examples/zae_limiter"
        return self.shell(f"python {of}/zae_both.py {of}/ask_both.py {call}", WEIRGATE_AGENT_URL=agent)

    def exported(self):
        """Runs the block that exports the limits. Returns the lines that it printed on standard error."""
        return self.shell(f"exec 2>&1\n{BLOCKS['take over']}").splitlines()

    def take_over(self):
        """Takes over the limits and the parents, by the blocks of the page."""
        printed = self.exported()
        parents = [line for line in printed if line.startswith("weirgate ")]
        self.assertEqual(parents, PARENTS)
        self.assertEqual([line for line in printed if line not in parents], LEFT_OUT)
        # In a namespace of its own, so that its limits are in the text of an export.
        apply = "weirgate limits plan limits.yaml --out limits.plan && weirgate limits apply limits.plan"
        self.shell(apply, WEIRGATE_NAMESPACE="as-exported")
        self.assertEqual(self.shell("weirgate limits export", WEIRGATE_NAMESPACE="as-exported"), LEVELS)
        self.shell(BLOCKS["apply in shadow mode"])
        self.shell("\n".join(parents), WEIRGATE_NAMESPACE="prod")

    def test_the_blocks_of_the_page_take_limits_over_and_both_decide_alike(self):
        self.table()
        self.take_over()
        expected = re.sub("(?m)^( *)limits:$", r"\1shadow: true\n\g<0>", LEVELS).replace("  user-5:\n", CHILDREN)
        self.assertEqual(self.shell("weirgate limits export", WEIRGATE_NAMESPACE="prod"), expected)
        with self.agent() as agent:
            self.assertEqual(
                self.both(agent["address"], "user-2 8"),
                "zae-limiter: granted, Weirgate: granted: 5\nzae-limiter: denied, Weirgate: denied: 3\n")

    def test_weirgate_fails_no_call_while_zae_limiter_decides(self):
        self.table()
        self.take_over()
        self.shell("weirgate limits set --entity user-3 --disabled --yes", WEIRGATE_NAMESPACE="prod")
        with self.agent() as agent:
            stopped = agent["address"]
            self.assertEqual(self.both(stopped, "user-3 1"), "zae-limiter: granted, Weirgate: denied: 1\n")
            # A failure of the model takes nothing of either.
            self.assertEqual(self.both(stopped, "user-4 6 --fail"), "left: 5\nzae-limiter: failed, Weirgate: rolled back: 6\n")
        with socket.create_server(("127.0.0.1", 0)) as silent:
            hung = f"http://127.0.0.1:{silent.getsockname()[1]}"
            # The limit is 5: the sixth is denied by zae-limiter.
            for agent, user in [(stopped, "user-10"), (hung, "user-11")]:
                self.assertEqual(
                    self.both(agent, f"{user} 6"),
                    "zae-limiter: granted, Weirgate: no decision: 5\nzae-limiter: denied, Weirgate: no decision: 1\n", agent)

    def test_entities_and_children_of_all_pages_are_exported(self):
        self.table(f"--entities {ENTITIES}")
        self.assertEqual(set(self.exported()), {f"weirgate entities set child-{child} --parent team-a" for child in range(5)})
        plan = json.loads(self.shell("weirgate limits diff limits.yaml --json"))
        self.assertEqual(len(plan["configs"]), ENTITIES)


if __name__ == "__main__":
    end_with_signals()
    unittest.main(verbosity=2)
