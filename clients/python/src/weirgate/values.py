"""What callers give and get: limits, amounts, buckets, balances. Times are seconds, amounts are tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, NamedTuple, Optional, Union, get_args

from . import check
from .shape import seconds

Amount = Union[int, float]
"""Tokens: whole, or with at most three decimal places."""

Mode = Literal["enforced", "shadow", "soft"]

Kind = Literal["rate", "slots", "quota"]

Status = Literal["enforced", "disabled", "unlimited"]
"""Whether limits apply."""

LevelKind = Literal["entity_resource", "entity", "plan_resource", "plan", "resource", "system"]

Interval = Literal["hour", "day", "month"]
UsageState = Literal["interim", "final", "unknown"]
"""`interim` may still change, `final` does not, and of `unknown` a part may no longer be kept."""

OnAgentUnavailable = Literal["raise", "deny", "allow"]

OnUnavailable = Literal[
    "error", "deny", "allow",
    "local 1", "local 2", "local 3", "local 4", "local 5", "local 6", "local 7", "local 8", "local 9",
    "local 10", "local 11", "local 12", "local 13", "local 14", "local 15", "local 16", "local 17", "local 18",
    "local 19", "local 20", "local 21", "local 22", "local 23", "local 24", "local 25", "local 26", "local 27",
    "local 28", "local 29", "local 30", "local 31", "local 32", "local 33", "local 34", "local 35", "local 36",
    "local 37", "local 38", "local 39", "local 40", "local 41", "local 42", "local 43", "local 44", "local 45",
    "local 46", "local 47", "local 48", "local 49", "local 50", "local 51", "local 52", "local 53", "local 54",
    "local 55", "local 56", "local 57", "local 58", "local 59", "local 60", "local 61", "local 62", "local 63",
    "local 64", "local 65", "local 66", "local 67", "local 68", "local 69", "local 70", "local 71", "local 72",
    "local 73", "local 74", "local 75", "local 76", "local 77", "local 78", "local 79", "local 80", "local 81",
    "local 82", "local 83", "local 84", "local 85", "local 86", "local 87", "local 88", "local 89", "local 90",
    "local 91", "local 92", "local 93", "local 94", "local 95", "local 96", "local 97", "local 98", "local 99",
    "local 100",
]
"""The decision without DynamoDB; `local` has a percentage of each limit."""


class UpTo(NamedTuple):
    """Takes as much as there is, between both amounts."""

    at_least: Amount
    at_most: Amount


Take = Mapping[str, Union[int, float, UpTo]]
"""Amounts by limit."""

_SECOND, _MINUTE, _HOUR, _DAY = 1.0, 60.0, 3_600.0, 86_400.0
_MAX_PERIOD = 366 * _DAY
_RANGE = "1 to 10^12 whole tokens"


@dataclass(frozen=True)
class Limit:
    """A rate, slots, or a quota.

    Make one with `per_second`, `per_minute`, `per_hour`, `per_day`, `rate`, `slots` or `quota`.
    """

    name: str
    capacity: int
    refill: int = 0
    """Tokens per period; 0 for slots and quotas."""
    period: float = 0
    """Seconds; 0 for slots and quotas."""
    mode: Mode = "enforced"
    window: str = ""
    """Window of a quota: `"month,day=15,at=09:00,tz=Europe/Berlin"`, or `"5h"` from the first use."""
    schedule: str = ""
    """Rules that scale a configured limit: `"0 8 * * 1-5 for 10h scale 2/1 tz Europe/Berlin"`. The agent checks them."""
    classes: str = ""
    """Classes of callers of a rate: `"batch:10%:30%,night:5%"`. The agent checks them."""

    @property
    def kind(self) -> Kind:
        """`"rate"`, `"slots"` or `"quota"`."""
        return "quota" if self.window else "rate" if self.refill else "slots"

    def __post_init__(self) -> None:
        of = _named(self.name)
        check.one_of(f"{of} mode", self.mode, get_args(Mode), "'enforced', 'shadow' or 'soft'")
        check.whole(f"{of} capacity", self.capacity, 1, check.MAX_TOKENS, _RANGE)
        if type(self.window) is not str or (self.window and (self.refill or self.period)):
            check.refuse(f"{of} window", "text, and left out of a rate", self.window)
        if type(self.schedule) is not str:
            check.refuse(f"{of} schedule", "text", self.schedule)
        if type(self.classes) is not str or (self.classes and not self.refill):
            check.refuse(f"{of} classes", "text such as 'batch:10%:30%', of a rate", self.classes)
        if type(self.refill) is not int or type(self.period) not in (int, float) or self.refill or self.period:
            _check_rate(self.name, self.refill, self.period)

    @classmethod
    def rate(
        cls, name: str, refill: int, period: float, *, capacity: Optional[int] = None, mode: Mode = "enforced"
    ) -> Limit:
        """Returns a limit that refills `refill` tokens every `period` seconds. The capacity is as much, by default."""
        # Before the limit is made, because one without a refill and a period has slots.
        _check_rate(name, refill, period)
        return cls(name, refill if capacity is None else capacity, refill, period, mode)

    @classmethod
    def per_second(cls, name: str, tokens: int, *, burst: Optional[int] = None, mode: Mode = "enforced") -> Limit:
        """Returns a limit of `tokens` a second, with a capacity of `burst` if given."""
        return cls.rate(name, tokens, _SECOND, capacity=burst, mode=mode)

    @classmethod
    def per_minute(cls, name: str, tokens: int, *, burst: Optional[int] = None, mode: Mode = "enforced") -> Limit:
        """Returns a limit of `tokens` a minute, with a capacity of `burst` if given."""
        return cls.rate(name, tokens, _MINUTE, capacity=burst, mode=mode)

    @classmethod
    def per_hour(cls, name: str, tokens: int, *, burst: Optional[int] = None, mode: Mode = "enforced") -> Limit:
        """Returns a limit of `tokens` an hour, with a capacity of `burst` if given."""
        return cls.rate(name, tokens, _HOUR, capacity=burst, mode=mode)

    @classmethod
    def per_day(cls, name: str, tokens: int, *, burst: Optional[int] = None, mode: Mode = "enforced") -> Limit:
        """Returns a limit of `tokens` a day, with a capacity of `burst` if given."""
        return cls.rate(name, tokens, _DAY, capacity=burst, mode=mode)

    @classmethod
    def slots(cls, name: str, slots: int, *, mode: Mode = "enforced") -> Limit:
        """Returns a concurrency limit: its tokens come back only when a lease ends."""
        check.whole(f"{_named(name)} slots", slots, 1, check.MAX_TOKENS, _RANGE)
        return cls(name, slots, mode=mode)

    @classmethod
    def quota(cls, name: str, tokens: int, window: str, *, mode: Mode = "enforced") -> Limit:
        """Returns a limit of `tokens` in each window, of which the next one begins full.

        The agent checks the window: `"month"`, `"week,day=sunday"`, `"day,at=09:00,tz=Europe/Berlin"`, or `"5h"` from
        the first use.
        """
        check.whole(f"{_named(name)} quota", tokens, 1, check.MAX_TOKENS, _RANGE)
        if type(window) is not str or not window:
            check.refuse(f"{_named(name)} window", "text such as 'month' or '5h'", window)
        return cls(name, tokens, mode=mode, window=window)

    @classmethod
    def parse(cls, json: Mapping[str, Any]) -> Limit:
        """Reads a limit as the agent writes it."""
        name, mode = json["name"], json["mode"]
        text, _, schedule = json["text"].partition(",schedule=") if "schedule" in json else (json.get("text", ""), "", "")
        if "quota_tokens" in json:
            window = text.split("/", 1)[-1].split(",mode=")[0]
            return cls(name, json["quota_tokens"], mode=mode, window=window, schedule=schedule)
        if "slots" in json:
            return cls(name, json["slots"], mode=mode, schedule=schedule)
        period = json["refill_period_ms"] / 1000
        classes = ",".join(map(_class, json.get("classes", {}).items()))
        return cls(name, json["capacity_tokens"], json["refill_tokens"], period, mode, schedule=schedule, classes=classes)

    def json(self) -> Union[str, dict[str, Any]]:
        """Returns the limit as the agent reads it."""
        if self.window:
            kind = "session" if self.window[0].isdigit() else "quota"
            return f"{self.name}={kind}:{int(self.capacity)}/{self.window},mode={self.mode}{self._schedule()}"
        if self.schedule or self.classes:
            rate = f"{int(self.refill)}/{round(self.period * 1000)}ms,burst={int(self.capacity)}"
            classes = self.classes and ",class=" + self.classes.replace(",", ",class=")
            return f"{self.name}={rate if self.refill else int(self.capacity)}{classes},mode={self.mode}{self._schedule()}"
        if self.period == 0:
            return {"name": self.name, "slots": int(self.capacity), "mode": self.mode}
        return {
            "name": self.name,
            "capacity_tokens": int(self.capacity),
            "refill_tokens": int(self.refill),
            "refill_period_ms": round(self.period * 1000),
            "mode": self.mode,
        }

    def _schedule(self) -> str:
        return f",schedule={self.schedule}" if self.schedule else ""


Limits = Sequence[Union[Limit, str]]
"""Limits of a bucket, each as a `Limit` or as its text: `rpm=600/minute,burst=800`, `slots=20`, `tpm=quota:10000/month`."""


def _class(entry: tuple[str, Mapping[str, int]]) -> str:
    name, percent = entry
    leaves = percent["leaves_percent"]
    return f"{name}:{percent['at_least_percent']}%" + (f":{leaves}%" if leaves else "")


def _check_rate(name: str, refill: int, period: float) -> None:
    of = _named(name)
    check.whole(f"{of} refill", refill, 1, check.MAX_TOKENS, _RANGE)
    check.exact_milliseconds(f"{of} period", period, _MAX_PERIOD)


def _named(name: str) -> str:
    return f"limit {check.shown(check.text('the name of a limit', name))}:"


@dataclass(frozen=True)
class Bucket:
    """What a request takes of one entity on one resource. Without `limits`, the limits of the table apply."""

    entity: str
    resource: str
    take: Take
    limits: Optional[Limits] = None
    """Each as a `Limit`, or as text: `"rpm=600/minute"`."""
    limits_version: Optional[int] = None
    cascading: bool = False
    """Whether it takes of the entity's parents too, with limits given here."""
    caller_class: Optional[str] = None
    """Class of the caller, of limits with classes. The class of the entity's configuration counts instead."""


