"""What is said of pydantic's errors, whatever a release of it tells beside them."""

import re
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from drafttree.interfaces.server.errors import PLAIN, refusal_of

BOUNDS = {kind: {*re.findall(r"{(\w+)}", words)} - {"length"} for kind, words in PLAIN.items()}
"""By type of error, the names of what our words take from pydantic's context."""
OWN = "Pydantic's own words"


class Part(BaseModel):
    """A part of a request."""

    x: int


MISTAKES: list[tuple[str, Any, Any, str]] = [
    ("dict_type", dict[str, int], 3, "give an object, not 3"),
    ("model_type", Part, 3, "give an object, not 3"),
    ("missing", Part, {}, "this is required"),
    ("too_short", Annotated[list[int], Field(min_length=2)], [1], "give at least 2 item"),
    ("too_long", Annotated[list[int], Field(max_length=2)], [1] * 5, "give at most 2 items, not 5"),
    ("too_long", Annotated[dict[str, int], Field(max_length=1)], {"a": 1, "b": 2}, "give at most 1 items, not 2"),
    ("list_type", list[int], "a", 'give a list, not "a"'),
    ("bool_type", bool, "a", 'give true or false, not "a"'),
    ("int_type", int, 1.5, "give an integer, not 1.5"),
    ("float_type", float, "a", 'give a number, not "a"'),
    ("finite_number", float, float("inf"), "give a finite number, not Infinity"),
    ("string_type", str, True, "give a text, not true"),
    ("string_too_short", Annotated[str, Field(min_length=2)], "a", 'give at least 2 character, not "a"'),
    ("string_too_long", Annotated[str, Field(max_length=2)], "abc", 'give at most 2 characters, not "abc"'),
    ("string_pattern_mismatch", Annotated[str, Field(pattern="^b$")], "a", 'give a name that matches ^b$, not "a"'),
    ("literal_error", Literal["a", "b"], "c", "give 'a' or 'b', not \"c\""),
    ("literal_error", Literal[True], False, "give true, not false"),
    ("greater_than", Annotated[float, Field(gt=2)], 1, "give more than 2, not 1"),
    ("greater_than_equal", Annotated[float, Field(ge=0.5)], 0, "give 0.5 or more, not 0"),
    ("less_than", Annotated[int, Field(lt=2)], 2, "give less than 2, not 2"),
    ("less_than_equal", Annotated[int, Field(le=2)], 3, "give 2 or less, not 3"),
]
"""By type of error, a type, a value that is none of it, and what is said; `model_attributes_type` is `model_type`."""


def message_of(kind: str, context: dict) -> str:
    return refusal_of({"type": kind, "loc": ("x",), "msg": OWN, "input": ["a"] * 17, "ctx": context}).message


@pytest.mark.parametrize("kind", PLAIN)
def test_a_bound_that_pydantic_does_not_tell_is_left_to_its_own_words(kind):
    contexts = [{}, dict.fromkeys(BOUNDS[kind]), {f"{name}_of_tomorrow": 16 for name in BOUNDS[kind]}]
    for context in contexts if BOUNDS[kind] else ():
        assert message_of(kind, context).startswith(f"x: {OWN}"), context
    assert OWN not in message_of(kind, dict.fromkeys(BOUNDS[kind], 16))


@pytest.mark.parametrize("more", [{}, {"actual_length": None}, {"actual_length": 16}])
def test_how_many_items_there_are_is_counted_here(more):
    assert message_of("too_long", {"max_length": 16, **more}) == "x: give at most 16 items, not 17"


def test_the_installed_pydantic_tells_every_type_and_bound_that_has_words_here():
    assert {kind for kind, *_ in MISTAKES} == {*PLAIN} - {"model_attributes_type"}
    config = ConfigDict(strict=True, allow_inf_nan=False)
    for kind, annotation, value, words in MISTAKES:
        adapter = TypeAdapter(annotation, config=None if annotation is Part else config)
        with pytest.raises(ValidationError) as caught:
            adapter.validate_python(value)
        refusal = refusal_of(caught.value.errors()[0])
        assert (refusal.code, refusal.message.partition(": ")[2]) == (kind, words)
