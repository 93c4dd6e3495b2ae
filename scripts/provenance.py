"""Writes where the files of a release come from: a statement of in-toto with the provenance of SLSA (v1), which has their checksums,
the commit, and the command. It is not signed, so it proves no origin; what signs it vouches for it.
"""

import hashlib
import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What pins the crates and the tools of a build.
PINS = ["Cargo.lock", "scripts/requirements/cross.txt", "scripts/requirements/sam.txt"]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def statement(files, version, tools):
    """Returns the statement about `files`, paths by name, as text. `tools` are the versions of what nothing pins."""
    is_changed = bool(git("status", "--porcelain", "--untracked-files=no", "--", "."))
    source = {"name": "source", "digest": {"gitCommit": git("rev-parse", "HEAD")}, "annotations": {"uncommittedChanges": is_changed}}
    pins = [{"name": name, "digest": {"sha256": digest(ROOT / name)}} for name in PINS]
    build = {
        "buildType": "urn:weirgate:make-release:1",
        "externalParameters": {"command": "make release", "version": version},
        "resolvedDependencies": [source, *pins],
    }
    return json.dumps({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest(path)}} for name, path in files.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": build,
            "runDetails": {"builder": {"id": "urn:weirgate:unsigned", "version": tools}},
        },
    }, indent=1) + "\n"
