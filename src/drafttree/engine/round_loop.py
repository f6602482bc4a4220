"""The loop: a round advances requests in one target pass. A text that is written alone is a batch of one.

    draft (one pass per level) -> one target pass -> verify each -> commit

Trees, single nodes and parts of prompts lie behind each other in the pass, and only attention knows whose rows are
whose. So a request joins by adding a segment and leaves by adding none.
"""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch

from drafttree.core.autocast import refuse_autocast
from drafttree.core.errors import ConfigError
from drafttree.core.tree import FORCED, DraftTree, Verdict
from drafttree.core.vocab_ops import best_tokens
from drafttree.drafters.base import Drafter, Session
from drafttree.drafters.timing import PassTimer
from drafttree.engine.drafting.tree_drafter import Drafts, TreeDrafter, is_long
from drafttree.engine.memory import kept_tokens
from drafttree.engine.metrics import TextRound
from drafttree.engine.prefixes import PrefixCache, Restored, WaitsForPrefix
from drafttree.engine.request import Request
from drafttree.models import Model, Output, Segment, TreeCache, prefill, prefill_and_score
from drafttree.models.inference import in_inference_mode
from drafttree.models.segment import causal, join
from drafttree.policies.base import RoundOutcome, TextContext
from drafttree.verifiers.base import check_verdict, walk
from drafttree.verifiers.greedy import Greedy

BestTokens = Callable[[int], int]
"""Tells the best token behind a node of a tree."""
LONGEST_PART = 512
"""Tokens of prompts in a pass at most."""


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


class RoundClock:
    """Sums up the wall time of the parts of a round: `draft`, `masks` and `target` of all its requests, then `verify`,
    `commit` and `text` of one after the other.

    Attributes:
        began: when it was made, by `time.perf_counter`.
        seconds: seconds of the latest part of each name.
    """

    def __init__(self) -> None:
        self.began = self._last = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self._pass: PassTimer | None = None

    def lap(self, part: str) -> None:
        """Note that a part ends here, which began where the one before it ended."""
        end = time.perf_counter()
        self.seconds[part] = end - self._last
        self._last = end

    def time_pass(self, device: torch.device) -> AbstractContextManager[object]:
        """Time the block as the target pass, where the host goes on before the device has finished it."""
        if device.type != "cuda":
            return nullcontext()
        self._pass = PassTimer(device)
        return self._pass

    def count_pass(self) -> None:
        """Count as the target's what the device still took for its pass, for which a verifier has waited."""
        if timer := self._pass:
            self._pass = None
            waited_seconds = min(max(timer.seconds - self.seconds["target"], 0.0), self.seconds["verify"])
            self.seconds["target"] += waited_seconds
            self.seconds["verify"] -= waited_seconds

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return self._last - self.began


