"""instructor, as it is: by tools and by schemas, over chats and over responses."""

from typing import Literal

import pytest
from pydantic import BaseModel, field_validator

from helpers.client_questions import HELLO, City, package

pytestmark = pytest.mark.slow
MODES = {
    "TOOLS": "max_tokens",
    "TOOLS_STRICT": "max_tokens",
    "JSON_SCHEMA": "max_tokens",
    "RESPONSES_TOOLS": "max_output_tokens",
}
"""Ways to ask, and what limits an answer there."""


@pytest.fixture(scope="module")
def instructor():
    return package("instructor")


@pytest.fixture
def made(instructor, client):
    """A client that asks in one of the ways."""
    return lambda mode: instructor.from_openai(client, mode=instructor.Mode[mode])


def options(mode: str, **more) -> dict:
    return {"model": "embedded", "messages": HELLO, "temperature": 0, MODES[mode]: 120, "max_retries": 0, **more}


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_has_a_form_whole_and_as_a_stream(made, mode):
    whole = made(mode).create(response_model=City, **options(mode))
    parts = [*made(mode).create_partial(response_model=City, **options(mode))]
    assert isinstance(whole, City)
    assert parts[-1].city == whole.city
    assert len(parts) > 1


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_is_refused_is_told_so_and_made_again(made, mode):
    asked = []

    class Refusing(BaseModel):
        """The weather is wanted there."""

        city: Literal["Paris", "Rome"]

        @field_validator("city")
        @classmethod
        def refuse_once(cls, city: str) -> str:
            asked.append(city)
            if len(asked) == 1:
                raise ValueError("ask once more")
            return city

    answer = made(mode).create(response_model=Refusing, **options(mode, max_retries=1))
    assert asked[1:] == [answer.city]


def test_the_servers_errors_come_through(made):
    with pytest.raises(Exception, match="the model 'gpt-4' is not served"):
        made("TOOLS").create(response_model=City, **options("TOOLS", model="gpt-4"))
