"""Pastes the blocks of the guide's first pages one after another, as a reader does: `make guides` and `make envoy`.

The words of a fence say where its block goes:

- `sh`: into the reader's terminal
- `sh terminal`: into a terminal of its own, where it runs until Ctrl-C
- `LANGUAGE FILE`: into this file; one of the checkout (`../weirgate/`) has this text already
- `text output`: nowhere; the block before it prints this, where `...` is anything

Any other block fails, because nothing shows that it works. The reader works in a new folder beside the checkout, and has
the programs on the `PATH`. The pages' ports must be free.
"""

import contextlib
import fcntl
import os
import pathlib
import re
import select
import shutil
import subprocess
import tempfile
import unittest

from fences import blocks, page
from processes import PROGRAMS, ROOT, Failed, end_with_signals, running, terminal

# Seconds for a block, which may compile a program, and for a port.
PATIENCE = 600
# What the reader's shell prints after each block.
PROMPT = "\nthe block has ended\n"
# What runs in the background of a shell ignores Ctrl-C. What is pasted fails at its first command that fails.
BASH = ["env", "--default-signal=INT", "bash", "--norc", "-e"]

TABLE, AGENT, RATE_LIMIT_SERVICE, GATEWAY, UPSTREAM = 8000, 2774, 8081, 10_000, 8080
# Of the Node page's service, and of the agent that changes limits.
SERVICE, ALLOWING = 3000, 2773


def is_as_shown(printed, shown):
    """Returns whether a block printed what its page shows. White space does not count, because a page is narrow."""
    parts = "".join(shown.split()).split("...")
    return re.fullmatch(".*".join(map(re.escape, parts)), "".join(printed.split())) is not None


def section(text, heading):
    """Returns a section of a page, up to the next heading of its level."""
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def environment(place):
    """Returns the environment of a reader. Another value of `CARGO_INCREMENTAL` would build the crates again."""
    home = pathlib.Path.home()
    # As `make envoy` installs it; only its page needs it.
    envoy = (ROOT / ".venv/envoy/lib").glob("*/site-packages/envoy/_bin")
    kept = {name: os.environ[name] for name in ("CARGO_INCREMENTAL",) if name in os.environ}
    return {
        **kept,
        "PATH": ":".join(map(str, [PROGRAMS, *envoy, os.environ["PATH"]])),
        "HOME": str(place / "home"),
        "LANG": "C.UTF-8",
        "USER": "reader",
        "CARGO_HOME": os.environ.get("CARGO_HOME") or str(home / ".cargo"),
        # What Go has compiled of its standard library.
        "GOCACHE": os.environ.get("GOCACHE") or str(home / ".cache/go-build"),
        "RUSTUP_HOME": os.environ.get("RUSTUP_HOME") or str(home / ".rustup"),
    }


