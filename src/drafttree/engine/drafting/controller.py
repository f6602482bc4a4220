"""The controller decides how much is drafted, by one law for a text that is written alone and for a batch.

    rate = (texts + sum of chances of drafted nodes) / (T(rows + nodes) + draft passes + the rest)

It is asked before a round (whether to draft, and by which model), while trees grow (which nodes to expand, how many
children to draw) and at the end (which nodes to keep), and it learns from every round. The law does not care whose node
it is, so a text alone is a batch of one. Costs come from `Prices`. Gains are in plain rounds: tokens over what a plain
round commits, minus cost over what a plain round costs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import le

from drafttree.core.cost_curve import Costs
from drafttree.core.tree import DraftTree, GrowingTree, Proposal
from drafttree.drafters.base import Session
from drafttree.engine.drafting.acceptance import Acceptance
from drafttree.engine.drafting.acceptance_watch import HeadWatch
from drafttree.engine.drafting.prices import MEMORY, UNKNOWN, Prices, bucket
from drafttree.engine.drafting.tree_growth import Limits
from drafttree.engine.drafting.value import best_count, best_shape, best_width
from drafttree.policies.base import TreePolicy

LOST, RETRY, GAINED = 2.0, 0.5, 4.0
"""Plain rounds that drafting may lose before it pauses, that a retry may lose, and that earlier gains may make up for
at most. A round of many texts is more evidence, so the first two are divided by the square root of their number."""
SHORTEST, LONGEST = 8, 512
"""Rounds of the first and the longest pause; each pause is twice as long as the one before."""
LOSS = 0.005
"""Share of time that retrying drafts may lose; pauses are no longer than this needs."""
LOOK_EVERY = 4
"""In a pause, a drafter that can tell what it expects is asked every so many rounds, since asking takes time too."""
ANSWER, ASKING, LONGEST_UNASKED = 5e-5, 0.01, 16
"""Seconds in which a text tells what it expects, the share of plain rounds that asking may take while no text wants
drafts, and the most rounds without asking. Only rounds of small models are so short that this matters."""
DOUBT = 2.0
"""In a pause, the accepted tokens that a drafter expects are divided by this: it has expected too many."""
WATCHED, WATCHES = 0.02, 64
"""Share of time for retrying a head while it is not known whether it is read correctly, and how many pauses are shorter
for that. A warning needs some thirty of the head's claims, which would otherwise take thousands of rounds."""
PLAIN_ROUNDS, FIRST_PROBE, PROBE = 3, 16, 128
"""If costs come from a clock: plain rounds before the first drafts, so that no single slow one is the baseline, and
drafted rounds between later plain ones, at first and at most."""
USUAL = 2.0
"""Tokens that a text is assumed to commit in a round with two drafted nodes, while rounds of a model are unknown."""
PRIOR_ROUNDS = 4.0
"""Rounds of one text that this assumption counts for, or plain decoding's rate as the first guess of drafting's."""
NODES_A_ROW, MORE_NODES = 4, 64
"""The most drafted nodes that are weighed: so many per row of the pass without them, plus a constant."""
WIDEST = 256
"""The largest width of a draft pass, over all texts, that is weighed."""
ROUNDING = 1e-4
"""Rounding error of log-probabilities."""
OF_DRAFTS = replace(UNKNOWN, target=Costs((1,), (1.0,)))
"""Costs for trees that are not cut: rows of the target pass cost nothing, since the policy alone decides how many."""

NONE_WANTED = "no request wants drafts"
Kind = tuple[bool, int]
"""A kind of drafts: whether the text is greedy, and the index of the drafter's model."""
Groups = Sequence[tuple[int, Sequence[int]]]
"""Per group of texts that drafted together: the index of the drafter's model, and widths over all its texts."""


