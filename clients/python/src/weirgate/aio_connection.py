"""Connections of an event loop. What leaves nothing applied is as in `connection`.

The loop's socket calls tell how many bytes the operating system took, and streams do not.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Optional

from .connection import Lost, NotSent, is_open, not_connected, until
from .endpoint import Endpoint
from .wire import Malformed, Reader, Response, request


class AsyncConnection:
    """One connection. It carries one request at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.head = endpoint.head()
        self.loop = asyncio.get_running_loop()
        self.pid = os.getpid()
        self.socket: Optional[socket.socket] = None

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

    async def exchange(self, path: str, body: bytes) -> Response:
        """Sends a request and reads the answer. After an exception the connection is unusable."""
        assert self.socket is not None
        data = request(path, self.head, body)
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


class Timer:
    """Cancels the current task at a deadline, as `asyncio.timeout` does, which Python 3.9 and 3.10 do not have."""

    def __init__(self, deadline: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancellations = self._count()
        self._is_due = False
        self._handle = asyncio.get_running_loop().call_later(until(deadline), self._cancel)

    def stop(self) -> None:
        """Stops it, before the deadline or after."""
        self._handle.cancel()

    def has_cancelled(self) -> bool:
        """Returns whether only this timer cancelled the task, and then takes the cancellation back."""
        uncancel = getattr(self._task, "uncancel", None)
        return self._is_due and (uncancel is None or uncancel() <= self._cancellations)

    def _cancel(self) -> None:
        self._is_due = True
        self._task.cancel()

    def _count(self) -> int:
        cancelling = getattr(self._task, "cancelling", None)
        return int(cancelling()) if cancelling else 0


class AsyncConnections:
    """Idle connections, the last one used first."""

    def __init__(self, endpoint: Endpoint, max_idle: int) -> None:
        self._endpoint = endpoint
        self._max_idle = max_idle
        self._idle: list[AsyncConnection] = []

    async def exchange(self, path: str, body: bytes, deadline: float) -> Response:
        """Sends a request on an idle connection, or on a new one."""
        connection = self._take() or AsyncConnection(self._endpoint)
        is_connected = connection.socket is not None
        timer = Timer(deadline)
        try:
            if not is_connected:
                await connection.connect(self._endpoint)
                is_connected = True
            response = await connection.exchange(path, body)
        except BaseException as error:
            # At once, because an answer that is still on its way belongs to no later request.
            connection.close()
            if not isinstance(error, asyncio.CancelledError) or not timer.has_cancelled():
                raise
            text = f"no answer of the agent at {self._endpoint.url} in time"
            raise (Lost if is_connected else NotSent)(text) from None
        finally:
            timer.stop()
        if response.keeps_alive and response.status != 401 and len(self._idle) < self._max_idle:
            self._idle.append(connection)
        else:
            connection.close()
        return response

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
