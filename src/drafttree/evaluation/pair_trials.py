"""The trials of a pair of policy and verifier: toy models, policies of small trees, rounds and whole texts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.core.tree import Proposal
from drafttree.evaluation.coupled_text import CoupledText, coupled_texts
from drafttree.evaluation.text_law import TextLaw, Texts, text_law
from drafttree.evaluation.toy_models import TabularModel
from drafttree.evaluation.toy_texts import drawn_prompt
from drafttree.policies import TreePolicy
from drafttree.verifiers import Verifier

EXACT = 1e-12
"""Total variation up to which a pair counts as lossless in float64: rounding errors can add up to it."""
ROUNDED = 1e-5
"""The same bound in float32."""

MOST_OF_ROUNDS = 1000
"""Maximum number of outcomes of several rounds; above it, the first rounds are drawn instead of enumerated."""
FEW_OF_TEXTS = 60
"""If texts have at most this many outcomes, texts one token longer are enumerated too."""
SHORTEST = 3
"""Tokens of the shortest texts that are enumerated: enough for a round with drafts, one without, and a later one."""

LENGTH = 24
"""Maximum number of tokens of texts that are compared with plain decoding's."""
POSITIONS = (0, 1, 7, 70)
"""Positions of the first root, one after the other."""

FORMS: dict[str, list[str]] = {
    "auto": ["auto:depth=3,children=2,budget=4", "auto:depth=2,children=3,budget=4"],
    "chain": ["chain:depth=1", "chain:depth=2", "chain:depth=3"],
    "fixed": [
        "fixed:depth=2,breadth=2,threshold=0.4,budget=5",
        "fixed:depth=2,breadth=2,threshold=0,budget=4",
    ],
    "template": [
        "template:tree=binary-1",
        "template:tree=binary-2,budget=5",
        "template:paths=0+1+0.0",
        "template:paths=0+0.0+0.1",
        "template:paths=0+1+1.0+1.0.0",
    ],
    "dynatree": [
        "dynatree:base_depth=1,max_depth=3,mid_breadth=2,max_breadth=2,high=0.6,low=0.4,stop_below=0.2,deep_above=0.4,"
        "prune_below=0,budget=5",
        "dynatree:base_depth=2,max_depth=2,mid_breadth=1,max_breadth=3,high=0.7,low=0.5,stop_below=0.3,budget=4",
    ],
    "talon": ["talon:width=2,margin=0.5,budget=5", "talon:width=1,margin=0.6,depth=3,budget=5"],
    "eagle": ["eagle:depth=2,top_k=2,budget=5", "eagle:depth=3,top_k=3,budget=7"],
    "opt-tree": ["opt-tree:threshold=0.2,depth=3,budget=6", "opt-tree:threshold=0,depth=2,budget=4"],
    "dyspec": ["dyspec:depth=3,budget=6", "dyspec:depth=2,budget=4"],
}
"""Parameters of every policy whose trees are small enough to enumerate: chains, binary, ragged, adaptive."""


LARGE: dict[str, tuple[str, str]] = {
    "auto": ("auto:depth=1,children=4,budget=6", "auto:depth=5,children=1,budget=8"),
    "chain": ("chain:depth=1", "chain:depth=5"),
    "fixed": ("fixed:depth=1,breadth=4,threshold=0", "fixed:depth=5,breadth=1,threshold=0.01"),
    "template": ("template:paths=0+1+2+3", "template:paths=0+0.0+0.0.0+0.0.0.0+0.0.0.0.0"),
    "dynatree": (
        "dynatree:base_depth=1,max_depth=1,min_breadth=4,mid_breadth=4,max_breadth=4",
        "dynatree:base_depth=4,max_depth=5,mid_breadth=1,max_breadth=1,stop_below=0.01,deep_above=0.05",
    ),
    "talon": ("talon:width=4,depth=1", "talon:width=1,margin=1,depth=5"),
    "eagle": ("eagle:depth=1,top_k=5", "eagle:depth=5,top_k=2,budget=8"),
    "opt-tree": ("opt-tree:threshold=0,depth=1,budget=6", "opt-tree:threshold=0,depth=5,budget=8"),
    "dyspec": ("dyspec:depth=1,budget=6", "dyspec:depth=5,budget=8"),
}
"""Parameters of every policy whose trees are wide, or deep, and still small enough to enumerate."""


