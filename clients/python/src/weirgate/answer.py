"""Answers as values or errors, and which of them allow to repeat the request."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Mapping
from typing import Any, Literal, Optional

from . import shape
from .errors import (
    Denied,
    Disabled,
    InvalidRequest,
    Misconfigured,
    NeverFits,
    NotAllowed,
    NotConfigured,
    Unauthorized,
    Unavailable,
    WeirgateError,
)
from .request import Request
from .shape import Shape, seconds
from .values import Balances, LimitStatus
from .wire import Response

_FIRST_PAUSE = 0.05
_REMEDY = "check the agent's URL, and proxies before it"
# By the type of a problem: 404 is also an unknown path.
_UNTIL_REPAIRED: Mapping[str, type[Unavailable]] = {
    "limits-not-configured": NotConfigured,
    "misconfigured": Misconfigured,
}


# An answer that has another shape leaves unknown what was done.
_OF_CHANGES = shape.GRANTED, shape.SETTLED, shape.REPORTED, shape.CHANGED


class Attempts:
    """Decides whether a request is sent again: only if nothing of it was applied."""

    def __init__(self, retries: int, deadline: float) -> None:
        self.left = retries
        self.deadline = deadline
        self._pause = _FIRST_PAUSE

    def pause(self, failure: WeirgateError, is_repeatable: bool, retry_after: Optional[float] = None) -> float:
        """Returns the seconds to wait before the next attempt, or raises the failure.

        They are random, so that requests which were refused together do not come back together, and never less than
        `retry_after`. Half of the time that is left after it stays for the attempt.
        """
        least = self._pause / 2 if retry_after is None else retry_after
        left = self.deadline - time.monotonic() - least
        if not is_repeatable or self.left <= 0 or left <= 0:
            raise failure
        self.left -= 1
        spread = min(max(self._pause, least), left / 2)
        self._pause *= 2
        return least + random.random() * spread

    def pause_after(self, response: Response) -> float:
        """Returns the seconds to wait after an answer that is no success, or raises it as an error."""
        problem = _problem(response)
        # The agent says so only if nothing was applied.
        is_repeatable = problem.get("retry") is True and problem.get("applied") == "no"
        after = response.fields.get("retry-after")
        if after is None:
            return self.pause(_error(response, problem), is_repeatable)
        # What cannot be read may ask for any time.
        is_time = re.fullmatch("[0-9]{1,9}", after) is not None
        return self.pause(_error(response, problem), is_repeatable and is_time, float(after) if is_time else None)


def not_sent(cause: Exception) -> Unavailable:
    """Returns the error of a request that never left."""
    return Unavailable(str(cause), "no")


def lost(cause: Exception, request: Request) -> Unavailable:
    """Returns the error of a request without an answer."""
    if request.is_read:
        return Unavailable(str(cause), "no")
    return Unavailable(f"{cause}; whether the request was applied is unknown", "unknown")


def value(response: Response, has_shape: Shape) -> Mapping[str, Any]:
    """Returns the body of a success, which has a shape."""
    found = _json(response)
    if not has_shape(found):
        applied: Literal["no", "unknown"] = "unknown" if has_shape in _OF_CHANGES else "no"
        raise Unavailable("the answer is not one of the agent: is its URL right?", applied, is_transient=False)
    return found  # type: ignore[no-any-return]


def balances(response: Response) -> Balances:
    """Returns the answer to a peek."""
    found = value(response, shape.BALANCES)
    return Balances(
        status=found["status"],
        limits=tuple(map(LimitStatus.parse, found["limits"])),
        retry_after=seconds(found["retry_after_ms"]),
        headers=rate_limit_fields(response),
    )


def paused_until(response: Response) -> Optional[float]:
    """Returns the end of a pause, in seconds since 1970, from the answer to a report."""
    return seconds(value(response, shape.REPORTED)["paused_until_ms"])


def rate_limit_fields(response: Response) -> Mapping[str, str]:
    """Returns the fields that an HTTP service passes on to its own caller."""
    found = {
        name: text
        for name, text in response.fields.items()
        if name == "retry-after" or name.startswith(("ratelimit", "x-ratelimit"))
    }
    return response.hide(found)  # type: ignore[no-any-return]


def _json(response: Response) -> Any:
    """Returns the JSON of a body, or None."""
    try:
        return json.loads(response.body.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _problem(response: Response) -> Mapping[str, Any]:
    """Returns the agent's problem, or an empty one. Nothing of another body is shown, because it may repeat the request with
    its token.
    """
    try:
        found = response.hide(_json(response))
    except RecursionError:
        return {}
    return found if shape.PROBLEM(found) else {}


def _error(response: Response, problem: Mapping[str, Any]) -> WeirgateError:
    status = response.status
    text = problem.get("detail") or f"the answer must be one of the agent, got {status} of another server: {_REMEDY}"
    applied: Literal["no", "unknown"] = problem.get("applied", "unknown")
    kind = _UNTIL_REPAIRED.get(problem.get("type", ""))
    if kind is None and applied == "no" and 400 <= status < 500:
        return _refusal(response, problem, text)
    is_transient = kind is None and (status in (408, 429) or status > 500)
    return (kind or Unavailable)(text, applied, is_transient=is_transient, status=status, grant=problem.get("grant"))


def _refusal(response: Response, problem: Mapping[str, Any], text: str) -> WeirgateError:
    """Returns the error of a request that the agent refused."""
    status = response.status
    decided = (text, status, rate_limit_fields(response), problem)
    if status == 429:
        return Denied(*decided)
    if status == 413 and "blocking" in problem:
        return NeverFits(*decided)
    if status == 403:
        return NotAllowed(text) if problem.get("type") == "limit-changes-not-allowed" else Disabled(*decided)
    return Unauthorized(text) if status == 401 else InvalidRequest(text)
