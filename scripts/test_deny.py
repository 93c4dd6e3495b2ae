"""Shows that every rule of deny.toml can fail: cargo-deny is given a workspace that breaks each of them.

A rule whose pattern is wrong (`hyper@<1` bans every hyper, `openssl_sys` bans nothing) looks just like one that is kept.
The crates are empty and local, so nothing is downloaded; cargo-deny goes by names, versions and licenses alone. So is the
database of advisories, which has one about all of serde.

Usage: test_deny.py path/to/cargo-deny [options of its check]
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Every crate of the ban list: a version that must be refused, and for those banned by version one that must pass.
BANNED = {
    "aws-lc-fips-sys": ("0.13.0", None),
    "aws-lc-rs": ("1.13.0", None),
    "aws-lc-sys": ("0.30.0", None),
    "boring": ("4.0.0", None),
    "h2": ("0.3.27", "0.4.20"),
    "http": ("0.2.12", "1.5.0"),
    "hyper": ("0.14.32", "1.12.0"),
    "hyper-rustls": ("0.24.2", "0.27.10"),
    "hyper-tls": ("0.6.0", None),
    "native-tls": ("0.2.14", None),
    "openssl": ("0.10.73", None),
    "openssl-src": ("300.5.0", None),
    "openssl-sys": ("0.9.109", None),
    "ring": ("0.16.20", "0.17.14"),
    "rustls": ("0.21.12", "0.23.46"),
    "rustls-pemfile": ("2.2.0", None),
    "rustls-webpki": ("0.101.7", "0.103.16"),
    "s2n-tls": ("0.3.0", None),
    "sct": ("0.7.1", None),
    "tokio-native-tls": ("0.3.1", None),
    "tokio-openssl": ("0.6.5", None),
    "tokio-rustls": ("0.24.1", "0.26.6"),
    "webpki": ("0.22.4", None),
}
ADVISORY = """```toml
[advisory]
id = "RUSTSEC-2000-0001"
package = "serde"
date = "2000-01-01"

[versions]
patched = []
```

