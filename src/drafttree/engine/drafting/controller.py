"""The controller: how much is drafted, for a text that is written alone and for a batch, by one law.

    rate = (texts + sum of chances of drafted nodes) / (T(rows + nodes) + draft passes + the rest)

It is asked before a round (rest or draft, and by which model), while trees grow (which nodes to expand, how many
children to draw) and at the end (which nodes to keep), and told of every round. Whose node it is does not matter, so
one text is a batch of one. Prices are costs by `Prices`, gains are in plain rounds: what a text commits in one and what
one costs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import le

from drafttree.core.cost_curve import Costs
from drafttree.core.tree import DraftTree, GrowingTree, Proposal
from drafttree.drafters.base import Session
from drafttree.engine.acceptance_watch import HeadWatch
from drafttree.engine.drafting.acceptance import Acceptance
from drafttree.engine.drafting.prices import MEMORY, UNKNOWN, Prices, bucket
from drafttree.engine.drafting.value import best_count, best_shape, best_width
from drafttree.engine.tree_growth import Limits
from drafttree.policies.base import TreePolicy

LOST, RETRY, GAINED = 2.0, 0.5, 4.0
"""Plain rounds that drafting may lose before it pauses, those that a retry may lose, and those of a gain that are
remembered. Of many texts at once a round shows more: what they may lose is divided by the root of their number."""
SHORTEST, LONGEST = 8, 512
"""Rounds of the first pause and of the longest; each is twice the one before it."""
LOSS = 0.005
"""The share of time that trying drafts again and again may lose: pauses are no longer than that needs."""
LOOK_EVERY = 4
"""Rounds of a pause after which a drafter that can tell is asked what it expects: asking takes time too."""
ANSWER, ASKING, LONGEST_UNASKED = 5e-5, 0.01, 16
"""Seconds in which a text tells what it expects, the share of plain rounds that such answers may take where no text
wants drafts, and rounds without them at most: passes of small models are not long enough for them."""
DOUBT = 2.0
"""By what the accepted tokens that a drafter expects are divided while it pauses: it has expected too many."""
WATCHED, WATCHES = 0.02, 64
"""The share of time for asking a head that pauses, while it is not known whether it is read in a right way, and pauses
that are shorter for that: a warning needs some thirty of its claims, which would else take thousands of rounds."""
PLAIN_ROUNDS, FIRST_PROBE, PROBE = 3, 16, 128
"""Where a clock tells costs: plain rounds before the first drafts, since a slow one must not decide what drafts are
compared with, and drafted rounds after which a plain one is timed again, at first and in the end."""
USUAL = 2.0
"""Tokens that a text is taken to commit in a round of two drafted nodes while rounds of a model are unknown."""
PRIOR_ROUNDS = 4.0
"""Rounds of one text that such a guess stands for, or that plain decoding's rate stands for in drafting's."""
NODES_A_ROW, MORE_NODES = 4, 64
"""Drafted nodes that are weighed at most: so many for each row of the pass without them, and some more."""
WIDEST = 256
"""Nodes over all texts whose draft pass is weighed at most."""
ROUNDING = 1e-4
"""Difference of log-probabilities that rounding may make."""
OF_DRAFTS = replace(UNKNOWN, target=Costs((1,), (1.0,)))
"""Costs where trees stay as they are written: rows cost nothing, since the policy takes as many of lookup's."""

NONE_WANTED = "no request wants drafts"
Kind = tuple[bool, int]
"""Of drafts: whether the text is greedy, and which model of the drafter drafted."""
Groups = Sequence[tuple[int, Sequence[int]]]
"""Source of drafts and widths over all texts, for every group of texts that drafted together."""


