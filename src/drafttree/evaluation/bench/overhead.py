"""Where the time of a round goes: the two models' forward passes, and everything around them.

The decoder is measured from outside, by clocks wrapped around the parts a sequence is made of. A round's first turn,
in which the drafter reads the prompt, is left out.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from drafttree.core.errors import ConfigError
from drafttree.core.tree import DraftTree, Verdict
from drafttree.drafters.base import HiddenStates
from drafttree.drafters.language_model import LanguageModelDrafter
from drafttree.engine.decoder import Decoder, Prompt
from drafttree.engine.request import Request
from drafttree.loading.load import make_policy
from drafttree.models import Model, Output

PARTS = ("growth", "masks", "verify", "commit", "text", "other")


@dataclass(frozen=True)
class Overhead:
    """Mean seconds per round of one policy.

    Attributes:
        policy: its specification.
        round: the whole turn.
        target: the target's forward pass.
        draft: the drafter's forward passes.
        growth: policy, tree building and the drafter's own bookkeeping.
        masks: ancestor masks and positions for the target.
        verify: the verifier.
        commit: keeping cache rows and telling drafter and policy.
        text: turning committed tokens into text.
        other: what none of the clocks saw.
    """

    policy: str
    round: float
    target: float
    draft: float
    growth: float
    masks: float
    verify: float
    commit: float
    text: float
    other: float

    @property
    def seconds(self) -> float:
        """Outside the two models' passes."""
        return self.round - self.target - self.draft

    @property
    def share(self) -> float:
        """Of the round that is outside the two models' passes."""
        return self.seconds / self.round if self.round else 0.0


class _Clocks:
    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._cuda = device.type == "cuda"

    def now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def wrap(self, name: str, function: Callable) -> Callable:
        """The function with its time added to a clock."""

        def timed(*args, **kwargs):
            started = self.now()
            result = function(*args, **kwargs)
            self.seconds[name] += self.now() - started
            return result

        return timed


class _TimedModel:
    """A model whose forward passes are timed."""

    def __init__(self, model: Model, clocks: _Clocks, name: str) -> None:
        self.vocab_size, self.context = model.vocab_size, model.context
        self.device, self.nbytes = model.device, model.nbytes
        self.new_cache = model.new_cache
        self._forward = clocks.wrap(name, model.forward)

    def forward(self, *args, **kwargs) -> Output:
        return self._forward(*args, **kwargs)


class _TimedDecoder(Decoder):
    """A decoder with a clock around each of its parts."""

    def __init__(self, decoder: Decoder, clocks: _Clocks) -> None:
        if not isinstance(decoder.drafter, LanguageModelDrafter):
            raise ConfigError("overhead is measured with a language model as drafter; name one")
        target = _TimedModel(decoder.target, clocks, "target")
        drafter = LanguageModelDrafter(_TimedModel(decoder.drafter.model, clocks, "draft"))
        super().__init__(target, drafter, decoder.policy, decoder.verifier, decoder.tokenizer, decoder.eos)
        self.clocks = clocks

    def new_request(self, prompt: Prompt, **options) -> Request:
        text = super().new_request(prompt, **options)
        text.verifier.verify = self.clocks.wrap("verify", text.verifier.verify)
        text.text.push = self.clocks.wrap("text", text.text.push)
        return text

    def step(self, request: Request) -> int:
        return self.clocks.wrap("round", super().step)(request)

    def propose(self, request: Request) -> DraftTree:
        return self.clocks.wrap("drafting", super().propose)(request)

    def score(self, request: Request, tree: DraftTree) -> Output:
        return self.clocks.wrap("scoring", super().score)(request, tree)

    def _commit(self, request: Request, tree: DraftTree, verdict: Verdict, hidden: HiddenStates) -> tuple[int, int]:
        return self.clocks.wrap("committing", super()._commit)(request, tree, verdict, hidden)


def measure_overhead(
    decoder: Decoder, prompts: Sequence[Prompt], policies: Sequence[str], *, repeats: int = 3, **options
) -> list[Overhead]:
    """Time the parts of a round for every policy, interleaved; each part is the median over the repeats.

    Args:
        decoder: with a language model as drafter.
        prompts: texts or token ids.
        policies: specifications.
        repeats: times every policy runs every prompt, after one more that is not counted.
        **options: as for `Decoder.new_request`.

    Raises:
        ConfigError: the drafter is none, or not a language model.
    """
    decoders = {spec: decoder.with_policy(make_policy(spec)) for spec in policies}
    for each in decoders.values():
        _once("warm-up", each, prompts[:1], options)
    runs = [{spec: _once(spec, each, prompts, options) for spec, each in decoders.items()} for _ in range(repeats)]
    return [_median([run[spec] for run in runs]) for spec in decoders]


def _once(spec: str, decoder: Decoder, prompts: Sequence[Prompt], options: dict) -> Overhead:
    """Mean times per round over some prompts."""
    clocks = _Clocks(decoder.target.device)
    timed, totals, rounds = _TimedDecoder(decoder, clocks), defaultdict(float), 0
    for prompt in prompts:
        text = timed.new_request(prompt, **options)
        timed.step(text)
        clocks.seconds.clear()
        while not text.finish_reason:
            timed.step(text)
            rounds += 1
        for name, seconds in clocks.seconds.items():
            totals[name] += seconds
    return _split(spec, {name: seconds / max(rounds, 1) for name, seconds in totals.items()})


def _split(spec: str, mean: dict[str, float]) -> Overhead:
    spent = defaultdict(float, mean)
    seen = sum(spent[name] for name in ("drafting", "scoring", "verify", "committing"))
    return Overhead(
        policy=spec,
        round=spent["round"],
        target=spent["target"],
        draft=spent["draft"],
        growth=spent["drafting"] - spent["draft"],
        masks=spent["scoring"] - spent["target"],
        verify=spent["verify"],
        commit=spent["committing"] - spent["text"],
        text=spent["text"],
        other=spent["round"] - seen,
    )


def _median(runs: list[Overhead]) -> Overhead:
    parts = [name for name in Overhead.__dataclass_fields__ if name != "policy"]
    return Overhead(runs[0].policy, *(statistics.median(getattr(run, name) for run in runs) for name in parts))
