"""Checks the files of a release: checksums and provenance, the processor and libc of each program, that the programs start, the
images, that the clients install, and that no link of a page leads nowhere.

Programs for the other processor are run by an emulator, where one is installed.

Usage: check_dist.py FOLDER
"""

import gzip
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
import zipfile
from pathlib import Path

import check_clients
import check_images
import dist
import image
from pages import dead_links

# In the header of an ELF file.
MACHINES = {"arm64": 183, "x86_64": 62}
# glibc 2.17, of 2012: older than that of any Linux that is still maintained, and than that of each runtime of Lambda.
NEWEST_GLIBC = 17
# The variable that each function reads first, and so misses when it starts without any.
FIRST_READ = {"aggregator": "TABLE_NAME", "reconciler": "TABLE_NAME"}
EMULATORS = {"arm64": ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"], "x86_64": ["qemu-x86_64", "-L", "/usr/x86_64-linux-gnu"]}


def fail(problem):
    sys.exit(f"check_dist: {problem}")


def programs(path):
    """Returns the executable files of an archive, by name."""
    data = path.read_bytes()
    if path.suffix == ".zip":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            return {each.filename: archive.read(each) for each in entries if each.external_attr >> 16 == 0o100755}
    if path.name.endswith(".tar.gz"):
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            return {each.name: archive.extractfile(each).read() for each in archive if each.mode == 0o755}
    return {}


def check_links(files):
    """Checks the pages of a release or of one of its archives."""
    dead = dead_links(files)
    if dead:
        fail(f"these links of pages lead nowhere: {dead}")


def texts(path):
    """Returns the files of an archive that are no programs, by their name in its folder of pages."""
    with tarfile.open(path) as archive:
        entries = [each for each in archive if each.mode == 0o644]
        names = [each.name.partition("/")[2].removeprefix("share/doc/weirgate/") for each in entries]
        return {name: archive.extractfile(entry).read() for name, entry in zip(names, entries)}


def runner(architecture, program):
    """Returns the command that runs a program of an architecture here, or none."""
    if platform.machine() in dist.ARCHITECTURES[architecture]:
        return []
    emulator, *libraries = EMULATORS[architecture]
    if not shutil.which(emulator):
        return None
    if not is_dynamic(program):
        return [emulator]
    return [emulator, *libraries] if Path(libraries[1]).is_dir() else None


def is_dynamic(program):
    """Returns whether an ELF file of 64 bits asks for an interpreter, which loads its libraries."""
    number = lambda at, size: int.from_bytes(program[at : at + size], "little")
    first, size, headers = number(32, 8), number(54, 2), number(56, 2)
    return any(number(first + size * at, 4) == 3 for at in range(headers))


def expected_of(file, name):
    """Returns what a program prints when it starts: its version or, a function, the variable that it misses."""
    if name != "bootstrap":
        return dist.VERSION
    function = file.rsplit("-", 1)[0]
    if function not in FIRST_READ:
        fail(f"FIRST_READ must have {function} of {file}; add the variable that it reads first")
    return FIRST_READ[function]


def started(file, name, program, architecture):
    """Starts a program that must print what is expected of it, and returns what it did."""
    run = runner(architecture, program)
    if run is None:
        return "not started: no emulator"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program"
        path.write_bytes(program)
        path.chmod(0o755)
        arguments = [] if name == "bootstrap" else ["--version"]
        environment = {"PATH": os.environ["PATH"]}
        done = subprocess.run([*run, path, *arguments], capture_output=True, text=True, timeout=60, env=environment)
    said = (done.stdout + done.stderr).strip().splitlines()
    expected = expected_of(file, name)
    if not said or expected not in "\n".join(said):
        fail(f"{file}: {name} must print {expected} when it starts, got {said} (exit code {done.returncode})")
    return "starts" if name == "bootstrap" else f"starts as {said[0]}"


def check_program(file, name, program):
    architecture = next(each for each in MACHINES if each in file)
    if program[:6] != b"\x7fELF\x02\x01" or int.from_bytes(program[18:20], "little") != MACHINES[architecture]:
        fail(f"{file}: {name} must be a program for {architecture}")
    if name == "bootstrap":
        glibc = max(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", program))
        if glibc > NEWEST_GLIBC:
            fail(f"{file}: {name} must need glibc 2.{NEWEST_GLIBC} at most, got 2.{glibc}")
    elif is_dynamic(program):
        fail(f"{file}: {name} must be static; build it for musl")
    libc = f"glibc 2.{glibc}" if name == "bootstrap" else "static"
    for folder in {dist.ROOT, Path.home()} - {Path("/")}:
        if f"{folder}/".encode() in program:
            fail(f"{file}: {name} must not contain {folder}; add it to the prefixes that the Makefile maps")
    gzipped = len(gzip.compress(program, 9))
    line = started(file, Path(name).name, program, architecture)
    print(f"{'':4}{name}: {len(program):,} bytes, {gzipped:,} gzipped, {libc}; {line}")


def check_provenance(folder, paths):
    """Checks that the provenance names every other file with its checksum."""
    statement = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    named = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    files = {name: dist.digest(path) for name, path in paths.items() if name not in {"provenance.json", "SHA256SUMS"}}
    if named != files:
        fail(f"provenance.json must name every file, the difference is {sorted(set(named.items()) ^ set(files.items()))}")
    source = statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    print(f"provenance.json: commit {source['digest']['gitCommit']}, {source['annotations']}")


def check_each_image(folder):
    """Checks the images of both processors, and runs those of this one."""
    own = []
    for name, binary in (("weirgate-agent", "weirgate-agent"), ("weirgate-local", "weirgate")):
        configs = []
        for architecture, architecture_of_oci in image.ARCHITECTURES.items():
            path = folder / f"{name}-{dist.VERSION}-linux-{architecture}.oci.tar"
            configs.append(check_images.config_of(path))
            [program] = programs(folder / f"{binary}-{dist.VERSION}-linux-{architecture}.tar.gz").values()
            print(f"{path.name}: {check_images.checked(path, name, program, architecture_of_oci):,} bytes packed")
            own += [path] if platform.machine() in dist.ARCHITECTURES[architecture] else []
        # So the one for the other processor starts as the one that is run.
        if configs[1:] != configs[:-1]:
            fail(f"{name}: the images must have one config for all processors, got {configs}")
    print(f"images: {check_images.run(*own)}")


def main(folder):
    folder = Path(folder).resolve()
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], check=True, cwd=folder)
    summed = {line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    paths = dist.files_of(folder)
    files = paths.keys() - {"SHA256SUMS"}
    if files != summed:
        fail(f"SHA256SUMS must have every file of {folder}, the difference is {sorted(files ^ summed)}")
    check_provenance(folder, paths)
    check_links({name: path.read_bytes() for name, path in paths.items()})
    for file in sorted(files):
        if file.startswith(("docs/", "deploy/")):
            continue
        print(f"{file}: {(folder / file).stat().st_size:,} bytes")
        if "-linux-" in file and file.endswith(".tar.gz"):
            check_links(texts(folder / file))
        for name, program in programs(folder / file).items():
            check_program(file, name, program)
    check_each_image(folder)
    check_clients.check(folder)
    print(f"{len(files)} files, checksums agree")


if __name__ == "__main__":
    main(*sys.argv[1:])
