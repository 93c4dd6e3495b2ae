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
    print(f"pins: {len(BAD) + len(RECIPES) + 3} mistakes are refused")


if __name__ == "__main__":
    main()
