"""Strings of JSON in spellings drawn from all that it allows."""

from hypothesis import strategies as st

SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
CHARACTERS = [
    "a",
    "b",
    "0",
    " ",
    '"',
    "\\",
    "/",
    "<",
    "'",
    "\n",
    "\t",
    "\x00",
    "\x1f",
    "\x7f",
    "é",
    "\u2019",
    "\u2028",
    "😀",
]
TEXTS = st.lists(st.sampled_from(CHARACTERS), max_size=4).map("".join)


def spellings(character: str) -> list[str]:
    """The ways in which JSON may write a character."""
    digits = character.encode("utf-16-be").hex()
    escapes = [
        "".join(f"\\u{digits[at : at + 4]}" for at in range(0, len(digits), 4)) for digits in (digits, digits.upper())
    ]
    plain = [character] * (character >= " " and character not in '"\\')
    return [*escapes, *plain, *(SHORT[each] for each in character if each in SHORT)]


@st.composite
def spelled(draw, text: str) -> str:
    """A text as a string of JSON."""
    return f'"{"".join(draw(st.sampled_from(spellings(character))) for character in text)}"'
