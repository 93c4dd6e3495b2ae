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

from .connection import GRACE, Lost, NotSent, is_open, not_connected
from .endpoint import Endpoint
from .secret import hiding
from .wire import Malformed, Reader, Response, request

TakeBack = Callable[[Response], Coroutine[Any, Any, None]]
Outcome = Union[Response, NotSent, Lost]


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
        if self._cancelled is not None:
            raise self._cancelled


class AsyncConnection:
    """One connection. It carries one request at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.head, token = endpoint.head()
        self._hide = hiding(token)
        self.loop = asyncio.get_running_loop()
        self.pid = os.getpid()
        self.socket: Optional[socket.socket] = None
        self.is_sent = False
        """Whether a part of the request in progress may have been sent."""
        self.is_given_up = False
        self._waits = Waits(endures=True)

    @property
    def is_usable(self) -> bool:
        """Whether it belongs to this loop and process, and the agent has not closed it."""
        is_own = self.pid == os.getpid() and self.loop is asyncio.get_running_loop()
        return is_own and self.socket is not None and is_open(self.socket)

    async def connect(self, endpoint: Endpoint) -> None:
        """Connects. The addresses of a name are tried one after the other."""
        try:
            if isinstance(endpoint.address, str):
                await self._connect(socket.AF_UNIX, endpoint.address)
                return
            find = functools.partial(socket.getaddrinfo, *endpoint.address, type=socket.SOCK_STREAM)
            finding = self.loop.run_in_executor(None, find)
            await self._waits.wait(finding)
            found = finding.result()
            for place, (family, _, _, _, address) in enumerate(found, 1):
                try:
                    await self._connect(family, address)
                    break
                except OSError:
                    if place == len(found):
                        raise
            assert self.socket is not None
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ValueError) as error:
            raise NotSent(not_connected(endpoint, error)) from error

    async def _connect(self, family: int, address: Any) -> None:
        self.close()
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        code = self.socket.connect_ex(address)
        if code == errno.EINPROGRESS:
            await self._ready(self.socket, self.loop.add_writer, self.loop.remove_writer)
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))

    def close(self) -> None:
        """Closes it. The agent gives up on a request in progress."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def __del__(self) -> None:
        self.close()

    def give_up(self) -> None:
        """Tells the agent that nothing waits for the answer. One that is on its way can still be read."""
        self.is_given_up = True
        if self.socket is not None:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)

    def stop(self, exchange: asyncio.Future[Any]) -> None:
        """Ends its exchange."""
        self._waits.endures = False
        exchange.cancel()

    async def exchange(self, endpoint: Endpoint, path: str, body: bytes) -> Response:
        """Connects if it has not, sends a request and reads the answer. After an exception it is unusable."""
        if self.socket is None:
            await self.connect(endpoint)
        assert self.socket is not None
        await self._send(self.socket, memoryview(request(path, self.head, body)))
        reader = Reader()
        try:
            while True:
                try:
                    got = self.socket.recv(65536)
                except BlockingIOError:
                    await self._ready(self.socket, self.loop.add_reader, self.loop.remove_reader)
                    continue
                if not got:
                    raise Lost("the agent closed the connection before it answered")
                response = reader.feed(got)
                if response is not None:
                    return response._replace(hide=self._hide)
        except OSError as error:
            raise Lost(f"no answer of the agent: {error}") from error
        except Malformed as error:
            raise Lost(str(error)) from error

    async def _send(self, sock: socket.socket, data: memoryview) -> None:
        self.is_sent = True
        sent = 0
        try:
            while sent < len(data):
                try:
                    sent += sock.send(data[sent:])
                except BlockingIOError:
                    await self._ready(sock, self.loop.add_writer, self.loop.remove_writer)
        except OSError as error:
            if sent == 0:
                raise NotSent(f"the connection to the agent is broken: {error}") from error
            raise Lost(f"no answer of the agent: {error}") from error

    async def _ready(self, sock: socket.socket, add: Callable[..., Any], remove: Callable[[int], Any]) -> None:
        """Returns when the socket can go on. What it has stays in it, so a cancellation loses nothing."""
        ready = self.loop.create_future()
        place = sock.fileno()
        # Until the task has run, the socket is ready in each turn.
        add(place, lambda: None if ready.done() else ready.set_result(None))
        try:
            await self._waits.wait(ready)
        finally:
            remove(place)


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
        connection.is_sent = False
        # A task of its own, because a cancellation would lose an answer that this task has not seen yet.
        exchange = asyncio.ensure_future(self._exchange(connection, path, body, take_back))
        exchange.add_done_callback(functools.partial(self._put_back, connection))
        try:
            await waits.wait(exchange, deadline)
        except asyncio.CancelledError:
            taking = self._give_up(connection, exchange, take_back)
            if taking is not None:
                await Waits(endures=True).wait(taking)
            raise
        except BaseException:
            self._give_up(connection, exchange, take_back)
            raise
        if not exchange.done():
            connection.stop(exchange)
            await waits.wait(exchange)
        if exchange.cancelled():
            text = f"no answer of the agent at {self._endpoint.url} in time"
            raise (Lost if connection.is_sent else NotSent)(text)
        outcome = exchange.result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _exchange(
        self, connection: AsyncConnection, path: str, body: bytes, take_back: Optional[TakeBack]
    ) -> Outcome:
        """Returns a failure, because a loop that ends reports each task that raised one."""
        try:
            response = await connection.exchange(self._endpoint, path, body)
        except (NotSent, Lost) as failure:
            return failure
        if connection.is_given_up and take_back is not None and response.status == 200:
            await take_back(response)
        return response

    def _put_back(self, connection: AsyncConnection, exchange: asyncio.Future[Outcome]) -> None:
        """Keeps the connection of a finished exchange, or closes it."""
        response = _response(exchange)
        is_usable = response is not None and response.keeps_alive and response.status != 401
        if is_usable and not connection.is_given_up and len(self._idle) < self._max_idle:
            self._idle.append(connection)
        else:
            connection.close()

    def _give_up(
        self, connection: AsyncConnection, exchange: asyncio.Future[Outcome], take_back: Optional[TakeBack]
    ) -> Optional[asyncio.Future[None]]:
        """Ends an exchange whose caller was cancelled. What it took returns: the agent drops a request in progress, and
        an answer that is on its way is taken back. Returns what takes back an answer that is there."""
        if connection.loop.is_closed():
            connection.close()
        elif take_back is None or not connection.is_sent:
            connection.stop(exchange)
        elif not exchange.done():
            connection.give_up()
            connection.loop.call_later(GRACE, connection.stop, exchange)
            self._keep(exchange)
        else:
            response = _response(exchange)
            if response is not None and response.status == 200:
                taking = connection.loop.create_task(take_back(response))
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


def _response(exchange: asyncio.Future[Outcome]) -> Optional[Response]:
    """Returns the answer of an exchange that has ended, or None if there was none."""
    if exchange.cancelled() or exchange.exception():
        return None
    outcome = exchange.result()
    return None if isinstance(outcome, Exception) else outcome