class Settlement(Enum):
    """Outcome of a settlement."""

    SETTLED = "settled"
    LEASE_GONE = "lease_gone"
    """A lease had already ended, by a release or by its expiry. Nothing of its bucket changed."""


@dataclass(frozen=True)
class LimitStatus:
    """One limit of a bucket."""

    entity: str
    resource: str
    limit: str
    mode: Mode
    capacity: Amount
    refill: Amount
    period: float
    available: Amount
    """Balance; negative in debt."""
    requested: Amount
    is_requested: bool
    retry_after: Optional[float]
    """Seconds until `requested` is there; None if time alone does not help."""
    resets_at: Optional[float] = None
    """End of a quota's window, in seconds since 1970; None for other limits, and for a session before its first use."""
    is_quota: bool = False
    paused_for: Optional[float] = None
    """Seconds until the bucket's pause ends, before which nothing is granted; None without one."""

    @property
    def kind(self) -> Kind:
        """`"rate"`, `"slots"` or `"quota"`."""
        return "quota" if self.is_quota else "rate" if self.refill else "slots"

    @property
    def is_short(self) -> bool:
        """Whether the limit has too little for the request, or its bucket is paused."""
        lacks = self.requested > self.available or self.paused_for is not None
        return self.is_requested and lacks and self.mode != "soft"

    @classmethod
    def parse(cls, json: Mapping[str, Any]) -> LimitStatus:
        """Reads a status as the agent writes it."""
        return cls(
            entity=json["entity"],
            resource=json["resource"],
            limit=json["limit"],
            mode=json["mode"],
            capacity=json["capacity_tokens"],
            refill=json["refill_tokens"],
            period=json["refill_period_ms"] / 1000,
            available=json["available_tokens"],
            requested=json["requested_tokens"],
            is_requested=json["is_requested"],
            retry_after=seconds(json["retry_after_ms"]),
            resets_at=seconds(json.get("resets_at_ms")),
            is_quota="window" in json,
            paused_for=seconds(json.get("paused_ms")),
        )