HUGE: dict[str, str] = {
    "auto": "auto:depth=15,children=1,budget=16",
    "chain": "chain:depth=15",
    "fixed": "fixed:depth=15,breadth=1,threshold=0",
    "template": "template:paths=" + "+".join(".".join("0" * level) for level in range(1, 16)),
    "dynatree": "dynatree:base_depth=15,max_depth=15,mid_breadth=1,max_breadth=1,stop_below=0.01,budget=16",
    "talon": "talon:width=1,margin=1,depth=15,budget=16",
    "eagle": "eagle:depth=15,top_k=1,budget=16",
    "opt-tree": "opt-tree:threshold=0,depth=15,budget=16",
    "dyspec": "dyspec:depth=15,budget=16",
}
"""Parameters with which each policy grows a chain of 16 nodes; other trees of that size have too many outcomes."""


COSTLY_DRAFTS = CostCurve(
    target=Costs((1, 2, 4, 8), (1.0, 1.1, 1.3, 1.9)),
    draft=(DraftCosts(first=0.05, later=Costs((1, 4), (0.17, 0.17))),),
    overhead=0.1,
    plain_overhead=0.05,
)
"""A level pays only if levels were accepted before, so a batch limits levels by what its texts have accepted."""
LOSING_DRAFTS = replace(COSTLY_DRAFTS, draft=(DraftCosts(first=4.0, later=Costs((1, 4), (0.3, 0.3))),))
"""A round with drafts costs as much as five without, so `auto` pauses after the first."""


@dataclass(frozen=True)
class ToyPair:
    """A target and a draft, which has all of the target's tokens or the first ones."""

    target: TabularModel
    draft: TabularModel

    @property
    def tolerance(self) -> float:
        """The total variation below which a difference may be due to rounding."""
        return EXACT if self.target.dtype == torch.float64 else ROUNDED

    def rounded(self) -> "ToyPair":
        """The same models in float32."""
        return ToyPair(self.target.in_dtype(torch.float32), self.draft.in_dtype(torch.float32))

    def spread(self) -> "ToyPair":
        """The same models over 4,200 columns, few of which are possible; the draft lacks the last tokens.

        From 4,097 columns on, a draw chooses a block of columns before it chooses a column.
        """
        tokens = [*(0, 127, 128, 300, 4099)[: self.target.vocab - 1], 4199]
        return ToyPair(self.target.over(tokens, 4200), self.draft.over(tokens, 4150))


def toy_pair(seed: int, vocab: int = 3) -> ToyPair:
    """The toy target and draft of a seed, whose distributions are flat, ordinary or peaked, and more or less alike."""
    spread = (0.3, 1.0, 1.0, 2.5)[seed % 4]
    target = TabularModel(vocab, 2, seed, spread)
    draft = TabularModel(vocab, 2, seed + 10_000, (0.5, 1.0, 2.0)[seed % 3], near=target)
    match seed % 7:
        case 1:
            draft = TabularModel(vocab, 2, seed + 20_000, spread)
        case 2:
            return ToyPair(target, target)
        case 3:
            draft = cut(draft, 2)
        case 4:
            target = cut(target, vocab - 1)
        case 5:
            target, draft = cut(target, 2), cut(draft, vocab - 1)
    return ToyPair(target, draft)


def without(table: TabularModel, *tokens: int) -> TabularModel:
    """The same table, with these tokens impossible."""
    copy = TabularModel(table.vocab, table.depth, 0)
    barred_mask = torch.zeros(table.vocab, dtype=torch.bool)
    barred_mask[[*tokens]] = True
    copy.rows = {context: row.masked_fill(barred_mask, -math.inf) for context, row in table.rows.items()}
    return copy


def cut(table: TabularModel, keep: int) -> TabularModel:
    """The same table, in which only the `keep` best tokens of every row are possible."""
    copy = TabularModel(table.vocab, table.depth, 0)
    copy.rows = {
        context: row.masked_fill(row < row.topk(keep).values[-1], -math.inf) for context, row in table.rows.items()
    }
    return copy


