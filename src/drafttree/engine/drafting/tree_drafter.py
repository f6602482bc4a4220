"""Drafts the trees of a round, for one text or for many together.

Texts with the same policy, the same way of choosing children and the same model of the drafter share one draft pass per
level. Constraints, a draft temperature and the verifier adjust the drafter's logits before a policy sees them.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from numpy import ndarray as Array
from torch import Tensor
from torch.nn.functional import pad

from drafttree.core.candidates import Candidates
from drafttree.core.errors import ConfigError
from drafttree.core.machine_memory import is_out_of_memory
from drafttree.core.randomness import Randomness
from drafttree.core.tree import FORCED, DraftTree, GrowthObserver, Proposal
from drafttree.drafters.base import Drafter, Session, sources_of
from drafttree.drafters.ranked_logits import DraftLogits, RankedLogits
from drafttree.drafters.session import Frontier, draft_chain, draft_level, draft_root
from drafttree.engine.drafting.controller import Controller
from drafttree.engine.drafting.text_drafting import DraftedRequest
from drafttree.engine.drafting.tree_growth import Limits, grow
from drafttree.models import Model
from drafttree.verifiers.base import Verifier

logger = logging.getLogger("drafttree")

RECENT_ROUNDS = 32
"""The tokens of the next round are estimated from this many rounds of a text."""
Path = tuple[int, ...]
Constrain = Callable[[list[Path], Tensor], Tensor]
"""Returns the logits `[frontier, vocab]` after these paths of drafted tokens, with constraints applied."""


@dataclass(eq=False)
class LogitsAdjustment:
    """The adjustments of a drafter's logits in one round of a text.

    Attributes:
        verifier: the verifier, which may guide the drafts by its randomness.
        randomness: the randomness of this round.
        temperature: divides the drafter's logits.
        constrain: applies the constraints of the text; None if it has none.
        take_first_logits: called with the drafter's unadjusted logits `[1, vocab]` of the first level, or None.
        observer: told of the tree's growth, or None.
    """

    verifier: Verifier
    randomness: Randomness
    temperature: float = 1.0
    constrain: Constrain | None = None
    take_first_logits: Callable[[Tensor], None] | None = None
    observer: GrowthObserver | None = None

    @property
    def changes_nothing(self) -> bool:
        """Whether logits are neither changed at any depth nor shown to an observer."""
        return not (self.constrain or self.verifier.guides or self.observer) and self.temperature == 1

    def reads_best_alone(self, depth: int) -> bool:
        """Whether the best tokens by unadjusted logits are all that is read at a depth."""
        takes_logits = self.take_first_logits is not None and depth == 1
        return self.changes_nothing and not takes_logits and self.verifier.proposal is Proposal.TOP_K

    def apply_to_candidates(self, candidates: Candidates, depth: int) -> Candidates | None:
        """Adjust candidates; None if the adjustments need logits of the whole vocabulary."""
        draws_children = self.verifier.proposal is not Proposal.TOP_K  # from the whole vocabulary
        if draws_children or self.constrain or self.observer or self.take_first_logits:
            return None
        if self.temperature != 1:
            candidates = candidates.divided(self.temperature)
        return self.verifier.guide_candidates(candidates, depth, self.randomness)

    def apply(self, logits: Tensor, depth: int, paths: list[Path]) -> Tensor:
        """Adjust logits `[frontier, vocab]`; return the same tensor if there is nothing to adjust.

        Args:
            logits: the drafter's logits.
            depth: the depth of the tokens that they propose.
            paths: per row, the drafted tokens from the root to the row's node; used only with constraints.
        """
        if self.take_first_logits and depth == 1:
            self.take_first_logits(logits)
        if self.constrain:
            logits = self.constrain(paths, logits)
        if self.temperature != 1:
            logits = logits / self.temperature
        guided_logits = self.verifier.guide(logits, depth, self.randomness)
        if self.observer:
            self.observer.guided(logits, guided_logits)
        return guided_logits


class AdjustedDraft:
    """Drafts for several requests in one round, and adjusts each request's logits; a `tree_growth.DraftRows`.

    Args:
        sessions: the session of each request.
        adjustments: the adjustments of each request.
        device: the device for the logits.
    """

    def __init__(
        self, sessions: Sequence[Session], adjustments: Sequence[LogitsAdjustment], device: torch.device
    ) -> None:
        self._sessions = sessions
        self._adjustments = adjustments
        self._device = device
        self._depth = 0
        self._paths = list[list[Path]]()

    def draft_root(self) -> DraftLogits | Candidates:
        self._depth = 1
        self._paths = [list[Path]([()]) for _ in self._adjustments]
        return self._adjust(draft_root(self._sessions), [1] * len(self._adjustments))

    def draft_level(self, frontiers: Sequence[Frontier]) -> DraftLogits | Candidates:
        self._depth += 1
        for request_index, (adjustment, frontier) in enumerate(zip(self._adjustments, frontiers, strict=True)):
            if adjustment.constrain:
                paths = self._paths[request_index]
                nodes = zip(frontier.tokens, frontier.origins, strict=True)
                self._paths[request_index] = [(*paths[origin], token) for token, origin in nodes]
        widths = [len(frontier.tokens) for frontier in frontiers]  # the drafter may change frontiers
        return self._adjust(draft_level(self._sessions, frontiers, self._device), widths)

    def draft_chain(self, tokens: Sequence[int], count: int, allowed: int) -> tuple[Array, Array] | None:
        if not all(adjustment.changes_nothing for adjustment in self._adjustments):
            return None
        return draft_chain(self._sessions, tokens, count, allowed)

    def _adjust(self, rows: DraftLogits | Candidates, widths: Sequence[int]) -> DraftLogits | Candidates:
        """Adjust rows, of which each request has as many as `widths` says. Without adjustments nothing is copied."""
        if isinstance(rows, RankedLogits):
            if all(adjustment.reads_best_alone(self._depth) for adjustment in self._adjustments):
                return rows
            rows = rows.logits()
        if not isinstance(rows, Candidates):
            return self._adjust_logits(rows, widths)
        ends = [*accumulate(widths)]
        blocks = list[Candidates]()
        for adjustment, width, end in zip(self._adjustments, widths, ends, strict=True):
            if width:
                block = adjustment.apply_to_candidates(rows.part(end - width, end), self._depth)
                if block is None:
                    return self._adjust_logits(rows.dense(self._device), widths)
                blocks.append(block)
        return blocks[0] if len(blocks) == 1 else blocks[0].joined(blocks[1:])

    def _adjust_logits(self, logits: Tensor, widths: Sequence[int]) -> Tensor:
        if len(widths) == 1:
            return self._adjustments[0].apply(logits, self._depth, self._paths[0])
        logit_blocks = logits.split(list(widths))
        adjusted_blocks = [
            adjustment.apply(block, self._depth, paths) if len(block) else block
            for adjustment, block, paths in zip(self._adjustments, logit_blocks, self._paths, strict=True)
        ]
        if all(adjusted_block is block for adjusted_block, block in zip(adjusted_blocks, logit_blocks, strict=True)):
            return logits
        columns = max(block.shape[-1] for block in adjusted_blocks)
        return torch.cat([pad(block, (0, columns - block.shape[-1]), value=-torch.inf) for block in adjusted_blocks])


class DraftGroup(NamedTuple):
    """Requests whose trees grow together.

    Attributes:
        source: the index of the drafter's model that drafts for them.
        request_indices: their indices among the requests of the round.
        requests: requests with the same policy and the same way of choosing children.
        sessions: the sessions that draft for them, all of one class.
    """

    source: int
    request_indices: list[int]
    requests: list[DraftedRequest]
    sessions: list[Session]


@dataclass
class Drafts:
    """The trees of a round.

    Attributes:
        trees: the tree of each request; without a draft, it has only the root and forced tokens.
        grown: the same trees before the controller cut them.
        groups: per group, the index of the drafter's model, and the width of each level over all of its requests.
        expected: number of tokens that the round is expected to commit.
        failure: message of the error that ended drafting; None if there was none.
        not_drafted: why nothing was drafted; None if something was.
    """

    trees: list[DraftTree]
    grown: list[DraftTree] = field(init=False)
    groups: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    expected: float = 0.0
    failure: str | None = None
    not_drafted: str | None = None

    def __post_init__(self) -> None:
        self.grown = self.trees  # the same list: a cut replaces `trees` and leaves this one

    @property
    def reason(self) -> str | None:
        """Why nothing was drafted, or that the drafter failed; None otherwise."""
        if self.failure is not None:
            return f"the drafter failed: {self.failure}"
        return None if any(tree.size > 1 for tree in self.trees) else self.not_drafted


class TreeDrafter:
    """Drafts trees for requests.

    Args:
        target: the target.
        drafter: the drafter; None to draft only tokens that constraints force.
        free_memory: called if memory runs out in a draft pass.
    """

    def __init__(self, target: Model, drafter: Drafter | None, free_memory: Callable[[], None]) -> None:
        self._target = target
        self._drafter = drafter
        self._free_memory = free_memory
        sources = sources_of(drafter) if drafter else ()
        self._heads = {source for source, model in enumerate(sources) if model.hidden_layers}
        self._failure = ""

    def draft(self, requests: Sequence[DraftedRequest], prefill_rows: int = 0) -> Drafts:
        """Draft the trees of a round.

        Args:
            requests: the requests of the round, which share one controller.
            prefill_rows: rows of prompts in the same target pass.
        """
        batch = len(requests)
        rows = len(requests) + prefill_rows
        drafts = Drafts([self.root_tree(request) for request in requests], expected=float(batch))
        if self._drafter is None or not requests:
            drafts.not_drafted = "prompts are read" if self._drafter else "there is no drafter"
            return drafts
        controller = requests[0].drafting.controller
        known_chances = [None] * batch
        drafts.not_drafted = controller.reason(batch)
        if drafts.not_drafted:
            return drafts
        for group in self.groups(requests):
            limits = _limits_of(group, controller, batch, rows)
            grown_trees = self._grow(group, limits, drafts)
            for request_index, tree, chances in zip(
                group.request_indices, grown_trees, limits.chances if limits else known_chances, strict=False
            ):
                drafts.trees[request_index] = tree
                known_chances[request_index] = chances
            if widths := tuple(map(sum, zip_longest(*(tree.widths for tree in grown_trees), fillvalue=0))):
                drafts.groups.append((group.source, widths))
        if not drafts.groups:
            drafts.not_drafted = controller.none_wanted(batch)
            controller.asked_in_vain(batch, sum(request.drafting.estimates_accepted for request in requests))
        else:
            draft_kinds = [
                request.task.draft_kind(tree.source) for request, tree in zip(requests, drafts.trees, strict=True)
            ]
            budgets = [request.task.policy.budget for request in requests]
            drafts.trees, drafts.expected = controller.cut(drafts.trees, draft_kinds, budgets, rows, known_chances)
        return drafts

    def groups(self, requests: Sequence[DraftedRequest]) -> list[DraftGroup]:
        """Group the requests for which a model drafts in this round; the others need no draft, or do not want one."""
        groups: dict[tuple[Any, ...], DraftGroup] = {}
        for request_index, request in enumerate(requests):
            drafting = request.drafting
            if drafting.session is None or self.max_levels(request) <= 0:
                continue
            if (session := drafting.up_to_date_session()) is None:
                continue
            if self._prefers_forced(request, session, len(requests)):
                continue
            if not request.task.policy.wants_draft(drafting.state, session):
                continue
            if drafting.consume_pause():
                continue
            source = drafting.controller.choose(session, len(requests))
            if source is None or (session := drafting.session_of(source)) is None:
                continue
            key = source, type(session), request.task.policy, request.task.verifier.proposal
            group = groups.setdefault(key, DraftGroup(source, [], [], []))
            group.request_indices.append(request_index)
            group.requests.append(request)
            group.sessions.append(session)
        return [*groups.values()]

    def _grow(self, group: DraftGroup, limits: Limits | None, drafts: Drafts) -> list[DraftTree]:
        """Draft the trees of a group, with one draft pass per level.

        If memory runs out, the trees keep their levels so far, and the next round of these texts drafts nothing. If the
        drafter fails in an engine, the trees also keep their levels so far.
        """
        first_request = group.requests[0]

        def ends(error: Exception) -> bool:
            if is_out_of_memory(error):
                self._free_memory()
                for request in group.requests:
                    request.drafting.pause_once()
            elif first_request.drafting.on_failure is None or isinstance(error, ConfigError):
                return False
            self.log_failure(error)
            drafts.failure = str(error) or type(error).__name__  # its traceback would hold the round's tensors
            return True

        randomness = [request.task.randomness.at(len(request.text.tokens) - 1) for request in group.requests]
        is_head = group.source in self._heads
        vocab = self._target.vocab_size
        adjustments = [
            LogitsAdjustment(
                request.task.verifier,
                request_randomness,
                request.task.draft_temperature,
                self._constrain(request),
                request.drafting.claim_recorder(len(request.text.tokens), vocab) if is_head else None,
                request.growth_observer,
            )
            for request, request_randomness in zip(group.requests, randomness, strict=True)
        ]
        return grow(
            first_request.task.policy,
            AdjustedDraft(group.sessions, adjustments, self._target.device),
            [request.text.tokens[-1] for request in group.requests],
            [self.max_levels(request) for request in group.requests],
            states=[request.drafting.state for request in group.requests],
            proposal=first_request.task.verifier.proposal,
            randomness=randomness,
            vocab=vocab,
            limits=limits,
            source=group.source,
            ends=ends,
            observers=map(attrgetter("growth_observer"), group.requests),
        )

    def log_failure(self, error: Exception) -> None:
        """Log an error of the drafter, unless the last logged error was the same."""
        if (failure := f"{type(error).__name__}: {error}") != self._failure:
            self._failure = failure
            logger.warning("the drafter failed, so texts go on without drafts: %s", failure)

    def root_tree(self, request: DraftedRequest) -> DraftTree:
        """The tree without the drafter: the last committed token, and a chain of the tokens that constraints force."""
        root = request.text.tokens[-1]
        forced_tokens = self._forced_tokens(request)
        proposal = request.task.verifier.proposal
        if not forced_tokens:
            return DraftTree.rooted(root, proposal)
        if proposal is Proposal.TOP_K:
            return DraftTree.forced(root, forced_tokens, proposal)
        rows = torch.zeros(len(forced_tokens), self._target.vocab_size, device=self._target.device)
        rows.scatter_(1, torch.tensor(forced_tokens, device=rows.device)[:, None], 1.0)
        return DraftTree.forced(root, forced_tokens, proposal, [*rows])

    def _forced_tokens(self, request: DraftedRequest) -> list[int]:
        """The next tokens that the constraints of the text force, if any.

        They depend on committed tokens only. The target may reject them like other drafts, since other tokens can spell
        the same text.
        """
        if not (request.text.constraints and request.task.speculate) or request.root_output:
            return []
        max_forced = min(self._max_depth(request), request.task.policy.budget - 1, request.drafting.max_forced)
        return request.text.constraints.forced(max_forced)

    def _prefers_forced(self, request: DraftedRequest, session: Session, batch: int) -> bool:
        """Whether the forced tokens are expected to commit more tokens per cost than a model's drafts."""
        if not (forced_tokens := self._forced_tokens(request)):
            return False
        recent_rounds = request.metrics.rounds[-RECENT_ROUNDS:]
        accepted_counts = [text_round.accepted for text_round in recent_rounds if text_round.widths]
        chains = [
            (text_round.accepted, text_round.nodes - 1) for text_round in recent_rounds if text_round.source == FORCED
        ]
        mean_accepted = (1 + sum(accepted_counts)) / (1 + len(accepted_counts))
        share = (1 + sum(accepted for accepted, _ in chains)) / (1 + sum(nodes for _, nodes in chains))
        pays = request.drafting.controller.pays_without_drafting
        return pays(len(forced_tokens), share * len(forced_tokens), mean_accepted, int(session.mixes), batch)

    def max_levels(self, request: DraftedRequest) -> int:
        """Maximum number of drafted levels, by the text's limit, the drafter's context and the drafter's levels."""
        if self._drafter is None or request.root_output:
            return 0
        context = self._drafter.context
        levels = self._drafter.levels
        context_room = sys.maxsize if context is None else context - request.drafting.seen(len(request.text.tokens))
        return min(self._max_depth(request), context_room, sys.maxsize if levels is None else levels)

    def _max_depth(self, request: DraftedRequest) -> int:
        """Maximum number of levels of any tree, by the text's limit and the position at which LongRoPE switches."""
        switch = self._target.rope_switch
        switch_room = (
            sys.maxsize if switch is None or is_long(request, self._target) else switch - len(request.text.tokens)
        )
        return min(request.text.remaining - 1, switch_room)

    def _constrain(self, request: DraftedRequest) -> Constrain | None:
        """Return a function that applies the request's constraints to drafts; None if it has none."""
        if not request.text.constraints:
            return None
        tokens = list(request.text.tokens)
        vocab = self._target.vocab_size
        return lambda paths, logits: request.text.constraints.apply_to_draft(tokens, paths, logits, vocab)


def _limits_of(group: DraftGroup, controller: Controller, batch: int, rows: int) -> Limits | None:
    """The controller's limits for a group's trees in a round of `batch` texts, with `rows` rows without drafts."""
    draft_kinds = [request.task.draft_kind(group.source) for request in group.requests]
    first_request = group.requests[0]
    return controller.limits(first_request.task.policy, first_request.task.verifier.proposal, draft_kinds, batch, rows)


def is_long(request: DraftedRequest, target: Model) -> bool:
    """Whether the root is beyond the original context of a target with LongRoPE."""
    return target.rope_switch is not None and len(request.text.tokens) > target.rope_switch
