"""Grammars constrain a text to a JSON schema, a regular expression or an EBNF grammar.

    decoder.generate(prompt, grammar=drafttree.grammar.json_schema({"type": "object", ...}))

llguidance, an optional extra, computes masks of allowed next tokens, and compiles little beforehand. One matcher per
request visits the nodes of a draft tree depth-first: it consumes tokens on the way down and rolls them back on the way
up, so a tree costs one mask per node. Masks computed while drafting are reused for the target's logits.
"""

import contextlib
import functools
import threading
import time
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from drafttree.constraints.ebnf import ebnf_rules
from drafttree.constraints.json_schema import schema_texts
from drafttree.constraints.lark import NO_TOKEN, Rules, limits, load_library, one_line, problem_of, with_stack
from drafttree.constraints.patterns import regex_texts
from drafttree.constraints.processors import Path
from drafttree.constraints.structures import structure_texts
from drafttree.core.errors import ConfigError
from drafttree.core.machine_memory import collection_pause
from drafttree.text.vocabulary_map import spell

__all__ = ["Grammar", "ebnf", "json_schema", "regex", "structural_tag"]

SECONDS = 0.1
"""CPU seconds that the masks of a text may take at once; each committed token gives some back, up to this number. Once
they are spent, drafted tokens get no masks; after another `SECONDS`, the text ends with an error."""
SECONDS_PER_TOKEN = 0.001
SECONDS_PER_COLUMN = 2.5e-8
"""CPU seconds that a committed token gives back, and those that it gives back for each column of the logits."""
MOST_AT_ONCE = SECONDS / 2
"""The most seconds that one mask counts. A mask of an ambiguous grammar takes about 0.03 s for 150,000 tokens; a longer
time may be a pause of the machine, which can count as CPU time and must not end a text."""
LONGEST_FORCED = 256
"""The most bytes of a forced continuation that are tokenized at once."""
RECENT = 8
"""The most tokens before a forced continuation that are taken into account when it is tokenized."""
MOST_FORCED = 4_096
"""The most bytes of a forced continuation: finding longer ones is slow, and fills the automata that texts share."""
LONG = 12_000
"""The most characters of a short grammar. Fewer long ones stay compiled, because their automata take more memory: for
example 8 MB for a schema of 800 properties."""


def json_schema(schema: str | dict[str, Any] | type[BaseModel], *, any_whitespace: bool = False) -> "Grammar":
    """Make a grammar of the JSON texts that conform to a schema.

    Args:
        schema: JSON text, a dictionary or a pydantic model.
        any_whitespace: allow any white space between elements; if false, only that of `json.dumps`, so that a model
            cannot write white space endlessly.

    Raises:
        ConfigError: llguidance is not installed, the schema is invalid, or a part of it cannot be enforced; the message
            names the part.
    """
    rules = Rules()
    return Grammar("JSON schema", rules.grammar(schema_texts(schema, rules, any_whitespace=any_whitespace)))


def regex(pattern: str) -> "Grammar":
    """Make a grammar of the texts that match a regular expression as a whole.

    Raises:
        ConfigError: llguidance is not installed or cannot read the expression.
    """
    return Grammar(f"regex {pattern!r}", Rules().grammar(regex_texts(pattern)))


def ebnf(text: str) -> "Grammar":
    """Make a grammar from EBNF in GBNF syntax (llama.cpp); its start rule is named `root`.

    Raises:
        ConfigError: llguidance is not installed, or the grammar is malformed.
    """
    rules = Rules()
    return Grammar("EBNF grammar", rules.grammar(ebnf_rules(text, rules)))


def structural_tag(structure: dict[str, Any]) -> "Grammar":
    """Make a grammar of texts in which some parts, such as tool calls, must have a given form.

    Args:
        structure: the `format` of an xgrammar structural tag, of the types `const_string`, `json_schema`, `regex`,
            `grammar`, `any_text`, `sequence`, `or`, `optional`, `tag`, `triggered_tags` and `tags_with_separator`. JSON
            schemas in it mean the same as for `json_schema`; the key `of` next to a schema is its name in errors.

    Raises:
        ConfigError: llguidance is not installed, the structure is malformed, or a part of it is not supported.
    """
    rules = Rules()
    return Grammar("structural tag", rules.grammar(structure_texts(structure, rules)))


