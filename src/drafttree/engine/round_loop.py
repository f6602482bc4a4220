"""The decoding loop: a round advances requests in one target pass. A text that is written alone is a batch of one.

    draft (one pass per level) -> one target pass -> verify each -> commit

Trees, single nodes and parts of prompts form one sequence in the pass, and only attention knows which rows belong to
which request. So a request joins by adding a segment and leaves by adding none.
"""

import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from drafttree.core.autocast import refuse_autocast
from drafttree.core.errors import ConfigError
from drafttree.core.tree import FORCED, DraftTree, Verdict
from drafttree.core.vocab_ops import best_tokens
from drafttree.drafters.base import Drafter, Session
from drafttree.drafters.image_placeholders import ImagePlaceholders
from drafttree.drafters.timing import PassTimer
from drafttree.engine.drafting.tree_drafter import Drafts, TreeDrafter, is_long
from drafttree.engine.memory import kept_tokens
from drafttree.engine.metrics import TextRound
from drafttree.engine.prefixes import PrefixCache, Restored, WaitsForPrefix
from drafttree.engine.request import Request
from drafttree.images.prompt_images import PromptImages
from drafttree.models import Model, Output, Segment, TargetModel, TreeCache
from drafttree.models.base import prefill, prefill_and_score
from drafttree.models.inference import in_inference_mode
from drafttree.models.segment import causal, join
from drafttree.policies.base import RoundOutcome, TextContext
from drafttree.verifiers.base import check_verdict, walk
from drafttree.verifiers.greedy import Greedy

BestTokens = Callable[[int], int]
"""Returns the best next token after a node of a tree."""
LONGEST_PART = 512
"""The most tokens of prompts in a pass."""


class PromptPart(NamedTuple):
    """The tokens of a prompt that the next pass reads."""

    request: Request
    size: int

    @property
    def begin(self) -> int:
        """Position of the first token."""
        return len(self.request.tokens) - 1 - self.request.unread

    @property
    def tokens(self) -> list[int]:
        """The token ids."""
        return self.request.tokens[self.begin : self.begin + self.size]


class RoundClock:
    """Measures the wall time of the stages of a round.

    `draft`, `masks` and `target` are stages of all requests together. Then each request has `verify`, `commit` and
    `text`.

    Attributes:
        began: time at which the clock was made, by `time.perf_counter`.
        seconds: by stage, seconds of the latest lap.
    """

    def __init__(self) -> None:
        self.began = self._last = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self._pass: PassTimer | None = None

    def lap(self, name: str) -> None:
        """End a stage, which began where the previous one ended."""
        end = time.perf_counter()
        self.seconds[name] = end - self._last
        self._last = end

    def time_pass(self, device: torch.device) -> AbstractContextManager[object]:
        """Context manager: time the target pass on its device, if the host runs ahead of the device."""
        if device.type != "cuda":
            return nullcontext()
        self._pass = PassTimer(device)
        return self._pass

    def count_wait(self) -> None:
        """Count the time that the verifier waited for the target pass as time of that pass."""
        if timer := self._pass:
            self._pass = None
            waited_seconds = min(max(timer.seconds - self.seconds["target"], 0.0), self.seconds["verify"])
            self.seconds["target"] += waited_seconds
            self.seconds["verify"] -= waited_seconds

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return self._last - self.began


class Advance(NamedTuple):
    """The result of a round.

    Attributes:
        rounds: per request, its round, or the error that ended it; an error does not stop the other requests.
        drafts: the drafted trees.
        clock: the times of the stages.
    """

    rounds: list[TextRound | Exception]
    drafts: Drafts
    clock: RoundClock


