"""The rounds of a text: draft a tree, score it in one target pass, verify it, commit the accepted path and the bonus.

    prefill -> [ propose -> score -> settle ]*

`RequestRounds.step` advances one text by one round. `drafttree.engine.batching` runs the same parts for many texts,
whose trees share a target pass.
"""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Unpack

import torch

from drafttree.core.cost_curve import CostCurve
from drafttree.core.errors import ConfigError, DraftTreeError
from drafttree.core.tree import DraftTree, Proposal, Verdict
from drafttree.drafters.base import Drafter, DraftSession, HiddenStates, accepted_rows
from drafttree.drafters.packed import pack
from drafttree.engine.adaptation import Adaptation
from drafttree.engine.child_sampler import ChildSampler
from drafttree.engine.draft_logits import AdjustedDraft, Constrain, LogitsAdjustment
from drafttree.engine.generation_options import GenerationOptions
from drafttree.engine.metrics import Round
from drafttree.engine.out_of_memory import is_out_of_memory
from drafttree.engine.prefix_cache import PrefixCache
from drafttree.engine.prompt import Prompt
from drafttree.engine.request import Request
from drafttree.engine.target_lock import lock_of
from drafttree.engine.tree_growth import Gate, grow
from drafttree.models import Model, Output, Segment, TreeCache, prefill, prefill_and_score
from drafttree.policies.base import RoundOutcome, TreePolicy
from drafttree.verifiers import Verifier
from drafttree.verifiers.base import check_verdict

SESSION_PARTS = ("root", "expand", "prefill", "commit", "passes", "seconds", "nbytes")


