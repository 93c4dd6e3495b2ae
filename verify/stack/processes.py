"""Processes of this machine: programs that cargo has built, commands that must succeed, and terminals."""

import contextlib
import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = ROOT / (os.environ.get("CARGO_TARGET_DIR") or "target")
PROGRAMS = TARGET / "debug"
# A local backend of its own, which writes a line of JSON when it listens.
LOCAL = [PROGRAMS / "weirgate", "--json", "local", "--port", "0", "--page-port", "0"]
# Seconds in which a function does what takes it one or two, and a schedule its minute.
PATIENCE = 120
# Seconds in which a program ends after its signal.
ENDING = 60
# What runs, and ends with this program.
RUNNING = []


class Failed(Exception):
    """A command failed: what it wrote."""


def run(command, **options):
    """Returns the standard output of a command that must succeed."""
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)
    if ran.returncode:
        raise Failed(f"{command[0]} failed ({ran.returncode}): {ran.stdout[-1000:]}{ran.stderr[-1000:]}")
    return ran.stdout


def until(holds, what, seconds=PATIENCE):
    """Waits until `holds` returns something true, and returns it."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise Failed(f"not within {seconds} s: {what}")
        time.sleep(0.2)
    return found


def free_port():
    """Returns a port of 127.0.0.1 that is free, for a process that cannot choose one itself."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def end_with_signals():
    """Lets SIGINT, SIGTERM and SIGHUP end this program at once, with what it runs. An exit would not: unittest goes on with the
    next test, and Python waits for its threads."""

    def end(number, _):
        for process, kill in itertools.product(RUNNING, (os.killpg, os.kill)):
            # Only some have a session of their own.
            with contextlib.suppress(ProcessLookupError):
                kill(process.pid, signal.SIGKILL)
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def listens(port):
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def terminal(command, port, seconds, ends_by=signal.SIGINT, **options):
    """Runs a command that listens on a port, as a terminal of its own would. It must end by this signal, Ctrl-C by default."""
    if listens(port):
        raise Failed(f"port {port} must be free: end the program that listens on it")
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)
    RUNNING.append(process)
    try:
        until(lambda: process.poll() is not None or listens(port), f"port {port} listens", seconds)
        if process.poll() is not None:
            raise Failed(f"it ended ({process.returncode}) before port {port} listened")
        yield process
        # Perhaps it has ended.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, ends_by)
        try:
            process.wait(ENDING)
        except subprocess.TimeoutExpired:
            raise Failed(f"{ends_by.name} does not end what listens on port {port}") from None
        # In order, by the signal, or as a shell says that.
        if process.returncode not in (0, -ends_by, 128 + ends_by):
            raise Failed(f"{ends_by.name} ends what listens on port {port} with {process.returncode}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        RUNNING.remove(process)


@contextlib.contextmanager
def running(command, **options):
    """Runs a program, and kills it in the end."""
    with subprocess.Popen(command, **{"stdin": subprocess.DEVNULL, **options}) as process:
        RUNNING.append(process)
        try:
            yield process
        finally:
            RUNNING.remove(process)
            process.kill()


@contextlib.contextmanager
def started(command, **options):
    """Runs a program that writes a line of JSON when it listens, and yields that."""
    with running(command, stdout=subprocess.PIPE, text=True, **options) as process:
        line = process.stdout.readline()
        if not line:
            raise Failed(f"{command[0]} ended ({process.wait()}) before it listened")
        # So that it never waits for a reader of its log.
        reader = threading.Thread(target=process.stdout.read)
        reader.start()
        try:
            yield json.loads(line)
        finally:
            process.kill()
            reader.join()