class Reader(unittest.TestCase):
    """A reader of pages, with the terminals that are open. They end by Ctrl-C, the last one first."""

    maxDiff = None

    def setUp(self):
        opened = contextlib.ExitStack()
        self.addCleanup(opened.close)
        # Pages share ports, so only one is read at a time, by all processes of this checkout.
        turn = opened.enter_context((PROGRAMS / "blocks.lock").open("w"))
        fcntl.flock(turn, fcntl.LOCK_EX)
        # Has the reader's folder, and the checkout beside it.
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="weirgate-blocks-"))
        opened.callback(shutil.rmtree, self.place, ignore_errors=True)
        for folder in ("home", "first"):
            (self.place / folder).mkdir()
        (self.place / "weirgate").symlink_to(ROOT)
        self.there = {"cwd": self.place / "first", "env": environment(self.place)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.shell = opened.enter_context(running(BASH, start_new_session=True, **pipes, **self.there))
        self.terminals = opened

    def read(self, text, *ports):
        """Pastes the blocks of a page. Each terminal of its own has a port, on which the reader waits. Returns what the
        blocks in the reader's terminal printed."""
        ports, printed = iter(ports), []
        for words, block in blocks(text):
            print(f"```{words}\n{block}```")
            if words == "sh":
                printed.append(self.paste(block))
                print(printed[-1])
            elif words == "sh terminal":
                self.open(block, next(ports))
            elif words == "text output":
                if not is_as_shown(printed[-1], block):
                    self.fail(f"shown:\n{block}\nprinted:\n{printed[-1]}")
            elif len(words.split(" ")) == 2:
                self.write(text, words.split(" ")[1], block)
            else:
                self.fail(f"a block that is not run, {words!r}:\n{block}")
        self.assertEqual(list(ports), [], "each port has a terminal")
        return printed

    def paste(self, block):
        pasted = self.place / "pasted"
        pasted.write_text(block)
        # The shell keeps its variables and its folder, and a program cannot read what is pasted next.
        self.shell.stdin.write(f". {pasted} < /dev/null; printf '%s' '{PROMPT}'\n".encode())
        self.shell.stdin.flush()
        printed = b""
        while not printed.endswith(PROMPT.encode()):
            ready, _, _ = select.select([self.shell.stdout], [], [], PATIENCE)
            more = os.read(self.shell.stdout.fileno(), 65536) if ready else b""
            if not more:
                self.fail(f"it fails:\n{block}\nprinted:\n{printed.decode()}")
            printed += more
        return printed[: -len(PROMPT)].decode()

    def open(self, block, port):
        script, log = (self.place / f"terminal-{port}{of}" for of in ("", ".log"))
        script.write_text(block)
        try:
            with log.open("w") as said:
                self.terminals.enter_context(terminal([*BASH, script], port, PATIENCE, stdout=said, stderr=said, **self.there))
        except Failed as failed:
            self.fail(f"{failed}:\n{block}\n{log.read_text()}")

    def write(self, text, file, block):
        self.assertTrue(f"`{file}`" in text, f"the page names {file}")
        path = self.there["cwd"] / file
        if file.startswith("../weirgate/"):
            self.assertEqual(path.read_text(), block, file)
        else:
            path.write_text(block)


class FirstPages(Reader):
    def test_the_first_page_leads_to_a_denial_in_each_language_and_to_its_usage(self):
        text = page("guide/start")
        self.assertLessEqual(len(text.split()), 600, "the page is short")
        _limits, _curl, *languages, usage = self.read(text, TABLE, AGENT)
        self.assertEqual(len(languages), 3, "Python, Node and Rust")
        for printed in languages:
            lines = [line for line in printed.splitlines() if line]
            self.assertEqual(len(lines), 4, printed)
            for call, line in enumerate(lines, 1):
                self.assertTrue(line.startswith(f"call {call}: {'denied' if call == 4 else 'granted'}"), printed)
        # The usage of the page is what was adjusted, of the calls that were granted.
        self.assertIn("3006", usage)

    def test_the_agents_page_takes_settles_and_reads(self):
        _limits, _acquire, settle, read, in_force, _changed = self.read(page("guide/agent"), TABLE, AGENT, ALLOWING)
        self.assertIn('"settlement":"settled"', settle)
        self.assertIn('"complete_until_ms"', read)
        self.assertIn('"level":{"level":"resource","resource":"gpt-4"},"status":"enforced"', in_force)

    def calls_of(self, name, *ports):
        """The calls of a page work, with the table and the agent of the agent's page."""
        self.read(section(page("guide/agent"), "Run"), TABLE, AGENT)
        self.assertIn("HOW MANY?", self.read(page(name), *ports)[1])

    def test_the_calls_of_the_python_page_work(self):
        self.calls_of("guide/python")

    def test_the_calls_of_the_go_page_work(self):
        self.calls_of("guide/go")

    def test_the_calls_and_the_service_of_the_node_page_work(self):
        self.calls_of("guide/node", SERVICE)


class EnvoyPage(Reader):
    def test_the_envoy_page_runs_a_gateway_that_denies(self):
        self.read(page("guide/envoy"), TABLE, UPSTREAM, RATE_LIMIT_SERVICE, GATEWAY)


class Fences(unittest.TestCase):
    def test_a_block_is_what_is_between_its_fences(self):
        text = "a\n```sh\nls\n\nls\n```\nb\n```text output\n```\n"
        self.assertEqual(blocks(text), [("sh", "ls\n\nls\n"), ("text output", "")])

    def test_output_may_differ_only_where_the_page_leaves_something_out(self):
        for shown, printed in [
            ("a b\n", "a\nb"), ("a ... c", "a b c"), ("a ... c", "a c"), ("... c ... e", "b c d e"), ("a ...", "a b"),
        ]:
            self.assertTrue(is_as_shown(printed, shown), (shown, printed))
        for shown, printed in [
            ("a", "a b"), ("a ... c", "a b"), ("a ... c", "b c"), ("a ... c ... e", "a b d e"), ("a ... b ... b", "a b"),
        ]:
            self.assertFalse(is_as_shown(printed, shown), (shown, printed))


if __name__ == "__main__":
    end_with_signals()
    unittest.main(verbosity=2, buffer=True)