@dataclass(frozen=True)
class Trial:
    """Texts, or rounds of one text, on which a pair is tried.

    Attributes:
        models: the target and the draft.
        policy: how the tree grows.
        written: the texts; their length, or the number of rounds, is the maximum that is enumerated.
        shortest: the minimum length that is enumerated.
        sampling: sampling options; those given to `law` and `texts` take precedence.
    """

    models: ToyPair
    policy: TreePolicy
    written: Texts
    shortest: int = SHORTEST
    sampling: Mapping[str, float] = field(default_factory=dict)

    def law(self, verifier: type[Verifier], sampling: Mapping[str, Any]) -> TextLaw:
        """The law of a verifier that draws, for as many tokens or rounds as have few outcomes.

        If all rounds together have too many outcomes, the first ones are drawn once instead.
        """
        sampling = {**self.sampling, **sampling}
        if self.written.rounds is not None:
            return self._law_of_rounds(self.written.rounds, verifier, sampling)
        law = self._law(replace(self.written, length=self.shortest), verifier, sampling)
        for length in range(self.shortest + 1, self.written.length + 1):
            if law.total_variation < self.models.tolerance and law.outcomes <= FEW_OF_TEXTS:
                law = self._law(replace(self.written, length=length), verifier, sampling)
        return law

    def _law_of_rounds(self, rounds: int, verifier: type[Verifier], sampling: Mapping[str, Any]) -> TextLaw:
        round_law = self._law(replace(self.written, rounds=1), verifier, sampling)
        if rounds == 1:
            return round_law
        enumerated_rounds = rounds
        while enumerated_rounds > 1 and round_law.outcomes**enumerated_rounds > MOST_OF_ROUNDS:
            enumerated_rounds -= 1
        earlier_rounds = self.written.earlier + rounds - enumerated_rounds
        return self._law(replace(self.written, rounds=enumerated_rounds, earlier=earlier_rounds), verifier, sampling)

    def _law(self, texts: Texts, verifier: type[Verifier], sampling: Mapping[str, Any]) -> TextLaw:
        return text_law(self.models.target, self.models.draft, self.policy, verifier, texts, **sampling)

    def texts(self, verifier: type[Verifier], seed: int, sampling: Mapping[str, Any]) -> list[CoupledText]:
        """Texts of a verifier that draws nothing itself, each with plain decoding's."""
        seeds = [seed + text_seed for text_seed in self.written.seeds]
        texts = replace(self.written, length=LENGTH, seeds=seeds, rounds=None, earlier=0)
        sampling = {**self.sampling, **sampling}
        return coupled_texts(self.models.target, self.models.draft, self.policy, verifier, texts, **sampling)


def trial_of_rounds(
    models: ToyPair, policy: TreePolicy, levels: int, *, rounds: int = 1, earlier_rounds: int = 0, position: int = 0
) -> Trial:
    """A trial of some rounds of one text.

    Args:
        models: the target and the draft.
        policy: how the trees grow.
        levels: maximum number of levels of a tree.
        rounds: number of rounds to enumerate.
        earlier_rounds: number of rounds before them, which are drawn once.
        position: the position of the first root.
    """
    prompts = (drawn_prompt(models.target, position),)
    return Trial(models, policy, Texts(prompts, levels=levels, rounds=rounds, earlier=earlier_rounds))


def ordinary_trials(policies: Sequence[TreePolicy], models: int) -> list[Trial]:
    """A round of each toy model with one of the policies, in turn; half of them come after an earlier round.

    The models have three tokens and trees of up to three levels, or four tokens and two levels.
    """
    trials = []
    for index in range(models):
        vocab = 3 + index // len(policies) % 2
        round_options = {"earlier_rounds": index % 2, "position": POSITIONS[index % len(POSITIONS)]}
        trials.append(
            trial_of_rounds(toy_pair(index, vocab), policies[index % len(policies)], 6 - vocab, **round_options)
        )
    return trials


def large_trials(wide_policy: TreePolicy, deep_policy: TreePolicy, verifier: type[Verifier]) -> list[Trial]:
    """A wide tree of one level, a deep one of five, rounds late in a text, and two or three rounds.

    The wide tree is over six tokens, so that no node has a child for each. If children are drawn, it is over five
    tokens, some of which are impossible: with replacement, five possible ones would give 3,125 trees.
    """
    large_pair = toy_pair(7, 6)
    peaked_pair = toy_pair(3, 2)
    flat_pair = toy_pair(0, 2)
    if verifier.proposal is not Proposal.TOP_K:
        kept_count = 3 if verifier.proposal is Proposal.WITH_REPLACEMENT else 5
        five_token_pair = toy_pair(7, 5)
        large_pair = ToyPair(cut(five_token_pair.target, kept_count), cut(five_token_pair.draft, 4))
    return [
        trial_of_rounds(large_pair, wide_policy, levels=1, position=5),
        trial_of_rounds(peaked_pair, deep_policy, levels=5, position=1),
        trial_of_rounds(flat_pair, deep_policy, levels=2, earlier_rounds=3, position=3),
        trial_of_rounds(flat_pair, deep_policy, levels=2, earlier_rounds=6, position=4),
        trial_of_rounds(flat_pair, deep_policy, levels=1, rounds=3, position=2),
        trial_of_rounds(flat_pair, deep_policy, levels=2, rounds=2, position=3),
    ]


