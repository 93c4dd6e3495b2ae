"""Connections of an event loop. What leaves nothing applied is as in `connection`.

Streams do not tell how many bytes the operating system took, so these are non-blocking sockets. An exchange is a task
that only its own client stops: a loop that ends cancels all tasks, and waits for those that return what was taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import socket
import time
from collections.abc import Coroutine
from typing import Any, Callable, Optional, Union

from .connection import GRACE, Lost, NotSent, is_open, not_connected, share
from .endpoint import Endpoint
from .secret import hiding
from .wire import Malformed, Reader, Response, request

TakeBack = Callable[[Response], Coroutine[Any, Any, None]]
Outcome = Union[Response, NotSent, Lost]

# What a connection that is being made answers. Winsock has a name of its own for it.
CONNECTING = errno.EWOULDBLOCK if os.name == "nt" else errno.EINPROGRESS


class Waits:
    """Waits of one call for futures. While it `endures`, a cancellation is kept for `end`, after all of them."""

    def __init__(self, endures: bool) -> None:
        self.endures = endures
        self._cancelled: Optional[asyncio.CancelledError] = None

    async def wait(self, future: asyncio.Future[Any], deadline: Optional[float] = None) -> None:
        """Returns when the future is done, or the deadline has passed."""
        while not future.done():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            try:
                await asyncio.wait({future}, timeout=left)
            except asyncio.CancelledError as cancelled:
                if not self.endures:
                    raise
                self._cancelled = cancelled

    def end(self) -> None:
        """Raises the cancellation that came meanwhile."""
        cancelled, self._cancelled = self._cancelled, None
        if cancelled is None:
            return
        try:
            raise cancelled
        finally:
            # Its traceback has this frame: such a cycle would keep the client, and its sockets open.
            del cancelled


class AsyncConnection:
    """One connection. It carries one request at a time.

    The slots have no state of a request: another one may begin before the caller of the last one runs again.
    """

    __slots__ = ("head", "hide", "loop", "pid", "socket")

    def __init__(self, endpoint: Endpoint) -> None:
        self.head, token = endpoint.head()
        self.hide = hiding(token)
        self.loop = asyncio.get_running_loop()
        self.pid = os.getpid()
        self.socket: Optional[socket.socket] = None

    @property
    def is_usable(self) -> bool:
        """Whether it belongs to this loop and process, and the agent has not closed it."""
        is_own = self.pid == os.getpid() and self.loop is asyncio.get_running_loop()
        return is_own and self.socket is not None and is_open(self.socket)

    def close(self) -> None:
        """Closes it. The agent gives up on a request in progress."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def __del__(self) -> None:
        # A constructor that failed set nothing.
        if hasattr(self, "socket"):
            self.close()


class Exchange:
    """One request on a connection, and its answer. It touches the connection only until its task has ended."""

    def __init__(
        self,
        connection: AsyncConnection,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        deadline: float,
        take_back: Optional[TakeBack],
    ) -> None:
        self.connection = connection
        self._deadline = deadline
        self.is_sent = False
        """Whether a part of the request may have been sent."""
        self.is_given_up = False
        self._endpoint = endpoint
        self._take_back = take_back
        self._waits = Waits(endures=True)
        self._request = request(path, connection.head, body)

    def stop(self, task: asyncio.Future[Any]) -> None:
        """Ends its task."""
        self._waits.endures = False
        task.cancel()

    def give_up(self) -> None:
        """Tells the agent that nothing waits for the answer. One that is on its way can still be read."""
        self.is_given_up = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    async def run(self) -> Outcome:
        """Returns a failure, because a loop that ends reports each task that raised one."""
        try:
            if self.connection.socket is None:
                await self._connect()
            response = await self._ask(memoryview(self._request))
        except (NotSent, Lost) as failure:
            return failure
        if self.is_given_up and self._take_back is not None and response.status == 200:
            await self._take_back(response)
        return response

    async def _connect(self) -> None:
        """Connects. The addresses of a name share the time, one after the other."""
        try:
            if isinstance(self._endpoint.address, str):
                await self._connect_to(socket.AF_UNIX, self._endpoint.address, self._deadline)
                return
            find = functools.partial(socket.getaddrinfo, *self._endpoint.address, type=socket.SOCK_STREAM)
            finding = self.connection.loop.run_in_executor(None, find)
            await self._waits.wait(finding)
            found = finding.result()
            for place, (family, _, _, _, address) in enumerate(found):
                tries = len(found) - place
                try:
                    await self._connect_to(family, address, share(self._deadline, tries))
                    break
                except OSError:
                    if tries == 1:
                        raise
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ValueError) as error:
            raise NotSent(not_connected(self._endpoint, error)) from error

    async def _connect_to(self, family: int, address: Any, deadline: float) -> None:
        self.connection.close()
        self.connection.socket = made = socket.socket(family, socket.SOCK_STREAM)
        made.setblocking(False)
        code = made.connect_ex(address)
        if code == CONNECTING:
            await self._ready(self.connection.loop.add_writer, self.connection.loop.remove_writer, deadline)
            code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))

    async def _ask(self, data: memoryview) -> Response:
        """Sends a request and reads the answer. After an exception the connection is unusable."""
        loop = self.connection.loop
        sent = 0
        self.is_sent = True
        reader = Reader()
        try:
            while sent < len(data):
                try:
                    sent += self._socket.send(data[sent:])
                except BlockingIOError:
                    await self._ready(loop.add_writer, loop.remove_writer)
            while True:
                try:
                    got = self._socket.recv(65536)
                except BlockingIOError:
                    await self._ready(loop.add_reader, loop.remove_reader)
                    continue
                if not got:
                    raise Lost("the agent closed the connection before it answered")
                response = reader.feed(got)
                if response is not None:
                    return response._replace(hide=self.connection.hide)
                # The rest may be there already, and other tasks and the deadline must have their turn before it.
                await self._ready(loop.add_reader, loop.remove_reader)
        except OSError as error:
            if sent == 0:
                raise NotSent(f"the connection to the agent is broken: {error}") from error
            raise Lost(f"no answer of the agent: {error}") from error
        except Malformed as error:
            raise Lost(str(error)) from error

    @property
    def _socket(self) -> socket.socket:
        assert self.connection.socket is not None
        return self.connection.socket

    async def _ready(
        self, add: Callable[..., Any], remove: Callable[[int], Any], deadline: Optional[float] = None
    ) -> None:
        """Returns when the socket can go on. What it has stays in it, so a cancellation loses nothing."""
        ready = self.connection.loop.create_future()
        place = self._socket.fileno()
        # Until the task has run, the socket is ready in each turn.
        add(place, lambda: None if ready.done() else ready.set_result(None))
        try:
            await self._waits.wait(ready, deadline)
        finally:
            remove(place)
        if not ready.done():
            raise socket.timeout("timed out")


