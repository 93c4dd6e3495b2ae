"""Connections, and which failures leave nothing applied.

A request is sent at most once. It is surely not applied if no connection was made, or if the operating system took not
one byte of it. After that its outcome is unknown.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from typing import Callable, Optional

from .endpoint import Endpoint
from .secret import hiding
from .wire import Malformed, Reader, Response, request

GRACE = 5.0
"""Seconds for the answer to a request that was given up. The agent needs a moment to see it."""


class NotSent(Exception):
    """Nothing of the request left this process."""


class Lost(Exception):
    """The request was sent, and no whole answer came."""


class Progress:
    """How far one request has come. It is not the connection's, which carries other requests too."""

    def __init__(self) -> None:
        self.is_sent = False
        """Whether a part of the request may have been sent."""
        self.reader = Reader()


class Connection:
    """One connection. It carries one request at a time."""

    def __init__(self, endpoint: Endpoint, deadline: float) -> None:
        self.head, token = endpoint.head()
        self._hide = hiding(token)
        try:
            self.socket = connect(endpoint, deadline)
        except (OSError, ValueError) as error:
            raise NotSent(not_connected(endpoint, error)) from error

    def close(self) -> None:
        """Closes it. The agent gives up on a request in progress."""
        self.socket.close()

    def __del__(self) -> None:
        # Of a thread that ended. A constructor that failed left no socket.
        if hasattr(self, "socket"):
            self.socket.close()

    def exchange(self, path: str, body: bytes, deadline: float, progress: Progress) -> Response:
        """Sends a request and reads the answer. After an exception the connection is unusable."""
        data = memoryview(request(path, self.head, body))
        sent = 0
        try:
            while sent < len(data):
                self.socket.settimeout(until(deadline))
                progress.is_sent = True
                sent += self.socket.send(data[sent:])
        except OSError as error:
            if sent == 0:
                raise NotSent(f"the connection to the agent is broken: {error}") from error
            raise Lost(f"no answer of the agent: {error}") from error
        return self.read(progress.reader, deadline)

    def read(self, reader: Reader, deadline: float) -> Response:
        """Reads the answer."""
        try:
            while True:
                self.socket.settimeout(until(deadline))
                # Stays in the socket until the reader has it, so an interruption does not lose it.
                got = self.socket.recv(65536, socket.MSG_PEEK)
                if not got:
                    raise Lost("the agent closed the connection before it answered")
                response = reader.feed(got)
                self.socket.recv(len(got))
                if response is not None:
                    return response._replace(hide=self._hide)
        except OSError as error:
            raise Lost(f"no answer of the agent: {error}") from error
        except Malformed as error:
            raise Lost(str(error)) from error

    def give_up(self, reader: Reader) -> Optional[Response]:
        """Tells the agent that nothing waits for the answer, and returns one that is there or on its way."""
        if reader.answer is not None:
            return reader.answer
        try:
            self.socket.shutdown(socket.SHUT_WR)
            return self.read(reader, time.monotonic() + GRACE)
        except (OSError, Lost):
            return None


class Connections:
    """One connection for each thread, and none that a fork shares."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._local = threading.local()

    def exchange(
        self, path: str, body: bytes, deadline: float, take_back: Optional[Callable[[Response], None]] = None
    ) -> Response:
        """Sends a request on the thread's connection, which is made if there is none.

        If the caller is interrupted after it was sent, `take_back` gets a success that the agent has answered with.
        """
        connection = self._take()
        if connection is None:
            connection = Connection(self._endpoint, deadline)
        progress = Progress()
        try:
            response = connection.exchange(path, body, deadline, progress)
        except BaseException as failure:
            # An interruption, such as by Ctrl-C.
            if take_back is not None and progress.is_sent and not isinstance(failure, Exception):
                given = connection.give_up(progress.reader)
                if given is not None and given.status == 200:
                    take_back(given)
            # At once, because an answer that is still on its way belongs to no later request.
            connection.close()
            raise
        if response.keeps_alive and response.status != 401:
            self._local.idle = (os.getpid(), connection)
        else:
            connection.close()
        return response

    def close(self) -> None:
        """Closes the connection of this thread."""
        connection = self._take()
        if connection is not None:
            connection.close()

    def _take(self) -> Optional[Connection]:
        """Takes the idle connection, unless it is closed or belongs to the parent process."""
        pid, connection = getattr(self._local, "idle", (0, None))
        # While it is in use nothing else finds it, such as a signal handler that acquires.
        self._local.idle = (0, None)
        if connection is None or (pid == os.getpid() and is_open(connection.socket)):
            return connection
        connection.close()
        return None


def connect(endpoint: Endpoint, deadline: float) -> socket.socket:
    """Connects to a host and port, or to a Unix socket. The addresses of a name share the time, one after the other."""
    if isinstance(endpoint.address, str):
        return _connect(socket.AF_UNIX, endpoint.address, deadline)
    found = socket.getaddrinfo(*endpoint.address, type=socket.SOCK_STREAM)
    for place, (family, _, _, _, address) in enumerate(found[:-1]):
        try:
            return _connect(family, address, share(deadline, len(found) - place))
        except OSError:
            continue
    family, _, _, _, address = found[-1]
    return _connect(family, address, deadline)


def _connect(family: int, address: object, deadline: float) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.settimeout(until(deadline))
        made.connect(address)  # type: ignore[arg-type]
        if not isinstance(address, str):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        made.close()
        raise
    return made


def is_open(idle: socket.socket) -> bool:
    """Returns whether an idle connection is usable. One that the agent closed is readable, as its end has come."""
    if idle.fileno() < 0:
        return False
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(idle, select.POLLIN)
        return not poll.poll(0)
    return not select.select([idle], [], [], 0)[0]


def share(deadline: float, tries: int) -> float:
    """Returns the deadline of the next one of several tries. Each has an equal part, as one may never answer."""
    return deadline - until(deadline) * (tries - 1) / tries


def until(deadline: float) -> float:
    """Returns the seconds left. Raises `TimeoutError` if there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise socket.timeout("timed out")
    return left


def not_connected(endpoint: Endpoint, error: Exception) -> str:
    """Returns the text for a connection that could not be made."""
    return f"no connection to the agent at {endpoint.url}: {error}; start weirgate-agent, or set WEIRGATE_AGENT_URL"
