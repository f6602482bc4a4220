"""Keeps control tokens in messages plain text, while those that the chat template writes remain tokens.

The rule and its name are those of `sanitize_control_tokens` in `apply_chat_template` of transformers 5.24 and newer.
Here the text around such a token is tokenised like any other text.
"""

import itertools
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from tokenizers import AddedToken, Tokenizer

from drafttree.core.errors import InputError
from drafttree.text.detokenizer import special_tokens


def _rare_letters() -> str:
    """Six random letters, which no client can guess and no template or normalizer changes."""
    return "".join(chr(0x20000 + secrets.randbelow(0xA000)) for _ in range(6))


START, END, STAND_IN = _rare_letters(), _rare_letters(), _rare_letters()
"""The marks around a control token in a message, and the beginning of names that stand in for the template's tokens.

A template that splits a text at a control token leaves its marks in place. Marks are removed before the text is
tokenised, and no control token is recognised across them. So `END` also stands alone wherever a template may build a
token from a message: after the first character of a token, since the template may drop what follows or write the rest
itself, and before text that ends a token or is inside one.
"""
ROLES = ("system", "developer", "user", "assistant", "tool")
"""The roles that messages can have."""
STRUCTURE = {"role", "content", "type", "text", "name", "id", "tool_calls", "tool_call_id", "function", "arguments"}
STRUCTURE |= {"description", "parameters", "properties", "required", "items", "enum", "reasoning_content", "thinking"}
"""Names of entries of messages and tools, which templates look up and which stay as they are."""
FIXED = {
    "role": ROLES,
    "type": ("function", "text", "image", "object", "array", "string", "number", "integer", "boolean", "null"),
}
"""Values of some entries that stay as they are, since they are not text: a template writes a role between tokens."""
LOOKED_FOR = re.compile(
    r"""(?:split|startswith|endswith)\(\s*(?:'([^']+)'|"([^"]+)")|(?:'([^']+)'|"([^"]+)")\s+(?:not\s+)?in\b"""
)
"""A literal that a template looks for in texts."""
NOTHING = "(?!)"
"""A pattern that matches nothing."""
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class ControlTokens:
    """The control tokens of a tokenizer, and the means to keep those of messages plain text.

    Args:
        tokenizer: a fast tokenizer of transformers.
        tokens: the control tokens, as they are spelled.
        looked_for: literals that the chat template looks for in texts.
    """

    def __init__(self, tokenizer: Any, tokens: frozenset[str], looked_for: frozenset[str]) -> None:
        backend = tokenizer.backend_tokenizer
        added_tokens = backend.get_added_tokens_decoder()
        names = {index: str(token.content) for index, token in added_tokens.items()}
        self._added = re.compile(_longest(names.values()))
        self._marked = re.compile(f"{START}({_longest(tokens)}){END}|{START}|{END}", re.IGNORECASE)
        self._suspects = _suspects(tokens, looked_for)
        self._edges = _Edges(tokens)
        self._stand_ins = dict[str, str]()
        for number, token in enumerate(sorted(tokens)):
            self._stand_ins[token] = f"<{STAND_IN}{number}>"
        self._tokenizer = _renamed(backend, added_tokens.values(), self._stand_ins)
        self._ids = dict[int | None, int]()
        for index, name in names.items():
            renamed_index = self._tokenizer.token_to_id(self._stand_ins.get(name, name))
            self._ids[renamed_index] = index
        self._spelled = {self._tokenizer.token_to_id(token): token for token in tokens}

    def kept(self, value: Any) -> Any:
        """Return a message, a tool or a variable with marks wherever its text could bring a control token.

        Raises:
            InputError: if it is nested too deeply.
        """
        try:
            return self._kept(value)
        except RecursionError:
            raise InputError("a message or a tool is nested too deeply; send fewer levels") from None

    def plain(self, text: str) -> str:
        """Return a text without its marks."""
        return text.replace(START, "").replace(END, "")

    def encode(self, rendered: str) -> list[int]:
        """Return the token ids of a rendered conversation.

        Raises:
            InputError: if the tokenizer makes a control token of plain text.
        """
        pieces = self._marked.split(rendered)  # text of the template and a token of a message take turns
        for index in range(0, len(pieces), 2):
            pieces[index] = self._added.sub(self._stand_in, pieces[index])
        ids = self._tokenizer.encode("".join(filter(None, pieces)), add_special_tokens=False).ids
        for index in ids:
            if index in self._spelled:
                raise InputError(
                    f"the tokenizer cannot write {self._spelled[index]!r} without that control token; leave the text "
                    "out"
                )
        return [self._ids.get(index, index) for index in ids]

    def _kept(self, value: Any) -> Any:
        match value:
            case str():
                return self._with_marks(value)
            case Mapping():
                return {self._kept_name(name): self._kept_entry(name, entry) for name, entry in value.items()}
            case list() | tuple():
                return [self._kept(entry) for entry in value]
        return value

    def _kept_name(self, name: Any) -> Any:
        return name if name in STRUCTURE else self._kept(name)

    def _kept_entry(self, name: Any, entry: Any) -> Any:
        return entry if entry in FIXED.get(name, ()) else self._kept(entry)

    def _with_marks(self, text: str) -> str:
        """Return a text with marks; those at its ends stand inside white space, which a template may strip."""
        core = text.strip()
        begin = text.index(core)
        leading_mark = END if self._edges.may_end_token(core.lower()) else ""
        trailing_mark = END if self._edges.may_begin_token(core.lower()) else ""
        leading_space = self._suspects.sub(_mark, text[:begin])
        trailing_space = self._suspects.sub(_mark, text[begin + len(core) :])
        core = self._suspects.sub(_mark, core)
        return f"{leading_space}{leading_mark}{core}{trailing_mark}{trailing_space}"

    def _stand_in(self, match: re.Match[str]) -> str:
        return self._stand_ins.get(match[0], match[0])


