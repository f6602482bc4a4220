"""Grammars: texts that follow a JSON schema, a regular expression or an EBNF grammar.

    decoder.generate(prompt, grammar=drafttree.grammar.json_schema({"type": "object", ...}))

xgrammar (Dong et al. 2024) says which tokens may come next; it is an optional extra. One matcher per text walks the
paths of a tree depth-first, accepting tokens on the way down and taking them back on the way up, so a tree costs one
mask for every node. Masks made for drafting are used again for verifying.
"""

import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pydantic import BaseModel
from pydantic.errors import PydanticUserError
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from drafttree.constraints import json_schema as schemas
from drafttree.constraints.processors import Path
from drafttree.core.errors import ConfigError

__all__ = ["Grammar", "ebnf", "json_schema", "regex"]


def json_schema(schema: str | dict[str, Any] | type[BaseModel], *, any_whitespace: bool = False) -> "Grammar":
    """Texts that are JSON of a schema.

    Args:
        schema: as JSON, as a dictionary or as a pydantic model.
        any_whitespace: allow any white space between elements; otherwise it is as `json.dumps` writes it, so that a
            text can go on only by saying something.

    Raises:
        ConfigError: xgrammar is not installed, the schema is none that any text can follow, or xgrammar would not keep
            to a part of it; the message names the part.
    """
    wanted = schemas.enforced(_read(schema))
    text = json.dumps(wanted)
    return Grammar("JSON schema", lambda xgr: xgr.Grammar.from_json_schema(text, any_whitespace=any_whitespace))


def regex(pattern: str) -> "Grammar":
    """Texts that match a regular expression from their first character to their last.

    Raises:
        ConfigError: xgrammar is not installed or does not know the expression.
    """
    _check_text("regex", pattern)
    return Grammar(f"regex {pattern!r}", lambda xgr: xgr.Grammar.from_regex(pattern))


def ebnf(text: str) -> "Grammar":
    """Texts of a grammar in the EBNF of GBNF (llama.cpp), whose first rule is named root.

    Raises:
        ConfigError: xgrammar is not installed or the grammar is not well formed.
    """
    _check_text("EBNF grammar", text)
    return Grammar("EBNF grammar", lambda xgr: xgr.Grammar.from_ebnf(text))


def _read(schema: object) -> Any:
    """A schema as `json.loads` gives it, whatever it is given as."""
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
        raise ConfigError(f"invalid JSON schema: {_reason(error)}") from None
    kind = schema.__name__ if isinstance(schema, type) else type(schema).__name__
    raise ConfigError(f"a JSON schema is text, a dictionary or a pydantic model, not {kind}")


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise ConfigError(f"the {name} is of type {type(text).__name__}; give a string")
    if re.search("[\ud800-\udfff]", text):
        raise ConfigError(f"invalid {name}: it has a lone surrogate, which no text can have")


class Grammar:
    """What a text must look like; made by `json_schema`, `regex` or `ebnf` and used for any number of texts.

    Args:
        name: for messages.
        parse: makes xgrammar's grammar, given the module.

    Raises:
        ConfigError: xgrammar is not installed, or cannot parse it.
    """

    def __init__(self, name: str, parse: Callable[[Any], Any]) -> None:
        self.name = name
        try:
            self._parsed = parse(_xgrammar())
        except RuntimeError as error:
            raise ConfigError(f"invalid {name}: {_reason(error)}") from None

    def new_state(
        self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos: tuple[int, ...]
    ) -> "GrammarState":
        """Begin a text, which may end with an EOS token where the grammar is complete.

        Args:
            tokenizer: the target's.
            vocab_size: columns of the logits.
            eos: token ids that end a text.

        Raises:
            ConfigError: no tokenizer or EOS token, or no text at all can be written with the vocabulary.
        """
        state = GrammarState(self._compile(tokenizer, vocab_size, eos), vocab_size)
        possible = torch.zeros(1, vocab_size).index_fill_(1, torch.tensor(eos), -torch.inf)
        if not (state.restrict([()], possible) > -torch.inf).any():
            raise ConfigError(f"the {self.name} allows no text after the prompt in the target's vocabulary")
        return state

    def processor(
        self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos: tuple[int, ...]
    ) -> LogitsProcessor:
        """xgrammar's own processor for one call of transformers' `generate`; arguments as for `new_state`."""
        return _xgrammar().contrib.hf.LogitsProcessor(self._compile(tokenizer, vocab_size, eos))

    def _compile(self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos: tuple[int, ...]) -> Any:
        if tokenizer is None:
            raise ConfigError("a grammar needs the target's tokenizer, which spells its tokens; give the decoder one")
        if not eos:
            raise ConfigError("a grammar needs an EOS token to end the text with; give the decoder eos token ids")
        return _compiled(self, tokenizer, vocab_size, eos)


