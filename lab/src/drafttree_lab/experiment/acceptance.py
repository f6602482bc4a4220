"""Drafted tokens that each verifier accepts, over tree shapes and temperatures, on the same contexts.

A context is a beginning of a text that the target itself has written after a prompt, at the temperature in question;
contexts of one text are a fixed stride apart. At every context and for every shape one tree is drawn, one is selected
and one is selected in sight of the coupled noise, and the target scores all of them in one pass. `RRSw` and `Traversal`
judge the drawn one, `PointMass` and `Coupled` the selected ones. Any other verifier has a tree of its own. Two things
keep the work and the noise small:

- Growth is predictable, so a chain of 2 is the beginning of a chain of 8 and a binary tree of depth 2 that of one of
  depth 5, with the same law. The largest is drafted and the smaller ones are judged as its upper levels.
- Given a tree, the expected number of accepted tokens is a sum that needs no draws. So what remains random is the tree
  and the context, which `RRSw` and `Traversal` share. `Coupled` has no randomness besides its noise, and counts. For
  all other verifiers what they accept in one round is counted.
"""

import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from drafttree.core.errors import ConfigError
from drafttree.drafters.language_model import LanguageModelDrafter
from drafttree.engine import compatibility
from drafttree.engine.decoder import Decoder, Prompt
from drafttree.engine.request import Request
from drafttree.loading import PolicyLike, VerifierLike, make_policy, parse_policies, parse_verifiers
from drafttree.measure.interval import Interval
from drafttree.measure.run_store import RunStore
from drafttree.models import prefill
from drafttree.verifiers import Coupled, Verifier
from drafttree_lab.experiment.cells import Key, run_cells
from drafttree_lab.experiment.judged_tree import JudgedTree, grower_of, score_trees

TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0)
MAX_LEVELS = 64
"""Levels that every context leaves room for."""

Shapes = Mapping[str, Mapping[str, int]]
"""Per policy the shapes that are its upper levels, and how many levels each has at most."""
SHAPES: Shapes = {
    "chain:depth=8": {f"chain {depth}": depth for depth in (2, 4, 5, 6, 8)},
    "template:tree=binary-5": {f"binary {depth}": depth for depth in (2, 3, 4, 5)},
    "template:tree=eagle-sparse": {"eagle-sparse": 5},
    "dynatree": {"dynatree": MAX_LEVELS},
    "talon": {"talon": MAX_LEVELS},
}
VERIFIERS = ("rrsw", "traversal", "point-mass", "coupled")
ALL = "all"
"""The task of rows over all prompts."""

PUBLISHED_GAIN = (0.022, 0.057)
"""Of Traversal over RRSw in tokens per round: Traversal Verification (arXiv 2505.12398), tables 1 to 4."""

Lengths = dict[str, dict[str, float]]
"""Per shape and verifier the expected number of accepted tokens."""


@dataclass(frozen=True)
class AcceptanceRow:
    """One tree shape at one temperature; figures are tokens per round, the bonus token counted.

    Attributes:
        temperature: the temperature of target and drafter.
        shape: its name.
        tokens: tokens of each verifier.
        gain: the gain of Traversal over RRSw; None where one of them was not asked for.
        task: category of the prompts, or "all".
        prompts: how many.
    """

    temperature: float
    shape: str
    tokens: dict[str, Interval]
    gain: Interval | None
    task: str
    prompts: int


@dataclass(frozen=True)
class Acceptance:
    """The acceptance table.

    Attributes:
        rows: the rows, by temperature, task and shape.
        prompts: how many.
        rounds: contexts in which a round was judged, over all temperatures.
        stride: tokens between the contexts of one text.
    """

    rows: list[AcceptanceRow]
    prompts: int
    rounds: int
    stride: int

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return {**asdict(self), "published_gain": PUBLISHED_GAIN}


