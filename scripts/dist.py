"""Writes the files of a release into a new folder: zips for Lambda, archives and images for Linux, templates, packages, pages,
checksums.

The same binaries make the same bytes. All entries of an archive have one date and no owner, and they are sorted. The date is
none of a commit, because a zip with other bytes is another deployment of a function.

Usage: dist.py all FOLDER BUILT                  everything, from BUILT/{architecture}/{binary}/bootstrap
       dist.py functions FOLDER ARCHITECTURE BUILT   the functions and their template, from BUILT/{binary}/bootstrap
       dist.py list                              prints the binaries of the functions
"""

import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
import zlib
from importlib import metadata
from pathlib import Path

import sbom
from image import image
from notices import notices_of
from pages import pages
from provenance import statement

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = (ROOT / "template.yaml").read_text(encoding="utf-8")
VERSION = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(encoding="utf-8"), re.M)[1]
# The names of Lambda and of the template, and those that the operating system has for this machine.
ARCHITECTURES = {"arm64": {"aarch64", "arm64"}, "x86_64": {"x86_64", "AMD64"}}
# The first date that a zip can have.
DATE, EPOCH = (1980, 1, 1, 0, 0, 0), 315532800
LICENSES = ["LICENSE-APACHE", "LICENSE-MIT"]
# Where agents run.
DEPLOY = ROOT / "agent/deploy"
# What the commands of docs/deployment.md, of the runbook and of docs/platform.md read.
BESIDE = ["stack-policy.json", "scripts/restored-table.yaml", "scripts/deploy-roles.yaml"]
FUNCTION = re.compile(r"^  (\w+):\n    Type: AWS::Serverless::Function\n(?:(?:    .*)?\n)*", re.M)
AGENT = {
    "Entrypoint": ["/weirgate-agent"],
    "ExposedPorts": {"2774/tcp": {}, "8081/tcp": {}},
    # An extension of Docker's; others ask by what runs the container.
    "Healthcheck": {"Test": ["CMD", "/weirgate-agent", "healthcheck"], "Interval": 10_000_000_000, "Timeout": 5_000_000_000},
}
# Forwarded ports arrive at an address that clients do not know. A command in the container finds the table.
NAMES = ["--allow-host", "127.0.0.1", "--allow-host", "localhost"]
LOCAL = {
    "Entrypoint": ["/weirgate", "local", "--address", "0.0.0.0", *NAMES, "--page-port", "8001"],
    "Env": [
        "AWS_ENDPOINT_URL_DYNAMODB=http://127.0.0.1:8000",
        "AWS_REGION=us-east-1",
        "AWS_ACCESS_KEY_ID=local",
        "AWS_SECRET_ACCESS_KEY=local",
        "WEIRGATE_TABLE=weirgate",
    ],
    "ExposedPorts": {"8000/tcp": {}, "8001/tcp": {}},
    "Healthcheck": {"Test": ["CMD", "/weirgate", "switches"], "Interval": 10_000_000_000, "Timeout": 6_000_000_000},
}
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


def write_images(folder, architecture, built, notices):
    import certifi  # of the environment that builds; what lists functions needs none

    license = next(file for file in metadata.files("certifi") if file.name == "LICENSE").read_binary()
    read = {f"usr/share/doc/weirgate/{name}": data for name, data in {**texts(LICENSES), "THIRD-PARTY": notices}.items()}
    files = {**read, "etc/ssl/certs/ca-certificates.crt": certifi.contents().encode(), "usr/share/doc/certifi/LICENSE": license}
    for name, binary, config, owned in (("weirgate-agent", "weirgate-agent", AGENT, ()), ("weirgate-local", "weirgate", LOCAL, ("data",))):
        labels = {"title": name, "version": VERSION, "licenses": "MIT OR Apache-2.0"}
        config = {**config, "Labels": {f"org.opencontainers.image.{key}": value for key, value in labels.items()}}
        inside = {**files, binary: (built / binary / "bootstrap").read_bytes()}
        data = image(f"{name}:{VERSION}", architecture, inside, EPOCH, config, {binary}, owned)
        (folder / f"{name}-{VERSION}-linux-{architecture}.oci.tar").write_bytes(data)


def write_bills(folder, architecture, built):
    """Writes what each program contains, by the three builds of the Makefile, and what each image does."""
    binaries = {f"weirgate-{binary}": binary for binary in functions(TEMPLATE).values()}
    builds = [(binaries, sbom.FUNCTIONS), ({"weirgate-cli": "weirgate"}, sbom.PROGRAMS), ({"weirgate-agent": "weirgate-agent"}, sbom.PROGRAMS)]
    images = {"weirgate-cli": "weirgate-local", "weirgate-agent": "weirgate-agent"}
    for build, targets in builds:
        programs = {package: (built / binary / "bootstrap").read_bytes() for package, binary in build.items()}
        for package, program, crates in sbom.contents(list(build), targets[architecture], programs):
            write_bill(folder / f"{build[package]}-{architecture}.cdx.json", program, crates)
            if name := images.get(package):
                path = folder / f"{name}-{VERSION}-linux-{architecture}.oci.tar"
                itself = sbom.component("container", name, VERSION, "MIT OR Apache-2.0", digest(path), "oci")
                certificates = sbom.component("data", "certifi", metadata.version("certifi"), "MPL-2.0", None, "pypi")
                write_bill(folder / f"{name}-image-{architecture}.cdx.json", itself, [program, *crates, certificates])