@dataclass(frozen=True)
class Balances:
    """The balance of every limit of a bucket."""

    status: Status
    limits: tuple[LimitStatus, ...]
    retry_after: Optional[float]
    """Seconds until all that is needed is there; None if time alone does not help."""
    headers: Mapping[str, str]
    """The `RateLimit` fields, for an HTTP response."""

    def remaining(self, limit: str) -> Optional[Amount]:
        """Returns the balance of a limit; None if the bucket does not have it."""
        return remaining(self.limits, limit)


@dataclass(frozen=True)
class UsageTotal:
    """The sum of usage."""

    tokens: Mapping[str, Union[int, float, str]]
    """By limit; text where no number of JSON is exact, above 15 digits."""
    acquires: int
    state: UsageState
    complete_until: float
    """All usage before is included, in seconds since 1970."""
    unreadable: tuple[str, ...]
    """Items that cannot be read, whose usage is missing: what is wrong with each, and what to do."""

    @classmethod
    def parse(cls, json: Mapping[str, Any]) -> UsageTotal:
        """Reads a total as the agent writes it."""
        return cls(**_used(json), unreadable=_unreadable(json))


@dataclass(frozen=True)
class UsageRow:
    """Usage of an entity on a resource in one interval, in seconds since 1970."""

    entity: str
    resource: str
    start: float
    end: float
    tokens: Mapping[str, Union[int, float, str]]
    """As `UsageTotal.tokens`."""
    acquires: int
    state: UsageState
    complete_until: float

    @classmethod
    def parse(cls, json: Mapping[str, Any]) -> UsageRow:
        """Reads a row as the agent writes it."""
        start, end = json["start_ms"] / 1000, json["end_ms"] / 1000
        return cls(entity=json["entity"], resource=json["resource"], start=start, end=end, **_used(json))


