"""The client for threads."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union

from . import answer, check, request, shape, without_agent
from .answer import Attempts
from .connection import Connections, Lost, NotSent
from .endpoint import endpoint
from .errors import Unavailable
from .grant import NOT_SETTLED, Grant, log
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

# They return before their work is done.
_OTHERS = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
ANSWER_TIMEOUT = 10.0
RETRIES = 2


class Client:
    """Acquires by the agent. Threads share it; each has a connection of its own.

    `url` is `http://host:port` or `unix:/path`, by default of `WEIRGATE_AGENT_URL`, or `http://127.0.0.1:2774`. `token`
    is by default of `WEIRGATE_AGENT_TOKEN`, or in a Lambda function of `AWS_SESSION_TOKEN`. `answer_timeout` is how
    long a call waits for the agent, beside its own `wait`, `queue` and `timeout`. `retries` is how often a call is sent again:
    only if the agent says that nothing was applied, or if nothing was sent. `on_agent_unavailable` says what an acquire
    does after that if the agent is down or has no decision for now: it raises `Unavailable` (`"raise"`), raises `Denied`
    (`"deny"`), or grants (`"allow"`). Such a grant is `degraded`, and its settlements change nothing. What only a repair
    ends, such as a wrong token or missing limits, is raised in any case.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        *,
        token: Optional[str] = None,
        answer_timeout: float = ANSWER_TIMEOUT,
        retries: int = RETRIES,
        on_agent_unavailable: OnAgentUnavailable = "raise",
    ) -> None:
        where = endpoint(url, token)
        self.url = where.url
        self._connections = Connections(where)
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
    ) -> Grant:
        """Takes all amounts of `take`, or raises `Denied`, `NeverFits` or `Disabled` and takes none.

        Without `limits` those of the table apply. Each is a `Limit`, or text such as `"rpm=600/minute"`. Of limits with
        classes, `caller_class` takes from the part of that class, and from the rest as far as the class leaves enough; the
        class of the entity's configuration counts instead. `wait` is how
        long to wait for the tokens. `queue` is how long to wait in line instead, up to an hour: callers of all
        processes are served in the order of their acquires, if all callers of the bucket queue. The grant comes at its
        start, or with `now` at once; then it may only be rolled back before `Grant.starts_at`. `lease` is when the
        tokens come back if this process dies; slots always have one, of 60 s. `timeout` limits the decision, and `on_unavailable` says what it is without DynamoDB: `"error"`, `"deny"`,
        `"allow"` or `"local 25"`, a percentage of each limit. `on_agent_unavailable` says it without the agent, by
        default as that of the client. `bypass` counts the amounts and takes none of them.
        """
        bucket = Bucket(entity, resource, take, limits, limits_version, cascading, caller_class)
        options = Options(wait, queue, now, lease, timeout, on_unavailable, bypass)
        return self._granted(request.acquire((bucket,), options), on_agent_unavailable)

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
    ) -> Grant:
        """Takes of all buckets, or of none. The options are those of `acquire`."""
        options = Options(wait, queue, now, lease, timeout, on_unavailable, bypass)
        return self._granted(request.acquire(buckets, options), on_agent_unavailable)

    def restore(self, token: str) -> Grant:
        """Returns the grant of a token, to settle it. Sends nothing."""
        return Grant(self, check.text("the token of a grant", token))

    def report_vendor(
        self,
        entity: str,
        resource: str,
        response: object = None,
        *,
        status: Optional[int] = None,
        headers: Optional[Mapping[str, str]] = None,
    ) -> Optional[float]:
        """Tells what the vendor answered, as `Grant.vendor_said`, without a grant."""
        asked = request.report(entity, resource, request.vendor(response, status, headers))
        return answer.paused_until(self._call(asked))

    def peek(
        self,
        entity: str,
        resource: str,
        *,
        need: Optional[Mapping[str, int]] = None,
        limits: Optional[Limits] = None,
    ) -> Balances:
        """Reads the balances, and when the amounts of `need` will be there. Takes nothing."""
        return answer.balances(self._call(request.peek(entity, resource, need, limits)))

    def remaining(
        self, entity: str, resource: str, limit: str, *, limits: Optional[Limits] = None
    ) -> Optional[Amount]:
        """Reads the balance of one limit; None if the bucket does not have it."""
        return self.peek(entity, resource, limits=limits).remaining(limit)

    def usage(
        self,
        *,
        entity: Optional[str] = None,
        plan: Optional[str] = None,
        resource: Optional[str] = None,
        by: Interval = "day",
        start: float,
        end: float,
    ) -> UsageTotal:
        """Reads what an entity or the entities of a plan, a resource, or both consumed, from `start` to `end`.

        Both times are seconds since 1970, at the start of an hour, a day or a month in UTC, as `by` says. Of a plan it is
        the usage of the entities that have it now.
        """
        asked = request.usage_total(UsageOf(entity, plan, resource, by, start, end))
        return UsageTotal.parse(answer.value(self._call(asked), shape.USAGE_TOTAL))

    def usage_rows(
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
        """Reads the same by interval, and by bucket. `page` is the `next` of the page before."""
        asked = request.usage_rows(UsageOf(entity, plan, resource, by, start, end), page)
        return UsagePage.parse(answer.value(self._call(asked), shape.USAGE_PAGE))

    def limits(self, entity: str, resource: str) -> EffectiveLimits:
        """Reads the limits in force for an entity on a resource, and the level that they come from."""
        return EffectiveLimits.parse(answer.value(self._call(request.limits_of(entity, resource)), shape.EFFECTIVE))

    def set_limits(
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
        """Sets limits of one level in the table, if the agent was started with `--allow-limit-changes`.

        The level is an entity or a plan, a resource, or both, or with `system` alone the whole namespace. What is not named
        stays, unless `replace` drops it. `status` says whether the limits apply, and `is_shadow` whether they only count
        what they would deny. `caller_class` is the class of the callers of its entities, whatever a request says. The audit event has the agent's owner and the `author`. A change holds at once for acquires by
        this agent, and for others within a minute.
        """
        of = LevelOf(entity, plan, resource, system, author)
        return self._changed(request.setting(of, LimitsOf(limits, status, is_shadow, replace, caller_class)))

    def delete_limits(
        self,
        *,
        entity: Optional[str] = None,
        plan: Optional[str] = None,
        resource: Optional[str] = None,
        system: bool = False,
        author: Optional[str] = None,
    ) -> LimitsChange:
        """Deletes the limits of one level, so that the next level with some applies. As `set_limits`."""
        return self._changed(request.deleting(LevelOf(entity, plan, resource, system, author)))

    def _changed(self, asked: Request) -> LimitsChange:
        return LimitsChange.parse(answer.value(self._call(asked), shape.CHANGED))

    def limited(
        self,
        entity: Union[str, Callable[..., str]],
        resource: str,
        take: Take,
        *,
        actual: Optional[Callable[[Any], Mapping[str, Amount]]] = None,
        **options: Any,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorates a function: it runs with a grant, which is released afterwards, or rolled back if it raises.

        `entity` may be a function of the arguments. `actual` returns the amounts that were really used from the result;
        if it raises, the estimate stays used. The other options are those of `acquire`.
        """

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if any(is_other(function) for is_other in _OTHERS):
                raise TypeError(f"limited() of a Client takes plain functions, got {function!r}: use AsyncClient")

            @functools.wraps(function)
            def run(*args: P.args, **kwargs: P.kwargs) -> R:
                named = entity if isinstance(entity, str) else entity(*args, **kwargs)
                with self.acquire(named, resource, take, **options) as grant:
                    result = function(*args, **kwargs)
                    if actual is not None:
                        try:
                            used = check.amounts("the result of actual", actual(result))
                        except BaseException:
                            # The work is done, so its tokens are used.
                            grant._finish_quietly("release")
                            raise
                        grant._finish_quietly("release", used)
                    return result

            return run

        return decorate

    def close(self) -> None:
        """Closes the connection of this thread. Those of other threads close when these end."""
        self._connections.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _granted(self, asked: Request, policy: Optional[OnAgentUnavailable]) -> Grant:
        policy = self._on_agent_unavailable if policy is None else without_agent.policy(policy)
        try:
            response = self._call(asked)
        except Unavailable as error:
            response = without_agent.answer(policy, asked, error)
        return Grant(self, "", response)

    def _call(self, asked: Request, deadline: Optional[float] = None) -> Response:
        if deadline is None:
            deadline = time.monotonic() + self._answer_timeout + asked.longer
        attempts = Attempts(self._retries, deadline)
        take_back = self._take_back if asked.path == request.ACQUIRE else None
        while True:
            try:
                response = self._connections.exchange(asked.path, asked.body, deadline, take_back)
            except NotSent as error:
                pause = attempts.pause(answer.not_sent(error), True)
            except Lost as error:
                raise answer.lost(error, asked) from error
            else:
                if response.status == 200:
                    return response
                pause = attempts.pause_after(response)
            time.sleep(pause)

    def _take_back(self, response: Response) -> None:
        """Rolls back a grant whose caller was interrupted before it had it."""
        try:
            Grant(self, "", response).roll_back()
        except Exception as failure:
            log.warning(NOT_SETTLED, failure)


def patience(answer_timeout: float, retries: int) -> tuple[float, int]:
    """Checks how long and how often a client asks."""
    return (
        check.milliseconds("answer_timeout", answer_timeout, 0, check.DAY) / 1000,
        check.whole("retries", retries, 0, 100, "0 to 100"),
    )
