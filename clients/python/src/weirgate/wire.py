"""HTTP/1.1 as bytes, without I/O: what both clients send, and how they read answers.

`http.client` writes the head and the body apart, and does not tell whether anything was sent. asyncio has no HTTP at
all. So both clients share this, for the one server that they talk to: every answer has a `content-length`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Optional

MAX_HEAD = 64 * 1024
MAX_BODY = 64 * 1024 * 1024


class Malformed(Exception):
    """The bytes are no answer of the agent."""


class Response(NamedTuple):
    """An answer."""

    status: int
    fields: Mapping[str, str]
    """By lowercase name."""
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can carry another request."""
        return self.fields.get("connection", "").lower() != "close"


def request(path: str, head: bytes, body: bytes) -> bytes:
    """Returns a whole request, so that one write sends it."""
    return b"POST %s HTTP/1.1\r\n%scontent-length: %d\r\n\r\n%s" % (path.encode(), head, len(body), body)


class Reader:
    """Collects one answer."""

    __slots__ = ("_data", "_head", "_length")

    def __init__(self) -> None:
        self._data = b""
        self._head: Optional[tuple[int, dict[str, str]]] = None
        self._length = 0

    def feed(self, data: bytes) -> Optional[Response]:
        """Adds bytes; returns the answer once it is complete."""
        self._data = self._data + data if self._data else data
        while self._head is None:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                if len(self._data) > MAX_HEAD:
                    raise Malformed(f"the head of the answer is longer than {MAX_HEAD} bytes")
                return None
            status, fields = _head(self._data[:end])
            self._data = self._data[end + 4 :]
            if status >= 200:
                self._head, self._length = (status, fields), _length(fields)
        if len(self._data) < self._length:
            return None
        if len(self._data) > self._length:
            raise Malformed("the answer is longer than its content-length")
        return Response(*self._head, self._data)


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit()):
        raise Malformed(f"the answer begins with {lines[0][:40]!r}: is the agent's URL right?")
    fields = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise Malformed(f"the answer has the line {line[:40]!r}")
        fields[name.lower()] = value.strip()
    return int(code), fields


def _length(fields: Mapping[str, str]) -> int:
    length = fields.get("content-length", "")
    if "transfer-encoding" in fields or not (length.isascii() and length.isdigit()) or int(length) > MAX_BODY:
        raise Malformed(f"the answer has no content-length of at most {MAX_BODY} bytes")
    return int(length)
