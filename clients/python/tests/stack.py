"""The real agent, on the local backend of `weirgate local`. `make clients` builds both."""

import json
import os
import re
import subprocess
import threading
import urllib.request
from pathlib import Path

CONTRACT = Path(__file__).resolve().parents[2] / "contract"


class Backend:
    """`weirgate local` with the limits of the contract."""

    def __init__(self):
        command = [_binary("WEIRGATE_BIN"), "--json", "local", "--port", "0", "--limits", str(CONTRACT / "limits.yaml")]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            self.variables = _first_value(self._process)["variables"]
        except BaseException:
            self.stop()
            raise

    def stop(self):
        _stop(self._process)


class Agent:
    """The agent, on a port that stays the same over restarts, and on a Unix socket if `socket` is a path."""

    def __init__(self, variables, socket=None):
        self._variables = variables
        self._socket = socket
        self._port = 0
        self._start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._port}"

    def in_flight(self):
        """Returns the number of requests that the agent works on."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as response:
            return int(re.search(r"^weirgate_agent_in_flight (\d+)", response.read().decode(), re.M)[1])

    def restart(self):
        self.stop()
        self._start()

    def stop(self):
        _stop(self._process)

    def _start(self):
        command = [_binary("WEIRGATE_AGENT_BIN"), "--listen", f"127.0.0.1:{self._port}"]
        if self._socket:
            command += ["--unix-socket", str(self._socket)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**os.environ, **self._variables}, text=True
        )
        try:
            for line in self._process.stdout:
                said = json.loads(line)
                if said.get("message") == "listening" and said["address"].startswith("http:"):
                    self._port = int(said["address"].rpartition(":")[2])
                    break
            else:
                raise AssertionError(f"the agent ended with {self._process.wait()} before it listened")
        except BaseException:
            self.stop()
            raise
        # So that the agent never waits for a reader of its log.
        threading.Thread(target=_drain, args=(self._process.stdout,), daemon=True).start()


def without_database():
    """Returns variables of a database that nothing serves."""
    return {
        "WEIRGATE_TABLE": "weirgate",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_DYNAMODB": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
    }


def _binary(variable):
    path = os.environ.get(variable)
    if not path:
        raise AssertionError(f"{variable} must be the path of a binary: run `make clients`")
    return path


def _first_value(process):
    text = ""
    for line in process.stdout:
        text += line
        try:
            return json.loads(text)
        except ValueError:
            continue
    raise AssertionError(f"weirgate local ended with {process.wait()}: {text}")


def _drain(stream):
    try:
        for _ in stream:
            pass
    except ValueError:
        pass  # closed by _stop


def _stop(process):
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
