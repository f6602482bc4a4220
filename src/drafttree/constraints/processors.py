"""Applies logits processors and grammars at every node of a draft tree.

transformers' processors (repetition penalty, banned n-grams, forced tokens) depend on the tokens before a position, and
a grammar on the whole text. Each node of a tree is the end of its own text, so processors see each level of the tree
as a batch of texts, and a grammar follows the paths. Constraints apply to the target's logits, so accepted tokens and
the bonus token obey them, and to the drafter's, so that drafted tokens are likelier to be accepted.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PrefixConstrainedLogitsProcessor,
    PreTrainedTokenizerBase,
    RepetitionPenaltyLogitsProcessor,
)

from drafttree.constraints.refusals import refusal
from drafttree.core.errors import ConfigError, DraftTreeError
from drafttree.core.tree import DraftTree
from drafttree.verifiers.base import not_numbers

Path = tuple[int, ...]

STATEFUL_PROCESSORS = {
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "guidance_scale",
    "ClassifierFreeGuidanceLogitsProcessor": "guidance_scale",
    "EncoderRepetitionPenaltyLogitsProcessor": "encoder_repetition_penalty",
    "EncoderNoRepeatNGramLogitsProcessor": "encoder_no_repeat_ngram_size",
    "SynthIDTextWatermarkLogitsProcessor": "watermarking_config of SynthID",
}


class ConstraintState(Protocol):
    """A constraint's state for one text: it advances with committed tokens and looks ahead along drafted paths.

    Two methods are optional. `forced(max_count)` proposes up to that many next tokens if the text has only one
    continuation; the target still decides whether they become part of it. `share_nothing()` makes the results for
    drafted paths independent of other texts; a state that shares anything with other texts needs it.
    """

    def restrict(self, paths: Sequence[Path], logits: Tensor) -> Tensor:
        """Set logits `[paths, vocab]` to -inf for tokens that must not follow each path; may work in place.

        No path contains an EOS token. Logits after a path that itself breaks the constraint are never used.
        """
        ...

    def commit(self, token: int) -> None:
        """Advance the text by one committed token."""
        ...


class Constraint(Protocol):
    """Makes a `ConstraintState` for every text; a grammar is one."""

    def new_state(
        self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos: tuple[int, ...]
    ) -> ConstraintState:
        """Begin a text.

        Args:
            tokenizer: the target's tokenizer.
            vocab_size: columns of the target's logits.
            eos: token ids that end a text.

        Raises:
            ConfigError: no text can meet the constraint with this tokenizer, vocabulary and EOS.
        """
        ...


class PathConstraints:
    """The constraints on one request's text, applied along the paths of its draft trees.

    Args:
        processors: transformers' processors, functions of token ids and scores.
        state: a constraint's state, applied after the processors; None for none.
        eos: token ids that end the text; paths that go on after one are not processed.
        padding: token ids that the processors see before the text, such as the left padding of a batch.

    Raises:
        ConfigError: a processor is stateful, so it cannot score several paths of one text.
    """

    def __init__(
        self,
        processors: Iterable[LogitsProcessor],
        state: ConstraintState | None,
        eos: frozenset[int],
        padding: Sequence[int] = (),
    ) -> None:
        self._seconds = 0.0
        self._padding = padding
        processors = list(processors)
        for processor in processors:
            _check_stateless(processor)
        self._processors = LogitsProcessorList(processor_for_row(processor, 0) for processor in processors)
        self._state = state
        self._eos = eos

    def __bool__(self) -> bool:
        """Whether there are any constraints."""
        return bool(self._processors or self._state)

    def commit(self, token: int) -> None:
        """Advance the text by one committed token."""
        if self._state:
            with self._timed():
                self._state.commit(token)

    def take_seconds(self) -> float:
        """Return the CPU seconds spent on the constraints since the last call."""
        seconds = self._seconds
        self._seconds = 0.0
        return seconds

    def share_nothing(self) -> None:
        """Make drafts of this text independent of other texts, see `ConstraintState`."""
        getattr(self._state, "share_nothing", lambda: None)()

    def forced(self, max_count: int) -> list[int]:
        """Up to `max_count` next tokens if the text has only one continuation, tokenized as usual; else none."""
        propose_tokens = getattr(self._state, "forced", None)
        with self._timed():
            return propose_tokens(max_count) if propose_tokens else []

    def apply_to_draft(self, tokens: list[int], paths: Sequence[Path], logits: Tensor, vocab_size: int) -> Tensor:
        """Constrain a drafter's logits of one level; a row where no token is allowed or a processor fails is unchanged.

        Args:
            tokens: token ids of the committed text.
            paths: drafted token ids from below the root to each frontier node.
            logits: `[paths, columns]`; the drafter may know fewer tokens than the target.
            vocab_size: size of the target's vocabulary.
        """
        missing_columns = max(vocab_size - logits.shape[-1], 0)
        padded_logits = pad(logits[:, :vocab_size], (0, missing_columns), value=-torch.inf)
        constrained_logits = _as_floats(padded_logits)
        self._process_drafted(tokens, paths, constrained_logits, padded_logits)
        constrained_logits = _keep_dead_rows(constrained_logits, padded_logits)
        # Columns beyond the vocabulary mean "none of the proposed tokens" and stay (see `Session`).
        return torch.cat((constrained_logits, logits[:, vocab_size:]), -1)

    def score(self, tokens: list[int], tree: DraftTree, logits: Tensor) -> tuple[Tensor, set[int]]:
        """Process the target's logits `[nodes, vocab]` along every path of a tree.

        Args:
            tokens: token ids of the committed text; the last is the root.
            tree: the draft tree.
            logits: the target's logits.

        Returns:
            The processed logits, and the drafted nodes where a processor fails or no token is allowed; these are an
            error only if the text takes them.

        Raises:
            ConfigError: at the root, a processor returns invalid scores, or no token is allowed.
            ModelError: the target's logits at the root are NaN.
        """
        paths = tree.paths()
        processed_logits = _as_floats(logits)
        self._process(tokens, paths[:1], processed_logits[:1])
        failed_rows = self._process_drafted(tokens, paths[1:], processed_logits[1:], logits[1:])
        dead_nodes = {row + 1 for row in failed_rows} | {*self._dead_ends(tree, processed_logits)}
        if 0 in dead_nodes:
            raise self._dead_end(tokens, logits[0])
        return _keep_dead_rows(processed_logits, logits), dead_nodes

    def _process_drafted(self, tokens: list[int], paths: Sequence[Path], scores: Tensor, logits: Tensor) -> set[int]:
        """Process scores, a copy of the logits, in place; return the rows where it fails, which stay unchanged."""
        with suppress(Exception):
            self._process(tokens, paths, scores)
            return set()
        failed_rows = set[int]()
        scores.copy_(logits)
        for row, path in enumerate(paths):
            try:
                self._process(tokens, [path], scores[row : row + 1])
            except Exception:
                scores[row] = logits[row]
                failed_rows.add(row)
        return failed_rows

    def _process(self, tokens: list[int], paths: Sequence[Path], scores: Tensor) -> None:
        """Run the processors and the state on scores `[paths, vocab]`, in place."""
        active_rows = [row for row, path in enumerate(paths) if self._eos.isdisjoint(path)]
        with self._timed():
            for length in sorted({len(paths[row]) for row in active_rows}):
                rows = [row for row in active_rows if len(paths[row]) == length]
                texts = self._token_ids(tokens, [paths[row] for row in rows], scores.device)
                row_scores = scores[rows]
                for processor in self._processors:
                    row_scores = _apply(processor, texts, row_scores)
                scores[rows] = row_scores
            if self._state and active_rows:
                scores[active_rows] = self._state.restrict([paths[row] for row in active_rows], scores[active_rows])

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.thread_time()
        try:
            yield
        finally:
            self._seconds += time.thread_time() - start

    def _token_ids(self, tokens: list[int], paths: Sequence[Path], device: torch.device) -> Tensor:
        """Token ids `[paths, length]` of the text followed by each path; the paths have one length."""
        text = torch.tensor([*self._padding, *tokens], device=device).expand(len(paths), -1)
        return torch.cat((text, torch.tensor(paths, dtype=torch.long, device=device)), 1)

    def _dead_ends(self, tree: DraftTree, processed: Tensor) -> list[int]:
        """The nodes that are reached by allowed tokens, but allow no next token."""
        possible_nodes = processed.amax(1) > -torch.inf
        if possible_nodes.all():
            return []
        parents = torch.tensor(tree.parents, device=processed.device)
        tokens = torch.tensor(tree.tokens, device=processed.device)
        allowed_nodes = (processed[parents.clamp_min(0), tokens] > -torch.inf) | (parents < 0)
        reached_nodes = (allowed_nodes | ~torch.from_numpy(tree.ancestors).to(allowed_nodes.device)).all(1)
        return (reached_nodes & ~possible_nodes).nonzero()[:, 0].tolist()

    def _dead_end(self, tokens: list[int], scores: Tensor) -> DraftTreeError:
        """The error for a text after which no token is allowed; it names the constraint at fault."""
        if not scores.amax() > -torch.inf:
            return not_numbers()
        text = self._token_ids(tokens, [()], scores.device)
        problem = f"leaves no token possible at position {text.shape[1]}"
        scores = _as_floats(scores[None])
        for processor in self._processors:
            scores = _apply(processor, text, scores)
            if not (scores > -torch.inf).any():
                return ConfigError(f"{type(processor).__name__} {problem}")
        processors_note = " together with the logits processors" if self._processors else ""
        return ConfigError(f"the grammar{processors_note} {problem}; allow more, or spell it with other tokens")


def processor_for_row(processor: LogitsProcessor, row: int) -> LogitsProcessor:
    """A processor that treats every text as one of prompt `row` in the batch that `processor` was made for."""
    if type(processor) is RepetitionPenaltyLogitsProcessor and isinstance(processor.prompt_ignore_length, Tensor):
        return RepetitionPenaltyLogitsProcessor(processor.penalty, int(processor.prompt_ignore_length[row]))
    if type(processor) is PrefixConstrainedLogitsProcessor:
        allowed_tokens_fn = processor._prefix_allowed_tokens_fn
        return PrefixConstrainedLogitsProcessor(lambda _, ids: allowed_tokens_fn(row, ids), 1)
    return processor


def _apply(processor: LogitsProcessor, texts: Tensor, scores: Tensor) -> Tensor:
    """Call a processor on scores `[texts, vocab]`, and check its result.

    Raises:
        ConfigError: the result is not a tensor, has another shape, or has NaN or +inf; the message names the processor
            and the position.
    """
    name = type(processor).__name__
    position = f"at position {texts.shape[1]}"
    try:
        result: Any = _checked(processor, scores.shape[1])(texts, scores)  # pyright: ignore[reportArgumentType]
    except DraftTreeError:
        raise
    except Exception as error:
        error.add_note(f"raised by the logits processor {name} {position}")
        raise
    if not isinstance(result, Tensor):
        raise ConfigError(f"{name} returned {type(result).__name__} {position}; it must return the scores")
    if result.shape != scores.shape:
        raise ConfigError(
            f"{name} returned logits of shape {tuple(result.shape)} {position}; it must keep the shape "
            f"{tuple(scores.shape)}"
        )
    # A row without a possible token, as from a lookup that finds nothing, has no log-softmax: it stays as it is.
    dead_rows = scores.amax(1, keepdim=True) == -torch.inf
    result = result.masked_fill(dead_rows & result.isnan(), -torch.inf)
    if not result.amax() < torch.inf and scores.amax() < torch.inf:
        raise ConfigError(
            f"{name} returned NaN or +inf {position}; a score must be finite, or -inf for what is forbidden"
        )
    return result.to(scores)


def _checked(processor: LogitsProcessor, vocab_size: int) -> LogitsProcessor:
    """The processor itself; if it is one of `prefix_allowed_tokens_fn`, one that checks the function's results."""
    if type(processor) is not PrefixConstrainedLogitsProcessor:
        return processor
    allowed_tokens_fn = processor._prefix_allowed_tokens_fn

    def checked(row: int, ids: Tensor) -> list[int]:
        token_ids = allowed_tokens_fn(row, ids)
        if problem := _token_problem(token_ids, vocab_size):
            raise ConfigError(f"prefix_allowed_tokens_fn returned {problem} (at position {len(ids)})")
        return token_ids

    return PrefixConstrainedLogitsProcessor(checked, processor._num_beams)


