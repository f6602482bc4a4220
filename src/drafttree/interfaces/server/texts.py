"""The texts of one request: submitted together, read as they grow and in their parts, and counted."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from drafttree.constraints.grammar import token_bytes
from drafttree.engine.batching import Handle
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Chunk
from drafttree.engine.metrics import ratio
from drafttree.interfaces.server.dialect.reader import AnswerReader, Part, Said
from drafttree.interfaces.server.errors import SHUTTING_DOWN, ServerError, shutting_down
from drafttree.interfaces.server.sampling import SeveralTexts, seeds
from drafttree.interfaces.server.serving import ServingContext

Json = dict[str, Any]
MIN_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON does not know; vLLM's number."""
ALL_SAID = partial(AnswerReader, None, None)
"""Makes the reader of a text that has neither thinking nor calls."""


class TokenNames:
    """The tokens of a vocabulary by name: their text, or their bytes where these are a part of a character."""

    def __init__(self, decoder: Decoder) -> None:
        self._pieces = token_bytes(decoder.tokenizer, decoder.target.vocab_size)

    def scores(
        self, tokens: Sequence[int], logprobs: Sequence[float | None], top: Sequence[Mapping[int, float]]
    ) -> list[Json]:
        """Tokens with their log-probabilities and the likeliest ones at their places, as chats have them.

        Args:
            tokens: token ids.
            logprobs: of each, None where nothing stands before it.
            top: for each, the likeliest tokens and their log-probabilities; empty where none are wanted.
        """
        return [
            {
                **self._score(token, logprob),
                "top_logprobs": [self._score(*candidate) for candidate in candidates.items()],
            }
            for token, logprob, candidates in zip(tokens, logprobs, top or [{}] * len(tokens), strict=True)
        ]

    def _score(self, token: int, logprob: float | None) -> Json:
        """A token with its log-probability; bytes that are no text are `bytes:\\xe2\\x82`, as in OpenAI's API."""
        piece = self._pieces[token]
        try:
            name = piece.decode()
        except UnicodeDecodeError:
            name = "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
        return {"token": name, "bytes": [*piece], "logprob": None if logprob is None else max(logprob, MIN_LOGPROB)}


@dataclass(frozen=True)
class Ended:
    """The end of an answer, and why it ends: "stop", also where a call was cut short, "length" or "tool_calls"."""

    reason: str


