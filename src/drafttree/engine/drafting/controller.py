"""The controller decides how much is drafted, by one law for a text that is written alone and for a batch.

    rate = (texts + sum of chances of drafted nodes) / (T(rows + nodes) + draft passes + the rest)

Before a round, it decides whether to draft, and by which model. While trees grow, it decides which nodes to expand and
how many children to draw. At the end, it decides which nodes to keep. It learns from every round. The law does not
depend on which text a node is of, so a text that is written alone is a batch of one. Costs come from `Prices`. Gains
are in plain rounds: tokens divided by those of a plain round, minus cost divided by that of a plain round.
"""

import math
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, replace
from itertools import chain

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
"""In plain rounds: what drafting may lose before it pauses, what a retry may lose, and how much of earlier gains counts
against losses. A round of many texts is more evidence, so the first two are divided by the root of their number."""
SHORTEST, LONGEST = 8, 512
"""Rounds of the first pause, and of the longest one. Each pause is twice as long as the previous one."""
LOSS = 0.005
"""Share of time that retries may lose. A pause is no longer than needed for this."""
LOOK_EVERY = 4
"""Number of rounds in a pause after which a drafter that can estimate its accepted tokens is asked again."""
ANSWER, ASKING, LONGEST_UNASKED = 5e-5, 0.01, 16
"""Seconds that an estimate of one text takes; the share of plain rounds that estimates may take while no text wants
drafts; and the most rounds without estimates. Only rounds of small models are so short that this matters."""
DOUBT = 2.0
"""In a pause, a drafter's estimates are divided by this, since they were too high before."""
WATCHED, WATCHES = 0.02, 64
"""While a head is tested: the share of time that its retries may take, and the number of pauses that are shorter. A
warning needs some thirty claims of the head, which would otherwise take thousands of rounds."""
PLAIN_ROUNDS, FIRST_PROBE, PROBE = 3, 16, 128
"""If a clock measures costs: plain rounds before the first drafts, so that the baseline is not one slow round; then the
first, and the largest, number of drafted rounds between plain ones."""
USUAL_NODES, USUAL_TOKENS = 2, 2.0
"""The assumed round of a model before any is known: per text, nodes that are drafted, one per draft pass, and tokens
that are committed."""
PRIOR_ROUNDS = 4.0
"""Weight, in rounds of one text, of this assumption, and of plain decoding's rate as the first guess of drafting's."""
NODES_A_ROW, MORE_NODES = 4, 64
"""Maximum number of drafted nodes that are considered: this many per other row of the pass, plus a constant."""
WIDEST = 256
"""Maximum width of a draft pass, over all texts, that is considered."""
ROUNDING = 1e-4
"""Rounding error of log-probabilities."""
DECAY = 1 - 1 / MEMORY
"""Each further round multiplies the weight of earlier rounds by this."""
FREE_ROWS = replace(UNKNOWN, target=Costs((1,), (1.0,)))
"""Costs for trees that are not cut: rows of the target pass are free, since the policy alone decides their number."""

NONE_WANTED = "no request wants drafts"
LOOKUP = 0
"""The index of lookup among the models of a mixed drafter; the other model is 1."""
Kind = tuple[bool, int]
"""A kind of drafts: whether the text is greedy, and the index of the drafter's model."""
Groups = Sequence[tuple[int, Sequence[int]]]
"""Per group of texts that drafted together: the index of the drafter's model, and level widths over all its texts."""


