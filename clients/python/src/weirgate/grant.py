"""What a granted acquire holds: the state that both clients' grants share, and the settling grant of `Client`."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import answer, request, shape, without_agent
from .errors import InvalidRequest, Refused, Unavailable, WeirgateError
from .request import Request
from .values import Amount, LimitStatus, Settlement, remaining
from .wire import Response

if TYPE_CHECKING:
    from .client import Client

log = logging.getLogger("weirgate")
NO_TURN = "an earlier settlement of the grant is still in flight: try again"
NOT_SETTLED = "a grant could not be settled, its lease expires by itself: %s"


class Settling:
    """A settlement that waits for its turn, or is in flight."""

    def __init__(self, ended: Any, end: Callable[[], None]) -> None:
        self.ended = ended
        """What others wait for. `end` sets it."""
        self.end = end
        self.thread = threading.get_ident()
        self.counts_twice = False
        """Whether it was sent, and would count twice if it was applied twice."""


class Held:
    """A grant without the calls that settle it.

    Nothing is kept in the agent: the token is the grant. It settles in another process too, as
    `client.restore(grant.token)`. A settlement waits for those before it; a release without amounts waits for none.
    """

    def __init__(self, token: str, response: Optional[Response] = None) -> None:
        self.token = token
        """Text that settles the grant. Each change makes a new one."""
        self.amounts: tuple[Mapping[str, Amount], ...] = ()
        """Amounts by limit, one mapping for each bucket, by the last answer. Empty after `restore`."""
        self.expires_at: Optional[float] = None
        """Expiry of the lease, in seconds since 1970. None without a lease, and after `restore`."""
        self.is_ended = False
        self._answer: Mapping[str, Any] = {}
        self._response = response
        self._limits: Optional[tuple[LimitStatus, ...]] = None
        # A restored grant may have a lease.
        self._may_have_lease = True
        # Without a lock, which an interruption could leave locked: `append` and `remove` are one step each.
        self._settlings: list[Settling] = []
        """Settlements by their turn: the first one is in flight."""
        self._has_failed_settlement = False
        self._may_count_twice = False
        if response is not None:
            self._answer = answer.value(response, shape.GRANTED)
            self._update(self._answer)

    def __repr__(self) -> str:
        # Without the token, which settles the grant.
        held = f"amounts={self.amounts!r}, expires_at={self.expires_at!r}, is_ended={self.is_ended!r}"
        return f"{type(self).__name__}({held})"

    @property
    def is_uncertain(self) -> bool:
        """Whether a settlement has failed or is in flight, so the token may be outdated.

        A scope then releases. To roll back by an outdated token would return tokens twice.
        """
        return self._has_failed_settlement or bool(self._settlings)

    @property
    def limits(self) -> tuple[LimitStatus, ...]:
        """Every limit of the buckets, right after the take. Empty after `restore`."""
        if self._limits is None:
            self._limits = tuple(map(LimitStatus.parse, self._answer.get("limits") or ()))
        return self._limits

    @property
    def starts_at(self) -> Optional[float]:
        """Start of an acquire that queued, in seconds since 1970, which may have passed. It does not move.

        None without a `queue`, without DynamoDB or the agent, and after `restore`.
        """
        return shape.seconds(self._answer.get("starts_at_ms"))

    @property
    def would_deny(self) -> tuple[str, ...]:
        """Names of the limits that are short, and do not deny as they are in shadow mode."""
        denied = self._answer.get("would_deny")
        found = map(LimitStatus.parse, denied["limits"]) if denied else ()
        return tuple(status.limit for status in found if status.is_short)

    @property
    def degraded(self) -> Optional[str]:
        """Why the agent decided without DynamoDB, or the client without the agent; None if neither did."""
        found = self._answer.get("degraded")
        return str(found["reason"]) if found else None

    @property
    def missing_plan(self) -> Optional[str]:
        """Plan of the entity, or of an ancestor, of which no level has a configuration: other levels take its place.

        None also after `restore`, and if the agent could not read whether the plan exists.
        """
        found = self._answer.get("missing_plan")
        return None if found is None else str(found)

    @property
    def headers(self) -> Mapping[str, str]:
        """The `RateLimit` fields, for an HTTP response."""
        return answer.rate_limit_fields(self._response) if self._response else {}

    def amount(self, limit: str) -> Amount:
        """Returns the amount taken of a limit, as adjusted: 0 if none was taken."""
        return next((amounts[limit] for amounts in self.amounts if limit in amounts), 0)

    def remaining(self, limit: str) -> Optional[Amount]:
        """Returns the balance of a limit right after the take; None if the buckets do not have it."""
        return remaining(self.limits, limit)

    def _saying(self, vendor: Mapping[str, Any]) -> Optional[Request]:
        """Returns the request that tells what the vendor said; None for a grant without the agent.

        It changes nothing of the grant, so it is none of its settlements.
        """
        return None if self.token == without_agent.TOKEN else request.settle(self.token, {"vendor": vendor})

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Keeps in mind whether what the vendor answered could not be told: the work is done, so its tokens are used."""
        try:
            yield
        except BaseException:
            self._has_failed_settlement = True
            raise

    @contextlib.contextmanager
    def _settling(self, ended: Any, end: Callable[[], None]) -> Iterator[Settling]:
        """Keeps in mind whether a settlement, the block, fails. A decision that refuses it is no failure."""
        settling = Settling(ended, end)
        self._settlings.append(settling)
        try:
            yield settling
        except Refused:
            raise
        except BaseException as failure:
            self._has_failed_settlement = True
            if isinstance(failure, Unavailable) and failure.grant is not None:
                # The old token is of amounts that are not held any more.
                self.token = failure.grant
            elif not isinstance(failure, WeirgateError) or getattr(failure, "applied", "no") == "unknown":
                self._may_count_twice |= settling.counts_twice
            raise
        finally:
            self._settlings.remove(settling)
            settling.end()

    def _ahead_of(self, settling: Settling, changes: Mapping[str, Any]) -> Optional[Settling]:
        """Returns the settlement that another one waits for; None once it is its turn.

        Each sends the text that the one before it left, because an answer that came out of order would bring amounts back
        that are not held any more. A release without amounts counts once by any text, so it waits for none.
        """
        first = self._settlings[0]
        return None if first is settling or changes == request.RELEASE else first

    def _asked(self, changes: Mapping[str, Any], settling: Settling) -> Optional[Request]:
        """Returns the request of a settlement whose turn it is; None if it changes nothing in the table.

        Nothing in the table remembers a grant without a lease. So what changes its amounts is refused after another such
        change that may have been applied. An end under a lease counts once.
        """
        if self.is_ended:
            raise InvalidRequest("the grant has ended, so nothing of it can change: acquire again")
        if self.token == without_agent.TOKEN:
            self.is_ended = "end" in changes
            return None
        if changes == request.RELEASE and not self._may_have_lease:
            self.is_ended = True
            return None
        if changes != request.RELEASE and "renew_ms" not in changes:
            if self._may_count_twice:
                raise InvalidRequest(
                    "another settlement of the grant may have been applied, so this one could count twice: "
                    "release the grant without amounts, and acquire again"
                )
            settling.counts_twice = not ("end" in changes and self.expires_at is not None)
        return request.settle(self.token, changes)

    def _settled(self, response: Response) -> Settlement:
        found = answer.value(response, shape.SETTLED)
        self._update(found)
        return Settlement(found["settlement"])

    def _update(self, found: Mapping[str, Any]) -> None:
        if found["grant"] is None:
            self.is_ended = True
            return
        self.token = found["grant"]
        self.amounts = tuple(found["amounts"])
        lease = found["lease"]
        self.expires_at = None if lease is None else lease["expires_at_ms"] / 1000
        self._may_have_lease = lease is not None