class RequestRounds(ABC):
    """Runs the rounds of requests over one target.

    Attributes:
        target: the model whose output is wanted.
        drafter: who proposes, None to decode plainly.
        policy: how trees grow.
        verifier: what is accepted, None for the default of each text.
        prefixes: the beginnings of earlier texts.
        adaptation: what is known of target and drafter together.
    """

    target: Model
    drafter: Drafter | None
    policy: TreePolicy
    verifier: type[Verifier] | None
    prefixes: PrefixCache
    adaptation: Adaptation

    def open(self, request: Request) -> None:
        """Give a request an empty KV cache and a session of the drafter, for the tokens that it has."""
        request.cache = self.target.new_cache(1, request.capacity)
        request.draft = None
        if request.speculate:
            with self.drafting(request):
                request.draft = self._start_draft(request.tokens, request.capacity)

    @contextmanager
    def drafting(self, request: Request) -> Iterator[None]:
        """Let an error of a request's drafter end its drafts and not the request, if somebody is to be told of it."""
        try:
            yield
        except Exception as error:
            if request.draft_failed is None or is_out_of_memory(error) or isinstance(error, DraftTreeError):
                raise
            request.draft = None
            request.draft_failed(error)

    def close(self, request: Request) -> None:
        """Give back the memory of a request that is to be opened again later."""
        request.cache, request.draft = self.target.new_cache(1, 1), None

    @abstractmethod
    def prepare(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Request:
        """A checked request that touches no model yet; see `Decoder.prepare`."""

    @abstractmethod
    def costs(self, *, greedy: bool = True) -> CostCurve:
        """What passes and rounds cost; see `Decoder.costs`."""

    def _start_draft(self, tokens: list[int], capacity: int) -> DraftSession | None:
        """The drafter's session for a text so far, if there is a drafter."""
        if self.drafter is None:
            return None
        session = self.drafter.start(tokens, capacity)
        if missing := [part for part in SESSION_PARTS if not hasattr(session, part)]:
            name = type(self.drafter).__name__
            raise ConfigError(f"{name}.start returns a session that lacks {', '.join(missing)}; see docs/writing.md")
        return session

    @torch.inference_mode()
    def step(self, request: Request) -> int:
        """Advance a request by one round and return how many tokens were committed: 0 where its text has ended."""
        if request.finish_reason:
            return 0
        with lock_of(self.target):
            return self._step(request)

    def _step(self, request: Request) -> int:
        begun = time.perf_counter()
        if not request.metrics.rounds:
            self.prefill(request)
        self.read_again_if_long(request)
        started = time.perf_counter()
        tree = self.propose(request)
        committed, turn = self.settle(request, tree, self.score(request, tree), started)
        request.metrics.record(turn, time.perf_counter() - begun)
        return committed

    def settle(self, request: Request, tree: DraftTree, output: Output, started: float) -> tuple[int, Round]:
        """Verify a scored tree and commit what is accepted.

        Args:
            request: whose tree it is.
            tree: that was proposed.
            output: of the target for its nodes.
            started: when the round began, by `time.perf_counter`.

        Returns:
            How many tokens were committed, and the cost of the round, which the request's metrics do not have yet.
        """
        with request.clock.verify:
            logits = output.logits
            if request.constraints:
                logits = request.constraints.score(request.tokens, tree, logits)
            verdict = request.verifier.verify(tree, logits, [request.randomness.at(len(request.tokens) - 1)])
        committed, path = self._commit(request, tree, verdict, output.hidden), verdict.host[0][0]
        if request.recorder:
            rows = path[:committed]
            request.recorder.add(output.logits[0, rows], logits[0, rows], request.tokens[-committed:])
        turn = request.clock.round(committed, path, tree, request.draft, time.perf_counter() - started)
        if request.observer:
            request.observer.settled(request, tree, logits, verdict, turn)
        return committed, turn

    def prefill(self, request: Request) -> None:
        """Read a new request's prompt, all but its last token and what its KV cache holds, as target and as drafter."""
        self.resume_prefix(request)
        unread, wanted = request.tokens[request.cache.length :], self.hidden_layers
        read = request.prompt_reader(request.cache.length)
        if request.cache.recurrent:
            passes, hidden_states, output = prefill_and_score(self.target, request.cache, unread, wanted, read=read)
            request.root_output = output
        else:
            passes, hidden_states = prefill(self.target, request.cache, unread[:-1], wanted, read=read)
        request.metrics.prefill_passes = passes
        if request.draft and (request.root_output or self.max_levels(request) > 0):
            with self.drafting(request):
                request.draft.prefill(hidden_states, len(request.tokens) - 1)

    def is_long(self, request: Request) -> bool:
        """Whether the root lies beyond the original context of a target with LongRoPE."""
        return self.target.rope_switch is not None and len(request.tokens) > self.target.rope_switch

    def resume_prefix(self, request: Request) -> None:
        """Take over what an earlier text has left of a request's prompt, if it wants that."""
        request.cache.long_rope = self.is_long(request)
        if request.reuse_prefix:
            self.prefixes.restore(request, reads_hidden=bool(self.hidden_layers))

    def read_again_if_long(self, request: Request) -> None:
        """Compute the KV cache anew, with the frequencies of long texts, where a text has just become one."""
        if request.cache.long_rope or not self.is_long(request):
            return
        request.cache.reset()
        request.cache.long_rope = True
        prefill(self.target, request.cache, request.tokens[:-1])

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        return self.drafter.hidden_layers if self.drafter else ()

    def max_levels(self, request: Request) -> int:
        """The levels a tree may have, by the text's limit, the drafter's context and the levels it can draft."""
        if self.drafter is None or request.root_output:
            return 0
        context, levels = self.drafter.context, self.drafter.levels
        beyond = sys.maxsize if context is None else context - len(request.tokens)
        switch = self.target.rope_switch
        short = sys.maxsize if switch is None or self.is_long(request) else switch - len(request.tokens)
        return min(request.remaining - 1, beyond, short, sys.maxsize if levels is None else levels)

    def propose(self, request: Request) -> DraftTree:
        """Draft the tree of a request's next round."""
        if not (request.draft and request.policy.wants_draft(request.state, request.draft)):
            return self.root_tree(request)
        with request.clock.propose:
            (tree,) = self.grow([request], [drafting(request.draft)[1]], [self.max_levels(request)])
        return tree

    def grow(
        self,
        requests: Sequence[Request],
        sessions: Sequence[DraftSession],
        max_levels: Sequence[int],
        *,
        gate: Gate | None = None,
    ) -> list[DraftTree]:
        """Draft the trees of requests that have the same policy and kind of verifier, one pass per level for all.

        Args:
            requests: to draft for.
            sessions: the session of each that drafts.
            max_levels: as for `tree_growth.grow`.
            gate: as for `tree_growth.grow`.
        """
        first = requests[0]
        proposal = first.verifier.proposal
        randomness = [request.randomness.at(len(request.tokens) - 1) for request in requests]
        adjustments = [
            LogitsAdjustment(request.verifier, own, request.draft_temperature, self._constrain(request))
            for request, own in zip(requests, randomness, strict=True)
        ]
        return grow(
            first.policy,
            AdjustedDraft(pack(sessions), adjustments, self.target.device),
            [request.tokens[-1] for request in requests],
            max_levels,
            states=[request.state for request in requests],
            sampler=None if proposal is Proposal.TOP_K else ChildSampler(proposal, randomness),
            vocab=self.target.vocab_size,
            gate=gate,
            source=drafting(first.draft)[0],
        )

    def root_tree(self, request: Request) -> DraftTree:
        """The tree of a round that drafts nothing: the last committed token."""
        return DraftTree.rooted(request.tokens[-1], request.verifier.proposal)

    def _constrain(self, request: Request) -> Constrain | None:
        """Constrain drafted tokens to what the request's text may be."""
        if not request.constraints:
            return None
        tokens, vocab = list(request.tokens), self.target.vocab_size
        return lambda paths, logits: request.constraints.apply_to_draft(tokens, paths, logits, vocab)

    def score(self, request: Request, tree: DraftTree) -> Output:
        """The target's logits of every node, whose keys and values become drafted rows of the request's KV cache."""
        if output := request.take_root_output():
            return output
        with request.clock.masks:
            cache, tokens, positions, visible, _ = tree_segment(request.cache, tree, self.target.device)
        with request.clock.target:
            return self.target.forward(cache, tokens, positions, visible, hidden_layers=self.hidden_layers)

    def _commit(self, request: Request, tree: DraftTree, verdict: Verdict, hidden: HiddenStates) -> int:
        with request.clock.commit:
            ((path, bonus),) = verdict.host
            check_verdict(request.verifier, tree, path, bonus, self.target.vocab_size)
            request.cache.commit(path)
            tokens = [*(tree.tokens[node] for node in path[1:]), bonus]
            if request.draft:
                with self.drafting(request):
                    request.draft.commit(tokens, accepted_rows(hidden, path))
                request.state = request.policy.observe(request.state, RoundOutcome(tree, path))
        with request.clock.text:
            return request.commit(tokens, len(path) - 1)


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


def drafting(session: Any) -> tuple[int, DraftSession]:
    """Which of the drafter's models drafts the next round of a text, and its session."""
    choose = getattr(session, "choose", None)
    chosen = choose() if choose else session
    return getattr(session, "source", 0), chosen