@dataclass
class _ModelRecord:
    """Gains and losses of drafting with one model of the drafter, at a batch size.

    Attributes:
        tokens: committed tokens of recent rounds; older rounds count less.
        cost: cost of these rounds.
        surplus: plain rounds by which the model is ahead of plain decoding.
        lost: plain rounds that it has lost since its last pause.
        waiting: rounds until it is retried.
        pause: rounds of its last pause; 0 if it has been ahead since then.
    """

    tokens: float = 0.0
    cost: float = 0.0
    surplus: float = 0.0
    lost: float = 0.0
    waiting: int = 0
    pause: int = 0

    def add_round(self, tokens: float, cost: float) -> None:
        """Add a round. In a round of other models, tokens and cost are 0."""
        self.tokens = DECAY * self.tokens + tokens
        self.cost = DECAY * self.cost + cost

    def judge(self, gain: float, evidence: float, longest: int) -> None:
        """Count the gain of a round, and begin a pause if drafting has lost too much.

        A pause is twice as long as the previous one, but no longer than the losses since then justify.

        Args:
            gain: plain rounds that were gained; negative for a loss.
            evidence: square root of the number of texts.
            longest: maximum number of rounds of a pause.
        """
        self.surplus = min(self.surplus + gain, GAINED)
        self.lost = max(self.lost - gain, 0.0)
        if self.surplus > 0:
            self.pause = 0
        if self.surplus * evidence >= -LOST:
            return
        doubled_pause = 2 * self.pause or SHORTEST
        needed_pause = max(round(min(self.lost / LOSS, longest)), SHORTEST)
        self.pause = min(doubled_pause, needed_pause, longest)
        self.waiting = self.pause
        self.surplus = (RETRY - LOST) / evidence
        self.lost = 0.0


@dataclass
class _BatchSizeRecord:
    """What was learned from rounds of about one batch size.

    Attributes:
        models: gains and losses by model of the drafter.
        expected: tokens that the rounds counted in `models` were expected to commit.
        unknown: weight of the first guess of their rate; 1 at first, then falling.
        plain: number of plain rounds.
        since_plain: drafted rounds since the last plain round.
        probe: number of drafted rounds after which a plain round follows.
        paused: the reason for the present pause, made when first needed; empty before.
        unasked: rounds until texts are asked for estimates again.
    """

    models: list[_ModelRecord]
    expected: float = 0.0
    unknown: float = 1.0
    plain: int = 0
    since_plain: int = 0
    probe: int = FIRST_PROBE
    paused: str = ""
    unasked: int = 0

    def model(self, source: int) -> _ModelRecord:
        """The state of a model, begun if it is new."""
        self.models += [_ModelRecord() for _ in range(len(self.models), source + 1)]
        return self.models[source]

    @property
    def tokens(self) -> float:
        return sum(model.tokens for model in self.models)

    @property
    def cost(self) -> float:
        return sum(model.cost for model in self.models)

    @property
    def is_due_for_plain(self) -> bool:
        """Whether the next round should be a plain one, if costs come from a clock."""
        return self.plain < PLAIN_ROUNDS or self.since_plain >= self.probe

    def count_down(self, sources: Container[int]) -> None:
        """Shorten by one round the wait for estimates, and the pauses of models that have not drafted."""
        for source, model in enumerate(self.models):
            if source not in sources:
                model.waiting = max(model.waiting - 1, 0)
        self.unasked = max(self.unasked - 1, 0)

    def add_plain(self) -> None:
        """Add a plain round."""
        self.plain += 1
        if self.since_plain >= self.probe:
            self.probe = min(2 * self.probe, PROBE)
        self.since_plain = 0

    def add_drafted(self, sources: Collection[int], committed: float, cost: float, expected: float) -> None:
        """Add a drafted round, whose tokens and cost are divided among its models.

        Args:
            sources: indices of the models that drafted.
            committed: tokens that it committed.
            cost: its cost.
            expected: tokens that it was expected to commit.
        """
        self.since_plain += 1
        self.paused = ""
        self.expected = DECAY * self.expected + expected
        self.unknown *= DECAY
        self.model(max(sources))
        for source, model in enumerate(self.models):
            share = (source in sources) / len(sources)
            model.add_round(share * committed, share * cost)


