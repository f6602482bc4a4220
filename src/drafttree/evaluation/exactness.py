"""Exact enumeration: every draw and every decision of a round, weighted, in float64.

A verifier asks for randomness in two ways, and a sampled tree in one. `ScriptedRandom` answers from a script and notes
what else could have been answered, so running a round again for every script gives its exact law, without a line of the
verifier being written twice. A verifier is lossless iff the committed tokens, continued by the target, have the
target's own law.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

from drafttree.core.errors import ConfigError, unknown
from drafttree.core.randomness import RoundRandomness, SeededRandomness, gumbel
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, Proposal, Verdict
from drafttree.engine import compatibility
from drafttree.engine.child_sampler import ChildSampler
from drafttree.engine.draft_logits import AdjustedDraft
from drafttree.engine.tree_growth import grow
from drafttree.policies.base import TreePolicy
from drafttree.verifiers.base import Verifier

MOST = 50_000
"""Outcomes of one random procedure, or of a pair's trees and verdicts, beyond which enumerating them is given up."""

PLAIN = Sampling(1.0)
OPTIONS = {field.name for field in fields(Sampling)} - {"seed"}

Context = tuple[int, ...]
Answer = TypeVar("Answer")
Result = TypeVar("Result")


class TabularModel:
    """A toy model: a distribution over the next token for every context.

    Args:
        vocab: number of tokens.
        depth: contexts up to this length have rows of their own; longer ones use their last `depth` tokens.
        seed: of the random rows.
        spread: standard deviation of the logits; larger is more peaked.
        near: another table whose logits these perturb, such as a target for its draft.

    Raises:
        ConfigError: there are no tokens, or the depth is negative.
    """

    def __init__(
        self, vocab: int, depth: int, seed: int, spread: float = 1.0, near: "TabularModel | None" = None
    ) -> None:
        if vocab < 1 or depth < 0:
            raise ConfigError(
                f"a table of {vocab} tokens and depth {depth}; it needs a token and a depth of at least 0"
            )
        generator = torch.Generator().manual_seed(seed)
        contexts = [c for length in range(depth + 1) for c in itertools.product(range(vocab), repeat=length)]
        base = {} if near is None else near.rows
        self.vocab, self.depth = vocab, depth
        self.rows = {
            context: base.get(context, 0.0) + spread * torch.randn(vocab, generator=generator, dtype=torch.float64)
            for context in contexts
        }

    def logits(self, context: Context) -> Tensor:
        """Float64 `[vocab]` for the tokens after the root."""
        return self.rows[context[-self.depth :] if self.depth else ()]

    def law(self, context: Context, sampling: Sampling = PLAIN) -> list[float]:
        """Probabilities of the next token."""
        return sampling.process(self.logits(context)).softmax(-1).tolist()


class ScriptedRandom:
    """Randomness that answers from a script, and takes the first possible answer where the script ends.

    Args:
        script: which of the possible answers to give, in the order of the questions.

    Attributes:
        weight: probability of these answers.
        choices: per question, which answer was given and how many were possible.
    """

    def __init__(self, script: list[int]) -> None:
        self.weight = 1.0
        self.choices: list[tuple[int, int]] = []
        self._script = script

    def at(self, position: int) -> "ScriptedRandom":
        """A round; the script goes on from round to round."""
        return self

    def gumbel(self, depth: int) -> Tensor:
        """Refused: a continuum of answers cannot be enumerated."""
        raise ConfigError("Gumbel noise cannot be enumerated; 'coupled' is checked by comparing texts instead")

    def accept(self, probability: Tensor | float) -> bool:
        """Both answers, where both are possible."""
        if math.isnan(probability):
            raise ConfigError("the verifier accepts with probability NaN")
        accepted = min(max(float(probability), 0.0), 1.0)
        return self._choose([(True, accepted), (False, 1 - accepted)])

    def draw(self, distribution: Tensor) -> int:
        """Every token of positive probability."""
        return self._choose(list(enumerate((distribution / distribution.sum()).tolist())))

    def children(
        self, probs: Tensor, counts: Tensor, most: int, proposal: Proposal, depth: int
    ) -> tuple[Tensor, Tensor]:
        """Every way to draw the children, one after the other."""
        rows = probs.clone()
        tokens = torch.zeros(len(counts), most, dtype=torch.long)
        for node, count in enumerate(counts.tolist()):
            row = probs[node].clone()
            mixed = proposal is Proposal.TOP_K_PLUS_SAMPLE and count > 0
            if mixed:
                best = row.topk(count - 1).indices
                tokens[node, : count - 1] = best
                row[best] = 0
                rows[node] = row / row.sum()
            for place in [count - 1] if mixed else range(count):
                tokens[node, place] = token = self.draw(row)
                if proposal is Proposal.WITHOUT_REPLACEMENT:
                    row[token] = 0
        return tokens, rows

    def _choose(self, answers: list[tuple[Answer, float]]) -> Answer:
        possible = [(answer, weight) for answer, weight in answers if weight > 0]
        place = len(self.choices)
        chosen = self._script[place] if place < len(self._script) else 0
        answer, weight = possible[chosen]
        self.choices.append((chosen, len(possible)))
        self.weight *= weight
        return answer


