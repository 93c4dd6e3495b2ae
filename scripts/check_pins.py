"""Checks that everything which builds, checks or is beside a release is pinned by a checksum: each line of scripts/requirements/, each
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
# One of a release, whose file has a checksum. It must be there already.
LOADED, NEVER_PULLED = re.compile(r"weirgate-(?:agent|local):[\d.]+"), "    pull_policy: never\n"
# What the agent needs less than a container has by default.
CONFINED = [
    'user: "65532:65532"',
    "read_only: true",
    "cap_drop: [ALL]",
    'security_opt: ["no-new-privileges:true"]',
    "mem_limit: 256m",
    "pids_limit: 64",
]
# What a recipe of the Makefile may call of pip, npm and uv. `npm install` takes what the lock file does not name.
PIP, NPM, UV = "--no-deps --require-hashes --requirement", {"ci", "pack"}, ["pip", "compile"]
# What installs or runs what no file of this repository pins.
UNKNOWN = {
    *("npx", "pnpx", "pnpm", "yarn", "corepack", "bun", "bunx", "deno", "uvx", "pipx", "easy_install", "poetry", "conda"),
    *("mamba", "gem", "brew", "cargo-binstall", "curl", "wget"),
}
# What stands before the name of a program: marks of a recipe, words of the shell, variables, programs that run another one.
BEFORE = re.compile(
    r"(?:[@+!{(-]+|(?:if|then|else|elif|do|while|until)\b|(?:sudo|\$\$sudo|env|exec|time|nice|xargs|command)(?: -\S+(?: \d+)?)*(?= )"
    r"|timeout(?: -\S+)* \S+|(?:\S*/)?(?:ba|da)?sh -\w*c\b|\w+=(?:\"[^\"]*\"|'[^']*'|\S)*|[\"'])\s*"
)


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


def commands(text):
    """Yields the commands of the recipes and of the variables of a Makefile, each from the name of its program on."""
    text = re.sub(r"\\\n\s*", " ", text)
    for line in text.split("\n"):
        line = "" if line.startswith("#") else re.sub(r"^[\w.-]+ *[:?+]?= *", "", line)
        # What is said or looked for is not run.
        line = re.sub(r"\becho (?:\"[^\"]*\"|'[^']*')|\bcommand -v \S+", "echo", line)
        for command in re.split(r"&&|[;|&`]|\$\$\(|\$\(shell |<\(", line):
            command = command.strip()
            while before := BEFORE.match(command):
                command = command[before.end() :]
            if command:
                yield command


def command_problem(command):
    """Returns the problem of a command that installs what is not pinned, or None."""
    program, *words = re.sub(r"[\"']", "", command).split() or [""]
    program = program.rpartition("/")[2]
    if re.fullmatch(r".*python[\w.]*|\$\(PYTHON\)", program) and "-m" in words[:-1]:
        program, *words = words[words.index("-m") + 1 :]
    verbs = [word for word in words if word[0] not in "-+"]
    if re.fullmatch(r"pip[\d.]*", program) and {"install", "download", "wheel"} & set(verbs):
        if not re.fullmatch(rf"install (?:--[\w-]+ )*{PIP}(?: \S+)?", " ".join(words)):
            return f"pip must have {PIP} and no package, got {command!r}"
    if program == "npm" and (words or [None])[0] not in NPM:
        return f"npm must be called with {sorted(NPM)}, got {command!r}"
    if program == "cargo" and "install" in verbs and "--locked" not in words:
        return f"cargo install must have --locked, got {command!r}"
    is_unknown = program.rstrip(")") in UNKNOWN or (program == "uv" and words[:2] != UV) or (program == "cargo" and "binstall" in verbs)
    if is_unknown or (program == "go" and {"install", "get", "run"} & set(verbs)):
        return f"a recipe must install by pip, npm or cargo with pins, got {command!r}"
    return None


def makefile_problems(text):
    """Returns the problems of what the Makefile installs, command by command: one that is pinned covers no other one."""
    return [problem for problem in map(command_problem, commands(text)) if problem]


def compose_problems(text):
    """Returns the problems of a file for Compose."""
    text = re.sub(r"^\s*(?:#.*)?\n", "", text, flags=re.M)
    text = re.split(r"^(?=\S)", text.partition("services:\n")[2], maxsplit=1, flags=re.M)[0]
    services = re.findall(r"^  (\S.*)\n((?:   .*\n)*)", text, re.M)
    for name, block in services:
        if not re.fullmatch(r"[\w.-]+:", name):
            yield f"a service must be NAME: and its lines below it, got {name!r}"
        for image in re.findall(r"^    image: *(.*)", block, re.M) or [None]:
            is_loaded = image is not None and LOADED.fullmatch(image) and NEVER_PULLED in block
            if image is None or not (is_loaded or IMAGE.fullmatch(image)):
                yield f"{name}: image must be NAME@sha256:... or a required variable for it, got {image}"
        yield from (f"{name} must have {line!r}" for line in CONFINED if "weirgate-agent" in name + block and f"    {line}\n" not in block)
    if not services:
        yield "there must be services of Compose, two and four spaces deep"


def problems(root):
    tracked = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True, cwd=root).stdout.split("\n")
    checks = {
        r"scripts/requirements/.*\.txt": requirement_problems,
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
