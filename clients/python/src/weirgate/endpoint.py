"""Where the agent is, and the token that it asks for."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Optional, Union

from . import check
from .errors import InvalidRequest

URL_VARIABLE = "WEIRGATE_AGENT_URL"
TOKEN_VARIABLE = "WEIRGATE_AGENT_TOKEN"
# The extension reads it too.
PORT_VARIABLE = "WEIRGATE_HTTP_PORT"
DEFAULT_PORT = "2774"
# The second one with SnapStart, where there is no first one.
_CREDENTIALS = ("AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN")
_LOCAL_HOSTS = {"127.0.0.1", "::1", "localhost"}
# Kubernetes and links of containers set it so for a service named `weirgate-http`.
_OF_A_SERVICE = re.compile(r"[a-z]+://.*", re.S)
_HOST = r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]"


@dataclass(frozen=True)
class Endpoint:
    """An address, and the text of a request's head that never changes."""

    address: Union[str, tuple[str, int]]
    """The path of a Unix socket, or host and port."""
    url: str
    host_field: str
    is_local: bool
    token: Optional[str] = field(repr=False)
    """Token given by the application; otherwise it comes from the environment."""

    def head(self) -> tuple[bytes, str]:
        """Returns the fields of every request, and the token in them.

        Reads the environment, so a new connection has today's token.
        """
        source = "token" if self.token is not None else _token_variable(self.is_local)
        token = self.token if self.token is not None else os.environ.get(source)
        fields = f"host: {self.host_field}\r\ncontent-type: application/json\r\n"
        if token:
            if not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", token):
                raise InvalidRequest(
                    f"the agent's token must be printable ASCII, got {len(token)} characters with others: "
                    f"correct {source}"
                )
            fields += f"x-weirgate-token: {token}\r\n"
        return fields.encode("ascii"), token or ""


def endpoint(url: Optional[str], token: Optional[str]) -> Endpoint:
    """Returns the endpoint of a URL, or of the environment's, or the default one. Requires that a token can be sent."""
    found = _endpoint(url, token)
    found.head()
    return found


def _endpoint(url: Optional[str], token: Optional[str]) -> Endpoint:
    if token is not None and type(token) is not str:
        raise InvalidRequest(f"token must be text, got a value of type {type(token).__name__}")
    if url is not None:
        return _parsed(check.text("url", url), token, "url")
    url = os.environ.get(URL_VARIABLE)
    if url:
        return _parsed(url, token, URL_VARIABLE)
    return _parsed(f"http://127.0.0.1:{_port()}", token, PORT_VARIABLE)


def _port() -> str:
    port = os.environ.get(PORT_VARIABLE)
    if not port or _OF_A_SERVICE.fullmatch(port):
        return DEFAULT_PORT
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65_535:
        got = check.shown(port)
        raise InvalidRequest(f"{PORT_VARIABLE} must be 1 to 65535, got {got}; set a port, or leave it out")
    return port


def _parsed(url: str, token: Optional[str], source: str) -> Endpoint:
    unix = re.fullmatch(r"unix:(?://)?(/[^\0]+)", url, re.S)
    if unix:
        return Endpoint(unix[1], url, "localhost", True, token)
    found = _host_and_port(url)
    if found is None:
        raise InvalidRequest(
            f"{source} must be http://host:port or unix:/path, got {_without_secrets(url)}: "
            f"correct {'it' if source == 'url' else source}"
        )
    host, port = found
    address = host.strip("[]")
    return Endpoint((address, port), f"http://{host}:{port}", f"{host}:{port}", address in _LOCAL_HOSTS, token)


def _host_and_port(url: str) -> Optional[tuple[str, int]]:
    """Returns what a URL of the agent has; None of others. A parser's errors would show a password."""
    parts = re.fullmatch(rf"(?i:http)://({_HOST})(?::([0-9]{{1,5}}))?/?", url)
    if parts is None:
        return None
    port = int(parts[2] or 80)
    return (parts[1].lower(), port) if 1 <= port <= 65_535 else None


def _without_secrets(url: str) -> str:
    """Returns the beginning of a text that should be a URL, without what may be a password or a token."""
    if url.startswith("unix:"):
        return check.shown(url)
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    _, at, rest = rest.rpartition("@")
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    more = "" if host == rest else "/..."
    # A port that is none may be a password.
    host = re.sub(r":[^0-9:\]][^:]*$", ":***", host)
    return check.shown(f"{scheme}{mark}{'***@' if at else ''}{host}{more}")


def _token_variable(is_local: bool) -> str:
    """Returns the variable that has the token. In a Lambda function the extension asks for the token of the function's
    credentials, which goes to no other machine."""
    is_beside = is_local and os.environ.get("AWS_LAMBDA_FUNCTION_NAME")
    names = (TOKEN_VARIABLE, *_CREDENTIALS) if is_beside else (TOKEN_VARIABLE,)
    return next((name for name in names if os.environ.get(name)), TOKEN_VARIABLE)