@torch.inference_mode()
def bench_acceptance(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    rounds: int = 2,
    stride: int = 24,
    seed: int = 0,
    shapes: Sequence[PolicyLike] | None = None,
    verifiers: Sequence[VerifierLike] = VERIFIERS,
    tasks: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
) -> Acceptance:
    """Measure the accepted length of verifiers over tree shapes.

    Args:
        decoder: the decoder with a language model as drafter; its policy grows the trees its texts are written with.
        prompts: texts or token ids, with room for `rounds * stride + 64` more tokens.
        temperatures: above 0.
        rounds: contexts per prompt and temperature, fewer where a text ends early; the first is the prompt.
        stride: tokens between them.
        seed: the random seed of texts and trees.
        shapes: policies as for `parse_policies`, each a shape; None for those of `SHAPES`.
        verifiers: as for `parse_verifiers`.
        tasks: per prompt, its category; where there are several, each has rows of its own.
        progress: called after every prompt and temperature with the temperature.
        store: keeps finished runs; by default none.

    Raises:
        ConfigError: the drafter is none, or cannot begin several trees in the same place; or a shape and a verifier are
            not lossless together.
    """
    if not isinstance(decoder.drafter, LanguageModelDrafter):
        raise ConfigError("acceptance is measured with a language model as drafter; name one")
    judges, decoder = parse_verifiers(verifiers), decoder.with_verifier(Coupled)
    grown: Shapes = SHAPES if shapes is None else {spec: {spec: MAX_LEVELS} for spec in parse_policies(shapes)}
    _check(grown, judges)

    def run(prompt: Prompt, temperature: float, own: int) -> list[Lengths]:
        contexts = _contexts(decoder, prompt, rounds, stride, {"temperature": temperature, "seed": own})
        return [_lengths(decoder, text, grown, judges) for text in contexts]

    cells: dict[Key, Callable[[], list[Lengths]]] = {
        (temperature, number): functools.partial(run, prompt, temperature, seed + number)
        for temperature in temperatures
        for number, prompt in enumerate(prompts)
    }
    found = run_cells(cells, list[Lengths], progress=progress, store=store)
    rows = [
        row
        for temperature in temperatures
        if (means := [_mean(lengths) for (own, _), lengths in found.items() if own == temperature])
        for row in _rows(temperature, means, tasks)
    ]
    judged = sum(map(len, found.values()))
    return Acceptance(rows, len(prompts), judged, stride)


def _contexts(decoder: Decoder, prompt: Prompt, rounds: int, stride: int, options: dict) -> Iterator[Request]:
    """One sequence, moved along a text of the target's, with the caches of the target and the drafter."""
    ahead = (rounds - 1) * stride
    text = decoder.generate(prompt, max_new_tokens=ahead, **options).tokens if ahead else []
    request = decoder.new_request(prompt, max_new_tokens=ahead + MAX_LEVELS, **options)
    decoder.loop.read_prompt(request)
    yield request
    for first in range(0, ahead, stride):
        following = text[first : first + stride]
        if len(following) < stride or following[-1] in decoder.eos:
            return
        assert request.drafting.session is not None
        with torch.inference_mode():
            prefill(decoder.target, request.cache, [request.tokens[-1], *following[:-1]])
            request.drafting.session.commit(following, ())
        request.tokens += following
        yield request


def _lengths(decoder: Decoder, request: Request, shapes: Shapes, verifiers: Mapping[str, type[Verifier]]) -> Lengths:
    """The accepted lengths of every shape and verifier at a context."""
    growers = dict.fromkeys(map(grower_of, verifiers.values()))
    grown = {(spec, each): JudgedTree(decoder, request, make_policy(spec), each) for spec in shapes for each in growers}
    score_trees(decoder, request, list(grown.values()))
    return {
        shape: {name: grown[spec, grower_of(each)].accepted(each, levels) for name, each in verifiers.items()}
        for spec, upper in shapes.items()
        for shape, levels in upper.items()
    }


def _check(shapes: Shapes, verifiers: Mapping[str, type[Verifier]]) -> None:
    """Refuse what cannot be judged.

    Raises:
        ConfigError: a shape depends on costs, or is not lossless with a verifier.
    """
    for spec in shapes:
        policy = make_policy(spec)
        if policy.uses_costs:
            raise ConfigError(f"{spec!r} grows by what passes cost, not by a shape of its own; name another policy")
        for verifier in verifiers.values():
            compatibility.check(policy, verifier)


def _mean(lengths: list[Lengths]) -> Lengths:
    """The mean over a prompt's rounds, as tokens per round: the bonus token is counted from here on."""
    return {
        shape: {judge: 1 + statistics.fmean(round_[shape][judge] for round_ in lengths) for judge in judges}
        for shape, judges in lengths[0].items()
    }


def _rows(temperature: float, found: list[Lengths], tasks: Sequence[str]) -> Iterator[AcceptanceRow]:
    """The rows of a temperature: of all prompts, and of every task where there are several."""
    groups = {ALL: found}
    if len(set(tasks)) > 1:
        for task in dict.fromkeys(tasks[: len(found)]):
            groups[task] = [each for each, own in zip(found, tasks, strict=False) if own == task]
    for task, texts in groups.items():
        yield from (_row(temperature, task, shape, texts) for shape in texts[0])


def _row(temperature: float, task: str, shape: str, found: list[Lengths]) -> AcceptanceRow:
    values = {judge: [prompt[shape][judge] for prompt in found] for judge in found[0][shape]}
    tokens = {judge: Interval.by_student(of_prompts) for judge, of_prompts in values.items()}
    compared = [values[name] for name in ("traversal", "rrsw") if name in values]
    gain = Interval.of_gain_by_student(*compared) if len(compared) == 2 else None
    return AcceptanceRow(temperature, shape, tokens, gain, task, len(found))
