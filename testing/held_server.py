"""A server of a toy model whose passes can be held up, and clients that go away."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI

from drafttree import Decoder
from drafttree.engine.batching import Engine
from drafttree.interfaces.server.admission import Admission
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from testing.batches import TOKENIZER
from testing.held_model import HeldModel
from testing.live_server import serving
from testing.toy import Table

VOCAB = len(TOKENIZER)
COMPLETIONS = "/v1/completions"
LONG = {"prompt": [1, 2, 3], "max_tokens": 2000, "temperature": 0}
"""A text that does not end while a test runs."""
SAID = [{"role": "user", "content": "x"}]
STREAMS = {
    COMPLETIONS: LONG,
    "/v1/chat/completions": {"messages": SAID, "max_tokens": 2000},
    "/v1/responses": {"input": "x", "max_output_tokens": 2000},
    "/v1/messages": {"messages": SAID, "max_tokens": 2000},
}
"""Such a text by each route that streams; the last three need a tokenizer with a chat template."""
PATIENCE = 20


@dataclass
class HeldServer:
    """A server.

    Attributes:
        app: that is served.
        model: behind it.
        address: of the server, empty where it does not listen.
    """

    app: FastAPI
    model: HeldModel
    address: str = ""

    @property
    def engine(self) -> Engine:
        return self.app.state.serving.engine

    @property
    def admission(self) -> Admission:
        return self.app.state.serving.admission


def held_app(**settings: Any) -> HeldServer:
    """An application that does not listen; no token ends its texts."""
    model = HeldModel(Table(VOCAB, order=1), VOCAB)
    decoder = Decoder(model, tokenizer=TOKENIZER)
    return HeldServer(create_app(decoder, ServerSettings("toy", **settings)), model)


@contextmanager
def held_server(**settings: Any) -> Iterator[HeldServer]:
    """A server at a free port; what still runs in the end is let go."""
    held = held_app(**settings)
    with serving(held.app) as held.address:
        try:
            yield held
        finally:
            held.model.go.set()


def ask(address: str, path: str = COMPLETIONS, **body: Any) -> socket.socket:
    """A connection on which a request was sent whose answer nobody reads yet."""
    url, content = urlsplit(address), json.dumps(body).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the least there is
    connection.settimeout(PATIENCE)
    connection.connect((url.hostname, url.port))
    head = f"POST {path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def wait_until(true: Callable[[], object]) -> None:
    """Wait until something is true."""
    ends = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < ends, "it does not become true"
        time.sleep(0.005)
