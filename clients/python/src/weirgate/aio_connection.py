"""Connections of an event loop. What leaves nothing applied is as in `connection`.

The loop's socket calls tell how many bytes the operating system took, and streams do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import Coroutine
from typing import Any, Callable, Optional

from .connection import Lost, NotSent, is_open, not_connected, until
from .endpoint import Endpoint
from .wire import Malformed, Reader, Response, request

GRACE = 5.0
"""Seconds for the answer to a request that was given up. The agent needs a moment to see it."""

TakeBack = Callable[[Response], Coroutine[Any, Any, None]]


class AsyncConnection:
    """One connection. It carries one request at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.head = endpoint.head()
        self.loop = asyncio.get_running_loop()
        self.pid = os.getpid()
        self.socket: Optional[socket.socket] = None
        self.is_sent = False
        """Whether a part of the request in progress may have been sent."""
        self.is_given_up = False

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
            found = await self.loop.getaddrinfo(*endpoint.address, type=socket.SOCK_STREAM)
            for place, (family, _, _, _, address) in enumerate(found, 1):
                try:
                    await self._connect(family, address)
                    break
                except OSError:
                    if place == len(found):
                        raise
            assert self.socket is not None
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise NotSent(not_connected(endpoint, error)) from error

    async def _connect(self, family: int, address: object) -> None:
        self.close()
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        await self.loop.sock_connect(self.socket, address)  # type: ignore[arg-type]

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

    async def exchange(self, endpoint: Endpoint, path: str, body: bytes) -> Response:
        """Connects if it has not, sends a request and reads the answer. After an exception it is unusable."""
        if self.socket is None:
            await self.connect(endpoint)
        assert self.socket is not None
        data = request(path, self.head, body)
        self.is_sent = True
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise NotSent(f"the connection to the agent is broken: {error}") from error
        reader = Reader()
        try:
            if sent < len(data):
                await self.loop.sock_sendall(self.socket, memoryview(data)[sent:])
            while True:
                got = await self.loop.sock_recv(self.socket, 65536)
                if not got:
                    raise Lost("the agent closed the connection before it answered")
                response = reader.feed(got)
                if response is not None:
                    return response
        except OSError as error:
            raise Lost(f"no answer of the agent: {error}") from error
        except Malformed as error:
            raise Lost(str(error)) from error


class AsyncConnections:
    """Idle connections, the last one used first."""

    def __init__(self, endpoint: Endpoint, max_idle: int) -> None:
        self._endpoint = endpoint
        self._max_idle = max_idle
        self._idle: list[AsyncConnection] = []
        self._given_up: set[asyncio.Future[Any]] = set()

    async def exchange(self, path: str, body: bytes, deadline: float, take_back: Optional[TakeBack]) -> Response:
        """Sends a request on an idle connection, or on a new one.

        If the caller is cancelled after it was sent, `take_back` gets a success that the agent has answered with.
        """
        try:
            left = until(deadline)
        except OSError as error:
            raise NotSent(f"no time is left to ask the agent at {self._endpoint.url}") from error
        connection = self._take() or AsyncConnection(self._endpoint)
        connection.is_sent = False
        # A task of its own, because a cancellation would lose an answer that this task has not seen yet.
        exchange = asyncio.ensure_future(connection.exchange(self._endpoint, path, body))
        exchange.add_done_callback(functools.partial(self._put_back, connection))
        try:
            await asyncio.wait({exchange}, timeout=left)
        except BaseException:
            self._give_up(connection, exchange, take_back)
            raise
        if not exchange.done():
            exchange.cancel()
            await asyncio.wait({exchange})
        if exchange.cancelled():
            text = f"no answer of the agent at {self._endpoint.url} in time"
            raise (Lost if connection.is_sent else NotSent)(text)
        return exchange.result()

    def _put_back(self, connection: AsyncConnection, exchange: asyncio.Future[Response]) -> None:
        """Keeps the connection of a finished exchange, or closes it."""
        response = None if exchange.cancelled() or exchange.exception() else exchange.result()
        is_usable = response is not None and response.keeps_alive and response.status != 401
        if is_usable and not connection.is_given_up and len(self._idle) < self._max_idle:
            self._idle.append(connection)
        else:
            connection.close()

    def _give_up(
        self, connection: AsyncConnection, exchange: asyncio.Future[Response], take_back: Optional[TakeBack]
    ) -> None:
        """Ends an exchange whose caller was cancelled. What it took returns: the agent drops a request in progress, and
        an answer that is on its way is taken back."""
        if take_back is None or not connection.is_sent:
            exchange.cancel()
            return
        if not exchange.done():
            connection.give_up()
            asyncio.get_running_loop().call_later(GRACE, exchange.cancel)
        exchange.add_done_callback(functools.partial(self._take_back, take_back))
        self._given_up.add(exchange)

    def _take_back(self, take_back: TakeBack, exchange: asyncio.Future[Response]) -> None:
        self._given_up.discard(exchange)
        if exchange.cancelled() or exchange.exception() or exchange.result().status != 200:
            return
        taking = asyncio.ensure_future(take_back(exchange.result()))
        # The loop has only weak references of tasks.
        self._given_up.add(taking)
        taking.add_done_callback(self._given_up.discard)

    def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> Optional[AsyncConnection]:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        return None
