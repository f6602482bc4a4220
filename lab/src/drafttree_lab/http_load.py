"""Concurrent clients of an OpenAI-compatible server, and how long each waited for its tokens."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from drafttree.core.errors import InputError

COMPLETIONS = "/v1/completions"
STREAMED = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
PATIENCE = 600.0
"""Timeout in seconds for a silent server."""


@dataclass
class ServedText:
    """A text that a client receives, with the times of its tokens.

    Attributes:
        text: the text received so far.
        tokens: number of tokens received so far.
        first_token: seconds from the request to the first token.
        gaps: seconds between tokens; tokens of one chunk share its time equally.
        prompt_tokens: length of the prompt, as the server reports it.
        cached_tokens: prompt tokens that the server took from its prefix cache.
    """

    text: str = ""
    tokens: int = 0
    first_token: float = 0.0
    gaps: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def add(self, text: str, tokens: int, seconds: float) -> None:
        """Add a chunk.

        Args:
            text: text of the chunk.
            tokens: number of tokens including the chunk.
            seconds: seconds since the last chunk with tokens, or since the request.
        """
        new_tokens = tokens - self.tokens
        if not self.tokens:
            self.first_token = seconds
        else:
            self.gaps += [seconds / new_tokens] * new_tokens
        self.text += text
        self.tokens = tokens


@dataclass(frozen=True)
class LoadRun:
    """The texts of several concurrent clients.

    Attributes:
        texts: texts in the order of the prompts.
        seconds: seconds from the first request to the last token.
    """

    texts: list[ServedText]
    seconds: float

    @property
    def tokens(self) -> int:
        """The number of tokens of all texts."""
        return sum(text.tokens for text in self.texts)


async def run_load(address: str, prompts: Sequence[str], at_once: int, options: Mapping[str, Any]) -> LoadRun:
    """Request the texts of some prompts from a server; each client takes the next prompt when its text has ended.

    Args:
        address: address of the server.
        prompts: the prompts.
        at_once: number of concurrent clients.
        options: options of all requests; text i has seed + i.

    Raises:
        InputError: the server refused a request or closed the connection.
    """
    texts = [ServedText() for _ in prompts]
    queue = iter(enumerate(prompts))
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=PATIENCE) as client:

        async def ask() -> None:
            for index, prompt in queue:
                body = {**options, **STREAMED, "prompt": prompt, "seed": options.get("seed", 0) + index}
                await _read(client, body, texts[index])

        start = time.perf_counter()
        try:
            await asyncio.gather(*(ask() for _ in range(at_once)))
        except httpx.HTTPError as error:
            raise InputError(f"{address}: {error or type(error).__name__}") from None
        return LoadRun(texts, time.perf_counter() - start)


async def _read(client: httpx.AsyncClient, body: Mapping[str, Any], text: ServedText) -> None:
    """Read a text to its end.

    Raises:
        InputError: the server refused the request.
    """
    previous_arrival = time.perf_counter()
    async with client.stream("POST", COMPLETIONS, json=body) as reply:
        if reply.status_code != 200:
            raise InputError(f"{client.base_url}: {reply.status_code} {(await reply.aread()).decode()[:300]}")
        async for line in reply.aiter_lines():
            for chunk in _chunks(line):
                arrival = time.perf_counter()
                usage = chunk["usage"]
                tokens = usage["completion_tokens"]
                text.prompt_tokens = usage["prompt_tokens"]
                text.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
                if tokens > text.tokens:
                    text.add("".join(choice["text"] for choice in chunk["choices"]), tokens, arrival - previous_arrival)
                    previous_arrival = arrival
                else:
                    text.text += "".join(choice["text"] for choice in chunk["choices"])


def _chunks(line: str) -> Iterator[Any]:
    """The chunk of a line of server-sent events, if it has one.

    Raises:
        InputError: the line reports an error.
    """
    data = line.removeprefix("data: ")
    if data == line or data == "[DONE]":
        return
    chunk = json.loads(data)
    if "error" in chunk:
        raise InputError(f"a stream ended with an error: {chunk['error']['message']}")
    yield chunk
