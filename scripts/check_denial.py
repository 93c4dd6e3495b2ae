"""Runs the commands of docs/guide/install.md that lead from the files of a release to a first denial, by the command line and by the
agent. There is nothing on the path but the system's programs, and no compiler.

The commands have fixed ports: scripts/alone.py gives them a network of their own.

Usage: check_denial.py FOLDER
"""

import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dist

# Seconds from nothing to the last denial.
MOST = 60
# Each block, and what its last command prints.
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
    return text.replace("VERSION", dist.VERSION).replace("x86_64", own).splitlines()


def main(folder):
    begun, started = time.monotonic(), []
    with tempfile.TemporaryDirectory() as home:
        for file in Path(folder).resolve().glob("*.tar.gz"):
            (Path(home) / file.name).symlink_to(file)
        place = {"cwd": home, "env": {"PATH": "/usr/bin:/bin", "HOME": home}, "text": True}
        try:
            for name, denial in BLOCKS.items():
                for command in commands(name):
                    if command.endswith(" &"):
                        begin = ["bash", "-c", f"exec {command.removesuffix(' &')}"]
                        started.append(subprocess.Popen(begin, stdout=subprocess.PIPE, **place))
                        # It listens when it prints.
                        started[-1].stdout.readline()
                    else:
                        done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=MOST, **place)
                line = next((line for line in done.stdout.splitlines() if denial in line), None)
                if line is None:
                    fail(f"{name}: the last command must print {denial!r}, got {done}")
                print(f"{name}: {line.strip()!r}, {time.monotonic() - begun:.1f} s from nothing")
        finally:
            for process in started:
                process.terminate()
                process.wait()
    if time.monotonic() - begun > MOST:
        fail(f"the denials must come within {MOST} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
