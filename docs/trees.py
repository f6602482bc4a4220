"""Draw images/tree-*.svg: a draft tree of each policy on the embedded pair, with the path that the target accepted."""

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path

import torch

import drafttree
from drafttree.core.tree import DraftTree
from drafttree.loading import parse_policies

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
    """A tree on the host.

    Attributes:
        labels: per node, its token as text.
        probabilities: per node, of its path, by the drafter.
        tree: that was grown.
        accepted: the nodes of the accepted path.
    """

    labels: list[str]
    probabilities: list[float]
    tree: DraftTree
    accepted: frozenset[int]


def pictured(decoder: drafttree.Decoder) -> Picture:
    """The tree behind a prompt, and what the target's greedy text has of it."""
    text = decoder.plain().generate(PROMPT, max_new_tokens=16, temperature=0).tokens
    request = decoder.new_request(PROMPT, temperature=0)
    with torch.inference_mode():
        decoder.loop.read_prompt(request)
        (tree,) = decoder.loop.trees.draft([request]).trees
    return of_tree(tree, text, decoder.tokenizer.decode)


def of_tree(tree: DraftTree, text: list[int], decode) -> Picture:
    """A tree and the nodes that a text goes through."""
    path = [0]
    for token in text:
        child = tree.child(path[-1], token)
        if child is None:
            break
        path.append(child)
    labels = [decode([token]).replace(" ", "\u2423").replace("\n", "\u23ce") for token in tree.tokens]
    return Picture(labels, [*map(math.exp, tree.path_logprobs)], tree, frozenset(path))


def drawn(picture: Picture) -> str:
    """The tree as SVG: one column per level, lines as thick as the drafter is sure, the accepted path in green."""
    places = _places(picture.tree)
    lefts = _lefts(places, picture.labels)
    width, height = lefts[-1] - GAP + MARGIN, 2 * MARGIN + HEIGHT * max(y for _, y in places.values())
    lines, words = [], []
    for node, (x, y) in places.items():
        label, middle, accepted = picture.labels[node], MARGIN + HEIGHT * y, node in picture.accepted
        size = CHARACTER * len(label)
        where = f'x="{lefts[x]:.1f}" y="{middle + 4:.1f}" textLength="{size:.1f}"'
        words.append(f"<text {where}{_class('word', accepted)}>{escape(label)}</text>")
        for child in picture.tree.children[node]:
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


def _places(tree: DraftTree) -> dict[int, tuple[int, float]]:
    """Per node its column and row: leaves below each other, every other node beside the middle of its children."""
    places: dict[int, tuple[int, float]] = {}
    rows = 0

    def place(node: int, depth: int) -> float:
        nonlocal rows
        below = [place(child, depth + 1) for child in tree.children[node]]
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
    for name, policy in parse_policies(POLICIES).items():
        picture = drawn(pictured(embedded.with_policy(policy)))
        (IMAGES / f"tree-{name.partition(':')[0]}.svg").write_text(picture)
