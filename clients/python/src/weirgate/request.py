"""Requests as JSON, and their paths."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union, get_args

from . import check
from .errors import InvalidRequest
from .values import Amount, Bucket, Interval, Level, Limit, Limits, OnUnavailable, Status, UpTo

ACQUIRE, SETTLE, REPORT, PEEK, USAGE = "/v1/acquire", "/v1/settle", "/v1/report", "/v1/peek", "/v1/usage"
LIMITS, SET_LIMITS, DELETE_LIMITS = "/v1/limits", "/v1/limits/set", "/v1/limits/delete"
RELEASE = {"end": "release"}
_HOUR = 3_600.0
_LAST_INSTANT = 8_640_000_000_000.0
# No other field of a vendor's answer leaves the process: it may be a secret.
_OF_LIMITS = re.compile("date|retry-after(-ms)?|ratelimit|(x|anthropic)-ratelimit-.+", re.IGNORECASE)
_MAX_VALUE = 256
_MAX_HEADERS = 8_192
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Request(NamedTuple):
    """What is sent, and how much longer than usual the agent may take."""

    path: str
    body: bytes
    longer: float = 0

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing, whatever becomes of it."""
        return self.path in (PEEK, USAGE, LIMITS)


class Options(NamedTuple):
    """Options of an acquire, as `Client.acquire` describes them."""

    wait: Optional[float] = None
    queue: Optional[float] = None
    now: bool = False
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
    wait, queue, now, lease, timeout, on_unavailable, bypass = options
    longer = 0
    if wait is not None:
        longer += body.setdefault("wait_ms", check.milliseconds("wait", wait, 0, check.DAY))
    if queue is not None:
        body["queue_ms"] = check.milliseconds("queue", queue, 1, _HOUR)
    if check.flag("now", now):
        if queue is None:
            check.refuse("now", "left out without queue", now)
        body["answer"] = "now"
    else:
        longer += body.get("queue_ms", 0)
    if lease is not None:
        body["lease_ms"] = check.milliseconds("lease", lease, 1, check.DAY)
    if timeout is not None:
        longer += body.setdefault("timeout_ms", check.milliseconds("timeout", timeout, 1, _HOUR))
    if on_unavailable is not None:
        rule = "'error', 'deny', 'allow' or 'local 1' to 'local 100'"
        body["on_unavailable"] = check.one_of("on_unavailable", on_unavailable, get_args(OnUnavailable), rule)
    if check.flag("bypass", bypass):
        body["bypass"] = True
    return Request(ACQUIRE, _bytes(body), longer / 1000)