def _token_problem(allowed_tokens: Any, vocab_size: int) -> str | None:
    """What is wrong with a list of allowed tokens; None if it is valid."""
    try:
        ids = torch.as_tensor(allowed_tokens)
    except (TypeError, ValueError, RuntimeError):
        return f"{type(allowed_tokens).__name__}; it must return a list of token ids"
    if ids.shape == (0,):
        return "an empty list; it must allow a token"
    if ids.ndim != 1 or ids.is_floating_point():
        return f"{allowed_tokens!r}; it must return a list of token ids"
    invalid_ids = ids[(ids < 0) | (ids >= vocab_size)]
    return f"token id {int(invalid_ids[0])}, outside the vocabulary of {vocab_size}" if len(invalid_ids) else None


def _as_floats(logits: Tensor) -> Tensor:
    """A copy of logits in float32, or in their own dtype if that is wider."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)


def _keep_dead_rows(processed: Tensor, logits: Tensor) -> Tensor:
    """Replace processed rows `[rows, vocab]` that are all -inf by the raw logits, since their softmax would be NaN.

    Such a row belongs to a path that is never accepted, or that is reported as an error.
    """
    possible_rows = processed.amax(1, keepdim=True) > -torch.inf
    return processed if possible_rows.all() else torch.where(possible_rows, processed, logits)


def _check_stateless(processor: LogitsProcessor) -> None:
    processor_type = type(processor)
    if processor_type.__name__ in STATEFUL_PROCESSORS:
        raise refusal(
            STATEFUL_PROCESSORS[processor_type.__name__], "it cannot be asked about several continuations of one text"
        )
    if processor_type.__module__.partition(".")[0] in ("xgrammar", "llguidance"):
        raise refusal(
            f"a processor of {processor_type.__module__}, which follows one text", "give a grammar of drafttree.grammar"
        )
