"""Drafted tokens that each verifier accepts, over tree shapes and temperatures, on the same contexts.

A context is a beginning of a text that the target itself has written after a prompt, at the temperature in question;
contexts of one text are a fixed stride apart. At every context and for every shape one tree is drawn, one is selected
and one is selected in sight of the coupled noise, and the target scores all of them in one pass. `RRSw` and `Traversal`
judge the drawn one, `PointMass` and `Coupled` the selected ones. Two things keep the work and the noise small:

- Growth is predictable, so a chain of 2 is the beginning of a chain of 8 and a binary tree of depth 2 that of one of
  depth 5, with the same law. The largest is drafted and the smaller ones are judged as its upper levels.
- Given a tree, the expected number of accepted tokens is a sum that needs no draws. So what remains random is the tree
  and the context, which `RRSw` and `Traversal` share. `Coupled` has no randomness besides its noise, and counts.
"""

import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from drafttree.core.errors import ConfigError
from drafttree.core.tree import DraftTree
from drafttree.drafters.language_model import LanguageModelDrafter
from drafttree.engine.decoder import Decoder, Prompt
from drafttree.engine.request import Request
from drafttree.evaluation.bench.estimate import Estimate
from drafttree.evaluation.run_store import RunStore
from drafttree.loading import make_policy
from drafttree.models import prefill
from drafttree.policies.base import TextContext
from drafttree.verifiers import Coupled, PointMass, RRSw, Verifier
from drafttree.verifiers.base import TreeView, ratio, residual, without
from drafttree.verifiers.traversal import traverse

TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0)
MAX_LEVELS = 64
"""Levels that every context leaves room for."""

SHAPES: dict[str, dict[str, int]] = {
    "chain:depth=8": {f"chain {depth}": depth for depth in (2, 4, 6, 8)},
    "template:tree=binary-5": {f"binary {depth}": depth for depth in (2, 3, 4, 5)},
    "template:tree=eagle-sparse": {"eagle-sparse": 5},
    "dynatree": {"dynatree": MAX_LEVELS},
    "talon": {"talon": MAX_LEVELS},
}
"""Per policy the shapes that are its upper levels, and how many levels each has at most."""

PUBLISHED_GAIN = (0.022, 0.057)
"""Of Traversal over RRSw in tokens per round: Traversal Verification (arXiv 2505.12398), tables 1 to 4."""

Lengths = dict[str, dict[str, float]]
"""Per shape and verifier the expected number of accepted tokens."""


@dataclass(frozen=True)
class AcceptanceRow:
    """One tree shape at one temperature; figures are tokens per round, the bonus token counted.

    Attributes:
        temperature: of target and drafter.
        shape: its name.
        tokens: of each verifier.
        gain: of Traversal over RRSw.
    """

    temperature: float
    shape: str
    tokens: dict[str, Estimate]
    gain: Estimate


@dataclass(frozen=True)
class Acceptance:
    """The acceptance table.

    Attributes:
        rows: by temperature and shape.
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
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
) -> Acceptance:
    """Measure the accepted length of RRSw, Traversal, PointMass and Coupled.

    Args:
        decoder: with a language model as drafter; its policy grows the trees its texts are written with.
        prompts: texts or token ids, with room for `rounds * stride + 64` more tokens.
        temperatures: above 0.
        rounds: contexts per prompt and temperature, fewer where a text ends early; the first is the prompt.
        stride: tokens between them.
        seed: of texts and trees.
        progress: called after every prompt and temperature with the temperature.
        store: keeps finished runs; by default none.

    Raises:
        ConfigError: the drafter is none, or cannot begin several trees in the same place.
    """
    if not isinstance(decoder.drafter, LanguageModelDrafter):
        raise ConfigError("acceptance is measured with a language model as drafter; name one")
    decoder = decoder.with_verifier(Coupled)
    found: dict[float, list[list[Lengths]]] = {}
    store = store or RunStore()

    def run(prompt: Prompt, temperature: float, own: int) -> list[Lengths]:
        contexts = _contexts(decoder, prompt, rounds, stride, {"temperature": temperature, "seed": own})
        return [_lengths(decoder, text) for text in contexts]

    with store.interruptible():
        for temperature in temperatures:
            for number, prompt in enumerate(prompts):
                work = functools.partial(run, prompt, temperature, seed + number)
                lengths = store.run((temperature, number), list[Lengths], work)
                found.setdefault(temperature, []).append(lengths)
                progress(f"T = {temperature:g}")
    means = {temperature: [_mean(lengths) for lengths in texts] for temperature, texts in found.items()}
    rows = [_row(temperature, shape, texts) for temperature, texts in means.items() for shape in texts[0]]
    judged = sum(len(lengths) for texts in found.values() for lengths in texts)
    return Acceptance(rows, len(prompts), judged, stride)


def reach_by_rejection(view: TreeView) -> list[float]:
    """Per node, the probability that `RRSw` accepts it, given the tree."""
    reach = [1.0] + [0.0] * (len(view.tokens) - 1)
    for node, children in enumerate(view.children):
        if not children or not reach[node]:
            continue
        p, q, left = view.target(node), view.draft(node), reach[node]
        for child in children:
            token = view.tokens[child]
            reach[child] = left * min(float(ratio(p, q, token)), 1.0)
            left -= reach[child]
            p, q = residual(p, q), without(q, token)
    return reach


def reach_by_walking(view: TreeView) -> list[float]:
    """Per node, the probability that `PointMass` accepts it, given a tree whose siblings differ."""
    reach = [1.0] + [0.0] * (len(view.tokens) - 1)
    for node, children in enumerate(view.children):
        if children:
            row = view.target(node)[[view.tokens[child] for child in children]].tolist()
            for child, probability in zip(children, row, strict=True):
                reach[child] = reach[node] * probability
    return reach


def expected_by_traversal(view: TreeView) -> float:
    """The expected number of tokens that `Traversal` accepts, given the tree.

    It stops at the first leaf it accepts, so the traversal in which it rejects all of them passes every outcome.
    """
    judgements = traverse(view)
    left, expected = 1.0, 0.0
    for (path, _), rate in zip(judgements[:-1], view.read([leaf.rate for _, leaf in judgements[:-1]]), strict=True):
        expected += left * rate * (len(path) - 1)
        left *= 1 - rate
    return expected


def _contexts(decoder: Decoder, prompt: Prompt, rounds: int, stride: int, options: dict) -> Iterator[Request]:
    """One sequence, moved along a text of the target's, with the caches of the target and the drafter."""
    ahead = (rounds - 1) * stride
    text = decoder.generate(prompt, max_new_tokens=ahead, **options).tokens if ahead else []
    request = decoder.new_request(prompt, max_new_tokens=ahead + MAX_LEVELS, **options)
    decoder.prefill(request)
    yield request
    for first in range(0, ahead, stride):
        following = text[first : first + stride]
        if len(following) < stride or following[-1] in decoder.eos:
            return
        prefill(decoder.target, request.cache, [request.tokens[-1], *following[:-1]])
        request.tokens += following
        assert request.draft is not None
        request.draft.commit(following, ())
        yield request


