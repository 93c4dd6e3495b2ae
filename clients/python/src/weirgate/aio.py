"""The client for asyncio."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Coroutine, Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union

from . import answer, check, request, shape, without_agent
from .aio_connection import AsyncConnections, Waits
from .answer import Attempts
from .client import ANSWER_TIMEOUT, RETRIES, patience
from .connection import Lost, NotSent
from .endpoint import endpoint
from .errors import InvalidRequest, Unavailable
from .grant import NO_TURN, NOT_SETTLED, Held, end_of_scope, log
from .request import LevelOf, LimitsOf, Options, Request, UsageOf
from .values import (
    Amount,
    Balances,
    Bucket,
    EffectiveLimits,
    Interval,
    Limit,
    Limits,
    LimitsChange,
    OnAgentUnavailable,
    OnUnavailable,
    Settlement,
    Status,
    Take,
    UsagePage,
    UsageTotal,
)
from .wire import Response

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")
    R = TypeVar("R")


class AsyncGrant(Held):
    """Tokens that were taken: `Grant` with calls to await, and `async with`."""

    def __init__(self, client: AsyncClient, token: str, response: Optional[Response] = None) -> None:
        super().__init__(token, response)
        self._client = client

    async def adjust(self, actual: Mapping[str, Amount], *, bucket: Optional[int] = None) -> Settlement:
        """As `Grant.adjust`."""
        return await self._settle(lambda: request.adjustment(actual, bucket))

    async def give_back(self, unused: Mapping[str, Amount], *, bucket: Optional[int] = None) -> Settlement:
        """As `Grant.give_back`."""
        return await self._settle(lambda: request.giving_back(unused, bucket))

    async def take_more(self, more: Mapping[str, Amount], *, bucket: Optional[int] = None) -> None:
        """As `Grant.take_more`."""
        await self._settle(lambda: request.taking_more(more, bucket))

    async def renew(self, seconds: float) -> Settlement:
        """As `Grant.renew`."""
        return await self._settle(lambda: request.renewal(seconds))

    async def release(self, actual: Optional[Mapping[str, Amount]] = None) -> Settlement:
        """As `Grant.release`."""
        return await self._settle(lambda: request.ending("release", actual))

    async def roll_back(self) -> Settlement:
        """As `Grant.roll_back`."""
        return await self._settle(lambda: request.ending("roll_back", None))

    async def vendor_said(
        self, response: object = None, *, status: Optional[int] = None, headers: Optional[Mapping[str, str]] = None
    ) -> Optional[float]:
        """As `Grant.vendor_said`."""
        with self._telling():
            asked = self._saying(request.vendor(response, status, headers))
            return None if asked is None else answer.paused_until(await self._client._call(asked, Waits(endures=False)))

    async def __aenter__(self) -> AsyncGrant:
        return self

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self._finish_quietly(end_of_scope(kind))

    async def _settle(self, changes: Callable[[], dict[str, Any]]) -> Settlement:
        waits = Waits(endures=True)
        try:
            return await self._settle_whole(changes, waits)
        finally:
            waits.end()

    async def _settle_whole(self, changes: Callable[[], dict[str, Any]], waits: Waits) -> Settlement:
        """Settles, also if the task is cancelled meanwhile: a cancellation would lose what the grant holds."""
        deadline = time.monotonic() + self._client._answer_timeout
        ended = asyncio.get_running_loop().create_future()
        with self._settling(ended, functools.partial(ended.set_result, None)) as settling:
            changed = changes()
            while (ahead := self._ahead_of(settling, changed)) is not None:
                await waits.wait(ahead.ended, deadline)
                if not ahead.ended.done():
                    raise Unavailable(NO_TURN, "no")
            asked = self._asked(changed, settling)
            if asked is None:
                return Settlement.SETTLED
            return self._settled(await self._client._call(asked, waits, deadline))

    async def _finish_quietly(self, end: str, actual: Optional[Mapping[str, Amount]] = None) -> None:
        waits = Waits(endures=True)
        try:
            if not self.is_ended:
                ending = "release" if self.is_uncertain else end
                await self._settle_whole(lambda: request.ending(ending, actual), waits)
        except Exception as failure:
            log.warning(NOT_SETTLED, failure)
            if actual is not None and isinstance(failure, InvalidRequest):
                # Wrong amounts hold no slot.
                await self._finish_quietly("release")
        waits.end()


class Acquiring:
    """An acquire that is not sent yet: `await` it for the grant, or enter it by `async with`.

    Dropped without either, it is never sent.
    """

    def __init__(self, client: AsyncClient, asked: Request, policy: Optional[OnAgentUnavailable]) -> None:
        self._client = client
        self._asked = asked
        self._policy = client._on_agent_unavailable if policy is None else without_agent.policy(policy)
        self._grant: Optional[AsyncGrant] = None

    def __await__(self) -> Generator[Any, None, AsyncGrant]:
        return self._send().__await__()

    async def __aenter__(self) -> AsyncGrant:
        self._grant = await self._send()
        return self._grant

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self._grant is not None:
            await self._grant.__aexit__(kind, error, trace)

    async def _send(self) -> AsyncGrant:
        client, asked = self._client, self._asked
        try:
            response = await client._call(asked, Waits(endures=False))
        except Unavailable as error:
            response = without_agent.answer(self._policy, asked, error)
        return AsyncGrant(client, "", response)


class Closing:
    """A client that is closed. `await` it for what its cancelled callers took."""

    def __init__(self, connections: AsyncConnections) -> None:
        self._connections = connections

    def __await__(self) -> Generator[Any, None, None]:
        return self._connections.returned().__await__()


class AsyncClient:
    """Acquires by the agent, from any event loop. Takes what `Client` takes.

    It keeps up to `max_idle` connections. Requests that wait for tokens do not keep others from being sent, so there
    is no limit of connections in use.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        *,
        token: Optional[str] = None,
        answer_timeout: float = ANSWER_TIMEOUT,
        retries: int = RETRIES,
        on_agent_unavailable: OnAgentUnavailable = "raise",
        max_idle: int = 10,
    ) -> None:
        where = endpoint(url, token)
        self.url = where.url
        idle = check.whole("max_idle", max_idle, 0, 10_000, "0 to 10000 connections")
        self._connections = AsyncConnections(where, idle)
        self._answer_timeout, self._retries = patience(answer_timeout, retries)
        self._on_agent_unavailable = without_agent.policy(on_agent_unavailable)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(url={self.url!r})"

    def acquire(
        self,
        entity: str,
        resource: str,
        take: Take,
        *,
        limits: Optional[Limits] = None,
        limits_version: Optional[int] = None,
        cascading: bool = False,
        caller_class: Optional[str] = None,
        wait: Optional[float] = None,
        queue: Optional[float] = None,
        now: bool = False,
        lease: Optional[float] = None,
        timeout: Optional[float] = None,
        on_unavailable: Optional[OnUnavailable] = None,
        on_agent_unavailable: Optional[OnAgentUnavailable] = None,
        bypass: bool = False,
    ) -> Acquiring:
        """As `Client.acquire`: `grant = await client.acquire(...)`, or `async with client.acquire(...) as grant`."""
        bucket = Bucket(entity, resource, take, limits, limits_version, cascading, caller_class)
        options = Options(wait, queue, now, lease, timeout, on_unavailable, bypass)
        return Acquiring(self, request.acquire((bucket,), options), on_agent_unavailable)

    def acquire_all(
        self,
        buckets: Sequence[Bucket],
        *,
        wait: Optional[float] = None,
        queue: Optional[float] = None,
        now: bool = False,
        lease: Optional[float] = None,
        timeout: Optional[float] = None,
        on_unavailable: Optional[OnUnavailable] = None,
        on_agent_unavailable: Optional[OnAgentUnavailable] = None,
        bypass: bool = False,
    ) -> Acquiring:
        """As `Client.acquire_all`."""
        options = Options(wait, queue, now, lease, timeout, on_unavailable, bypass)
        return Acquiring(self, request.acquire(buckets, options), on_agent_unavailable)

    def restore(self, token: str) -> AsyncGrant:
        """As `Client.restore`."""
        return AsyncGrant(self, check.text("the token of a grant", token))

    async def report_vendor(
        self,
        entity: str,
        resource: str,
        response: object = None,
        *,
        status: Optional[int] = None,
        headers: Optional[Mapping[str, str]] = None,
    ) -> Optional[float]:
        """As `Client.report_vendor`."""
        asked = request.report(entity, resource, request.vendor(response, status, headers))
        return answer.paused_until(await self._call(asked, Waits(endures=False)))

    async def peek(
        self,
        entity: str,
        resource: str,
        *,
        need: Optional[Mapping[str, int]] = None,
        limits: Optional[Limits] = None,
    ) -> Balances:
        """As `Client.peek`."""
        return answer.balances(await self._call(request.peek(entity, resource, need, limits), Waits(endures=False)))

    async def remaining(
        self, entity: str, resource: str, limit: str, *, limits: Optional[Limits] = None
    ) -> Optional[Amount]:
        """As `Client.remaining`."""
        return (await self.peek(entity, resource, limits=limits)).remaining(limit)

    async def usage(
        self,
        *,
        entity: Optional[str] = None,
        plan: Optional[str] = None,
        resource: Optional[str] = None,
        by: Interval = "day",
        start: float,
        end: float,
    ) -> UsageTotal:
        """As `Client.usage`."""
        asked = request.usage_total(UsageOf(entity, plan, resource, by, start, end))
        return UsageTotal.parse(answer.value(await self._call(asked, Waits(endures=False)), shape.USAGE_TOTAL))

    async def usage_rows(
        self,
        *,
        entity: Optional[str] = None,
        plan: Optional[str] = None,
        resource: Optional[str] = None,
        by: Interval = "day",
        start: float,
        end: float,
        page: Optional[str] = None,
    ) -> UsagePage:
        """As `Client.usage_rows`."""
        asked = request.usage_rows(UsageOf(entity, plan, resource, by, start, end), page)
        return UsagePage.parse(answer.value(await self._call(asked, Waits(endures=False)), shape.USAGE_PAGE))

    async def limits(self, entity: str, resource: str) -> EffectiveLimits:
        """As `Client.limits`."""
        response = await self._call(request.limits_of(entity, resource), Waits(endures=False))
        return EffectiveLimits.parse(answer.value(response, shape.EFFECTIVE))

    async def set_limits(
        self,
        limits: Optional[Sequence[Union[Limit, str]]] = None,
        *,
        entity: Optional[str] = None,
        plan: Optional[str] = None,
        resource: Optional[str] = None,
        system: bool = False,
        status: Optional[Status] = None,
        is_shadow: Optional[bool] = None,
        caller_class: Optional[str] = None,
        replace: bool = False,
        author: Optional[str] = None,
    ) -> LimitsChange:
        """As `Client.set_limits`."""
        of = LevelOf(entity, plan, resource, system, author)
        return await self._changed(request.setting(of, LimitsOf(limits, status, is_shadow, replace, caller_class)))

    async def delete_limits(
        self,
        *,
        entity: Optional[str] = None,
        plan: Optional[str] = None,
        resource: Optional[str] = None,
        system: bool = False,
        author: Optional[str] = None,
    ) -> LimitsChange:
        """As `Client.delete_limits`."""
        return await self._changed(request.deleting(LevelOf(entity, plan, resource, system, author)))

    async def _changed(self, asked: Request) -> LimitsChange:
        return LimitsChange.parse(answer.value(await self._call(asked, Waits(endures=False)), shape.CHANGED))

    def limited(
        self,
        entity: Union[str, Callable[..., str]],
        resource: str,
        take: Take,
        *,
        actual: Optional[Callable[[Any], Mapping[str, Amount]]] = None,
        **options: Any,
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """As `Client.limited`, for coroutine functions."""

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"limited() of an AsyncClient takes coroutine functions, got {function!r}: use Client")

            @functools.wraps(function)
            async def run(*args: P.args, **kwargs: P.kwargs) -> R:
                named = entity if isinstance(entity, str) else entity(*args, **kwargs)
                async with self.acquire(named, resource, take, **options) as grant:
                    result = await function(*args, **kwargs)
                    if actual is not None:
                        try:
                            used = check.amounts("the result of actual", actual(result))
                        except BaseException:
                            # The work is done, so its tokens are used.
                            await grant._finish_quietly("release")
                            raise
                        await grant._finish_quietly("release", used)
                    return result

            return run

        return decorate

    def close(self) -> Closing:
        """Closes the idle connections. `await` it to wait until all that cancelled callers took has returned, too."""
        self._connections.close()
        return Closing(self._connections)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(self, asked: Request, waits: Waits, deadline: Optional[float] = None) -> Response:
        if deadline is None:
            deadline = time.monotonic() + self._answer_timeout + asked.longer
        attempts = Attempts(self._retries, deadline)
        take_back = self._take_back if asked.path == request.ACQUIRE else None
        while True:
            try:
                response = await self._connections.exchange(asked.path, asked.body, deadline, waits, take_back)
            except NotSent as error:
                pause = attempts.pause(answer.not_sent(error), True)
            except Lost as error:
                raise answer.lost(error, asked) from error
            else:
                if response.status == 200:
                    return response
                pause = attempts.pause_after(response)
            await waits.wait(asyncio.get_running_loop().create_future(), time.monotonic() + pause)

    async def _take_back(self, response: Response) -> None:
        """Rolls back a grant whose caller was cancelled before it had it."""
        try:
            await AsyncGrant(self, "", response).roll_back()
        except Exception as failure:
            log.warning(NOT_SETTLED, failure)
