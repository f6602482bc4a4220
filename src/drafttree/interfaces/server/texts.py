"""The texts of one request: submitted together, read as they grow, and counted."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from itertools import product

from drafttree.engine.batching import Handle
from drafttree.engine.generation import Chunk
from drafttree.engine.metrics import ratio
from drafttree.interfaces.server.answer import Answer, Json, Text, TokenNames
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.serving import ServingContext


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
        names: the tokens by name, None where no log-probabilities are wanted.
        wanted: False where the reply has no text, only what is known of the prompts.
        enforced: whether calls conform to the schemas of all tools.

    Attributes:
        all: the texts.
        enforced: as given.
        answers: what reads them and knows which tokens are thinking; none where nothing does.
    """

    def __init__(
        self,
        prompts: Sequence[list[int]],
        handles: Sequence[Handle],
        names: TokenNames | None = None,
        *,
        wanted: bool = True,
        enforced: bool = True,
    ) -> None:
        self._prompts, self._wanted, self.enforced = prompts, wanted, enforced
        self.all = [Text(handle, names) for handle in handles]
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
        """Submit all texts of a request, or none of them: of each prompt, with its options, one for each seed.

        Raises:
            ServerError: there are too many for the server's queue, now or ever, or as for `Grammars.made`.
            DraftTreeError: as for `Engine.submit`.
        """
        handles: list[Handle] = []
        group = object()  # however many they are, they take turns with other requests' texts
        texts = len(prompts) * len(seeds)
        if texts > (most := serving.admission.most_texts):
            raise ServerError(
                400,
                f"{texts} texts are more than the server takes at once, {most}",
                param="n" if len(seeds) > 1 else "prompt",
            )
        async with serving.admission.preparing():
            made = [await serving.grammars.made(each) for each in options]
        names = await asyncio.to_thread(TokenNames, serving.decoder) if options[0]["logprobs"] else None
        try:
            for (prompt, given), seed in product(zip(prompts, (each for each, _ in made), strict=True), seeds):
                given = {**given, "seed": seed, "group": group, "cache_salt": cache_salt}
                handles.append(await serving.admission.submit(prompt, **given))
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise
        return cls(prompts, handles, names, wanted=wanted, enforced=all(enforced for _, enforced in made))

    async def read(self) -> AsyncGenerator[tuple[int, Chunk]]:
        """The chunks of all texts as they come, each with its place among the texts.

        Leaving it early cancels all texts.
        """
        news: asyncio.Queue[tuple[int, Chunk] | Exception | None] = asyncio.Queue(1)  # the rest waits in the handles

        async def read(place: int, handle: Handle) -> None:
            try:
                async for chunk in handle:
                    await news.put((place, chunk))
                await news.put(None)
            except Exception as error:
                await news.put(error)

        readers = [asyncio.create_task(read(place, text.handle)) for place, text in enumerate(self.all)]
        try:
            running = len(readers)
            while running:
                match await news.get():
                    case None:
                        running -= 1
                    case Exception() as error:
                        raise error
                    case place, chunk:
                        if not self._wanted:  # an engine writes one token at least
                            reason = "length" if chunk.finish_reason == "stop" else chunk.finish_reason
                            chunk = Chunk("", [], [], reason, prompt_logprobs=chunk.prompt_logprobs)
                        self.all[place].add(chunk)
                        yield place, chunk
        finally:
            for reader, text in zip(readers, self.all, strict=True):
                reader.cancel()
                text.handle.cancel()

    @property
    def usage(self) -> Usage:
        """The tokens so far."""
        each = len(self.all) // len(self._prompts)
        of_prompts = [self.all[first : first + each] for first in range(0, len(self.all), each)]
        accepted, drafted = (sum(counts) for counts in zip(*((t.accepted, t.drafted) for t in self.all), strict=True))
        return Usage(
            prompt=sum(map(len, self._prompts)),
            cached=sum(map(_not_read, of_prompts)),
            generated=sum(text.generated for text in self.all),
            accepted=accepted,
            rejected=max(drafted - accepted, 0),
            reasoning=sum(answer.reasoning_tokens for answer in self.answers),
        )

    @property
    def timings(self) -> Json:
        """How fast they are so far, by llama-server's names; of several texts, the times are the longest one's."""
        usage, metrics = self.usage, [text.handle.metrics for text in self.all]
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
