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
RECIPES = ["\tpip install one", "\t@x/pip install --no-deps --requirement $<", "\tnpm install", "\tcd page && npm i one", "\tnpm exec one"]


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
    check(not check_pins.makefile_problems(f"x = pip install {check_pins.PIP}\n\tnpm ci --prefix one\n"), "a pinned recipe is refused")
    for recipe in RECIPES:
        check(check_pins.makefile_problems(f"all:\n{recipe}\n"), f"got through: {recipe}")
    confined = "".join(f"    {line}\n" for line in check_pins.CONFINED)
    service = lambda image, rest: f"services:\n  agent:\n    image: {image}\n    command: weirgate-agent\n{rest}"
    refused = lambda text: list(check_pins.compose_problems(text))
    for image in ("debian@sha256:" + "0a" * 32, "${IMAGE:?must be one by its digest, NAME@sha256:...}"):
        check(not refused(service(image, confined)), f"refused: {image}")
        for line in check_pins.CONFINED:
            check(refused(service(image, confined.replace(f"    {line}\n", ""))), f"got through without {line}")
        check(refused(service(image, confined.replace("65532", "0"))), "got through: root")
    for image in IMAGES:
        check(refused(service(image, confined)), f"got through: {image}")
    check(refused("services:\n  agent:\n    build: .\n") and refused("version: 3\n"), "got through: no image, no service")
    mistakes = len(BAD) + len(RECIPES) + len(IMAGES) + len(check_pins.CONFINED) + 6
    print(f"pins: {mistakes} mistakes are refused")


if __name__ == "__main__":
    main()