class GrammarState:
    """A grammar's state after one text, looking ahead along paths.

    Args:
        compiled: xgrammar's grammar for a vocabulary.
        vocab_size: columns of the logits.
    """

    def __init__(self, compiled: Any, vocab_size: int) -> None:
        self._xgrammar = _xgrammar()
        self._matcher = self._xgrammar.GrammarMatcher(compiled)
        self._vocab_size = vocab_size
        self._ahead: list[int] = []
        self._masks: dict[Path, Tensor] = {}

    def restrict(self, paths: Sequence[Path], logits: Tensor) -> Tensor:
        """Logits `[paths, vocab]` with -inf for tokens the grammar forbids after each path, in place.

        Nothing is forbidden after a path that is itself forbidden.
        """
        for path in sorted(set(paths) - self._masks.keys()):
            self._masks[path] = self._mask(path)
        masks = torch.cat([self._masks[path] for path in paths]).to(logits.device)
        self._xgrammar.apply_token_bitmask_inplace(logits, masks, vocab_size=self._vocab_size)
        return logits

    def commit(self, token: int) -> None:
        """Take note of the next token of the text.

        Raises:
            ConfigError: the grammar forbids it, so the verifier has not kept to the target's distribution.
        """
        self._walk(())
        self._masks.clear()
        if not self._matcher.accept_token(token):
            raise ConfigError(f"token {token} was accepted against the grammar; use a lossless verifier")

    def _mask(self, path: Path) -> Tensor:
        """Bits `[1, vocab / 32]` of the tokens that may follow a path."""
        mask = self._xgrammar.allocate_token_bitmask(1, self._vocab_size)
        if self._walk(path):
            self._matcher.fill_next_token_bitmask(mask)
        return mask

    def _walk(self, path: Path) -> bool:
        """Move the matcher to a path, over the nearest place they share; whether the grammar allows it."""
        shared = next((at for at, (a, b) in enumerate(zip(self._ahead, path, strict=False)) if a != b), None)
        shared = min(len(self._ahead), len(path)) if shared is None else shared
        if len(self._ahead) > shared:
            self._matcher.rollback(len(self._ahead) - shared)
            del self._ahead[shared:]
        for token in path[shared:]:
            if not self._matcher.accept_token(token):
                return False
            self._ahead.append(token)
        return True


@functools.lru_cache(maxsize=32)
def _compiled(grammar: Grammar, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos: tuple[int, ...]) -> Any:
    return _compiler(tokenizer, vocab_size, eos).compile_grammar(grammar._parsed)


@functools.lru_cache(maxsize=4)
def _compiler(tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos: tuple[int, ...]) -> Any:
    xgrammar = _xgrammar()
    try:
        spelling = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size, stop_token_ids=list(eos))
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"xgrammar cannot read the tokenizer: {_reason(error)}") from None
    return xgrammar.GrammarCompiler(spelling)


def _xgrammar() -> Any:
    try:
        import xgrammar
    except ImportError:
        raise ConfigError("grammars need xgrammar, which is not installed: pip install drafttree[grammar]") from None
    return xgrammar


def _reason(error: Exception) -> str:
    """The message without the time and place in xgrammar's sources."""
    return " ".join(re.sub(r"^\[[\d:]+\] \S+: ", "", str(error)).split())
