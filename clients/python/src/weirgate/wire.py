"""HTTP/1.1 as bytes, without I/O: what both clients send, and how they read answers.

`http.client` writes the head and the body apart, and does not tell whether anything was sent. asyncio has no HTTP at
all. So both clients share this, for the one server that they talk to: every answer has a `content-length`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, Optional

from .secret import Hide

MAX_HEAD = 64 * 1024
"""Bytes of all heads of an answer: interim ones come before the last one."""
MAX_BODY = 8 * 1024 * 1024
"""Bytes of a body. A grant has up to 2 MiB, and each of its limits 300 bytes."""

_HEAD = re.compile(
    r"HTTP/1\.[01] ([1-9][0-9]{2})(?: [^\r\n\0]*)?((?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*)*)"
)
_NO_ANSWER = "the answer is no HTTP/1.1: is the agent's URL right?"


class Malformed(Exception):
    """The bytes are no answer of the agent."""


class Response(NamedTuple):
    """An answer."""

    status: int
    fields: Mapping[str, str]
    """By lowercase name."""
    body: bytes
    hide: Hide = lambda value: value
    """Returns what may be shown of a part of the answer."""

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can carry another request."""
        return self.fields.get("connection", "").lower() != "close"


def request(path: str, head: bytes, body: bytes) -> bytes:
    """Returns a whole request, so that one write sends it."""
    return b"POST %s HTTP/1.1\r\n%scontent-length: %d\r\n\r\n%s" % (path.encode(), head, len(body), body)


class Reader:
    """Collects one answer."""

    __slots__ = ("_data", "_head", "_heads", "_length", "_searched", "answer")

    def __init__(self) -> None:
        self.answer: Optional[Response] = None
        self._data = bytearray()
        self._head: Optional[tuple[int, dict[str, str]]] = None
        self._heads = 0
        self._length = 0
        self._searched = 0

    def feed(self, data: bytes) -> Optional[Response]:
        """Adds bytes; returns the answer once it is complete."""
        self._data += data
        while self._head is None:
            end = self._data.find(b"\r\n\r\n", self._searched)
            length = len(self._data) if end < 0 else end + 4
            if self._heads + length > MAX_HEAD:
                raise Malformed(f"the head of the answer is longer than {MAX_HEAD} bytes")
            if end < 0:
                self._searched = max(0, length - 3)
                return None
            status, fields = _head(self._data[:end])
            del self._data[:length]
            self._heads += length
            self._searched = 0
            if status == 101:
                raise Malformed("the answer switches to another protocol: is the agent's URL right?")
            if status >= 200:
                self._head, self._length = (status, fields), _length(fields)
        if len(self._data) < self._length:
            return None
        if len(self._data) > self._length:
            raise Malformed("the answer is longer than its content-length")
        self.answer = Response(*self._head, bytes(self._data))
        return self.answer


def _head(head: bytearray) -> tuple[int, dict[str, str]]:
    """Reads a head. Nothing of one that cannot be read is shown, because it may repeat the request with its token."""
    found = _HEAD.fullmatch(head.decode("latin-1"))
    if found is None:
        raise Malformed(_NO_ANSWER)
    fields: dict[str, str] = {}
    for line in found[2].split("\r\n")[1:]:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if name == "content-length" and fields.get(name, value) != value:
            raise Malformed("the answer has two different content-lengths")
        fields[name] = value
    return int(found[1]), fields


def _length(fields: Mapping[str, str]) -> int:
    length = fields.get("content-length", "")
    is_length = re.fullmatch("[0-9]{1,9}", length) is not None
    if "transfer-encoding" in fields or not is_length or int(length) > MAX_BODY:
        raise Malformed(f"the answer has no content-length of at most {MAX_BODY} bytes")
    return int(length)
