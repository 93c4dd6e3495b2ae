"""What a client decides in place of an agent that is unavailable."""

from __future__ import annotations

import json
from typing import Any, get_args

from . import check
from .errors import Denied, Unavailable
from .request import Request
from .values import OnAgentUnavailable
from .wire import Response

TOKEN = "without-agent"
"""Token of a grant for which the agent took nothing, so its settlements change nothing."""
_DEGRADED = {"x-ratelimit-degraded": "true"}


def policy(given: OnAgentUnavailable) -> OnAgentUnavailable:
    """Requires a policy."""
    rule = "'raise', 'deny' or 'allow'"
    check.one_of("on_agent_unavailable", given, get_args(OnAgentUnavailable), rule)
    return given


def answer(policy: OnAgentUnavailable, asked: Request, error: Unavailable) -> Response:
    """Returns the answer to an acquire that had none, or raises. What only a repair ends is raised by any policy."""
    if policy == "raise" or not error.is_transient:
        raise error
    if policy == "deny":
        # Without the error, which names the agent: the problem is for the service's own callers.
        text = "the limits of this request could not be checked at the moment: try again"
        problem = {
            "type": "about:blank",
            "title": "Too Many Requests",
            "status": 429,
            "detail": text,
            "retry_after": 1,
            "retry_after_ms": 1_000,
        }
        raise Denied(text, 429, {**_DEGRADED, "retry-after": "1"}, problem) from error
    body = json.loads(asked.body)
    granted = {
        "grant": TOKEN,
        "lease": None,
        "amounts": [dict(map(_amount, bucket["take"].items())) for bucket in body.get("buckets", [body])],
        "limits": [],
        "would_deny": None,
        "degraded": {"reason": f"without the agent: {error}"},
    }
    return Response(200, _DEGRADED, json.dumps(granted).encode("ascii"))


def _amount(take: tuple[str, Any]) -> tuple[str, Any]:
    limit, amount = take
    return limit, amount["at_most"] if isinstance(amount, dict) else amount
