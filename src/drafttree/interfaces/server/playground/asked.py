"""What the page asks for."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from drafttree.engine.chat import turn_end
from drafttree.engine.prompt import Prompt


class Message(BaseModel):
    """A turn of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: str


class Asked(BaseModel):
    """A text that the page wants, and how.

    Attributes:
        prompt: to go on from; or else `messages`, to be answered.
        max_tokens: to write at most.
        temperature: 0 is greedy.
        top_p: keep the most probable tokens up to this probability.
        seed: of the draws, None for another one each time.
        stop: strings that end the text.
        speculate: False to write it plainly.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] = 128
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=4)] = []
    speculate: bool = True

    @model_validator(mode="after")
    def _check_one_prompt(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self

    def decoder_prompt(self) -> Prompt:
        """The prompt as `Engine.submit` takes it."""
        if self.messages is not None:
            return [message.model_dump() for message in self.messages]
        assert self.prompt is not None
        return self.prompt

    def options(self, tokenizer: Any) -> dict[str, Any]:
        """The options of `Engine.submit`."""
        end = turn_end(tokenizer) if self.messages else None
        return {
            "max_new_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": [*self.stop, *([end] if end else [])] or None,
            "speculate": self.speculate,
        }
