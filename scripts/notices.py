"""Lists the crates that the programs of a release contain, with the texts of their licenses, which ask for it.

Equal texts stand once. A crate without a file of its own is under the texts that it names, which others have.
"""

import os
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = [f"{processor}-unknown-linux-{libc}" for processor in ("aarch64", "x86_64") for libc in ("gnu", "musl")]
NAMES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")


def trees(packages, targets):
    """Returns for each of the packages, which are built together, the license of each crate in it, by name and version."""
    command = ["cargo", "tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "depth", "--no-dedupe", "--format", "\t{p}\t{l}"]
    command += [each for target in targets for each in ("--target", target)]
    command += [each for package in packages for each in ("--package", package)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.splitlines()
    found, tree = {}, {}
    for depth, crate, terms in (line.split("\t") for line in lines if line):
        name, version = crate.split()[:2]
        if depth == "0":
            tree = found.setdefault(name, {})
        tree[name, version.removeprefix("v")] = terms
    return found


def crates(packages):
    """Returns the license of each crate of others, by name and version."""
    others = checksums()
    found = {crate: terms for tree in trees(packages, TARGETS).values() for crate, terms in tree.items()}
    return {crate: terms for crate, terms in found.items() if crate in others}


def checksums():
    """Returns the checksum of each crate that is no part of this workspace, by name and version."""
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    return {(each["name"], each["version"]): each["checksum"] for each in packages if "checksum" in each}


def texts(name, version):
    """Returns the texts of a crate's licenses, from where cargo has unpacked it."""
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    folders = sorted(home.glob(f"registry/src/*/{name}-{version}"))
    if not folders:
        raise SystemExit(f"notices: the source of {name} {version} must be below {home}; run `cargo fetch --locked`")
    files = (path for path in sorted(folders[0].iterdir()) if path.is_file() and path.name.upper().startswith(NAMES))
    return [path.read_text(encoding="utf-8", errors="replace").strip() for path in files]


def notices_of(packages):
    """Returns the whole list as text."""
    found, lines = {}, []
    for (name, version), terms in sorted(crates(packages).items()):
        lines.append(f"{name} {version}: {terms}\n")
        for text in texts(name, version):
            found.setdefault(text, []).append(f"{name} {version}")
    of = sorted(found.items(), key=lambda item: (item[1], item[0]))
    body = "".join(f"\n{'-' * 80}\n{', '.join(names)}\n\n{text}\n" for text, names in of)
    return f"The programs of this release contain these crates:\n\n{''.join(lines)}{body}"