class Grammar:
    """A constraint on whole texts, which any number of requests may use; the functions of this module make one.

    Args:
        name: name in error messages.
        text: llguidance's grammar.

    Raises:
        ConfigError: llguidance is not installed or refuses the grammar.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        if problem := problem_of(text):
            raise ConfigError(f"invalid {name}: {problem}")

    def new_state(
        self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos: tuple[int, ...]
    ) -> "GrammarState":
        """Create the state of a new text; EOS tokens are allowed once the text is complete.

        Args:
            tokenizer: the target's tokenizer.
            vocab_size: columns of the target's logits.
            eos: token ids that end a text.

        Raises:
            ConfigError: there is no tokenizer or EOS token, the grammar is too large, or no text of it can be spelled
                with the vocabulary.
        """
        if tokenizer is None:
            raise ConfigError(
                "a grammar needs the target's tokenizer, to know the text of each token; give the decoder one"
            )
        if not eos:
            raise ConfigError("a grammar needs an EOS token to end the text with; give the decoder eos token ids")
        compile_grammar = _long_ones if len(self.text) > LONG else _short_ones
        state = GrammarState(self.name, compile_grammar(self.name, self.text, tokenizer, vocab_size, eos), vocab_size)
        logits = torch.zeros(1, vocab_size).index_fill_(1, torch.tensor(eos), -torch.inf)
        if not (state.restrict([()], logits) > -torch.inf).any():
            raise ConfigError(f"the {self.name} allows no text after the prompt that the target's tokens can spell")
        return state


class GrammarState:
    """The state of one request's text: it matches committed tokens, and looks ahead along drafted paths.

    Args:
        name: the grammar's name in error messages.
        compiled: the grammar, compiled for the vocabulary.
        vocab_size: columns of the target's logits.
    """

    def __init__(self, name: str, compiled: "CompiledGrammar", vocab_size: int) -> None:
        self._name = name
        self._compiled = compiled
        self._vocab_size = vocab_size
        self._tokens: list[int] = []
        self._per_token = SECONDS_PER_TOKEN + SECONDS_PER_COLUMN * vocab_size
        self._seconds = SECONDS
        self._renewed = False
        self._forces = True
        self._begin()

    def restrict(self, paths: Sequence[Path], logits: Tensor) -> Tensor:
        """Set logits `[paths, vocab]` to -inf, in place, for tokens the grammar forbids after each path.

        A path that itself breaks the grammar keeps its logits, because it is never accepted. A drafted path gets no
        allowed token if its mask exceeds llguidance's limits, or if the text has spent its CPU time.

        Raises:
            ConfigError: the text has spent its CPU time twice over, or the mask after it exceeds llguidance's limits.
        """
        # Sorted paths are in depth-first order, in which the matcher rolls back the fewest tokens.
        for path in sorted(set(paths) - self._masks.keys()):
            if path and self._seconds <= 0:
                self._masks[path] = self._bits(0)
                continue
            with self._counted():
                self._masks[path] = self._mask(path)
        if self._seconds < -SECONDS or (() in paths and self._too_much):
            self._compiled.renew()  # what its automata have grown to would stay
            raise self._limit_error(self._too_much or f"more than {self._per_token * 1e3:.3g} ms for a token")
        masks = torch.from_numpy(np.stack([self._masks[path] for path in paths])).to(logits.device)
        byte_logits = _of_bytes().to(logits.device)
        return logits.add_(torch.nn.functional.embedding(masks.int(), byte_logits).flatten(1)[:, : self._vocab_size])

    def commit(self, token: int) -> None:
        """Advance the text by one committed token.

        Raises:
            ConfigError: the grammar forbids the token, so the verifier is not lossless, or exceeds llguidance's limits.
        """
        is_end = token in self._compiled.eos and self._committed.is_accepting()
        # Other texts of the grammar may have filled the automata that all of them share.
        if not is_end and not self._committed.try_consume_tokens([token]) and not self._takes_anew(token):
            if self._committed.is_error():
                raise self._limit_error(one_line(self._committed.get_error()))
            raise ConfigError(f"token {token} was accepted against the grammar; use a lossless verifier")
        self._tokens.append(token)
        self._seconds = min(self._seconds + self._per_token, SECONDS)
        if is_end or self._ahead.is_error() or not self._move_to((token,)):
            self._ahead = self._committed.deep_copy()  # without the masks it keeps, which take 3 ms in prose
        self._look_from_here()

    def forced(self, max_count: int) -> list[int]:
        """Up to `max_count` next tokens if the grammar leaves a single continuation, as the tokenizer spells it.

        The last token is left out if the tokenizer would spell it differently before some texts.
        """
        if self._forced is None:
            with self._counted():
                # A copy looks ahead: it may meet limits that the text itself does not.
                text = self._committed.deep_copy().compute_ff_bytes() if self._forces else b""
                if len(text) > MOST_FORCED:
                    self._forces = False
                    text = b""
                    self._begin_anew()
                tokenize = self._compiled.vocabulary.tokenize_partial
                self._forced = [*tokenize(text[:LONGEST_FORCED], self._tokens[-RECENT:])[0]] if text else []
        return self._forced[:max_count]

    def share_nothing(self) -> None:
        """Use automata that no other text shares, so that drafts do not depend on other texts."""
        self._compiled = copy(self._compiled)
        self._begin_anew()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Context manager: subtract the CPU time of its body, at most `MOST_AT_ONCE`, from the text's."""
        with collection_pause:
            start = time.thread_time()
            yield
            self._seconds -= min(time.thread_time() - start, MOST_AT_ONCE)

    def _limit_error(self, reason: str) -> ConfigError:
        return ConfigError(f"the {self._name} takes too much to follow ({reason}); make it simpler, or less ambiguous")

    def _takes_anew(self, token: int) -> bool:
        """Restart with new automata; return whether they accept a token."""
        self._begin_anew()
        return self._committed.try_consume_tokens([token]) == 1

    def _begin_anew(self) -> None:
        """Match the committed text again with new automata, which are small."""
        self._compiled.renew()
        self._begin()

    def _begin(self) -> None:
        """Match the committed text from its beginning."""
        self._committed = self._compiled.matcher.deep_copy()
        self._committed.try_consume_tokens(self._tokens)
        self._ahead = self._committed.deep_copy()
        self._look_from_here()

    def _look_from_here(self) -> None:
        """Forget masks and paths: from now on, look ahead from the end of the committed text."""
        self._matched: list[int] = []
        self._masks: dict[Path, np.ndarray] = {}
        self._too_much = ""
        self._forced: list[int] | None = None

    def _bits(self, of_eight: int) -> np.ndarray:
        """A mask whose bytes are all `of_eight`: 0 allows no token, 255 every token."""
        return np.full(-(-self._vocab_size // 8), of_eight, np.uint8)

    def _mask(self, path: Path) -> np.ndarray:
        """The mask after a path, with one bit per token: whether it is allowed."""
        if not self._move_to(path):
            return self._bits(255)
        mask = np.frombuffer(self._ahead.compute_bitmask(), np.uint8)[: -(-self._vocab_size // 8)]
        if not self._ahead.is_error():
            return mask
        problem = one_line(self._ahead.get_error())
        if not path and problem != NO_TOKEN and not self._renewed and self._seconds > SECONDS / 2:
            # This text has taken little: others of the grammar may have filled the automata that all of them share.
            self._renewed = True
            self._begin_anew()
            return self._mask(path)
        self._ahead = self._committed.deep_copy()
        self._matched = []
        if not path and problem != NO_TOKEN:
            self._too_much = problem
        return self._bits(0)  # llguidance's own has the EOS tokens

    def _move_to(self, path: Path) -> bool:
        """Move the matcher to the end of a path, from the prefix they share; False if the grammar forbids the path."""
        shared_length = 0
        for matched_token, token in zip(self._matched, path, strict=False):
            if matched_token != token:
                break
            shared_length += 1
        if len(self._matched) > shared_length:
            self._ahead.rollback(len(self._matched) - shared_length)
            del self._matched[shared_length:]
        consumed_count = self._ahead.try_consume_tokens([*path[shared_length:]])
        self._matched += path[shared_length : shared_length + consumed_count]
        return consumed_count == len(path) - shared_length


class CompiledGrammar:
    """A grammar compiled for a vocabulary.

    Args:
        name: the grammar's name in error messages.
        text: llguidance's grammar.
        vocabulary: llguidance's vocabulary.
        eos: token ids that end a text.

    Attributes:
        matcher: a matcher at the beginning of a text. Each text copies it, in some microseconds; copies share automata,
            which grow as texts are matched.
        vocabulary: as given.
        eos: as given.

    Raises:
        ConfigError: the grammar is too large.
    """

    def __init__(self, name: str, text: str, vocabulary: Any, eos: tuple[int, ...]) -> None:
        self._name = name
        self._text = text
        self.vocabulary = vocabulary
        self.eos = eos
        self.renew()

    def renew(self) -> None:
        """Replace the matcher by one with new automata, which are small."""
        matcher_class = load_library().LLMatcher
        self.matcher = with_stack(lambda: matcher_class(self.vocabulary, self._text, log_level=0, limits=limits()))
        if self.matcher.is_error():
            raise ConfigError(f"the {self._name} cannot be compiled: {one_line(self.matcher.get_error())}")


def _compile(
    name: str, text: str, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos: tuple[int, ...]
) -> CompiledGrammar:
    return CompiledGrammar(name, text, _vocabulary(tokenizer, vocab_size, eos), eos)


_short_ones = functools.lru_cache(maxsize=16)(_compile)
_long_ones = functools.lru_cache(maxsize=3)(_compile)


@functools.lru_cache(maxsize=4)
def _vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos: tuple[int, ...]) -> Any:
    """llguidance's vocabulary, from the bytes of each token; tokens without bytes are never allowed."""

    class Spelled:
        def __init__(self) -> None:
            self.eos_token_id = eos[0]
            self.bos_token_id = None
            self.special_token_ids = [*eos]
            self.tokens = [*token_bytes(tokenizer, vocab_size)]

        def __call__(self, text: str) -> list[int]:
            """Token ids of a forced text; empty if the tokenizer changes the text."""
            for prefix in ("", "\n"):  # some put a space before a text, none behind a line end
                ids = tokenizer.encode(prefix + text, add_special_tokens=False)
                for start in range(3):
                    if b"".join(self.tokens[token_id] for token_id in ids[start:]) == text.encode():
                        return ids[start:]
            return []

    library = load_library()
    return library.LLTokenizer(library.TokenizerWrapper(Spelled()), n_vocab=vocab_size, eos_token=[*eos])


def token_bytes(tokenizer: Any, vocab_size: int) -> tuple[bytes, ...]:
    """The bytes of each token of a vocabulary, which may be only part of a character."""
    with _SPELLING:
        return _token_bytes(tokenizer, vocab_size)


_SPELLING = threading.Lock()  # the first requests of a server are concurrent, and each would compute the bytes


@functools.lru_cache(maxsize=4)
def _token_bytes(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> tuple[bytes, ...]:
    spelled = spell(tokenizer)
    return tuple(spelled[index].text if index in spelled else b"" for index in range(vocab_size))


@functools.cache
def _of_bytes() -> Tensor:
    """By value of a mask's byte, what to add to the logits of its eight tokens: 0 or -inf, `[256, 8]`."""
    return torch.where(torch.arange(256)[:, None] >> torch.arange(8) & 1 == 1, 0.0, -torch.inf)
