"""The text of a request: its tokens so far, what they spell, and whether it has ended."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import StoppingCriteriaList

from drafttree.constraints.processors import PathConstraints
from drafttree.engine.generation import Chunk, Logprobs, RowRecorder
from drafttree.engine.task import Task
from drafttree.text.detokenizer import Detokenizer


class StoppingText:
    """Calls transformers' stopping criteria after every token of a text, as its `generate` does.

    Args:
        criteria: functions of token ids `[1, length]` and scores, which are None here.
        prompt: token ids before the text, padding included.
        new_tokens: the most tokens that may follow.
        device: the device of the token ids that the criteria are given.
    """

    def __init__(
        self, criteria: StoppingCriteriaList, prompt: Sequence[int], new_tokens: int, device: torch.device
    ) -> None:
        self._criteria = criteria
        self._length = len(prompt)
        self._ids = torch.tensor([[*prompt, *[0] * new_tokens] if criteria else []], device=device)

    def push(self, token: int) -> bool:
        """Add a token, and return whether a criterion ends the text after it."""
        if not self._criteria:
            return False
        self._ids[0, self._length] = token
        self._length += 1
        token_ids = self._ids[:, : self._length].clone()  # a criterion may write to it
        return bool(self._criteria(token_ids, None).all())  # pyright: ignore[reportArgumentType]


@dataclass(eq=False)
class WrittenText:
    """The text of a request, prompt included, as far as it is written.

    Attributes:
        task: what is asked of the text.
        detokenizer: turns tokens into text and looks for stop strings.
        stopping: calls the stopping criteria.
        constraints: the constraints on tokens: logits processors and a grammar.
        recorder: records the logits that tokens are chosen from; None if nothing is recorded.
        prompt_logprobs: log-probabilities of the prompt's tokens after the first; None unless requested.
        tokens: prompt and committed token ids; the last one is the root of the next tree.
        drafted: per committed token, whether the drafter proposed it.
        finish_reason: "stop" (an EOS token, stop string or stopping criterion), "length", "interrupted", or None
            while it goes on.
    """

    task: Task
    detokenizer: Detokenizer
    stopping: StoppingText
    constraints: PathConstraints
    recorder: RowRecorder | None = None
    prompt_logprobs: Logprobs | None = None
    tokens: list[int] = field(init=False)
    drafted: list[bool] = field(init=False, default_factory=list)
    finish_reason: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.tokens = [*self.task.prompt]

    @property
    def remaining(self) -> int:
        """The most tokens that may still be committed."""
        return self.task.limit - len(self.tokens)

    @property
    def generated(self) -> list[int]:
        """The committed tokens, without the prompt."""
        return self.tokens[len(self.task.prompt) :]

    @property
    def logprobs(self) -> Logprobs | None:
        """The log-probabilities of the generated tokens; None unless requested."""
        return self.recorder if isinstance(self.recorder, Logprobs) else None

    def commit(self, tokens: list[int], accepted: int) -> int:
        """Append a round's tokens, up to the one that ends the text.

        Args:
            tokens: the tokens of the accepted path below the root, then the bonus token.
            accepted: how many of them were drafted.

        Returns:
            How many tokens were committed.
        """
        for count, token in enumerate(tokens, start=1):
            self.tokens.append(token)
            self.drafted.append(count <= accepted)
            self.constraints.commit(token)
            text_ended = self.detokenizer.stops(token) or token in self.task.eos or self.detokenizer.push(token)
            if self.stopping.push(token) or text_ended:
                self.end("stop")
            elif self.remaining <= 0:
                self.end("length")
            if self.finish_reason:
                return count
        return len(tokens)

    def skip(self, tokens: Sequence[int]) -> None:
        """Append given tokens, so that the next round begins behind them."""
        self.tokens += tokens
        self.drafted += [False] * len(tokens)

    def end(self, reason: str) -> None:
        """End the text. The finish reason "length" becomes "stop" if the last characters complete a stop string."""
        self.detokenizer.finish()
        self.finish_reason = "stop" if reason == "length" and self.detokenizer.stopped_by else reason

    def chunk(self, read_tokens: int) -> Chunk:
        """The part of the text after its first `read_tokens` tokens, those of the prompt included."""
        tokens = self.tokens[read_tokens:]
        read_length = self.detokenizer.shown
        begin = read_tokens - len(self.task.prompt)
        text = self.detokenizer.read()
        origins = self.detokenizer.origins[read_length : read_length + len(text)]
        return Chunk(
            text,
            tokens,
            self.drafted[len(self.drafted) - len(tokens) :],
            self.finish_reason,
            drafted_text=[self.drafted[token] for token in origins],
            origins=origins,
            logprobs=self.logprobs.tokens[begin:] if self.logprobs else [],
            top_logprobs=[*map(dict, self.logprobs.top[begin:])] if self.logprobs else [],
            prompt_logprobs=None if begin else deepcopy(self.prompt_logprobs),
            stopped_by=self.detokenizer.stopped_by,
        )

    def prompt_reader(self, begin: int) -> Callable[[Tensor], None] | None:
        """Return a function that records `prompt_logprobs` from the target's logits of the prompt, from `begin` on.

        None if they were not requested. If a prompt is read again after its rows were given up, logits that were
        recorded before are skipped.
        """
        if self.prompt_logprobs is None:
            return None
        logprobs = self.prompt_logprobs
        prompt = self.task.prompt
        position = begin

        def read(logits: Tensor) -> None:
            nonlocal position
            first_position = len(logprobs.tokens) + 1
            tokens = prompt[first_position : position + 1 + len(logits)]
            if tokens:
                logprobs.read(logits[first_position - position - 1 :][: len(tokens)], tokens)
            position += len(logits)

        return read
