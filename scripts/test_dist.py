"""Sees scripts/dist.py write the same bytes from folders of other names and dates, and refuse what it cannot package; and
scripts/check_dist.py start each function as its source reads its variables.

Usage: test_dist.py
"""

import contextlib
import fnmatch
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
from unittest.mock import patch

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import check_clients
import check_dist
import check_images
import dist
import image
import sbom
from pages import CODE


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
        file = re.sub(r"(arm64|x86_64)\.(zip|tar\.gz|cdx\.json|oci\.tar)$", r"*.\2", name.partition("/")[0])
        check(f"`{file}`" in readme or f"`{file}/`" in readme, f"README.md does not say what {file} is")
    for archive in ["README.md", *(name for name in names if "-linux-" in name and name.endswith(".tar.gz"))]:
        pages = files if archive == "README.md" else check_dist.texts(folder / archive)
        check({"README.md", "docs/guide/agent.md", "docs/security.md"} <= pages.keys(), f"pages of {archive}")
        check_dist.check_links(pages)
    for link in ("docs/nothing.md", "docs/security.md#nothing", "#nothing"):
        broken = files | {"README.md": f"{readme}[here]({link})".encode()}
        check(f"README.md: {link}" in refused(lambda: check_dist.check_links(broken)), f"a dead link: {link}")
    check_dist.check_links(files | {"README.md": f"{readme}`[here](docs/nothing.md)` [there](https://example.com)".encode()})


def check_install(folder, scratch):
    """Sees that the page on installing and the manifests name files and images of the release, and that its archives unpack by the
    commands of the page."""
    page = (dist.ROOT / "docs/guide/install.md").read_text(encoding="utf-8").replace("VERSION", dist.VERSION)
    code = "\n".join(match[0] for match in CODE.finditer(page))
    names = dist.files_of(folder)
    named = re.findall(r"[\w*./-]+\.(?:tar\.gz|oci\.tar|json|yaml|service)\b|\bSHA256SUMS\b", code)
    check(len(named) > 10, f"install.md names {named}")
    for file in named:
        check(fnmatch.filter(names, file) or f"deploy/{file}" in names, f"install.md names {file}, which a release has not")
    tags = set()
    for path in folder.glob("*.oci.tar"):
        with tarfile.open(path) as archive:
            [docker] = json.load(archive.extractfile("manifest.json"))
        tags |= {*docker["RepoTags"]}
    manifests = {name: path.read_text(encoding="utf-8") for name, path in names.items() if name.startswith("deploy/")}
    found = {name: set(re.findall(r"\bweirgate-\w+:\d+\.\d+\.\d+", text)) for name, text in {**manifests, "install.md": code}.items()}
    check(tags == {tag for used in found.values() for tag in used}, f"the images are {tags}, the manifests and the page use {found}")
    for config in (dist.AGENT, dist.LOCAL):
        asked = " ".join(config["Healthcheck"]["Test"][1:])
        check(f"`{asked}`" in page, f"install.md lacks the health check `{asked}`")
    home, usr = scratch / "home", scratch / "usr"
    (usr / "bin").mkdir(parents=True)
    home.mkdir()
    for path in folder.iterdir():
        (home / path.name).symlink_to(path)
    for command in re.findall(r"^(?:tar|sha256sum) .*$", code, re.M):
        subprocess.run(["bash", "-c", command.replace("/usr/local", str(usr))], check=True, cwd=home)
    for program in (home / "bin/weirgate", home / "weirgate-agent", usr / "bin/weirgate", usr / "bin/weirgate-agent"):
        check(program.is_file() and program.stat().st_mode & 0o100, f"the commands of install.md must unpack {program.name}")


def check_recipe():
    """Sees that the recipe of a release builds the programs that it packs, by scripts that there are."""
    recipe = subprocess.run(["make", "--dry-run", "release-build"], check=True, capture_output=True, text=True, cwd=dist.ROOT).stdout
    listed = subprocess.run([sys.executable, "scripts/dist.py", "list"], check=True, capture_output=True, text=True, cwd=dist.ROOT).stdout
    check(listed.split() == [*dist.functions(dist.TEMPLATE).values()], f"dist.py list: {listed}")
    for architecture in dist.ARCHITECTURES:
        builds = [line for line in recipe.splitlines() if f"/{architecture} " in line and "cargo lambda build" in line]
        packages = [package for line in builds for package in re.findall(r"-p (weirgate-[a-z]+)\b", line)]
        lists = [line for line in builds if "scripts/dist.py list" in line]
        check(sorted(packages) == ["weirgate-agent", "weirgate-cli"] and len(lists) == 1, f"{architecture}: {builds}")
    for script in set(re.findall(r"scripts/\w+\.py", recipe)):
        check((dist.ROOT / script).is_file(), f"make release runs {script}, which there is not")


def built_of(packages, target):
    """Returns the crates that cargo builds these packages from, together."""
    command = ["cargo", "tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none", "--target", target]
    command += [each for package in packages for each in ("--package", package)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, cwd=dist.ROOT).stdout.splitlines()
    return {tuple(line.replace(" v", " ").split()[:2]) for line in lines if line}