@dataclass(frozen=True)
class UsagePage:
    """A page of usage."""

    rows: tuple[UsageRow, ...]
    next: Optional[str]
    """The `page` of the next one; None after the last. A page before it may be empty."""
    unreadable: tuple[str, ...]
    """As `UsageTotal.unreadable`."""

    @classmethod
    def parse(cls, json: Mapping[str, Any]) -> UsagePage:
        """Reads a page as the agent writes it."""
        return cls(tuple(map(UsageRow.parse, json["items"])), json["next"], _unreadable(json))


@dataclass(frozen=True)
class Level:
    """What limits of the table are for: an entity or a plan, a resource, both, or the whole namespace."""

    entity: Optional[str] = None
    resource: Optional[str] = None
    plan: Optional[str] = None

    @property
    def kind(self) -> LevelKind:
        """Which of the six it is."""
        if self.entity is not None:
            return "entity" if self.resource is None else "entity_resource"
        if self.plan is not None:
            return "plan" if self.resource is None else "plan_resource"
        return "system" if self.resource is None else "resource"

    def __str__(self) -> str:
        return " on ".join(f"{kind} {name}" for kind, name in self._names().items()) or "system"

    @classmethod
    def parse(cls, json: Mapping[str, Any]) -> Level:
        """Reads a level as the agent writes it."""
        kind = json["level"]
        entity = json["entity"] if kind.startswith("entity") else None
        plan = json["plan"] if kind.startswith("plan") else None
        return cls(entity, json["resource"] if kind.endswith("resource") else None, plan)

    def json(self) -> dict[str, Any]:
        """Returns the level as the agent reads it."""
        return {"level": self.kind, **self._names()}

    def _names(self) -> dict[str, str]:
        names = {"entity": self.entity, "plan": self.plan, "resource": self.resource}
        return {kind: name for kind, name in names.items() if name is not None}


