"""What an error or a field of an answer shows, without the token of the requests.

`secret.js` of the client for Node does the same.
"""

from __future__ import annotations

import re
from typing import Any, Callable

Hide = Callable[[Any], Any]

_HIDDEN = "***"
_ENCODED = re.compile(r"(?:\\u00|%)([0-9a-f]{2})", re.IGNORECASE)
_MOST_ENCODINGS = 3
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


def hiding(secret: str) -> Hide:
    """Returns a function that returns a JSON value without the secret, in keys too, and with text that UTF-8 can have.

    A text that has the secret in another case or encoding, such as JSON within JSON, is hidden whole.
    """
    bare = _bare(secret)

    def hide(value: Any) -> Any:
        if type(value) is str:
            text = _LONE_SURROGATES.sub("\ufffd", value)
            if secret:
                text = text.replace(secret, _HIDDEN)
            return _HIDDEN if bare and _has(text, bare) else text
        if type(value) is list:
            return [hide(part) for part in value]
        if type(value) is dict:
            return {hide(name): hide(part) for name, part in value.items()}
        return value

    return hide


def _has(text: str, bare: str) -> bool:
    """Returns whether a text has a bare one, in the encodings of JSON and URLs too, or in several of them."""
    for _ in range(_MOST_ENCODINGS):
        if bare in _bare(text):
            return True
        text = _ENCODED.sub(lambda found: chr(int(found[1], 16)), text)
    return bare in _bare(text)


def _bare(text: str) -> str:
    """Returns the text in lowercase and without backslashes, whose number depends on the encodings."""
    return text.replace("\\", "").lower()
