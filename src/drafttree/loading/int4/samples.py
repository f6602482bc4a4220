"""Texts that a model writes itself, for those who have no data at hand.

A model that goes on and on by itself begins to repeat itself, and what repeats says little about its weights. So texts
are short, end where they repeat, and many stand behind each other in a row. A model that chats writes conversations:
its chat template opens the user's turn, it writes what a user may ask, and then the answer (Xu et al. 2024, "Magpie").
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from drafttree.core.vocab_ops import draw
from drafttree.models import TargetModel, choose_backend
from drafttree.models.segment import Segment

SEED = 0
TEXT, QUESTION, ANSWER = 256, 64, 192
"""Tokens of a text, and of the parts of a conversation, at most."""
WINDOW, FEWEST = 32, 10
"""Among so many last tokens a text that does not repeat itself has so many different ones at least."""
MARK = "\N{SNOWMAN}"
"""Stands for what a user says where a chat template is looked at."""


class Turn(NamedTuple):
    """A part of a text.

    Attributes:
        opening: tokens that are given.
        most: tokens that are drawn behind them at most.
        is_first: whether it goes on from nothing.
    """

    opening: Sequence[int]
    most: int
    is_first: bool


class Row:
    """A row of texts behind each other, which is written token by token.

    Args:
        target: the model.
        turns: the parts of its texts, without end.
        ends: tokens that end a part.
    """

    def __init__(self, target: TargetModel, turns: Iterator[Turn], ends: Sequence[int]) -> None:
        self._target = target
        self._turns = turns
        self._ends = ends
        self.tokens: list[int] = []
        self._open()

    def segment(self) -> Segment:
        """The tokens that are still to be read."""
        return Segment.of_text(self._cache, self._unread)

    def add(self, token: int) -> None:
        """Go on with a drawn token, behind what has been read."""
        self._cache.commit(range(len(self._unread)))
        self._unread = [token]
        self.tokens.append(token)
        self._left -= 1
        if token in self._ends or not self._left or self._repeats():
            self._open(token)

    def _repeats(self) -> bool:
        recent_tokens = self.tokens[self._start :][-WINDOW:]
        return len(recent_tokens) == WINDOW and len(set(recent_tokens)) < FEWEST

    def _open(self, last: int | None = None) -> None:
        """Begin the next part; the last token may be the one that its opening begins with."""
        turn = next(self._turns)
        opening = [*turn.opening]
        if turn.is_first:
            self._cache = self._target.new_cache(len(opening) + TEXT + QUESTION + ANSWER)
            self._unread = []
        elif opening[:1] == [last]:
            opening = opening[1:]
        self._unread += opening
        self.tokens += opening
        self._left = turn.most
        self._start = len(self.tokens)


@torch.inference_mode()
def sampled_texts(
    module: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    count: int,
    length: int,
    progress: Callable[[float], None] = lambda share: None,
) -> Tensor:
    """Texts drawn from a model at temperature 1, int64 `[count, length]`: rows of several behind each other.

    Args:
        module: the model.
        tokenizer: its tokenizer, None where there is none.
        count: number of rows.
        length: tokens of each.
        progress: called with the share of the tokens that are there, after each pass.
    """
    target = TargetModel(module, choose_backend)
    length = min(length, target.context or length)
    ends = _end_tokens(module, tokenizer)
    turns = _conversation(tokenizer) or [Turn([_first_token(module, ends)], TEXT, True)]
    rows = [Row(target, cycle(turns), ends) for _ in range(count)]
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
    """The turns of a conversation by the tokenizer's chat template, none where it has none that is known."""
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
    settings = module.generation_config
    config = module.config.get_text_config()
    eos_token_ids: Any = next(
        (
            eos_token_id
            for owner in (settings, config, tokenizer)
            if (eos_token_id := getattr(owner, "eos_token_id", None)) is not None
        ),
        [],
    )
    return [*eos_token_ids] if isinstance(eos_token_ids, list) else [eos_token_ids]


def _first_token(module: PreTrainedModel, ends: Sequence[int]) -> int:
    """What a text begins with: the token for that, or else one that ends the text before."""
    token = getattr(module.config.get_text_config(), "bos_token_id", None)
    return token if isinstance(token, int) else [*ends, 0][0]