def _lengths(decoder: Decoder, request: Request) -> Lengths:
    """The accepted lengths of every shape and verifier at a context."""
    judges = (RRSw, PointMass, Coupled)
    grown = {(spec, judge): _Tree(decoder, request, spec, judge) for spec in SHAPES for judge in judges}
    _score(decoder, request, list(grown.values()))
    found: Lengths = {}
    for spec, shapes in SHAPES.items():
        drawn, selected, guided = (grown[spec, judge] for judge in judges)
        rejecting, walking = reach_by_rejection(drawn.upper()), reach_by_walking(selected.upper())
        coupled = guided.verdict()
        for shape, levels in shapes.items():
            found[shape] = {
                "rrsw": drawn.sum(rejecting, levels),
                "traversal": expected_by_traversal(drawn.upper(levels)),
                "point-mass": selected.sum(walking, levels),
                "coupled": min(coupled, levels),
            }
    return found


class _Tree:
    """A tree grown at a context for a verifier.

    Attributes:
        tree: the draft tree.
        logits: `[1, nodes, vocab]` of the target, once they are there.
    """

    logits: Tensor

    def __init__(self, decoder: Decoder, request: Request, spec: str, judge: type[Verifier]) -> None:
        policy = make_policy(spec)
        verifier = judge(request.verifier.sampling)
        self._text = replace(request, policy=policy, state=policy.init_state(TextContext()), verifier=verifier)
        self._randomness = request.randomness.at(len(request.tokens) - 1)
        self.tree = decoder.propose(self._text)
        self._depths: list[int] = self.tree.depths[0].tolist()

    def upper(self, levels: int = MAX_LEVELS) -> TreeView:
        """The tree down to a level."""
        view = TreeView(self.tree, 0, self.logits[0], self._text.verifier.sampling, self._randomness)
        view.children = [
            children if depth < levels else [] for depth, children in zip(self._depths, view.children, strict=True)
        ]
        return view

    def sum(self, reach: list[float], levels: int) -> float:
        """The sum of a value per node over the drafted nodes down to a level."""
        return sum(part for part, depth in zip(reach, self._depths, strict=True) if 0 < depth <= levels)

    def verdict(self) -> int:
        """The number of drafted tokens the verifier accepts."""
        ((path, _),) = self._text.verifier.verify(self.tree, self.logits, [self._randomness]).host
        return len(path) - 1


def _score(decoder: Decoder, request: Request, grown: list[_Tree]) -> None:
    """Give trees of the same root their logits, from one target pass over all of them."""
    logits = decoder.score(request, _together([each.tree for each in grown])).logits
    request.cache.commit([])
    first = 1
    for each in grown:
        last = first + each.tree.size - 1
        each.logits = torch.cat((logits[:, :1], logits[:, first:last]), 1)
        first = last


def _together(trees: list[DraftTree]) -> DraftTree:
    """One tree in which the nodes of all these hang below one root, tree after tree."""
    tokens, parents, first = [trees[0].tokens[:, :1]], [trees[0].parents[:, :1]], 1
    for tree in trees:
        above = tree.parents[:, 1:]
        tokens.append(tree.tokens[:, 1:])
        parents.append(torch.where(above > 0, above + first - 1, 0))
        first += tree.size - 1
    nothing = torch.zeros(1, first)
    levels = max(tree.levels for tree in trees)
    return DraftTree(torch.cat(tokens, 1), torch.cat(parents, 1), nothing, nothing, levels)


def _mean(lengths: list[Lengths]) -> Lengths:
    """The mean over a prompt's rounds, as tokens per round: the bonus token is counted from here on."""
    return {
        shape: {judge: 1 + statistics.fmean(round_[shape][judge] for round_ in lengths) for judge in judges}
        for shape, judges in lengths[0].items()
    }


def _row(temperature: float, shape: str, found: list[Lengths]) -> AcceptanceRow:
    values = {judge: [prompt[shape][judge] for prompt in found] for judge in found[0][shape]}
    tokens = {judge: Estimate.of(of_prompts) for judge, of_prompts in values.items()}
    return AcceptanceRow(temperature, shape, tokens, Estimate.of_gain(values["traversal"], values["rrsw"]))