class Grant(Held):
    """Tokens that were taken. As a context manager it releases them after the block, or rolls back if it raises.

    If a settlement failed in the block, it releases, because the settlement may have been applied.
    """

    def __init__(self, client: Client, token: str, response: Optional[Response] = None) -> None:
        super().__init__(token, response)
        self._client = client

    def adjust(self, actual: Mapping[str, Amount], *, bucket: Optional[int] = None) -> Settlement:
        """Corrects estimates: `actual` has the amounts that were really used. More than is there becomes debt.

        Of several buckets, each that has the limit is adjusted, or only `bucket`, counted from 0.
        """
        return self._settle(lambda: request.adjustment(actual, bucket))

    def give_back(self, unused: Mapping[str, Amount], *, bucket: Optional[int] = None) -> Settlement:
        """Returns a part of what was taken, and keeps the rest."""
        return self._settle(lambda: request.giving_back(unused, bucket))

    def take_more(self, more: Mapping[str, Amount], *, bucket: Optional[int] = None) -> None:
        """Takes more within the grant, or raises `Denied` and leaves it as it was."""
        self._settle(lambda: request.taking_more(more, bucket))

    def renew(self, seconds: float) -> Settlement:
        """Moves the expiry of the lease to `seconds` from now, never to an earlier time."""
        return self._settle(lambda: request.renewal(seconds))

    def release(self, actual: Optional[Mapping[str, Amount]] = None) -> Settlement:
        """Ends the grant: slots come back, rate tokens stay used. Adjusts to `actual` in the same call."""
        return self._settle(lambda: request.ending("release", actual))

    def roll_back(self) -> Settlement:
        """Ends the grant and returns everything, as if it had never been taken."""
        return self._settle(lambda: request.ending("roll_back", None))

    def vendor_said(
        self, response: object = None, *, status: Optional[int] = None, headers: Optional[Mapping[str, str]] = None
    ) -> Optional[float]:
        """Tells all callers what the vendor answered: a 429, 503 or 529 pauses the buckets until its `retry-after`.

        `response` is one of `requests`, `httpx`, `aiohttp` or `urllib`, or `error.response` of a vendor's client; or give
        its `status` and `headers`. Only the fields of limits are sent. Returns the end of the pause, in seconds since 1970;
        None without one. The grant stays as it is, so settle it as usual.
        """
        with self._telling():
            asked = self._saying(request.vendor(response, status, headers))
            return None if asked is None else answer.paused_until(self._client._call(asked))

    def __enter__(self) -> Grant:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._finish_quietly(end_of_scope(kind))

    def _settle(self, changes: Callable[[], dict[str, Any]]) -> Settlement:
        deadline = time.monotonic() + self._client._answer_timeout
        ended = threading.Event()
        with self._settling(ended, ended.set) as settling:
            changed = changes()
            while (ahead := self._ahead_of(settling, changed)) is not None:
                self._wait_for(ahead, deadline)
            asked = self._asked(changed, settling)
            return Settlement.SETTLED if asked is None else self._settled(self._client._call(asked, deadline))

    def _wait_for(self, ahead: Settling, deadline: float) -> None:
        if ahead.thread == threading.get_ident():
            raise InvalidRequest(
                "another settlement of the grant is in flight in this thread, which a signal handler interrupted: "
                "release the grant without amounts, or settle it after the handler"
            )
        # An interruption in its last step could leave it in the list.
        if not ahead.ended.wait(max(0, deadline - time.monotonic())):
            raise Unavailable(NO_TURN, "no")

    def _finish_quietly(self, end: str, actual: Optional[Mapping[str, Amount]] = None) -> None:
        """Ends the grant if it has not ended. A failure is logged, as the outcome of the work stays."""
        try:
            self._end(end, actual)
        except BaseException:
            # An interruption, such as by Ctrl-C. A release without amounts counts once, so it is sent again.
            self._end("release", None)
            raise

    def _end(self, end: str, actual: Optional[Mapping[str, Amount]]) -> None:
        try:
            if not self.is_ended:
                ending = "release" if self.is_uncertain else end
                self._settle(lambda: request.ending(ending, actual))
        except Exception as failure:
            log.warning(NOT_SETTLED, failure)
            if actual is not None and isinstance(failure, InvalidRequest):
                # Wrong amounts hold no slot.
                self._end("release", None)


def end_of_scope(kind: Optional[type[BaseException]]) -> str:
    """Returns how a scope ends: a failure rolls back. An interrupted or cancelled block may have used the tokens."""
    return "roll_back" if kind is not None and issubclass(kind, Exception) else "release"