class RoundLoop:
    """Opens requests, reads their prompts and advances them.

    Args:
        target: the target.
        drafter: the drafter; None for plain decoding.
        prefixes: keeps the beginnings of earlier texts.
        context: makes the context that a request's policy gets when its text begins.

    Attributes:
        target: as given.
        drafter: as given.
        prefixes: as given.
        trees: drafts the trees of rounds.
        reads_at_once: whether the best tokens of all greedy texts are read from the device at once, to wait for it only
            once. On a CPU, verifiers read only the nodes along one path.
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
        """Give a request an empty KV cache, and a session of the drafter that begins with all of its tokens."""
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
        """Free the memory of a request that will be opened again later."""
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
        if images := request.task.images:
            session.see_images(ImagePlaceholders.of(images, request.task.prompt))
        return session

    @in_inference_mode
    def begin(self, request: Request, *, batch: int = 1, running: Sequence[Request] = ()) -> Restored | WaitsForPrefix:
        """Copy the rows of a request's prompt that another text has. `step` then reads the rest in parts.

        Recurrent layers sum in another order when they read than when they decode. So with them, the whole prompt is
        read here. A prompt with images is read up to its last image.

        Args:
            request: an open request.
            batch: number of texts that are written at once.
            running: as for `PrefixCache.restore`.

        Returns:
            `Restored` if the request has begun. `WaitsForPrefix` if another request is reading the beginning of its
            prompt; then call this again after the next round.
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
        images = request.task.images
        if images and request.cache.length < images.end:
            self._read_images(request, images)
        elif request.cache.recurrent:
            self._read_whole(request)
        return restored

    def _read_images(self, request: Request, images: PromptImages) -> None:
        """Read a prompt up to its last image, in one pass. The text behind it is read like that of other prompts."""
        assert isinstance(self.target, TargetModel), "only such targets get prompts with images"
        restored_tokens = request.cache.length  # some, if a head had fewer rows than the images have
        request.cache.reset()
        hidden_states = self.target.read_images(
            request.cache,
            request.tokens[: images.end],
            images.inputs,
            prompt_length=len(request.task.prompt),
            hidden_layers=self._hidden_layers,
        )
        request.metrics.prefill_passes = 1
        new_states = tuple(layer[:, restored_tokens:] for layer in hidden_states)
        request.drafting.prefill(new_states, images.end - restored_tokens)

    def _read_whole(self, request: Request) -> None:
        """Read the whole prompt, including its last token, the root of the first tree."""
        unread = request.tokens[request.cache.length :]
        reader = request.text.prompt_reader(request.cache.length)
        request.metrics.prefill_passes, hidden_states, root_output = prefill_and_score(
            self.target, request.cache, unread, self._hidden_layers, read=reader
        )
        request.keep_root_output(root_output)
        request.drafting.prefill(hidden_states, len(request.tokens) - 1)

    def read_prompt(self, request: Request) -> None:
        """Read a request's prompt in passes of its own."""
        self.begin(request)
        while request.unread:
            self.step([], [PromptPart(request, min(request.unread, LONGEST_PART))])

    @in_inference_mode
    def step(self, requests: Sequence[Request], prompt_parts: Sequence[PromptPart] = ()) -> Advance:
        """Advance requests by one round, in one target pass.

        Args:
            requests: requests that write; their prompts have been read.
            prompt_parts: parts of other requests' prompts, which the same pass reads.

        Raises:
            ConfigError: if `torch.autocast` is active.
        """
        refuse_autocast(self.target.device)
        clock = RoundClock()
        drafts = self.trees.draft(requests, sum(prompt_part.size for prompt_part in prompt_parts))
        for request, grown_tree in zip(requests, drafts.grown, strict=True):
            if request.observer:
                request.observer.drafted(request, grown_tree, drafts.reason)
        clock.lap("draft")
        outputs = self.score(requests, drafts.trees, prompt_parts, clock)
        for prompt_part, output in zip(prompt_parts, outputs[len(requests) :], strict=True):
            self._read(prompt_part, output)
        scored_texts = zip(requests, drafts.trees, outputs, self._read_best(requests, outputs), strict=False)
        # The list has no name, since this frame is part of an error's traceback and must not refer to the error.
        return Advance([self._settle(*scored_text, clock) for scored_text in scored_texts], drafts, clock)

    def score(
        self,
        requests: Sequence[Request],
        trees: Sequence[DraftTree],
        prompt_parts: Sequence[PromptPart] = (),
        clock: RoundClock | None = None,
    ) -> list[Output]:
        """Return the target's output for each tree, then for each part. The rows become drafted rows of KV caches."""
        clock = clock or RoundClock()
        root_outputs = [request.take_root_output() for request in requests]
        segments = list[Segment]()
        for request in requests:
            self._read_again_if_long(request)
        clock.lap("others")
        for request, tree, output in zip(requests, trees, root_outputs, strict=True):
            if output is None:
                segments.append(tree_segment(request.cache, tree, ranked=int(_reads_best(request))))
        for prompt_part in prompt_parts:
            # a prompt needs logits only for its log-probabilities
            logit_rows = slice(None) if prompt_part.request.text.prompt_logprobs else slice(0, 0)
            text = Segment.of_text(prompt_part.request.cache, prompt_part.tokens)
            segments.append(text._replace(wanted=logit_rows))
        clock.lap("masks")
        with clock.time_pass(self.target.device):
            scored_outputs = iter(self.target.forward(segments, hidden_layers=self._hidden_layers) if segments else [])
        clock.lap("target")
        return [*(output or next(scored_outputs) for output in root_outputs), *scored_outputs]

    def _read_again_if_long(self, request: Request) -> None:
        """Compute the KV cache anew, with long frequencies, if a text has just exceeded LongRoPE's original context."""
        if request.cache.long_rope or not is_long(request, self.target):
            return
        request.cache.reset()
        request.cache.long_rope = True
        prefill(self.target, request.cache, request.tokens[:-1])

    def _read(self, prompt_part: PromptPart, output: Output) -> None:
        """Commit the rows of a part of a prompt, and let the drafter read it."""
        request = prompt_part.request
        drafting = prompt_part.request.drafting
        if reader := request.text.prompt_reader(prompt_part.begin):
            reader(output.logits[0])
        request.cache.commit(range(prompt_part.size))
        request.metrics.prefill_passes += 1
        if drafting.reads_prompt:
            drafting.prefill(output.hidden, prompt_part.size)

    def _read_best(self, requests: Sequence[Request], outputs: Sequence[Output]) -> list[BestTokens | None]:
        """Read the best tokens of all greedy texts from the device at once; None for requests that read their own."""
        best_by_request: list[BestTokens | None] = [None] * len(requests)
        if not self.reads_at_once:
            return best_by_request
        greedy_indices = [index for index, request in enumerate(requests) if _reads_best(request)]
        if not greedy_indices:
            return best_by_request
        greedy_outputs = [outputs[index] for index in greedy_indices]
        best_token = _best_ranked(greedy_outputs)
        if best_token is None:
            best_token = best_tokens(join([output.logits[0] for output in greedy_outputs], 0))
        begin = 0
        for index, output in zip(greedy_indices, greedy_outputs, strict=True):
            best_by_request[index] = lambda node, begin=begin: best_token(begin + node)
            begin += output.logits.shape[1]
        return best_by_request

    def _settle(
        self, request: Request, tree: DraftTree, output: Output, best_token: BestTokens | None, clock: RoundClock
    ) -> TextRound | Exception:
        """Verify a scored tree and commit the accepted tokens. Texts grow only here."""
        try:
            clock.lap("others")
            judged = self._verify(request, tree, output, best_token)
            clock.lap("verify")
            clock.count_wait()
            self._commit(request, judged, output)
            clock.lap("commit")
            collapsed = self._check_drafts(request, judged)  # reads the text as it was before this round
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

    def _verify(self, request: Request, tree: DraftTree, output: Output, best_token: BestTokens | None) -> "JudgedTree":
        """Apply the request's constraints to the logits of a tree, and verify it."""
        logits = output.logits[0]
        missing_nodes = set[int]()
        if request.text.constraints:
            logits, missing_nodes = request.text.constraints.score(request.tokens, tree, logits)
        if best_token:
            verdict = walk(tree, best_token)
        else:
            is_read_later = bool(request.text.recorder or request.observer)
            verifier_logits = logits.clone() if is_read_later else logits  # a verifier may write to them
            randomness = request.task.randomness.at(len(request.tokens) - 1)
            verdict = request.task.verifier.verify(tree, verifier_logits, randomness)
        verdict = check_verdict(request.task.verifier, tree, verdict, self.target.vocab_size)
        return JudgedTree(tree, _before_missing(verdict, tree, missing_nodes), logits)

    def _commit(self, request: Request, judged: "JudgedTree", output: Output) -> None:
        """Tell the KV cache, the drafter's session, the controller and the policy which path was accepted."""
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

    def _check_drafts(self, request: Request, judged: "JudgedTree") -> bool:
        """Return whether drafts have become useless to the text, and test a head's claim by the target's token."""
        drafting = request.drafting
        context = self.drafter.context if self.drafter and request.text.remaining > 1 else None
        collapsed = drafting.has_collapsed(request.tokens, judged.tree, accepted=judged.accepted > 0, context=context)
        if drafting.claim:
            drafting.check_head(request.tokens, judged.tokens[0], self.drafter)
        return collapsed