class Controller:
    """Decides what is drafted, and learns which drafts are accepted and what they cost.

    Args:
        prices: costs of passes and rounds.
        budget: drafted nodes per text and round, as a mean over the batch. Infinity keeps trees as their policy grows
            them. None drafts as many nodes as pay.
        heads: indices of the drafter's models that are heads.
        head_watch: tests whether heads are read correctly; None if the test must not influence decisions.
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
        self._sizes: dict[int, _BatchSizeRecord] = {}
        self._watches = WATCHES

    def begin_with(self, earlier_controller: "Controller") -> None:
        """Take over what the controller of an earlier text has learned, for a text that is written alone.

        Costs are rescaled to the prices of this controller, and the earlier rounds count half.
        """
        self._watches = earlier_controller._watches
        pace = self.prices.round(1, 1) / earlier_controller.prices.round(1, 1)
        self._acceptance = {
            draft_kind: acceptance.copy() for draft_kind, acceptance in earlier_controller._acceptance.items()
        }
        for size, earlier_size in earlier_controller._sizes.items():
            models = list[_ModelRecord]()
            for model in earlier_size.models:
                models.append(replace(model, tokens=model.tokens / 2, cost=pace * model.cost / 2))
            self._sizes[size] = _BatchSizeRecord(models, earlier_size.expected / 2, earlier_size.unknown)

    # Before a round.

    def rests(self, batch: int) -> bool:
        """Whether drafting pauses for batches of this size, with every model."""
        return self.budget is None and all(model.waiting for model in self._size(batch).models)

    def reason(self, batch: int) -> str | None:
        """Why the next round of a batch of this size drafts nothing; None if `choose` decides for each text."""
        size = self._size(batch)
        if self.budget is not None:
            return None
        if self.rests(batch):
            asks_texts = not size.unasked and size.models[-1].waiting % LOOK_EVERY == 0
            return None if asks_texts else self._paused(batch)
        if size.unasked:
            return NONE_WANTED
        if size.is_due_for_plain and not self.prices.frozen:
            return "a plain round, to know what it costs"
        return None

    def _paused(self, batch: int) -> str:
        size = self._size(batch)
        if not size.paused:  # made when needed, since most rounds may pause and nobody may read the reason
            size.paused = f"drafting was {self.gain(batch) or 0:.2f} times plain decoding at this batch"
        return size.paused

    def none_wanted(self, batch: int) -> str:
        """Why a round drafted nothing although `reason` allowed it."""
        return self._paused(batch) if self.rests(batch) else NONE_WANTED

    def asked_in_vain(self, batch: int, texts: int) -> None:
        """Delay the next estimates after no text wanted drafts, so that estimates take little time.

        Args:
            batch: texts of the round.
            texts: number of texts that made an estimate.
        """
        rounds = ANSWER * texts / (ASKING * self.prices.round(batch, batch))
        self._size(batch).unasked = min(round(rounds), LONGEST_UNASKED)

    def choose(self, session: Session, batch: int) -> int | None:
        """Choose the drafter's model that drafts for a text in the next round; None for none.

        A model drafts unless it pauses. Lookup estimates its accepted tokens. It drafts if they beat the model that it
        is mixed with and, without a budget, plain decoding.
        """
        if self.budget is not None and not session.mixes:
            return 0
        model_source = LOOKUP + 1 if session.mixes else 0
        model_drafts = not self._pauses(model_source, batch)
        expected_tokens = session.expected_accepted
        if expected_tokens is None:
            return model_source if model_drafts else None
        fallback_source = model_source if session.mixes and model_drafts else None
        if expected_tokens <= 0:
            return fallback_source
        rival_rates = list[float]()
        if self.budget is None:
            rival_rates.append(self._plain_rate(batch))
        if fallback_source is not None:
            rival_rates.append(self._model_rate(fallback_source, batch))
        return LOOKUP if self._lookup_rate(expected_tokens, batch) > max(rival_rates) else fallback_source

    def _pauses(self, source: int, batch: int) -> bool:
        model = self._size(batch).model(source)
        return self.budget is None and model.waiting > 0

    def _plain_rate(self, batch: int) -> float:
        """Tokens per cost of a plain round."""
        return batch / self.prices.round(batch, batch)

    def _lookup_rate(self, expected_tokens: float, batch: int) -> float:
        """Tokens per cost of a round of lookup, if each text expects this many accepted tokens and drafts no more."""
        doubt = DOUBT if self._pauses(LOOKUP, batch) else 1.0
        tokens = 1 + expected_tokens / doubt
        cost = self.prices.round(batch, round(batch * tokens), self.prices.drafting(LOOKUP, (batch,)))
        return tokens * batch / cost

    def _model_rate(self, source: int, batch: int) -> float:
        """Tokens per cost of a model's recent rounds and `PRIOR_ROUNDS` usual rounds."""
        model = self._size(batch).model(source)
        usual_rounds = max(PRIOR_ROUNDS / batch, 1.0)
        tokens = model.tokens + usual_rounds * USUAL_TOKENS * batch
        return tokens / (model.cost + usual_rounds * self._usual_cost(source, batch))

    def _usual_cost(self, source: int, batch: int) -> float:
        """Cost of a usual round of a model (`USUAL_NODES`)."""
        drafting_cost = self.prices.drafting(source, (batch,) * USUAL_NODES)
        return self.prices.round(batch, (1 + USUAL_NODES) * batch, drafting_cost)

    def pays_without_drafting(
        self, nodes: int, accepted: float, usual_accepted: float, source: int, batch: int
    ) -> bool:
        """Whether a round of forced tokens, which need no draft pass, commits more per cost than a drafted round.

        Args:
            nodes: number of forced tokens of a text.
            accepted: expected number of them that are accepted.
            usual_accepted: usual number of accepted tokens of a drafted round.
            source: the index of the model that would draft.
            batch: texts of the round.
        """
        undrafted_cost = self.prices.round(batch, batch * (1 + nodes))
        return (1 + accepted) / undrafted_cost >= (1 + usual_accepted) / self._usual_cost(source, batch)

    # While trees grow.

    def limits(
        self, policy: TreePolicy, proposal: Proposal, draft_kinds: Sequence[Kind], batch: int, rows: int
    ) -> Limits | None:
        """The limits on the trees of texts that draft together; None if only their policy limits them.

        With a budget it is None, except for policies that use costs, such as `auto`: they have no other limits.

        Args:
            policy: the policy of all these texts.
            proposal: how children are chosen.
            draft_kinds: per text, the kind of its drafts, all of the same model.
            batch: texts of the round.
            rows: rows of the target pass without drafted nodes.
        """
        if self.budget is not None and not policy.uses_costs:
            return None
        source = draft_kinds[0][1]
        acceptance = [self.acceptance(draft_kind) for draft_kind in draft_kinds]
        if proposal is Proposal.TOP_K:
            return _Selected(self, acceptance, source, batch, rows)
        return self._drawn_limits(policy, acceptance[0], source, len(draft_kinds), batch, rows)

    def _drawn_limits(
        self, policy: TreePolicy, acceptance: Acceptance, source: int, texts: int, batch: int, rows: int
    ) -> Limits:
        """The limits on drawn trees, all of which get the most valuable shape.

        Args:
            policy: as for `limits`.
            acceptance: counts of acceptance of these drafts.
            source: the index of the model that drafts them.
            texts: the number of texts that draft together.
            batch: as for `limits`.
            rows: as for `limits`.
        """
        max_nodes = min(policy.budget, MORE_NODES)
        target_costs = self.prices.targets(batch, rows, batch * (max_nodes - 1))

        def drawn_rates(level: int) -> list[float]:
            return acceptance.drawn_rates(level, min(policy.candidates(level), max_nodes))

        def level_cost_per_text(width: int) -> float:
            return self.prices.level(source, batch * width) / batch

        levels, min_chance = best_shape(
            drawn_rates,
            policy.levels() or policy.budget,
            [cost / batch for cost in target_costs[::batch]],  # one more node per text adds `batch` rows
            level_cost_per_text,
            self.rate(batch),
        )
        return _Drawn(acceptance, levels, math.log(min_chance) - ROUNDING, texts)

    # At the end.

    def cut(
        self,
        trees: Sequence[DraftTree],
        draft_kinds: Sequence[Kind],
        budgets: Sequence[int],
        rows: int,
        known_chances: Sequence[list[float] | None],
    ) -> tuple[list[DraftTree], float]:
        """Cut the trees of a round to the nodes that are worth their rows.

        The scores of a tree become the log-probabilities that its nodes are accepted. Drawn trees stay whole, since
        dropping a drawn node by its value would bias the text.

        Args:
            trees: the tree of each text.
            draft_kinds: the kind of each text's drafts.
            budgets: the largest number of nodes of each tree, the root included.
            rows: rows of the target pass without drafted nodes.
            known_chances: per tree, the log-probabilities that its first nodes are accepted, or None if they were not
                computed.

        Returns:
            The trees, and the expected number of committed tokens. It is one per text if the budget is infinite and no
            tree had to be cut.
        """
        batch = len(trees)
        if self.budget == math.inf and all(tree.size <= budget for tree, budget in zip(trees, budgets, strict=True)):
            return [*trees], float(batch)
        chances = self._chances(trees, draft_kinds, known_chances)
        if any(tree.proposal is not Proposal.TOP_K for tree in trees):
            node_chances = chain.from_iterable(tree_chances[1:] for tree_chances in chances)
            return [*trees], batch + sum(map(math.exp, node_chances))
        nodes = _likeliest_nodes(chances, budgets)
        probs = [math.exp(-loss) for loss, _ in nodes]
        count = self._node_count(probs, batch, rows)
        return _cut_to(nodes[:count], trees, chances), batch + sum(probs[:count])

    def _chances(
        self, trees: Sequence[DraftTree], draft_kinds: Sequence[Kind], known_chances: Sequence[list[float] | None]
    ) -> list[list[float]]:
        """Per tree, the log-probabilities that its nodes are accepted; arguments as for `cut`."""
        chances = list[list[float]]()
        for tree, draft_kind, tree_known_chances in zip(trees, draft_kinds, known_chances, strict=True):
            chances.append(self.acceptance(draft_kind).chances(tree, tree_known_chances))
        return chances

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
            count += max(count, batch)  # without more rows now and then, their price would never be learned
        return count

    def costs(self, batch: int, rows: int) -> list[float]:
        """Costs of target passes with 0, 1, 2 ... drafted nodes."""
        return self.prices.targets(batch, rows, NODES_A_ROW * rows + MORE_NODES)

    # Afterwards.

    def accept(self, draft_kind: Kind, tree: DraftTree, path: Sequence[int]) -> None:
        """Learn from a verified tree which of its nodes were accepted."""
        if tree.size > 1 and self.budget != math.inf:
            self.acceptance(draft_kind).observe(tree, path)

    def learn(self, batch: int, rows: int, committed: float, groups: Groups, expected: float = 0.0) -> None:
        """Learn from a round what drafting gains, and begin pauses of models that lose.

        Args:
            batch: texts of the round.
            rows: rows of its target pass.
            committed: tokens that it committed.
            groups: what was drafted.
            expected: tokens that it was expected to commit.
        """
        size = self._size(batch)
        if self.budget == math.inf and len(size.models) == 1:
            return  # drafting never pauses, and there is no other model to choose
        sources = {source for source, _ in groups}
        size.count_down(sources)
        if not groups:
            size.add_plain()
            return
        drafting_cost = sum(self.prices.drafting(*group) for group in groups)
        cost = self.prices.round(batch, rows, drafting_cost)
        size.add_drafted(sources, committed, cost, expected)
        gain = committed / batch - cost / self.prices.round(batch, batch)
        for source in sources:
            model = size.model(source)
            max_pause = self._longest_pause(source, batch)
            model.judge(gain, math.sqrt(batch), max_pause)
            if max_pause < LONGEST and model.waiting == max_pause:
                self._watches -= 1

    def _longest_pause(self, source: int, batch: int) -> int:
        """Maximum number of rounds of a pause; fewer while a head is tested."""
        watch = self._head_watch
        if source not in self._heads or watch is None or not watch.is_open or not self._watches:
            return LONGEST
        asking_share = self.prices.drafting(source, (batch,)) / self.prices.round(batch, batch)
        return min(max(math.ceil(asking_share / WATCHED), SHORTEST), LONGEST)

    def gain(self, batch: int) -> float | None:
        """Tokens per cost of drafted rounds, relative to plain ones; None before the first drafted round."""
        return self._times_plain(self._size(batch).tokens, batch)

    def predicted_gain(self, batch: int) -> float | None:
        """Like `gain`, for the expected tokens instead of the committed ones."""
        return self._times_plain(self._size(batch).expected, batch)

    def _times_plain(self, tokens: float, batch: int) -> float | None:
        """The speed of drafted rounds relative to plain ones, if they commit `tokens`; None if there are none."""
        cost = self._size(batch).cost
        return tokens / cost * self.prices.round(batch, batch) / batch if cost else None

    def rate(self, batch: int) -> float:
        """Tokens per cost of drafted or of plain rounds at this batch size, whichever is more.

        Before the first drafted round, both are assumed equal.
        """
        size = self._size(batch)
        plain_cost = self.prices.round(batch, batch)
        weight = size.unknown * max(PRIOR_ROUNDS / batch, 1.0)
        return max((size.tokens + weight * batch) / (size.cost + weight * plain_cost), batch / plain_cost)

    def acceptance(self, draft_kind: Kind) -> Acceptance:
        """The counts of acceptance of a kind of drafts."""
        if draft_kind not in self._acceptance:
            self._acceptance[draft_kind] = Acceptance()
        return self._acceptance[draft_kind]

    def _size(self, batch: int) -> _BatchSizeRecord:
        if (size := self._sizes.get(bucket(batch))) is None:
            size = self._sizes[bucket(batch)] = _BatchSizeRecord([_ModelRecord()])
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
    """Cut trees to the given nodes, and score them by the log-probabilities that nodes are accepted.

    Args:
        nodes: nodes as from `_likeliest_nodes`.
        trees: the trees.
        chances: per tree, the log-probabilities that its nodes are accepted, the root first.
    """
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
    return Controller(Prices(FREE_ROWS, frozen=True), budget=math.inf)


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
        leaves = list[tuple[float, int, int]]()  # minus the log-probability of acceptance, text and node
        for text_index, (text, text_chances) in enumerate(zip(texts, self.chances, strict=True)):
            self._acceptance[text_index].chances(text, text_chances)
            leaves += [(-text_chances[node], text_index, node) for node in text.frontier]
        leaves.sort()
        width = best_width(
            [math.exp(-loss) for loss, _, _ in leaves[:WIDEST]],
            [math.exp(chance) for text_chances in self.chances for chance in text_chances[1:]],
            self._mean_children(depth),
            self._costs,
            self._level_cost,
            self._rate,
        )
        frontiers = [list[int]() for _ in texts]
        for _, text_index, node in leaves[:width]:
            frontiers[text_index].append(node)
        return [sorted(nodes) for nodes in frontiers]

    def _mean_children(self, depth: int) -> list[float]:
        """By rank, the expected number of accepted children of an accepted node, as a mean over the texts."""
        children = [acceptance.children(depth) for acceptance in self._acceptance]
        return [sum(rank_children) / len(children) for rank_children in zip(*children, strict=True)]

    def _level_cost(self, width: int) -> float:
        return self._prices.level(self._source, width)

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
        rates = self._log_rates(depth)
        for text, text_chances in zip(texts, self._places, strict=True):
            previous_parent = -1
            draw_index = 0
            for parent in text.parents[len(text_chances) :]:
                draw_index = draw_index + 1 if parent == previous_parent else 0
                previous_parent = parent
                text_chances.append(text_chances[parent] + rates[min(draw_index, MORE_NODES - 1)])
        if depth >= self.levels:
            return [[] for _ in texts]
        first_child_rate = math.log(self._acceptance.drawn_rates(depth + 1, 1)[0])
        frontiers = list[list[int]]()
        for text, text_chances in zip(texts, self._places, strict=True):
            frontiers.append([node for node in text.frontier if text_chances[node] + first_child_rate >= self._floor])
        return frontiers

    def max_children(self, texts: Sequence[GrowingTree], depth: int) -> list[list[int]]:
        rates = self._log_rates(depth)
        limits = list[list[int]]()
        for text, text_chances in zip(texts, self._places, strict=True):
            node_limits = list[int]()
            for node in text.frontier:
                node_limits.append(sum(text_chances[node] + rate >= self._floor for rate in rates))
            limits.append(node_limits)
        return limits

    def _log_rates(self, depth: int) -> list[float]:
        """Logarithms of the rates at which the first, second ... drawn child at a depth is accepted."""
        return [math.log(rate) for rate in self._acceptance.drawn_rates(depth, MORE_NODES)]
