"""Drafted tokens that each verifier accepts, over tree shapes and temperatures, on the same contexts.

A context is a prompt with the beginning of the target's own text after it; contexts of one text are a fixed stride
apart. At every context, each shape is grown as several trees. `RRSw` and `Traversal` judge a tree of drawn tokens.
`PointMass` judges one of selected tokens, and `Coupled` one whose tokens are selected by the coupled noise. Any other
verifier has a tree of its own. The target scores all trees in one pass. Two things keep work and noise small:

- A smaller shape has the same distribution as the upper levels of a larger one: a chain of 2 is the beginning of a
  chain of 8. So only the largest is drafted, and the smaller ones are judged as its upper levels.
- For a given tree, the number of tokens that `RRSw`, `Traversal` and `PointMass` are expected to accept is a sum over
  its nodes. A node's term depends only on the tokens up to it and its siblings'. Only tree and context are then random,
  and `RRSw` and `Traversal` share both. For other verifiers, the accepted tokens of one round are counted.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttree import measure
from drafttree.core.errors import ConfigError
from drafttree.core.lazy import torch
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import (
    Device,
    Drafter,
    Dtype,
    Seed,
    Target,
    complete_policy,
    complete_verifier,
    parse_temperatures,
)
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import make_console, progress
from drafttree.loading import PolicyLike, VerifierLike, make_policy, parse_policies, parse_verifiers
from drafttree.verifiers import Coupled, Verifier
from drafttree_lab.options import PromptOptions
from drafttree_lab.speed_rows import group_by

if TYPE_CHECKING:
    from drafttree.engine.decoder import Decoder, Prompt
    from drafttree.engine.request import Request
    from drafttree.measure.driver import Cell, Way
    from drafttree.measure.run_store import RunStore

Verifiers = Annotated[
    list[str],
    typer.Option(
        "--verifiers", "--verifier", help='Verifiers, separated by commas, or "all".', autocompletion=complete_verifier
    ),
]
MAX_LEVELS = 64
"""Every context leaves room for a tree of this depth."""

Shapes = Mapping[str, Mapping[str, int]]
"""By policy, the shapes that consist of the upper levels of its tree, with their number of levels."""
SHAPES: Shapes = {
    "chain:depth=8": {f"chain {depth}": depth for depth in (2, 4, 5, 6, 8)},
    "template:tree=binary-5": {f"binary {depth}": depth for depth in (2, 3, 4, 5)},
    "template:tree=eagle-sparse": {"eagle-sparse": 5},
    "dynatree": {"dynatree": MAX_LEVELS},
    "talon": {"talon": MAX_LEVELS},
}
VERIFIERS = ("rrsw", "traversal", "point-mass", "coupled")
ALL = "all"
"""The name of the task for rows over all prompts."""

PUBLISHED_GAIN = (0.022, 0.057)
"""Gain of Traversal over RRSw in tokens per round in Traversal Verification (arXiv 2505.12398), tables 1 to 4."""

Lengths = dict[str, dict[str, float]]
"""The expected number of accepted tokens by shape and verifier."""


@dataclass(frozen=True)
class ContextOptions:
    """The contexts at which trees are judged."""

    temperatures: Annotated[str, typer.Option(help="Sampling temperatures, above 0.")] = "0.2,0.4,0.6,0.8,1.0"
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds per prompt and temperature.")] = 2
    stride: Annotated[int, typer.Option(min=1, help="Number of tokens of text between two rounds.")] = 24
    seed: Seed = 0


@grouped
def bench(
    context: typer.Context,
    prompts: PromptOptions,
    results: ResultOptions,
    target: Target = "embedded",
    drafter: Drafter = "embedded-draft",
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            help='Policies, such as "chain:depth=5;talon"; by default chains, binary trees, DynaTree ...',
            autocompletion=complete_policy,
        ),
    ] = None,
    verifiers: Verifiers = ["rrsw,traversal,point-mass,coupled"],  # noqa: B006
    contexts: ContextOptions = ContextOptions(),
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Count the tokens that verifiers accept.

    Over tree shapes and temperatures, and by category where prompts have several. --limit takes that many prompts from
    each file, evenly spaced.
    """
    options: dict[str, Any] = {
        "temperatures": parse_temperatures(contexts.temperatures),
        "shapes": shapes and [*parse_policies(shapes).values()],
        "verifiers": [*parse_verifiers(verifiers).values()],
        "rounds": contexts.rounds,
        "stride": contexts.stride,
        "seed": contexts.seed,
    }

    from drafttree.interfaces.cli.decoders import load_speculative

    decoder = load_speculative(target, drafter, dtype, device)
    task_prompts = prompts.token_ids_by_task(decoder, contexts.rounds * contexts.stride + 64)
    store = results.open_store(context, task_prompts)
    options["tasks"] = list(map(itemgetter(0), task_prompts))
    ids = list(map(itemgetter(1), task_prompts))
    with progress(len(options["temperatures"]) * len(ids)) as advance:
        report = measure_acceptance(decoder, ids, progress=advance, store=store, **options)
    results.finish(store, measure.to_json(report), lambda: _show(report))