# Made up
"""
REFUSED_LICENSES = ["GPL-3.0-only", "AGPL-3.0-only", "MPL-2.0", "SSPL-1.0", "CC-BY-NC-4.0", "BUSL-1.1", None]


def write(folder, name, version, extra="", dependencies="", rust=""):
    """An empty crate."""
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "lib.rs").write_text(rust)
    (folder / "Cargo.toml").write_text(
        f'[package]\nname = "{name}"\nversion = "{version}"\nedition = "2024"\n{extra}\n\n[dependencies]\n{dependencies}\n'
    )


def check(deny, folder, what, config=ROOT / "deny.toml", options=()):
    """What cargo-deny says of the crate in the folder: its exit code, and (code, text) of every error."""
    arguments = ["--offline", "--format", "json", "--manifest-path", folder / "Cargo.toml", "--config", config, "check", *options, what]
    done = subprocess.run([deny, *arguments], capture_output=True, text=True, check=False)
    said = [json.loads(line)["fields"] for line in done.stderr.splitlines() if line.startswith("{")]
    errors = [(line.get("code"), json.dumps(line)) for line in said if line.get("severity") == "error"]
    return done.returncode, errors


def kinds(errors):
    return {kind for kind, _ in errors}


def crates(scratch, name, wanted, **parent):
    """A crate that depends on local ones: (name, version, license)."""
    lines = []
    for number, (crate, version, license) in enumerate(wanted):
        folder = scratch / f"{name}-{number}"
        write(folder, crate, version, f'license = "{license}"' if license else "")
        lines.append(f'd{number} = {{ package = "{crate}", path = "{folder}", version = "{version}" }}')
    write(scratch / name, name, "0.1.0", 'license = "MIT"\npublish = false', "\n".join(lines), **parent)
    return scratch / name


def repository(folder):
    """What is in the folder, as a git repository."""
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.com", "-C", folder]
    for command in (["init", "--quiet", "--initial-branch", "main"], ["add", "."], ["commit", "--quiet", "--message", "One"]):
        subprocess.run([*git, *command], check=True)
    return f"file://{folder}"


def main(deny, options):
    failures = []

    def expect(what, is_true, seen):
        if not is_true:
            failures.append(f"{what}: {seen}")

    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        listed = set(re.findall(r'crate = "([a-z0-9-]+)', (ROOT / "deny.toml").read_text().split("\ndeny = [")[1]))
        expect("every banned crate is tried here", listed == set(BANNED), listed ^ set(BANNED))

        bad = crates(scratch, "banned", [(name, bad, "MIT") for name, (bad, _) in BANNED.items()])
        code, errors = check(deny, bad, "bans")
        for name, (version, _) in BANNED.items():
            hit = [text for kind, text in errors if kind == "banned" and f"'{name} = {version}'" in text]
            expect(f"{name} {version} is refused", code != 0 and hit, errors)
        good = crates(scratch, "good", [(name, good, "MIT") for name, (_, good) in BANNED.items() if good])
        expect("the versions in use pass", check(deny, good, "bans") == (0, []), check(deny, good, "bans"))

        twice = crates(scratch, "twice", [("thing", "1.0.0", "MIT"), ("thing", "2.0.0", "MIT")])
        code, errors = check(deny, twice, "bans")
        expect("two versions of a crate are refused", code and "duplicate" in kinds(errors), errors)

        loose = crates(scratch, "loose", [("thing", "1.0.0", "MIT")])
        manifest = loose / "Cargo.toml"
        # A path alone is any version, which only crates that are not published may say.
        manifest.write_text(manifest.read_text().replace(', version = "1.0.0"', "").replace("publish = false", ""))
        code, errors = check(deny, loose, "bans")
        expect("a dependency on any version is refused", code and "wildcard" in kinds(errors), errors)

        for license in REFUSED_LICENSES:
            folder = crates(scratch, f"license-{license}".lower().replace(".", "-"), [("thing", "1.0.0", license)])
            code, errors = check(deny, folder, "licenses")
            expect(f"the license {license} is refused", code and kinds(errors) & {"rejected", "unlicensed"}, errors)
        text = (ROOT / "deny.toml").read_text()
        unused = scratch / "unused.toml"
        unused.write_text(text.replace('allow = ["', 'allow = ["AFL-3.0", "'))
        code, errors = check(deny, crates(scratch, "unused", [("thing", "1.0.0", "MIT")]), "licenses", unused)
        expect("a license that no crate has is refused", code and any("AFL-3.0" in text for _, text in errors), errors)

        elsewhere = scratch / "elsewhere.toml"
        elsewhere.write_text(text.replace("https://github.com/rust-lang/crates.io-index", "https://example.com/index"))
        code, errors = check(deny, ROOT, "sources", elsewhere)
        expect("another registry is refused", code and "source-not-allowed" in kinds(errors), errors[:1])
        write(scratch / "remote", "remote", "1.0.0", 'license = "MIT"')
        remote = repository(scratch / "remote")
        write(scratch / "cloned", "cloned", "0.1.0", "", f'remote = {{ git = "{remote}" }}')
        subprocess.run(["cargo", "generate-lockfile", "--quiet", "--manifest-path", scratch / "cloned" / "Cargo.toml"], check=True)
        code, errors = check(deny, scratch / "cloned", "sources")
        expect("a git repository is refused", code and "source-not-allowed" in kinds(errors), errors)

        stale = scratch / "stale.toml"
        stale.write_text(text.replace("\nskip = [", '\nskip = [{ crate = "bytes@1" }, { crate = "left-pad@1" },'))
        code, errors = check(deny, ROOT, "bans", stale, options)
        expect("a skip of what is there once is refused", code and "unnecessary-skip" in kinds(errors), errors)
        expect("a skip of what is not there is refused", code and "unmatched-skip" in kinds(errors), errors)

        (scratch / "advisories" / "crates" / "serde").mkdir(parents=True)
        (scratch / "advisories" / "crates" / "serde" / "RUSTSEC-2000-0001.md").write_text(ADVISORY)
        database = repository(scratch / "advisories")
        advised = scratch / "advised.toml"
        # Whatever database is in use: this one.
        text = re.sub("^db-.*\n", "", text, flags=re.MULTILINE)
        advised.write_text(text.replace("[advisories]", f'[advisories]\ndb-path = "{scratch}/fetched"'))
        instead = {"COUNT": "1", "KEY_0": f"url.{database}.insteadOf", "VALUE_0": "https://github.com/RustSec/advisory-db"}
        subprocess.run(
            [deny, "--config", advised, "fetch", "db"],
            env=os.environ | {f"GIT_CONFIG_{name}": value for name, value in instead.items()},
            check=True,
        )
        code, errors = check(deny, ROOT, "advisories", advised)
        expect("a crate with an advisory is refused", code and "vulnerability" in kinds(errors), errors)

    for failure in failures:
        print(f"deny.toml: not so: {failure}"[:600])
    print(f"deny.toml: {len(BANNED)} bans, {len(REFUSED_LICENSES)} licenses, sources, versions, skips and advisories tried, {len(failures)} wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
