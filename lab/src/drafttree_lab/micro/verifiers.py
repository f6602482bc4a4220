"""The time every verifier takes for a tree, beside that of the logits it needs, over tree sizes and vocabularies.

The trees are grown from synthetic drafter rows by the same code as real ones, and the target's rows are the drafter's
with noise on every logit, so that about as many tokens are accepted as from a fair drafter. The yardstick is the
product that makes the target's logits, hidden states times head, measured in the same run: a round costs that and the
rest of two models besides, so the share of a round is lower than the share that is printed.
"""

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product

import torch
from torch import Tensor

from drafttree.core.randomness import Randomness, SeededRandomness
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree
from drafttree.drafters.base import Frontier, Session
from drafttree.engine.tree_drafter import AdjustedDraft, LogitsAdjustment
from drafttree.engine.tree_growth import grow
from drafttree.loading import VerifierLike, parse_verifiers
from drafttree.measure.run_store import RunStore
from drafttree.policies import Chain, Fixed
from drafttree.verifiers import VERIFIERS, Greedy, Verifier
from drafttree_lab.experiment.cells import Key, run_cells

NODES, VOCABS = (16, 64, 256), (4_000, 32_000, 128_000)
PEAK, APART = 0.85, 0.7
"""Spread of the logits, as a share of the one at which a random row has a single likely token; noise on the target."""


@dataclass(frozen=True)
class VerifierTime:
    """One verifier on trees of one size over one vocabulary; medians in seconds.

    Attributes:
        verifier: its name.
        vocab: columns of a row.
        nodes: nodes of the tree, root included.
        accepted: drafted tokens, mean.
        verify: judging a tree.
        growing: what the tree cost beside the drafter's passes: the noise shown to it, or its children drawn.
        logits: the target's logits of all nodes, from their hidden states.
    """

    verifier: str
    vocab: int
    nodes: int
    accepted: float
    verify: float
    growing: float
    logits: float

    @property
    def share(self) -> float:
        """The share of verifying in the time of verifying and logits together."""
        return self.verify / (self.verify + self.logits)


@dataclass(frozen=True)
class VerifierBench:
    """All measurements.

    Attributes:
        rows: one per vocabulary, tree size and verifier.
        hidden: width of the hidden states the logits are made from.
        temperature: the temperature of every verifier but greedy.
        device: the device where it was measured.
        threads: threads of the CPU.
    """

    rows: list[VerifierTime]
    hidden: int
    temperature: float
    device: str
    threads: int

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return {**asdict(self), "rows": [{**asdict(row), "share": row.share} for row in self.rows]}


@torch.inference_mode()
def bench_verifiers(
    verifiers: Sequence[VerifierLike] = tuple(VERIFIERS),
    *,
    nodes: Sequence[int] = NODES,
    vocabs: Sequence[int] = VOCABS,
    hidden: int = 4096,
    temperature: float = 1.0,
    repeats: int = 5,
    device: torch.device | None = None,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
) -> VerifierBench:
    """Time verifiers on synthetic trees.

    Args:
        verifiers: as for `parse_verifiers`.
        nodes: tree sizes, root included.
        vocabs: vocabulary sizes.
        hidden: width of the hidden states.
        temperature: above 0; `greedy` decodes at 0.
        repeats: trees judged for each figure, after one that is not counted.
        device: the CPU by default.
        progress: called after every verifier with its name.
        store: keeps finished runs; by default none.
    """
    device, chosen = device or torch.device("cpu"), parse_verifiers(verifiers)

    @functools.lru_cache(maxsize=1)
    def head(vocab: int) -> Tensor:
        return torch.randn(hidden, vocab, device=device)

    @functools.lru_cache(maxsize=1)
    def synthetic(vocab: int, size: int) -> tuple[_SyntheticLogits, float]:
        logits = _median(functools.partial(_product, head(vocab), size), repeats, device)
        return _SyntheticLogits(size, vocab, device), logits

    def run(vocab: int, size: int, name: str) -> VerifierTime:
        verifier = chosen[name]
        judge = verifier(Sampling(0.0 if issubclass(verifier, Greedy) else temperature))
        return _time(name, judge, *synthetic(vocab, size), repeats)

    cells: dict[Key, Callable[[], VerifierTime]] = {
        key: functools.partial(run, *key) for key in product(vocabs, nodes, chosen)
    }
    rows = run_cells(cells, VerifierTime, progress=progress, store=store)
    return VerifierBench([*rows.values()], hidden, temperature, str(device), torch.get_num_threads())


class _SyntheticLogits:
    """Synthetic logits of target and drafter, in the order in which nodes are expanded."""

    def __init__(self, nodes: int, vocab: int, device: torch.device) -> None:
        self.nodes, self.vocab, self.device = nodes, vocab, device
        spread = PEAK * (2 * torch.tensor(float(vocab)).log()).sqrt().item()
        generator = torch.Generator(device).manual_seed(0)
        self.draft = spread * torch.randn(nodes, vocab, device=device, generator=generator)
        self.target = torch.randn(nodes, vocab, device=device, generator=generator).mul_(APART).add_(self.draft)

    def tree(self, judge: Verifier, randomness: Randomness) -> DraftTree:
        """A tree in which every node has two children, or a chain."""
        binary = Fixed(depth=16, breadth=2, threshold=0.0, budget=self.nodes)
        policy = Chain(depth=self.nodes - 1, budget=self.nodes) if judge.chains_only else binary
        draft = AdjustedDraft(
            [Session(_Rows(self.draft), self.device)], [LogitsAdjustment(judge, randomness)], self.device
        )
        how = {"proposal": judge.proposal, "randomness": [randomness]}
        (tree,) = grow(policy, draft, [0], [2 * self.nodes], states=[None], **how)
        return tree


class _Rows:
    """The logits of a drafter whose passes cost nothing."""

    def __init__(self, rows: Tensor) -> None:
        self._rows, self._next = rows, 1

    def root(self, sessions: Sequence[Session]) -> Tensor:
        return self._rows[:1]

    def expand(self, sessions: Sequence[Session], frontiers: Sequence[Frontier]) -> Tensor:
        first, self._next = self._next, self._next + len(frontiers[0].tokens)
        return self._rows[first : self._next]


def _time(name: str, judge: Verifier, synthetic: _SyntheticLogits, logits: float, repeats: int) -> VerifierTime:
    """Grow and judge trees of different seeds, the first one as a warm-up."""
    growing, verifying, accepted = [], [], []
    for seed in range(repeats + 1):
        randomness = SeededRandomness(seed, synthetic.vocab, synthetic.device).at(7)
        begun = _now(synthetic.device)
        tree = synthetic.tree(judge, randomness)
        grown = _now(synthetic.device)
        verdict = judge.verify(tree, synthetic.target[: tree.size], randomness)
        verifying.append(_now(synthetic.device) - grown)
        growing.append(grown - begun)
        accepted.append(len(verdict.path) - 1)
    times = (statistics.median(verifying[1:]), statistics.median(growing[1:]))
    return VerifierTime(name, synthetic.vocab, synthetic.nodes, statistics.fmean(accepted[1:]), *times, logits)


def _product(head: Tensor, nodes: int) -> Tensor:
    return torch.ones(nodes, len(head), device=head.device) @ head


def _median(run: Callable[[], Tensor], repeats: int, device: torch.device) -> float:
    times = []
    for _ in range(repeats + 1):
        begun = _now(device)
        run()
        times.append(_now(device) - begun)
    return statistics.median(times[1:])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