class _Edges:
    """The beginnings and ends of control tokens, which may be at the edges of a text.

    Args:
        tokens: the control tokens; texts are compared with their lower-case spellings.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        names = [token.lower() for token in tokens]
        self._names = "\0".join(names)
        self._longest = max(map(len, names), default=0)
        self._beginnings = set[str]()
        self._endings = set[str]()
        for name in names:
            for index in range(1, len(name)):
                self._beginnings.add(name[:index])
                self._endings.add(name[index:])

    def may_begin_token(self, text: str) -> bool:
        """Whether a token may begin at the end of this text and go on in the next."""
        return any(text[-length:] in self._beginnings for length in self._edge_lengths(text))

    def may_end_token(self, text: str) -> bool:
        """Whether a token that begins before this text may end in it or after it."""
        if any(text[:length] in self._endings for length in self._edge_lengths(text)):
            return True
        if not text or text not in self._names:
            return False
        # A word has to be a whole word of a name: many words are parts of others.
        is_word = re.fullmatch(r"\w+", text) is not None
        return not is_word or re.search(rf"\b{text}\b", self._names) is not None

    def _edge_lengths(self, text: str) -> range:
        return range(1, min(self._longest, len(text) + 1))


def control_tokens(tokenizer: Any, further_text: str = "") -> ControlTokens:
    """Return the control tokens of a tokenizer: the special ones, and the added ones that its chat template writes.

    Args:
        tokenizer: a tokenizer of transformers.
        further_text: further text whose added tokens count, such as marks that a server looks for.

    Raises:
        InputError: if the tokenizer is not one of the `tokenizers` library.
    """
    if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        raise InputError("sanitize_control_tokens needs a fast tokenizer, one of the tokenizers library; leave it out")
    template = getattr(tokenizer, "chat_template", None) or ""
    template = "\n".join(template.values()) if isinstance(template, dict) else template
    looked_for = {*itertools.chain(*LOOKED_FOR.findall(template))} - {""}
    return _cached(tokenizer, _control_tokens(tokenizer, f"{template}\n{further_text}"), frozenset(looked_for))


def placeholder_tokens(tokenizer: Any, placeholders: Iterable[str]) -> ControlTokens | None:
    """The means to keep placeholders of images plain text where messages spell them.

    Args:
        tokenizer: a tokenizer of transformers.
        placeholders: the tokens that stand for images, as they are spelled.

    Returns:
        None if there are none, or the tokenizer is not one of the `tokenizers` library.
    """
    if not placeholders or not isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        return None
    return _cached(tokenizer, frozenset(placeholders), frozenset())


_cached = lru_cache(maxsize=4)(ControlTokens)


def _control_tokens(tokenizer: Any, template: str) -> frozenset[str]:
    """The special tokens, and `chat_control_tokens` of transformers or, without these, added tokens in the template."""
    tokens = {*special_tokens(tokenizer).values()}
    chat_tokens = getattr(tokenizer, "chat_control_tokens", None)
    if chat_tokens is not None:
        tokens.update(chat_tokens)
    else:
        for token in tokenizer.added_tokens_decoder.values():
            if token.content in template and not token.content.isspace():
                tokens.add(token.content)
    return frozenset(tokens - {""})


def _suspects(tokens: frozenset[str], looked_for: frozenset[str]) -> re.Pattern[str]:
    """A pattern of what gets a mark, in `token`, of what a template looks for, in `literal`, and of first characters.

    Of the characters that a token begins with, letters and white space are left out: most texts have them, so only
    those at the end of a text are looked at, by `ControlTokens`.
    """
    first_characters = set[str]()
    for token in tokens:
        if not token[0].isalnum() and not token[0].isspace():
            first_characters.add(re.escape(token[0]))
    first_pattern = f"[{''.join(first_characters)}]" if first_characters else NOTHING
    other_literals = set(looked_for)
    for literal in looked_for:
        if any(token.startswith(literal) for token in tokens):
            other_literals.remove(literal)
    token_or_literal = f"(?P<token>{_longest(tokens)})|(?P<literal>{_longest(other_literals)})"
    return re.compile(f"{token_or_literal}|{first_pattern}", re.IGNORECASE)


def _mark(match: re.Match[str]) -> str:
    """A match of `_suspects` with its marks."""
    if match["token"]:
        return f"{START}{match[0]}{END}"
    return match[0] if match["literal"] else match[0] + END


def _longest(words: Iterable[str]) -> str:
    """A pattern that matches the longest of these words at a place, and reads each character of a text once."""
    trie: dict[str, Any] = {}
    for word in words:
        node = trie
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}

    def written(node: dict[str, Any]) -> str:
        branches = [re.escape(character) + written(node[character]) for character in node if character]
        if not branches:
            return ""
        is_word_end = "" in node
        if len(branches) == 1 and not is_word_end:
            return branches[0]
        return f"(?:{'|'.join(branches)}){'?' if is_word_end else ''}"

    return written(trie) if trie else NOTHING


def _renamed(backend: Tokenizer, added_tokens: Iterable[AddedToken], names: Mapping[str, str]) -> Tokenizer:
    """A copy of a tokenizer in which added tokens have other names by `names`; their ids may differ too."""
    state = json.loads(backend.to_str())
    state |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    renamed_tokenizer = Tokenizer.from_str(json.dumps(state))
    renamed_tokens = []
    for token in added_tokens:
        flags = {flag: getattr(token, flag) for flag in FLAGS}
        renamed_tokens.append(AddedToken(names.get(token.content, token.content), **flags))
    renamed_tokenizer.add_tokens(renamed_tokens)
    return renamed_tokenizer
