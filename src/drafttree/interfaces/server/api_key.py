"""The key that requests carry as `Authorization: Bearer KEY`."""

import hmac
from hashlib import sha256

from fastapi.security.utils import get_authorization_scheme_param
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.requests import HTTPConnection
from starlette.responses import Response

from drafttree.interfaces.server.errors import ServerError

PROTECTED = "/v1"
"""Where the paths begin that need the key; health, metrics and the page of the playground do not."""


class ApiKey(AuthenticationBackend):
    """Lets in who has the key.

    Args:
        key: that is asked for.
    """

    def __init__(self, key: str) -> None:
        self._digest = _digest(key)

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        """Check the key of a request, in a time that does not depend on how much of it is right.

        Raises:
            AuthenticationError: it is missing or wrong.
        """
        path = conn.url.path
        if path != PROTECTED and not path.startswith(f"{PROTECTED}/"):
            return None
        scheme, given = get_authorization_scheme_param(conn.headers.get("authorization"))
        if scheme.lower() != "bearer" or not given:
            raise AuthenticationError("there is no API key; send the header Authorization: Bearer KEY")
        if not hmac.compare_digest(_digest(given), self._digest):
            raise AuthenticationError("the API key is wrong")
        return AuthCredentials(), SimpleUser("client")


def refuse(conn: HTTPConnection, error: AuthenticationError) -> Response:
    """The reply to a request that is not let in."""
    headers = {"WWW-Authenticate": "Bearer"}
    return ServerError(401, str(error), code="invalid_api_key", headers=headers).response


def _digest(key: str) -> bytes:
    """Of one length, whatever the key's is."""
    return sha256(key.encode(errors="surrogateescape")).digest()
