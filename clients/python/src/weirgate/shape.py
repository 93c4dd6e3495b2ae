"""Shapes of the agent's answers. A shape says whether a JSON value has it, so no answer fails later.

`shape.js` of the client for Node has the same shapes.
"""

from __future__ import annotations

import math
import re
from typing import Any, Callable, Optional

Shape = Callable[[Any], bool]

_MOST = 2**63
# Beyond it JavaScript has no dates.
_LAST_INSTANT = 8_640_000_000_000_000


def text(value: Any) -> bool:
    return type(value) is str


def some_text(value: Any) -> bool:
    return type(value) is str and value != ""


def flag(value: Any) -> bool:
    return type(value) is bool


def whole(value: Any) -> bool:
    return type(value) is int and -_MOST <= value <= _MOST


def span(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def instant(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LAST_INSTANT


def number(value: Any) -> bool:
    return (type(value) is float and math.isfinite(value)) or (type(value) is int and -_MOST <= value <= _MOST)


def one_of(*texts: str) -> Shape:
    return lambda value: type(value) is str and value in texts


def null_or(shape: Shape) -> Shape:
    return lambda value: value is None or shape(value)


def list_of(shape: Shape) -> Shape:
    return lambda value: type(value) is list and all(map(shape, value))


def map_of(shape: Shape) -> Shape:
    return lambda value: type(value) is dict and all(map(shape, value.values()))


def fields(**shapes: Shape) -> Shape:
    """An object with these fields, and maybe others."""
    required = tuple(shapes.items())

    def has_fields(value: Any) -> bool:
        if type(value) is not dict:
            return False
        for name, shape in required:
            if name not in value or not shape(value[name]):
                return False
        return True

    return has_fields


def optional_fields(shapes: dict[str, Shape]) -> Shape:
    """An object that may have these fields, and others."""
    return lambda value: type(value) is dict and all(
        name not in value or shape(value[name]) for name, shape in shapes.items()
    )


def seconds(ms: Optional[int]) -> Optional[float]:
    """Returns the seconds of milliseconds that may be missing."""
    return None if ms is None else ms / 1000


_LEASE = null_or(fields(expires_at_ms=instant))
_AMOUNTS = list_of(map_of(number))


def _and(*shapes: Shape) -> Shape:
    return lambda value: all(shape(value) for shape in shapes)


_STATUS_OF_LIMIT = fields(
    entity=text,
    resource=text,
    limit=text,
    mode=one_of("enforced", "shadow", "soft"),
    capacity_tokens=number,
    refill_tokens=number,
    refill_period_ms=span,
    available_tokens=number,
    requested_tokens=number,
    is_requested=flag,
    retry_after_ms=null_or(span),
)
_OF_SOME = optional_fields(
    {"window": map_of(lambda value: text(value) or number(value)), "resets_at_ms": instant, "paused_ms": span}
)
_LIMITS = list_of(_and(_STATUS_OF_LIMIT, _OF_SOME))

GRANTED = _and(
    fields(
        grant=some_text,
        lease=_LEASE,
        amounts=_AMOUNTS,
        limits=_LIMITS,
        would_deny=null_or(fields(limits=_LIMITS)),
        degraded=null_or(fields(reason=text)),
    ),
    optional_fields({"starts_at_ms": instant, "missing_plan": some_text}),
)
SETTLED = fields(
    grant=null_or(some_text), settlement=one_of("settled", "lease_gone"), lease=_LEASE, amounts=_AMOUNTS
)
REPORTED = fields(paused_until_ms=null_or(instant))
_STATUS = one_of("enforced", "disabled", "unlimited")
BALANCES = fields(status=_STATUS, limits=_LIMITS, retry_after_ms=null_or(span))


def _or(*shapes: Shape) -> Shape:
    return lambda value: any(shape(value) for shape in shapes)


def _within(most: int) -> Shape:
    return lambda value: type(value) is int and 1 <= value <= most


_NAMED = fields(name=some_text, mode=one_of("enforced", "shadow", "soft"))
_TOKENS = _within(10**12)
_RATE = _and(_NAMED, fields(capacity_tokens=_TOKENS, refill_tokens=_TOKENS, refill_period_ms=_within(366 * 86_400_000)))
_WINDOW = re.compile("[^/]*/[^,]")
_QUOTA = fields(quota_tokens=_TOKENS, text=lambda value: text(value) and _WINDOW.match(value) is not None)
def _is_scheduled(value: Any) -> bool:
    return "schedule" not in value or type(value.get("text")) is str and ",schedule=" in value["text"]


_PERCENT = lambda value: type(value) is int and 0 <= value <= 99
_CLASSES = optional_fields({"classes": map_of(fields(at_least_percent=_PERCENT, leaves_percent=_PERCENT))})
_CONFIGURED = list_of(_and(_or(_and(_RATE, _CLASSES), _and(_NAMED, fields(slots=_TOKENS)), _and(_NAMED, _QUOTA)), _is_scheduled))
_LEVEL = _or(
    fields(level=one_of("entity_resource"), entity=some_text, resource=some_text),
    fields(level=one_of("entity"), entity=some_text),
    fields(level=one_of("plan_resource"), plan=some_text, resource=some_text),
    fields(level=one_of("plan"), plan=some_text),
    fields(level=one_of("resource"), resource=some_text),
    fields(level=one_of("system")),
)
_CONFIG = null_or(
    _and(fields(limits=_CONFIGURED, status=_STATUS, is_shadow=flag), optional_fields({"class": some_text}))
)
EFFECTIVE = _and(
    fields(
        buckets=list_of(fields(entity=text, level=null_or(_LEVEL), status=null_or(_STATUS), limits=_CONFIGURED)),
        levels=list_of(fields(level=_LEVEL, config=_CONFIG, is_from_file=flag)),
    ),
    optional_fields({"missing_plan": some_text}),
)
CHANGED = fields(changed=flag, before=_CONFIG, after=_CONFIG)

_USED = fields(
    usage=fields(tokens=map_of(lambda value: number(value) or text(value)), acquires=whole),
    state=one_of("interim", "final", "unknown"),
    complete_until_ms=instant,
)
_UNREADABLE = optional_fields({"unreadable": list_of(fields(error=text))})
_ROW = _and(_USED, fields(entity=text, resource=text, start_ms=instant, end_ms=instant))
USAGE_TOTAL = _and(_USED, _UNREADABLE)
USAGE_PAGE = _and(fields(items=list_of(_ROW), next=null_or(some_text)), _UNREADABLE)
PROBLEM = _and(
    # Every problem of the agent has it, and those of other servers have not.
    fields(applied=one_of("no", "unknown")),
    optional_fields(
        {
            "type": text,
            "detail": text,
            "retry": flag,
            "grant": some_text,
            "retry_after_ms": null_or(span),
            "starts_in_ms": span,
            "missing_plan": some_text,
            "paused": flag,
            "violated-policies": list_of(text),
            "blocking": fields(policy=text, quota=whole, remaining=whole, requested=whole),
        }
    ),
)
