"""The time of single steps on synthetic logits: how long verifiers take, and how long trees take to grow.

Verifiers judge trees that are grown from synthetic drafter logits by the usual code. The target's logits are the
drafter's with noise, so that about as many tokens are accepted as with a fair drafter. Times are compared with that of
the product of hidden states and head, which makes the target's logits. A round also has the rest of two models, so a
verifier's share of a round is below the printed share.

Growth uses logits by Zipf's law in place of the drafter's passes, as in TALON's appendix E.6 (figure 15). The r-th most
probable token has a probability in proportion to 1 / r ** alpha: 0.7 for texts of high entropy, 1.35 for natural
language, 5 for nearly deterministic texts. Rows differ only in the order of their tokens.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttree import measure
from drafttree.core.lazy import Tensor, torch
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, Proposal
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import Device, PolicySpecs, complete_verifier, parse_floats, parse_numbers
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import make_console, progress
from drafttree.loading import PolicyLike, VerifierLike, parse_policies, parse_verifiers
from drafttree.policies import Chain, Fixed
from drafttree.policies.base import TextContext, TreePolicy
from drafttree.verifiers import Greedy, Verifier
from drafttree_lab.speed_rows import group_by

if TYPE_CHECKING:
    from drafttree.core.randomness import Randomness
    from drafttree.drafters.base import Frontier, Session
    from drafttree.measure.driver import Way
    from drafttree.measure.run_store import RunStore

NONE = "none"
POLICIES = "eagle:depth=9;talon;dynatree;fixed;opt-tree;chain"
"""The trees of EAGLE and TALON are those of TALON's paper: K = 10, D = 8, N = 60, mu = 0.03."""
PEAK, APART = 0.85, 0.7
"""Spread of the logits, relative to that at which a random row has one likely token; noise of the target's logits."""
WARM_UP, REPEATS, ROWS = 20, 100, 64
"""Number of uncounted trees, of counted trees, and of different rows; a wide frontier repeats rows."""
JUDGED = {"verifier": "", "nodes": ".0f", "accepted": ".2f", "ms": ".2f", "share": ".1%", "grow ms": ".2f"}
JUDGED |= {"logits ms": ".2f"}
GROWN = {"policy": "", "nodes": ".0f", "levels": ".0f"}
GROWN |= dict.fromkeys(("ms a tree", "ms a level", "mean ms a tree"), ".3f")


@dataclass(frozen=True)
class MicroOptions:
    """The sizes at which verifiers and policies are timed, and how often."""

    vocab: Annotated[str, typer.Option(help="Vocabulary sizes.")] = "32000,128000"
    nodes: Annotated[str, typer.Option(help="Sizes of the trees that are verified, root included.")] = "16,64,256"
    hidden: Annotated[int, typer.Option(min=1, help="Width of the hidden states.")] = 4096
    temperature: Annotated[float, typer.Option(help="Sampling temperature of verifiers, above 0.")] = 1.0
    alpha: Annotated[str, typer.Option(help="Exponents of Zipf's law, above 0, for the rows that trees grow on.")] = (
        "0.7,1.35,5"
    )
    repeats: Annotated[int, typer.Option(min=1, help="Number of trees to verify for each row of the tables.")] = 5
    trees: Annotated[int, typer.Option(min=1, help="Number of trees to grow for each row of the tables.")] = REPEATS
    device: Device = "auto"

    @property
    def alphas(self) -> list[float]:
        return parse_floats(self.alpha, "--alpha", "numbers above 0,", lambda alpha: alpha > 0 and math.isfinite(alpha))


