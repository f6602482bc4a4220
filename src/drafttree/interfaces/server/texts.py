"""Submits the texts of a request, reads them as they grow, splits them into parts and counts tokens."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from drafttree.constraints.grammar import token_bytes
from drafttree.engine.batching import Handle
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Chunk
from drafttree.engine.image_prompt import EncodedPrompt
from drafttree.engine.metrics import ratio
from drafttree.interfaces.server.dialect.reader import AnswerReader, Part, Said
from drafttree.interfaces.server.errors import SHUTTING_DOWN, ServerError, shutting_down
from drafttree.interfaces.server.sampling import SeveralTexts, seeds
from drafttree.interfaces.server.serving import ServingContext

Json = dict[str, Any]
MIN_LOGPROB = -9999.0
"""Replaces minus infinity, which JSON does not have, as in vLLM."""
ALL_SAID = partial(AnswerReader, None, None)
"""Makes the reader of a text without thinking and tool calls."""


class TokenNames:
    """The names of a vocabulary's tokens: a token's text, or its bytes if these are not text."""

    def __init__(self, decoder: Decoder) -> None:
        self._pieces = token_bytes(decoder.tokenizer, decoder.target.vocab_size)

    def scores(
        self, tokens: Sequence[int], logprobs: Sequence[float | None], top: Sequence[Mapping[int, float]]
    ) -> list[Json]:
        """The log-probability of each token and of the likeliest tokens at its position, in the form of chat replies.

        Args:
            tokens: token ids.
            logprobs: the log-probability of each token; None for the first token of a prompt.
            top: for each token, the likeliest tokens and their log-probabilities; empty if none are wanted.
        """
        return [
            {
                **self._score(token, logprob),
                "top_logprobs": [self._score(*candidate) for candidate in candidates.items()],
            }
            for token, logprob, candidates in zip(tokens, logprobs, top or [{}] * len(tokens), strict=True)
        ]

    def _score(self, token: int, logprob: float | None) -> Json:
        """A token with its log-probability. Bytes that are not text become `bytes:\\xe2\\x82`, as in OpenAI's API."""
        piece = self._pieces[token]
        try:
            name = piece.decode()
        except UnicodeDecodeError:
            name = "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
        return {"token": name, "bytes": [*piece], "logprob": None if logprob is None else max(logprob, MIN_LOGPROB)}


@dataclass(frozen=True)
class Ended:
    """The end of an answer.

    Attributes:
        reason: "stop", "length" or "tool_calls"; "stop" also after a tool call that was cut short.
    """

    reason: str


