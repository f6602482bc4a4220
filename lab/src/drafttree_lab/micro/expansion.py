"""The time it takes to grow a tree, beside the drafter's passes: rows that follow Zipf's law take their place.

TALON's appendix E.6 (figure 15) has this experiment. The r-th most probable token of a row has a probability in
proportion to 1 / r ** alpha: 0.7 for texts of high entropy, 1.35 for natural language, 5 for nearly deterministic ones.
Rows differ in the order of their tokens only, so every policy sees the same probabilities.
"""

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product

import torch
from torch import Tensor

from drafttree.core.tree import DraftTree, Proposal
from drafttree.drafters import Frontier
from drafttree.engine.drafting.controller import Controller
from drafttree.engine.drafting.measure import TRIAL_COSTS
from drafttree.engine.drafting.prices import Prices
from drafttree.engine.tree_growth import DraftRows, grow
from drafttree.loading import PolicyLike, parse_policies
from drafttree.measure.run_store import RunStore
from drafttree.policies.base import TextContext, TreePolicy
from drafttree_lab.experiment.cells import Key, run_cells

WARM_UP, REPEATS = 20, 100
ROWS = 64
"""Different rows; a wider frontier sees them more than once."""


@dataclass(frozen=True)
class ExpansionTime:
    """Growing the trees of one policy from rows of one kind.

    Attributes:
        policy: its specification.
        vocab: columns of a row.
        alpha: the exponent of Zipf's law.
        nodes: nodes of the tree, root included.
        levels: levels on which the drafter was asked.
        seconds: seconds for a tree, the median.
        mean_seconds: mean seconds for a tree, which the paper reports.
    """

    policy: str
    vocab: int
    alpha: float
    nodes: int
    levels: int
    seconds: float
    mean_seconds: float

    @property
    def per_level(self) -> float:
        """Median seconds for a level."""
        return self.seconds / max(self.levels, 1)

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return {**asdict(self), "per_level": self.per_level}


@dataclass(frozen=True)
class ExpansionBench:
    """All measurements.

    Attributes:
        rows: one per vocabulary, exponent and policy.
        repeats: trees grown for each.
        device: the device where they were grown.
        threads: threads of the CPU.
    """

    rows: list[ExpansionTime]
    repeats: int
    device: str
    threads: int

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return {**asdict(self), "rows": [row.summary() for row in self.rows]}


class ZipfDraft(DraftRows):
    """The logits of a drafter whose passes cost nothing: views of rows made beforehand.

    Args:
        vocab: columns of a row.
        alpha: the exponent, above 0.
        device: the device where the rows lie.
    """

    def __init__(self, vocab: int, alpha: float, device: torch.device) -> None:
        ranks = torch.arange(1, vocab + 1, dtype=torch.float64)
        logprobs = (-alpha * ranks.log()).log_softmax(0).float()
        generator = torch.Generator().manual_seed(0)
        orders = (torch.randperm(vocab, generator=generator) for _ in range(ROWS))
        self._rows = torch.stack([logprobs[order] for order in orders]).to(device)

    def root(self) -> Tensor:
        """`[1, vocab]`."""
        return self._rows[:1]

    def expand(self, frontiers: Sequence[Frontier]) -> Tensor:
        """`[nodes, vocab]`; the first tree with a frontier wider than any before takes the time to make rows."""
        width = len(frontiers[0].tokens)
        if width > len(self._rows):
            self._rows = self._rows.repeat(-(-width // len(self._rows)), 1)
        return self._rows[:width]


@torch.inference_mode()
def bench_expansion(
    policies: Sequence[PolicyLike],
    *,
    vocabs: Sequence[int],
    alphas: Sequence[float],
    repeats: int = REPEATS,
    device: torch.device | None = None,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
) -> ExpansionBench:
    """Time the growth of trees on synthetic rows, without models.

    `auto` is told costs by which it drafts as deep and wide as it may; the others weigh no costs.

    Args:
        policies: as for `parse_policies`.
        vocabs: vocabulary sizes.
        alphas: exponents of Zipf's law, above 0.
        repeats: trees grown for each figure, after some that are not counted.
        device: the CPU by default.
        progress: called after every figure with the policy's specification.
        store: keeps finished runs; by default none.
    """
    device, chosen = device or torch.device("cpu"), parse_policies(policies)
    draft = functools.lru_cache(maxsize=1)(functools.partial(ZipfDraft, device=device))
    cells: dict[Key, Callable[[], ExpansionTime]] = {
        (vocab, alpha, spec): functools.partial(_time, spec, policy, vocab, alpha, draft, repeats, device)
        for vocab, alpha in product(vocabs, alphas)
        for spec, policy in chosen.items()
    }
    rows = run_cells(cells, ExpansionTime, progress=progress, store=store)
    return ExpansionBench([*rows.values()], repeats, str(device), torch.get_num_threads())


def _time(
    spec: str,
    policy: TreePolicy,
    vocab: int,
    alpha: float,
    draft: Callable[[int, float], ZipfDraft],
    repeats: int,
    device: torch.device,
) -> ExpansionTime:
    """Grow the same tree again and again."""
    states, rows = [policy.init_state(TextContext(TRIAL_COSTS))], draft(vocab, alpha)
    controller = Controller(Prices(TRIAL_COSTS, frozen=True))

    def work() -> DraftTree:
        limits = controller.limits(policy, Proposal.TOP_K, [(True, 0)], 1, 1) if policy.uses_costs else None
        return grow(policy, rows, [0], [policy.budget], states=states, limits=limits)[0]

    tree, times = work(), list[float]()
    for _ in range(WARM_UP - 1 + repeats):
        begun = _now(device)
        work()
        times.append(_now(device) - begun)
    kept = times[-repeats:]
    figures = statistics.median(kept), statistics.fmean(kept)
    return ExpansionTime(spec, vocab, alpha, tree.size, len(tree.widths), *figures)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
