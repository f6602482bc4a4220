"""From a recorded round to plain data."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from drafttree.core.sampling import Sampling
from drafttree.engine.metrics import Round
from drafttree.evaluation.trace.growth import Candidate, Growth, LevelTable
from drafttree.evaluation.trace.recording import RecordedRound
from drafttree.evaluation.trace.token_texts import TokenTexts
from drafttree.evaluation.trace.trace import Outcome, Rule, TracedNode, TracedRound
from drafttree.policies.base import TreePolicy


class RoundReader:
    """Reads the recorded rounds of one text.

    Args:
        sampling: the sampling of the text.
        policy: the policy of the text.
        texts: turns tokens into text.
    """

    def __init__(self, sampling: Sampling, policy: TreePolicy, texts: TokenTexts) -> None:
        self._sampling, self._policy, self._texts = sampling, policy, texts

    @torch.inference_mode()
    def read(self, record: RecordedRound, before: int | None, cost: Round) -> TracedRound:
        """The round of a record.

        Args:
            record: the record of the round.
            before: the token before its root, None for the first of a text.
            cost: the metrics of the round.
        """
        tree, logits, verdict = record.judged
        growth = Growth(record, self._sampling, reranks=self._policy.reranks, budget=self._policy.budget)
        target = self._sampling.process(logits).softmax(-1)
        path, bonus = verdict
        in_tree = sorted((node for node in growth.joined if node.place is not None), key=lambda node: node.place or 0)
        accepted = [in_tree.index(node) for node in in_tree if node.place in path]
        nodes = self._nodes([*in_tree, *growth.cut], len(in_tree), target, before)
        return TracedRound(
            nodes=judged(nodes, len(in_tree), accepted),
            size=len(in_tree),
            path=accepted,
            bonus=self._bonus(growth, in_tree[accepted[-1]], bonus, target, accepted[-1]),
            committed=cost.committed,
            accepted=cost.accepted,
            cut={rule.value: count for rule, count in growth.counts.items()},
            widths=list(tree.widths),
            seconds=phases(cost),
        )

    def _nodes(self, found: list[Candidate], size: int, target: Tensor, before: int | None) -> list[TracedNode]:
        """The nodes of a tree of a size, then what was cut; what became of them is not judged yet."""
        places = {id(node): number for number, node in enumerate(found)}
        chances = _chances(found, target)
        traced = []
        for number, (node, chance) in enumerate(zip(found, chances, strict=True)):
            parent = node.parent
            traced.append(
                TracedNode(
                    token=node.token,
                    text=self._texts.piece(before if parent is None else parent.token, node.token),
                    parent=-1 if parent is None else places[id(parent)],
                    depth=node.depth,
                    rank=node.rank,
                    draft=node.draft,
                    seen=node.seen,
                    target=chance,
                    outcome=Outcome.ROOT if parent is None else Outcome.UNREACHED if number < size else Outcome.CUT,
                    rule=node.rule,
                )
            )
        return traced

    def _bonus(self, growth: Growth, last: Candidate, token: int, target: Tensor, parent: int) -> TracedNode:
        """The bonus token behind the last accepted node, and why it was not drafted there."""
        rank, draft, seen, rule = -1, None, None, last.rule
        if last.row is not None:
            level, row = last.row
            table = growth.tables[level]
            rank = int((table.seen[row] > table.seen[row, token]).sum())
            draft, seen = float(table.draft[row, token]), float(table.seen[row, token].exp())
            rule = _missed(growth, last, table, row, token)
        assert last.place is not None
        return TracedNode(
            token=token,
            text=self._texts.piece(last.token, token),
            parent=parent,
            depth=last.depth + 1,
            rank=rank,
            draft=draft,
            seen=seen,
            target=float(target[last.place, token]),
            outcome=Outcome.BONUS,
            rule=rule,
        )


def _missed(growth: Growth, last: Candidate, table: LevelTable, row: int, token: int) -> Rule:
    """The rule that kept a token out of the tree behind an expanded node; none where it was there, and rejected."""
    below = [node for node in growth.joined if node.parent is last and node.token == token]
    if below:
        return below[0].rule if below[0].place is None else Rule.NONE
    if growth.drawn:
        return Rule.DRAW
    if token not in table.tokens[row]:
        return Rule.WIDTH
    return Rule.BUDGET if table.keep[row, table.tokens[row].index(token)] else Rule.KEEP


def _chances(found: Sequence[Candidate], target: Tensor) -> list[float | None]:
    """The target's probability of each node, where its parent was scored."""
    scored = [
        (number, node.parent.place, node.token)
        for number, node in enumerate(found)
        if node.parent is not None and node.parent.place is not None
    ]
    chances: list[float | None] = [None] * len(found)
    if scored:
        _, parents, tokens = zip(*scored, strict=True)
        read = target[list(parents), list(tokens)].tolist()
        for (number, _, _), chance in zip(scored, read, strict=True):
            chances[number] = chance
    return chances


def judged(nodes: Sequence[TracedNode], size: int, path: Sequence[int]) -> list[TracedNode]:
    """The nodes with what became of those of the tree, given its size and the accepted path."""
    found = list(nodes)
    for number, node in enumerate(nodes[1:size], start=1):
        if number in path:
            found[number] = replace(node, outcome=Outcome.ACCEPTED)
        elif node.parent in path:
            found[number] = replace(node, outcome=Outcome.REJECTED)
    return found


def phases(cost: Round) -> dict[str, float]:
    """The time of a round by phase; on a device, passes overlap with the rest."""
    seconds = {
        "draft": cost.draft_seconds,
        "growth": max(cost.growth_seconds, 0.0),
        "masks": cost.mask_seconds,
        "target": cost.target_seconds,
        "verify": cost.verify_seconds,
        "commit": cost.commit_seconds,
        "text": cost.text_seconds,
    }
    return seconds | {"other": max(cost.seconds - sum(seconds.values()), 0.0)}
