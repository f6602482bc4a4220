"""What all parts of a request have in common: unknown fields, other types and numbers that are none are refused."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from drafttree.constraints.refusals import Refused


class RequestModel(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


def mistake(kind: str, message: str) -> PydanticCustomError:
    """The error for a value that is wrong in a way of ours; its message may have braces."""
    return PydanticCustomError(kind, "{message}", {"message": message})  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class NotServed:
    """Marks a field of OpenAI's or vLLM's that is refused by name, unless its value asks for nothing.

    Attributes:
        advice: what to do instead.
        neutral: values besides None and False that ask for nothing.
    """

    advice: str
    neutral: tuple[Any, ...] = ()

    def check(self, value: object) -> None:
        """Refuse a value that asks for something."""
        if value not in ([], {}) and not Refused(self.advice, self.neutral).accepts(value):
            raise mistake("not_served", f"this is not served; {self.advice}")

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": [None, False, *self.neutral], "description": f"Not served: {self.advice}."}