def outcomes(run: Callable[[ScriptedRandom], Result]) -> Iterator[tuple[float, Result]]:
    """Every result of a random procedure with its probability.

    Args:
        run: asks the noise it is given for everything random, and does the same for the same answers.

    Raises:
        ConfigError: there are more than 50,000 of them.
    """
    scripts: list[list[int]] = [[]]
    for count in itertools.count():
        if not scripts:
            return
        if count == MOST:
            raise _too_many("the procedure")
        script = scripts.pop()
        randomness = ScriptedRandom(script)
        result = run(randomness)
        yield randomness.weight, result
        given = [chosen for chosen, _ in randomness.choices]
        for place in range(len(script), len(given)):
            scripts += [[*given[:place], other] for other in range(1, randomness.choices[place][1])]


@dataclass(frozen=True)
class RoundLaw:
    """The exact law of one round.

    Attributes:
        committed: probability of every tuple of committed tokens, the bonus included.
        total_variation: distance of the law they induce from the target's.
        expected_accepted: mean drafted tokens accepted, the bonus not counted.
        lengths: probability of every number of accepted tokens.
    """

    committed: dict[Context, float]
    total_variation: float
    expected_accepted: float
    lengths: dict[int, float]


@torch.inference_mode()
def law(
    target: TabularModel,
    draft: TabularModel,
    policy: TreePolicy,
    verifier: type[Verifier],
    *,
    levels: int = 3,
    checked: bool = True,
    **sampling: float,
) -> RoundLaw:
    """The exact law of one round of a policy and a verifier.

    Args:
        target: the toy target.
        draft: the toy draft, of the same vocabulary.
        policy: how the tree grows.
        verifier: what is accepted.
        levels: the tree is no deeper.
        checked: refuse a pair that is not proven lossless; without it such a pair's bias can be looked at.
        **sampling: temperature (1), top_k, top_p, min_p and the other options of `Sampling` but its seed.

    Raises:
        ConfigError: the pair is refused or has more than 50,000 outcomes, the verifier accepts nodes that are no path
            or a bonus that is no token, or an argument is none.
    """
    judge = _judge(target, draft, policy, verifier, sampling, checked)
    committed: dict[Context, float] = {}
    count = 0
    for chance, tree in trees(draft, policy, judge, levels):
        logits = node_logits(target, tree)[None]
        for weight, verdict in outcomes(lambda randomness, t=tree, x=logits: judge.verify(t, x, [randomness])):
            if count == MOST:
                raise _too_many(f"{type(policy).__name__} with {verifier.__name__}")
            count += 1
            tokens = _committed(judge, tree, verdict, target.vocab)
            committed[tokens] = committed.get(tokens, 0.0) + chance * weight
    return summarise(committed, target, judge.sampling)


def _too_many(what: str) -> ConfigError:
    return ConfigError(f"{what} has more than {MOST} outcomes to enumerate; give the policy a smaller budget")


def _judge(
    target: TabularModel,
    draft: TabularModel,
    policy: TreePolicy,
    verifier: type[Verifier],
    sampling: Mapping[str, float],
    checked: bool = True,
) -> Verifier:
    """Check the arguments of `law` and make its verifier."""
    if not isinstance(policy, TreePolicy):
        raise ConfigError(f"the policy is {policy!r}; give a TreePolicy, such as Chain(depth=2)")
    if not isinstance(verifier, type) or not issubclass(verifier, Verifier):
        raise ConfigError(f"the verifier is {verifier!r}; give a class, such as drafttree.verifiers.Traversal")
    if target.vocab != draft.vocab:
        raise ConfigError(f"the target has {target.vocab} tokens, the draft {draft.vocab}; they must be the same")
    if checked:
        compatibility.check(policy, verifier)
    for name in sampling:
        if name not in OPTIONS:
            raise unknown("option", name, OPTIONS)
    return verifier(Sampling.from_options({"temperature": 1.0, **sampling}))