@dataclass
class _Model:
    """What drafting by one model of the drafter has gained at a batch size.

    Attributes:
        tokens: tokens of recent rounds.
        cost: their cost.
        surplus: plain rounds by which it is ahead of plain decoding.
        lost: plain rounds that it has lost since its latest pause.
        waiting: rounds before it is tried again.
        pause: rounds of its latest pause, 0 where it was ahead since.
    """

    tokens: float = 0.0
    cost: float = 0.0
    surplus: float = 0.0
    lost: float = 0.0
    waiting: int = 0
    pause: int = 0

    def judge(self, gain: float, evidence: float, longest: int) -> None:
        """Pause where drafting has lost too much, twice as long each time, up to what it has lost by being tried."""
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
    """What is known of rounds of about so many texts.

    Attributes:
        models: what drafting by each model has gained.
        expected: tokens that were expected of the rounds that `models` count.
        unknown: what a guess of their rate counts for by now.
        plain: plain rounds.
        since_plain: drafted rounds since the latest of them.
        probe: drafted rounds after which there is one again.
        paused: why nothing is drafted in a pause, as it was when it began; empty before that is asked.
        unasked: rounds before texts are asked again what they expect.
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
        """One of the models."""
        self.models += [_Model() for _ in range(len(self.models), source + 1)]
        return self.models[source]

    @property
    def tokens(self) -> float:
        return sum(model.tokens for model in self.models)

    @property
    def cost(self) -> float:
        return sum(model.cost for model in self.models)


class Controller:
    """Decides what is drafted, and learns what is accepted and what it costs.

    Args:
        prices: what passes cost.
        budget: drafted nodes of a text and round, as a mean over the batch; infinite for trees as their policy grows
            them; None for as many as pay.
        heads: models that are heads.
        head_watch: tests whether they are read in a right way; None where that is not to be known.
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
        """Begin a text that is written alone with what the one before it has learned, at the costs of this one."""
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
        """Whether rounds of so many texts draft nothing at present."""
        return self.budget is None and all(model.waiting for model in self._size(batch).models)

    def reason(self, batch: int) -> str | None:
        """Why not to draft in the next round of so many texts; None to draft for those that `choose` finds it for."""
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
        size = self._size(batch)  # most rounds may be those of a pause, and nobody may want to know
        size.paused = size.paused or f"drafting was {self.gain(batch) or 0:.2f} times plain decoding at this batch"
        return size.paused

    def none_wanted(self, batch: int) -> str:
        """Why nothing was drafted where that was for the texts to say."""
        return self._paused(batch) if self.rests(batch) else NONE_WANTED

    def asked_in_vain(self, batch: int, texts: int) -> None:
        """Note that no text wants drafts, after so many have told what they expect: that must not take much time."""
        rounds = ANSWER * texts / (ASKING * self.prices.round(batch, batch))
        self._size(batch).unasked = min(round(rounds), LONGEST_UNASKED)

    def choose(self, session: Session, batch: int) -> int | None:
        """Which model of the drafter drafts for a text in the next round, None for none.

        Lookup, which says what it expects, drafts where that beats plain decoding and the other model.
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
        """Whether rounds over nodes that cost no draft pass commit more for their cost than rounds that draft.

        Args:
            nodes: such nodes of a text.
            accepted: how many of them are expected to be accepted.
            usual: how many a round with drafts usually accepts.
            source: which model drafts there.
            batch: texts of the round.
        """
        undrafted_cost = self.prices.round(batch, batch * (1 + nodes))
        drafted_cost = self.prices.round(batch, 3 * batch, self.prices.drafting(source, (batch, batch)))
        return (1 + accepted) / undrafted_cost >= (1 + usual) / drafted_cost

    # While trees grow.

    def limits(
        self, policy: TreePolicy, proposal: Proposal, kinds: Sequence[Kind], batch: int, rows: int
    ) -> Limits | None:
        """What limits the trees of texts that draft together; None where they grow as their policy says.

        With a budget those of `auto` are limited all the same: it has no limits of its own.

        Args:
            policy: their policy.
            proposal: how children are chosen.
            kinds: of the drafts of each, by one model.
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
        """The trees of a round with the nodes of all of them that are worth their rows, and the tokens to expect.

        What they are scored by is the log-probability that a node is accepted.

        Trees that were drawn stay whole: dropping a node for what it is would bias the text.

        Args:
            trees: one of each text.
            kinds: of their drafts.
            budgets: nodes of each at most, the root included.
            rows: rows of the target pass without drafted nodes.
            known: log-probabilities that their nodes are accepted, None where they were not asked for.
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
        nodes = list[tuple[float, int]]()
        for tree_index, tree_chances in enumerate(chances):
            nodes += [
                (-chance, tree_index) for chance in sorted(tree_chances[1:], reverse=True)[: budgets[tree_index] - 1]
            ]
        nodes.sort()
        probs = [math.exp(-chance) for chance, _ in nodes]
        if self.budget is None:
            count, _ = best_count(probs, self.costs(batch, rows), self.rate(batch))
            if self._size(batch).probe > FIRST_PROBE and not self.prices.knows_rows(batch):
                count += max(count, batch)  # always adding as many would never show that rows have other prices
        else:
            count = int(min(self.budget * batch, len(nodes)))
        sizes = [1] * batch
        for _, tree_index in nodes[:count]:
            sizes[tree_index] += 1
        scored_trees = [
            replace(tree, scores=(math.inf, *tree_chances[1:]))
            for tree, tree_chances in zip(trees, chances, strict=True)
        ]
        return [tree.best(size) for tree, size in zip(scored_trees, sizes, strict=True)], batch + sum(probs[:count])

    def costs(self, batch: int, rows: int) -> list[float]:
        """Costs of target passes with 0, 1, 2 ... drafted nodes."""
        return self.prices.targets(batch, rows, NODES_A_ROW * rows + MORE_NODES)

    # Afterwards.

    def accept(self, kind: Kind, tree: DraftTree, path: Sequence[int]) -> None:
        """Count which nodes of a tree were accepted."""
        if tree.size > 1 and self.budget != math.inf:
            self.acceptance(kind).observe(tree, path)

    def learn(self, batch: int, rows: int, committed: float, groups: Groups, expected: float = 0.0) -> None:
        """Judge drafting by a round.

        Args:
            batch: texts that it advanced.
            rows: rows of its target pass.
            committed: tokens that it committed.
            groups: what was drafted.
            expected: tokens that were expected of it.
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
        """Rounds of a pause at most; fewer while it is not known whether a head is read in a right way."""
        watch = self._head_watch
        if source not in self._heads or watch is None or not watch.is_open or not self._watches:
            return LONGEST
        asking_share = self.prices.drafting(source, (batch,)) / self.prices.round(batch, batch)
        return min(max(math.ceil(asking_share / WATCHED), SHORTEST), LONGEST)

    def gain(self, batch: int) -> float | None:
        """Tokens by cost of drafted rounds over plain ones; None before any."""
        size = self._size(batch)
        return size.tokens / size.cost * self.prices.round(batch, batch) / batch if size.cost else None

    def predicted_gain(self, batch: int) -> float | None:
        """The same by the tokens that were expected."""
        size = self._size(batch)
        return size.expected / size.cost * self.prices.round(batch, batch) / batch if size.cost else None

    def rate(self, batch: int) -> float:
        """Tokens by cost that rounds of so many texts reach, of the better kind; drafting begins as plain rounds do."""
        size = self._size(batch)
        plain_cost = self.prices.round(batch, batch)
        weight = size.unknown * max(PRIOR_ROUNDS / batch, 1.0)
        return max((size.tokens + weight * batch) / (size.cost + weight * plain_cost), batch / plain_cost)

    def acceptance(self, kind: Kind) -> Acceptance:
        """What is known of a kind of drafts."""
        if kind not in self._acceptance:
            self._acceptance[kind] = Acceptance()
        return self._acceptance[kind]

    def _size(self, batch: int) -> _Size:
        if (size := self._sizes.get(bucket(batch))) is None:
            size = self._sizes[bucket(batch)] = _Size([_Model()])
        return size