def check_bills(folder):
    """Sees that each program has a list that the standard allows, of its own bytes and of the crates that it is built from: with the
    features that the programs of one build want together."""
    valid = JsonStrictValidator(SchemaVersion.V1_5)
    together = {binary: f"weirgate-{binary}" for binary in dist.functions(dist.TEMPLATE).values()}
    programs = together | {"weirgate": "weirgate-cli", "weirgate-agent": "weirgate-agent"}
    for architecture in dist.ARCHITECTURES:
        for binary, package in programs.items():
            target = (sbom.FUNCTIONS if binary in together else sbom.PROGRAMS)[architecture]
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


    for name in ("weirgate-agent-image-arm64", "weirgate-local-image-x86_64", "weirgate-pypi", "weirgate-asgi-pypi", "weirgate-npm", "weirgate-express-npm", "weirgate-golang"):
        text = (folder / f"{name}.cdx.json").read_text()
        check(valid.validate_str(text) is None, f"{name}: {valid.validate_str(text)}")
        bill = json.loads(text)
        itself = bill["metadata"]["component"]
        links = {each["url"]: each["hashes"] for each in itself.get("externalReferences", [])}
        links = links or {f"{name.replace('-image', f'-{dist.VERSION}-linux')}.oci.tar": itself["hashes"]}
        for file, [checksum] in links.items():
            check(checksum["content"] == dist.digest(folder / file), f"{name}: the checksum of {file}")
        listed = {each["name"] for each in bill["components"]}
        expected = {"certifi", "ring", "mimalloc"} if "image" in name else {"weirgate"} if name.count("-") > 1 else set()
        check(expected <= listed and (expected or not listed), f"{name} lists {listed}")


def check_images_of(folder, scratch):
    """Sees the images pass, and others fail: of another program, with a shell, of root, too large, or changed."""
    for name, binary in (("weirgate-agent", "weirgate-agent"), ("weirgate-local", "weirgate")):
        for architecture, of_oci in image.ARCHITECTURES.items():
            path = folder / f"{name}-{dist.VERSION}-linux-{architecture}.oci.tar"
            program = (folder.parent / "built" / architecture / binary / "bootstrap").read_bytes()
            size = check_images.checked(path, name, program, of_oci)
            check(0 < size < path.stat().st_size, f"{path.name}: {size}")
            looked = lambda path, program=program, of_oci=of_oci: refused(lambda: check_images.checked(path, name, program, of_oci))
            check("must be the program of the release" in looked(path, program + b"\n"), "another program")
            check("must be for" in looked(path, of_oci="riscv64"), "another processor")

            def other(config, files, programs):
                certificates = {check_images.CERTIFICATES: b"-----BEGIN CERTIFICATE-----"}
                data = image.image("x:1", architecture, {binary: program, **certificates, **files}, 0, config, {binary, *programs})
                (scratch / "other.tar").write_bytes(data)
                return scratch / "other.tar"

            started = {"Entrypoint": [f"/{binary}"]}
            check(check_images.checked(other(started, {}, ()), name, program, of_oci), "an image without more is refused")
            check("only program" in looked(other(started, {"bin/sh": b"#!"}, {"bin/sh"})), "a shell")
            check("must be a number above 0" in looked(other({**started, "User": "0:0"}, {}, ())), "root")
            check("must be a number above 0" in looked(other({**started, "User": "nobody"}, {}, ())), "a name")
            with patch.dict(check_images.MOST, {name: 0}):
                check("MB packed at most" in looked(path), "a large image")
            changed = other(started, {}, ()).read_bytes().replace(b'"linux"', b'"Linux"')
            (scratch / "other.tar").write_bytes(changed)
            check("sha256" in looked(scratch / "other.tar"), "other bytes")


def check_static():
    """Sees which programs ask for an interpreter."""
    number = lambda value, size: value.to_bytes(size, "little")
    header = lambda kind: bytes(32) + number(64, 8) + bytes(14) + number(56, 2) + number(1, 2) + bytes(6) + number(kind, 4)
    check(check_dist.is_dynamic(header(3)) and not check_dist.is_dynamic(header(1)), "an interpreter")
    own = Path(os.path.realpath(sys.executable)).read_bytes()
    check(check_dist.is_dynamic(own), "Python asks for an interpreter")


def check_statement(folder):
    """Sees the provenance of every file, and a changed file missed."""
    paths = dist.files_of(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        check_dist.check_provenance(folder, paths)
    changed = {**paths, "README.md": folder / "SHA256SUMS"}
    check("README.md" in refused(lambda: check_dist.check_provenance(folder, changed)), "a changed file")
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True, cwd=dist.ROOT).stdout.strip()
    check(f'"gitCommit": "{head}"' in (folder / "provenance.json").read_text(), "the commit")


def main():
    check_starts()
    check_static()
    check_recipe()
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
        check_install(one, scratch)
        check_bills(one)
        check_clients.check(one)
        check_images_of(one, scratch)
        check_statement(one)
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