def _committed(judge: Verifier, tree: DraftTree, verdict: Verdict, vocab: int) -> Context:
    """The tokens the decoder commits after a verdict on one tree: the accepted path below the root, and the bonus."""
    ((path, bonus),), name = verdict.host, type(judge).__name__
    parents = dict(enumerate(tree.parents[0].tolist()))
    if path[:1] != [0] or any(parents.get(node) != above for above, node in itertools.pairwise(path)):
        raise ConfigError(f"{name} accepts the nodes {path}, which are no path from the root down")
    if not 0 <= bonus < vocab:
        raise ConfigError(f"{name} gives the bonus token {bonus}; the vocabulary has {vocab}")
    return (*tree.tokens[0, path[1:]].tolist(), bonus)


def trees(
    draft: TabularModel, policy: TreePolicy, judge: Verifier, levels: int = 3
) -> Iterator[tuple[float, DraftTree]]:
    """Every tree a policy grows for a verifier, with its probability; one tree where children are selected."""
    return outcomes(lambda randomness: toy_tree(draft, policy, judge, randomness, levels))


@torch.inference_mode()
def coupled_round(
    target: TabularModel,
    draft: TabularModel,
    policy: TreePolicy,
    verifier: type[Verifier],
    *,
    seed: int = 0,
    levels: int = 3,
    **sampling: float,
) -> tuple[Context, Context]:
    """The tokens one round commits, and as many tokens decoded one after the other with the same noise.

    For verifiers whose draws are a function of seed and position: the noise is a continuum that cannot be enumerated,
    and need not be. If the two agree whatever the noise, a text has the law of plain decoding, in which each token is
    the argmax of logits and Gumbel noise and so follows the target. Arguments as for `law`.
    """
    judge = _judge(target, draft, policy, verifier, sampling)
    randomness = SeededRandomness(seed, target.vocab, torch.device("cpu")).at(0)
    tree = toy_tree(draft, policy, judge, randomness, levels)
    verdict = judge.verify(tree, node_logits(target, tree)[None], [randomness])
    committed = _committed(judge, tree, verdict, target.vocab)
    plain: Context = ()
    for position in range(1, len(committed) + 1):
        scores = judge.sampling.process(target.logits(plain))
        if not judge.sampling.greedy:
            scores = scores + gumbel(seed, torch.tensor(position), target.vocab)
        plain += (int(scores.argmax()),)
    return committed, plain


def node_logits(target: TabularModel, tree: DraftTree) -> Tensor:
    """Float64 `[nodes, vocab]` logits of the target at every node of a batch of one tree."""
    return torch.stack([target.logits(context) for context in tree.paths()])


def summarise(committed: dict[Context, float], target: TabularModel, sampling: Sampling = PLAIN) -> RoundLaw:
    """The `RoundLaw` of committed tokens with these probabilities."""
    length = max(map(len, committed))
    induced = dict.fromkeys(itertools.product(range(target.vocab), repeat=length), 0.0)
    for tokens, weight in committed.items():
        for rest in itertools.product(range(target.vocab), repeat=length - len(tokens)):
            induced[tokens + rest] += weight * _probability(target, tokens, rest, sampling)
    distance = sum(abs(p - _probability(target, (), text, sampling)) for text, p in induced.items()) / 2
    lengths: dict[int, float] = {}
    for tokens, weight in committed.items():
        lengths[len(tokens) - 1] = lengths.get(len(tokens) - 1, 0.0) + weight
    return RoundLaw(committed, distance, sum(n * weight for n, weight in lengths.items()), lengths)


def _probability(table: TabularModel, context: Context, rest: Context, sampling: Sampling) -> float:
    """Probability that the target continues a context by these tokens."""
    return math.prod(table.law((*context, *rest[:place]), sampling)[token] for place, token in enumerate(rest))


def toy_tree(
    draft: TabularModel, policy: TreePolicy, judge: Verifier, randomness: RoundRandomness, levels: int
) -> DraftTree:
    """The tree a policy grows for a verifier with this randomness, below a root at position 0."""
    sampler = None if judge.proposal is Proposal.TOP_K else ChildSampler(judge.proposal, [randomness])
    session = AdjustedDraft(_TabularSession(draft), judge, [randomness])
    return grow(policy, session, torch.zeros(1, 1, dtype=torch.long), levels, sampler=sampler, vocab=draft.vocab)


class _TabularSession:
    """A `TabularModel` as the drafter of one tree."""

    def __init__(self, table: TabularModel) -> None:
        self._table = table
        self._frontier: list[Context] = [()]

    def root(self) -> Tensor:
        return self._table.logits(())[None, None]

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        pairs = zip(tokens[0].tolist(), origins[0].tolist(), strict=True)
        self._frontier = [(*self._frontier[origin], token) for token, origin in pairs]
        return torch.stack([self._table.logits(context) for context in self._frontier])[None]
