"""A server in a thread or a process, and replies checked against the types of the installed openai package."""

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter

from drafttree.interfaces.server.lifecycle import Connection

Kind = TypeVar("Kind", bound=BaseModel)
OWN = {"lossless", "lossy", "quantization", "timings"}
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


def serve_process() -> tuple[subprocess.Popen[str], str]:
    """A process that serves the embedded pair, and its address."""
    command = [sys.executable, "-m", "drafttree", "serve", "--port", "0", "--dtype", "float32"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    found = re.search(r"http://\S+", process.stderr.readline())
    assert found
    return process, found[0]


def strict(kind: type[Kind], reply: Any) -> Kind:
    """A reply as a type of a client's package, without lenience: no other types, no fields that it does not have.

    Only the fields of `OWN` may stand beside them, at the top of a reply or of the reply that an event has.
    """
    known = _without_own({name: _without_own(value) for name, value in reply.items()})
    found = _adapter(kind).validate_json(json.dumps(known), strict=True)
    _refuse_unknown(found)
    return found


@lru_cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _without_own(part: Any) -> Any:
    return {name: value for name, value in part.items() if name not in OWN} if isinstance(part, dict) else part


def _refuse_unknown(part: Any) -> None:
    if isinstance(part, BaseModel):
        assert not part.model_extra, f"{type(part).__name__} has no {part.model_extra}"
        for value in part.__dict__.values():
            _refuse_unknown(value)
    elif isinstance(part, list | tuple):
        for each in part:
            _refuse_unknown(each)


def named_events(text: str) -> list[Any]:
    """The data of server-sent events, whose type is the name of the event as well."""
    found = []
    for block in filter(None, text.split("\n\n")):
        name, data = (line.partition(": ")[2] for line in block.splitlines() if not line.startswith(":"))
        found.append(json.loads(data))
        assert found[-1]["type"] == name
    return found


def events(text: str) -> list[Any]:
    """The data of server-sent events, which must end with [DONE]."""
    found = [line.removeprefix("data: ") for line in text.splitlines() if line and not line.startswith(":")]
    assert found[-1] == "[DONE]"
    return [json.loads(each) for each in found[:-1]]
