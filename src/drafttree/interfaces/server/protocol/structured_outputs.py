"""vLLM's way to say what form a reply has."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from drafttree.interfaces.server.protocol.request_model import RequestModel, mistake
from drafttree.interfaces.server.protocol.response_format import Schema


class StructuredOutputs(RequestModel):
    """One form that the whole reply must have.

    Attributes:
        json_schema: named `json` in requests.
        regex: matches the whole reply.
        choice: the replies there may be.
        grammar: EBNF in GBNF syntax.
        json_object: True for any JSON object.
    """

    json_schema: Annotated[Schema | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    grammar: str | None = None
    json_object: Literal[True] | None = None

    @model_validator(mode="after")
    def _check_one(self) -> "StructuredOutputs":
        if sum(value is not None for _, value in self) != 1:
            raise mistake("one_form", "give exactly one of json, regex, choice, grammar and json_object")
        return self