def measure_acceptance(
    decoder: "Decoder",
    prompts: "Sequence[Prompt]",
    *,
    temperatures: Sequence[float],
    rounds: int = 2,
    stride: int = 24,
    seed: int = 0,
    shapes: Sequence[PolicyLike] | None = None,
    verifiers: Sequence[VerifierLike] = VERIFIERS,
    tasks: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
    store: "RunStore | None" = None,
) -> dict[str, Any]:
    """Measure the accepted length of verifiers over tree shapes.

    A row has the tokens per round of every verifier, bonus token included. It has the gain of Traversal over RRSw if
    both are among the verifiers.

    Args:
        decoder: decoder with a language model as drafter. Its policy drafts the texts that contexts are taken from.
        prompts: texts or token ids, with room for `rounds * stride + 64` more tokens.
        temperatures: temperatures of target and drafter, above 0.
        rounds: contexts per prompt and temperature, the first of which is the prompt; fewer if a text ends early.
        stride: number of tokens between contexts.
        seed: random seed of texts and trees.
        shapes: policies as for `parse_policies`, whose whole trees are the shapes; None for `SHAPES`.
        verifiers: as for `parse_verifiers`.
        tasks: the category of each prompt; each category has rows of its own if there are several.
        progress: called after every prompt and temperature with the temperature.
        store: keeps finished runs; by default none.

    Raises:
        ConfigError: there is no drafter, or it cannot begin several trees at the same context; or a shape and a
            verifier are not lossless together.
    """
    _check_drafter(decoder)
    judges = parse_verifiers(verifiers)
    tree_shapes = SHAPES if shapes is None else _whole_trees(shapes)
    _check(tree_shapes, judges)
    judging = Judging(decoder.with_verifier(Coupled), tree_shapes, judges, rounds, stride, seed)
    task_names = [*tasks] or [ALL] * len(prompts)
    task_prompts = list(zip(task_names, enumerate(prompts), strict=True))
    cells = measure.race(judging.ways(temperatures), task_prompts, list[Lengths], store=store, progress=progress)
    return {
        "rows": list(_rows(cells, by_task=len(set(task_names)) > 1)),
        "prompts": len(prompts),
        "rounds": sum(map(len, map(attrgetter("result"), cells))),
        "stride": stride,
        "published_gain": PUBLISHED_GAIN,
    }


@dataclass(frozen=True)
class Judging:
    """How the trees of a prompt are judged.

    Attributes:
        decoder: the decoder whose target and drafter are used.
        shapes: in the form of `SHAPES`.
        verifiers: the verifiers by name.
        rounds: number of contexts of a prompt.
        stride: number of tokens between contexts.
        seed: random seed of the first prompt; prompt i has seed + i.
    """

    decoder: "Decoder"
    shapes: Shapes
    verifiers: Mapping[str, type[Verifier]]
    rounds: int
    stride: int
    seed: int

    def ways(self, temperatures: Sequence[float]) -> "dict[str, Way]":
        """`run` at each temperature; the name is the temperature."""
        return {f"{temperature:g}": partial(self.run, temperature) for temperature in temperatures}

    def run(self, temperature: float, numbered_prompt: "tuple[int, Prompt]") -> list[Lengths]:
        """The accepted lengths at every context of a prompt."""
        number, prompt = numbered_prompt
        options = {"temperature": temperature, "seed": self.seed + number}
        with torch.inference_mode():
            contexts = _contexts(self.decoder, prompt, self.rounds, self.stride, options)
            return [_lengths(self.decoder, text, self.shapes, self.verifiers) for text in contexts]


def _whole_trees(policies: Sequence[PolicyLike]) -> Shapes:
    """Shapes that consist of the whole trees of policies."""
    return {spec: {spec: MAX_LEVELS} for spec in parse_policies(policies)}


def _check_drafter(decoder: "Decoder") -> None:
    """Refuse a drafter that cannot begin several trees at the same context.

    Raises:
        ConfigError: the drafter is not a language model.
    """
    from drafttree.drafters.language_model import LanguageModelDrafter
    from drafttree_lab.graded import GradedDrafter

    if not isinstance(decoder.drafter, LanguageModelDrafter | GradedDrafter):
        raise ConfigError(
            "acceptance is measured with a language model as drafter; name one, such as --drafter embedded-draft"
        )


def _rows(cells: Iterable["Cell"], *, by_task: bool) -> Iterator[dict[str, Any]]:
    """A row for every temperature and shape over all prompts, then rows over the prompts of each task."""
    for temperature, way_cells in group_by(cells, attrgetter("way")).items():
        tasks = {ALL: way_cells}
        if by_task:
            tasks |= group_by(way_cells, attrgetter("group"))
        for task, task_cells in tasks.items():
            prompt_lengths = [_mean(cell.result) for cell in task_cells]
            for shape in prompt_lengths[0]:
                yield _row(float(temperature), task, shape, prompt_lengths)


