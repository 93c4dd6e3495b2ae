"""What `sam` deploys to the emulator, with the functions that cargo has built for the tests: they do the same as those of a
release, and nothing is compiled twice.
"""

import os
import re
import shutil

from account import SAM
from processes import PROGRAMS, ROOT, run

# Its `build` takes the functions that are there, and leaves out the alarms of metric math, which the emulator refuses. A
# deployment without a new build deploys nothing.
WRAPPED_SAM = r"""#!/usr/bin/env bash
set -euo pipefail
case $1 in
build)
  rm -rf .aws-sam && mkdir .aws-sam && cp -r built .aws-sam/build
  template=template.yaml
  while [ $# -gt 0 ]; do [ "$1" = --template-file ] && template=$2; shift; done
  sed -E -e 's|^      FunctionName: .*-(.*)$|&\n      CodeUri: \1|' -e '/^  (TableThrottled|AggregatorLag)Alarm:$/,/^$/d' \
    "$template" > .aws-sam/build/template.yaml ;;
deploy)
  [ -d .aws-sam ] || { echo "nothing has been built" >&2; exit 1; }
  'SAM' "$@" && rm -rf .aws-sam ;;
*) exec 'SAM' "$@" ;;
esac
"""


def lay_out(folder, alarms):
    """Copies what `sam` reads, beside functions that are built already: built/NAME/bootstrap. Returns the `sam` to use there.
    `alarms` is the parameter's value.
    """
    for name in re.findall("(?m)^      FunctionName: .*-(.*)$", (ROOT / "template.yaml").read_text()):
        code = folder / "built" / name
        code.mkdir(parents=True)
        shutil.copy(PROGRAMS / name, code / "bootstrap")
    for name in ("template.yaml", "stack-policy.json"):
        shutil.copy(ROOT / name, folder)
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/restored-table.yaml", folder / "scripts")
    _, local = (ROOT / "samconfig.toml").read_text().split("[local.deploy")
    local = local.replace("Alarms=false", f"Alarms={alarms}")
    (folder / "samconfig.toml").write_text(f'version = 0.1\n[default.global.parameters]\nregion = "us-east-1"\n[default.deploy{local}')
    (folder / "bin").mkdir()
    sam = folder / "bin/sam"
    sam.write_text(WRAPPED_SAM.replace("SAM", str(SAM)))
    sam.chmod(0o755)
    return sam


def deploy(account, sam, stack, *arguments):
    """Builds and deploys a stack as a user does."""
    environment = {**{name: value for name, value in os.environ.items() if not name.startswith("AWS_")}, **account.credentials,
                   "PATH": f"{SAM.parent}:{os.environ['PATH']}", "SAM_CLI_TELEMETRY": "0"}
    for command in (["build"], ["deploy", "--stack-name", stack, *arguments]):
        run([sam, *command], cwd=account.folder, env=environment)