class AsyncConnections:
    """Idle connections, the last one used first."""

    def __init__(self, endpoint: Endpoint, max_idle: int) -> None:
        self._endpoint = endpoint
        self._max_idle = max_idle
        self._idle: list[AsyncConnection] = []
        self._given_up: set[asyncio.Future[Any]] = set()

    async def exchange(
        self, path: str, body: bytes, deadline: float, waits: Waits, take_back: Optional[TakeBack]
    ) -> Response:
        """Sends a request on an idle connection, or on a new one.

        If the caller is cancelled after it was sent, `take_back` gets a success that the agent has answered with.
        """
        if deadline <= time.monotonic():
            raise NotSent(f"no time is left to ask the agent at {self._endpoint.url}")
        connection = self._take() or AsyncConnection(self._endpoint)
        exchange = Exchange(connection, self._endpoint, path, body, deadline, take_back)
        # A task of its own, because a cancellation would lose an answer that this task has not seen yet.
        task = asyncio.ensure_future(exchange.run())
        task.add_done_callback(functools.partial(self._put_back, exchange))
        try:
            await waits.wait(task, deadline)
        except asyncio.CancelledError:
            taking = self._give_up(exchange, task, take_back)
            if taking is not None:
                await Waits(endures=True).wait(taking)
            raise
        except BaseException:
            self._give_up(exchange, task, take_back)
            raise
        if not task.done():
            exchange.stop(task)
            await waits.wait(task)
        if task.cancelled() and exchange.is_sent:
            raise Lost(f"no answer of the agent at {self._endpoint.url} in time")
        if task.cancelled():
            raise NotSent(not_connected(self._endpoint, socket.timeout("timed out")))
        outcome = task.result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _put_back(self, exchange: Exchange, task: asyncio.Future[Outcome]) -> None:
        """Keeps the connection of a finished exchange, or closes it."""
        response = _response(task)
        is_usable = response is not None and response.keeps_alive and response.status != 401
        if is_usable and not exchange.is_given_up and len(self._idle) < self._max_idle:
            self._idle.append(exchange.connection)
        else:
            exchange.connection.close()

    def _give_up(
        self, exchange: Exchange, task: asyncio.Future[Outcome], take_back: Optional[TakeBack]
    ) -> Optional[asyncio.Future[None]]:
        """Ends an exchange whose caller was cancelled. What it took returns: the agent drops a request in progress, and
        an answer that is on its way is taken back. Returns what takes back an answer that is there."""
        loop = exchange.connection.loop
        if loop.is_closed():
            exchange.connection.close()
        elif take_back is None or not exchange.is_sent:
            exchange.stop(task)
        elif not task.done():
            exchange.give_up()
            loop.call_later(GRACE, exchange.stop, task)
            self._keep(task)
        else:
            response = _response(task)
            if response is not None and response.status == 200:
                taking = loop.create_task(take_back(response))
                self._keep(taking)
                return taking
        return None

    def _keep(self, task: asyncio.Future[Any]) -> None:
        # The loop has only weak references of tasks.
        self._given_up.add(task)
        task.add_done_callback(self._given_up.discard)

    def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            self._idle.pop().close()

    async def returned(self) -> None:
        """Returns when all that cancelled callers took has returned."""
        while self._given_up:
            await asyncio.wait(set(self._given_up))

    def _take(self) -> Optional[AsyncConnection]:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        return None


def _response(task: asyncio.Future[Outcome]) -> Optional[Response]:
    """Returns the answer of an exchange that has ended, or None if there was none."""
    if task.cancelled() or task.exception():
        return None
    outcome = task.result()
    return None if isinstance(outcome, Exception) else outcome