def _contexts(
    decoder: "Decoder", prompt: "Prompt", rounds: int, stride: int, options: dict[str, Any]
) -> "Iterator[Request]":
    """Contexts along a text of the target: one request and its caches, moved by `stride` tokens each time."""
    from drafttree.models.base import prefill

    text_length = (rounds - 1) * stride
    text = decoder.generate(prompt, max_new_tokens=text_length, **options).tokens if text_length else []
    request = decoder.new_request(prompt, max_new_tokens=text_length + MAX_LEVELS, **options)
    decoder.loop.read_prompt(request)
    yield request
    for start in range(0, text_length, stride):
        next_tokens = text[start : start + stride]
        if len(next_tokens) < stride or next_tokens[-1] in decoder.eos:
            return
        assert request.drafting.session is not None
        with torch.inference_mode():
            prefill(decoder.target, request.cache, [request.tokens[-1], *next_tokens[:-1]])
            request.drafting.session.commit(next_tokens, ())
        request.text.skip(next_tokens)
        yield request


def _lengths(
    decoder: "Decoder", request: "Request", shapes: Shapes, verifiers: Mapping[str, type[Verifier]]
) -> Lengths:
    """The accepted lengths of every shape and verifier at a context."""
    from drafttree_lab.judged_tree import JudgedTree, grower_of, score_trees

    growers = dict.fromkeys(map(grower_of, verifiers.values()))
    trees: dict[tuple[str, type[Verifier]], JudgedTree] = {}
    for spec, grower in product(shapes, growers):
        trees[spec, grower] = JudgedTree(decoder, request, make_policy(spec), grower)
    score_trees(decoder, request, list(trees.values()))
    lengths: Lengths = {}
    for spec, upper_levels in shapes.items():
        for shape, levels in upper_levels.items():
            lengths[shape] = {}
            for name, verifier in verifiers.items():
                lengths[shape][name] = trees[spec, grower_of(verifier)].accepted(verifier, levels)
    return lengths


def _check(shapes: Shapes, verifiers: Mapping[str, type[Verifier]]) -> None:
    """Refuse shapes that cannot be judged.

    Raises:
        ConfigError: a shape depends on costs, or is not lossless with a verifier.
    """
    from drafttree.engine import compatibility

    for spec in shapes:
        policy = make_policy(spec)
        if policy.uses_costs:
            raise ConfigError(
                f"{spec!r} has no shape of its own, since it grows by what passes cost; name another policy"
            )
        for verifier in verifiers.values():
            compatibility.check(policy, verifier)


def _mean(round_lengths: Sequence[Lengths]) -> Lengths:
    """The tokens per round, bonus token included: the mean over a prompt's rounds, plus one."""
    means: Lengths = {}
    for shape, judges in round_lengths[0].items():
        means[shape] = {}
        for judge in judges:
            means[shape][judge] = 1 + statistics.fmean(lengths[shape][judge] for lengths in round_lengths)
    return means


def _row(temperature: float, task: str, shape: str, prompt_lengths: Sequence[Lengths]) -> dict[str, Any]:
    values: dict[str, list[float]] = {}
    for judge in prompt_lengths[0][shape]:
        values[judge] = [lengths[shape][judge] for lengths in prompt_lengths]
    gain = None
    if "traversal" in values and "rrsw" in values:
        gain = measure.Interval.of_gain_by_student(values["traversal"], values["rrsw"])
    return {
        "temperature": temperature,
        "shape": shape,
        "tokens": dict(zip(values, map(measure.Interval.by_student, values.values()), strict=True)),
        "gain": gain,
        "task": task,
        "prompts": len(prompt_lengths),
    }


def _show(report: Mapping[str, Any]) -> None:
    for (temperature, task), task_rows in group_by(report["rows"], itemgetter("temperature", "task")).items():
        rows = [{"tree": row["shape"], **row["tokens"], "traversal over rrsw": row["gain"]} for row in task_rows]
        columns = {"tree": "", **dict.fromkeys(task_rows[0]["tokens"], ".3f"), "traversal over rrsw": ".1%"}
        title = f"T = {temperature:g}, {task}: tokens per round, {task_rows[0]['prompts']} prompts"
        make_console().print(measure.to_table(title, rows, columns), "")
    rounds = f"{report['rounds']} rounds, {report['stride']} tokens apart"
    print(f"intervals are 95 % over prompts, by Student's t; {rounds}")
    if any(map(itemgetter("gain"), report["rows"])):
        low, high = PUBLISHED_GAIN
        print(f"published gain of traversal over rrsw at T = 1: {low:.1%} to {high:.1%}")
