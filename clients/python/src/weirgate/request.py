"""Requests as JSON, and their paths."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, get_args

from . import check
from .values import Amount, Bucket, Interval, Limit, OnUnavailable, UpTo

ACQUIRE, SETTLE, PEEK, USAGE = "/v1/acquire", "/v1/settle", "/v1/peek", "/v1/usage"
RELEASE = {"end": "release"}
_MAX_TIMEOUT = 3_600.0
_LAST_INSTANT = 8_640_000_000_000.0
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Request(NamedTuple):
    """What is sent, and how much longer than usual the agent may take."""

    path: str
    body: bytes
    longer: float = 0

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing, whatever becomes of it."""
        return self.path in (PEEK, USAGE)


class Options(NamedTuple):
    """Options of an acquire, as `Client.acquire` describes them."""

    wait: Optional[float] = None
    lease: Optional[float] = None
    timeout: Optional[float] = None
    on_unavailable: Optional[OnUnavailable] = None
    bypass: bool = False


def acquire(buckets: Sequence[Bucket], options: Options) -> Request:
    """Returns the request for all buckets."""
    if not isinstance(buckets, Sequence) or not buckets:
        check.refuse("buckets", "a list with at least one Bucket", buckets)
    asked = [_bucket(bucket) for bucket in buckets]
    body: dict[str, Any] = asked[0] if len(asked) == 1 else {"buckets": asked}
    wait, lease, timeout, on_unavailable, bypass = options
    longer = 0
    if wait is not None:
        longer += body.setdefault("wait_ms", check.milliseconds("wait", wait, 0, check.DAY))
    if lease is not None:
        body["lease_ms"] = check.milliseconds("lease", lease, 1, check.DAY)
    if timeout is not None:
        longer += body.setdefault("timeout_ms", check.milliseconds("timeout", timeout, 1, _MAX_TIMEOUT))
    if on_unavailable is not None:
        rule = "'error', 'deny', 'allow' or 'local 1' to 'local 100'"
        body["on_unavailable"] = check.one_of("on_unavailable", on_unavailable, get_args(OnUnavailable), rule)
    if check.flag("bypass", bypass):
        body["bypass"] = True
    return Request(ACQUIRE, _bytes(body), longer / 1000)


def peek(
    entity: str, resource: str, need: Optional[Mapping[str, int]], limits: Optional[Sequence[Limit]]
) -> Request:
    """Returns the request for balances."""
    body: dict[str, Any] = {"entity": check.text("entity", entity), "resource": check.text("resource", resource)}
    if need is not None:
        body["need"] = check.amounts("need", need, check.whole_tokens)
    _add_limits(body, limits, None)
    return Request(PEEK, _bytes(body))


class UsageOf(NamedTuple):
    """Whose usage, by what, and from when to when, as `Client.usage` describes it."""

    entity: Optional[str]
    resource: Optional[str]
    by: Interval
    start: float
    end: float


def usage_total(asked: UsageOf) -> Request:
    """Returns the request for the sum of usage."""
    return Request(USAGE, _bytes({**_usage(asked), "total": True}))


def usage_rows(asked: UsageOf, page: Optional[str]) -> Request:
    """Returns the request for a page of usage."""
    of_page = {} if page is None else {"page": check.text("page", page)}
    return Request(USAGE, _bytes({**_usage(asked), **of_page}))


def _usage(asked: UsageOf) -> dict[str, Any]:
    scope = {name: check.text(name, given) for name, given in zip(("entity", "resource"), asked) if given is not None}
    if not scope:
        check.refuse("entity and resource", "one of them or both", None)
    return {
        "scope": scope,
        "by": check.one_of("by", asked.by, get_args(Interval), "'hour', 'day' or 'month'"),
        "from_ms": check.milliseconds("start", asked.start, 0, _LAST_INSTANT),
        "to_ms": check.milliseconds("end", asked.end, 0, _LAST_INSTANT),
    }


def settle(token: str, changes: Mapping[str, Any]) -> Request:
    """Returns the request that changes or ends a grant."""
    return Request(SETTLE, _bytes({"grant": token, **changes}))


def adjustment(actual: Mapping[str, Amount], bucket: Optional[int]) -> dict[str, Any]:
    """Returns the change to amounts that were really used."""
    return _of_bucket({"adjust": check.amounts("actual", actual)}, bucket)


def giving_back(unused: Mapping[str, Amount], bucket: Optional[int]) -> dict[str, Any]:
    """Returns the change that returns a part."""
    return _of_bucket({"give_back": check.amounts("unused", unused)}, bucket)


def taking_more(more: Mapping[str, Amount], bucket: Optional[int]) -> dict[str, Any]:
    """Returns the change that takes more."""
    return _of_bucket({"take_more": check.amounts("more", more, check.whole_tokens)}, bucket)


def renewal(seconds: float) -> dict[str, Any]:
    """Returns the change of a lease's expiry."""
    return {"renew_ms": check.milliseconds("seconds", seconds, 1, check.DAY)}


def ending(end: str, actual: Optional[Mapping[str, Amount]]) -> dict[str, Any]:
    """Returns the change that ends a grant."""
    return {"end": end} if actual is None else {"adjust": check.amounts("actual", actual), "end": end}


def _of_bucket(changes: dict[str, Any], bucket: Optional[int]) -> dict[str, Any]:
    if bucket is not None:
        changes["bucket"] = check.whole("bucket", bucket, 0, check.MAX_SAFE, "the place of a bucket, from 0")
    return changes


def _bucket(bucket: Bucket) -> dict[str, Any]:
    if not isinstance(bucket, Bucket):
        check.refuse("each of buckets", "a Bucket", bucket)
    body: dict[str, Any] = {
        "entity": check.text("entity", bucket.entity),
        "resource": check.text("resource", bucket.resource),
        "take": check.amounts("take", bucket.take, _take),
    }
    _add_limits(body, bucket.limits, bucket.limits_version)
    if check.flag("cascading", bucket.cascading):
        body["cascading"] = True
    return body


def _take(what: str, amount: Any) -> Any:
    if not isinstance(amount, UpTo):
        return check.tokens(what, amount)
    at_least = check.whole_tokens(f"{what}: at_least", amount.at_least)
    at_most = check.whole_tokens(f"{what}: at_most", amount.at_most)
    if at_least > at_most:
        check.refuse(f"{what}: at_most", f"{at_least} or more, as at_least is", at_most)
    return {"at_least": at_least, "at_most": at_most}


def _add_limits(body: dict[str, Any], limits: Optional[Sequence[Limit]], version: Optional[int]) -> None:
    if limits is not None:
        if not isinstance(limits, Sequence) or not all(isinstance(limit, Limit) for limit in limits):
            check.refuse("limits", "a list of Limit", limits)
        body["limits"] = [limit.json() for limit in limits]
    if version is not None:
        body["limits_version"] = check.whole("limits_version", version, 0, check.MAX_SAFE, "0 to 2^53 - 1")


def _bytes(body: Mapping[str, Any]) -> bytes:
    return _encode(body).encode("ascii")