@dataclass
class _Model:
    """Gains and losses of drafting with one model of the drafter, at a batch size.

    Attributes:
        tokens: committed tokens of recent rounds, older ones counting less.
        cost: cost of these rounds.
        surplus: plain rounds by which it is ahead of plain decoding.
        lost: plain rounds that it has lost since its last pause.
        waiting: rounds until it is retried.
        pause: rounds of its last pause, 0 if it has been ahead since.
    """

    tokens: float = 0.0
    cost: float = 0.0
    surplus: float = 0.0
    lost: float = 0.0
    waiting: int = 0
    pause: int = 0

    def judge(self, gain: float, evidence: float, longest: int) -> None:
        """Count the gain of a round, and begin a pause if drafting has lost too much.

        A pause is twice as long as the one before, up to what the losses since then are worth.

        Args:
            gain: plain rounds that were gained, negative for a loss.
            evidence: the square root of the number of texts.
            longest: the most rounds of a pause.
        """
        self.surplus = min(self.surplus + gain, GAINED)
        self.lost = max(self.lost - gain, 0.0)
        if self.surplus * evidence >= -LOST:
            self.pause = 0 if self.surplus > 0 else self.pause
            return
        worth = round(min(self.lost / LOSS, longest))
        self.waiting = self.pause = min(2 * self.pause or SHORTEST, max(worth, SHORTEST), longest)
        self.surplus = (RETRY - LOST) / evidence
        self.lost = 0.0


@dataclass
class _Size:
    """State for rounds of about one batch size.

    Attributes:
        models: per model of the drafter, its gains and losses.
        expected: tokens that were expected of the rounds that `models` count.
        unknown: the weight left to the first guess of their rate, 1 at first.
        plain: the number of plain rounds.
        since_plain: drafted rounds since the last plain one.
        probe: drafted rounds after which a plain one follows.
        paused: why nothing is drafted in a pause, as of its beginning; empty until somebody asks.
        unasked: rounds until texts are asked again what they expect.
    """

    models: list[_Model]
    expected: float = 0.0
    unknown: float = 1.0
    plain: int = 0
    since_plain: int = 0
    probe: int = FIRST_PROBE
    paused: str = ""
    unasked: int = 0

    def model(self, source: int) -> _Model:
        """The state of a model, begun if it is new."""
        self.models += [_Model() for _ in range(len(self.models), source + 1)]
        return self.models[source]

    @property
    def tokens(self) -> float:
        return sum(model.tokens for model in self.models)

    @property
    def cost(self) -> float:
        return sum(model.cost for model in self.models)


