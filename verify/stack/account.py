"""An emulated account on this machine: MiniStack, and stacks that the real `sam` deploys to it.

MiniStack enforces roles, so a permission that the template lacks fails as on AWS.
"""

import atexit
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import boto3

from processes import PROGRAMS, ROOT, free_port, run, until

SAM = ROOT / ".venv/sam/bin/sam"


class Account:
    """MiniStack with a folder for all files. Ends with this program, and so do the functions."""

    def __init__(self, name):
        self.began = time.monotonic()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"weirgate-{name}-"))
        port = free_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        self.credentials = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
        self.say(f"starting MiniStack on {self.endpoint}")
        # The functions inherit this environment, so nothing of the user's own is in it.
        environment = {
            **self.credentials,
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "GATEWAY_PORT": str(port),
            "BIND_HOST": "127.0.0.1",
            "LOG_LEVEL": "INFO",
            "AUTH": "true",
        }
        self.log = self.folder / "ministack.log"
        with self.log.open("w") as log:
            self.emulator = subprocess.Popen(
                [ROOT / ".venv/stack/bin/ministack"], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)
        atexit.register(self.end)
        for stop in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(stop, lambda number, _: sys.exit(128 + number))
        until(self.is_up, "MiniStack answers", 30)

    def is_up(self):
        if self.emulator.poll() is not None:
            sys.exit(f"MiniStack ended: {self.log.read_text()[-1000:]}")
        try:
            with urllib.request.urlopen(f"{self.endpoint}/_ministack/health", timeout=1) as answer:
                return answer.status == 200
        except OSError:
            return False

    def end(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.emulator.pid, number)
                self.emulator.wait(3)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
        shutil.rmtree(self.folder, ignore_errors=True)

    def say(self, text):
        print(f"[{time.monotonic() - self.began:4.0f} s] {text}", flush=True)

    def client(self, service):
        return boto3.client(service, endpoint_url=self.endpoint, region_name="us-east-1", aws_access_key_id="test",
                            aws_secret_access_key="test")

    def outputs(self, stack):
        described = self.client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
        return {output["OutputKey"]: output["OutputValue"] for output in described["Outputs"]}

    def lines(self):
        """Returns what the functions have logged: their lines of JSON."""
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                yield json.loads(line[line.index("{"):])
            except ValueError:
                pass


def hold(environment, entity, resource, lease):
    """Two slots of two, held by a process that is killed. Returns the lease's id, and what lists the leases that are left."""
    command = PROGRAMS / "weirgate"

    def leases():
        listed = json.loads(run([command, "leases", "list", entity, resource, "--json"], env=environment))
        return [lease["id"] for lease in listed["items"]]
    holder = subprocess.Popen(
        [command, "acquire", entity, resource, "slots=2", "--limit", "slots=2", "--lease", lease, "--", "sleep", "600"],
        env=environment, start_new_session=True)
    held = until(leases, "the slots are held")
    # First `weirgate`, which would give back what it holds.
    holder.kill()
    holder.wait()
    os.killpg(holder.pid, signal.SIGKILL)
    return held[0], leases
