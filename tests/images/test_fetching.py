"""Addresses of images: public hosts alone, within limits, whatever redirects say."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pytest

from drafttree.core.errors import InputError
from drafttree.images import fetching
from drafttree.images.fetching import Fetcher
from drafttree.images.image_file import ImageLimits

LIMITS = ImageLimits(bytes=1000)
CLOSED = "127.0.0.2"
"""An address at which nothing answers."""
ended = threading.Event()


class Handler(BaseHTTPRequestHandler):
    """Answers by the path: a file, a redirect, an error, or more bytes than are read."""

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/file":
                self._answer(200, b"content")
            case "/again":
                self._redirect("/file")
            case "/local":
                self._redirect("http://127.0.0.1:1/secret")
            case "/loop":
                self._redirect("/loop")
            case "/large":
                self._answer(200, b"\0" * 5000)
            case "/packed":
                self._answer(200, b"content", ("Content-Encoding", "gzip, gzip"))
            case "/nowhere":
                self._answer(302, b"")
            case "/unchanged":
                self._answer(304, b"")
            case "/odd":
                self._redirect("http://x:99999/")
            case "/dripping":
                self._drip()
            case _:
                self._answer(404, b"")

    def _drip(self) -> None:
        """Send lines of a header without an end."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        with suppress(OSError):
            while not ended.wait(0.05):
                self.wfile.write(b"X: x\r\n")
                self.wfile.flush()

    def _answer(self, status: int, content: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _redirect(self, location: str) -> None:
        self.send_response(302)
        self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def host(monkeypatch) -> Iterator[str]:
    """The address of a host that is taken for a public one."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    find_addresses = fetching._public_addresses

    async def public_addresses(url: SplitResult, image: str) -> list[Any]:
        if url.hostname == "images.example":
            return [ip_address(CLOSED), ip_address("127.0.0.1")]
        return await find_addresses(url, image)

    monkeypatch.setattr(fetching, "_public_addresses", public_addresses)
    ended.clear()
    yield f"http://images.example:{server.server_port}"
    ended.set()
    server.shutdown()
    server.server_close()


def fetched(url: str, **options) -> bytes:
    return Fetcher(**options)(url, LIMITS, "image 1")


def test_a_file_is_fetched_and_redirects_are_followed(host):
    assert fetched(f"{host}/file") == b"content"
    assert fetched(f"{host}/again") == b"content"
    assert fetched(f"{host}/file", hosts=["Example"]) == b"content"


def test_a_loop_that_runs_in_the_callers_thread_does_not_matter(host):
    async def fetch() -> bytes:
        return fetched(f"{host}/file")

    assert asyncio.run(fetch()) == b"content"


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("/local", {}, "image 1 is at '127.0.0.1', which is not a public host"),
        ("/loop", {}, "image 1 is redirected more than 3 times"),
        ("/large", {}, "image 1 has more than 1,000 bytes"),
        ("/none", {}, "image 1 cannot be fetched: its host answers 404"),
        ("/file", {"hosts": ["other.example"]}, "which is not among the allowed hosts"),
        ("/packed", {}, "image 1 cannot be fetched: its host sends it as 'gzip, gzip'"),
        ("/nowhere", {}, "its host answers 302"),
        ("/unchanged", {}, "its host answers 304"),
        ("/odd", {}, "image 1 cannot be fetched: ValueError: Port out of range"),
        ("/dripping", {"seconds": 0.5}, "image 1 cannot be fetched within 0.5 seconds"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(host, path, options, message):
    with pytest.raises(InputError, match=message) as refusal:
        fetched(f"{host}{path}", **options)
    assert str(refusal.value).count("image 1") == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/a.png",
        "http://localhost/a.png",
        "http://[::1]/a.png",
        "http://10.0.0.1/a.png",
        "http://169.254.169.254/latest/meta-data",
        "http://0.0.0.0/a.png",
        "http://[::ffff:127.0.0.1]/a.png",
        "http://[::127.0.0.1]/a.png",
        "http://[64:ff9b::7f00:1]/a.png",
        "http://[2002:7f00:1::]/a.png",
        "http://[fec0::1]/a.png",
        "http://224.0.0.1/a.png",
        "http://2130706433/a.png",
    ],
)
def test_hosts_that_only_this_machine_reaches_are_refused(url):
    with pytest.raises(InputError, match="which is not a public host"):
        fetched(url)


def test_a_name_with_a_local_address_among_public_ones_is_refused(monkeypatch):
    entries = [(0, 0, 0, "", (address, 80)) for address in ("93.184.216.34", "192.168.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    with pytest.raises(InputError, match="which is not a public host"):
        fetched("http://rebound.example/a.png")


def test_addresses_of_version_4_are_tried_first(monkeypatch):
    entries = [(0, 0, 0, "", (address, 80)) for address in ("2606:2800::1", "93.184.216.34")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    addresses = asyncio.run(fetching._public_addresses(urlsplit("http://images.example/a.png"), "image 1"))
    assert [str(address) for address in addresses] == ["93.184.216.34", "2606:2800::1"]


@pytest.mark.parametrize("host", ["h:99999", "[::1", "[x]", "a..b", f"{'x' * 70}.example"])
def test_what_is_no_host_is_refused(host):
    with pytest.raises(InputError, match=r"image 1 (cannot be fetched|has the address)"):
        fetched(f"http://{host}/a.png")


@pytest.mark.parametrize("url", ["ftp://example.org/a.png", "http:///a.png"])
def test_other_addresses_are_refused(url):
    with pytest.raises(InputError, match="give one that begins with http"):
        fetched(url)
