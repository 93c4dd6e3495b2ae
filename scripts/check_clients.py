"""Installs the clients of a release by their package managers, without a network, and loads them in a program. Sees the
license texts in each archive.

Usage: check_clients.py FOLDER
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from dist import LICENSES, VERSION

PYTHON = f"""
from importlib.metadata import version
import weirgate, weirgate_asgi
assert version("weirgate") == version("weirgate-asgi") == "{VERSION}"
weirgate.Client(), weirgate_asgi.RateLimit
"""
NODE = """
import { Client } from "weirgate";
import { rateLimit } from "weirgate-express";
await new Client().close();
if (typeof rateLimit !== "function") throw new Error("no middleware");
"""
GO = """package main

import "weirgate"

func main() {
	client, err := weirgate.New(weirgate.Options{})
	if err != nil {
		panic(err)
	}
	client.Close()
}
"""


def run(place, *command, **variables):
    """Runs a command in a folder, and fails with all that it printed."""
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, env={**os.environ, **variables})
    if done.returncode != 0:
        sys.exit(f"check_clients: {' '.join(map(str, command))} must succeed, got {done.stdout}{done.stderr}")


def python(folder, place):
    run(place, sys.executable, "-m", "venv", "environment")
    wheels = [folder / f"{name}-{VERSION}-py3-none-any.whl" for name in ("weirgate", "weirgate_asgi")]
    own = place / "environment/bin/python"
    run(place, own, "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", *wheels)
    # Without the folders that this environment adds.
    run(place, own, "-I", "-c", PYTHON)


def node(folder, place):
    (place / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
    packages = [folder / f"{name}-{VERSION}.tgz" for name in ("weirgate", "weirgate-express")]
    run(place, "npm", "install", "--offline", "--silent", "--no-audit", "--no-fund", *packages, npm_config_cache=str(place / "cache"))
    (place / "program.js").write_text(NODE, encoding="utf-8")
    run(place, "node", "program.js")


def go(folder, place):
    run(place, "tar", "-xzf", folder / f"weirgate-go-{VERSION}.tar.gz")
    (place / "main.go").write_text(GO, encoding="utf-8")
    run(place, "go", "mod", "init", "program")
    run(place, "go", "mod", "edit", "-require", "weirgate@v0.0.0", "-replace", f"weirgate=./weirgate-go-{VERSION}")
    run(place, "go", "run", ".", GOPROXY="off", GOFLAGS="-mod=mod")


def names_of(archive):
    """Returns the names of the files of an archive, without their folders."""
    if archive.suffix == ".whl":
        names = zipfile.ZipFile(archive).namelist()
    else:
        with tarfile.open(archive) as packed:
            names = [entry.name for entry in packed if entry.isfile()]
    return {name.rpartition("/")[2] for name in names}


def check_licenses(folder):
    paths = [path for kind in ("*.whl", "*.tgz", "weirgate*.tar.gz") for path in sorted(folder.glob(kind))]
    packages = [path for path in paths if "-linux-" not in path.name]  # The others are of programs.
    if len(packages) < 7:
        sys.exit(f"check_clients: {folder} must have two wheels, two sdists, two npm packages and the Go client, got {packages}")
    for path in packages:
        if missing := set(LICENSES) - names_of(path):
            sys.exit(f"check_clients: {path.name} must contain the license texts, got none of {sorted(missing)}")


def check(folder):
    check_licenses(Path(folder))
    for install in (python, node, go):
        with tempfile.TemporaryDirectory() as place:
            install(Path(folder).resolve(), Path(place))
    print("clients: those for Python, Node and Go install and load")


if __name__ == "__main__":
    check(*sys.argv[1:])
