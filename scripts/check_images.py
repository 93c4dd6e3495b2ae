"""Checks the images of a release: their layout, their checksums, what is in them, and how large they are. Those for this processor
are run by buildah, where it is installed and may: the agent on the table of `weirgate local`, each by its own entrypoint and health
check, as its own user.

Usage: check_images.py AGENT LOCAL   runs these images. They have fixed ports: scripts/alone.py gives them a network of their own
"""

import gzip
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

# Megabytes, packed.
MOST = {"weirgate-agent": 12, "weirgate-local": 25}
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
# Seconds until a container answers.
BOUND = 30


def fail(problem):
    sys.exit(f"check_images: {problem}")


def require(holds, otherwise):
    if not holds:
        fail(otherwise)


def checked(path, name, program, architecture):
    """Checks the image `name` of a program, which are its bytes, and returns its packed size."""
    with tarfile.open(path) as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isfile()}

    def blob(descriptor):
        data = files.get(f"blobs/{descriptor['digest'].replace(':', '/')}", b"")
        algorithm, _, checksum = descriptor["digest"].partition(":")
        require(hashlib.new(algorithm, data).hexdigest() == checksum and len(data) == descriptor["size"], f"{path.name}: {descriptor}")
        return data

    [described] = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(blob(described))
    settings = json.loads(blob(manifest["config"]))
    layers = [blob(layer) for layer in manifest["layers"]]
    [docker] = json.loads(files["manifest.json"])
    listed = [f"blobs/sha256/{each['digest'].partition(':')[2]}" for each in (manifest["config"], *manifest["layers"])]
    require([docker["Config"], *docker["Layers"]] == listed, f"{path.name}: manifest.json must list {listed}, got {docker}")
    platforms = [(each["os"], each["architecture"]) for each in (settings, described["platform"])]
    require(platforms == [("linux", architecture)] * 2, f"{path.name} must be for {architecture}, got {platforms}")
    user = settings["config"]["User"]
    require(all(part.isdigit() and int(part) > 0 for part in user.split(":")), f"{path.name}: the user must be a number above 0, got {user}")
    inside, executable = {}, set()
    for layer, expected in zip(layers, settings["rootfs"]["diff_ids"], strict=True):
        data = gzip.decompress(layer)
        require(f"sha256:{hashlib.sha256(data).hexdigest()}" == expected, f"{path.name}: {expected}")
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for entry in archive:
                if entry.isfile():
                    inside[entry.name] = archive.extractfile(entry).read()
                    executable |= {entry.name} if entry.mode & 0o111 else set()
    started = settings["config"]["Entrypoint"][0]
    require(executable == {started.lstrip("/")}, f"{path.name}: {started} must be the only program, got {executable}")
    require(inside[started.lstrip("/")] == program, f"{path.name}: {started} must be the program of the release")
    require(b"BEGIN CERTIFICATE" in inside.get(CERTIFICATES, b""), f"{path.name} must have {CERTIFICATES}")
    size = sum(map(len, layers))
    require(size <= MOST[name] * 1_000_000, f"{path.name} must have {MOST[name]} MB packed at most, got {size:,} bytes")
    return size


def config_of(path):
    """Returns what a container of an image begins with."""
    with tarfile.open(path) as archive:
        [docker] = json.load(archive.extractfile("manifest.json"))
        return json.load(archive.extractfile(docker["Config"]))["config"]


class Container:
    """A container of an image, in the network of this process."""

    def __init__(self, folder, path):
        self.base = ["buildah", "--root", f"{folder}/root", "--runroot", f"{folder}/run", "--storage-driver", "vfs"]
        # As `docker load` reads it.
        self.ask("pull", f"docker-archive:{path}")
        self.name = self.ask("from", f"oci-archive:{path}")
        config = config_of(path)
        self.started = [*config["Entrypoint"], *config.get("Cmd", [])]
        self.check = config["Healthcheck"]["Test"][1:]
        self.user = config["User"].partition(":")[0]
        read = json.loads(self.ask("inspect", self.name))["OCIv1"]["config"]
        for key in ("Entrypoint", "Cmd", "Env", "User"):
            require(read.get(key) == config.get(key), f"{path.name}: {key} must be {config.get(key)}, buildah reads {read.get(key)}")

    def ask(self, *arguments):
        done = subprocess.run([*self.base, *arguments], capture_output=True, text=True, timeout=120)
        require(done.returncode == 0, f"buildah {arguments}: {done.stderr}")
        return done.stdout.strip()

    def command(self, *arguments, variables=()):
        """Returns the command that runs another one with the variables and the user of the image."""
        given = [each for variable in variables for each in ("--env", variable)]
        return [*self.base, "run", "--isolation", "chroot", *given, self.name, "--", *arguments]

    def run(self, *arguments):
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=60)

    def is_healthy(self):
        return self.run(*self.check).returncode == 0

    @contextmanager
    def running(self, *options, variables=()):
        """Runs the image in the background until its health check succeeds, in a group of processes that ends with it."""
        require(not self.is_healthy(), f"{self.check} must fail while nothing runs")
        command = [*self.started, *options]
        process = subprocess.Popen(self.command(*command, variables=variables), stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            end = time.monotonic() + BOUND
            while not self.is_healthy():
                require(time.monotonic() < end, f"{self.check} must succeed within {BOUND} s after {command}")
            users = users_of(command)
            require(users == {self.user}, f"{command} must run as {self.user}, got {users}")
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def users_of(command):
    """Returns the users of the processes that a command began."""
    users = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_text().split("\0")[:-1] == command:
                users.add(re.search(r"^Uid:\t(\d+)", (process / "status").read_text(), re.M)[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return users


def page_command():
    """Returns the command of docs/guide/install.md that takes until a denial, in a container."""
    page = (Path(__file__).parent.parent / "docs/guide/install.md").read_text(encoding="utf-8")
    found = re.search(r"^docker exec weirgate (/weirgate acquire .*)$", page, re.M)
    require(found, "docs/guide/install.md must have a line `docker exec weirgate /weirgate acquire ...`")
    return shlex.split(found[1])


def run(agent, local):
    """Runs both images in a network of their own, and returns what was seen."""
    if shutil.which("buildah") is None or os.geteuid() != 0:
        return "not run: that needs buildah, and root"
    alone = [sys.executable, Path(__file__).parent / "alone.py", sys.executable, __file__]
    done = subprocess.run([*alone, agent, local])
    require(done.returncode == 0, "the images must run by their entrypoints")
    return "run by their entrypoints as their users, healthy, and unhealthy after the end"


def main(agent, local):
    with tempfile.TemporaryDirectory() as folder:
        agent, local = Container(folder, Path(agent)), Container(folder, Path(local))
        # What an agent is given; the rest is in its image.
        given = ["WEIRGATE_TABLE=weirgate", "AWS_REGION=us-east-1", "AWS_ENDPOINT_URL_DYNAMODB=http://127.0.0.1:8000"]
        with local.running():
            said = [local.run(*page_command()).stdout for _ in range(4)]
            require("denied" in said[-1] and "denied" not in said[0], f"the fourth of {page_command()} must be denied, got {said}")
            with agent.running(variables=given):
                pass
            require(not agent.is_healthy(), "the agent must be unhealthy after its end")
        with local.running("--data", "/data"):
            pass
        for container in (agent, local):
            container.ask("rm", container.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
