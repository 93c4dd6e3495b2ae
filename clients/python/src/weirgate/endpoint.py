"""Where the agent is, and the token that it asks for."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Optional, Union
from urllib.parse import urlsplit

from .errors import InvalidRequest

URL_VARIABLE = "WEIRGATE_AGENT_URL"
TOKEN_VARIABLE = "WEIRGATE_AGENT_TOKEN"
# The extension reads it too.
PORT_VARIABLE = "WEIRGATE_HTTP_PORT"
DEFAULT_PORT = "2774"
# The second one with SnapStart, where there is no first one.
_CREDENTIALS = ("AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN")
_LOCAL_HOSTS = {"127.0.0.1", "::1", "localhost"}


@dataclass(frozen=True)
class Endpoint:
    """An address, and the text of a request's head that never changes."""

    address: Union[str, tuple[str, int]]
    """The path of a Unix socket, or host and port."""
    url: str
    host_field: str
    is_local: bool
    token: Optional[str]
    """Token given by the application; otherwise it comes from the environment."""

    def head(self) -> bytes:
        """Returns the fields of every request. Reads the environment, so a new connection has today's token."""
        token = self.token if self.token is not None else _token_of_environment(self.is_local)
        fields = f"host: {self.host_field}\r\ncontent-type: application/json\r\n"
        if token:
            if not re.fullmatch(r"[\x21-\x7e]+", token):
                raise InvalidRequest(
                    f"the agent's token must be printable ASCII, got {len(token)} characters with others: "
                    f"correct {TOKEN_VARIABLE}"
                )
            fields += f"x-weirgate-token: {token}\r\n"
        return fields.encode("ascii")


def endpoint(url: Optional[str], token: Optional[str]) -> Endpoint:
    """Returns the endpoint of a URL, or of the environment's, or the default one."""
    url = url or os.environ.get(URL_VARIABLE)
    if not url:
        url = f"http://127.0.0.1:{os.environ.get(PORT_VARIABLE) or DEFAULT_PORT}"
    if url.startswith("unix:"):
        path = re.sub(r"^unix:(//)?", "", url)
        if not path.startswith("/"):
            raise InvalidRequest(f"the agent's URL must be unix:/path, got {url}: correct {URL_VARIABLE}")
        return Endpoint(path, url, "localhost", True, token)
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme != "http" or not host or parts.path not in ("", "/") or parts.query or parts.username:
        raise InvalidRequest(
            f"the agent's URL must be http://host:port or unix:/path, got {url}: correct {URL_VARIABLE}"
        )
    return Endpoint((host, port or 80), url, parts.netloc, host in _LOCAL_HOSTS, token)


def _token_of_environment(is_local: bool) -> Optional[str]:
    """Returns the token of the environment. In a Lambda function the extension asks for the token of the function's
    credentials, which goes to no other machine."""
    is_beside = is_local and "AWS_LAMBDA_FUNCTION_NAME" in os.environ
    names = (TOKEN_VARIABLE, *_CREDENTIALS) if is_beside else (TOKEN_VARIABLE,)
    return next((token for token in map(os.environ.get, names) if token), None)