class Text:
    """A text as the engine writes it, and which of its tokens an API has told.

    A token is told with the last of its characters, so what may still turn out to be a stop string shows in no
    log-probability either. A stop string's own tokens and EOS are no part of the text.

    Args:
        prompt: token ids of what stands before it.
        handle: the text in the engine.
        names: the tokens by name, None where no log-probabilities are wanted.
        reader: tells thinking and calls of tools from what is said.

    Attributes:
        prompt: as given.
        handle: as given.
        names: as given.
        generated: its tokens so far.
        accepted: those of them that were drafted.
        origins: per character, the place in the text of the token that completed it.
        told: the number of tokens that were told.
    """

    def __init__(self, prompt: list[int], handle: Handle, names: TokenNames | None, reader: AnswerReader) -> None:
        self.prompt = prompt
        self.handle = handle
        self.names = names
        self._reader = reader
        self.generated = self.accepted = self.told = 0
        self.origins = list[int]()
        self._scores = deque[Json]()
        self._rounds = self._drafted = 0

    def add(self, chunk: Chunk) -> None:
        """Take what a round has added.

        Raises:
            ServerError: the text ended before its end.
        """
        if chunk.finish_reason == SHUTTING_DOWN:
            raise shutting_down()
        if chunk.finish_reason not in (None, "stop", "length"):
            raise ServerError(503, f"the text was {chunk.finish_reason} before its end", code=chunk.finish_reason)
        self.generated += len(chunk.tokens)
        self.accepted += sum(chunk.drafted)
        self.origins += chunk.origins
        if self.names:
            self._scores += self.names.scores(chunk.tokens, chunk.logprobs, chunk.top_logprobs)

    def parts(self, chunk: Chunk) -> Iterator[tuple[Part | Ended | None, list[Json]]]:
        """The parts of an answer that a chunk adds, each with the log-probabilities of tokens that were not told.

        What is said has those of its own tokens. None stands for tokens beside it: of marks, thinking and calls.
        """
        reason = chunk.finish_reason
        for answer_part in self._reader.read(chunk.text, final=reason is not None):
            scores: list[Json] = []
            if isinstance(answer_part, Said):
                begin, end = answer_part.begin, answer_part.begin + len(answer_part.text)
                if earlier_scores := self.tell(min(self._tokens_before(begin), self.origins[begin])):
                    yield None, earlier_scores
                scores = self.tell(self._tokens_before(end))
            yield answer_part, scores
        if later_scores := self.tell(self.known_tokens(reason) if reason else self._tokens_before(self._reader.known)):
            yield None, later_scores
        if reason:
            has_calls = reason == "stop" and self._reader.calls and not self._reader.in_call
            yield Ended("tool_calls" if has_calls else reason), []

    def tell(self, tokens: int) -> list[Json]:
        """The log-probabilities of those of the first tokens that were not told, if any are wanted."""
        scores = [self._scores.popleft() for _ in range(min(tokens - self.told, len(self._scores)))]
        self.told += len(scores)
        return scores

    def known_tokens(self, finish_reason: str | None) -> int:
        """The number of tokens that its text so far is made of, by why it has ended."""
        return self.generated if finish_reason == "length" else self._tokens_before(len(self.origins))

    @property
    def reasoning_tokens(self) -> int:
        """Tokens that are thinking, the marks around it included."""
        return sum(
            (self.generated if end is None else self._tokens_before(end)) - self._tokens_before(begin)
            for begin, end in self._reader.thoughts
        )

    @property
    def drafted(self) -> int:
        """The drafted tokens of all rounds so far; counting them again takes no longer for a longer text."""
        new_rounds = self.handle.metrics.rounds[self._rounds :]
        self._rounds += len(new_rounds)
        self._drafted += sum(turn.nodes - 1 for turn in new_rounds)
        return self._drafted

    def _tokens_before(self, character: int) -> int:
        """The number of tokens that the text before a character is made of."""
        return self.origins[character - 1] + 1 if character else 0


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
        texts: as many for each prompt, those of the first prompt first.
        wanted: False where the reply has no text, only what is known of the prompts.
        enforced: whether calls conform to the schemas of all tools.

    Attributes:
        all: the texts.
        enforced: as given.
    """

    def __init__(
        self, prompts: Sequence[list[int]], texts: Sequence[Text], *, wanted: bool = True, enforced: bool = True
    ) -> None:
        self._prompts = prompts
        self.all = texts
        self._wanted = wanted
        self.enforced = enforced

    @classmethod
    async def submit(
        cls,
        request: SeveralTexts,
        serving: ServingContext,
        prompts: Sequence[list[int]],
        options: Sequence[Json],
        reader: Callable[[], AnswerReader] = ALL_SAID,
        *,
        wanted: bool = True,
        **more: Any,
    ) -> "Texts":
        """Submit all texts of a request, or none of them: for each prompt, with its options, one for each seed.

        What is not told here is as for `Admission.submit`.

        Args:
            request: what the client asks for.
            serving: what the server runs.
            prompts: token ids of each prompt.
            options: for each prompt, those of its texts, all but their seeds.
            reader: makes what tells thinking and calls of tools from what a text says.
            wanted: as for `Texts`.

        Raises:
            ServerError: there are too many for the server's queue, now or ever, or as for `Grammars.made`.
            DraftTreeError: as for `Engine.submit`.
        """
        texts: list[Text] = []
        group = object()  # however many they are, they take turns with other requests' texts
        count = len(prompts) * request.choices
        if count > (text_limit := serving.admission.most_texts):
            message = f"{count} texts are more than the server takes at once, {text_limit}"
            raise ServerError(400, message, param="n" if request.choices > 1 else "prompt")
        async with serving.admission.preparing():
            made_options = [await serving.grammars.made(prompt_options) for prompt_options in options]
        names = await asyncio.to_thread(TokenNames, serving.decoder) if options[0]["logprobs"] else None
        try:
            for (prompt, (text_options, _)), seed in product(zip(prompts, made_options, strict=True), seeds(request)):
                text_options = {**text_options, **more, "seed": seed, "group": group, "cache_salt": request.cache_salt}
                texts.append(Text(prompt, await serving.admission.submit(prompt, **text_options), names, reader()))
        except BaseException:
            for text in texts:
                text.handle.cancel()
            raise
        return cls(prompts, texts, wanted=wanted, enforced=all(enforced for _, enforced in made_options))

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

        readers = [asyncio.create_task(read(index, text.handle)) for index, text in enumerate(self.all)]
        try:
            running_texts = len(readers)
            while running_texts:
                match await news.get():
                    case None:
                        running_texts -= 1
                    case Exception() as error:
                        raise error
                    case index, chunk:
                        if not self._wanted:  # an engine writes one token at least
                            reason = "length" if chunk.finish_reason == "stop" else chunk.finish_reason
                            chunk = Chunk("", [], [], reason, prompt_logprobs=chunk.prompt_logprobs)
                        self.all[index].add(chunk)
                        yield index, chunk
        finally:
            for reader, text in zip(readers, self.all, strict=True):
                reader.cancel()
                text.handle.cancel()

    @property
    def usage(self) -> Usage:
        """The tokens so far."""
        texts_per_prompt = len(self.all) // len(self._prompts)
        of_prompts = [self.all[start : start + texts_per_prompt] for start in range(0, len(self.all), texts_per_prompt)]
        accepted = sum(text.accepted for text in self.all)
        drafted = sum(text.drafted for text in self.all)
        return Usage(
            prompt=sum(map(len, self._prompts)),
            cached=sum(map(_not_read, of_prompts)),
            generated=sum(text.generated for text in self.all),
            accepted=accepted,
            rejected=max(drafted - accepted, 0),
            reasoning=sum(text.reasoning_tokens for text in self.all),
        )

    @property
    def timings(self) -> Json:
        """How fast they are so far, by llama-server's names; of several texts, the times are the longest one's."""
        usage = self.usage
        metrics = [text.handle.metrics for text in self.all]
        figures: Json = {"cache_n": usage.cached}
        for name, tokens, seconds in (
            ("prompt", usage.prompt - usage.cached, max(text_metrics.prefill_seconds for text_metrics in metrics)),
            ("predicted", usage.generated, max(text_metrics.decoding_seconds for text_metrics in metrics)),
        ):
            figures |= {f"{name}_n": tokens, f"{name}_ms": 1e3 * seconds}
            figures |= {f"{name}_per_token_ms": ratio(1e3 * seconds, tokens)}
            figures |= {f"{name}_per_second": ratio(tokens, seconds)}
        drafted = usage.accepted + usage.rejected
        return figures | ({"draft_n": drafted, "draft_n_accepted": usage.accepted} if drafted else {})


def _not_read(texts: Sequence[Text]) -> int:
    """Tokens of a prompt that none of its texts had to read: what one of them reads, the others take from it."""
    metrics = [text.handle.metrics for text in texts]
    return min((text_metrics.reused_tokens for text_metrics in metrics if text_metrics.rounds), default=0)
