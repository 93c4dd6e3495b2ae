"""The pages of a release: its README, the docs with what they show, and the links between them.

Usage: pages.py   checks that every relative link of every page leads to a file and a heading, that no blank line cuts a list or
                  a table, and that the text of every alarm ends with a section of the runbook
"""

import posixpath
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A link of Markdown, or of HTML in it. Code has none.
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.S | re.M)
LINK = re.compile(r'\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)"')
# Beside the README, which a release has of its own.
ROOT_PAGES = ["CHANGELOG.md", "SECURITY.md"]
ADDRESS = re.compile(r"[a-z]+:")

README = """# Weirgate {version}

Weirgate limits how fast many processes together use something, by one table of DynamoDB. This folder has what a
deployment needs. [The guide](docs/guide/README.md) begins with [a start](docs/guide/start.md) in five minutes, and
[the runbook](docs/operations.md) is for on-call. The archives of the command line and the agent contain `docs/` too,
the command line's in `share/doc/weirgate/`.

## Check the files

```sh
sha256sum --check --quiet SHA256SUMS
```

## Deploy

{deploy}
{protect}
[Deployment](docs/deployment.md) has the parameters, upgrades, removal, and the permissions that the deployer needs.
Then attach a managed policy of the stack to the role of each caller
([security](docs/security.md#policies-for-callers)).

## Install

[Install](docs/guide/install.md) leads to a first denial on this machine in three commands, and has those for programs,
images, Kubernetes, ECS and Compose. `weirgate doctor --table NAME --stack weirgate` checks the stack ([command
line](docs/guide/command-line.md)). As a layer for Lambda functions two commands deploy the agent from this folder
([Lambda extension](docs/guide/lambda-extension.md#deploy)). Its clients need no network to install:

```sh
pip install ./weirgate-{version}-py3-none-any.whl    # Python: docs/guide/python.md
npm install ./weirgate-{version}.tgz                 # Node: docs/guide/node.md
tar -xzf weirgate-go-{version}.tar.gz                # Go: docs/guide/go.md
```

## Use

A Rust service takes the crate from a checkout, because it is not on crates.io yet:

{use}
## Files

{files}
"""


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def part(page, begin, end):
    """Returns what a page has from `begin` until before `end`."""
    before, found, rest = read(page).partition(begin)
    if not found or end not in rest:
        raise SystemExit(f"dist: {page} must have {begin!r}, and behind it {end!r}; adapt scripts/pages.py")
    return begin + rest[: rest.index(end)]


def at_root(page, text):
    """Returns text of a page with links that lead from the root of the release."""

    def moved(match):
        link = match[1]
        if ADDRESS.match(link):
            return match[0]
        path, mark, anchor = link.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        return f"]({path}{mark}{anchor})"

    return re.sub(r"\]\(([^)\s]+)\)", moved, text)


def readme(version):
    """Returns the README of a release, which has its commands from the pages that tests run."""
    parts = {
        "deploy": ("docs/deployment.md", "**From a release**", "Then set the"),
        "protect": ("docs/deployment.md", "Then set the", "[Releases](releases.md)"),
        "use": ("README.md", "```rust,no_run", "[Python]"),
        "files": ("docs/releases.md", "| file |", "\n\n"),
    }
    texts = {name: at_root(page, part(page, begin, end)) for name, (page, begin, end) in parts.items()}
    texts["files"] = texts["files"].replace("VERSION", version)
    return README.format(version=version, **{name: text.rstrip() + "\n" for name, text in texts.items()}).rstrip() + "\n"


def links(text):
    """Returns the relative links of a page."""
    found = [one or other for one, other in LINK.findall(CODE.sub("", text))]
    return [link for link in found if not ADDRESS.match(link)]


def anchors(text):
    """Returns the anchors of a page's headings, as GitHub makes them."""
    kept = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.S | re.M)
    heading = lambda text: re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
    return {heading(line.lstrip("#").strip()) for line in kept.splitlines() if line.startswith("#")}


def target(page, link):
    path, _, anchor = link.partition("#")
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page, anchor


def pages(version):
    """Returns the README, the pages beside it, the docs and the files that they show, by their place in a release."""
    found = {"README.md": readme(version).encode(), **{name: (ROOT / name).read_bytes() for name in ROOT_PAGES}}
    docs = sorted((ROOT / "docs").rglob("*.md"))
    found |= {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in docs}
    for page, data in list(found.items()):
        for path, _ in (target(page, link) for link in links(data.decode())):
            if path.startswith("docs/") and (ROOT / path).is_file():
                found[path] = (ROOT / path).read_bytes()
    return found


def dead_links(files):
    """Returns the relative links of pages that lead to no file or heading, each with its page. `files` are contents by name."""
    texts = {name: data.decode() for name, data in files.items() if name.endswith(".md")}
    dead = []
    for page, text in texts.items():
        for link in links(text):
            path, anchor = target(page, link)
            if path not in files or (anchor and path in texts and anchor not in anchors(texts[path])):
                dead.append(f"{page}: {link}")
    return dead


# A row or an item, with the lines that continue it.
CUT = re.compile(r"^(?:\|.*\n\n\|(?!.*\n\|--)|- .*\n(?:  .*\n)*\n- )", re.M)


def cut_lists(files):
    """Returns the pages in which a blank line cuts a list or a table."""
    texts = {name: CODE.sub("", data.decode()) for name, data in files.items() if name.endswith(".md")}
    return [f"{page}: {match[0].splitlines()[0]}" for page, text in texts.items() for match in CUT.finditer(text)]


def dead_runbooks():
    """Returns the alarms of the template whose text does not end with a section of docs/operations.md."""
    sections = anchors(read("docs/operations.md"))
    alarms = re.findall(r"^  (\w+):\n    Type: AWS::CloudWatch::Alarm\n(.*?)(?=^\S|^  \w)", read("template.yaml"), re.S | re.M)
    linked = lambda text: re.search(r"AlarmDescription: .*\$\{RunbookUrl\}#([\w-]+)[\"']?$", text, re.M)
    return [f"template.yaml: {name}" for name, text in alarms if not (link := linked(text)) or link[1] not in sections]


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
    names = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    files = {name: (ROOT / name).read_bytes() if name.endswith(".md") else b"" for name in names}
    # A link may lead to a folder.
    files |= {folder.as_posix(): b"" for name in names for folder in Path(name).parents}
    if dead := dead_links(files) + dead_runbooks():
        sys.exit("\n".join(["pages: these links lead nowhere:", *dead]))
    if cut := cut_lists(files):
        sys.exit("\n".join(["pages: remove the blank line after:", *cut]))


if __name__ == "__main__":
    main()
