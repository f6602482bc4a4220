"""Texts that a model writes itself, to calibrate its rounding without other data.

Long texts that a model writes become repetitive, and repetitions say little about its weights. So texts are short, end
when they repeat, and follow each other in a row. A chat model writes conversations: its chat template opens the user's
turn, and the model writes the question and then the answer (Xu et al. 2024, "Magpie").
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from drafttree.core.vocab_ops import draw
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.segment import Segment

SEED = 0
TEXT, QUESTION, ANSWER = 256, 64, 192
"""Maximum numbers of tokens that are drawn for a plain text, a question and an answer."""
WINDOW, FEWEST = 32, 10
"""A text repeats itself if its last `WINDOW` tokens are fewer than `FEWEST` different ones."""
MARK = "\N{SNOWMAN}"
"""Takes the place of the user's message when a chat template is split at it."""


class Turn(NamedTuple):
    """A turn of a conversation, or a whole plain text.

    Attributes:
        opening: the tokens before those that the model draws.
        max_tokens: maximum number of tokens to draw.
        is_first: whether it begins a new text, without earlier context.
    """

    opening: Sequence[int]
    max_tokens: int
    is_first: bool


class Row:
    """A row of consecutive texts, written token by token.

    Args:
        target: the model.
        turns: the turns of its texts, without end.
        end_tokens: tokens that end a turn.
    """

    def __init__(self, target: TargetModel, turns: Iterator[Turn], end_tokens: Sequence[int]) -> None:
        self._target = target
        self._turns = turns
        self._end_tokens = end_tokens
        self.tokens: list[int] = []
        self._open()

    def segment(self) -> Segment:
        """The tokens that the model has not read yet."""
        return Segment.of_text(self._cache, self._unread)

    def add(self, token: int) -> None:
        """Append a drawn token, after the model has read the segment."""
        self._cache.commit(range(len(self._unread)))
        self._unread = [token]
        self.tokens.append(token)
        self._remaining_tokens -= 1
        if token in self._end_tokens or not self._remaining_tokens or self._repeats():
            self._open(token)

    def _repeats(self) -> bool:
        recent_tokens = self.tokens[self._start :][-WINDOW:]
        return len(recent_tokens) == WINDOW and len(set(recent_tokens)) < FEWEST

    def _open(self, last_token: int | None = None) -> None:
        """Begin the next turn; its opening's first token is dropped if it equals the last drawn token."""
        turn = next(self._turns)
        opening = [*turn.opening]
        if turn.is_first:
            self._cache = self._target.new_cache(len(opening) + TEXT + QUESTION + ANSWER)
            self._unread = []
        elif opening[:1] == [last_token]:
            opening = opening[1:]
        self._unread += opening
        self.tokens += opening
        self._remaining_tokens = turn.max_tokens
        self._start = len(self.tokens)


@torch.inference_mode()
def sampled_texts(
    module: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    count: int,
    length: int,
    progress: Callable[[float], None] = lambda share: None,
) -> Tensor:
    """Rows of consecutive texts drawn from a model at temperature 1, int64 `[count, length]`.

    Args:
        module: the model.
        tokenizer: its tokenizer; None if it has none.
        count: number of rows.
        length: tokens of each row; the model's context if that is shorter.
        progress: called after each pass with the share of tokens drawn so far, from 0 to 1.
    """
    target = TargetModel(module, choose_backend)
    length = min(length, target.context or length)
    end_tokens = _end_tokens(module, tokenizer)
    turns = _conversation(tokenizer) or [Turn([_first_token(module, end_tokens)], TEXT, True)]
    rows = [Row(target, cycle(turns), end_tokens) for _ in range(count)]
    generator = torch.Generator().manual_seed(SEED)
    try:
        while unfinished_rows := [row for row in rows if len(row.tokens) < length]:
            outputs = target.forward([row.segment() for row in unfinished_rows])
            weights = torch.cat([output.logits[0, -1:] for output in outputs]).float().softmax(-1)
            uniforms = torch.rand(len(unfinished_rows), generator=generator, dtype=torch.float64)
            for row, token in zip(unfinished_rows, draw(weights, uniforms.to(weights.device)).tolist(), strict=True):
                row.add(token)
            progress(sum(min(len(row.tokens), length) for row in rows) / (count * length))
    finally:
        target.release()
    return torch.tensor([row.tokens[:length] for row in rows])


def _conversation(tokenizer: PreTrainedTokenizerBase | None) -> list[Turn]:
    """The question and answer turns of the chat template; empty without a template that has text around the message."""
    if tokenizer is None or not tokenizer.chat_template:
        return []
    rendered_chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": MARK}], tokenize=False, add_generation_prompt=True
    )
    prefix, mark, suffix = str(rendered_chat).partition(MARK)
    if not mark or not prefix or not suffix:
        return []
    question, answer = (tokenizer.encode(text, add_special_tokens=False) for text in (prefix, suffix))
    return [Turn(question, QUESTION, True), Turn(answer, ANSWER, False)]


def _end_tokens(module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    """The tokens that end a text."""
    for owner in (module.generation_config, module.config.get_text_config(), tokenizer):
        eos_token_id: Any = getattr(owner, "eos_token_id", None)
        if eos_token_id is not None:
            return [*eos_token_id] if isinstance(eos_token_id, list) else [eos_token_id]
    return []


def _first_token(module: PreTrainedModel, end_tokens: Sequence[int]) -> int:
    """The first token of a text: BOS, else an EOS token, else 0."""
    token = getattr(module.config.get_text_config(), "bos_token_id", None)
    return token if isinstance(token, int) else [*end_tokens, 0][0]
