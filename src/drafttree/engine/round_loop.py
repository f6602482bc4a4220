"""The loop: a round advances requests in one target pass. A text that is written alone is a batch of one.

    draft (one pass per level) -> one target pass -> verify each -> commit

Trees, single nodes and parts of prompts lie behind each other in the pass, and only attention knows whose rows are
whose. So a request joins by adding a segment and leaves by adding none.
"""

import logging
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drafttree.core.errors import ConfigError
from drafttree.core.machine_memory import is_out_of_memory
from drafttree.core.tree import FORCED, DraftTree, Proposal, Verdict
from drafttree.drafters.base import Drafter, Session, accepted_rows, sources_of
from drafttree.engine.acceptance_watch import BEST, AcceptanceWatch
from drafttree.engine.draft_logits import AdjustedDraft, Constrain, LogitsAdjustment
from drafttree.engine.drafting.controller import Kind
from drafttree.engine.memory import kept_tokens
from drafttree.engine.metrics import Round
from drafttree.engine.prefixes import PrefixCache
from drafttree.engine.request import Request
from drafttree.engine.round_clock import RoundClock
from drafttree.engine.tree_growth import Limits, grow
from drafttree.models import Model, Output, Segment, TreeCache, prefill, prefill_and_score
from drafttree.policies.base import RoundOutcome, TextContext
from drafttree.verifiers.base import check_verdict

logger = logging.getLogger("drafttree")

LONGEST_PART = 512
"""Tokens of prompts in a pass at most."""
RECENT_ROUNDS = 32
"""Rounds of a text by which it is told what the next one would commit."""


class PromptPart(NamedTuple):
    """The next tokens of a prompt that is being read."""

    request: Request
    size: int

    @property
    def begin(self) -> int:
        """Position of the first."""
        return len(self.request.tokens) - 1 - self.request.unread

    @property
    def tokens(self) -> list[int]:
        """Their ids."""
        return self.request.tokens[self.begin : self.begin + self.size]


class DraftGroup(NamedTuple):
    """Requests whose trees grow together.

    Attributes:
        source: which model of the drafter drafts for them.
        places: places of the requests among those of the round.
        requests: requests with the same policy and kind of verifier.
        sessions: sessions that draft for them, all of one class.
    """

    source: int
    places: list[int]
    requests: list[Request]
    sessions: list[Session]


@dataclass
class Drafts:
    """The trees of a round.

    Attributes:
        trees: one for each request; a root alone where nothing was drafted for it.
        grown: the trees before the controller cut them.
        groups: source and widths, over all requests, of what was drafted.
        expected: tokens that the round is expected to commit.
        failure: the message of what the drafter raised, or of memory that ran out; None if there was none.
        not_drafted: why nothing was drafted, None where something was.
    """

    trees: list[DraftTree]
    grown: list[DraftTree] = field(init=False)
    groups: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    expected: float = 0.0
    failure: str | None = None
    not_drafted: str | None = None

    def __post_init__(self) -> None:
        self.grown = self.trees  # one list, until a cut makes another

    @property
    def reason(self) -> str | None:
        """Why nothing was drafted, or not all; None where all was."""
        if self.failure is not None:
            return f"the drafter failed: {self.failure}"
        return None if any(tree.size > 1 for tree in self.trees) else self.not_drafted


