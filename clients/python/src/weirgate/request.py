"""Requests as JSON, and their paths."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from .errors import InvalidRequest
from .values import Bucket, Limit, Take, UpTo

ACQUIRE, SETTLE, PEEK = "/v1/acquire", "/v1/settle", "/v1/peek"
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Request(NamedTuple):
    """What is sent, and how much longer than usual the agent may take."""

    path: str
    body: bytes
    longer: float = 0

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing, whatever becomes of it."""
        return self.path == PEEK


class Options(NamedTuple):
    """Options of an acquire, as `Client.acquire` describes them."""

    wait: Optional[float] = None
    lease: Optional[float] = None
    timeout: Optional[float] = None
    on_unavailable: Optional[str] = None
    bypass: bool = False


def acquire(buckets: Sequence[Bucket], options: Options) -> Request:
    """Returns the request for all buckets."""
    asked = [_bucket(bucket) for bucket in buckets]
    body: dict[str, Any] = asked[0] if len(asked) == 1 else {"buckets": asked}
    wait, lease, timeout, on_unavailable, bypass = options
    if wait is not None:
        body["wait_ms"] = milliseconds(wait)
    if lease is not None:
        body["lease_ms"] = milliseconds(lease)
    if timeout is not None:
        body["timeout_ms"] = milliseconds(timeout)
    if on_unavailable is not None:
        body["on_unavailable"] = on_unavailable
    if bypass:
        body["bypass"] = True
    return Request(ACQUIRE, _bytes(body), (wait or 0) + (timeout or 0))


def peek(
    entity: str, resource: str, need: Optional[Mapping[str, int]], limits: Optional[Sequence[Limit]]
) -> Request:
    """Returns the request for balances."""
    body: dict[str, Any] = {"entity": entity, "resource": resource}
    if need:
        body["need"] = dict(need)
    _add_limits(body, limits, None)
    return Request(PEEK, _bytes(body))


def settle(token: str, changes: Mapping[str, Any]) -> Request:
    """Returns the request that changes or ends a grant."""
    return Request(SETTLE, _bytes({"grant": token, **changes}))


def _bucket(bucket: Bucket) -> dict[str, Any]:
    body: dict[str, Any] = {"entity": bucket.entity, "resource": bucket.resource, "take": _take(bucket.take)}
    _add_limits(body, bucket.limits, bucket.limits_version)
    if bucket.cascading:
        body["cascading"] = True
    return body


def _take(take: Take) -> dict[str, Any]:
    def amount(tokens: Any) -> Any:
        return tokens._asdict() if isinstance(tokens, UpTo) else tokens

    return {limit: amount(tokens) for limit, tokens in take.items()}


def _add_limits(body: dict[str, Any], limits: Optional[Sequence[Limit]], version: Optional[int]) -> None:
    if limits is not None:
        body["limits"] = [limit.json() for limit in limits]
    if version is not None:
        body["limits_version"] = version


def milliseconds(seconds: float) -> int:
    """Returns whole milliseconds."""
    try:
        return round(seconds * 1000)
    except (OverflowError, ValueError) as error:
        raise InvalidRequest(f"a time must be a number of seconds, got {seconds}") from error


def _bytes(body: Mapping[str, Any]) -> bytes:
    try:
        return _encode(body).encode("ascii")
    except ValueError as error:
        raise InvalidRequest(f"an amount is not a number: {error}") from error
