"""The texts of one request: submitted together, read as they grow, and counted."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import product

from drafttree.engine.batching import Handle
from drafttree.engine.generation import Chunk
from drafttree.engine.metrics import ratio
from drafttree.interfaces.server.admission import SHUTTING_DOWN, shutting_down
from drafttree.interfaces.server.answer import Answer, Json, Piece, ScoredToken, scored_tokens
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.serving import ServingContext


class Text:
    """One text, read in pieces.

    A token is given out with the piece that has the last of its characters, so what may still turn out to be a stop
    string shows in no log-probability either. A stop string's own tokens and EOS are no part of the text.

    Args:
        handle: the text in the engine.
        wanted: False to leave out the text: an engine writes one token at least.

    Attributes:
        generated: its tokens so far.
        accepted: those of them that were drafted.
    """

    def __init__(self, handle: Handle, *, wanted: bool = True) -> None:
        self.handle, self._wanted = handle, wanted
        self.generated = self.accepted = 0
        self._held, self._given = deque[ScoredToken](), 0
        self._rounds = self._drafted = 0

    def piece(self, chunk: Chunk) -> Piece:
        """The next piece.

        Raises:
            ServerError: the text ended since the server is shutting down.
        """
        if chunk.logprobs:
            self._held += scored_tokens(chunk.tokens, chunk.logprobs, chunk.top_logprobs)
        reason = chunk.finish_reason
        if reason == SHUTTING_DOWN:
            raise shutting_down()
        if reason not in (None, "stop", "length"):
            raise ServerError(503, f"the text was {reason} before its end", code=reason)
        if not self._wanted:
            return Piece("", finish_reason=reason and "length", prompt=chunk.prompt_logprobs)
        self.generated += len(chunk.tokens)
        self.accepted += sum(chunk.drafted)
        complete = chunk.origins[-1] + 1 - self._given if chunk.origins else 0
        tokens = [self._held.popleft() for _ in range(min(len(self._held), complete))]
        self._given += len(tokens)
        if reason == "length":
            tokens += self._held
        told = (chunk.prompt_logprobs, chunk.stopped_by, chunk.origins)
        return Piece(chunk.text, tokens, reason, len(chunk.tokens), *told)

    @property
    def drafted(self) -> int:
        """The drafted tokens of all rounds so far; counting them again takes no longer for a longer text."""
        new = self.handle.metrics.rounds[self._rounds :]
        self._rounds += len(new)
        self._drafted += sum(each.nodes - 1 for each in new)
        return self._drafted


@dataclass(frozen=True)
class Usage:
    """The tokens of a request.

    Attributes:
        prompt: tokens of the prompts.
        cached: those of them that an earlier text had left there.
        generated: tokens of all texts, EOS tokens included.
        accepted: drafted tokens that became a part of them.
        rejected: drafted tokens that did not.
        reasoning: tokens that are thinking.
    """

    prompt: int
    cached: int
    generated: int
    accepted: int
    rejected: int
    reasoning: int

    @property
    def openai(self) -> Json:
        """As OpenAI's completions have it."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {
                "accepted_prediction_tokens": self.accepted,
                "rejected_prediction_tokens": self.rejected,
                "reasoning_tokens": self.reasoning,
            },
        }


class Texts:
    """The texts of one request.

    Args:
        prompts: token ids of each prompt.
        handles: one for each text, as many for each prompt, those of the first prompt first.
        wanted: False where the reply has no text, only what is known of the prompts.

    Attributes:
        answers: what reads the texts and knows which tokens are thinking; none where nothing does.
        enforced: whether calls conform to the schemas of all tools.
    """

    enforced = True

    def __init__(self, prompts: Sequence[list[int]], handles: Sequence[Handle], *, wanted: bool = True) -> None:
        self._prompts, self._texts = prompts, [Text(handle, wanted=wanted) for handle in handles]
        self.answers: list[Answer] = []

    @classmethod
    async def submit(
        cls,
        serving: ServingContext,
        prompts: Sequence[list[int]],
        options: Sequence[Json],
        seeds: Sequence[int | None],
        cache_salt: str | None,
        *,
        wanted: bool = True,
    ) -> "Texts":
        """Submit all texts of a request, or none of them.

        Args:
            serving: the served model.
            prompts: token ids of each prompt.
            options: the options of `Engine.submit`, for each prompt.
            seeds: one for each text of a prompt.
            cache_salt: as for `Admission.submit`.
            wanted: False where the reply has no text, only what is known of the prompts.

        Raises:
            ServerError: there are too many for the server's queue, now or ever, or as for `Grammars.made`.
            DraftTreeError: as for `Engine.submit`.
        """
        handles: list[Handle] = []
        group = object()  # however many they are, they take turns with other requests' texts
        texts = len(prompts) * len(seeds)
        if texts > (most := serving.admission.most_texts):
            raise ServerError(400, f"{texts} texts are more than the server takes at once, {most}", param="n")
        async with serving.admission.preparing():
            made = [await serving.grammars.made(each) for each in options]
        try:
            for (prompt, given), seed in product(zip(prompts, (each for each, _ in made), strict=True), seeds):
                given = {**given, "seed": seed, "group": group, "cache_salt": cache_salt}
                handles.append(await serving.admission.submit(prompt, **given))
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise
        found = cls(prompts, handles, wanted=wanted)
        found.enforced = all(enforced for _, enforced in made)
        return found

    async def read(self) -> AsyncGenerator[tuple[int, Piece]]:
        """The pieces of all texts as they come, each with its place among the texts.

        Leaving it early cancels all texts.
        """
        handles = [text.handle for text in self._texts]
        try:
            async with aclosing(_merged(handles)) as chunks:
                async for place, chunk in chunks:
                    yield place, self._texts[place].piece(chunk)
        finally:
            for handle in handles:
                handle.cancel()

    @property
    def usage(self) -> Usage:
        """The tokens so far."""
        each = len(self._texts) // len(self._prompts)
        of_prompts = [self._texts[first : first + each] for first in range(0, len(self._texts), each)]
        accepted, drafted = (
            sum(counts) for counts in zip(*((t.accepted, t.drafted) for t in self._texts), strict=True)
        )
        return Usage(
            prompt=sum(map(len, self._prompts)),
            cached=sum(map(_not_read, of_prompts)),
            generated=sum(text.generated for text in self._texts),
            accepted=accepted,
            rejected=max(drafted - accepted, 0),
            reasoning=sum(answer.reasoning_tokens for answer in self.answers),
        )

    @property
    def timings(self) -> Json:
        """How fast they are so far, by llama-server's names; of several texts, the times are the longest one's."""
        usage, metrics = self.usage, [text.handle.metrics for text in self._texts]
        found: Json = {"cache_n": usage.cached}
        for name, tokens, seconds in (
            ("prompt", usage.prompt - usage.cached, max(each.prefill_seconds for each in metrics)),
            ("predicted", usage.generated, max(each.decoding_seconds for each in metrics)),
        ):
            found |= {f"{name}_n": tokens, f"{name}_ms": 1e3 * seconds}
            found |= {f"{name}_per_token_ms": ratio(1e3 * seconds, tokens)}
            found |= {f"{name}_per_second": ratio(tokens, seconds)}
        drafted = usage.accepted + usage.rejected
        return found | ({"draft_n": drafted, "draft_n_accepted": usage.accepted} if drafted else {})


def _not_read(texts: Sequence[Text]) -> int:
    """Tokens of a prompt that none of its texts had to read: what one of them reads, the others take from it."""
    metrics = [text.handle.metrics for text in texts]
    return min((each.reused_tokens for each in metrics if each.rounds), default=0)


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
