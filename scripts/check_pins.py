"""Checks that everything which builds, checks or is beside a release is pinned by a checksum: each line of requirements/, each
package of the lock files of npm, each image of the examples for Compose. The Makefile must install from these files alone, and the
examples run the agent without root.

Usage: check_pins.py
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A version, maybe where it is installed, and the checksums, each on a line of its own.
PIN = re.compile(r"[\w.-]+==[\w.!+-]+(?: ; [^\\]+?)?(?: \\\n {4}--hash=sha256:[0-9a-f]{64})+")
# Digests cannot be looked up everywhere, so a deployment states one: Compose refuses to start without the variable.
IMAGE = re.compile(r"[\w./:-]+@sha256:[0-9a-f]{64}|\$\{\w+:\?must be .*by its digest, .*@sha256:\.\.\.\}")
# What the agent needs less than a container has by default.
CONFINED = [
    'user: "65532:65532"',
    "read_only: true",
    "cap_drop: [ALL]",
    'security_opt: ["no-new-privileges:true"]',
    "mem_limit: 256m",
    "pids_limit: 64",
]
# What a recipe of the Makefile may call of pip and npm. `npm install` takes what the lock file does not name.
PIP, NPM = "--no-deps --require-hashes --requirement", {"ci", "pack"}


def requirement_problems(text):
    """Returns the problems of a file of requirements."""
    text = re.sub(r"^#.*\n", "", text, flags=re.M)
    entries = re.split(r"\n(?! )", text.strip("\n"))
    return [f"must be NAME==VERSION with checksums, got {each[:60]!r}; run `make hashes`" for each in entries if not PIN.fullmatch(each)]


def lock_problems(text):
    """Returns the problems of a lock file of npm."""
    packages = json.loads(text)["packages"]
    named = {name: each for name, each in packages.items() if name and not each.get("link")}
    lacking = [name for name, each in named.items() if not each.get("integrity", "").startswith("sha512-")]
    return [f"{name} must have an integrity of SHA-512; write the file with npm 7 or newer" for name in lacking]


def makefile_problems(text):
    """Returns the problems of what the Makefile installs."""
    pip = [line for line in re.findall(r"\bpip3? install\b.*", text) if PIP not in line]
    npm = [call for call, verb in re.findall(r"^\t.*?(\bnpm (\w+)\b)", text, re.M) if verb not in NPM and verb != "is"]
    return [f"pip must have {PIP}, got {line!r}" for line in pip] + [f"npm must be called with {NPM}, got {call!r}" for call in npm]


def compose_problems(text):
    """Returns the problems of a file for Compose."""
    services = re.findall(r"^  (\w+):\n((?:    .*\n)+)", text.partition("services:\n")[2], re.M)
    for name, block in services:
        for image in re.findall(r"^    image: *(.*)", block, re.M) or [None]:
            if image is None or not IMAGE.fullmatch(image):
                yield f"{name}: image must be NAME@sha256:... or a required variable for it, got {image}"
        yield from (f"{name} must have {line!r}" for line in CONFINED if "weirgate-agent" in block and f"    {line}\n" not in block)
    if not services:
        yield "there must be services of Compose, two and four spaces deep"


def problems(root):
    tracked = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True, cwd=root).stdout.split("\n")
    checks = {
        r"requirements/.*\.txt": requirement_problems,
        r"(?:.*/)?package-lock\.json": lock_problems,
        r"(?:.*/)?compose[\w.-]*\.ya?ml": compose_problems,
        "Makefile": makefile_problems,
    }
    for path in tracked:
        for pattern, check in checks.items():
            if re.fullmatch(pattern, path):
                yield from (f"{path}: {problem}" for problem in check((root / path).read_text(encoding="utf-8")))


if __name__ == "__main__":
    found = list(problems(ROOT))
    if found:
        sys.exit("\n".join(found))
    print("pins: every tool has a checksum")
