"""Who may call the server: by which host names, and with which API keys."""

import hmac
import re
import socket
from collections.abc import Iterable
from hashlib import sha256
from ipaddress import ip_address

from fastapi.security.utils import get_authorization_scheme_param
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from drafttree.interfaces.server.errors import ServerError

ANY = "*"
ALL_ADDRESSES = ("0.0.0.0", "::", "")
HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\s:/@\[\]]+))(?::[0-9]*)?")
"""The header `Host`: an IPv6 address in brackets, or a name or IPv4 address, then optionally a port."""


class AllowedHosts:
    """Middleware that answers 421 to requests for other hosts, as a protection against DNS rebinding.

    IP addresses are allowed, because rebinding needs a name whose address changes. Requests without a host, which only
    HTTP/1.0 permits and no browser sends, are allowed too.

    Args:
        app: the application.
        hosts: the allowed names, in lower case; "*" for any.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host") if scope["type"] == "http" else None
        if host is None or self._allows(name_of(host)):
            await self._app(scope, receive, send)
            return
        message = (
            f"the host name {host!r} is not allowed; to allow it, start the server with --allowed-hosts and that name"
        )
        refusal = ServerError(421, message, code="host_not_allowed")
        await refusal.response_to(scope["path"])(scope, receive, send)

    def _allows(self, name: str | None) -> bool:
        if ANY in self._hosts or name in self._hosts:
            return True
        try:
            ip_address(name or "")
        except ValueError:
            return False
        return True


def name_of(host: str) -> str | None:
    """The name in a `Host` header, in lower case and without the port; None if the header is malformed."""
    host_match = HOST.fullmatch(host)
    return (host_match[1] or host_match[2]).lower().removesuffix(".") if host_match else None


def own_names(host: str) -> tuple[str, ...]:
    """The names of a server: localhost, and its host; if it listens at all addresses, the machine's name."""
    return ("localhost", (socket.gethostname() if host in ALL_ADDRESSES else host).lower())


PROTECTED = ("/v1", "/tokenize", "/detokenize")
"""Prefixes of the paths that need a key; health, metrics and the playground's page need none."""


class ApiKeys(AuthenticationBackend):
    """Authenticates requests by API key."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [*map(_digest, keys)]

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        """Check the key of a request in constant time; the user's name is the digest of the key.

        Raises:
            AuthenticationError: the key is missing or wrong.
        """
        path = conn.url.path
        if not any(path == prefix or path.startswith(f"{prefix}/") for prefix in PROTECTED):
            return None
        scheme, api_key = get_authorization_scheme_param(conn.headers.get("authorization"))
        if scheme.lower() != "bearer" or not api_key:
            api_key = conn.headers.get("x-api-key")
        if not api_key:
            raise AuthenticationError(
                "the request has no API key; send the header Authorization: Bearer KEY or X-Api-Key: KEY"
            )
        key_digest = _digest(api_key)
        if not sum(hmac.compare_digest(key_digest, digest) for digest in self._digests):
            raise AuthenticationError("the API key is wrong")
        return AuthCredentials(), SimpleUser(key_digest.hex())


def refuse(conn: HTTPConnection, error: AuthenticationError) -> Response:
    """The reply (401) to a request without a valid key."""
    headers = {"WWW-Authenticate": "Bearer"}
    return ServerError(401, str(error), code="invalid_api_key", headers=headers).response_to(conn.url.path)


def _digest(key: str) -> bytes:
    """The SHA-256 digest of a key; unlike the key, it always has the same length."""
    return sha256(key.encode(errors="surrogateescape")).digest()
