"""A frontend of Dynamo and workers on this machine, and streams of a client."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

FRONTEND = ["-m", "dynamo.frontend", "--discovery-backend", "file", "--request-plane", "tcp", "--migration-limit", "3"]
WORKER = ["-m", "drafttree", "worker", "embedded", "--discovery", "file", "--dtype", "float32"]
START_SECONDS = 600
SERVES = re.compile(r"worker (\d+) serves")


@dataclass
class Streamed:
    """What came of a stream.

    Attributes:
        text: of all chunks.
        usage: of the last one.
        finish_reason: of the text.
        times: when each chunk came.
    """

    text: str = ""
    usage: dict[str, int] | None = None
    finish_reason: str | None = None
    times: list[float] = field(default_factory=list)

    @property
    def outcome(self) -> tuple[str, dict[str, int] | None, str | None]:
        """What must not depend on where it was written."""
        return self.text, self.usage, self.finish_reason

    @property
    def gap(self) -> float:
        """Seconds between two chunks at most."""
        return max((after - before for before, after in zip(self.times, self.times[1:], strict=False)), default=0.0)


class Fleet:
    """Processes that are ended with the block.

    Args:
        folder: for logs and discovery.
        workers: how many.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._folder, self._count = folder, workers
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Fleet":
        try:
            self._run("frontend", [*FRONTEND, "--http-host", "127.0.0.1", "--http-port", str(self._port)])
            for number in range(self._count):
                self._run(f"worker-{number}", WORKER)
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def url(self) -> str:
        """Of the frontend."""
        return f"http://127.0.0.1:{self._port}/v1"

    def log(self, name: str) -> str:
        """What a process has printed: "frontend", or "worker-0" and so on."""
        return (self._folder / f"{name}.log").read_text()

    def serving(self, number: int) -> int | None:
        """The id of the process that writes a worker's texts, None before it does."""
        found = SERVES.search(self.log(f"worker-{number}"))
        return int(found[1]) if found else None

    def kill(self, number: int, *, supervisor: bool) -> None:
        """End a worker by kill -9, with its supervisor or without."""
        serving = self.serving(number)
        assert serving is not None
        if supervisor:
            self._processes[1 + number].kill()
        os.kill(serving, signal.SIGKILL)

    def _run(self, name: str, arguments: Sequence[str]) -> None:
        own = {
            "OMP_NUM_THREADS": "1",
            "DYN_FILE_KV": str(self._folder / "discovery"),
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "lo",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            command = [sys.executable, *arguments]
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | own))

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._ready():
            ended = [process for process in self._processes if process.poll() is not None]
            logs = "\n".join(path.read_text() for path in sorted(self._folder.glob("*.log")))
            assert not ended, logs
            assert time.monotonic() < deadline, logs
            time.sleep(0.5)

    def _ready(self) -> bool:
        registered = list((self._folder / "discovery").glob("v1/instances/*"))
        if len(registered) < self._count:
            return False
        try:
            return bool(httpx.get(f"{self.url}/models").json()["data"])
        except httpx.TransportError:
            return False


async def stream(client: httpx.AsyncClient, url: str, request: dict[str, Any], streamed: Streamed) -> None:
    """Read a stream to its end."""
    body = {"model": "embedded", "stream": True, "stream_options": {"include_usage": True}, **request}
    async with client.stream("POST", f"{url}/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                _take(json.loads(line.removeprefix("data: ")), streamed)


def _take(event: dict[str, Any], streamed: Streamed) -> None:
    assert "error" not in event, event
    streamed.times.append(time.perf_counter())
    streamed.usage = event.get("usage") or streamed.usage
    for choice in event["choices"]:
        streamed.text += choice["text"]
        streamed.finish_reason = choice.get("finish_reason") or streamed.finish_reason


async def stream_all(url: str, requests: Sequence[dict[str, Any]], streams: Sequence[Streamed]) -> None:
    """Read streams that are open at the same time."""
    async with httpx.AsyncClient(timeout=300) as client, asyncio.TaskGroup() as group:
        for request, streamed in zip(requests, streams, strict=True):
            group.create_task(stream(client, url, request, streamed))