class Text:
    """A text as the engine writes it, and how many of its tokens were sent to the client.

    The log-probability of a token is sent with the token's last character. If it were sent earlier, it could reveal
    characters of a stop string. The tokens of a stop string and EOS are not part of the text.

    Args:
        prompt: the prompt.
        handle: the text in the engine.
        names: names of tokens; None if no log-probabilities are wanted.
        reader: separates thinking and tool calls from the rest.

    Attributes:
        prompt: as given.
        handle: as given.
        names: as given.
        generated: the number of tokens so far.
        accepted: the number of those tokens that were drafted.
        origins: for each character, the index of the token that completes it.
        told: the number of tokens whose log-probabilities were sent.
    """

    def __init__(self, prompt: EncodedPrompt, handle: Handle, names: TokenNames | None, reader: AnswerReader) -> None:
        self.prompt = prompt
        self.handle = handle
        self.names = names
        self._reader = reader
        self.generated = self.accepted = self.told = 0
        self.origins = list[int]()
        self._scores = deque[Json]()
        self._rounds = self._drafted = 0

    def add(self, chunk: Chunk) -> None:
        """Count the tokens of a chunk, and keep their log-probabilities.

        Raises:
            ServerError: the text was ended early, for example by a shutdown.
        """
        if chunk.finish_reason == SHUTTING_DOWN:
            raise shutting_down()
        if chunk.finish_reason not in (None, "stop", "length"):
            raise ServerError(503, f"generation stopped ({chunk.finish_reason}); try again", code=chunk.finish_reason)
        self.generated += len(chunk.tokens)
        self.accepted += sum(chunk.drafted)
        self.origins += chunk.origins
        if self.names:
            self._scores += self.names.scores(chunk.tokens, chunk.logprobs, chunk.top_logprobs)

    def parts(self, chunk: Chunk) -> Iterator[tuple[Part | Ended | None, list[Json]]]:
        """Yield the parts of an answer that a chunk adds, each with log-probabilities that were not sent before.

        A `Said` has those of its own tokens. The part None has those of marks, thinking and tool calls.
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
        """Mark the first `tokens` tokens as sent; return the log-probabilities of those that were not sent before."""
        scores = [self._scores.popleft() for _ in range(min(tokens - self.told, len(self._scores)))]
        self.told += len(scores)
        return scores

    def known_tokens(self, finish_reason: str | None) -> int:
        """The number of tokens in the text so far; all generated tokens if the text has ended with "length"."""
        return self.generated if finish_reason == "length" else self._tokens_before(len(self.origins))

    @property
    def reasoning_tokens(self) -> int:
        """The number of tokens of thinking, including its marks."""
        return sum(
            (self.generated if end is None else self._tokens_before(end)) - self._tokens_before(begin)
            for begin, end in self._reader.thoughts
        )

    @property
    def drafted(self) -> int:
        """The number of drafted tokens so far. Each call counts only the rounds since the last call."""
        new_rounds = self.handle.metrics.rounds[self._rounds :]
        self._rounds += len(new_rounds)
        self._drafted += sum(text_round.nodes - 1 for text_round in new_rounds)
        return self._drafted

    def _tokens_before(self, character: int) -> int:
        """The number of tokens in the text before a character."""
        return self.origins[character - 1] + 1 if character else 0


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens of a request.

    Attributes:
        prompt: tokens of the prompts.
        cached: prompt tokens whose rows were in the KV cache already.
        generated: tokens of all texts, EOS tokens included.
        accepted: drafted tokens that became part of a text.
        rejected: drafted tokens that did not become part of a text.
        reasoning: tokens of thinking.
    """

    prompt: int
    cached: int
    generated: int
    accepted: int
    rejected: int
    reasoning: int

    @property
    def openai(self) -> Json:
        """The `usage` object of OpenAI's completions."""
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
        prompts: the prompts.
        texts: the texts, the same number for each prompt, those of the first prompt first.
        has_text: whether the reply has texts; if not, it has only figures of the prompts.
        enforced: whether tool calls must follow the schemas of all tools.

    Attributes:
        all: the texts.
        enforced: as given.
    """

    def __init__(
        self, prompts: Sequence[EncodedPrompt], texts: Sequence[Text], *, has_text: bool = True, enforced: bool = True
    ) -> None:
        self._prompts = prompts
        self.all = texts
        self._has_text = has_text
        self.enforced = enforced

    @classmethod
    async def submit(
        cls,
        request: SeveralTexts,
        serving: ServingContext,
        prompts: Sequence[EncodedPrompt],
        options: Sequence[Json],
        reader: Callable[[], AnswerReader] = ALL_SAID,
        *,
        has_text: bool = True,
        **submit_options: Any,
    ) -> "Texts":
        """Submit all texts of a request, or none: one text per prompt and seed.

        Args:
            request: the client's request.
            serving: the served model.
            prompts: the prompts.
            options: for each prompt, the options of its texts, without seeds.
            reader: makes the reader of a text, which separates thinking and tool calls from the rest.
            has_text: as for `Texts`.
            **submit_options: options of all texts, as for `Admission.submit`.

        Raises:
            ServerError: the server's queue is full or too short for all texts, or as for `Grammars.made`.
            DraftTreeError: as for `Engine.submit`.
        """
        _check_count(request, len(prompts), serving.admission.most_texts)
        async with serving.admission.preparing():
            made_options = [await serving.grammars.made(prompt_options) for prompt_options in options]
        names = await asyncio.to_thread(TokenNames, serving.decoder) if options[0]["logprobs"] else None
        # one group per request, so that a request of many texts gets no more turns than another
        shared_options = submit_options | {"group": object(), "cache_salt": request.cache_salt}
        texts = list[Text]()
        try:
            for prompt, text_options in zip(prompts, made_options, strict=True):
                for seed in seeds(request):
                    handle = await serving.admission.submit(
                        prompt, **{**text_options.options, **shared_options, "seed": seed}
                    )
                    texts.append(Text(prompt, handle, names, reader()))
        except BaseException:
            for text in texts:
                text.handle.cancel()
            raise
        return cls(
            prompts, texts, has_text=has_text, enforced=all(text_options.enforced for text_options in made_options)
        )

    async def read(self) -> AsyncGenerator[tuple[int, Chunk]]:
        """The chunks of all texts as they come, each with the index of its text.

        Closing the generator early cancels all texts.
        """
        chunk_queue: asyncio.Queue[tuple[int, Chunk] | Exception | None] = asyncio.Queue(
            1
        )  # others wait in the handles

        async def read(text_index: int, handle: Handle) -> None:
            try:
                async for chunk in handle:
                    await chunk_queue.put((text_index, chunk))
                await chunk_queue.put(None)
            except Exception as error:
                await chunk_queue.put(error)

        readers = [asyncio.create_task(read(index, text.handle)) for index, text in enumerate(self.all)]
        try:
            running_texts = len(readers)
            while running_texts:
                match await chunk_queue.get():
                    case None:
                        running_texts -= 1
                    case Exception() as error:
                        raise error
                    case index, chunk:
                        if not self._has_text:  # the engine has written one token, its minimum
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
        """The numbers of tokens so far."""
        texts_per_prompt = len(self.all) // len(self._prompts)
        prompt_texts = [
            self.all[start : start + texts_per_prompt] for start in range(0, len(self.all), texts_per_prompt)
        ]
        accepted = sum(text.accepted for text in self.all)
        drafted = sum(text.drafted for text in self.all)
        return Usage(
            prompt=sum(prompt.length for prompt in self._prompts),
            cached=sum(map(_cached_tokens, prompt_texts)),
            generated=sum(text.generated for text in self.all),
            accepted=accepted,
            rejected=max(drafted - accepted, 0),
            reasoning=sum(text.reasoning_tokens for text in self.all),
        )

    @property
    def timings(self) -> Json:
        """Token counts, times and speeds so far, with llama-server's names; each time is the longest of any text."""
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


def _check_count(request: SeveralTexts, prompt_count: int, text_limit: int) -> None:
    """Refuse a request with more texts than the server can take at once.

    Raises:
        ServerError: there are more than `text_limit` texts; the error names the field to blame.
    """
    count = prompt_count * request.choices
    if count > text_limit:
        message = f"{count} texts are more than the server takes at once, {text_limit}"
        raise ServerError(400, message, param="n" if request.choices > 1 else "prompt")


def _cached_tokens(texts: Sequence[Text]) -> int:
    """The number of a prompt's tokens that were cached before. One text reads the others, and shares their rows."""
    metrics = [text.handle.metrics for text in texts]
    return min((text_metrics.reused_tokens for text_metrics in metrics if text_metrics.rounds), default=0)