def precision_trials(small_policy: TreePolicy) -> list[Trial]:
    """A round in float32, and a round in both precisions over a large vocabulary, part of which the draft lacks."""
    target, draft = toy_pair(1, 5).target, toy_pair(1, 5).draft
    large_pair = ToyPair(cut(target, 3), cut(draft, 3)).spread()
    return [
        trial_of_rounds(toy_pair(1).rounded(), small_policy, levels=2, position=2),
        trial_of_rounds(large_pair, small_policy, levels=1, position=3),
        trial_of_rounds(large_pair.rounded(), small_policy, levels=1, position=3),
    ]


def text_trials(small_policy: TreePolicy, verifier: type[Verifier]) -> list[Trial]:
    """Whole texts, alone and several together, with equal and with different seeds.

    Args:
        small_policy: a policy whose trees have few outcomes.
        verifier: the verifier; if it draws children with replacement, trees and vocabularies are smaller.
    """
    two_token_pair = toy_pair(1, 2)
    three_token_pair = toy_pair(1, 3)
    if verifier.proposal is Proposal.WITH_REPLACEMENT:
        small_policy = small_policy.model_copy(update={"budget": min(small_policy.budget, 3)})
        three_token_pair = two_token_pair
    eos = (three_token_pair.target.vocab - 1,)
    twin_options = {"prompts": ((0,), (0,)), "seeds": (0, 0)}
    mixed_options = {"prompts": ((0,), (0, 1)), "eos": (1,), "levels": 2}
    trials = [
        Trial(three_token_pair, small_policy, Texts(length=4, eos=eos, levels=2)),
        Trial(
            two_token_pair,
            small_policy,
            Texts(**twin_options, eos=(1,), levels=2, batch=1, costs=COSTLY_DRAFTS, pause=1),
        ),
        Trial(
            two_token_pair, small_policy, Texts(**mixed_options, seeds=(0, 0), length=4, batch=2, costs=COSTLY_DRAFTS)
        ),
        Trial(two_token_pair, small_policy, Texts(**mixed_options, seeds=(0, 1), length=4, batch=2, pause=1)),
    ]
    if small_policy.uses_costs:
        trials.append(
            Trial(two_token_pair, small_policy, Texts(**twin_options, length=4, levels=2, costs=LOSING_DRAFTS))
        )
    return trials


def less_of_the_last(input_ids: Tensor, scores: Tensor) -> Tensor:
    """A logits processor that makes a token follow itself less often, and so depends on the path to a node."""
    return scores.scatter_add(1, input_ids[:, -1:], scores.new_full((len(scores), 1), -1.5))


def serving_trials(small_policy: TreePolicy, huge_policy: TreePolicy, verifier: type[Verifier]) -> list[Trial]:
    """Texts that an engine, reused rows, processors, truncation or long fruitless drafts may affect.

    Args:
        small_policy: a policy whose trees have few outcomes.
        huge_policy: a policy that grows a chain of 16 nodes.
        verifier: as for `text_trials`.
    """
    two_token_pair = toy_pair(1, 2)
    three_token_pair = toy_pair(1, 3)
    certain_pair = toy_pair(3, 2)
    if verifier.proposal is Proposal.WITH_REPLACEMENT:
        small_policy = small_policy.model_copy(update={"budget": min(small_policy.budget, 3)})
    fruitless_pair = ToyPair(without(three_token_pair.target, 2), without(three_token_pair.draft, 0, 1))
    batched_texts = Texts(((0,), (0,), (0,)), (0, 0, 0), 2, batch=3, levels=1)
    queued_texts = Texts(((0, 1, 1), (0, 1, 0, 1)), (0, 1), 2, batch=1, levels=1)
    return [
        Trial(two_token_pair, small_policy, batched_texts, shortest=2),
        Trial(two_token_pair, small_policy, queued_texts, shortest=2),
        Trial(three_token_pair, small_policy, Texts(((0,), (0,)), (0, 0), 3, levels=1, is_head=True)),
        Trial(two_token_pair, small_policy, Texts(length=3, levels=2, processor=less_of_the_last)),
        Trial(three_token_pair, small_policy, Texts(length=2, levels=2), shortest=2, sampling={"top_k": 2}),
        Trial(three_token_pair, small_policy, Texts(length=2, levels=2), shortest=2, sampling={"top_p": 0.7}),
        Trial(three_token_pair, small_policy, Texts(length=2, levels=2), shortest=2, sampling={"min_p": 0.3}),
        Trial(fruitless_pair, small_policy, Texts(length=6, levels=1), shortest=6),
        trial_of_rounds(ToyPair(certain_pair.target, cut(certain_pair.draft, 1)), huge_policy, levels=15, position=2),
    ]
