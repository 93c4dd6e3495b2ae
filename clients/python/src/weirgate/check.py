"""What callers give, checked before anything is sent: an exact type and range, or `InvalidRequest`.

JSON drops some values of a language and changes others, so only types that it keeps are allowed. A subclass may have
another value as JSON than as a number, so it is refused too. `check.js` of the client for Node has the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Callable, NoReturn, Union

from .errors import InvalidRequest

MAX_TOKENS = 10**12
MAX_SAFE = 2**53 - 1
DAY = 86_400.0
TOKENS = "0 to 10^12 tokens with at most three decimal places"
_SHOWN = 40


def refuse(what: str, rule: str, given: Any, remedy: str = "") -> NoReturn:
    """Raises the error of a value that breaks a rule."""
    raise InvalidRequest(f"{what} must be {rule}, got {shown(given)}" + (f"; {remedy}" if remedy else ""))


def text(what: str, given: Any) -> str:
    """Requires text that is not empty."""
    if not isinstance(given, str) or not given:
        refuse(what, "text that is not empty", given)
    return given


def flag(what: str, given: Any) -> bool:
    """Requires a boolean."""
    if type(given) is not bool:
        refuse(what, "True or False", given)
    return given


def whole(what: str, given: Any, least: int, most: int, rule: str) -> int:
    """Requires a whole number in a range."""
    if type(given) is int and least <= given <= most:
        return given
    if type(given) is float and least <= given <= most and given.is_integer() and not _is_negative(given):
        return int(given)
    refuse(what, rule, given)


def tokens(what: str, given: Any) -> Union[int, float]:
    """Requires an amount of tokens that JSON keeps."""
    if type(given) is int and 0 <= given <= MAX_TOKENS:
        return given
    if type(given) is float and 0 <= given <= MAX_TOKENS and round(given, 3) == given and not _is_negative(given):
        return given
    refuse(what, TOKENS, given)


def whole_tokens(what: str, given: Any) -> int:
    """Requires an amount of whole tokens."""
    return whole(what, given, 0, MAX_TOKENS, "0 to 10^12 whole tokens")


def amounts(what: str, given: Any, amount: Callable[[str, Any], Any] = tokens) -> dict[str, Any]:
    """Returns amounts by limit, each checked by `amount`. Requires at least one."""
    if not isinstance(given, Mapping) or not given:
        refuse(what, "a mapping from limits to amounts, with at least one", given)
    checked = {}
    entries = 0
    for limit, value in given.items():
        entries += 1
        # A copy of its text, because a subclass may compare otherwise.
        name = str.__str__(text(f"a limit of {what}", limit))
        checked[name] = amount(f"{what}[{shown(name)}]", value)
    if len(checked) != entries:
        refuse(what, "amounts of different limits", given)
    return checked


def milliseconds(what: str, given: Any, least: int, most: float) -> int:
    """Returns the whole milliseconds of seconds, rounded. Requires `least` milliseconds to `most` seconds."""
    if type(given) in (int, float) and 0 <= given <= most and not _is_negative(given):
        ms: int = round(given * 1000)
        if ms >= least:
            return ms
    refuse(what, f"{least / 1000:g} to {most:g} seconds", given)


def exact_milliseconds(what: str, given: Any, most: float) -> int:
    """Returns the whole milliseconds of seconds that have no part of one."""
    ms = milliseconds(what, given, 1, most)
    if round(given, 3) != given:
        refuse(what, "whole milliseconds", given)
    return ms


def one_of(what: str, given: Any, texts: tuple[str, ...], rule: str) -> str:
    """Requires one of some texts."""
    if not isinstance(given, str) or given not in texts:
        refuse(what, rule, given)
    return given


def shown(given: Any) -> str:
    """Returns the beginning of a value for an error. Of other types than those of JSON it names the type alone."""
    kind = type(given)
    if kind is int and given.bit_length() > 128:
        return f"an int of {given.bit_length()} bits"
    if kind is str:
        return repr(given if len(given) <= _SHOWN else given[:_SHOWN] + " ...")
    if given is None or kind in (bool, int, float):
        return repr(given)
    if kind in (dict, list, tuple) and not given:
        return repr(given)
    return f"a value of type {kind.__name__}"


def _is_negative(given: float) -> bool:
    # Of zero too, which JSON writes with its sign.
    return math.copysign(1, given) < 0
