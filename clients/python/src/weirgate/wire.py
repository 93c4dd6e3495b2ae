"""HTTP/1.1 as bytes, without I/O: what both clients send, and how they read answers.

`http.client` writes the head and the body apart, does not tell whether anything was sent, and does not check the ends of
chunks. asyncio has no HTTP at all. So both clients share this, for the one server that they talk to: its answers have a
`content-length`, unless a proxy sends them in chunks.
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
MAX_LINE = 4 * 1024
"""Bytes of the line before a chunk, and of the trailers after the last one."""

_FIELDS = r"(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*)*"
_HEAD = re.compile(r"HTTP/1\.[01] ([1-9][0-9]{2})(?: [^\r\n\0]*)?(" + _FIELDS + ")")
_TRAILERS = re.compile(_FIELDS.encode("ascii"))
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n\0]*)?")
_NO_CHUNK = f"the answer's chunks are wrong, or longer than {MAX_BODY} bytes"
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

    __slots__ = ("_body", "_data", "_head", "_heads", "_length", "_searched", "answer")

    def __init__(self) -> None:
        self.answer: Optional[Response] = None
        self._body = bytearray()
        self._data = bytearray()
        self._head: Optional[tuple[int, dict[str, str]]] = None
        self._heads = 0
        self._length: Optional[int] = None
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
        if self._length is None:
            self._join_chunks()
        if self._length is None or len(self._data) < self._length:
            return None
        if len(self._data) > self._length:
            raise Malformed("the answer is longer than its content-length or its chunks")
        self.answer = Response(*self._head, bytes(self._data))
        return self.answer

    def _join_chunks(self) -> None:
        """Moves whole chunks to the body. After the last one the data are the body, whose length is known then."""
        while (line := self._find(b"\r\n", 0)) >= 0:
            found = _CHUNK.fullmatch(self._data[:line])
            size = int(found[1], 16) if found else MAX_BODY + 1
            if len(self._body) + size > MAX_BODY:
                raise Malformed(_NO_CHUNK)
            end = self._find(b"\r\n\r\n", line) if size == 0 else line + 2 + size
            if end < 0 or len(self._data) < end + 2:
                return
            if size == 0 and _TRAILERS.fullmatch(self._data[line:end]):
                self._length = len(self._body)
                self._data[: end + 4] = self._body
                return
            if size == 0 or self._data[end : end + 2] != b"\r\n":
                raise Malformed(_NO_CHUNK)
            self._body += self._data[line + 2 : end]
            del self._data[: end + 2]

    def _find(self, mark: bytes, start: int) -> int:
        """Returns the place of a mark, or -1 if it has not come."""
        place = self._data.find(mark, start, start + MAX_LINE)
        if place < 0 and len(self._data) >= start + MAX_LINE:
            raise Malformed(_NO_CHUNK)
        return place


def _head(head: bytearray) -> tuple[int, dict[str, str]]:
    """Reads a head. Nothing of one that cannot be read is shown, because it may repeat the request with its token."""
    found = _HEAD.fullmatch(head.decode("latin-1"))
    if found is None:
        raise Malformed(_NO_ANSWER)
    fields: dict[str, str] = {}
    for line in found[2].split("\r\n")[1:]:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if name in ("content-length", "transfer-encoding") and fields.get(name, value) != value:
            raise Malformed(f"the answer has two different fields {name}")
        fields[name] = value
    return int(found[1]), fields


def _length(fields: Mapping[str, str]) -> Optional[int]:
    """Returns the length of the body, or None if it comes in chunks."""
    length, coding = fields.get("content-length"), fields.get("transfer-encoding")
    if length is None and coding is not None and coding.lower() == "chunked":
        return None
    if coding is not None or length is None or not re.fullmatch("[0-9]{1,9}", length) or int(length) > MAX_BODY:
        raise Malformed(f"the answer must have either a content-length of at most {MAX_BODY} bytes, or chunks")
    return int(length)
