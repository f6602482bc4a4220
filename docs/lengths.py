"""Draw images/accepted-lengths.svg: how many drafted tokens are accepted, beside what theory predicts.

`python docs/lengths.py` draws lengths.json. With `--measure`, it first writes sampled texts and makes that file anew,
which takes two or three minutes. The exit code is 1 if the measured and the predicted lengths differ beyond chance.

The laws below are computed in float64 from the probabilities of a round's draft tree. They share no code with the
verifiers. p and q are the probabilities of the target and of the drafter.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from itertools import accumulate
from math import ceil
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
import torch

import drafttree
from drafttree.core.tree import DraftTree, Verdict
from drafttree.loading import make_policy
from drafttree.measure.prompt_sets import shipped_prompts
from drafttree.verifiers import VERIFIERS

DOCS = Path(__file__).parent
FIGURES, PICTURE = DOCS / "lengths.json", DOCS / "images" / "accepted-lengths.svg"
TARGET, DRAFTER = "embedded", "embedded-draft"
DEPTH, TEXTS, TOKENS = 5, 64, 256
"""Levels of the draft trees; texts of a method; tokens of a text at most."""
LEVEL = 0.001
"""Probability that chance alone makes the command report a difference, over all methods together."""
INTERVAL = 1.96
"""Standard deviations on each side of a 95 % interval."""

Law = Callable[[DraftTree, np.ndarray, Mapping[int, np.ndarray]], list[float]]
"""Maps a tree, p `[nodes, vocab]`, and q `[vocab]` by node to the chances of at least 1, 2, ... accepted tokens."""


def by_token(tree: DraftTree, target: np.ndarray, draft: Mapping[int, np.ndarray]) -> list[float]:
    """Token by token: each is accepted with probability min(1, p / q), if all before it are."""
    chances = [min(1.0, ratio) for ratio in _chain_ratios(tree, target, draft)]
    return list(accumulate(chances, mul))


def by_block(tree: DraftTree, target: np.ndarray, draft: Mapping[int, np.ndarray]) -> list[float]:
    """As a block: a running product of p / q, which is cut to 1 at every token.

    It is the chance to accept at least k tokens given the first k drafted ones, over all draws of the later ones.
    """
    ratios = _chain_ratios(tree, target, draft)
    return list(accumulate(ratios, lambda rate, ratio: min(1.0, rate * ratio), initial=1.0))[1:]


def _chain_ratios(tree: DraftTree, target: np.ndarray, draft: Mapping[int, np.ndarray]) -> list[float]:
    """p / q of every drafted token of a chain, whose nodes follow each other."""
    return [float(target[node, token] / draft[node][token]) for node, token in enumerate(tree.tokens[1:])]


def by_traversal(tree: DraftTree, target: np.ndarray, draft: Mapping[int, np.ndarray]) -> list[float]:
    """Leaves first: the walk of Traversal Verification (arXiv 2505.12398), with the chance that each node ends it."""
    stops = np.zeros(tree.levels + 1)

    def pass_through(node: int, depth: int, rate: float, reached: float) -> float:
        """Traverse a subtree that is reached with a probability; return the probability that all of it is rejected."""
        p, q = target[node], draft.get(node, target[node])
        for child in tree.children[node]:
            token = tree.tokens[child]
            child_rate = min(1.0, rate * p[token] / q[token])
            reached = pass_through(child, depth + 1, child_rate, reached)
            excess = np.maximum(rate * p - q, 0.0)
            mass = excess.sum()
            rate = mass / (mass + (1.0 - rate)) if mass else 0.0  # in brackets, or a tiny mass is lost
            p = excess / mass if mass else p
            q = np.where(np.arange(len(q)) == token, 0.0, q)
            q = q / (q.sum() or 1.0)
        stops[depth] += reached * rate
        return reached * (1.0 - rate)

    pass_through(0, 0, 1.0, 1.0)
    return np.cumsum(stops[::-1])[::-1][1:].tolist()


@dataclass(frozen=True)
class Method:
    """A way to draft and verify, with the law of its accepted lengths; the title stands above its panel."""

    title: str
    policy: str
    verifier: str
    law: Law


METHODS = (
    Method("Chain, token by token", f"chain:depth={DEPTH}", "rrs", by_token),
    Method("Chain, as one block", f"chain:depth={DEPTH}", "block", by_block),
    Method("Tree, leaves first", "template:tree=eagle-sparse", "traversal", by_traversal),
)


class LengthObserver:
    """Sees the rounds of texts (`RoundObserver`): the accepted tokens of each, and what the law predicts for it."""

    def __init__(self, law: Law) -> None:
        self._law = law
        self.lengths: list[int] = []
        self.chances: list[list[float]] = []

    def drafted(self, request: Any, grown: DraftTree, reason: str | None) -> None:
        """Do nothing; `settled` sees the tree that was verified."""

    def settled(self, request: Any, tree: DraftTree, logits: torch.Tensor, verdict: Verdict, text_round: Any) -> None:
        """Count a round. The last rounds of a text have fewer levels, and no chance of more tokens."""
        target = logits.double().softmax(-1).numpy()
        draft = {node: (row.double() / row.double().sum()).numpy() for node, row in tree.draft_probs.items()}
        chances = self._law(tree, target, draft)
        self.lengths.append(len(verdict.path) - 1)
        self.chances.append(chances + [0.0] * (DEPTH - len(chances)))


@dataclass(frozen=True)
class Comparison:
    """What was measured of a method beside what is predicted; lists are for at least 1, 2, ... accepted tokens.

    Attributes:
        title: what the method does.
        policy: the tree policy.
        verifier: the verifier's name.
        rounds: number of rounds.
        measured: share of rounds that accept so many tokens.
        predicted: mean chance to accept so many tokens, by the law.
        margins: half the widths of 95 % intervals of the measured shares.
        chi_square: of all differences together.
        p_value: probability of a larger chi-square if the law holds.
    """

    title: str
    policy: str
    verifier: str
    rounds: int
    measured: list[float]
    predicted: list[float]
    margins: list[float]
    chi_square: float
    p_value: float

    @property
    def differences(self) -> list[float]:
        """The measured minus the predicted shares."""
        return [share - chance for share, chance in zip(self.measured, self.predicted, strict=True)]

    @property
    def differs(self) -> bool:
        """Whether the difference is beyond chance."""
        return self.p_value < LEVEL / len(METHODS)


def compare(method: Method, lengths: Sequence[int], chances: Sequence[Sequence[float]]) -> Comparison:
    """Compare accepted lengths with the chances of each round.

    If the law holds, a round's differences have the mean 0, whatever was drawn before it. So their sum over the rounds
    is nearly normal, and its covariance is the sum of their products.
    """
    from scipy.stats import chi2

    predicted = np.array(chances)
    measured = np.array(lengths)[:, None] > np.arange(predicted.shape[1])
    differences = measured - predicted
    covariance = differences.T @ differences
    total = differences.sum(0)
    chi_square = float(total @ np.linalg.pinv(covariance, hermitian=True) @ total)
    margins = INTERVAL * np.sqrt(np.diag(covariance)) / len(lengths)
    return Comparison(
        method.title,
        method.policy,
        method.verifier,
        len(lengths),
        _listed(measured.mean(0)),
        _listed(predicted.mean(0)),
        _listed(margins),
        round(chi_square, 3),
        round(float(chi2.sf(chi_square, np.linalg.matrix_rank(covariance, hermitian=True))), 6),
    )


def _listed(numbers: np.ndarray) -> list[float]:
    return numbers.round(6).tolist()


def measure() -> dict[str, Any]:
    """Write the texts of every method and compare their rounds with the law; the contents of lengths.json."""
    decoder = drafttree.load(TARGET, DRAFTER, dtype="float32", device="cpu")
    prompts = shipped_prompts()
    comparisons = []
    for method in METHODS:
        method_decoder = decoder.with_policy(make_policy(method.policy)).with_verifier(VERIFIERS[method.verifier])
        observer = LengthObserver(method.law)
        for seed in range(TEXTS):
            prompt = prompts[seed % len(prompts)]
            method_decoder.generate(prompt, temperature=1.0, seed=seed, max_new_tokens=TOKENS, observer=observer)
        comparisons.append(asdict(compare(method, observer.lengths, observer.chances)))
    made = {"command": "python docs/lengths.py --measure", "date": date.today().isoformat()}
    return made | {"target": TARGET, "drafter": DRAFTER, "temperature": 1.0, "comparisons": comparisons}


WIDTH, HEIGHT, LEFT, PANEL, GAP = 760, 420, 78, 208, 22
"""Pixels: the picture, the left edge and the width of the first panel, and the gap between two panels."""
TOP, PLOT, STRIP_TOP, STRIP = 96, 150, 266, 60
"""Pixels: the top and the height of the plots of shares and of the differences below them."""
TITLE = "How many drafted tokens are accepted: measured beside theory"
STYLE = """text{font-family:system-ui,sans-serif;font-size:13px;fill:#444}.title{font-size:16px;font-weight:600}
.name{font-weight:600}.back{fill:#fff}.grid{stroke:#e3e6ea}.law{fill:none;stroke:#8a94a6;stroke-width:2}
.bar{stroke:#2a7f62;stroke-width:1.5}.point{fill:#2a7f62}
@media (prefers-color-scheme:dark){.back{fill:#0d1117}text{fill:#d1d7e0}.grid{stroke:#2a313a}
.bar{stroke:#4ac29a}.point{fill:#4ac29a}}"""


@dataclass(frozen=True)
class Plot:
    """A plot of a panel: it places numbers from `low`, at its bottom, to `high`."""

    left: float
    top: float
    height: float
    low: float
    high: float

    def x(self, length: int) -> float:
        """Where an accepted length lies, in pixels from the left."""
        return self.left + PANEL * (length - 0.5) / DEPTH

    def y(self, number: float) -> float:
        """Where a number lies, in pixels from the top."""
        return self.top + self.height * (self.high - number) / (self.high - self.low)

    def grid(self, numbers: Sequence[float]) -> str:
        """Horizontal lines at these numbers."""
        lines = [f"M{self.left:g} {self.y(number):.1f}h{PANEL}" for number in numbers]
        return f'<path class="grid" d="{"".join(lines)}"/>'

    def law(self, numbers: Sequence[float]) -> str:
        """A line through a number per length."""
        corners = [f"{self.x(length):.1f} {self.y(number):.1f}" for length, number in enumerate(numbers, start=1)]
        return f'<path class="law" d="M{"L".join(corners)}"/>'

    def points(self, numbers: Sequence[float], margins: Sequence[float]) -> list[str]:
        """A point per length, with its interval."""
        points = []
        for length, (number, margin) in enumerate(zip(numbers, margins, strict=True), start=1):
            x = self.x(length)
            points += [
                f'<path class="bar" d="M{x:.1f} {self.y(number - margin):.1f}V{self.y(number + margin):.1f}"/>',
                f'<circle class="point" cx="{x:.1f}" cy="{self.y(number):.1f}" r="3"/>',
            ]
        return points


def drawn(report: Mapping[str, Any]) -> str:
    """The figure: a panel per method, with the law as a line and what was measured as points."""
    comparisons = [Comparison(**entry) for entry in report["comparisons"]]
    extents = [max(map(abs, entry.differences)) + max(entry.margins) for entry in comparisons]
    spread = ceil(100 * max(extents)) / 100
    panels = [line for column, entry in enumerate(comparisons) for line in _panel(entry, column, spread)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    back = f'<style>{STYLE}</style><rect class="back" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
    labels = [
        _text(WIDTH / 2, 26, TITLE, kind="title"),
        *_axis(Plot(LEFT, TOP, PLOT, 0.0, 1.0), {0.0: "0 %", 0.5: "50 %", 1.0: "100 %"}, "share of rounds"),
        *_axis(Plot(LEFT, STRIP_TOP, STRIP, -spread, spread), _signed(spread), "difference"),
        _text(LEFT + 1.5 * PANEL + GAP, STRIP_TOP + STRIP + 40, "drafted tokens accepted in the round, at least"),
    ]
    return "\n".join([head, f"<title>{TITLE}</title>", back, *labels, *_legend(), *panels, "</svg>", ""])


def _panel(comparison: Comparison, column: int, spread: float) -> list[str]:
    """The panel of a method: shares above, and below them what was measured minus what is predicted."""
    left = LEFT + column * (PANEL + GAP)
    middle, bottom = left + PANEL / 2, STRIP_TOP + STRIP
    shares = Plot(left, TOP, PLOT, 0.0, 1.0)
    differences = Plot(left, STRIP_TOP, STRIP, -spread, spread)
    means = f"mean {sum(comparison.measured):.2f}, predicted {sum(comparison.predicted):.2f}"
    return [
        _text(middle, TOP - 14, comparison.title, kind="name"),
        shares.grid([0.0, 0.25, 0.5, 0.75, 1.0]),
        shares.law(comparison.predicted),
        *shares.points(comparison.measured, comparison.margins),
        differences.grid([-spread, spread]),
        differences.law([0.0] * DEPTH),
        *differences.points(comparison.differences, comparison.margins),
        *(_text(differences.x(length), bottom + 18, str(length)) for length in range(1, DEPTH + 1)),
        _text(middle, bottom + 62, means),
        _text(middle, bottom + 80, f"{comparison.rounds:,} rounds, p = {comparison.p_value:.2g}"),
    ]


def _axis(plot: Plot, labels: Mapping[float, str], name: str) -> list[str]:
    """The name of an axis, and what its lines stand for."""
    place = f'transform="translate(20 {plot.top + plot.height / 2:g}) rotate(-90)" text-anchor="middle"'
    numbers = [_text(plot.left - 8, plot.y(number) + 4, label, anchor="end") for number, label in labels.items()]
    return [f"<text {place}>{name}</text>", *numbers]


def _signed(spread: float) -> dict[float, str]:
    """The labels of an axis of differences."""
    return {spread: f"+{spread:.0%}".replace("%", " %"), 0.0: "0", -spread: f"\u2212{spread:.0%}".replace("%", " %")}


def _legend() -> list[str]:
    return [
        f'<path class="law" d="M{LEFT + 40} 52h30"/>',
        _text(LEFT + 78, 56, "predicted from the probabilities of both models", anchor="start"),
        f'<path class="bar" d="M{LEFT + 406} 43v18"/><circle class="point" cx="{LEFT + 406}" cy="52" r="3"/>',
        _text(LEFT + 416, 56, "measured, with 95 % intervals", anchor="start"),
    ]


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{style}>{words}</text>'


def main(arguments: Sequence[str]) -> int:
    """Draw the picture, from new texts if that is asked for; the exit code."""
    if "--measure" in arguments:
        FIGURES.write_text(json.dumps(measure(), indent=1) + "\n")
    report = json.loads(FIGURES.read_text())
    PICTURE.write_text(drawn(report))
    comparisons = [Comparison(**entry) for entry in report["comparisons"]]
    for comparison in comparisons:
        verdict = "differs beyond chance" if comparison.differs else "agrees with the law"
        print(
            f"{comparison.title} ({comparison.policy}, {comparison.verifier}): {comparison.rounds} rounds, "
            f"chi-square {comparison.chi_square:.1f}, p = {comparison.p_value:.2g}: {verdict}"
        )
    return any(comparison.differs for comparison in comparisons)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