class JudgedTree(NamedTuple):
    """A scored tree and its verdict.

    Attributes:
        tree: the tree.
        verdict: the accepted path and the bonus token.
        logits: the target's logits `[nodes, vocab]` after constraints.
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
        """The accepted tokens, then the bonus token, in a new list."""
        return [*(self.tree.tokens[node] for node in self.path[1:]), self.verdict.bonus]


def text_round_of(
    request: Request, tree: DraftTree, path: Sequence[int], committed: int, clock: RoundClock, *, collapsed: bool
) -> TextRound:
    """Make the record of a text's round, after its tokens were committed."""
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


def _before_missing(verdict: Verdict, tree: DraftTree, missing_nodes: Collection[int]) -> Verdict:
    """Cut a verdict before the first accepted node without logits: that node's token becomes the bonus token.

    The tokens up to there follow the target's distribution, whatever the logits after them are. So the cut does not
    bias the text.
    """
    path, bonus = verdict
    end = next((path_index for path_index, node in enumerate(path) if node in missing_nodes), len(path))
    return Verdict(path[:end], tree.tokens[path[end]] if end < len(path) else bonus)


def _reads_best(request: Request) -> bool:
    """Whether each node's best token is all that a request's verifier reads."""
    return type(request.task.verifier).verify is Greedy.verify and not request.text.constraints


def _best_ranked(outputs: Sequence[Output]) -> BestTokens | None:
    """The best token of each node of all outputs, if their passes have ranked them.

    None if a log-probability is NaN: then the logits tell whether the row has NaN or an infinite number.
    """
    output_ranks = [output.ranks for output in outputs if output.ranks is not None]
    if len(output_ranks) < len(outputs):
        return None
    logprobs, ids = join(output_ranks)[..., 0].tolist()
    return None if any(map(math.isnan, logprobs)) else lambda node: int(ids[node])


def tree_segment(cache: TreeCache, tree: DraftTree, ranked: int = 0) -> Segment:
    """The nodes of a tree after the committed rows of a KV cache, for a target pass; `ranked` as of `Segment`."""
    positions = cache.next_position + np.array(tree.depths)
    visible_mask = causal(tree.size) if tree.is_chain else tree.ancestors
    return Segment(cache, np.array(tree.tokens), positions, visible_mask, ranked=ranked)