@grouped
def bench(
    context: typer.Context,
    results: ResultOptions,
    verifiers: Annotated[
        list[str],
        typer.Option(
            "--verifiers",
            "--verifier",
            help='Verifiers to time, separated by commas, "all" or "none".',
            autocompletion=complete_verifier,
        ),
    ] = ["all"],  # noqa: B006
    policies: PolicySpecs = [POLICIES],  # noqa: B006
    options: MicroOptions = MicroOptions(),
) -> None:
    """Time verifiers, and how policies grow trees, without models.

    Times verifiers beside the computation of the logits they need, and policies on rows that follow Zipf's law. "none"
    leaves out one of the two.
    """
    sizes = parse_numbers(options.nodes, "--nodes")
    vocabs = parse_numbers(options.vocab, "--vocab")
    alphas = options.alphas
    judges = [] if verifiers == [NONE] else [*parse_verifiers(verifiers).values()]
    growth_policies = [] if policies == [NONE] else [*parse_policies(policies).values()]

    from drafttree.loading import find_device

    device = find_device(options.device)
    store = results.open_store(context)
    judge_rows: list[dict[str, Any]] = []
    growth_rows: list[dict[str, Any]] = []
    with progress(len(vocabs) * (len(sizes) * len(judges) + len(alphas) * len(growth_policies))) as advance:
        common_options: dict[str, Any] = {"vocabs": vocabs, "device": device, "store": store, "progress": advance}
        if judges:
            logits_options = {"hidden_size": options.hidden, "temperature": options.temperature}
            judge_rows = time_verifiers(
                judges, nodes=sizes, repeats=options.repeats, **logits_options, **common_options
            )
        if growth_policies and not store.interrupted:
            growth_rows = time_growth(growth_policies, alphas=alphas, repeats=options.trees, **common_options)
    report = {"verifiers": judge_rows, "growth": growth_rows, "device": str(device), "threads": torch.get_num_threads()}
    report |= {"hidden": options.hidden, "temperature": options.temperature, "trees": options.trees}
    results.finish(store, measure.to_json(report), lambda: _show(report))


def time_verifiers(
    verifiers: Sequence[VerifierLike],
    *,
    nodes: Sequence[int],
    vocabs: Sequence[int],
    hidden_size: int = 4096,
    temperature: float = 1.0,
    repeats: int = 5,
    device: "torch.device | None" = None,
    progress: Callable[[str], None] = lambda _: None,
    store: "RunStore | None" = None,
) -> list[dict[str, Any]]:
    """Time verifiers on synthetic trees: median seconds, and the `share` of verification in verification plus logits.

    Args:
        verifiers: as for `parse_verifiers`.
        nodes: tree sizes, root included.
        vocabs: vocabulary sizes.
        hidden_size: width of the hidden states that the logits are computed from.
        temperature: temperature above 0; `greedy` uses 0.
        repeats: number of judged trees for each figure, after an uncounted one.
        device: the CPU by default.
        progress: called after every verifier with its name.
        store: keeps finished runs; by default none.
    """
    from drafttree.engine.drafting.measure import time_work

    device = device or torch.device("cpu")
    verifier_types = parse_verifiers(verifiers)

    @lru_cache(maxsize=1)
    def head(vocab: int) -> Tensor:
        return torch.randn(hidden_size, vocab, device=device)

    @lru_cache(maxsize=1)
    def synthetic(vocab: int, size: int) -> tuple[_SyntheticLogits, float]:
        hidden_states = torch.ones(size, hidden_size, device=device)
        work = partial(torch.matmul, hidden_states, head(vocab))
        time_work(work, device)
        seconds = statistics.median(time_work(work, device) for _ in range(repeats))
        return _SyntheticLogits(size, vocab, device), seconds

    def run(verifier: type[Verifier], at: tuple[int, int]) -> dict[str, float]:
        judge = verifier(Sampling(0.0 if issubclass(verifier, Greedy) else temperature))
        with torch.inference_mode():
            rows, logits = synthetic(*at)
            figures = _judge(judge, rows, repeats)
        return figures | {"logits": logits, "share": figures["verify"] / (figures["verify"] + logits)}

    ways: dict[str, Way] = {name: partial(run, verifier) for name, verifier in verifier_types.items()}
    sizes = [("verifiers", point) for point in product(vocabs, nodes)]
    cells = measure.race(ways, sizes, dict[str, float], store=store, progress=progress)
    return [_at(cell, ("vocab", "nodes"), sizes) for cell in cells]