def as_written() -> Controller:
    """The controller of a text that is written alone by a policy that weighs no costs, whose trees stay as they are.

    Where a drafter mixes lookup with a model, it decides by what draft passes usually cost.
    """
    return Controller(Prices(OF_DRAFTS, frozen=True), budget=math.inf)


class _Selected:
    """Limits of trees whose children are selected: the likeliest nodes of all texts are expanded, as many as pay."""

    def __init__(
        self, controller: Controller, acceptance: Sequence[Acceptance], source: int, batch: int, rows: int
    ) -> None:
        self._acceptance = acceptance
        self._source = source
        self._prices = controller.prices
        self._rate = controller.rate(batch)
        self._costs = controller.costs(batch, rows)
        self.chances: list[list[float]] = [[0.0] for _ in acceptance]

    def expand(self, texts: Sequence[GrowingTree], depth: int) -> list[list[int]]:
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

    def children(self, texts: Sequence[GrowingTree], depth: int) -> None:
        """All of what the policy keeps: what is not worth its row is cut in the end."""


class _Drawn:
    """Limits of trees whose children are drawn, which may not be cut: they follow from places, so no draw decides them.

    Args:
        acceptance: what is known of the drafts.
        levels: levels that are drafted.
        floor: the log-probability of acceptance, by places, from which nodes are drawn.
        texts: texts that draft together.
    """

    def __init__(self, acceptance: Acceptance, levels: int, floor: float, texts: int) -> None:
        self._acceptance = acceptance
        self.levels = levels
        self._floor = floor
        self._places: list[list[float]] = [[0.0] for _ in range(texts)]  # log-probabilities of acceptance by places
        self.chances = [None] * texts

    def expand(self, texts: Sequence[GrowingTree], depth: int) -> list[list[int]]:
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

    def children(self, texts: Sequence[GrowingTree], depth: int) -> list[list[int]]:
        rates = [math.log(rate) for rate in self._acceptance.places(depth, MORE_NODES)]
        return [
            [sum(text_chances[node] + rate >= self._floor for rate in rates) for node in text.frontier]
            for text, text_chances in zip(texts, self._places, strict=True)
        ]
