"""The pages of a release: its README, the docs with what they show, and the links between them.

Usage: pages.py   checks that every relative link of every page leads to a file and a heading, that no blank line cuts a list or
                  a table, that the text of every alarm ends with a section of the runbook, that every deployment has tags, and
                  that the template of every stack in code is uploaded under a name with the version
"""

import posixpath
import re
import subprocess
import sys
import tomllib
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


# A block of a page, with its language; a command of it, and what a command deploys with.
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.S | re.M)
FOLDED = re.compile(r"^( *)- run: >-?\n((?:\1 +.*\n)+)", re.M)
DEPLOYS = re.compile(r"\baws cloudformation (?:deploy|create-stack|update-stack|create-change-set)\s|\bsam deploy\b")
STACK_OF = {"hcl": re.compile(r'resource "aws_cloudformation_stack"'), "ts": re.compile(r"new \w+\.(?:CfnStack|Stack)\(")}
# A stack in code, and the bucket and key of its template.
CODE_STACK = re.compile(r'resource "aws_cloudformation_stack"|new \w+\.CfnStack\(')
TEMPLATE_URL = re.compile(r"""\btemplate(?:_u|U)rl\s*[=:]\s*["'`]https://([^./"'`]+)\.s3\.[^/"'`]+/([^"'`]+)""")
SCRIPTS = re.compile(r"(?:^|/)Makefile$|\.(?:sh|ya?ml)$|^\.ci/")


def is_tagged(command):
    """Returns whether a deployment has its tags. SAM has them from samconfig.toml. An import must have none: AWS answers "As part
    of the import operation, you cannot modify or add [Tags]"."""
    if "sam deploy" in command:
        return not re.search(r"--(?:no-)?config-file", command)
    return ("--tags" in command) != ("--change-set-type IMPORT" in command)


def untagged(files):
    """Returns the deployments that take a stack's tags away, each with its file: `aws cloudformation deploy` sends an empty list of
    tags where none is given, and with one "CloudFormation removes all associated tags".
    https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_UpdateStack.html

    Every environment of a samconfig.toml must have some."""
    found = []
    for name, data in files.items():
        if name.endswith("samconfig.toml"):
            for environment, commands in tomllib.loads(data.decode()).items():
                deploy = commands.get("deploy", {}).get("parameters") if isinstance(commands, dict) else None
                found += [f"{name}: {environment}"] if deploy is not None and not deploy.get("tags") else []
        blocks = BLOCK.findall(data.decode()) if name.endswith(".md") else [("sh", data.decode())] if SCRIPTS.search(name) else []
        for language, text in blocks:
            if language in STACK_OF and "tags" not in text:
                found += [f"{name}: {made}" for made in STACK_OF[language].findall(text)]
            # A command in one line.
            text = FOLDED.sub(lambda run: run[1] + " ".join(run[2].split()) + "\n", text.replace("\\\n", " "))
            for command in re.split(r"\n|&&|\|\||;", text):
                if DEPLOYS.search(command) and not is_tagged(command):
                    found.append(f"{name}: {' '.join(command.split())[:100]}")
    return found


# Each must be noticed, and none of the others.
DEPLOYMENTS = {
    "```sh\naws cloudformation deploy --stack-name x \\\n  --capabilities CAPABILITY_IAM\n```\n": True,
    "```sh\naws cloudformation deploy --stack-name x \\\n  --tags a=b\n```\n": False,
    "```sh two\naws cloudformation deploy --tags a=b && aws cloudformation update-stack --stack-name x\n```\n": True,
    "```yaml\n  - run: >\n      aws cloudformation deploy --stack-name x\n      --role-arn y\n  - run: echo --tags\n```\n": True,
    "```yaml\n  - run: >\n      aws cloudformation deploy --stack-name x\n      --tags a=b\n```\n": False,
    "```sh\naws cloudformation create-change-set --change-set-type IMPORT --tags Key=a,Value=b\n```\n": True,
    "```sh\naws cloudformation create-change-set --change-set-type IMPORT\n```\n": False,
    "```sh\nsam deploy --config-file other.toml\n```\n": True,
    "```sh\nsam deploy --config-env prod\n```\n": False,
    '```hcl\nresource "aws_cloudformation_stack" "weirgate" {\n  name = "x"\n}\n```\n': True,
    "```ts\nnew cdk.CfnStack(this, 'x', { templateUrl });\n```\n": True,
    "```ts\nnew cdk.CfnStack(this, 'x', { templateUrl, tags });\n```\n": False,
}


