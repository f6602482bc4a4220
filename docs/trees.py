"""Draw images/tree-*.svg: a draft tree of each policy on the embedded pair, with the path that the target accepted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import drafttree
from drafttree.evaluation.trace import Outcome, TracedNode, trace_text

IMAGES = Path(__file__).parent / "images"
PROMPT = "In the beginning"
POLICIES = (
    "chain:depth=5",
    "template:tree=binary-3",
    "fixed:depth=4,breadth=2,budget=16",
    "talon:budget=16,width=4",
    "dynatree:budget=16",
    "eagle:budget=16,depth=5,top_k=4",
    "opt-tree:budget=16,threshold=0.1",
    "dyspec:budget=16",
)
CHARACTER, GAP, HEIGHT, MARGIN = 7.23, 44, 24, 14
"""Pixels of a character, between two columns, of a row, and around the tree."""
STYLE = """text{font-family:ui-monospace,monospace;font-size:12px;fill:#333}path{fill:none;stroke:#9ba4b1}
.back{fill:#fff}.accepted{stroke:#2a7f62;stroke-width:3}.word{fill:#2a7f62;font-weight:bold}
@media (prefers-color-scheme:dark){.back{fill:#0d1117}text{fill:#d1d7e0}path{stroke:#6e7781}
.accepted{stroke:#4ac29a}.word{fill:#4ac29a}}"""


@dataclass(frozen=True)
class Picture:
    """A tree to draw.

    Attributes:
        labels: per node, its token as text.
        probabilities: per node, the drafter's probability of the path to it.
        children: per node, its children.
        accepted: the nodes of the accepted path.
    """

    labels: list[str]
    probabilities: list[float]
    children: list[list[int]]
    accepted: frozenset[int]


def pictured(decoder: drafttree.Decoder) -> Picture:
    """The first tree behind the prompt, and what the target accepts of it."""
    first_round = trace_text(decoder, PROMPT, max_new_tokens=16, temperature=0).rounds[0]
    assert decoder.tokenizer is not None
    return of_nodes(first_round.nodes[: first_round.size], decoder.tokenizer.decode)


def of_nodes(nodes: Sequence[TracedNode], decode: Callable[[list[int]], str]) -> Picture:
    """The picture of a traced tree, whose tokens are turned into text one by one."""
    labels = [decode([node.token]).replace(" ", "\u2423").replace("\n", "\u23ce") for node in nodes]
    probabilities = [1.0]
    children: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes[1:], start=1):
        assert node.draft is not None
        probabilities.append(probabilities[node.parent] * node.draft)
        children[node.parent].append(index)
    on_path = (Outcome.ROOT, Outcome.ACCEPTED)
    accepted = frozenset(index for index, node in enumerate(nodes) if node.outcome in on_path)
    return Picture(labels, probabilities, children, accepted)


def drawn(picture: Picture) -> str:
    """The tree as SVG: one column per level, lines as thick as the drafter is sure, the accepted path in green."""
    places = _places(picture.children)
    lefts = _lefts(places, picture.labels)
    width, height = lefts[-1] - GAP + MARGIN, 2 * MARGIN + HEIGHT * max(y for _, y in places.values())
    lines, words = [], []
    for node, (x, y) in places.items():
        label, middle, accepted = picture.labels[node], MARGIN + HEIGHT * y, node in picture.accepted
        size = CHARACTER * len(label)
        where = f'x="{lefts[x]:.1f}" y="{middle + 4:.1f}" textLength="{size:.1f}"'
        words.append(f"<text {where}{_class('word', accepted)}>{escape(label)}</text>")
        for child in picture.children[node]:
            start, end, below = lefts[x] + size + 4, lefts[x + 1] - 4, MARGIN + HEIGHT * places[child][1]
            bend, turn = end - GAP + 8, end - GAP / 2
            curve = f"M{start:.1f} {middle:.1f} H{bend:.1f} C{turn:.1f} {middle:.1f} {turn:.1f} {below:.1f} {end:.1f}"
            thick = f' stroke-width="{0.6 + 3 * picture.probabilities[child]:.1f}"'
            lines.append(f'<path d="{curve} {below:.1f}"{thick}{_class("accepted", child in picture.accepted)}/>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">'
    back = f'<style>{STYLE}</style><rect class="back" width="100%" height="100%" rx="6"/>'
    lines.sort(key=lambda line: "accepted" in line)  # what is drawn last lies on top
    return "\n".join([head, back, *lines, "".join(words), "</svg>", ""])


def _lefts(places: dict[int, tuple[int, float]], labels: list[str]) -> list[float]:
    """Where each column begins, and at last where one more would: behind the longest word of the one before."""
    lefts = [float(MARGIN)]
    for column in range(1 + max(x for x, _ in places.values())):
        longest = max(len(labels[node]) for node, (x, _) in places.items() if x == column)
        lefts.append(lefts[-1] + CHARACTER * longest + GAP)
    return lefts


def _places(children: list[list[int]]) -> dict[int, tuple[int, float]]:
    """Per node its column and row: leaves below each other, every other node beside the middle of its children."""
    places: dict[int, tuple[int, float]] = {}
    rows = 0

    def place(node: int, depth: int) -> float:
        nonlocal rows
        below = [place(child, depth + 1) for child in children[node]]
        rows += not below
        places[node] = (depth, (below[0] + below[-1]) / 2 if below else rows - 1)
        return places[node][1]

    place(0, 0)
    return places


def _class(name: str, wanted: bool) -> str:
    return f' class="{name}"' if wanted else ""


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    embedded = drafttree.load(drafter="embedded-draft", dtype="float32", device="cpu")
    for policy in POLICIES:
        picture = drawn(pictured(embedded.with_policy(policy)))
        (IMAGES / f"tree-{policy.partition(':')[0]}.svg").write_text(picture)