class Controller:
    """Decides what is drafted, and learns which drafts are accepted and what they cost.

    Args:
        prices: costs of passes and rounds.
        budget: drafted nodes per text and round, as a mean over the batch; infinite to keep trees as their policy grows
            them; None for as many as pay.
        heads: indices of the drafter's models that are heads.
        head_watch: tests whether heads are read correctly; None if its result must not decide anything.
    """

    def __init__(
        self,
        prices: Prices,
        *,
        budget: float | None = None,
        heads: Sequence[int] = (),
        head_watch: HeadWatch | None = None,
    ) -> None:
        self.prices = prices
        self.budget = budget
        self._heads = heads
        self._head_watch = head_watch
        self._acceptance: dict[Kind, Acceptance] = {}
        self._sizes: dict[int, _Size] = {}
        self._watches = WATCHES

    def begin_with(self, earlier: "Controller") -> None:
        """Take over what the controller of an earlier text has learned, for a text that is written alone.

        Costs are rescaled to the prices of this controller, and the earlier rounds count half.
        """
        self._watches = earlier._watches
        pace = self.prices.round(1, 1) / earlier.prices.round(1, 1)
        self._acceptance = {draft_kind: acceptance.copy() for draft_kind, acceptance in earlier._acceptance.items()}
        for size, size_state in earlier._sizes.items():
            models = [
                replace(model, tokens=model.tokens / 2, cost=pace * model.cost / 2) for model in size_state.models
            ]
            self._sizes[size] = _Size(models, size_state.expected / 2, size_state.unknown)

    # Before a round.

    def rests(self, batch: int) -> bool:
        """Whether drafting pauses for batches of this size, with every model."""
        return self.budget is None and all(model.waiting for model in self._size(batch).models)

    def reason(self, batch: int) -> str | None:
        """Why nothing is drafted in the next round of a batch of this size; None to let `choose` decide per text."""
        size = self._size(batch)
        if self.budget is not None:
            return None
        if self.rests(batch):
            return self._paused(batch) if size.unasked or size.models[-1].waiting % LOOK_EVERY else None
        if size.unasked:
            return NONE_WANTED
        if not self.prices.frozen and (size.since_plain >= size.probe or size.plain < PLAIN_ROUNDS):
            return "a plain round, to know what it costs"
        return None

    def _paused(self, batch: int) -> str:
        size = self._size(batch)  # written when asked for: most rounds may pause, and nobody may ask
        size.paused = size.paused or f"drafting was {self.gain(batch) or 0:.2f} times plain decoding at this batch"
        return size.paused

    def none_wanted(self, batch: int) -> str:
        """Why nothing was drafted in a round for which `reason` had no objection."""
        return self._paused(batch) if self.rests(batch) else NONE_WANTED

    def asked_in_vain(self, batch: int, texts: int) -> None:
        """Note that no text wants drafts, and put off asking again, so that asking takes little time.

        Args:
            batch: texts of the round.
            texts: how many of them were asked what they expect.
        """
        rounds = ANSWER * texts / (ASKING * self.prices.round(batch, batch))
        self._size(batch).unasked = min(round(rounds), LONGEST_UNASKED)

    def choose(self, session: Session, batch: int) -> int | None:
        """Choose the drafter's model that drafts for a text in the next round; None for none.

        Lookup, whose session tells how many accepted tokens to expect, drafts if that beats the drafter's other model
        and, without a budget, plain decoding.
        """
        model_source = int(session.mixes)
        if self.budget is not None and not session.mixes:
            return 0
        model = self._size(batch).model(model_source)
        lookup = self._size(batch).model(0)
        rests = self.budget is None and model.waiting > 0
        if (expected_tokens := session.expected_accepted) is None:
            return None if rests else model_source
        fallback_source = model_source if session.mixes and not rests else None
        if expected_tokens <= 0:
            return fallback_source
        prices = self.prices
        doubt = DOUBT if self.budget is None and lookup.waiting else 1.0
        tokens = 1 + expected_tokens / doubt
        rate = tokens * batch / prices.round(batch, round(batch * tokens), prices.drafting(0, (batch,)))
        rival_rates = [] if self.budget is not None else [batch / prices.round(batch, batch)]
        if session.mixes and not rests:
            model_cost = prices.round(batch, 3 * batch, prices.drafting(model_source, (batch, batch)))
            weight = max(PRIOR_ROUNDS / batch, 1.0)
            rival_rates.append((model.tokens + weight * USUAL * batch) / (model.cost + weight * model_cost))
        return 0 if rate > max(rival_rates, default=0.0) else fallback_source

    def pays_without_drafting(self, nodes: int, accepted: float, usual: float, source: int, batch: int) -> bool:
        """Whether rounds with nodes that need no draft pass commit more per cost than rounds that draft.

        Args:
            nodes: the number of such nodes of a text.
            accepted: how many of them are expected to be accepted.
            usual: how many tokens a round that drafts usually accepts.
            source: the index of the model that drafts in such a round.
            batch: texts of the round.
        """
        undrafted_cost = self.prices.round(batch, batch * (1 + nodes))
        drafted_cost = self.prices.round(batch, 3 * batch, self.prices.drafting(source, (batch, batch)))
        return (1 + accepted) / undrafted_cost >= (1 + usual) / drafted_cost

    # While trees grow.

    def limits(
        self, policy: TreePolicy, proposal: Proposal, kinds: Sequence[Kind], batch: int, rows: int
    ) -> Limits | None:
        """The limits on the trees of texts that draft together; None if only their policy limits them.

        With a budget that is so, except for policies that use costs, such as `auto`, which have no other limits.

        Args:
            policy: the policy of all these texts.
            proposal: how children are chosen.
            kinds: per text, the kind of its drafts, all of the same model.
            batch: texts of the round.
            rows: rows of the target pass without drafted nodes.
        """
        if self.budget is not None and not policy.uses_costs:
            return None
        source = kinds[0][1]
        acceptance = [self.acceptance(draft_kind) for draft_kind in kinds]
        if proposal is Proposal.TOP_K:
            return _Selected(self, acceptance, source, batch, rows)
        max_nodes = min(policy.budget, MORE_NODES)
        levels, chance = best_shape(
            lambda level: acceptance[0].places(level, min(policy.candidates(level), max_nodes)),
            policy.levels() or policy.budget,
            [cost / batch for cost in self.prices.targets(batch, rows, batch * (max_nodes - 1))[::batch]],
            lambda width: self.prices.level(source, batch * width) / batch,
            self.rate(batch),
        )
        return _Drawn(acceptance[0], levels, math.log(chance) - ROUNDING, len(kinds))

    # At the end.

    def cut(
        self,
        trees: Sequence[DraftTree],
        kinds: Sequence[Kind],
        budgets: Sequence[int],
        rows: int,
        known: Sequence[list[float] | None],
    ) -> tuple[list[DraftTree], float]:
        """Cut the trees of a round to the nodes that are worth their rows.

        Trees are scored by the log-probabilities that their nodes are accepted. Drawn trees stay whole: dropping a node
        for what was drawn would bias the text.

        Args:
            trees: the tree of each text.
            kinds: the kind of each text's drafts.
            budgets: the largest number of nodes of each tree, the root included.
            rows: rows of the target pass without drafted nodes.
            known: per tree, the log-probabilities that its first nodes are accepted, or None if they were not computed.

        Returns:
            The trees, and the number of tokens that the round is expected to commit. That is one per text if the budget
            is infinite and no tree had to be cut.
        """
        batch = len(trees)
        if self.budget == math.inf and all(map(le, (tree.size for tree in trees), budgets)):
            return [*trees], float(batch)
        chances = [
            self.acceptance(draft_kind).chances(tree, known_chances)
            for draft_kind, tree, known_chances in zip(kinds, trees, known, strict=True)
        ]
        if any(tree.proposal is not Proposal.TOP_K for tree in trees):
            return [*trees], batch + sum(math.exp(chance) for tree_chances in chances for chance in tree_chances[1:])
        nodes = _likeliest_nodes(chances, budgets)
        probs = [math.exp(-loss) for loss, _ in nodes]
        count = self._node_count(probs, batch, rows)
        return _cut_to(nodes[:count], trees, chances), batch + sum(probs[:count])

    def _node_count(self, probs: Sequence[float], batch: int, rows: int) -> int:
        """How many drafted nodes of a round to verify.

        Args:
            probs: probabilities that they are accepted, in falling order.
            batch: texts of the round.
            rows: rows of the target pass without drafted nodes.
        """
        if self.budget is not None:
            return int(min(self.budget * batch, len(probs)))
        count, _ = best_count(probs, self.costs(batch, rows), self.rate(batch))
        if self._size(batch).probe > FIRST_PROBE and not self.prices.knows_rows(batch):
            count += max(count, batch)  # always adding as many would never show that rows have other prices
        return count

    def costs(self, batch: int, rows: int) -> list[float]:
        """Costs of target passes with 0, 1, 2 ... drafted nodes."""
        return self.prices.targets(batch, rows, NODES_A_ROW * rows + MORE_NODES)

    # Afterwards.

    def accept(self, kind: Kind, tree: DraftTree, path: Sequence[int]) -> None:
        """Learn from a verified tree which of its nodes were accepted."""
        if tree.size > 1 and self.budget != math.inf:
            self.acceptance(kind).observe(tree, path)

    def learn(self, batch: int, rows: int, committed: float, groups: Groups, expected: float = 0.0) -> None:
        """Learn from a round what drafting gains, and let models pause that lose.

        Args:
            batch: texts of the round.
            rows: rows of its target pass.
            committed: tokens that it committed.
            groups: what was drafted.
            expected: tokens that it was expected to commit.
        """
        size = self._size(batch)
        if self.budget == math.inf and len(size.models) == 1:
            return  # drafting never rests, and there is no other model to choose
        sources = {source for source, _ in groups}
        for source, model in enumerate(size.models):
            if source not in sources:
                model.waiting = max(model.waiting - 1, 0)
        size.unasked = max(size.unasked - 1, 0)
        if not groups:
            size.plain += 1
            size.probe = min(2 * size.probe, PROBE) if size.since_plain >= size.probe else size.probe
            size.since_plain = 0
            return
        plain_cost = self.prices.round(batch, batch)
        cost = self.prices.round(batch, rows, sum(self.prices.drafting(*group) for group in groups))
        size.since_plain += 1
        size.paused = ""
        size.expected = (1 - 1 / MEMORY) * size.expected + expected
        size.unknown *= 1 - 1 / MEMORY
        size.model(max(sources))
        for source, model in enumerate(size.models):
            share = (source in sources) / len(sources)
            model.tokens = (1 - 1 / MEMORY) * model.tokens + share * committed
            model.cost = (1 - 1 / MEMORY) * model.cost + share * cost
        for source in sources:
            max_pause = self._longest_pause(source, batch)
            size.model(source).judge(committed / batch - cost / plain_cost, math.sqrt(batch), max_pause)
            self._watches -= max_pause < LONGEST and size.model(source).waiting == max_pause and self._watches > 0

    def _longest_pause(self, source: int, batch: int) -> int:
        """The most rounds of a pause; fewer while it is not known whether a head is read correctly."""
        watch = self._head_watch
        if source not in self._heads or watch is None or not watch.is_open or not self._watches:
            return LONGEST
        asking_share = self.prices.drafting(source, (batch,)) / self.prices.round(batch, batch)
        return min(max(math.ceil(asking_share / WATCHED), SHORTEST), LONGEST)

    def gain(self, batch: int) -> float | None:
        """Tokens per cost of drafted rounds, relative to plain ones; None before the first drafted round."""
        size = self._size(batch)
        return size.tokens / size.cost * self.prices.round(batch, batch) / batch if size.cost else None

    def predicted_gain(self, batch: int) -> float | None:
        """Like `gain`, with the tokens that were expected in place of those that were committed."""
        size = self._size(batch)
        return size.expected / size.cost * self.prices.round(batch, batch) / batch if size.cost else None

    def rate(self, batch: int) -> float:
        """Tokens per cost of drafted or of plain rounds at this batch size, whichever is more.

        Drafted rounds are taken to be as good as plain ones until some are known.
        """
        size = self._size(batch)
        plain_cost = self.prices.round(batch, batch)
        weight = size.unknown * max(PRIOR_ROUNDS / batch, 1.0)
        return max((size.tokens + weight * batch) / (size.cost + weight * plain_cost), batch / plain_cost)

    def acceptance(self, kind: Kind) -> Acceptance:
        """The counts of acceptance of a kind of drafts."""
        if kind not in self._acceptance:
            self._acceptance[kind] = Acceptance()
        return self._acceptance[kind]

    def _size(self, batch: int) -> _Size:
        if (size := self._sizes.get(bucket(batch))) is None:
            size = self._sizes[bucket(batch)] = _Size([_Model()])
        return size


