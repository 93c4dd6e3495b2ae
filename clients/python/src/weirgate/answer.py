"""Answers as values or errors, and which of them allow to repeat the request."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from typing import Any, Literal, Optional

from .errors import Denied, Disabled, InvalidRequest, NeverFits, Unauthorized, Unavailable, WeirgateError
from .request import Request
from .values import Balances, LimitStatus, seconds
from .wire import Response

_FIRST_PAUSE = 0.05


class Attempts:
    """Decides whether a request is sent again: only if nothing of it was applied."""

    def __init__(self, retries: int, deadline: float) -> None:
        self.left = retries
        self.deadline = deadline
        self._pause = _FIRST_PAUSE

    def pause(self, failure: WeirgateError, is_repeatable: bool, retry_after: Optional[float] = None) -> float:
        """Returns the seconds to wait before the next attempt, or raises the failure."""
        pause = self._pause * (0.5 + random.random()) if retry_after is None else retry_after
        if not is_repeatable or self.left <= 0 or time.monotonic() + pause >= self.deadline:
            raise failure
        self.left -= 1
        self._pause *= 2
        return pause

    def pause_after(self, response: Response) -> float:
        """Returns the seconds to wait after an answer that is no success, or raises it as an error."""
        problem = _problem(response)
        # The agent says so only if nothing was applied.
        is_repeatable = problem.get("retry") is True and problem.get("applied") == "no"
        after = response.fields.get("retry-after", "")
        return self.pause(_error(response, problem), is_repeatable, float(after) if after.isdecimal() else None)


def not_sent(cause: Exception) -> Unavailable:
    """Returns the error of a request that never left."""
    return Unavailable(str(cause), "no")


def lost(cause: Exception, request: Request) -> Unavailable:
    """Returns the error of a request without an answer."""
    if request.is_read:
        return Unavailable(str(cause), "no")
    return Unavailable(f"{cause}; whether the request was applied is unknown", "unknown")


def value(response: Response) -> Mapping[str, Any]:
    """Returns the body of a success."""
    try:
        return _object(response)
    except ValueError as error:
        raise Unavailable(f"the agent's answer cannot be read: {error}", "unknown", is_transient=False) from error


def balances(response: Response) -> Balances:
    """Returns the answer to a peek."""
    found = value(response)
    return Balances(
        status=found["status"],
        limits=tuple(map(LimitStatus.parse, found["limits"])),
        retry_after=seconds(found["retry_after_ms"]),
        headers=rate_limit_fields(response),
    )


def rate_limit_fields(response: Response) -> Mapping[str, str]:
    """Returns the fields that an HTTP service passes on to its own caller."""
    return {
        name: text
        for name, text in response.fields.items()
        if name == "retry-after" or name.startswith(("ratelimit", "x-ratelimit"))
    }


def _object(response: Response) -> Mapping[str, Any]:
    found = json.loads(response.body.decode("utf-8"))
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _problem(response: Response) -> Mapping[str, Any]:
    try:
        return _object(response)
    except ValueError:
        return {"detail": response.body[:200].decode("utf-8", "replace")}


def _error(response: Response, problem: Mapping[str, Any]) -> WeirgateError:
    status, text = response.status, str(problem.get("detail") or f"the agent answered {response.status}")
    decided = (text, status, rate_limit_fields(response), problem)
    if status == 429:
        return Denied(*decided)
    if status == 413 and "blocking" in problem:
        return NeverFits(*decided)
    if status == 403:
        return Disabled(*decided)
    if status == 401:
        return Unauthorized(text)
    if status < 500 and problem.get("applied") != "unknown":
        return InvalidRequest(text)
    # Without the word of the agent, such as from a proxy, nothing is known.
    applied: Literal["no", "unknown"] = "no" if problem.get("applied") == "no" else "unknown"
    return Unavailable(text, applied, is_transient=status > 500, status=status, grant=problem.get("grant"))
