"""Lists the crates of a program of a release as CycloneDX has it, for scanners. It has no date and no random number, so the same
program has the same list.
"""

import hashlib
import json

from notices import checksums, trees

TARGETS = {"arm64": "aarch64-unknown-linux-gnu", "x86_64": "x86_64-unknown-linux-gnu"}


def component(kind, name, version, terms, checksum):
    """Returns one program or crate. Old crates write `/` for `OR`."""
    found = {"type": kind, "name": name, "version": version, "purl": f"pkg:cargo/{name}@{version}"}
    found["bom-ref"] = found["purl"]
    found["licenses"] = [{"expression": terms.replace("/", " OR ")}]
    if checksum is not None:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return found


def bills(packages, architecture, programs):
    """Returns the list of each package's program, as text. The packages are built together, and `programs` are their bytes."""
    sums = checksums()
    for package, tree in trees(packages, [TARGETS[architecture]]).items():
        [(name, version)] = [crate for crate in tree if crate[0] == package]
        program = component("application", name, version, tree.pop((name, version)), hashlib.sha256(programs[package]).hexdigest())
        crates = [component("library", *crate, terms, sums.get(crate)) for crate, terms in sorted(tree.items())]
        bill = {
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {"component": program},
            "components": crates,
        }
        yield package, json.dumps(bill, indent=1) + "\n"