def _likeliest_nodes(chances: Sequence[list[float]], budgets: Sequence[int]) -> list[tuple[float, int]]:
    """The drafted nodes of all trees that their budgets have room for, likeliest first.

    Args:
        chances: per tree, the log-probabilities that its nodes are accepted, the root first.
        budgets: the largest number of nodes of each tree, the root included.

    Returns:
        Per node, minus that log-probability and the index of its tree.
    """
    nodes = list[tuple[float, int]]()
    for tree_index, (tree_chances, budget) in enumerate(zip(chances, budgets, strict=True)):
        likeliest_chances = sorted(tree_chances[1:], reverse=True)[: budget - 1]
        nodes += [(-chance, tree_index) for chance in likeliest_chances]
    return sorted(nodes)


def _cut_to(
    nodes: Sequence[tuple[float, int]], trees: Sequence[DraftTree], chances: Sequence[list[float]]
) -> list[DraftTree]:
    """The trees cut to these nodes of `_likeliest_nodes`, and scored by the log-probabilities of acceptance."""
    sizes = [1] * len(trees)
    for _, tree_index in nodes:
        sizes[tree_index] += 1
    cut_trees = list[DraftTree]()
    for tree, tree_chances, size in zip(trees, chances, sizes, strict=True):
        scored_tree = replace(tree, scores=(math.inf, *tree_chances[1:]))
        cut_trees.append(scored_tree.best(size))
    return cut_trees


