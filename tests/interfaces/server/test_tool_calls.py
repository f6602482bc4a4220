"""Calls are read from a text that comes in any parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafttree.interfaces.server.tool_calls import CallArguments, CallBegun, Part, Said, ToolCallReader, call_text

ONE, TWO = call_text("f", '{"a": "}\\n</tool_call"}'), call_text("g_2", "{}")


def read(pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """What is said, and the names and arguments of the calls."""
    reader, parts = ToolCallReader(), []
    for place, piece in enumerate(pieces, start=1):
        parts += reader.read(piece, final=place == len(pieces))
    return _put_together(parts)


def _put_together(parts: list[Part]) -> tuple[str, list[tuple[str, str]]]:
    calls: list[tuple[str, str]] = []
    for part in parts:
        match part:
            case CallBegun(index=index, name=name):
                assert index == len(calls)
                calls.append((name, ""))
            case CallArguments(index=index, text=text):
                calls[index] = (calls[index][0], calls[index][1] + text)
    return "".join(part.text for part in parts if isinstance(part, Said)), calls


CASES = [
    ("Hello there.\n", ("Hello there.\n", [])),
    ("a < b <tool", ("a < b <tool", [])),
    (ONE, ("", [("f", '{"a": "}\\n</tool_call"}')])),
    (f"Let me see.\n{ONE}\n{TWO}", ("Let me see.", [("f", '{"a": "}\\n</tool_call"}'), ("g_2", "{}")])),
    (f"{TWO}\nDone. ", ("\nDone.", [("g_2", "{}")])),
    (ONE.partition('call"}')[0], ("", [("f", '{"a": "}\\n</tool_')])),
    (TWO[:20], ("", [])),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
@given(data=st.data())
def test_any_cut_of_a_text_reads_the_same(data, text, expected):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(pieces) == expected


def test_arguments_come_before_a_call_has_ended():
    reader = ToolCallReader()
    parts = reader.read(ONE.partition('"}')[0], final=False)
    assert parts == [CallBegun(0, "f"), CallArguments(0, '{"a": ')]
