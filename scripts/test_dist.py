"""Sees scripts/dist.py write the same bytes from folders of other names and dates, and refuse what it cannot package; and
scripts/check_dist.py start each function as its source reads its variables.

Usage: test_dist.py
"""

import contextlib
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import check_dist
import dist
import sbom


def built(folder, date):
    """Makes programs that print, as a build leaves them."""
    for architecture in dist.ARCHITECTURES:
        for name in ["weirgate", "weirgate-agent", *dist.functions(dist.TEMPLATE).values()]:
            path = folder / architecture / name / "bootstrap"
            path.parent.mkdir(parents=True)
            path.write_text(f'#!/bin/sh\n# {name} {architecture}\n[ $1 != man ] || echo page > "$2/weirgate.1"\necho "$@"\n')
            path.chmod(0o700)
            os.utime(path, (date, date))
    return folder


def check(holds, otherwise):
    if not holds:
        sys.exit(f"test_dist: {otherwise}")


def refused(call):
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            call()
    except SystemExit as error:
        return str(error)
    sys.exit("test_dist: must be refused, got through")


def check_starts():
    """Sees a function pass that misses the variable which its source reads first, and one fail that misses another."""
    own = next(name for name, names in dist.ARCHITECTURES.items() if platform.machine() in names)
    functions = dist.functions(dist.TEMPLATE).values()
    check(check_dist.FIRST_READ.keys() == set(functions), "check_dist.FIRST_READ must have the functions of the template")
    for binary in functions:
        source = (dist.ROOT / f"functions/{binary}/src/config.rs").read_text(encoding="utf-8")
        variable = re.search(r"required\(&lookup, Self::(\w+)", source)[1]
        start = lambda misses: check_dist.started(f"{binary}-{own}.zip", "bootstrap", f"#!/bin/sh\necho {misses}\n".encode(), own)
        check(start(f"the environment variable {variable} is missing") == "starts", f"{binary} must start")
        check(variable in refused(lambda: start("OTHER is missing")), f"{binary} must print {variable}")
    unknown = lambda: check_dist.expected_of(f"other-{own}.zip", "bootstrap")
    check("FIRST_READ must have other" in refused(unknown), "a function that is not known")


def check_pages(folder, names):
    """Sees that the README has the tested commands and every file, that links resolve in the folder and in the archives, and that
    a dead one is found."""
    files = {name: (folder / name).read_bytes() for name in names}
    readme = files["README.md"].decode()
    deployment = (dist.ROOT / "docs/deployment.md").read_text(encoding="utf-8")
    for block in ("deploy-release", "protect-release"):
        commands = deployment.partition(f"```sh {block}\n")[2].partition("```")[0]
        check(commands and commands in readme, f"README.md lacks the commands of {block}")
    for name in names:
        file = re.sub(r"(arm64|x86_64)\.(zip|tar\.gz|cdx\.json)$", r"*.\2", name.partition("/")[0])
        check(f"`{file}`" in readme or f"`{file}/`" in readme, f"README.md does not say what {file} is")
    for archive in ["README.md", *(name for name in names if name.endswith(".tar.gz"))]:
        pages = files if archive == "README.md" else check_dist.texts(folder / archive)
        check({"README.md", "docs/guide/agent.md", "docs/security.md"} <= pages.keys(), f"pages of {archive}")
        check_dist.check_links(pages)
    for link in ("docs/nothing.md", "docs/security.md#nothing", "#nothing"):
        broken = files | {"README.md": f"{readme}[here]({link})".encode()}
        check(f"README.md: {link}" in refused(lambda: check_dist.check_links(broken)), f"a dead link: {link}")
    check_dist.check_links(files | {"README.md": f"{readme}`[here](docs/nothing.md)` [there](https://example.com)".encode()})


def built_of(packages, target):
    """Returns the crates that cargo builds these packages from, together."""
    command = ["cargo", "tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none", "--no-dedupe", "--target", target]
    command += [each for package in packages for each in ("--package", package)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, cwd=dist.ROOT).stdout.splitlines()
    return {tuple(line.replace(" v", " ").split()[:2]) for line in lines if line}