class Advance(NamedTuple):
    """A round that was run.

    Attributes:
        rounds: for every request what its round cost, or why it failed; the others have gone on.
        drafts: what was drafted for them.
        clock: when its parts ended.
    """

    rounds: list[TextRound | Exception]
    drafts: Drafts
    clock: RoundClock


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
        trees: drafts the trees of rounds.
        reads_at_once: whether what verifiers need of all texts is read together: a device is waited for once. On a CPU
            they look at the nodes along one path.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter | None,
        prefixes: PrefixCache,
        context: Callable[[Request], TextContext],
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.prefixes = prefixes
        self._context = context
        self.trees = TreeDrafter(target, drafter, prefixes.clear)
        self.reads_at_once = target.device.type != "cpu"
        self._hidden_layers = drafter.hidden_layers if drafter else ()

    def open(self, request: Request) -> None:
        """Give a request an empty KV cache and a session of the drafter, for the tokens that it has."""
        request.open(self.target.new_cache(request.task.capacity))
        drafting = request.drafting
        drafting.close()
        if request.task.speculate and self.drafter:
            with drafting.failing_softly():
                drafting.start(self._start_draft(self.drafter, request))
                request.metrics.is_mixed = drafting.session is not None and drafting.session.mixes
        if drafting.context is None:
            drafting.begin(self._context(request))

    def close(self, request: Request) -> None:
        """Give back the memory of a request that is to be opened again later."""
        request.close(self.target.new_cache(1))

    def _start_draft(self, drafter: Drafter, request: Request) -> Session:
        session = drafter.start([*request.tokens], request.task.capacity)
        if not isinstance(session, Session):
            raise ConfigError(
                f"{type(drafter).__name__}.start returns {type(session).__name__}; derive it from "
                "drafttree.drafters.Session (see docs/writing.md)"
            )
        for name in ("draft_root", "draft_level"):
            asks_drafter = getattr(getattr(session, name), "__func__", None) is getattr(Session, name)
            if asks_drafter and not hasattr(session.drafter, name):
                raise ConfigError(
                    f"{type(session).__name__} has no method {name}, nor has its drafter; see docs/writing.md"
                )
        session.read_cache(request.cache)
        return session

    @in_inference_mode
    def begin(self, request: Request, *, batch: int = 1, running: Sequence[Request] = ()) -> Restored | WaitsForPrefix:
        """Take over what was read of a request's prompt for another text. Parts of the rest are read by `step`.

        Recurrent layers read a prompt by other sums than they decode with, so theirs is read whole, here.

        Args:
            request: a request that is open.
            batch: texts that are written at once.
            running: as for `PrefixCache.restore`.

        Returns:
            What was taken over. If the request waits for another one that is reading the beginning of its prompt, it
            has not begun, and is to begin later.
        """
        request.cache.long_rope = is_long(request, self.target)
        restored = Restored(0)
        if request.task.reuse_prefix:
            if self.prefixes.max_tokens is None:
                self.prefixes.max_tokens = kept_tokens(self.target)
            reads_hidden = bool(self._hidden_layers) and request.drafting.session is not None
            restored = self.prefixes.restore(request, reads_hidden=reads_hidden, running=running)
            if isinstance(restored, WaitsForPrefix):
                return restored
        request.drafting.begin_prompt(reads=self.trees.max_levels(request) > 0, batch=batch)
        if request.cache.recurrent:
            self._read_whole(request)
        return restored

    def _read_whole(self, request: Request) -> None:
        """Read the whole prompt, its last token included, which is the root of the first tree."""
        unread = request.tokens[request.cache.length :]
        reader = request.text.prompt_reader(request.cache.length)
        request.metrics.prefill_passes, hidden_states, root_output = prefill_and_score(
            self.target, request.cache, unread, self._hidden_layers, read=reader
        )
        request.keep_root_output(root_output)
        request.drafting.prefill(hidden_states, len(request.tokens) - 1)

    def read_prompt(self, request: Request) -> None:
        """Read a request's prompt, in passes of its own."""
        self.begin(request)
        while request.unread:
            self.step([], [PromptPart(request, min(request.unread, LONGEST_PART))])

    @in_inference_mode
    def step(self, requests: Sequence[Request], parts: Sequence[PromptPart] = ()) -> Advance:
        """Advance requests by one round, in one target pass.

        Args:
            requests: requests that a token is chosen for; their prompts are read.
            parts: parts of the prompts of others, to be read in the same pass.

        Raises:
            ConfigError: `torch.autocast` is active.
        """
        refuse_autocast(self.target.device)
        clock = RoundClock()
        drafts = self.trees.draft(requests, sum(prompt_part.size for prompt_part in parts))
        for request, grown_tree in zip(requests, drafts.grown, strict=True):
            if request.observer:
                request.observer.drafted(request, grown_tree, drafts.reason)
        clock.lap("draft")
        outputs = self.score(requests, drafts.trees, parts, clock)
        for prompt_part, output in zip(parts, outputs[len(requests) :], strict=True):
            self._read(prompt_part, output)
        scored_texts = zip(requests, drafts.trees, outputs, self._read_best(requests, outputs), strict=False)
        # Without a name for the list: an error's frames lead here, and must not lead back to the error.
        return Advance([self._settle(*scored_text, clock) for scored_text in scored_texts], drafts, clock)

    def score(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        parts: Sequence[PromptPart] = (),
        clock: RoundClock | None = None,
    ) -> list[Output]:
        """The target's output for every tree and every part, whose rows become drafted rows of their KV caches."""
        clock = clock or RoundClock()
        root_outputs = [request.take_root_output() for request in requests]
        segments = list[Segment]()
        for request in requests:
            self._read_again_if_long(request)
        clock.lap("others")
        for request, tree, output in zip(requests, trees, root_outputs, strict=True):
            if output is None:
                segments.append(tree_segment(request.cache, tree))
        for prompt_part in parts:
            # Of a prompt no logits are wanted, unless its log-probabilities are.
            logit_rows = slice(None) if prompt_part.request.text.prompt_logprobs else slice(0, 0)
            text = Segment.of_text(prompt_part.request.cache, prompt_part.tokens)
            segments.append(text._replace(wanted=logit_rows))
        clock.lap("masks")
        with clock.time_pass(self.target.device):
            scored_outputs = iter(self.target.forward(segments, hidden_layers=self._hidden_layers) if segments else [])
        clock.lap("target")
        return [*(output or next(scored_outputs) for output in root_outputs), *scored_outputs]

    def _read_again_if_long(self, request: Request) -> None:
        """Compute the KV cache anew, with the frequencies of long texts, where a text has just become one."""
        if request.cache.long_rope or not is_long(request, self.target):
            return
        request.cache.reset()
        request.cache.long_rope = True
        prefill(self.target, request.cache, request.tokens[:-1])

    def _read(self, part: PromptPart, output: Output) -> None:
        """Keep the rows of a part of a prompt, and let the drafter read it."""
        request = part.request
        drafting = part.request.drafting
        if reader := request.text.prompt_reader(part.begin):
            reader(output.logits[0])
        request.cache.commit(range(part.size))
        request.metrics.prefill_passes += 1
        if drafting.reads_prompt:
            drafting.prefill(output.hidden, part.size)

    def _read_best(self, requests: Sequence[Request], outputs: Sequence[Output]) -> list[BestTokens | None]:
        """The best tokens of all texts that are written greedily, in one read; None where a verifier is to look."""
        best_by_request: list[BestTokens | None] = [None] * len(requests)
        if not self.reads_at_once:
            return best_by_request
        greedy_indices = [
            request_index
            for request_index, request in enumerate(requests)
            if type(request.task.verifier).verify is Greedy.verify and not request.text.constraints
        ]
        if not greedy_indices:
            return best_by_request
        rows = [outputs[request_index].logits[0] for request_index in greedy_indices]
        best_token = best_tokens(join(rows, 0))
        for request_index, begin in zip(greedy_indices, accumulate(map(len, rows), initial=0), strict=False):
            best_by_request[request_index] = lambda node, begin=begin: best_token(begin + node)
        return best_by_request

    def _settle(
        self, request: Request, tree: DraftTree, output: Output, best: BestTokens | None, clock: RoundClock
    ) -> TextRound | Exception:
        """Verify a scored tree and commit what is accepted: the only place where a text grows."""
        try:
            clock.lap("others")
            judged = self._verify(request, tree, output, best)
            clock.lap("verify")
            clock.count_pass()
            self._commit(request, judged, output)
            clock.lap("commit")
            collapsed = self._watch(request, judged)  # reads the text as it was before this round
            committed = request.commit(judged.tokens, judged.accepted)
            clock.lap("text")
            if request.text.recorder:
                rows = judged.path[:committed]
                request.text.recorder.add(output.logits[0][rows], judged.logits[rows], request.tokens[-committed:])
            text_round = text_round_of(request, tree, judged.path, committed, clock, collapsed=collapsed)
            if request.observer:
                request.observer.settled(request, tree, judged.logits, judged.verdict, text_round)
            return text_round
        except Exception as error:
            return error

    def _verify(self, request: Request, tree: DraftTree, output: Output, best: BestTokens | None) -> "JudgedTree":
        """The verdict on a scored tree, after the request's constraints."""
        logits = output.logits[0]
        missing_nodes = set[int]()
        if request.text.constraints:
            logits, missing_nodes = request.text.constraints.score(request.tokens, tree, logits)
        if best:
            verdict = walk(tree, best)
        else:
            is_read_later = bool(request.text.recorder or request.observer)
            verifier_logits = logits.clone() if is_read_later else logits  # a verifier may write to them
            randomness = request.task.randomness.at(len(request.tokens) - 1)
            verdict = request.task.verifier.verify(tree, verifier_logits, randomness)
        verdict = check_verdict(request.task.verifier, tree, verdict, self.target.vocab_size)
        return JudgedTree(tree, _before_missing(verdict, tree, missing_nodes), logits)

    def _commit(self, request: Request, judged: "JudgedTree", output: Output) -> None:
        """Let the KV cache, the drafter's session, the controller and the policy take note of the accepted path."""
        tree, path, drafting = judged.tree, judged.path, request.drafting
        request.cache.commit(path)
        if tree.source == FORCED:
            drafting.count_forced(tree.size - 1, judged.accepted)
        if not drafting.session:
            return
        drafting.rest(not tree.widths)
        drafting.commit(judged.tokens, output.hidden, path)
        if tree.size > 1:
            drafting.controller.accept(request.task.draft_kind(tree.source), tree, path)
        if tree.source != FORCED and request.task.policy.learns:
            drafting.observe(RoundOutcome(tree, tuple(path)))

    def _watch(self, request: Request, judged: "JudgedTree") -> bool:
        """Whether the drafts have collapsed; a head that is tested is compared with what the target has chosen."""
        drafting = request.drafting
        context = self.drafter.context if self.drafter and request.text.remaining > 1 else None
        collapsed = drafting.has_collapsed(request.tokens, judged.tree, accepted=judged.accepted > 0, context=context)
        if drafting.claim:
            drafting.check_head(request.tokens, judged.tokens[0], self.drafter)
        return collapsed