class RoundLoop:
    """Opens requests, reads their prompts and advances them.

    Args:
        target: the model whose output is wanted.
        drafter: who proposes, None to decode plainly.
        prefixes: the beginnings of earlier texts.
        context: makes what the policy of a request is told when its text begins.

    Attributes:
        target: as given.
        drafter: as given.
        prefixes: as given.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter | None,
        prefixes: PrefixCache,
        context: Callable[[Request], TextContext],
    ) -> None:
        self.target, self.drafter, self.prefixes = target, drafter, prefixes
        self._context = context
        self._hidden_layers = drafter.hidden_layers if drafter else ()
        sources = sources_of(drafter) if drafter else ()
        self._heads = {source for source, each in enumerate(sources) if each.hidden_layers}
        self._failure = ""

    @property
    def reads_hidden(self) -> bool:
        """Whether the drafter reads the target's hidden states."""
        return bool(self._hidden_layers)

    def open(self, request: Request) -> None:
        """Give a request an empty KV cache and a session of the drafter, for the tokens that it has."""
        request.cache = self.target.new_cache(request.capacity)
        drafting = request.drafting
        drafting.close()
        if drafting.wanted and self.drafter:
            with drafting.failing_softly():
                drafting.start(self._start_draft(self.drafter, request))
                request.metrics.is_mixed = drafting.session is not None and drafting.session.mixes
        if drafting.context is None:
            drafting.context = self._context(request)
            drafting.state = request.policy.init_state(drafting.context) if drafting.session else None

    def close(self, request: Request) -> None:
        """Give back the memory of a request that is to be opened again later."""
        request.cache, request.ids = self.target.new_cache(1), b""
        request.drafting.close()

    def _start_draft(self, drafter: Drafter, request: Request) -> Session:
        session = drafter.start([*request.tokens], request.capacity)
        if not isinstance(session, Session):
            raise ConfigError(
                f"{type(drafter).__name__}.start returns {type(session).__name__}; derive it from "
                "drafttree.drafters.Session (see docs/writing.md)"
            )
        for name in ("root", "expand"):
            asks_drafter = getattr(getattr(session, name), "__func__", None) is getattr(Session, name)
            if asks_drafter and not hasattr(session.drafter, name):
                raise ConfigError(
                    f"{type(session).__name__} has no method {name}, nor has its drafter; see docs/writing.md"
                )
        session.read_cache(request.cache)
        return session

    @torch.inference_mode()
    def begin(self, request: Request, *, batch: int = 1, running: Sequence[Request] = ()) -> None:
        """Take over what was read of a request's prompt for another text. Parts of the rest are read by `step`.

        The request waits, and is to begin later, where another one is reading the beginning of its prompt.
        Recurrent layers read a prompt by other sums than they decode with, so theirs is read whole, here.

        Args:
            request: a request that is open.
            batch: texts that are written at once.
            running: as for `PrefixCache.restore`.
        """
        request.cache.long_rope = self._is_long(request)
        drafting = request.drafting
        if request.reuse_prefix:
            if self.prefixes.max_tokens is None:
                self.prefixes.max_tokens = kept_tokens(self.target)
            reads_hidden = self.reads_hidden and drafting.session is not None
            self.prefixes.restore(request, reads_hidden=reads_hidden, running=running)
            if request.waits:
                return
        drafting.reads_prompt = drafting.session is not None and self.max_levels(request) > 0
        wants = drafting.session is None or request.policy.wants_draft(drafting.state, drafting.session)
        drafting.rest(drafting.controller.rests(batch) or not wants)
        if request.cache.recurrent:
            self._read_whole(request)

    def _read_whole(self, request: Request) -> None:
        """Read the whole prompt, its last token included, which is the root of the first tree."""
        unread = request.tokens[request.cache.length :]
        read = request.prompt_reader(request.cache.length)
        request.metrics.prefill_passes, hidden, request.root_output = prefill_and_score(
            self.target, request.cache, unread, self._hidden_layers, read=read
        )
        request.drafting.prefill(hidden, len(request.tokens) - 1)

    def read_prompt(self, request: Request) -> None:
        """Read a request's prompt, in passes of its own."""
        self.begin(request)
        while request.unread:
            self.step([], [PromptPart(request, min(request.unread, LONGEST_PART))])

    @torch.inference_mode()
    def step(
        self,
        requests: Sequence[Request],
        parts: Sequence[PromptPart] = (),
        trees: Sequence[DraftTree] | None = None,
        clock: RoundClock | None = None,
    ) -> list[Round | Exception]:
        """Advance requests by one round, in one target pass.

        Args:
            requests: requests that a token is chosen for; their prompts are read.
            parts: parts of the prompts of others, to be read in the same pass.
            trees: drafted for each of the requests; by default they are drafted here.
            clock: the clock of the round, which has timed the drafting of given trees.

        Returns:
            For every request what its round cost, or why it failed; the others have gone on.
        """
        clock = clock or RoundClock()
        if trees is None:
            trees = self.draft(requests).trees
            clock.lap("draft")
        outputs = self.score(requests, trees, parts, clock)
        for part, output in zip(parts, outputs[len(requests) :], strict=True):
            self._commit_part(part, output)
        return [self._settle(*each, clock) for each in zip(requests, trees, outputs, strict=False)]

    def draft(self, requests: Sequence[Request], rows: int | None = None, reason: str | None = None) -> Drafts:
        """Draft a round of requests that have one controller.

        Args:
            requests: requests that a token is chosen for.
            rows: rows of the target pass without drafted nodes; by default one for each of them.
            reason: why nothing may be drafted, None where the controller decides.
        """
        batch = len(requests)
        drafts = Drafts([self.root_tree(request) for request in requests], expected=float(batch))
        if requests and not reason:
            reason = requests[0].drafting.controller.reason(batch)
        if not requests or reason:
            drafts.not_drafted = reason
            return drafts
        controller, known = requests[0].drafting.controller, [None] * batch
        for group in self.groups(requests):
            limits = self._limits(group, batch, rows or batch)
            grown = self._grow(group, limits, drafts)
            for place, tree, chances in zip(group.places, grown, limits.chances if limits else known, strict=False):
                drafts.trees[place], known[place] = tree, chances
            if widths := tuple(map(sum, zip_longest(*(tree.widths for tree in grown), fillvalue=0))):
                drafts.groups.append((group.source, widths))
        if not drafts.groups:
            drafts.not_drafted = controller.none_wanted(batch)
        else:
            kinds = [_kind(request, tree.source) for request, tree in zip(requests, drafts.trees, strict=True)]
            budgets = [request.policy.budget for request in requests]
            drafts.trees, drafts.expected = controller.cut(drafts.trees, kinds, budgets, rows or batch, known)
        return drafts

    def groups(self, requests: Sequence[Request]) -> list[DraftGroup]:
        """The requests that are to be drafted for, by what must be alike to draft together."""
        groups: dict[tuple[Any, ...], DraftGroup] = {}
        for place, request in enumerate(requests):
            drafting, session = request.drafting, request.drafting.session
            if session is None or self.max_levels(request) <= 0 or self._takes_forced(request, session, len(requests)):
                continue
            if not request.policy.wants_draft(drafting.state, session):
                continue
            if drafting.pauses:
                drafting.pauses = False
                continue
            source = drafting.controller.choose(session, len(requests))
            if source is None or (session := drafting.choose(source)) is None:
                continue
            key = source, type(session), request.policy, request.verifier.proposal
            group = groups.setdefault(key, DraftGroup(source, [], [], []))
            group.places.append(place)
            group.requests.append(request)
            group.sessions.append(session)
        return [*groups.values()]

    def _limits(self, group: DraftGroup, batch: int, rows: int) -> Limits | None:
        first, kinds = group.requests[0], [_kind(request, group.source) for request in group.requests]
        return first.drafting.controller.limits(first.policy, first.verifier.proposal, kinds, batch, rows)

    def _grow(self, group: DraftGroup, limits: Limits | None, drafts: Drafts) -> list[DraftTree]:
        """Draft the trees of a group, one pass per level for all of them.

        Where memory runs out, the trees end at their level, and the next round of these texts drafts nothing. So they
        do where the drafter fails, if somebody is to be told of it.
        """
        first = group.requests[0]

        def ends(error: Exception) -> bool:
            if is_out_of_memory(error):
                self.prefixes.clear()
                for request in group.requests:
                    request.drafting.pauses = True
            elif first.drafting.on_failure is None or isinstance(error, ConfigError):
                return False
            self.log_failure(error)
            drafts.failure = str(error) or type(error).__name__  # its traceback would hold the round's tensors
            return True

        randomness = [request.randomness.at(len(request.tokens) - 1) for request in group.requests]
        adjustments = [
            LogitsAdjustment(
                *(request.verifier, own, request.drafting.temperature),
                *(self._constrain(request), self._takes_claim(request, group.source)),
            )
            for request, own in zip(group.requests, randomness, strict=True)
        ]
        return grow(
            first.policy,
            AdjustedDraft(group.sessions, adjustments, self.target.device),
            [request.tokens[-1] for request in group.requests],
            [self.max_levels(request) for request in group.requests],
            states=[request.drafting.state for request in group.requests],
            proposal=first.verifier.proposal,
            randomness=randomness,
            vocab=self.target.vocab_size,
            limits=limits,
            source=group.source,
            ends=ends,
        )

    def log_failure(self, error: Exception) -> None:
        """Say in the log that the drafter has failed, unless it just did in the same way."""
        if (failure := f"{type(error).__name__}: {error}") != self._failure:
            self._failure = failure
            logger.warning("the drafter failed, so texts go on without drafts: %s", failure)

    def root_tree(self, request: Request) -> DraftTree:
        """The tree of a round that asks no drafter: the last committed token, and what constraints force behind it."""
        root, forced, proposal = request.tokens[-1], self._forced(request), request.verifier.proposal
        if not forced:
            return DraftTree.rooted(root, proposal)
        if proposal is Proposal.TOP_K:
            return DraftTree.forced(root, forced, proposal)
        rows = torch.zeros(len(forced), self.target.vocab_size, device=self.target.device)
        rows.scatter_(1, torch.tensor(forced, device=rows.device)[:, None], 1.0)
        return DraftTree.forced(root, forced, proposal, [*rows])

    def _forced(self, request: Request) -> list[int]:
        """The tokens that a round drafts since the constraints of the text leave them alone possible.

        They follow from committed tokens, and are drafts as any: others may spell the same, and the target chooses.
        """
        if not (request.constraints and request.drafting.wanted) or request.root_output:
            return []
        most = min(self._room(request), request.policy.budget - 1, request.drafting.most_forced)
        return request.constraints.forced(most)

    def _takes_forced(self, request: Request, session: Session, batch: int) -> bool:
        """Whether what constraints force is expected to commit more for its cost than drafts of a model."""
        if not (forced := self._forced(request)):
            return False
        recent = request.metrics.rounds[-RECENT_ROUNDS:]
        drafted = [turn.accepted for turn in recent if turn.widths]
        chains = [(turn.accepted, turn.nodes - 1) for turn in recent if turn.source == FORCED]
        usual = (1 + sum(drafted)) / (1 + len(drafted))
        share = (1 + sum(accepted for accepted, _ in chains)) / (1 + sum(nodes for _, nodes in chains))
        pays = request.drafting.controller.pays_without_drafting
        return pays(len(forced), share * len(forced), usual, int(session.mixes), batch)

    def max_levels(self, request: Request) -> int:
        """The levels a tree may have, by the text's limit, the drafter's context and the levels it can draft."""
        if self.drafter is None or request.root_output:
            return 0
        context, levels = self.drafter.context, self.drafter.levels
        beyond = sys.maxsize if context is None else context - len(request.tokens)
        return min(self._room(request), beyond, sys.maxsize if levels is None else levels)

    def _room(self, request: Request) -> int:
        """The levels a tree may have by the text's limit, and where the target's positions change."""
        switch = self.target.rope_switch
        short = sys.maxsize if switch is None or self._is_long(request) else switch - len(request.tokens)
        return min(request.remaining - 1, short)

    def _is_long(self, request: Request) -> bool:
        """Whether the root lies beyond the original context of a target with LongRoPE."""
        return self.target.rope_switch is not None and len(request.tokens) > self.target.rope_switch

    def _constrain(self, request: Request) -> Constrain | None:
        """Constrain drafted tokens to what the request's text may be."""
        if not request.constraints:
            return None
        tokens, vocab = list(request.tokens), self.target.vocab_size
        return lambda paths, logits: request.constraints.apply_to_draft(tokens, paths, logits, vocab)

    def _takes_claim(self, request: Request, source: int) -> Callable[[Tensor], None] | None:
        """Notes what a head says of the next token, while heads are tested; see `HeadWatch`."""
        drafting = request.drafting
        if not (drafting.head_watch and drafting.head_watch.is_open and source in self._heads):
            return None
        position, vocab = len(request.tokens), self.target.vocab_size

        def take(logits: Tensor) -> None:
            drafting.claim = position, logits[0].float().log_softmax(-1)[:vocab]

        return take

    def score(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        parts: Sequence[PromptPart] = (),
        clock: RoundClock | None = None,
    ) -> list[Output]:
        """The target's output for every tree and every part, whose rows become drafted rows of their KV caches."""
        clock = clock or RoundClock()
        known = [request.take_root_output() for request in requests]
        device, segments = self.target.device, []
        for request in requests:
            self._read_again_if_long(request)
        clock.lap("others")
        for request, tree, output in zip(requests, trees, known, strict=True):
            if output is None:
                segments.append(tree_segment(request.cache, tree, device))
        for part in parts:
            # Of a prompt no logits are wanted, unless its log-probabilities are.
            wanted = slice(None) if part.request.prompt_logprobs else slice(0, 0)
            text = Segment.of_text(part.request.cache, part.tokens, device)
            segments.append(text._replace(wanted=wanted))
        clock.lap("masks")
        scored = iter(self.target.forward(segments, hidden_layers=self._hidden_layers) if segments else [])
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the verifiers would wait for it anyway, and be timed for it
        clock.lap("target")
        return [*(output or next(scored) for output in known), *scored]

    def _read_again_if_long(self, request: Request) -> None:
        """Compute the KV cache anew, with the frequencies of long texts, where a text has just become one."""
        if request.cache.long_rope or not self._is_long(request):
            return
        request.cache.reset()
        request.cache.long_rope = True
        prefill(self.target, request.cache, request.tokens[:-1])

    def _commit_part(self, part: PromptPart, output: Output) -> None:
        """Keep the rows of a part of a prompt, and let the drafter read it."""
        request = part.request
        if read := request.prompt_reader(part.begin):
            read(output.logits[0])
        request.cache.commit(range(part.size))
        request.metrics.prefill_passes += 1
        drafting = request.drafting
        if drafting.reads_prompt:
            drafting.prefill(output.hidden, part.size)

    def _settle(self, request: Request, tree: DraftTree, output: Output, clock: RoundClock) -> Round | Exception:
        """Verify a scored tree and commit what is accepted: the only place where a text grows."""
        try:
            clock.lap("others")
            logits = scored = output.logits[0]
            missing: set[int] = set()
            if request.constraints:
                logits, missing = request.constraints.score(request.tokens, tree, logits)
            judged = logits.clone() if request.recorder or request.observer else logits  # a verifier may write to it
            verdict = request.verifier.verify(tree, judged, request.randomness.at(len(request.tokens) - 1))
            verdict = check_verdict(request.verifier, tree, verdict, self.target.vocab_size)
            path, bonus = verdict = _before_missing(verdict, tree, missing)
            clock.lap("verify")
            request.cache.commit(path)
            tokens = [*(tree.tokens[node] for node in path[1:]), bonus]
            drafting = request.drafting
            if tree.source == FORCED:
                drafting.count_forced(tree.size - 1, len(path) - 1)
            if drafting.session:
                drafting.rest(not tree.widths)
                drafting.commit([*tokens], accepted_rows(output.hidden, path))
                drafting.controller.accept(_kind(request, tree.source), tree, path)
                if tree.source != FORCED:
                    drafting.state = request.policy.observe(drafting.state, RoundOutcome(tree, tuple(path)))
            clock.lap("commit")
            watch = drafting.watch if drafting.session else None
            collapsed = watch is not None and self._watch(watch, request, tree, path)
            if drafting.claim:
                self._watch_head(request, tokens[0])
            committed = request.commit(tokens, len(path) - 1)
            clock.lap("text")
            if request.recorder:
                rows = path[:committed]
                request.recorder.add(scored[rows], logits[rows], request.tokens[-committed:])
            turn = clock.round(request, tree, path, committed, collapsed=collapsed)
            if request.observer:
                request.observer.settled(request, tree, logits, verdict, turn)
            return turn
        except Exception as error:
            return error

    def _watch(self, watch: AcceptanceWatch, request: Request, tree: DraftTree, path: Sequence[int]) -> bool:
        """Say in the log, once per text, where drafts are of use no more; whether this round has shown it."""
        context = self.drafter.context if self.drafter else None
        if context is not None and len(request.tokens) >= context and request.remaining > 1:
            told = f"a text has reached the drafter's context of {context} tokens, and nothing is drafted for its rest"
            advice = "use a drafter with a longer context, or lookup"
        else:
            drafted = tree.size > 1 and tree.source not in ((FORCED, 0) if request.metrics.is_mixed else (FORCED,))
            if not drafted or not watch.observe(request.tokens, len(path) > 1):
                return False
            told = (
                f"from token {watch.begin} of a text on, {watch.since} rounds accepted a drafted token, and "
                f"{watch.before} before"
            )
            advice = (
                "the text may be longer than those the drafter was trained on, or in a language it does not know; use "
                "another drafter for such texts, or none (speculate=False)"
            )
        request.drafting.watch = None
        logger.warning("%s: %s", told, advice)
        return True

    def _watch_head(self, request: Request, token: int) -> None:
        """Say in the log, once for a target and a drafter, where a head claims far more than its tokens are worth."""
        watch, claim = request.drafting.head_watch, request.drafting.claim
        request.drafting.claim = None
        if not (watch and claim and watch.is_open) or claim[0] != len(request.tokens):
            return
        watch.observe(request.tokens, claim[1], token)
        if watch.is_misread:
            logger.warning(
                "the drafter %s may be misread: the target's token was among the %d likeliest of its head in %s "
                "rounds, and should have been in %.0f by the head's own probabilities. The head may be made for "
                "another target or another version of it, be in a variant of its format that is read in a wrong way, "
                "or know no such texts. Try it with drafttree inspect HEAD --target MODEL; if it is made for this "
                "target, report what that prints",
                *(getattr(self.drafter, "name", "") or repr(self.drafter), BEST, watch.found, watch.claimed),
            )