def _at(cell: Any, names: Sequence[str], prompts: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A row of a cell, with the parameters it was measured at."""
    label = "verifier" if cell.group == "verifiers" else "policy"
    return {label: cell.way, **dict(zip(names, prompts[cell.prompt][1], strict=True)), **cell.result}


class _SyntheticLogits:
    """Synthetic logits of target and drafter, a row per node in the order of expansion."""

    def __init__(self, nodes: int, vocab: int, device: "torch.device") -> None:
        self.nodes = nodes
        self.vocab = vocab
        self.device = device
        spread = PEAK * (2 * torch.tensor(float(vocab)).log()).sqrt().item()
        generator = torch.Generator(device).manual_seed(0)
        self.draft = spread * torch.randn(nodes, vocab, device=device, generator=generator)
        self.target = torch.randn(nodes, vocab, device=device, generator=generator).mul_(APART).add_(self.draft)

    def tree(self, judge: Verifier, randomness: "Randomness") -> DraftTree:
        """A tree in which every node has two children, or a chain."""
        from drafttree.drafters.base import Session
        from drafttree.engine.drafting.tree_drafter import AdjustedDraft, LogitsAdjustment
        from drafttree.engine.drafting.tree_growth import grow

        binary = Fixed(depth=16, breadth=2, threshold=0.0, budget=self.nodes)
        policy = Chain(depth=self.nodes - 1, budget=self.nodes) if judge.chains_only else binary
        draft = AdjustedDraft(
            [Session(_Rows(self.draft), self.device)], [LogitsAdjustment(judge, randomness)], self.device
        )
        grow_options = {"proposal": judge.proposal, "randomness": [randomness]}
        (tree,) = grow(policy, draft, [0], [2 * self.nodes], states=[None], **grow_options)
        return tree


class _Rows:
    """The logits of a drafter whose passes cost nothing."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self._next = 1

    def draft_root(self, sessions: "Sequence[Session]") -> Tensor:
        return self._rows[:1]

    def draft_level(self, sessions: "Sequence[Session]", frontiers: "Sequence[Frontier]") -> Tensor:
        start = self._next
        self._next += len(frontiers[0].tokens)
        return self._rows[start : self._next]


def _judge(judge: Verifier, synthetic: "_SyntheticLogits", repeats: int) -> dict[str, float]:
    """Grow and judge trees of different seeds, the first one as a warm-up.

    `growing` is the time of the tree outside the drafter's passes, for its noise or for drawing its children.
    """
    from drafttree.core.randomness import SeededRandomness
    from drafttree.engine.drafting.measure import wait_for

    def now() -> float:
        wait_for(synthetic.device)
        return time.perf_counter()

    growth_seconds = []
    verify_seconds = []
    accepted_counts = []
    for seed in range(repeats + 1):
        randomness = SeededRandomness(seed, synthetic.vocab, synthetic.device).at(7)
        start = now()
        tree = synthetic.tree(judge, randomness)
        growth_end = now()
        verdict = judge.verify(tree, synthetic.target[: tree.size], randomness)
        verify_seconds.append(now() - growth_end)
        growth_seconds.append(growth_end - start)
        accepted_counts.append(len(verdict.path) - 1)
    times = {"verify": statistics.median(verify_seconds[1:]), "growing": statistics.median(growth_seconds[1:])}
    return {"accepted": statistics.fmean(accepted_counts[1:]), **times}


def time_growth(
    policies: Sequence[PolicyLike],
    *,
    vocabs: Sequence[int],
    alphas: Sequence[float],
    repeats: int = REPEATS,
    device: "torch.device | None" = None,
    progress: Callable[[str], None] = lambda _: None,
    store: "RunStore | None" = None,
) -> list[dict[str, Any]]:
    """Time the growth of trees on synthetic logits: median `seconds` per tree, and `mean_seconds`, as in the paper.

    `auto` gets costs at which it drafts as deep and wide as it may; other policies do not use costs.

    Args:
        policies: as for `parse_policies`.
        vocabs: vocabulary sizes.
        alphas: exponents of Zipf's law, above 0.
        repeats: number of grown trees for each figure, after some uncounted ones.
        device: the CPU by default.
        progress: called after every figure with the policy's specification.
        store: keeps finished runs; by default none.
    """
    device = device or torch.device("cpu")
    draft = lru_cache(maxsize=1)(partial(zipf_draft, device=device))

    def run(policy: TreePolicy, at: tuple[int, float]) -> dict[str, float]:
        with torch.inference_mode():
            return _grow(policy, draft(*at), repeats, device)

    ways: dict[str, Way] = {spec: partial(run, policy) for spec, policy in parse_policies(policies).items()}
    rows = [("growth", point) for point in product(vocabs, alphas)]
    cells = measure.race(ways, rows, dict[str, float], store=store, progress=progress)
    return [_at(cell, ("vocab", "alpha"), rows) for cell in cells]


def zipf_draft(vocab: int, alpha: float, device: "torch.device") -> Any:
    """The logits of a drafter whose passes cost nothing: views of rows made beforehand."""
    from drafttree.engine.drafting.tree_growth import DraftRows

    class ZipfDraft(DraftRows):
        def __init__(self) -> None:
            ranks = torch.arange(1, vocab + 1, dtype=torch.float64)
            logprobs = (-alpha * ranks.log()).log_softmax(0).float()
            generator = torch.Generator().manual_seed(0)
            orders = (torch.randperm(vocab, generator=generator) for _ in range(ROWS))
            self._rows = torch.stack([logprobs[order] for order in orders]).to(device)

        def draft_root(self) -> Tensor:
            return self._rows[:1]

        def draft_level(self, frontiers: "Sequence[Frontier]") -> Tensor:
            width = len(frontiers[0].tokens)
            if width > len(self._rows):  # the first tree with a frontier wider than any before takes the time for it
                self._rows = self._rows.repeat(-(-width // len(self._rows)), 1)
            return self._rows[:width]

    return ZipfDraft()


def _grow(policy: TreePolicy, rows: Any, repeats: int, device: "torch.device") -> dict[str, float]:
    """Grow the same tree again and again."""
    from drafttree.engine.drafting.controller import Controller
    from drafttree.engine.drafting.measure import TRIAL_COSTS, time_work
    from drafttree.engine.drafting.prices import Prices
    from drafttree.engine.drafting.tree_growth import grow

    states = [policy.init_state(TextContext(TRIAL_COSTS))]
    controller = Controller(Prices(TRIAL_COSTS, frozen=True))

    def work() -> DraftTree:
        limits = controller.limits(policy, Proposal.TOP_K, [(True, 0)], 1, 1) if policy.uses_costs else None
        return grow(policy, rows, [0], [policy.budget], states=states, limits=limits)[0]

    tree = work()
    tree_seconds = [time_work(work, device) for _ in range(WARM_UP - 1 + repeats)][-repeats:]
    seconds = statistics.median(tree_seconds)
    levels = len(tree.widths)
    times = {"seconds": seconds, "per_level": seconds / max(levels, 1), "mean_seconds": statistics.fmean(tree_seconds)}
    return {"nodes": tree.size, "levels": levels, **times}


def _show(report: Mapping[str, Any]) -> None:
    console = make_console()
    machine = f"{report['device']}, {report['threads']} threads"
    for vocab, rows in group_by(report["verifiers"], itemgetter("vocab")).items():
        timed_rows = _in_milliseconds(rows, {"ms": "verify", "grow ms": "growing", "logits ms": "logits"})
        title = f"vocabulary {vocab}; hidden {report['hidden']}, temperature {report['temperature']:g}, {machine}"
        console.print(measure.to_table(title, timed_rows, JUDGED), "")
    if report["verifiers"]:
        print(
            "ms: time to verify a tree; logits ms: time to compute the target's logits; share: ms over the sum of both"
            "; grow ms: time for noise or draws while the tree grows"
        )
    for (vocab, alpha), rows in group_by(report["growth"], itemgetter("vocab", "alpha")).items():
        names = {"ms a tree": "seconds", "ms a level": "per_level", "mean ms a tree": "mean_seconds"}
        title = f"vocabulary {vocab}, alpha {alpha:g}; {machine}, {report['trees']} trees each"
        console.print(measure.to_table(title, _in_milliseconds(rows, names), GROWN), "")
    if report["growth"]:
        print(
            "medians, except in the last column; times include the softmax of the drafter's logits, but not its passes"
        )


def _in_milliseconds(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Rows with additional columns, in milliseconds, for columns in seconds."""
    for row in rows:
        yield {**row, **{column: 1e3 * row[seconds] for column, seconds in columns.items()}}
