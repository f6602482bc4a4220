"""The names by which a server may be called, so that no page of another site reaches it by its own (DNS rebinding)."""

import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from drafttree.interfaces.server.errors import ServerError

ANY = "*"
ALL_ADDRESSES = ("0.0.0.0", "::", "")
HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\s:/@\[\]]+))(?::[0-9]*)?")
"""The header `Host`: an IPv6 address or something else, and perhaps a port."""


class AllowedHosts:
    """Answers 421 to a request that calls the server by another name.

    Addresses are let in: a page of another site would need a name that changes its address. So is a request that names
    no host, as HTTP/1.0 allows and no browser sends.

    Args:
        app: the application behind it.
        hosts: the names, in lower case, or "*" for any.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app, self._hosts = app, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host") if scope["type"] == "http" else None
        if host is None or self._allows(name_of(host)):
            await self._app(scope, receive, send)
            return
        message = f"this server is not called {host!r}; if it should be, start it with --allowed-hosts and that name"
        refusal = ServerError(421, message, code="host_not_allowed")
        await refusal.response_to(scope["path"])(scope, receive, send)

    def _allows(self, name: str | None) -> bool:
        return ANY in self._hosts or (name is not None and (name in self._hosts or _is_address(name)))


def name_of(host: str) -> str | None:
    """The name in a header `Host`, in lower case and without the port; None if there is none."""
    found = HOST.fullmatch(host)
    return (found[1] or found[2]).lower().removesuffix(".") if found else None


def own_names(host: str) -> tuple[str, ...]:
    """The names of a server that listens at a host: its own, localhost, and the machine's if it listens everywhere."""
    return ("localhost", (socket.gethostname() if host in ALL_ADDRESSES else host).lower())


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
