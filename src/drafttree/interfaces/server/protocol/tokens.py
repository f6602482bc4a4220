"""The requests to /tokenize and /detokenize, and their replies: vLLM's."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, model_validator

from drafttree.interfaces.server.protocol.messages import MAX_TOOLS, Messages, PromptEnd, Tool
from drafttree.interfaces.server.protocol.request_fields import NotServed, RequestModel, TokenId, mistake
from drafttree.interfaces.server.protocol.requests import ChatRequest


class TokenizeRequest(PromptEnd):
    """A text or a conversation whose tokens are wanted."""

    model: str | None = Field(None, description="name of the served model, which is the default")
    prompt: str | None = Field(None, description="a text")
    messages: Messages | None = Field(None, description="a conversation, instead of a text")
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="functions to describe to the model; only with messages"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="variables of the chat template; only with messages"
    )
    add_special_tokens: bool | None = Field(
        None, description="add the tokenizer's special tokens (default: true); a conversation has those of its template"
    )
    return_token_strs: bool | None = Field(None, description="also return the tokens as strings")
    chat_template: Annotated[object, NotServed("the server's own template is used")] = None
    mm_processor_kwargs: Annotated[object, NotServed("the model reads text")] = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise mistake("one_form", "give either prompt or messages")
        if self.messages is None and (self.tools or self.chat_template_kwargs):
            raise mistake("no_messages", "tools and chat_template_kwargs belong to messages")
        if self.messages is None and self.continue_final_message:
            raise mistake("no_messages", "continue_final_message belongs to messages")
        if self.messages is not None and self.add_special_tokens:
            raise mistake("not_served", "a conversation has the special tokens of its template and no others")
        return self

    @property
    def chat(self) -> ChatRequest | None:
        """The conversation, None for a text."""
        if self.messages is None:
            return None
        names = ("messages", "tools", "chat_template_kwargs", *PromptEnd.model_fields)
        return ChatRequest.model_validate({name: getattr(self, name) for name in names})


class TokenizeReply(BaseModel):
    """The tokens of a text; `max_model_len` is the model's context, null where it has no end."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(RequestModel):
    """Tokens whose text is wanted."""

    model: str | None = Field(None, description="name of the served model, which is the default")
    tokens: list[TokenId] = Field(description="token ids")


class DetokenizeReply(BaseModel):
    """The text of tokens, special ones included."""

    prompt: str
