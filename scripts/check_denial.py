"""Runs the commands of docs/guide/install.md that lead from the files of a release to a first denial, by the command line and by the
agent. One shell reads them all at once, as from a paste, and waits for nothing. There is nothing on the path but the system's
programs, and no compiler.

The commands have fixed ports: scripts/alone.py gives them a network of their own.

Usage: check_denial.py FOLDER
"""

import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dist

# Seconds from nothing to the last denial.
MOST = 60
# Printed after each block.
MARK = "-- end of"
# Each block, and what it prints last.
BLOCKS = {"first-denial": "denied", "first-denial-agent": "HTTP/1.1 429 "}


def fail(problem):
    sys.exit(f"check_denial: {problem}")


def commands(name):
    """Returns the commands of a block, for this release and processor."""
    page = (dist.ROOT / "docs/guide/install.md").read_text(encoding="utf-8")
    text = page.partition(f"```sh {name}\n")[2].partition("```")[0]
    if not text:
        fail(f"docs/guide/install.md must have the block {name}")
    own = next(architecture for architecture, names in dist.ARCHITECTURES.items() if platform.machine() in names)
    return text.replace("VERSION", dist.VERSION).replace("x86_64", own)


def main(folder):
    # As the page ends both programs.
    pasted = "".join(f"{commands(name)}echo '{MARK} {name}'\n" for name in BLOCKS) + "kill %1 %2\nwait\n"
    with tempfile.TemporaryDirectory() as home:
        for file in Path(folder).resolve().glob("*.tar.gz"):
            (Path(home) / file.name).symlink_to(file)
        begun = time.monotonic()
        place = {"cwd": home, "env": {"PATH": "/usr/bin:/bin", "HOME": home}, "start_new_session": True, "text": True}
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        shell = subprocess.Popen(["bash"], **streams, **place)
        try:
            said, _ = shell.communicate(pasted, MOST)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            said, _ = shell.communicate()
            fail(f"the denials must come within {MOST} s, got {said}")
    seconds = time.monotonic() - begun
    for name, denial in BLOCKS.items():
        block, mark, said = said.partition(f"{MARK} {name}\n")
        line = next((line for line in block.splitlines() if denial in line), None)
        if not mark or line is None:
            fail(f"{name}: must print {denial!r}, got {block}")
        print(f"{name}: {line.strip()!r}")
    print(f"{seconds:.1f} s from nothing to the last denial")


if __name__ == "__main__":
    main(*sys.argv[1:])