def check_bills(folder):
    """Sees that each program has a list that the standard allows, of its own bytes and of the crates that it is built from: with the
    features that the programs of one build want together."""
    valid = JsonStrictValidator(SchemaVersion.V1_5)
    together = {binary: f"weirgate-{binary}" for binary in dist.functions(dist.TEMPLATE).values()}
    programs = together | {"weirgate": "weirgate-cli", "weirgate-agent": "weirgate-agent"}
    for architecture, target in sbom.TARGETS.items():
        for binary, package in programs.items():
            text = (folder / f"{binary}-{architecture}.cdx.json").read_text()
            check(valid.validate_str(text) is None, f"{binary}: {valid.validate_str(text)}")
            bill = json.loads(text)
            program = folder.parent / "built" / architecture / binary / "bootstrap"
            itself = bill["metadata"]["component"]
            check(itself["hashes"][0]["content"] == hashlib.sha256(program.read_bytes()).hexdigest(), f"{binary}: its checksum")
            listed = [(each["name"], each["version"]) for each in bill["components"]]
            check(len(listed) == len(set(listed)), f"{binary} lists a crate twice")
            crates = {*listed, (itself["name"], itself["version"])}
            least, most = built_of([package], target), built_of(together.values() if binary in together else [package], target)
            check(least <= crates <= most, f"{binary}: lacks {least - crates}, should not have {crates - most}")
            unsummed = {each["name"] for each in bill["components"] if "hashes" not in each}
            check(unsummed and all(name.startswith("weirgate") for name in unsummed), f"{binary}: no checksum of {unsummed}")


def main():
    check_starts()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        one, other = scratch / "dist", scratch / "another/dist"
        dist.main(["all", one, built(scratch / "built", 1_000_000_000)])
        os.umask(0o077)
        dist.main(["all", other, built(scratch / "elsewhere/built", 1_700_000_000)])
        names = list(dist.files_of(one))
        check(names == list(dist.files_of(other)), "two builds have other files")
        for name in names:
            check((one / name).read_bytes() == (other / name).read_bytes(), f"two builds have other bytes in {name}")
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=one, check=True)
        check(len(names) == len((one / "SHA256SUMS").read_text().splitlines()) + 1, "SHA256SUMS lacks a file")
        check_pages(one, names)

        check_bills(one)
        notices = (one / "THIRD-PARTY").read_text()
        check("\naws-sdk-dynamodb " in notices and "Permission is hereby granted" in notices, "licenses of crates")
        check("\nweirgate" not in notices and "\nproptest" not in notices, "crates that no program contains")

        functions = dist.functions(dist.TEMPLATE).values()
        for architecture in dist.ARCHITECTURES:
            template = (one / f"template-{architecture}.yaml").read_text()
            check("CodeUri: ." not in template, f"{architecture}: code of the checkout is left")
            for binary in functions:
                file = f"{binary}-{architecture}.zip"
                check(template.count(f"CodeUri: {file}\n") == 1, f"the template must name {file} once")
                [entry] = zipfile.ZipFile(one / file).infolist()
                check((entry.filename, entry.external_attr >> 16) == ("bootstrap", 0o100755), f"{file}: {entry}")
            for name in ("stack-policy.json", "restored-table.yaml", "docs/operations.md"):
                check((one / name).stat().st_size > 0, f"{name} is missing")
            [entry] = zipfile.ZipFile(one / f"agent-layer-{architecture}.zip").infolist()
            check(entry.filename == "extensions/weirgate-agent", f"layer: {entry}")
            check(f"ContentUri: agent-layer-{architecture}.zip\n" in (one / "agent-layer.yaml").read_text(), "layer's zip")
            with tarfile.open(one / f"weirgate-{dist.VERSION}-linux-{architecture}.tar.gz") as archive:
                inside = {entry.name.partition("/")[2]: entry.mode for entry in archive}
            read = {f"share/doc/weirgate/{name}" for name in ["THIRD-PARTY", *dist.LICENSES, *dist.pages(dist.VERSION)]}
            expected = {"bin/weirgate", "share/man/man1/weirgate.1", *read, *dist.COMPLETIONS.values()}
            check(set(inside) == expected, f"{architecture}: {set(inside) ^ expected}")
            check({name for name, mode in inside.items() if mode == 0o755} == {"bin/weirgate"}, f"modes: {inside}")

        # A function that is added to the template is among the zips, and one without a binary is an error.
        third = dist.TEMPLATE.replace("  Reconciler:\n", "  Exporter:\n    Type: AWS::Serverless::Function\n    Metadata:\n"
            "      BuildProperties: {Binary: exporter}\n    Properties:\n      Timeout: 1\n\n  Reconciler:\n")
        check("      CodeUri: exporter-arm64.zip\n      Timeout: 1\n" in dist.template_of(third, "arm64"), "a third function")
        nameless = third.replace("      BuildProperties: {Binary: exporter}\n", "")
        check("Exporter must have BuildProperties" in refused(lambda: dist.functions(nameless)), "no binary")
        check("must not exist" in refused(lambda: dist.main(["all", one, scratch / "built"])), "a folder that exists")
        check("arguments" in refused(lambda: dist.main(["functions", scratch / "new", "mips", scratch])), "an architecture")
    print(f"dist: {len(names)} files are the same from two folders")


if __name__ == "__main__":
    main()