@dataclass(frozen=True)
class Config:
    """The limits of one level."""

    limits: tuple[Limit, ...]
    status: Status
    is_shadow: bool
    """Whether all its limits are in shadow mode."""
    caller_class: Optional[str] = None
    """Class of the callers of its entities, whatever a request says."""

    @classmethod
    def parse(cls, json: Optional[Mapping[str, Any]]) -> Optional[Config]:
        """Reads a configuration as the agent writes it."""
        if json is None:
            return None
        return cls(_limits(json["limits"]), json["status"], json["is_shadow"], json.get("class"))


@dataclass(frozen=True)
class EffectiveBucket:
    """The limits in force for one bucket."""

    entity: str
    level: Optional[Level]
    """Where the limits come from; None if no level has any."""
    status: Optional[Status]
    """Whether the limits apply; None without any. An operator's stop is not a part of it."""
    limits: tuple[Limit, ...]

    @classmethod
    def parse(cls, json: Mapping[str, Any]) -> EffectiveBucket:
        """Reads a bucket as the agent writes it."""
        level = json["level"]
        return cls(json["entity"], level and Level.parse(level), json["status"], _limits(json["limits"]))


@dataclass(frozen=True)
class ConfiguredLevel:
    """A level, and its configuration if it has one."""

    level: Level
    config: Optional[Config]
    is_from_file: bool
    """Whether it is that of the agent's limits file, so that a change in the table has no effect."""

    @classmethod
    def parse(cls, json: Mapping[str, Any]) -> ConfiguredLevel:
        """Reads a level with its configuration as the agent writes it."""
        return cls(Level.parse(json["level"]), Config.parse(json["config"]), json["is_from_file"])


@dataclass(frozen=True)
class EffectiveLimits:
    """The limits in force for an entity on a resource, and where they come from."""

    buckets: tuple[EffectiveBucket, ...]
    """The bucket of the entity, then of each ancestor that it cascades to and that has limits."""
    levels: tuple[ConfiguredLevel, ...]
    """The levels of the entity on the resource. The first one with a configuration wins."""
    missing_plan: Optional[str] = None
    """The entity's plan, if no level of it has limits: those of the resource or the system apply."""

    @classmethod
    def parse(cls, json: Mapping[str, Any]) -> EffectiveLimits:
        """Reads limits in force as the agent writes them."""
        buckets = tuple(map(EffectiveBucket.parse, json["buckets"]))
        return cls(buckets, tuple(map(ConfiguredLevel.parse, json["levels"])), json.get("missing_plan"))


@dataclass(frozen=True)
class LimitsChange:
    """The limits of a level before and after a change."""

    is_changed: bool
    before: Optional[Config]
    after: Optional[Config]

    @classmethod
    def parse(cls, json: Mapping[str, Any]) -> LimitsChange:
        """Reads a change as the agent writes it."""
        return cls(json["changed"], Config.parse(json["before"]), Config.parse(json["after"]))


def _limits(json: Sequence[Mapping[str, Any]]) -> tuple[Limit, ...]:
    return tuple(map(Limit.parse, json))


def _used(json: Mapping[str, Any]) -> dict[str, Any]:
    used, until = json["usage"], json["complete_until_ms"] / 1000
    return {"tokens": used["tokens"], "acquires": used["acquires"], "state": json["state"], "complete_until": until}


def _unreadable(json: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(item["error"] for item in json.get("unreadable", ()))


def remaining(limits: Sequence[LimitStatus], limit: str) -> Optional[Amount]:
    """Returns the balance of the first limit with this name."""
    return next((status.available for status in limits if status.limit == limit), None)
