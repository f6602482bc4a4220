"""The path-aware walker: all that looks at the text before a position, at every node of a tree.

transformers' processors look at the tokens before a position: a repetition penalty, banned n-grams, forced tokens. A
grammar looks at the text from its first token. In a tree every node has a text of its own, so each level is processed
as one batch of texts, the node's own path included, and a grammar walks the tree's paths. Accepted tokens obey them
as the bonus token does, and drafted ones too, which only makes them likelier to be accepted.
"""

from collections.abc import Iterable, Sequence
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

from drafttree.constraints.options import refusal
from drafttree.core.errors import ConfigError, DraftTreeError
from drafttree.core.tree import DraftTree
from drafttree.drafters.base import DraftLogits
from drafttree.verifiers.base import not_numbers

Path = tuple[int, ...]

STATEFUL = {
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "guidance_scale",
    "ClassifierFreeGuidanceLogitsProcessor": "guidance_scale",
    "EncoderRepetitionPenaltyLogitsProcessor": "encoder_repetition_penalty",
    "EncoderNoRepeatNGramLogitsProcessor": "encoder_no_repeat_ngram_size",
    "SynthIDTextWatermarkLogitsProcessor": "watermarking_config of SynthID",
}


class ConstraintState(Protocol):
    """A constraint with a state: it follows one text as that is committed, and looks ahead along paths."""

    def restrict(self, paths: Sequence[Path], logits: Tensor) -> Tensor:
        """Logits `[paths, vocab]` with -inf where the text cannot go on after a path; they may be changed in place.

        No path has an EOS token. The row of one that breaks the constraint may stay as it is.
        """
        ...

    def commit(self, token: int) -> None:
        """Take note of the next token of the text."""
        ...


class Constraint(Protocol):
    """Something that makes a fresh `ConstraintState` for every text, such as a grammar."""

    def new_state(
        self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos: tuple[int, ...]
    ) -> ConstraintState:
        """Begin a text.

        Args:
            tokenizer: the target's.
            vocab_size: columns of the logits.
            eos: token ids that end a text.

        Raises:
            ConfigError: this constraint cannot be kept with them.
        """
        ...


class PathConstraints:
    """What one text must obey, applied along the paths of its trees.

    Args:
        processors: of transformers; functions of the tokens so far and their scores.
        state: a constraint with a state, applied after them; None for none.
        eos: token ids that end the text; nobody is asked about paths that go on after one.

    Attributes:
        before: tokens the processors see before the text, such as the padding of a batch.

    Raises:
        ConfigError: a processor keeps a state, so it cannot be asked about several paths.
    """

    def __init__(
        self, processors: Iterable[LogitsProcessor], state: ConstraintState | None, eos: frozenset[int]
    ) -> None:
        self.before: list[int] = []
        processors = list(processors)
        for processor in processors:
            _check_stateless(processor)
        self._processors = LogitsProcessorList(of_row(processor, 0) for processor in processors)
        self._state = state
        self._eos = eos

    def __bool__(self) -> bool:
        """Whether there is anything to obey."""
        return bool(self._processors or self._state)

    def commit(self, token: int) -> None:
        """Take note of the next token of the text."""
        if self._state:
            self._state.commit(token)

    def apply(self, tokens: list[int], paths: Sequence[Path], logits: Tensor) -> Tensor:
        """Logits `[paths, vocab]` after the text and each path; a row that leaves nothing possible is unchanged."""
        return _unless_impossible(self._process(tokens, paths, logits), logits)

    def score(self, tokens: list[int], tree: DraftTree, logits: Tensor) -> Tensor:
        """The target's logits `[1, nodes, vocab]`, each node seeing the text up to itself.

        Args:
            tokens: the committed text; its last token is the root.
            tree: a lone draft tree.
            logits: of the target.

        Raises:
            ConfigError: a processor returns something else than scores, or no token is possible where the text can go.
            ModelError: the target's logits are no numbers.
        """
        paths = tree.paths()
        processed = self._process(tokens, paths, logits[0])
        self._check_possible(tokens, paths, tree, logits[0], processed)
        return _unless_impossible(processed, logits[0])[None]

    def _process(self, tokens: list[int], paths: Sequence[Path], logits: Tensor) -> Tensor:
        processed = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
        asked = [row for row, path in enumerate(paths) if self._eos.isdisjoint(path)]
        for length in sorted({len(paths[row]) for row in asked}):
            rows = [row for row in asked if len(paths[row]) == length]
            texts = self._texts(tokens, [paths[row] for row in rows], logits.device)
            scores = processed[rows]
            for processor in self._processors:
                scores = _apply(processor, texts, scores)
            processed[rows] = scores
        if self._state and asked:
            processed[asked] = self._state.restrict([paths[row] for row in asked], processed[asked])
        return processed

    def _texts(self, tokens: list[int], paths: Sequence[Path], device: torch.device) -> Tensor:
        """Token ids `[paths, length]`: the text, continued by paths of one length."""
        text = torch.tensor([*self.before, *tokens], device=device).expand(len(paths), -1)
        return torch.cat((text, torch.tensor(paths, dtype=torch.long, device=device)), 1)

    def _check_possible(
        self, tokens: list[int], paths: Sequence[Path], tree: DraftTree, logits: Tensor, processed: Tensor
    ) -> None:
        """Every node that the text can reach must leave some token possible."""
        possible = processed.amax(1) > -torch.inf
        if possible.all():
            return
        parents = tree.parents[0]
        allowed = (processed[parents.clamp_min(0), tree.tokens[0]] > -torch.inf) | (parents < 0)
        reached = (allowed | ~tree.ancestors[0]).all(1)
        stuck = (reached & ~possible).nonzero()[:, 0].tolist()
        if stuck:
            raise self._impossible(tokens, paths[stuck[0]], logits[stuck[0]])

    def _impossible(self, tokens: list[int], path: Path, scores: Tensor) -> DraftTreeError:
        """The error that names what leaves nothing possible after a path."""
        if not scores.amax() > -torch.inf:
            return not_numbers()
        text = self._texts(tokens, [path], scores.device)
        where = f"leaves no token possible at position {text.shape[1]}"
        scores = scores[None].to(torch.promote_types(scores.dtype, torch.float32), copy=True)
        for processor in self._processors:
            scores = _apply(processor, text, scores)
            if not (scores > -torch.inf).any():
                return ConfigError(f"{type(processor).__name__} {where}")
        others = " together with the logits processors" if self._processors else ""
        return ConfigError(f"the grammar{others} {where}; allow more, or spell it with other tokens")