def as_written() -> Controller:
    """Make the controller of a text that is written alone with a policy that uses no costs: trees are not cut.

    If the drafter mixes lookup with a model, it chooses between them by what draft passes usually cost.
    """
    return Controller(Prices(OF_DRAFTS, frozen=True), budget=math.inf)


class _Selected:
    """Limits on trees of the draft's best tokens: the likeliest nodes of all texts are expanded, as many as pay."""

    def __init__(
        self, controller: Controller, acceptance: Sequence[Acceptance], source: int, batch: int, rows: int
    ) -> None:
        self._acceptance = acceptance
        self._source = source
        self._prices = controller.prices
        self._rate = controller.rate(batch)
        self._costs = controller.costs(batch, rows)
        self.chances: list[list[float]] = [[0.0] for _ in acceptance]

    def choose_frontier(self, texts: Sequence[GrowingTree], depth: int) -> list[list[int]]:
        for acceptance, text, text_chances in zip(self._acceptance, texts, self.chances, strict=True):
            acceptance.chances(text, text_chances)
        leaves = sorted(
            (-text_chances[node], text_index, node)
            for text_index, (text_chances, text) in enumerate(zip(self.chances, texts, strict=True))
            for node in text.frontier
        )
        child_rates = [acceptance.children(depth) for acceptance in self._acceptance]
        width = best_width(
            [math.exp(-chance) for chance, *_ in leaves[:WIDEST]],
            [math.exp(chance) for text_chances in self.chances for chance in text_chances[1:]],
            [sum(rates) / len(child_rates) for rates in zip(*child_rates, strict=True)],
            self._costs,
            lambda width: self._prices.level(self._source, width),
            self._rate,
        )
        frontiers = [list[int]() for _ in texts]
        for _, text_index, node in leaves[:width]:
            frontiers[text_index].append(node)
        return [sorted(nodes) for nodes in frontiers]

    def max_children(self, texts: Sequence[GrowingTree], depth: int) -> None:
        """No limit: nodes that are not worth their rows are cut from the finished trees."""


