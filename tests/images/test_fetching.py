"""Addresses of images: public hosts alone, within limits, whatever redirects say."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from drafttree.core.errors import InputError
from drafttree.images import fetching
from drafttree.images.fetching import Fetcher
from drafttree.images.image_file import ImageLimits

LIMITS = ImageLimits(bytes=1000)


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
            case _:
                self._answer(404, b"")

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
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
    check = fetching._public_address

    def public_address(name: str, port: int, image: str) -> str:
        return "127.0.0.1" if name == "images.example" else check(name, port, image)

    monkeypatch.setattr(fetching, "_public_address", public_address)
    yield f"http://images.example:{server.server_port}"
    server.shutdown()
    server.server_close()


def fetched(url: str, **options) -> bytes:
    return Fetcher(**options)(url, LIMITS, "image 1")


def test_a_file_is_fetched_and_redirects_are_followed(host):
    assert fetched(f"{host}/file") == b"content"
    assert fetched(f"{host}/again") == b"content"
    assert fetched(f"{host}/file", hosts=["example"]) == b"content"


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("/local", {}, "image 1 is at '127.0.0.1', which is not a public host"),
        ("/loop", {}, "image 1 is redirected more than 3 times"),
        ("/large", {}, "image 1 has more than 1,000 bytes"),
        ("/none", {}, "image 1 cannot be fetched: its host answers 404"),
        ("/file", {"hosts": ["other.example"]}, "which is not among the allowed hosts"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(host, path, options, message):
    with pytest.raises(InputError, match=message):
        fetched(f"{host}{path}", **options)


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


@pytest.mark.parametrize("url", ["ftp://example.org/a.png", "http:///a.png"])
def test_other_addresses_are_refused(url):
    with pytest.raises(InputError, match="give one that begins with http"):
        fetched(url)
