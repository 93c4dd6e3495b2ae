"""Writes the files of a release into a new folder: zips for Lambda, archives for Linux, templates, packages, pages, checksums.

The same binaries make the same bytes. All entries of an archive have one date and no owner, and they are sorted. The date is
none of a commit, because a zip with other bytes is another deployment of a function.

Usage: dist.py all FOLDER BUILT                  everything, from BUILT/{architecture}/{binary}/bootstrap
       dist.py functions FOLDER ARCHITECTURE BUILT   the functions and their template, from BUILT/{binary}/bootstrap
       dist.py list                              prints the binaries of the functions
"""

import gzip
import hashlib
import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path

from notices import notices_of
from pages import pages
from sbom import bills

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = (ROOT / "template.yaml").read_text(encoding="utf-8")
VERSION = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(encoding="utf-8"), re.M)[1]
# The names of Lambda and of the template, and those that the operating system has for this machine.
ARCHITECTURES = {"arm64": {"aarch64", "arm64"}, "x86_64": {"x86_64", "AMD64"}}
# The first date that a zip can have.
DATE, EPOCH = (1980, 1, 1, 0, 0, 0), 315532800
LICENSES = ["LICENSE-APACHE", "LICENSE-MIT"]
# What the commands of docs/deployment.md and of the runbook read.
BESIDE = ["stack-policy.json", "scripts/restored-table.yaml"]
FUNCTION = re.compile(r"^  (\w+):\n    Type: AWS::Serverless::Function\n(?:(?:    .*)?\n)*", re.M)
COMPLETIONS = {
    "bash": "share/bash-completion/completions/weirgate",
    "fish": "share/fish/vendor_completions.d/weirgate.fish",
    "zsh": "share/zsh/site-functions/_weirgate",
}


def functions(template):
    """Returns the binary of each function, by its logical name."""
    found = {}
    for block in FUNCTION.finditer(template):
        binary = re.search(r"^      BuildProperties: \{Binary: ([\w-]+)\}$", block[0], re.M)
        if binary is None:
            sys.exit(f"dist: {block[1]} must have BuildProperties: {{Binary: ...}}; write the name of its binary there")
        found[block[1]] = binary[1]
    return found


def replaced(text, old, new):
    """Replaces the only occurrence of `old`."""
    if text.count(old) != 1:
        sys.exit(f"dist: template must contain this once, got {text.count(old)} times; adapt scripts/dist.py:\n{old}")
    return text.replace(old, new)


def template_of(template, architecture):
    """Returns the template with the zips of one architecture, which `aws cloudformation package` uploads."""
    binaries = functions(template)

    def with_code(block):
        code = f"\n    Properties:\n      CodeUri: {binaries[block[1]]}-{architecture}.zip\n"
        return replaced(block[0], "\n    Properties:\n", code)

    text = replaced(FUNCTION.sub(with_code, template), "    CodeUri: .\n", "")
    return replaced(
        text,
        "    Default: arm64\n    AllowedValues: [arm64, x86_64]\n",
        f"    Default: {architecture}\n    AllowedValues: [{architecture}]\n",
    )


def layer_template():
    text = (ROOT / "agent/layer/template.yaml").read_text(encoding="utf-8")
    blocks = re.split(r"^(?=  \w+:\n    Type: AWS::Serverless::LayerVersion\n)", text, flags=re.M)
    for at, block in enumerate(blocks[1:], 1):
        architecture = re.search(r"BuildArchitecture: (\w+)", block)[1]
        blocks[at] = replaced(block, "ContentUri: .\n", f"ContentUri: agent-layer-{architecture}.zip\n")
    return "".join(blocks)


def write_zip(path, name, data):
    """Writes a zip of one program."""
    entry = zipfile.ZipInfo(name, DATE)
    entry.create_system, entry.external_attr = 3, 0o100755 << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)


def write_tar(path, files, programs):
    """Writes an archive of `files`, contents by name, of which `programs` are executable."""
    folder = path.name.removesuffix(".tar.gz")
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for name, data in sorted(files.items()):
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), EPOCH, 0o755 if name in programs else 0o644
                archive.addfile(entry, io.BytesIO(data))


def texts(names):
    return {Path(name).name: (ROOT / name).read_bytes() for name in names}