def write_bill(path, itself, components):
    path.write_text(sbom.bill(itself, components), encoding="utf-8")


def write_clients(folder):
    """Writes the packages of the clients, and what each contains. They need one another alone."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    # Installed for the tests, or none of a package's.
    others = shutil.ignore_patterns("node_modules", "__pycache__", ".*_cache")
    wheel = "import sys, build_backend as build; build.build_wheel(sys.argv[1]); build.build_sdist(sys.argv[1])"
    for client in sorted((ROOT / "clients").iterdir()):
        if (client / "pyproject.toml").exists():
            project = tomllib.loads((client / "pyproject.toml").read_text(encoding="utf-8"))["project"]
            registry, needed, pack = "pypi", project["dependencies"], [sys.executable, "-c", wheel]
        elif (client / "package.json").exists():
            project = json.loads((client / "package.json").read_text(encoding="utf-8"))
            registry, needed, pack = "npm", [*project.get("peerDependencies", {})], ["npm", "pack", "--silent", "--pack-destination"]
        else:
            continue
        with tempfile.TemporaryDirectory() as packed, tempfile.TemporaryDirectory() as copied:
            # With files in place of the links to the license texts, which npm leaves out.
            copy = shutil.copytree(client, Path(copied) / client.name, ignore=others)
            subprocess.run([*pack, packed], check=True, cwd=copy, env=environment, stdout=subprocess.DEVNULL)
            written = [shutil.copy(path, folder) for path in sorted(Path(packed).iterdir())]
        ours = lambda name: sbom.component("library", name, VERSION, "MIT OR Apache-2.0", None, registry)
        itself = sbom.files(ours(project["name"]), [Path(path) for path in written])
        needs = [ours(re.match(r"[\w-]+", name)[0]) for name in needed]
        write_bill(folder / f"{project['name']}-{registry}.cdx.json", itself, needs)
    write_go(folder)


def write_go(folder):
    """Writes the Go client, which no registry has: its sources without the tests, and what it contains."""
    sources = [path for path in (ROOT / "clients/go").glob("*.go") if not path.name.endswith("_test.go")]
    names = [path.relative_to(ROOT) for path in sources] + ["clients/go/go.mod", "clients/go/README.md", *LICENSES]
    archive = folder / f"weirgate-go-{VERSION}.tar.gz"
    write_tar(archive, texts(names), ())
    itself = sbom.component("library", "weirgate", VERSION, "MIT OR Apache-2.0", None, "golang")
    write_bill(folder / "weirgate-golang.cdx.json", sbom.files(itself, [archive]), [])


def write_all(folder, built):
    own = [name for name, names in ARCHITECTURES.items() if platform.machine() in names]
    manual = manual_of(built / own[0] / "weirgate/bootstrap")
    packages = ["cli", "agent", *functions(TEMPLATE).values()]
    notices = notices_of([f"weirgate-{package}" for package in packages]).encode()
    (folder / "THIRD-PARTY").write_bytes(notices)
    for architecture in ARCHITECTURES:
        write_functions(folder, architecture, built / architecture)
        write_programs(folder, architecture, built / architecture, manual, notices)
        write_images(folder, architecture, built / architecture, notices)
        write_bills(folder, architecture, built / architecture)
    (folder / "agent-layer.yaml").write_text(layer_template(), encoding="utf-8")
    write_clients(folder)
    deployed = {path.relative_to(DEPLOY.parent).as_posix(): path.read_bytes() for path in DEPLOY.rglob("*") if path.is_file()}
    for name, data in {**pages(VERSION), **deployed}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    tools = tools_of()
    (folder / "BUILT-WITH").write_text("".join(f"{tool} {version}\n" for tool, version in tools.items()), encoding="utf-8")
    (folder / "provenance.json").write_text(statement(files_of(folder), VERSION, tools), encoding="utf-8")


def tools_of():
    """Returns the versions of the tools that the bytes depend on, and that nothing pins."""
    ask = lambda tool: subprocess.run([tool, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    return {"rustc": ask("rustc").removeprefix("rustc "), "npm": ask("npm"), "zlib": zlib.ZLIB_RUNTIME_VERSION}


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files_of(folder):
    """Returns the files of a release in their order, by name."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def write_sums(folder):
    sums = "".join(f"{digest(path)}  {name}\n" for name, path in files_of(folder).items())
    (folder / "SHA256SUMS").write_text(sums, encoding="utf-8")


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
