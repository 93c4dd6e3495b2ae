"""Checks the images of a release: their layout, their checksums, what is in them, and how large they are. Those for this processor
are run by buildah, where it is installed and may: the agent on the table of `weirgate local`, each with its health check.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import socket
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


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Buildah:
    """Containers in a folder of their own, in the network of this machine."""

    def __init__(self, folder):
        self.base = ["buildah", "--root", f"{folder}/root", "--runroot", f"{folder}/run", "--storage-driver", "vfs"]

    def ask(self, *arguments):
        done = subprocess.run([*self.base, *arguments], capture_output=True, text=True, timeout=120)
        require(done.returncode == 0, f"buildah {arguments}: {done.stderr}")
        return done.stdout.strip()

    def container(self, path):
        # As `docker load` reads it.
        self.ask("pull", f"docker-archive:{path}")
        return self.ask("from", f"oci-archive:{path}")

    def command(self, container, *arguments):
        return [*self.base, "run", "--isolation", "chroot", container, "--", *arguments]

    def run(self, container, *arguments):
        """Returns the exit code of a command."""
        return subprocess.run(self.command(container, *arguments), capture_output=True, timeout=60).returncode

    @contextmanager
    def running(self, container, *arguments):
        """Runs a command in the background, in a group of processes that ends with it."""
        process = subprocess.Popen(self.command(container, *arguments), stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def healthy(buildah, container, *check):
    """Waits until a health check succeeds."""
    end = time.monotonic() + BOUND
    while buildah.run(container, *check) != 0:
        require(time.monotonic() < end, f"{container}: {check} must succeed within {BOUND} s")


def run(agent, local):
    """Runs both images, and returns what was seen."""
    if shutil.which("buildah") is None or os.geteuid() != 0:
        return "not run: that needs buildah, and root"
    with tempfile.TemporaryDirectory() as folder:
        buildah = Buildah(folder)
        agent, local = buildah.container(agent), buildah.container(local)
        table, page, api = (str(free_port()) for _ in range(3))
        url = f"http://127.0.0.1:{table}"
        looked, asked = ["/weirgate", "switches", "--endpoint-url", url], ["/weirgate-agent", "healthcheck", "--listen", f"127.0.0.1:{api}"]
        for container, check in ((local, looked), (agent, asked)):
            require(buildah.run(container, *check) != 0, f"{container}: {check} must fail while nothing runs")
        with buildah.running(local, "/weirgate", "local", "--address", "0.0.0.0", "--port", table, "--page-port", page):
            healthy(buildah, local, *looked)
            started = ["--table", "weirgate", "--endpoint-url", url, "--listen", f"127.0.0.1:{api}"]
            with buildah.running(agent, "/weirgate-agent", *started):
                healthy(buildah, agent, *asked)
            require(buildah.run(agent, *asked) != 0, "the agent must be unhealthy after its end")
        for container in (agent, local):
            buildah.ask("rm", container)
    return "run, healthy, and unhealthy after the end"
