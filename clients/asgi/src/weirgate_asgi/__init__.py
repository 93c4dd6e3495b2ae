"""Rate limits and concurrency limits for every request of an ASGI application, by weirgate-agent.

    app.add_middleware(RateLimit, resource="api", key=tenant_of, on_unavailable="deny")

`tenant_of` returns what authentication found: authenticate first.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import inspect
import json
import logging
import re
from collections.abc import Awaitable, Mapping, MutableMapping, Sequence
from typing import Any, Callable, Literal, Optional, Union

import weirgate

__version__ = "0.10.0"
__all__ = ["GRANT", "RateLimit"]

_OrNone = Optional[weirgate.Take]
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GRANT = "weirgate.grant"
"""Key of the scope that has the request's grant, such as to adjust it to what was used."""
_REQUEST = {"requests": 1}
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_.:@-]{0,255}")
_RULE = "1 to 256 of A-Z a-z 0-9 _ . - : @, starting with a letter or digit"
# What an acquire for slots has without a `lease`.
_LEASE = 60.0
# Bytes of a body that are kept for the application while its request waits.
_MOST_HEARD = 1 << 16
_TRY_AGAIN = 1013
_POLICY = 1008
_log = logging.getLogger("weirgate")


class RateLimit:
    """Middleware that acquires before each request, and answers a denial itself.

    `key` returns the entity that pays for a request, from its scope; it may be a coroutine function. Authenticate first:
    it must be the result of an authentication, and not what a client can choose. Without an entity the answer is 401, and
    400 if it is no name of Weirgate. `on_unavailable` decides without the agent, and without DynamoDB: `"allow"` passes
    requests, `"deny"` answers 429. What only a repair ends is answered 500 by either. `take` has the amounts by limit, or
    is a function of the scope, maybe a coroutine function, that returns them, or None for a request without a limit.
    `limits` are those of the table, by default. `wait`, `lease` and `timeout` are options of the acquire, in seconds. A
    client that leaves while it waits takes nothing; with a body of 64 KiB or more that is not seen. A lease is renewed
    until the response or the WebSocket ends. `client` is an `AsyncClient`, by default one of its own.
    """

    def __init__(
        self,
        app: App,
        *,
        resource: str,
        key: Callable[[Scope], Union[Optional[str], Awaitable[Optional[str]]]],
        on_unavailable: Literal["allow", "deny"],
        take: Union[weirgate.Take, Callable[[Scope], Union[_OrNone, Awaitable[_OrNone]]]] = _REQUEST,
        limits: Optional[Sequence[Union[weirgate.Limit, str]]] = None,
        wait: Optional[float] = None,
        lease: Optional[float] = None,
        timeout: Optional[float] = None,
        client: Optional[weirgate.AsyncClient] = None,
    ) -> None:
        if not callable(key):
            raise TypeError(f"key must be a function of the scope, got {key!r}: return what authentication found")
        if on_unavailable not in ("allow", "deny"):
            raise ValueError(f"on_unavailable must be 'allow' or 'deny', got {on_unavailable!r}: choose one")
        self._app = app
        self._key = key
        self._take = take
        self._waits = bool(wait)
        self._lease = lease or _LEASE
        self._client = client or weirgate.AsyncClient()
        self._is_own_client = client is None
        self._acquire = functools.partial(
            self._client.acquire,
            resource=resource,
            limits=limits,
            wait=wait,
            lease=lease,
            timeout=timeout,
            on_unavailable=on_unavailable,
            on_agent_unavailable=on_unavailable,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, functools.partial(self._send_lifespan, send))
            return
        take = await _value(self._take(scope)) if callable(self._take) else self._take
        if take is None:
            await self._app(scope, receive, send)
            return
        entity = await _value(self._key(scope))
        if not entity:
            await _refuse(scope, send, 401, {}, _problem(401, "Unauthorized", "authenticate first"))
            return
        if isinstance(entity, str) and not _NAME.fullmatch(entity):
            # Without the name, which may be a secret. The client sent it, so no policy lets it pass.
            detail = f"the entity of this request must be {_RULE}, got {len(entity)} characters that are not"
            await _refuse(scope, send, 400, {}, _problem(400, "Bad Request", f"{detail}: send a valid key"))
            return
        ahead = _Ahead(receive)
        try:
            grant = await (self._unless_left(entity, take, ahead) if self._waits else self._acquire(entity, take=take))
        except weirgate.Refused as refused:
            await _refuse(scope, send, refused.status, refused.headers, refused.problem)
        except weirgate.WeirgateError as error:
            _log.error("a request was not served, as there is no decision on it: %s", error)
            # Without the error, which is for operators.
            problem = _problem(500, "Internal Server Error", "the limits of this service need a repair")
            await _refuse(scope, send, 500, {}, problem)
        else:
            if grant is not None:
                await self._run(grant, scope, ahead, send)
        finally:
            ahead.end()

    async def _unless_left(self, entity: str, take: weirgate.Take, ahead: _Ahead) -> Optional[weirgate.AsyncGrant]:
        """Acquires, and returns None if the client leaves meanwhile: a server does not cancel the application then."""
        acquiring = asyncio.ensure_future(self._acquire(entity, take=take))
        grant = None
        try:
            while not acquiring.done() and not ahead.has_left:
                awaited: set[asyncio.Future[Any]] = {acquiring, *ahead.next()}
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if not ahead.has_left:
                grant = acquiring.result()
            return grant
        finally:
            if grant is None:
                await _take_back(acquiring)

    async def _run(self, grant: weirgate.AsyncGrant, scope: Scope, receive: Receive, send: Send) -> None:
        fields = _fields(grant.headers)

        async def send_with_fields(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept"):
                message = {**message, "headers": [*message.get("headers", ()), *fields]}
            await send(message)

        failure = None
        renewing = None
        if grant.expires_at is not None:
            renewing = asyncio.ensure_future(_renew(grant, self._lease))
        async with grant:
            try:
                scope[GRANT] = grant
                await self._app(scope, receive, send_with_fields)
            except Exception as error:
                # Raised after the scope, which would roll back: a request that fails counts, because a client may make
                # as many as it likes of them. A failure to settle is logged, and does not replace it.
                failure = error
            finally:
                if renewing is not None:
                    renewing.cancel()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure

    async def _send_lifespan(self, send: Send, message: Message) -> None:
        if self._is_own_client and message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
            await self._client.close()
        await send(message)


async def _take_back(acquiring: asyncio.Future[weirgate.AsyncGrant]) -> None:
    """Returns what an acquire takes, or has just taken."""
    acquiring.cancel()
    await asyncio.wait({acquiring})
    if not acquiring.cancelled() and acquiring.exception() is None:
        try:
            await acquiring.result().roll_back()
        except weirgate.WeirgateError as error:
            _log.warning("a grant could not be settled, its lease expires by itself: %s", error)


class _Ahead:
    """Hears what a client sends while its request waits, and hands it to the application first."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._heard: collections.deque[asyncio.Future[Message]] = collections.deque()
        self._bytes = 0
        self.has_left = False

    def next(self) -> list[asyncio.Future[Message]]:
        """Returns what ends with the next message; nothing once enough was heard."""
        if not self._heard or _is_message(self._heard[-1]) and self._bytes < _MOST_HEARD:
            self._heard.append(asyncio.ensure_future(self._hear()))
        return [] if self._heard[-1].done() else [self._heard[-1]]

    async def _hear(self) -> Message:
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        self.has_left |= message["type"] in ("http.disconnect", "websocket.disconnect")
        return message

    async def __call__(self) -> Message:
        return await (self._heard.popleft() if self._heard else self._receive())

    def end(self) -> None:
        for heard in self._heard:
            heard.cancel()


def _is_message(heard: asyncio.Future[Message]) -> bool:
    return heard.done() and not heard.cancelled() and heard.exception() is None


async def _renew(grant: weirgate.AsyncGrant, lease: float) -> None:
    """Renews a lease until the grant ends, because a client decides how long a response or a WebSocket lasts."""
    has_warned = False
    while not grant.is_ended:
        await asyncio.sleep(lease / 3)
        try:
            is_gone = await grant.renew(lease) is weirgate.Settlement.LEASE_GONE
        except weirgate.WeirgateError as error:
            if not has_warned and not grant.is_ended:
                _log.warning("a lease was not renewed, so the slots of a request may be free before it ends: %s", error)
                has_warned = True
            continue
        if is_gone and not grant.is_ended:
            _log.warning("a lease expired before its request ended, so its slots are free: choose a longer lease")
            return


async def _value(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


def _problem(status: int, title: str, detail: str) -> dict[str, Any]:
    return {"type": "about:blank", "title": title, "status": status, "detail": detail}


def _fields(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


async def _refuse(
    scope: Scope, send: Send, status: int, headers: Mapping[str, str], problem: Mapping[str, Any]
) -> None:
    """Answers as the agent does. A WebSocket that can have no response is closed."""
    kind = "http.response"
    if scope["type"] == "websocket":
        kind = "websocket.http.response"
        if kind not in (scope.get("extensions") or {}):
            code = _TRY_AGAIN if status == 429 else _POLICY
            await send({"type": "websocket.close", "code": code})
            return
    body = json.dumps(dict(problem)).encode("ascii")
    fields = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode("ascii"))]
    await send({"type": f"{kind}.start", "status": status, "headers": [*fields, *_fields(headers)]})
    await send({"type": f"{kind}.body", "body": body})