class _Drawn:
    """Limits on trees whose children are drawn, which may not be cut afterwards.

    They depend on a node's level and on its place among its siblings, not on the tokens that are drawn.

    Args:
        acceptance: counts of acceptance of these drafts.
        levels: levels to draft.
        floor: nodes are drawn if their log-probability of acceptance, by their places, is at least this.
        texts: the number of texts that draft together.
    """

    def __init__(self, acceptance: Acceptance, levels: int, floor: float, texts: int) -> None:
        self._acceptance = acceptance
        self.levels = levels
        self._floor = floor
        self._places: list[list[float]] = [[0.0] for _ in range(texts)]  # log-probabilities of acceptance by places
        self.chances = [None] * texts

    def choose_frontier(self, texts: Sequence[GrowingTree], depth: int) -> list[list[int]]:
        rates = [math.log(rate) for rate in self._acceptance.places(depth, MORE_NODES)]
        for text, text_chances in zip(texts, self._places, strict=True):
            previous_parent = -1
            draw_index = 0
            for parent in text.parents[len(text_chances) :]:
                draw_index = draw_index + 1 if parent == previous_parent else 0
                previous_parent = parent
                text_chances.append(text_chances[parent] + rates[min(draw_index, MORE_NODES - 1)])
        if depth >= self.levels:
            return [[] for _ in texts]
        best_rate = math.log(self._acceptance.places(depth + 1, 1)[0])
        return [
            [node for node in text.frontier if text_chances[node] + best_rate >= self._floor]
            for text, text_chances in zip(texts, self._places, strict=True)
        ]

    def max_children(self, texts: Sequence[GrowingTree], depth: int) -> list[list[int]]:
        rates = [math.log(rate) for rate in self._acceptance.places(depth, MORE_NODES)]
        return [
            [sum(text_chances[node] + rate >= self._floor for rate in rates) for node in text.frontier]
            for text, text_chances in zip(texts, self._places, strict=True)
        ]
