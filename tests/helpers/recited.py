"""A model that writes drawn texts by heart, and what a server has to tell of them, known from the texts alone."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from transformers.convert_slow_tokenizer import bytes_to_unicode

from drafttree.core.errors import InputError
from helpers.dialects import SPECIAL, tokenizer_of

WORDS = ["So.", " It is", "\n\n", " ", "é€", "🎉", "<", "stop", "st", "[T"]
SILENT = "<|im_end|>"
"""A special token that is no mark of two of the families."""
EOS = "<|endoftext|>"
CALL = ['{"a": "', "ü", "stop", '"}']


MARKS = {
    "qwen3": {
        "think": ("<think>", "</think>"),
        "then": ("\n\n", ""),
        "say": ("", ""),
        "call": ('<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"),
    },
    "mistral": {
        "think": ("[THINK]", "[/THINK]"),
        "then": ("", ""),
        "say": ("", ""),
        "call": ("[TOOL_CALLS]f[ARGS]", ""),
    },
    "gpt-oss": {
        "think": ("<|channel|>analysis<|message|>", "<|end|>"),
        "then": ("<|start|>assistant", ""),
        "say": ("<|channel|>final<|message|>", ""),
        "call": ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>", ""),
    },
}
"""By family: what stands around a part of an answer, and behind thinking."""
UNSTOPPED = {
    "qwen3": r"\A\s*<think>.*?(?:</think>\s*|\Z)",
    "mistral": r"\A\s*\[THINK\].*?(?:\[/THINK\]\s*|\Z)",
    "gpt-oss": r"<\|channel\|>analysis<\|message\|>.*?(?:<\|end\|>\s*|\Z)"
    r"|<\|(?:channel|start)\|>.*?(?:<\|message\|>\s*|\Z)",
}
"""By family: where no stop string applies: in thinking, in headers, and in the white space behind them."""
BEGUN = {
    "qwen3": r"\A\s*(?:<(?:t(?:h(?:i(?:n(?:k)?)?)?)?)?)?\Z",
    "mistral": r"\A\s*(?:\[(?:T(?:H(?:I(?:N(?:K)?)?)?)?)?)?\Z",
}
BEGUN["gpt-oss"] = r"<(?:\|(?:c(?:h(?:a(?:n(?:n(?:e(?:l\|?)?)?)?)?)?)?|s(?:t(?:a(?:r(?:t\|?)?)?)?)?)?)?\Z"
"""By family: the end of a text that may become such a place."""


@dataclass(frozen=True)
class Part:
    """A part of an answer of a family: what kind it is, and what stands between its marks."""

    family: str
    kind: str
    text: str = ""

    @property
    def marks(self) -> tuple[str, str]:
        """What stands around it."""
        return MARKS[self.family][self.kind]


def raw(parts: Sequence[Part]) -> str:
    """An answer as the model writes it."""
    return "".join(part.text.join(part.marks) for part in parts)


@dataclass(frozen=True)
class Case:
    """Two texts of a model, and how one of them is asked for.

    Attributes:
        family: whose marks the texts have.
        texts: the parts of each.
        limit: tokens at most.
        stop: stop strings.
        temperature: 0 for the first text; at 1 either is drawn.
        drafted_wrong: of so many drafts one is wrong, so that rounds are of several sizes.
    """

    family: str
    texts: Sequence[Sequence[Part]]
    limit: int = 200
    stop: Sequence[str] = ()
    temperature: float = 0
    drafted_wrong: int = 7


words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map("".join)
arguments = st.just("{}") | st.lists(st.sampled_from(["ü", "stop"]), max_size=3).map(
    lambda words: '{"a": "' + "".join(words) + '"}'
)


@st.composite
def answers(draw: Any, family: str) -> list[Part]:
    """Thinking, then what is said and called."""
    kinds = draw(st.sampled_from(["", "say", "call", "say call", "call say", "call call"])).split()
    kinds = kinds[:1] if family == "gpt-oss" else kinds  # its calls end a turn
    stretches = draw(st.integers(0, 2 if family == "gpt-oss" else 1))  # others think at the beginning alone
    thought = [part for _ in range(stretches) for part in (Part(family, "think", draw(words)), Part(family, "then"))]
    return [*thought, *(Part(family, kind, draw(words if kind == "say" else arguments)) for kind in kinds)]


@st.composite
def cases(draw: Any) -> Case:
    """Texts of one family, some with stop strings that begin anywhere."""
    family = draw(st.sampled_from([*MARKS]))
    texts = draw(st.tuples(answers(family), answers(family)))
    whole = raw(texts[0])
    cuts = draw(st.lists(st.tuples(st.integers(0, len(whole)), st.integers(1, 6)), max_size=2))
    stop = [whole[begin : begin + length] for begin, length in cuts] + ["never written"]
    stop = [each for each in stop if each and not any(mark in each for mark in SPECIAL)]
    limit = draw(st.just(200) | st.integers(1, 60))
    return Case(family, texts, limit, stop, draw(st.sampled_from([0, 1])), draw(st.integers(2, 7)))


BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
Texts = Sequence[tuple[list[int], list[int]]]
"""Prompts, each with a text that is written behind it."""


class Scripts:
    """The law of a model that writes texts by heart, each behind its prompt, and of a drafter that is often right.

    Of the texts behind one prompt it draws one. Where it writes only one, another token is less likely by so much that
    it is never drawn, and not so little that log-probabilities would not show it.

    Attributes:
        fails_after: tokens of a text behind which a pass fails; None for never.
    """

    def __init__(self, family: str) -> None:
        self.tokenizer = tokenizer_of(family)
        self.vocab = len(self.tokenizer)
        self.eos = self.tokenizer.eos_token_id
        self.texts: Texts = ()
        self.drafted_wrong, self.rival = 2, False
        self.fails_after: int | None = None

    def tokens(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def __call__(self, prefix: Sequence[int]) -> list[float]:
        if self.fails_after is not None and len(prefix) >= len(self.texts[0][0]) + self.fails_after:
            raise InputError("the pass is refused")
        return self._logits(prefix)

    def _logits(self, prefix: Sequence[int]) -> list[float]:
        logits = [0.0] * self.vocab
        for prompt, text in self.texts:
            begin, written = list(prefix[: len(prompt)]), list(prefix[len(prompt) :])
            if begin == prompt and text[: len(written)] == written:
                due = text[len(written)] if len(written) < len(text) else self.eos
                if self.rival:
                    logits[(due + 1) % self.vocab] = 39.0 - len(written) % 3
                logits[due] = 40.0
        return logits

    def draft(self, prefix: Sequence[int]) -> list[float]:
        return self._logits(prefix) if len(prefix) % self.drafted_wrong else [0.0] * self.vocab

    def spelled(self, token: int, marks: str = "") -> bytes:
        """The bytes of a token in a text; special tokens have none but those that are marks."""
        name = self.tokenizer.convert_ids_to_tokens(token)
        if name in SPECIAL or token == self.eos:
            return name.encode() if name in marks else b""
        if token in self.tokenizer.added_tokens_decoder:
            return name.encode()
        return bytes(BYTES[character] for character in name)

    def named(self, token: int) -> str:
        """The name of a token."""
        found = self.spelled(token, " ".join(SPECIAL))
        try:
            return found.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)

    def scores(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[tuple[str, float, list[float]]]:
        """The name of each token, its log-probability, and those of the two likeliest ones."""
        found = []
        for place in range(len(tokens)):
            row = self([*prompt, *tokens[:place]])
            whole = math.log(sum(map(math.exp, row)))
            likeliest = [round(each - whole, 3) for each in sorted(row, reverse=True)[:2]]
            found.append((self.named(tokens[place]), round(row[tokens[place]] - whole, 3), likeliest))
        return found


def _stopped(text: str, stop: Sequence[str], thinks: str | None, *, final: bool) -> tuple[int, str] | None:
    """Where the first stop string begins that ends a text, and which that is."""
    begun = re.search(BEGUN[thinks], text.rstrip("\ufffd")) if thinks and not final else None
    hidden = [found.span() for found in re.finditer(UNSTOPPED[thinks], text, re.DOTALL)] if thinks else []
    edges = [0, *itertools.chain(*hidden), begun.start() if begun and not _in_thinking(text, thinks) else len(text)]
    spans = [*zip(edges[::2], edges[1::2], strict=True)]
    found = [(place, string) for string in stop for span in spans if (place := text.find(string, *span)) >= 0]
    return min(found, default=None)


def _in_thinking(text: str, thinks: str | None) -> bool:
    """Whether what follows a text is thinking, or a header."""
    ends = ("</think>", "[/THINK]", "<|end|>", "<|message|>")
    found = [*re.finditer(UNSTOPPED[thinks], text, re.DOTALL)] if thinks else []
    return bool(found) and found[-1].end() == len(text) and not found[-1][0].rstrip().endswith(ends)


@dataclass(frozen=True)
class Written:
    """What a model has written where its text ends.

    Attributes:
        text: without the stop string.
        count: tokens, with those of a stop string and EOS.
        reason: why it ends.
        stopped_by: the stop string.
        pieces: the bytes of each token.
    """

    text: str
    count: int
    reason: str
    stopped_by: str | None
    pieces: Sequence[bytes]

    @classmethod
    def of(
        cls,
        law: Scripts,
        tokens: Sequence[int],
        limit: int,
        stop: Sequence[str],
        marks: str = "",
        thinks: str | None = None,
    ) -> "Written":
        """What is written of a text.

        Args:
            law: the law of the model.
            tokens: the text.
            limit: tokens at most.
            stop: stop strings.
            marks: the special tokens that are part of the text, in one string.
            thinks: the family whose thinking no stop string ends, None where nothing is thinking.
        """
        pieces = [law.spelled(token, marks) for token in tokens]
        text = ""
        for count, token in enumerate([*tokens, law.eos][:limit], start=1):
            name = law.tokenizer.convert_ids_to_tokens(token)
            named = name if name in {*stop} & {*SPECIAL, EOS} and not _in_thinking(text, thinks) else None
            if token == law.eos or named:
                end, stopped_by = _stopped(text, stop, thinks, final=True) or (len(text), named)
                return cls(text[:end], count, "stop", stopped_by, pieces[: count - 1])
            text = b"".join(pieces[:count]).decode(errors="replace")
            if found := _stopped(text, stop, thinks, final=count == limit):
                end, stopped_by = found
                return cls(text[:end], count, "stop", stopped_by, pieces[:count])
        return cls(text, limit, "length", None, pieces[:limit])

    def before(self, character: int) -> int:
        """The number of tokens up to the one that completes so many characters."""
        return next((count for count in range(self.count) if self.complete(count) >= character), self.count)

    def complete(self, count: int) -> int:
        """The number of characters that so many tokens complete."""
        return len(b"".join(self.pieces[:count]).decode(errors="ignore"))

    @property
    def scored(self) -> int:
        """The number of tokens whose log-probabilities are told: those of the text."""
        return self.count if self.reason == "length" else self.before(len(self.text))


class Answer:
    """What a chat has to say of what is written.

    Args:
        parts: the answer.
        written: what there is of it.

    Attributes:
        thought: what is thought, of each stretch without the white space around it.
        said: where what is said begins and ends.
        calls: the arguments of the calls.
        reasoning: tokens that are thinking, with the marks around it.
        finish_reason: why the answer ends.
        torn: as much of a mark as there is where the text ends in one.
        kinds: the parts that there are, in their order.
    """

    def __init__(self, parts: Sequence[Part], written: Written) -> None:
        self._text = text = written.text
        self.thought, self.torn, self.reasoning = "", "", 0
        self.said: list[tuple[int, int]] = []
        self.calls: list[str] = []
        self.kinds: list[str] = []
        in_call, place = False, 0
        for part in parts:
            before, after = part.marks
            first, begin = place, place + len(before)
            end, place = begin + len(part.text), begin + len(part.text) + len(after)
            self.torn += text[first:] if first < len(text) < begin else text[end:] if end < len(text) < place else ""
            if len(text) < begin:
                break
            assume(part.kind != "call" or len(text) > begin)  # whether it has begun there is the family's own matter
            if part.kind == "think":
                self.thought += text[begin:end].strip()
                last = written.count if len(text) < place else written.before(place)
                self.reasoning += last - written.before(first)
            elif part.kind == "say":
                self.said += [(begin, min(end, len(text)))] if text[begin:end].strip() else []
            elif part.kind == "call":
                self.calls.append(text[begin:end])
                in_call = len(text) < end
            goes_on = part.kind == "think" and self.kinds == ["think"]
            if part.kind == "call" or (text[begin:end].strip() and not goes_on):
                self.kinds.append(part.kind)
        called = self.calls and written.reason == "stop" and not in_call
        self.finish_reason = "tool_calls" if called else written.reason

    def check(self, thought: str, said: str, calls: Sequence[str]) -> None:
        """Check what a reply says; white space around marks is dropped, and half a mark may be text."""
        texts = [self._text[begin:end] for begin, end in self.said]
        if self.torn:
            assert joined(thought).startswith(joined(self.thought))
            assert joined("".join([*texts, self.torn])).startswith(joined(said))
            assert joined(said).startswith(joined("".join(texts)))
        else:
            assert thought.strip() == self.thought
            assert said.strip() == "".join(each.strip() for each in texts).strip()
        assert [*filter(None, calls)] == [*filter(None, self.calls)]


def joined(text: str) -> str:
    """A text without white space."""
    return "".join(text.split())
