"""What a call raises instead of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Optional

from .shape import seconds


class Blocking(NamedTuple):
    """The short limit with the longest wait; numbers are whole tokens."""

    limit: str
    capacity: int
    remaining: int
    requested: int


class WeirgateError(Exception):
    """Base of everything that this package raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A process hands an error to another one so; `Exception` would leave the fields out.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[WeirgateError], args: tuple[Any, ...], fields: dict[str, Any]) -> WeirgateError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class InvalidRequest(WeirgateError):
    """The request is wrong, and nothing was taken. The text says what to change."""


class Unauthorized(WeirgateError):
    """The agent refused the token. Nothing was taken."""


class NotAllowed(WeirgateError):
    """The agent changes no limits. The text has the option that allows it. Nothing was changed."""


class Refused(WeirgateError):
    """Base of the decisions that grant nothing: `Denied`, `NeverFits`, `Disabled`.

    `status`, `headers` and `problem` are what an HTTP service answers its own caller with: 429, 413 or 403, the
    `RateLimit` fields and `Retry-After`, and the members of an `application/problem+json` body.
    """

    def __init__(self, text: str, status: int, headers: Mapping[str, str], problem: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers
        self.problem = problem

    @property
    def limits(self) -> tuple[str, ...]:
        """Names of the short limits. A limit of another entity, such as a parent, has a number: `rpm#2`."""
        return tuple(self.problem.get("violated-policies", ()))

    @property
    def missing_plan(self) -> Optional[str]:
        """Plan of the entity, or of an ancestor, of which no level has a configuration: other levels take its place.

        Not of `Disabled`.
        """
        found = self.problem.get("missing_plan")
        return None if found is None else str(found)

    @property
    def blocking(self) -> Optional[Blocking]:
        """The short limit with the longest wait."""
        found = self.problem.get("blocking")
        return Blocking(found["policy"], found["quota"], found["remaining"], found["requested"]) if found else None


class Denied(Refused):
    """Too few tokens now. A later attempt succeeds, if `retry_after` is not None."""

    @property
    def retry_after(self) -> Optional[float]:
        """Seconds until the tokens are there, if no other request takes them. None if time alone does not help."""
        return seconds(self.problem.get("retry_after_ms"))

    @property
    def starts_in(self) -> Optional[float]:
        """Seconds until the start that a longer `queue` would have. None without a `queue`, or if time alone does not help."""
        return seconds(self.problem.get("starts_in_ms"))

    @property
    def is_paused(self) -> bool:
        """Whether it waits for the end of a pause, for which a vendor asked, or an operator."""
        return self.problem.get("paused") is True


class NeverFits(Refused):
    """More than a limit's capacity: no wait helps, a smaller amount may."""


class Disabled(Refused):
    """An operator disabled or stopped the resource for the entity."""


class Unavailable(WeirgateError):
    """No decision, or no answer.

    `applied` is `"no"` if nothing was taken or changed, and `"unknown"` if the call may have been applied anyway:
    then only the caller can know whether to repeat it. `is_transient` says whether the same call may succeed later.
    `grant` is the token of a grant whose settlement stopped halfway; the grant has it already.
    """

    def __init__(
        self,
        text: str,
        applied: Literal["no", "unknown"],
        *,
        is_transient: bool = True,
        status: Optional[int] = None,
        grant: Optional[str] = None,
    ) -> None:
        super().__init__(text)
        self.applied = applied
        self.grant = grant
        self.is_transient = is_transient
        self.status = status


class Misconfigured(Unavailable):
    """No decision until a repair, such as of a permission or the table, which the text names. Never transient."""


class NotConfigured(Misconfigured):
    """Limits are neither in the call nor in the table. The text has the command that sets them."""
