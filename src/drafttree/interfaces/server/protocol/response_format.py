"""The form of a reply that a request may ask for."""

from typing import Annotated, Any, Literal

from pydantic import Field

from drafttree.interfaces.server.protocol.request_model import RequestModel

Schema = dict[str, Any]
"""A JSON schema."""
NAME = r"^[a-zA-Z0-9_-]{1,64}$"


class TextFormat(RequestModel):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(RequestModel):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchema(RequestModel):
    """A schema and its name, which has no effect on the reply."""

    name: Annotated[str, Field(pattern=NAME)]
    body: Annotated[Schema, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(RequestModel):
    """JSON that conforms to a schema; it does so whether or not it is to be strict."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
