"""Grammars constrain a text to a JSON schema, a regular expression or an EBNF grammar.

    decoder.generate(prompt, grammar=drafttree.grammar.json_schema({"type": "object", ...}))

xgrammar (Dong et al. 2024), an optional extra, computes the mask of allowed next tokens. One matcher per request visits
the nodes of a draft tree depth-first: it accepts tokens on the way down and rolls them back on the way up, so a tree
costs one mask per node. Masks computed while drafting are used again for the target's logits.
"""

import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import BaseModel
from pydantic.errors import PydanticUserError
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from drafttree.constraints.json_schema import failing_part, prepare_schema
from drafttree.constraints.marked_arguments import marked_arguments
from drafttree.constraints.processors import Path
from drafttree.constraints.repetitions import IN_EBNF, IN_REGEX, check_repetitions
from drafttree.constraints.string_patterns import ignored_part, join_halves
from drafttree.constraints.xgrammar_library import library_message, load_xgrammar
from drafttree.core.errors import ConfigError

__all__ = ["Grammar", "ebnf", "json_schema", "regex", "structural_tag"]


CACHE_BYTES = 256 << 20
"""What xgrammar may keep of compiled grammars."""
PARTS = re.compile(r'\[(?:[^\]\\]|\\.)*\]|"(?:[^"\\]|\\.)*"')
"""Classes of characters and strings of an EBNF grammar."""
LATIN_1 = re.compile(r"((?<!\\)(?:\\\\)*\\x[0-9a-f]{2})(?=[0-9a-fA-F])")


def json_schema(schema: str | dict[str, Any] | type[BaseModel], *, any_whitespace: bool = False) -> "Grammar":
    """Make a grammar of the JSON texts that conform to a schema.

    Args:
        schema: JSON text, a dictionary or a pydantic model.
        any_whitespace: allow any white space between elements; otherwise only that of `json.dumps`, so that a model
            cannot go on writing white space for ever.

    Raises:
        ConfigError: xgrammar is not installed, the schema is invalid, or xgrammar would not enforce a part of it; the
            message names the part.
    """
    root = prepare_schema(_load_schema(schema))
    text = json.dumps(root)
    with _place_told(root):
        return Grammar("JSON schema", lambda xgr: xgr.Grammar.from_json_schema(text, any_whitespace=any_whitespace))


def regex(pattern: str) -> "Grammar":
    """Make a grammar of the texts that match a regular expression as a whole.

    Raises:
        ConfigError: xgrammar is not installed, cannot parse the expression, or would misread or ignore a part of it.
    """
    text = _read_regex(pattern)
    return Grammar(f"regex {pattern!r}", lambda xgr: xgr.Grammar.from_regex(text))


def ebnf(text: str) -> "Grammar":
    """Make a grammar from EBNF in GBNF syntax (llama.cpp); its start rule is named `root`.

    Raises:
        ConfigError: xgrammar is not installed, the grammar is malformed, or xgrammar would misread a repetition.
    """
    read = _read_text("EBNF grammar", text, IN_EBNF)
    return Grammar("EBNF grammar", lambda xgr: xgr.Grammar.from_ebnf(read))


def structural_tag(structure: dict[str, Any]) -> "Grammar":
    """Make a grammar of texts some parts of which have a form, such as the calls of tools.

    Args:
        structure: the `format` of an xgrammar structural tag. JSON schemas in it mean what they mean to `json_schema`;
            `of` beside one is its name in errors.

    Raises:
        ConfigError: xgrammar is not installed, the structure is malformed, or a schema in it cannot be enforced.
    """
    text = json.dumps({"type": "structural_tag", "format": _prepare_structure(structure)})
    return Grammar("structural tag", lambda xgr: xgr.Grammar.from_structural_tag(text))


def _prepare_structure(part: Any) -> Any:
    """A copy of a structure with grammars in place of its schemas."""
    if isinstance(part, list):
        return [_prepare_structure(each) for each in part]
    if not isinstance(part, dict):
        return part
    match part.get("type"):
        case "json_schema":
            return {"type": "grammar", "grammar": _schema_rules(part)}
        case "regex":
            return {**part, "pattern": _read_regex(part.get("pattern"))}
        case "grammar":
            return {**part, "grammar": _read_text("EBNF grammar", part.get("grammar"), IN_EBNF)}
    return {name: _prepare_structure(each) for name, each in part.items()}


def _schema_rules(part: dict[str, Any]) -> str:
    """The EBNF grammar of a schema in a structure; xgrammar makes those of the styles of families."""
    try:
        if "style" not in part:
            return str(json_schema(part.get("json_schema", "")).parsed)
        root = prepare_schema(_load_schema(part["json_schema"]))
        with _place_told(root):
            return marked_arguments({**part, "json_schema": root})
    except ConfigError as error:
        raise ConfigError(f"{part['of']}: {error}" if "of" in part else str(error)) from None