class ConstrainedDraft:
    """A draft that guesses only what a text may be, along each node's own path, for one round.

    Args:
        draft: the drafter's view of the text.
        constraints: what the text must obey.
        tokens: the committed text.
        vocab_size: of the target; the drafter's may be smaller.
    """

    def __init__(self, draft: DraftLogits, constraints: PathConstraints, tokens: list[int], vocab_size: int) -> None:
        self._draft, self._constraints, self._tokens, self._vocab_size = draft, constraints, tokens, vocab_size
        self._paths: list[Path] = []

    def root(self) -> Tensor:
        self._paths = [()]
        return self._guided(self._draft.root())

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        nodes = zip(tokens[0].tolist(), origins[0].tolist(), strict=True)
        self._paths = [(*self._paths[origin], token) for token, origin in nodes]
        return self._guided(self._draft.expand(tokens, origins))

    def _guided(self, logits: Tensor) -> Tensor:
        missing = max(self._vocab_size - logits.shape[-1], 0)
        known = pad(logits[0, :, : self._vocab_size], (0, missing), value=-torch.inf)
        guided = self._constraints.apply(self._tokens, self._paths, known)
        return torch.cat((guided, logits[0, :, self._vocab_size :]), -1)[None]


def of_row(processor: LogitsProcessor, row: int) -> LogitsProcessor:
    """A processor for one prompt of the batch it was prepared for, whatever batch it is given."""
    if type(processor) is RepetitionPenaltyLogitsProcessor and isinstance(processor.prompt_ignore_length, Tensor):
        return RepetitionPenaltyLogitsProcessor(processor.penalty, int(processor.prompt_ignore_length[row]))
    if type(processor) is PrefixConstrainedLogitsProcessor:
        allowed = processor._prefix_allowed_tokens_fn
        return PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(row, ids), 1)
    return processor


def _apply(processor: LogitsProcessor, texts: Tensor, scores: Tensor) -> Tensor:
    """What a processor makes of scores `[texts, vocab]`, in their dtype; it is blamed for what is wrong with that."""
    name, where = type(processor).__name__, f"at position {texts.shape[1]}"
    result = _call(processor, texts, scores)
    if not isinstance(result, Tensor):
        raise ConfigError(f"{name} returned {type(result).__name__} {where}; it must return the scores")
    if result.shape != scores.shape:
        raise ConfigError(
            f"{name} returned logits of shape {tuple(result.shape)} {where}; it must keep the shape "
            f"{tuple(scores.shape)}"
        )
    if not result.amax() < torch.inf and scores.amax() < torch.inf:
        raise ConfigError(f"{name} returned NaN or +inf {where}; a score must be finite, or -inf for what is forbidden")
    return result.to(scores)


def _call(processor: LogitsProcessor, texts: Tensor, scores: Tensor) -> Any:
    try:
        return processor(texts, scores)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        if type(processor) is not PrefixConstrainedLogitsProcessor or "empty list" not in str(error):
            raise
        where = f"at position {texts.shape[1]}"
        raise ConfigError(f"prefix_allowed_tokens_fn returned an empty list {where}; it must allow a token") from None


def _unless_impossible(processed: Tensor, logits: Tensor) -> Tensor:
    """Processed logits, but the raw ones of a row that leaves no token possible."""
    possible = processed.amax(1, keepdim=True) > -torch.inf
    return processed if possible.all() else torch.where(possible, processed, logits)


def _check_stateless(processor: LogitsProcessor) -> None:
    kind = type(processor)
    if kind.__name__ in STATEFUL:
        raise refusal(STATEFUL[kind.__name__], "it cannot be asked about several continuations of one text")
    if kind.__module__.startswith("xgrammar"):
        raise refusal("xgrammar's LogitsProcessor, which follows one text", "give a grammar of drafttree.grammar")