def undeployable(files):
    """Returns the blocks of pages whose stack cannot be deployed, or not a second time.

    Terraform and CDK compare a template's URL, not what is behind it
    (https://github.com/hashicorp/terraform-provider-aws/issues/304), so its name must have the version, and a command of the page
    must write it. CDK's CfnInclude resolves every reference itself, also those to what SAM's transform generates."""
    found = []
    for name, data in files.items():
        blocks = BLOCK.findall(data.decode()) if name.endswith(".md") else []
        commands = "\n".join(text for language, text in blocks if language == "sh")
        for text in (text for language, text in blocks if language in STACK_OF):
            written = [f"s3://{bucket}/{key}" for bucket, key in TEMPLATE_URL.findall(text) if "VERSION" in key]
            is_written = [re.search(rf"\baws s3 cp \S+ {re.escape(url)}\s", commands) for url in written]
            if len(CODE_STACK.findall(text)) != len(written) or not all(is_written) or "CfnInclude" in text:
                found.append(f"{name}: {text.splitlines()[0]}")
    return found


# As above.
UPLOAD = "```sh\naws s3 cp packaged.yaml s3://mine/weirgate-VERSION.yaml\n```\n"
STACKS = {
    '```hcl\nresource "aws_cloudformation_stack" "x" {\n  template_url = "https://mine.s3.eu-west-1.amazonaws.com/packaged.yaml"\n}\n```\n': True,
    '```hcl\nresource "aws_cloudformation_stack" "x" {\n  template_url = "https://mine.s3.eu-west-1.amazonaws.com/weirgate-VERSION.yaml"\n}\n```\n': True,
    UPLOAD + '```hcl\nresource "aws_cloudformation_stack" "x" {\n  template_url = "https://mine.s3.eu-west-1.amazonaws.com/weirgate-VERSION.yaml"\n}\n```\n': False,
    UPLOAD + '```hcl\nresource "aws_cloudformation_stack" "x" {\n  template_url = "https://other.s3.eu-west-1.amazonaws.com/weirgate-VERSION.yaml"\n}\n```\n': True,
    UPLOAD + '```hcl\nresource "aws_cloudformation_stack" "x" {\n  template_body = file("packaged.yaml")\n}\n```\n': True,
    UPLOAD + "```ts\nnew cdk.CfnStack(this, 'x', { templateUrl });\n```\n": True,
    UPLOAD + "```ts\nnew cdk.CfnStack(this, 'x', { templateUrl: 'https://mine.s3.eu-west-1.amazonaws.com/weirgate-VERSION.yaml' });\n```\n": False,
    UPLOAD + "```ts\nnew cfninc.CfnInclude(stack, 'x', { templateFile: 'packaged.yaml' });\n```\n": True,
    '```hcl\nresource "aws_organizations_policy" "x" {\n}\n```\n': False,
}


def main():
    for text, is_wrong in STACKS.items():
        if bool(undeployable({"page.md": text.encode()})) != is_wrong:
            sys.exit(f"pages: this stack must {'' if is_wrong else 'not '}be noticed:\n{text}")
    for text, is_wrong in DEPLOYMENTS.items():
        if bool(untagged({"page.md": text.encode()})) != is_wrong:
            sys.exit(f"pages: this deployment must {'' if is_wrong else 'not '}be noticed:\n{text}")
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
    names = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    has_text = lambda name: name.endswith((".md", "samconfig.toml")) or SCRIPTS.search(name)
    files = {name: (ROOT / name).read_bytes() if has_text(name) else b"" for name in names}
    if bare := untagged(files):
        sys.exit("\n".join(["pages: these deployments must have tags:", *bare]))
    if stuck := undeployable(files):
        sys.exit("\n".join(["pages: upload the template of these under a name with VERSION, and use no CfnInclude:", *stuck]))
    # A link may lead to a folder.
    files |= {folder.as_posix(): b"" for name in names for folder in Path(name).parents}
    if dead := dead_links(files) + dead_runbooks():
        sys.exit("\n".join(["pages: these links lead nowhere:", *dead]))
    if cut := cut_lists(files):
        sys.exit("\n".join(["pages: remove the blank line after:", *cut]))


if __name__ == "__main__":
    main()