@contextmanager
def _place_told(root: Any) -> Iterator[None]:
    """Add to what xgrammar says of a schema where in it that is."""

    def told_of(document: dict[str, Any]) -> str:
        try:
            Grammar("JSON schema", lambda xgr: xgr.Grammar.from_json_schema(json.dumps(document)))
        except ConfigError as found:
            return str(found)
        return ""

    load_xgrammar()
    try:
        yield
    except ConfigError as error:
        if not isinstance(root, dict):
            raise
        told = told_of({"$defs": {}, **root}) or str(error)  # a reference to nothing is told in other words without
        place = failing_part(root, lambda document: told_of(document) == told)
        raise ConfigError(f"{str(error).rstrip('.')} at {place}") from None


@functools.lru_cache(maxsize=4)
def token_bytes(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> tuple[bytes, ...]:
    """The bytes that every token of a vocabulary stands for; a token may be a part of a character.

    Raises:
        ConfigError: xgrammar is not installed or cannot read the tokenizer.
    """
    return tuple(bytes(each) for each in _tokenizer_info(tokenizer, vocab_size, ()).decoded_vocab)


def vocabulary_of(tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos: tuple[int, ...]) -> Any:
    """Return xgrammar's `TokenizerInfo`, for which grammars are compiled; arguments as in `Grammar.new_state`.

    Raises:
        ConfigError: there is no tokenizer or EOS token, or xgrammar cannot read the tokenizer.
    """
    if tokenizer is None:
        raise ConfigError("a grammar needs the target's tokenizer, which spells its tokens; give the decoder one")
    if not eos:
        raise ConfigError("a grammar needs an EOS token to end the text with; give the decoder eos token ids")
    return _tokenizer_info(tokenizer, vocab_size, eos)


def _load_schema(schema: object) -> Any:
    """Convert JSON text, a dictionary or a pydantic model to what `json.loads` returns."""
    try:
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            schema = schema.model_json_schema()
        if isinstance(schema, str):
            return json.loads(schema.removeprefix("\ufeff"))
        if isinstance(schema, dict):
            return json.loads(json.dumps(schema))
    except json.JSONDecodeError as error:
        message = f"invalid JSON schema: {error.msg} at line {error.lineno}, column {error.colno}"
        raise ConfigError(message) from None
    except (TypeError, ValueError, RecursionError, PydanticUserError) as error:
        raise ConfigError(f"invalid JSON schema: {library_message(error)}") from None
    kind = schema.__name__ if isinstance(schema, type) else type(schema).__name__
    raise ConfigError(f"a JSON schema is text, a dictionary or a pydantic model, not {kind}")


def _read_text(name: str, text: object, parts: re.Pattern[str]) -> str:
    """A regular expression or an EBNF grammar without escaped surrogate pairs."""
    if not isinstance(text, str):
        raise ConfigError(f"the {name} is of type {type(text).__name__}; give a string")
    if re.search("[\ud800-\udfff]", text):
        raise ConfigError(f"invalid {name}: it has a lone surrogate, which no text can have")
    check_repetitions(name, text, parts)
    return join_halves(name, text)


def _read_regex(pattern: object) -> str:
    """A regular expression as xgrammar reads it right."""
    text = _read_text("regex", pattern, IN_REGEX)
    if found := ignored_part(text):
        raise ConfigError(f"invalid regex: xgrammar would ignore {found}; leave it out")
    return text


class Grammar:
    """A constraint on whole texts, made by a function of this module and usable for any number of requests.

    Args:
        name: name in error messages.
        parse: makes xgrammar's grammar from the xgrammar module.

    Attributes:
        parsed: xgrammar's grammar.

    Raises:
        ConfigError: xgrammar is not installed, or cannot parse the grammar.
    """

    def __init__(self, name: str, parse: Callable[[Any], Any]) -> None:
        self.name = name
        self._parse = parse
        try:
            self.parsed = _separated(parse(load_xgrammar()))
        except (RuntimeError, UnicodeDecodeError) as error:
            raise ConfigError(f"invalid {name}: {library_message(error)}") from None

    def __reduce__(self) -> tuple[type["Grammar"], tuple[object, ...]]:
        """Parse anew where a copy is unpickled, as in a process of Ray; xgrammar's own objects are not pickled."""
        return Grammar, (self.name, self._parse)

    def new_state(
        self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos: tuple[int, ...]
    ) -> "GrammarState":
        """Begin a text; an EOS token is allowed where the grammar is complete.

        Args:
            tokenizer: the target's tokenizer.
            vocab_size: columns of the target's logits.
            eos: token ids that end a text.

        Raises:
            ConfigError: there is no tokenizer or EOS token, xgrammar cannot compile the grammar, or the vocabulary
                cannot spell any text of it.
        """
        state = GrammarState(self._compile(tokenizer, vocab_size, eos), vocab_size)
        logits = torch.zeros(1, vocab_size).index_fill_(1, torch.tensor(eos), -torch.inf)
        if not (state.restrict([()], logits) > -torch.inf).any():
            raise ConfigError(f"the {self.name} allows no text after the prompt in the target's vocabulary")
        return state

    def processor(
        self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos: tuple[int, ...]
    ) -> LogitsProcessor:
        """Return xgrammar's own processor for one call of transformers' `generate`; arguments as in `new_state`."""
        return load_xgrammar().contrib.hf.LogitsProcessor(self._compile(tokenizer, vocab_size, eos))

    def _compile(self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos: tuple[int, ...]) -> Any:
        return _compiled(self, tokenizer, vocab_size, eos)

    def compile_with(self, compiler: Any) -> Any:
        """Compile the grammar with an xgrammar `GrammarCompiler`.

        Raises:
            ConfigError: xgrammar cannot compile it.
        """
        try:
            return compiler.compile_grammar(self.parsed)
        except RuntimeError as error:
            raise ConfigError(f"xgrammar cannot compile the {self.name}: {library_message(error)}") from None


class GrammarState:
    """The matcher of one request's committed text, which can look ahead along drafted paths.

    Args:
        compiled: xgrammar's grammar compiled for the vocabulary.
        vocab_size: columns of the target's logits.
    """

    def __init__(self, compiled: Any, vocab_size: int) -> None:
        self._xgrammar = load_xgrammar()
        self._matcher = self._xgrammar.GrammarMatcher(compiled)
        self._vocab_size = vocab_size
        self._matched: list[int] = []
        self._masks: dict[Path, Tensor] = {}

    def restrict(self, paths: Sequence[Path], logits: Tensor) -> Tensor:
        """Set logits `[paths, vocab]` to -inf, in place, for tokens the grammar forbids after each path.

        A path that itself breaks the grammar keeps its logits: it is never accepted.
        """
        # Sorted paths are in depth-first order, in which the matcher rolls back the fewest tokens.
        for path in sorted(set(paths) - self._masks.keys()):
            self._masks[path] = self._mask(path)
        masks = torch.cat([self._masks[path] for path in paths]).to(logits.device)
        self._xgrammar.apply_token_bitmask_inplace(logits, masks, vocab_size=self._vocab_size)
        return logits

    def commit(self, token: int) -> None:
        """Advance the text by one committed token.

        Raises:
            ConfigError: the grammar forbids the token, so the verifier is not lossless.
        """
        self._move_to(())
        self._masks.clear()
        if not self._matcher.accept_token(token):
            raise ConfigError(f"token {token} was accepted against the grammar; use a lossless verifier")

    def _mask(self, path: Path) -> Tensor:
        """Bit mask `[1, ceil(vocab / 32)]`, int32, of the tokens allowed after a path."""
        mask = self._xgrammar.allocate_token_bitmask(1, self._vocab_size)
        if self._move_to(path):
            self._matcher.fill_next_token_bitmask(mask)
        return mask

    def _move_to(self, path: Path) -> bool:
        """Roll the matcher back to the prefix it shares with a path, then along the path; False if it is forbidden."""
        shared = next((at for at, (a, b) in enumerate(zip(self._matched, path, strict=False)) if a != b), None)
        shared = min(len(self._matched), len(path)) if shared is None else shared
        if len(self._matched) > shared:
            self._matcher.rollback(len(self._matched) - shared)
            del self._matched[shared:]
        # A token that xgrammar refuses leaves the matcher unchanged, so `_matched` stays right on an early return.
        for token in path[shared:]:
            if not self._matcher.accept_token(token):
                return False
            self._matched.append(token)
        return True


def _separated(parsed: Any) -> Any:
    """A grammar whose strings are cut before hexadecimal digits that follow a character of Latin-1.

    xgrammar spells "ße" as "\\xdfe" and reads it again as one character, U+0DFE.
    """
    text = str(parsed)
    cut = PARTS.sub(lambda part: part[0] if part[0][0] == "[" else LATIN_1.sub(r'\1" "', part[0]), text)
    return parsed if cut == text else load_xgrammar().Grammar.from_ebnf(cut)


@functools.lru_cache(maxsize=32)
def _compiled(
    grammar: Grammar, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos: tuple[int, ...]
) -> Any:
    return grammar.compile_with(_compiler(tokenizer, vocab_size, eos))


@functools.lru_cache(maxsize=4)
def _compiler(tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos: tuple[int, ...]) -> Any:
    info = vocabulary_of(tokenizer, vocab_size, eos)
    return load_xgrammar().GrammarCompiler(info, cache_limit_bytes=CACHE_BYTES)


def _tokenizer_info(tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos: tuple[int, ...]) -> Any:
    read = load_xgrammar().TokenizerInfo.from_huggingface
    try:
        return read(tokenizer, vocab_size=vocab_size, stop_token_ids=list(eos) or None)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"xgrammar cannot read the tokenizer: {library_message(error)}") from None
