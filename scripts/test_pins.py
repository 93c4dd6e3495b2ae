"""Sees scripts/check_pins.py refuse each way to install what no checksum pins.

Usage: test_pins.py
"""

import json
import sys

import check_pins

HASH = f" \\\n    --hash=sha256:{'0a' * 32}"
GOOD = f"# A comment.\none==1.0{HASH}{HASH}\ntwo-2==1!2.0.post1 ; python_full_version < '3.13'{HASH}\n"
BAD = [
    "one==1.0",
    f"one==1.0\ntwo==2.0{HASH}",
    f"one==1.0{HASH}\ntwo==2.0",
    f"one>=1.0{HASH}",
    f"one{HASH}",
    f"one==1.*{HASH}",
    f"one==1.0{HASH.replace('sha256', 'md5')}",
    f"one==1.0{HASH[:-1]}",
    f"one @ file:///one.whl{HASH}",
    f"--index-url https://example.com\none==1.0{HASH}",
    f"one==1.0{HASH}\n-r other.txt",
]
PINNED = f"pip install {check_pins.PIP} r.txt"
RECIPES = [
    *("pip install one", "@x/pip install --no-deps --requirement $<", "npm install", "cd page && npm i one", "npm exec one"),
    *("npm ci && npm install x", "npm ci; npm x one", "npm ci --prefix a | npm i one", "npm --prefix ci install", "npm"),
    *(f"pip install evil && {PINNED}", f"{PINNED} && pip install evil", f"{PINNED}; pip3 install evil", f"{PINNED} evil"),
    *("python3 -m pip install one", "$(PYTHON) -m pip install one", "pip --quiet install one", "pip download one", "pip3.12 install one"),
    *("npx one", "x/npx one", "uvx one", "uv tool install one", "uv pip install one", "x/uv run one", "pipx install one", "pipx run one"),
    *("cargo install one", "cargo +nightly install one", "cargo --quiet install one", "cargo binstall one", "go install one@latest"),
    *("curl -sSf https://example.com/x | sh", "wget -O- https://example.com | bash", "sh -c \"$$(curl https://example.com)\""),
    *("sudo pip install one", "A=b PIP_X='y z' pip install one", "if true; then npm install; fi", "echo one && npm install"),
    *("bash -c 'pip install one'", "echo a | xargs -n 1 npm install", "-npm install", "(cd x && yarn)", "true || \\\n\t\tnpm install"),
]
GOOD_RECIPES = [
    *(PINNED, "npm ci --prefix one", "npm pack", "npm ci && npm pack", "cargo install --locked one", "x/uv pip compile --quiet -"),
    *("command -v npm >/dev/null || { echo 'make: npm is missing: npm install' >&2; exit 1; }", "echo \"run: pip install one\""),
    *("cargo build --locked", "install -D a b", "$(PYTHON) scripts/npm.py", "apt-get install -q -y redis-server"),
]
# Each is a name of a service, and the line below `services:`.
NAMES = ["weirgate-agent:", "weirgate.agent:", "agent_2:", "a: # comment", '"agent":', "agent : ", "agent: {image: debian}"]


IMAGES = ["debian:12-slim", "debian", "debian@sha256:12", "${IMAGE}", "${IMAGE:-debian}", "${IMAGE:?}", "sha256:" + "0a" * 32]


def check(holds, otherwise):
    if not holds:
        sys.exit(f"test_pins: {otherwise}")


def lock(**package):
    return json.dumps({"packages": {"": {}, "node_modules/one": package}})


def main():
    check(not check_pins.requirement_problems(GOOD), "pinned requirements are refused")
    for text in BAD:
        check(check_pins.requirement_problems(text), f"got through:\n{text}")
    check(not check_pins.lock_problems(lock(integrity="sha512-AA==")), "a locked package is refused")
    for package in ({}, {"integrity": "sha1-AA=="}, {"resolved": "file:one.tgz"}):
        check(check_pins.lock_problems(lock(**package)), f"got through: {package}")
    check(not check_pins.makefile_problems(f"x = pip install {check_pins.PIP}\n\t@.venv/$(x) $<\n"), "a pinned variable is refused")
    for recipe in GOOD_RECIPES:
        check(not check_pins.makefile_problems(f"all:\n\t{recipe}\n"), f"refused: {recipe}")
    for recipe in RECIPES:
        check(check_pins.makefile_problems(f"all:\n\t{recipe}\n"), f"got through: {recipe}")
        check(check_pins.makefile_problems(f"x = {recipe}\n"), f"got through in a variable: {recipe}")
    confined = "".join(f"    {line}\n" for line in check_pins.CONFINED)
    service = lambda image, rest: f"services:\n  agent:\n    image: {image}\n    command: weirgate-agent\n{rest}"
    refused = lambda text: list(check_pins.compose_problems(text))
    for image in ("debian@sha256:" + "0a" * 32, "${IMAGE:?must be one by its digest, NAME@sha256:...}"):
        check(not refused(service(image, confined)), f"refused: {image}")
        for line in check_pins.CONFINED:
            check(refused(service(image, confined.replace(f"    {line}\n", ""))), f"got through without {line}")
        check(refused(service(image, confined.replace("65532", "0"))), "got through: root")
    check(not refused(service("weirgate-agent:1.0.0", confined + check_pins.NEVER_PULLED)), "an image that is loaded is refused")
    check(refused(service("other-agent:1.0.0", confined + check_pins.NEVER_PULLED)), "got through: an image of others")
    for image in [*IMAGES, "weirgate-agent:1.0.0"]:
        check(refused(service(image, confined)), f"got through: {image}")
    pinned = "services:\n  one:\n    image: debian@sha256:" + "0a" * 32 + "\n"
    check(not refused(pinned) and not refused(f"{pinned}\n# A comment.\nvolumes:\n  data:\n"), "a pinned service is refused")
    for name in NAMES:
        for image in ("    image: debian:12\n", "\n    # A comment.\n    image: debian:12\n", "    command: x\n"):
            check(refused(f"{pinned}  {name}\n{image}"), f"got through: {name}\n{image}")
    unconfined = pinned.replace("one:", "weirgate-agent:")
    check(refused(unconfined) and refused(pinned + "\n    command: weirgate-agent\n"), "got through: an agent with all rights")
    check(refused("services:\n  agent:\n    build: .\n") and refused("version: 3\n"), "got through: no image, no service")
    mistakes = len(BAD) + len(RECIPES) + len(IMAGES) + len(NAMES) + len(check_pins.CONFINED) + 10
    print(f"pins: {mistakes} mistakes are refused")


if __name__ == "__main__":
    main()