def manual_of(command):
    """Returns manual pages and completions, which the command writes itself."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([command, "man", folder], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        manual = {f"share/man/man1/{page.name}": page.read_bytes() for page in Path(folder).iterdir()}
    for shell, name in COMPLETIONS.items():
        manual[name] = subprocess.run([command, "completions", shell], check=True, capture_output=True).stdout
    return manual


def write_functions(folder, architecture, built):
    for binary in functions(TEMPLATE).values():
        write_zip(folder / f"{binary}-{architecture}.zip", "bootstrap", (built / binary / "bootstrap").read_bytes())
    (folder / f"template-{architecture}.yaml").write_text(template_of(TEMPLATE, architecture), encoding="utf-8")
    for name, data in texts(BESIDE).items():
        (folder / name).write_bytes(data)


def write_programs(folder, architecture, built, manual, notices):
    agent = (built / "weirgate-agent/bootstrap").read_bytes()
    write_zip(folder / f"agent-layer-{architecture}.zip", "extensions/weirgate-agent", agent)
    files = texts([*LICENSES, "agent/openapi.yaml", "agent/deploy/weirgate-agent.service"])
    files |= {"weirgate-agent": agent, "THIRD-PARTY": notices} | pages(VERSION)
    write_tar(folder / f"weirgate-agent-{VERSION}-linux-{architecture}.tar.gz", files, {"weirgate-agent"})
    command = (built / "weirgate/bootstrap").read_bytes()
    read = {**texts(LICENSES), "THIRD-PARTY": notices} | pages(VERSION)
    files = {f"share/doc/weirgate/{name}": data for name, data in read.items()} | manual | {"bin/weirgate": command}
    write_tar(folder / f"weirgate-{VERSION}-linux-{architecture}.tar.gz", files, {"bin/weirgate"})


def write_bills(folder, architecture, built):
    """Writes what each program contains, by the three builds of the Makefile."""
    binaries = {f"weirgate-{binary}": binary for binary in functions(TEMPLATE).values()}
    for build in (binaries, {"weirgate-cli": "weirgate"}, {"weirgate-agent": "weirgate-agent"}):
        programs = {package: (built / binary / "bootstrap").read_bytes() for package, binary in build.items()}
        for package, text in bills(list(build), architecture, programs):
            (folder / f"{build[package]}-{architecture}.cdx.json").write_text(text, encoding="utf-8")


def write_clients(folder):
    python = ROOT / "clients/python"
    code = "import sys, build_backend; build_backend.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, folder], check=True, cwd=python, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    pack = ["npm", "pack", "--silent", "--pack-destination", folder]
    subprocess.run(pack, check=True, cwd=ROOT / "clients/typescript", stdout=subprocess.DEVNULL)


def write_all(folder, built):
    own = [name for name, names in ARCHITECTURES.items() if platform.machine() in names]
    manual = manual_of(built / own[0] / "weirgate/bootstrap")
    packages = ["cli", "agent", *functions(TEMPLATE).values()]
    notices = notices_of([f"weirgate-{package}" for package in packages]).encode()
    (folder / "THIRD-PARTY").write_bytes(notices)
    for architecture in ARCHITECTURES:
        write_functions(folder, architecture, built / architecture)
        write_programs(folder, architecture, built / architecture, manual, notices)
        write_bills(folder, architecture, built / architecture)
    (folder / "agent-layer.yaml").write_text(layer_template(), encoding="utf-8")
    write_clients(folder)
    write_tools(folder)
    for name, data in pages(VERSION).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def write_tools(folder):
    """Writes the versions of the tools that the bytes depend on, and that nothing pins."""
    asked = [subprocess.run([tool, "--version"], check=True, capture_output=True, text=True).stdout for tool in ("rustc", "npm")]
    versions = [asked[0].strip(), f"npm {asked[1].strip()}", f"zlib {zlib.ZLIB_RUNTIME_VERSION}"]
    (folder / "BUILT-WITH").write_text("".join(f"{version}\n" for version in versions), encoding="utf-8")


def files_of(folder):
    """Returns the files of a release in their order, by name."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def write_sums(folder):
    sums = ((name, hashlib.sha256(path.read_bytes()).hexdigest()) for name, path in files_of(folder).items())
    (folder / "SHA256SUMS").write_text("".join(f"{sum}  {name}\n" for name, sum in sums), encoding="utf-8")


def main(arguments):
    match arguments:
        case ["list"]:
            print(*functions(TEMPLATE).values())
            return
        case ["all", folder, built]:
            write = lambda folder: write_all(folder, Path(built).resolve())
        case ["functions", folder, architecture, built] if architecture in ARCHITECTURES:
            write = lambda folder: write_functions(folder, architecture, Path(built))
        case _:
            sys.exit(f"dist: arguments must be as follows, got {arguments}\n{__doc__.split('Usage: ')[1]}")
    folder = Path(folder).resolve()
    if folder.exists():
        sys.exit(f"dist: {folder} must not exist; remove it")
    folder.mkdir(parents=True)
    write(folder)
    write_sums(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