def peek(
    entity: str, resource: str, need: Optional[Mapping[str, int]], limits: Optional[Limits]
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
    plan: Optional[str]
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
    scope = _names(asked)
    if not scope:
        check.refuse("entity or plan, resource, or both", "given", None)
    return {
        "scope": scope,
        "by": check.one_of("by", asked.by, get_args(Interval), "'hour', 'day' or 'month'"),
        "from_ms": check.milliseconds("start", asked.start, 0, _LAST_INSTANT),
        "to_ms": check.milliseconds("end", asked.end, 0, _LAST_INSTANT),
    }


class LevelOf(NamedTuple):
    """The level of a change, as `Client.set_limits` describes it, and its author."""

    entity: Optional[str]
    plan: Optional[str]
    resource: Optional[str]
    system: bool
    author: Optional[str]


class LimitsOf(NamedTuple):
    """What a change sets of a level, as `Client.set_limits` describes it."""

    limits: Optional[Sequence[Union[Limit, str]]]
    status: Optional[Status]
    is_shadow: Optional[bool]
    replace: bool
    caller_class: Optional[str]


def limits_of(entity: str, resource: str) -> Request:
    """Returns the request for the limits in force."""
    return Request(LIMITS, _bytes({"entity": check.text("entity", entity), "resource": check.text("resource", resource)}))


def setting(of: LevelOf, given: LimitsOf) -> Request:
    """Returns the request that sets limits of a level."""
    limits, status, is_shadow, replace, caller_class = given
    body = _level(of)
    _add_limits(body, limits, None)
    if status is not None:
        body["status"] = check.one_of("status", status, get_args(Status), "'enforced', 'disabled' or 'unlimited'")
    if is_shadow is not None:
        body["is_shadow"] = check.flag("is_shadow", is_shadow)
    if caller_class is not None:
        body["class"] = check.text("caller_class", caller_class)
    if not {"limits", "status", "is_shadow", "class"} & body.keys():
        raise InvalidRequest("the change sets nothing: give limits, status, is_shadow or caller_class")
    if check.flag("replace", replace):
        body["replace"] = True
    return Request(SET_LIMITS, _bytes(body))


def deleting(of: LevelOf) -> Request:
    """Returns the request that deletes the limits of a level."""
    return Request(DELETE_LIMITS, _bytes(_level(of)))


def _level(of: LevelOf) -> dict[str, Any]:
    names = _names(of)
    if check.flag("system", of.system) == bool(names):
        what = "has a name beside system" if names else "is missing"
        raise InvalidRequest(f"the level {what}: give entity or plan, resource, or both, or system=True alone")
    author = {} if of.author is None else {"author": check.text("author", of.author)}
    return {"level": Level(**names).json(), **author}


def _names(of: Union[UsageOf, LevelOf]) -> dict[str, str]:
    given = {"entity": of.entity, "plan": of.plan, "resource": of.resource}
    names = {name: check.text(name, text) for name, text in given.items() if text is not None}
    if "entity" in names and "plan" in names:
        check.refuse("plan", "left out beside entity", of.plan)
    return names


def report(entity: str, resource: str, vendor: Mapping[str, Any]) -> Request:
    """Returns the request that tells what a vendor said."""
    bucket = {"entity": check.text("entity", entity), "resource": check.text("resource", resource)}
    return Request(REPORT, _bytes({**bucket, "vendor": vendor}))


def vendor(response: object, status: Optional[int], headers: Optional[Mapping[str, str]]) -> dict[str, Any]:
    """Returns what a vendor's answer says about its limits."""
    if response is not None:
        if status is not None or headers is not None:
            check.refuse("response", "left out beside status and headers", response)
        # `status_code` of requests and httpx, `status` of aiohttp and urllib.
        status = getattr(response, "status_code", getattr(response, "status", None))
        headers = getattr(response, "headers", None)
    if not isinstance(status, int) or not 100 <= status <= 599:
        check.refuse("status", "a status of HTTP, 100 to 599", status)
    if headers is not None and not hasattr(headers, "items"):
        check.refuse("headers", "a mapping from names to values", headers)
    return {"status": int(status), "headers": _of_limits(headers) if headers else {}}


def _of_limits(headers: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns the fields of limits that the agent can read. An answer of the vendor is no error of the caller."""
    found: dict[str, list[str]] = {}
    left = _MAX_HEADERS
    for name, text in headers.items():
        is_known = isinstance(name, str) and isinstance(text, str) and _OF_LIMITS.fullmatch(name) is not None
        if not is_known or len(text) > _MAX_VALUE or not text.isascii() or left < len(name) + len(text):
            continue
        left -= len(name) + len(text)
        found.setdefault(name.lower(), []).append(text)
    return found


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
    if bucket.caller_class is not None:
        body["class"] = check.text("caller_class", bucket.caller_class)
    return body


def _take(what: str, amount: Any) -> Any:
    if not isinstance(amount, UpTo):
        return check.tokens(what, amount)
    at_least = check.whole_tokens(f"{what}: at_least", amount.at_least)
    at_most = check.whole_tokens(f"{what}: at_most", amount.at_most)
    if at_least > at_most:
        check.refuse(f"{what}: at_most", f"{at_least} or more, as at_least is", at_most)
    return {"at_least": at_least, "at_most": at_most}


def _add_limits(body: dict[str, Any], limits: Optional[Limits], version: Optional[int]) -> None:
    if limits is not None:
        is_list = isinstance(limits, Sequence) and not isinstance(limits, str)
        if not is_list or not all(isinstance(limit, (Limit, str)) for limit in limits):
            check.refuse("limits", "a list of Limit, or of texts such as 'rpm=600/minute'", limits)
        body["limits"] = [_limit(limit) for limit in limits]
    if version is not None:
        body["limits_version"] = check.whole("limits_version", version, 0, check.MAX_SAFE, "0 to 2^53 - 1")


def _limit(limit: Union[Limit, str]) -> Any:
    if isinstance(limit, Limit):
        return limit.json()
    if not isinstance(limit, str) or not re.search("[^=]=[^=]", limit):
        check.refuse("each of limits", "a Limit or text such as 'rpm=600/minute'", limit)
    return limit


def _bytes(body: Mapping[str, Any]) -> bytes:
    return _encode(body).encode("ascii")
