"""Lists what a file of a release contains as CycloneDX has it, for scanners. It has no date and no random number, so the same file
has the same list.
"""

import hashlib
import json

from notices import checksums, trees

# The functions run on the libc of Lambda; the programs have their own.
FUNCTIONS = {"arm64": "aarch64-unknown-linux-gnu", "x86_64": "x86_64-unknown-linux-gnu"}
PROGRAMS = {"arm64": "aarch64-unknown-linux-musl", "x86_64": "x86_64-unknown-linux-musl"}


def component(kind, name, version, terms, checksum, registry="cargo"):
    """Returns one program or package. Old crates write `/` for `OR`."""
    found = {"type": kind, "name": name, "version": version, "purl": f"pkg:{registry}/{name}@{version}"}
    found["bom-ref"] = found["purl"]
    found["licenses"] = [{"expression": terms.replace("/", " OR ")}]
    if checksum is not None:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return found


def bill(itself, components):
    """Returns a list as text."""
    named = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": itself}}
    return json.dumps({**named, "components": components}, indent=1) + "\n"


def contents(packages, target, programs):
    """Yields each package with its program and its crates. They are built together, and `programs` are their bytes."""
    sums = checksums()
    for package, tree in trees(packages, [target]).items():
        [(name, version)] = [crate for crate in tree if crate[0] == package]
        program = component("application", name, version, tree.pop((name, version)), hashlib.sha256(programs[package]).hexdigest())
        crates = [component("library", *crate, terms, sums.get(crate)) for crate, terms in sorted(tree.items())]
        yield package, program, crates


def files(itself, paths):
    """Adds the files of a package, which its registry has."""
    found = [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths]
    links = [{"type": "distribution", "url": name, "hashes": [{"alg": "SHA-256", "content": checksum}]} for name, checksum in found]
    return {**itself, "externalReferences": links}
