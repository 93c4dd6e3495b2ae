"""Checks that everything which builds, checks or is beside a release is pinned by a checksum: each line of requirements/, each
package of the lock files of npm; and that the Makefile installs from them alone.

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


def problems(root):
    tracked = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True, cwd=root).stdout.split("\n")
    checks = {r"requirements/.*\.txt": requirement_problems, r"(?:.*/)?package-lock\.json": lock_problems, "Makefile": makefile_problems}
    for path in tracked:
        for pattern, check in checks.items():
            if re.fullmatch(pattern, path):
                yield from (f"{path}: {problem}" for problem in check((root / path).read_text(encoding="utf-8")))


if __name__ == "__main__":
    found = list(problems(ROOT))
    if found:
        sys.exit("\n".join(found))
    print("pins: every tool has a checksum")