def _kind(request: Request, source: int) -> Kind:
    return request.verifier.sampling.greedy, source


def _before_missing(verdict: Verdict, tree: DraftTree, missing: Collection[int]) -> Verdict:
    """The verdict as far as nodes have logits: the next round begins at the first that has none, if the text does.

    The tokens before it have the target's law whatever the logits behind it are, so cutting here does not bias a text.
    """
    path, bonus = verdict
    end = next((place for place, node in enumerate(path) if node in missing), len(path))
    return Verdict(path[:end], tree.tokens[path[end]] if end < len(path) else bonus)


def tree_segment(cache: TreeCache, tree: DraftTree, device: torch.device) -> Segment:
    """The nodes of a tree behind what a KV cache holds, for a target pass."""
    if tree.is_chain:
        depths, visible = _chain(tree.size, device)
        tokens = torch.tensor([tree.tokens], device=device)
    else:
        tokens, depths = torch.tensor([[tree.tokens], [tree.depths]]).to(device)
        visible = torch.from_numpy(tree.ancestors)[None].to(device)
    return Segment(cache, tokens, depths + cache.next_position, visible)


@lru_cache(maxsize=64)
def _chain(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Depths and visibility of a chain's nodes, not to be written to."""
    return torch.arange(size, device=device)[None], torch.ones(1, size, size, dtype=torch.bool, device=device).tril()
