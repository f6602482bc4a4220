"""What the clients that people use are asked in tests, and why they are not where a test has none."""

from typing import Any, Literal

import pytest
from pydantic import BaseModel

QUESTION = "Is it cold in Paris?"
HELLO = [{"role": "user", "content": QUESTION}]


class City(BaseModel):
    """A form of answers, and what the tool takes."""

    city: Literal["Paris", "Rome"]


CITY = {**City.model_json_schema(), "additionalProperties": False}


def package(name: str) -> Any:
    """A client's package; the test is skipped where it is not installed."""
    return pytest.importorskip(name, reason=f"{name} is not installed; make test-clients installs it")
