"""A server in a thread at a free port, and replies checked against the types of the installed openai package."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter

from drafttree.interfaces.server.connection import Connection

Kind = TypeVar("Kind", bound=BaseModel)
OWN = {"lossless", "lossy", "quantization"}
"""Fields of a whole reply and of a chunk that are not OpenAI's."""


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Serve an application; its address."""
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:  # asyncio lets parts of others wait
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, http=Connection, log_level="warning", timeout_keep_alive=600))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


def strict(kind: type[Kind], reply: Any) -> Kind:
    """A reply as a type of the openai package, without lenience: no other types, no fields that it does not have.

    Only the fields of `OWN` may stand beside them, at the top.
    """
    own = {name: value for name, value in reply.items() if name not in OWN}
    found = TypeAdapter(kind).validate_json(json.dumps(own), strict=True)
    _refuse_unknown(found)
    return found


def _refuse_unknown(part: Any) -> None:
    if isinstance(part, BaseModel):
        assert not part.model_extra, f"{type(part).__name__} has no {part.model_extra}"
        for value in part.__dict__.values():
            _refuse_unknown(value)
    elif isinstance(part, list | tuple):
        for each in part:
            _refuse_unknown(each)


def events(text: str) -> list[Any]:
    """The data of server-sent events, which must end with [DONE]."""
    found = [line.removeprefix("data: ") for line in text.splitlines() if line and not line.startswith(":")]
    assert found[-1] == "[DONE]"
    return [json.loads(each) for each in found[:-1]]