class JudgedTree(NamedTuple):
    """A scored tree and its verdict.

    Attributes:
        tree: as it was scored.
        verdict: the accepted path and the token behind it.
        logits: `[nodes, vocab]` the target's, with the request's constraints.
    """

    tree: DraftTree
    verdict: Verdict
    logits: torch.Tensor

    @property
    def path(self) -> list[int]:
        """The accepted nodes, the root first."""
        return self.verdict.path

    @property
    def accepted(self) -> int:
        """The number of accepted drafted tokens."""
        return len(self.path) - 1

    @property
    def tokens(self) -> list[int]:
        """The tokens that the text grows by, in a new list."""
        return [*(self.tree.tokens[node] for node in self.path[1:]), self.verdict.bonus]


def text_round_of(
    request: Request, tree: DraftTree, path: Sequence[int], committed: int, clock: RoundClock, *, collapsed: bool
) -> TextRound:
    """What a round was for one text, which has just taken note of its tokens."""
    draft_seconds, draft_passes = request.drafting.read_costs()
    accepted = min(committed, len(path) - 1)
    seconds = clock.seconds
    return TextRound(
        committed=committed,
        accepted=accepted,
        nodes=tree.size,
        levels=tree.levels,
        draft_passes=draft_passes,
        draft_seconds=draft_seconds,
        growth_seconds=seconds["draft"] - draft_seconds,
        mask_seconds=seconds["masks"],
        target_seconds=seconds["target"],
        verify_seconds=seconds["verify"],
        commit_seconds=seconds["commit"],
        text_seconds=seconds["text"],
        seconds=time.perf_counter() - clock.began,
        widths=tree.widths,
        source=tree.source,
        ranks=tuple(1 + tree.children[node].index(child) for node, child in pairwise(path[: accepted + 1])),
        collapsed=collapsed,
    )


def _before_missing(verdict: Verdict, tree: DraftTree, missing: Collection[int]) -> Verdict:
    """The verdict as far as nodes have logits: the next round begins at the first that has none, if the text does.

    The tokens before it have the target's law whatever the logits behind it are, so cutting here does not bias a text.
    """
    path, bonus = verdict
    end = next((path_index for path_index, node in enumerate(path) if node in missing), len(path))
    return Verdict(path[:end], tree.tokens[path[end]] if end < len(path) else bonus)


def tree_segment(cache: TreeCache, tree: DraftTree) -> Segment:
    """The nodes of a tree behind what a KV cache holds, for a target pass."""
    positions = cache.next_position + np.array(tree.depths)
    visible_mask = causal(tree.size) if tree.is_chain else tree.ancestors
    return Segment(cache, np.array(tree.tokens), positions, visible_mask)
