"""The texts of one request: submitted together, read as they grow, and counted."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import product
from typing import Any

from drafttree.engine.batching import Handle
from drafttree.engine.generation import Chunk
from drafttree.engine.metrics import Metrics, Round
from drafttree.interfaces.server.answer import Answer
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.protocol.replies import CompletionTokensDetails, PromptTokensDetails, Usage
from drafttree.interfaces.server.serving import ServingContext
from drafttree.interfaces.server.text_pieces import Piece, TextPieces


class Choices:
    """The texts of one request.

    Args:
        prompts: token ids of each prompt.
        handles: one for each text, as many for each prompt, those of the first prompt first.
        wanted: False where the reply has no text, only what is known of the prompts.

    Attributes:
        answers: what reads the texts and knows which tokens are thinking; none where nothing does.
    """

    def __init__(self, prompts: Sequence[list[int]], handles: Sequence[Handle], *, wanted: bool = True) -> None:
        self._prompts, self._handles = prompts, handles
        self._texts = [TextPieces(wanted=wanted) for _ in handles]
        self._drafted = [DraftedTokens(handle.metrics.rounds) for handle in handles]
        self._generated = self._accepted = 0
        self.answers: Sequence[Answer] = ()

    @classmethod
    async def submit(
        cls,
        serving: ServingContext,
        prompts: Sequence[list[int]],
        options: Sequence[dict[str, Any]],
        seeds: Sequence[int | None],
        *,
        wanted: bool = True,
    ) -> "Choices":
        """Submit all texts of a request, or none of them.

        Args:
            serving: the served model.
            prompts: token ids of each prompt.
            options: the options of `Engine.submit`, for each prompt.
            seeds: one for each text of a prompt.
            wanted: False where the reply has no text, only what is known of the prompts.

        Raises:
            ServerError: there are too many for the server's queue, now or ever, or as for `Grammars.made`.
            DraftTreeError: as for `Engine.submit`.
        """
        handles: list[Handle] = []
        group = object()  # however many they are, they take turns with other requests' texts
        texts = len(prompts) * len(seeds)
        if texts > (most := serving.settings.max_texts):
            raise ServerError(400, f"{texts} texts are more than the server takes at once, {most}", param="n")
        async with serving.admission.preparing():
            options = [await serving.grammars.made(each) for each in options]
        try:
            for (prompt, given), seed in product(zip(prompts, options, strict=True), seeds):
                handles.append(await serving.admission.submit(prompt, **given, seed=seed, group=group))
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise
        return cls(prompts, handles, wanted=wanted)

    async def read(self) -> AsyncGenerator[tuple[int, Piece]]:
        """The pieces of all texts as they come, each with its place among the texts.

        Leaving it early cancels all texts.
        """
        try:
            async with aclosing(_merged(self._handles)) as chunks:
                async for place, chunk in chunks:
                    piece = self._texts[place].piece(chunk)
                    self._generated += piece.generated
                    self._accepted += piece.accepted
                    yield place, piece
        finally:
            for handle in self._handles:
                handle.cancel()

    @property
    def usage(self) -> Usage:
        """The tokens so far."""
        metrics, prompt = [handle.metrics for handle in self._handles], sum(map(len, self._prompts))
        each = len(metrics) // len(self._prompts)
        firsts = range(0, len(metrics), each)
        reused = sum(_not_read(metrics[first : first + each]) for first in firsts)
        drafted = sum(each.count() for each in self._drafted)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=self._generated,
            total_tokens=prompt + self._generated,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=reused),
            completion_tokens_details=CompletionTokensDetails(
                accepted_prediction_tokens=self._accepted,
                rejected_prediction_tokens=max(drafted - self._accepted, 0),
                reasoning_tokens=sum(answer.reasoning_tokens for answer in self.answers),
            ),
        )


def _not_read(texts: Sequence[Metrics]) -> int:
    """Tokens of a prompt that none of its texts had to read: what one of them reads, the others take from it."""
    return min((metrics.reused_tokens for metrics in texts if metrics.rounds), default=0)


class DraftedTokens:
    """Counts the drafted tokens of a text; what it costs does not grow with the text.

    Args:
        rounds: the rounds of the text; the list grows while it is written.
    """

    def __init__(self, rounds: list[Round]) -> None:
        self._rounds, self._read, self._tokens = rounds, 0, 0

    def count(self) -> int:
        """The drafted tokens of all rounds so far."""
        new = self._rounds[self._read :]
        self._read += len(new)
        self._tokens += sum(each.nodes - 1 for each in new)
        return self._tokens


async def _merged(handles: Sequence[Handle]) -> AsyncGenerator[tuple[int, Chunk]]:
    """The chunks of all handles as they come, each with the place of its handle."""
    news: asyncio.Queue[tuple[int, Chunk] | Exception | None] = asyncio.Queue(1)  # the rest waits in the handles

    async def read(place: int, handle: Handle) -> None:
        try:
            async for chunk in handle:
                await news.put((place, chunk))
            await news.put(None)
        except Exception as error:
            await news.put(error)

    readers = [asyncio.create_task(read(place, handle)) for place, handle in enumerate(handles)]
    try:
        running = len(readers)
        while running:
            match await news.get():
                case None:
                    running -= 1
                case Exception() as error:
                    raise error
                case found:
                    yield found
    finally:
        for reader in readers:
            reader.cancel()
