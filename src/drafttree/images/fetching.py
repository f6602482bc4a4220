"""Fetches images from addresses, without reaching machines that only this one can reach."""

import ipaddress
import socket
import time
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from drafttree.core.errors import InputError
from drafttree.images.image_file import ImageLimits

MOST_REDIRECTS = 3


@dataclass(frozen=True)
class Fetcher:
    """Fetches images within limits. Every address on the way must belong to a public host.

    Attributes:
        hosts: the only hosts that are asked, with their subdomains; empty for all public ones.
        seconds: for the whole download.
    """

    hosts: Collection[str] = ()
    seconds: float = 10.0

    def __call__(self, url: str, limits: ImageLimits, name: str) -> bytes:
        """The file at an address.

        Raises:
            InputError: the host is not allowed or not public, does not answer in time, or sends an error or too many
                bytes.
        """
        import httpx  # an extra brings it

        deadline = time.monotonic() + self.seconds
        for _ in range(MOST_REDIRECTS + 1):
            try:
                content = self._request(url, limits, name, deadline)
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                raise InputError(f"{name} cannot be fetched: {type(error).__name__}: {error}") from error
            if isinstance(content, bytes):
                return content
            url = urljoin(url, content)
        raise InputError(f"{name} is redirected more than {MOST_REDIRECTS} times")

    def _request(self, url: str, limits: ImageLimits, name: str, deadline: float) -> bytes | str:
        """The file at an address, or where it redirects to."""
        import httpx

        split_url = urlsplit(url)
        host = split_url.hostname
        if split_url.scheme not in ("http", "https") or not host:
            raise InputError(f"{name} has the address {url!r}; give one that begins with http:// or https://")
        if self.hosts and not any(host == allowed or host.endswith(f".{allowed}") for allowed in self.hosts):
            raise InputError(f"{name} is at {host!r}, which is not among the allowed hosts")
        port = split_url.port or (443 if split_url.scheme == "https" else 80)
        address = _public_address(host, port, name)
        shown_address = f"[{address}]" if ":" in address else address
        target = httpx.URL(url).copy_with(host=shown_address, port=port)
        headers = {"Host": split_url.netloc.rpartition("@")[2], "Accept": "image/*"}
        with (
            httpx.Client(trust_env=False, timeout=max(0.1, deadline - time.monotonic())) as client,
            client.stream("GET", target, headers=headers, extensions={"sni_hostname": host}) as response,
        ):
            if response.is_redirect:
                return response.headers["location"]
            if response.is_error:
                raise InputError(f"{name} cannot be fetched: its host answers {response.status_code}")
            content = bytearray()
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > limits.bytes:
                    raise InputError(f"{name} has more than {limits.bytes:,} bytes, which are the most that are read")
                if time.monotonic() > deadline:
                    raise InputError(f"{name} cannot be fetched within {self.seconds:g} seconds")
            return bytes(content)


def _public_address(host: str, port: int, name: str) -> str:
    """An address of a host, which the request then goes to, so that no other one can take its place.

    Raises:
        InputError: one of the host's addresses is not public.
    """
    addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    for address in addresses:
        if not ipaddress.ip_address(address.partition("%")[0]).is_global:
            raise InputError(f"{name} is at {host!r}, which is not a public host")
    return min(addresses)
