"""Fetches images from addresses, without reaching machines that only this one can reach."""

import asyncio
import socket
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urljoin, urlsplit

from drafttree.core.errors import InputError
from drafttree.images.image_file import ImageLimits

if TYPE_CHECKING:
    import httpx

MOST_REDIRECTS = 3
TRANSLATED_NETWORKS = [
    *map(ip_network, ("::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16", "fec0::/10"))
]
"""IPv6 networks whose addresses stand for others, perhaps for those of local machines."""
_resolvers = ThreadPoolExecutor(8, "image-hosts")
"""Look up names of hosts, so that slow ones do not hold other threads."""


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
        """The file at an address, for callers without an event loop; errors are those of `fetch`."""
        with ThreadPoolExecutor(1, "image") as thread:  # the caller's thread may run a loop, as in a notebook
            return thread.submit(asyncio.run, self.fetch(url, limits, name)).result()

    async def fetch(self, url: str, limits: ImageLimits, name: str) -> bytes:
        """The file at an address.

        Raises:
            InputError: the host is not allowed or not public, does not answer in time, or sends an error or too many
                bytes.
        """
        import httpx  # an extra brings it

        try:
            async with asyncio.timeout(self.seconds):
                for _ in range(MOST_REDIRECTS + 1):
                    content = await self._request(url, limits, name)
                    if isinstance(content, bytes):
                        return content
                    url = urljoin(url, content)
        except InputError:
            raise
        except TimeoutError:
            raise InputError(f"{name} cannot be fetched within {self.seconds:g} seconds") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:  # ValueError: no address at all
            raise InputError(f"{name} cannot be fetched: {type(error).__name__}: {error}") from error
        raise InputError(f"{name} is redirected more than {MOST_REDIRECTS} times")

    async def _request(self, url: str, limits: ImageLimits, name: str) -> bytes | str:
        """The file at an address, or where it redirects to. Errors are those of `fetch`, of httpx, and ValueError."""
        import httpx

        split_url = urlsplit(url)
        host = split_url.hostname
        if split_url.scheme not in ("http", "https") or not host:
            raise InputError(f"{name} has the address {url[:200]!r}; give one that begins with http:// or https://")
        if self.hosts and not any(_is_within(host, allowed_host.lower()) for allowed_host in self.hosts):
            raise InputError(f"{name} is at {host!r}, which is not among the allowed hosts")
        async with httpx.AsyncClient(trust_env=False, timeout=self.seconds) as client:
            *other_addresses, last_address = await _public_addresses(split_url, name)
            for address in other_addresses:
                try:
                    return await _download(client, split_url, address, limits, name)
                except httpx.ConnectError:
                    continue
            return await _download(client, split_url, last_address, limits, name)


def _is_within(host: str, allowed_host: str) -> bool:
    return host == allowed_host or host.endswith(f".{allowed_host}")


def _port(url: SplitResult) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


async def _download(
    client: "httpx.AsyncClient", url: SplitResult, address: IPv4Address | IPv6Address, limits: ImageLimits, name: str
) -> bytes | str:
    """The file that an address of the host sends, or where it redirects to.

    Raises:
        InputError: the host sends an error, too many bytes, or a file that it has compressed.
    """
    import httpx

    shown_address = f"[{address}]" if address.version == 6 else str(address)
    target = httpx.URL(url.geturl()).copy_with(host=shown_address, port=_port(url))
    headers = {"Host": url.netloc.rpartition("@")[2], "Accept": "image/*", "Accept-Encoding": "identity"}
    extensions = {"sni_hostname": url.hostname}
    async with client.stream("GET", target, headers=headers, extensions=extensions) as response:
        if response.has_redirect_location:
            return response.headers["location"]
        if response.status_code != httpx.codes.OK:
            raise InputError(f"{name} cannot be fetched: its host answers {response.status_code}")
        if (encoding := response.headers.get("content-encoding", "identity").lower()) != "identity":
            raise InputError(f"{name} cannot be fetched: its host sends it as {encoding[:40]!r}")
        content = bytearray()
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) > limits.bytes:
                raise InputError(f"{name} has more than {limits.bytes:,} bytes, which are the most that are read")
        return bytes(content)


async def _public_addresses(url: SplitResult, name: str) -> list[IPv4Address | IPv6Address]:
    """The addresses of a host, IPv4 first. Requests go to these, so that no other address can take their place.

    Raises:
        InputError: one of them is not public.
    """
    loop = asyncio.get_running_loop()
    host = url.hostname
    entries = await loop.run_in_executor(
        _resolvers, lambda: socket.getaddrinfo(host, _port(url), type=socket.SOCK_STREAM)
    )
    addresses = {ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries}
    if not all(map(_is_public, addresses)):
        raise InputError(f"{name} is at {host!r}, which is not a public host")
    return sorted(addresses, key=lambda address: (address.version, int(address)))


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    is_translated = any(address in network for network in TRANSLATED_NETWORKS if network.version == address.version)
    return address.is_global and not address.is_multicast and not is_translated
