"""transformers' assisted generation at its defaults, recorded round by round like drafttree's own texts."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import nn
from transformers import GenerationConfig

from drafttree.core.errors import ConfigError
from drafttree.drafters.language_model import LanguageModelDrafter
from drafttree.engine.decoder import Decoder
from drafttree.engine.metrics import Metrics, TextRound
from drafttree.measure.reference import released, transformers_generate, transformers_model
from drafttree.models import TargetModel


def told_unassisting(drafter: str | None) -> str:
    """The reason why a drafter cannot assist transformers' `generate`, in words."""
    return f"assisted generation takes a language model as its drafter, and {drafter!r} is none; name one with --as"


@dataclass(frozen=True)
class AssistedText:
    """A text that transformers wrote.

    Attributes:
        tokens: the generated token ids.
        metrics: its metrics; the first round includes the prompt, since transformers reads both in one pass.
    """

    tokens: list[int]
    metrics: Metrics


@dataclass
class Pass:
    """A forward pass of the target or the assistant.

    Attributes:
        is_target: whether it is a pass of the target.
        tokens: number of tokens that it reads.
        position: position of its first token.
        begun: time at which it began.
        seconds: duration.
    """

    is_target: bool
    tokens: int
    position: int
    begun: float
    seconds: float = 0.0


class AssistedGeneration:
    """Writes texts by transformers' own `generate` with the drafter as its assistant model.

    Args:
        decoder: decoder with the target and the drafter.

    Raises:
        ConfigError: the drafter is not a language model, or the target is not a transformers model.
    """

    def __init__(self, decoder: Decoder) -> None:
        drafter = decoder.drafter
        if not isinstance(drafter, LanguageModelDrafter) or not isinstance(drafter.model, TargetModel):
            raise ConfigError("assisted generation takes a language model as its drafter; name one with --as")
        self._decoder = decoder
        self._assistant = drafter.model
        self._target = transformers_model(decoder)

    def generate(self, prompt: Sequence[int], **options: Any) -> AssistedText:
        """The text after a prompt; options as for `Decoder.generate`."""
        passes: list[Pass] = []
        with released(self._assistant) as assistant, ExitStack() as stack:
            assistant.generation_config = GenerationConfig()
            stack.enter_context(_noted(self._target.module, passes, is_target=True))
            stack.enter_context(_noted(assistant, passes, is_target=False))
            run = transformers_generate(self._decoder, prompt, assistance={"assistant_model": assistant}, **options)
            end_time = time.perf_counter()
        rounds = list(_rounds(passes, len(prompt), len(run.tokens), end_time))
        first_token_seconds = run.seconds - sum(round_.seconds for round_ in rounds[1:])
        metrics = Metrics(rounds, 1, first_token_seconds - rounds[0].seconds, 0, run.seconds, [first_token_seconds])
        return AssistedText(run.tokens, metrics)


@contextmanager
def _noted(module: nn.Module, passes: list[Pass], *, is_target: bool) -> Iterator[None]:
    def before(module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        ids = args[0] if args else keywords["input_ids"]
        if (positions := keywords.get("position_ids")) is None:
            raise ConfigError(f"{type(module).__name__} is handed no positions, so rounds cannot be told apart")
        passes.append(Pass(is_target, ids.shape[1], int(positions[0, 0]), time.perf_counter()))

    def after(*_: Any) -> None:
        passes[-1].seconds = time.perf_counter() - passes[-1].begun

    handles = (
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _rounds(passes: Sequence[Pass], prompt: int, tokens: int, end_time: float) -> Iterator[TextRound]:
    """A round for every target pass, with the draft passes before it.

    From its second pass on, the target begins to read at the last committed token. So the position of a pass shows the
    length of the text.
    """
    groups = list(_groups(passes))
    lengths = [prompt, *(group.target.position + 1 for group in groups[1:]), prompt + tokens]
    begins = [*(group.begun for group in groups), end_time]
    read_tokens = prompt
    for group, (length, next_length), (begin, end) in zip(groups, pairwise(lengths), pairwise(begins), strict=True):
        draft_tokens = group.target.tokens - read_tokens
        accepted = min(next_length - length - 1, draft_tokens)
        yield TextRound(
            committed=next_length - length,
            accepted=accepted,
            nodes=1 + draft_tokens,
            levels=draft_tokens,
            draft_passes=len(group.drafts),
            draft_seconds=sum(draft.seconds for draft in group.drafts),
            target_seconds=group.target.seconds,
            seconds=end - begin,
            ranks=(1,) * accepted,
        )
        read_tokens = 1


@dataclass(frozen=True)
class PassGroup:
    """The passes of a round.

    Attributes:
        drafts: the passes of the assistant.
        target: the following pass of the target.
    """

    drafts: Sequence[Pass]
    target: Pass

    @property
    def begun(self) -> float:
        """The time at which the first pass began."""
        return self.drafts[0].begun if self.drafts else self.target.begun


def _groups(passes: Sequence[Pass]) -> Iterator[PassGroup]:
    """The passes of each round; draft passes after the last target pass belong to no round."""
    drafts: list[Pass] = []
    for pass_ in passes:
        if pass_.is_target:
            yield PassGroup(drafts, pass_)
            drafts = []
        else:
            drafts.append(pass_)
