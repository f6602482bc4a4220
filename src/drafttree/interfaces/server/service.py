"""Routes other than those for texts: models, tokens in vLLM's form, health, and metrics for Prometheus."""

import asyncio
import time
from typing import Any, Self

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field, model_validator

from drafttree.interfaces.server.body_reading import Body, BodyRoute
from drafttree.interfaces.server.chat import prompt_of
from drafttree.interfaces.server.errors import ServerError, blaming, shutting_down
from drafttree.interfaces.server.fields import ListOf, RequestModel, fields_of, mistake
from drafttree.interfaces.server.reply import warning
from drafttree.interfaces.server.request import ChatRequest, Messages, PromptEnd, Tools
from drafttree.interfaces.server.sampling import TokenId, check_tokens
from drafttree.interfaces.server.serving import Serving, ServingContext
from drafttree.text.prompt_length import check_characters

router = APIRouter(route_class=BodyRoute)
START_TIME = int(time.time())


@router.get("/v1/models", tags=["models"])
async def list_models(serving: Serving) -> dict[str, Any]:
    """List the served model under each of its names."""
    return {"object": "list", "data": [_model_entry(name, serving) for name in serving.settings.model_names]}


@router.get("/v1/models/{model:path}", tags=["models"])
async def show_model(model: str, serving: Serving) -> dict[str, Any]:
    """The served model."""
    serving.check_model(model)
    return _model_entry(model, serving)


@router.post("/v1/embeddings", include_in_schema=False)
async def refuse_embeddings() -> None:
    """Refuse embeddings with a message of their own, instead of the one for an unknown route."""
    raise ServerError(404, "embeddings are not served: the model writes text", code="not_served")


def _model_entry(name: str, serving: ServingContext) -> dict[str, Any]:
    """The model's entry in the list, under one of its names. Further fields have the names of vLLM and OpenRouter."""
    card = {"id": name, "object": "model", "created": START_TIME, "owned_by": "drafttree"}
    modalities = ["text", "image"] if serving.images.are_read else ["text"]
    return card | {"max_model_len": serving.decoder.target.context, "input_modalities": modalities}


@router.head("/health", include_in_schema=False)
@router.get("/health", tags=["health"])
async def health(serving: Serving) -> dict[str, Any]:
    """Whether the server lives. If its engine has died (503), only a restart helps."""
    if serving.engine.closed:
        raise ServerError(503, "the engine has died; the log says why", code="engine_dead")
    return {"status": "ok"}


@router.head("/ready", include_in_schema=False)
@router.get("/ready", tags=["health"])
async def ready(serving: Serving) -> dict[str, Any]:
    """Whether the server accepts requests. It does not while it shuts down, or after its engine has died (503)."""
    if serving.admission.draining:
        raise shutting_down()
    return await health(serving)


@router.get("/metrics", tags=["metrics"], response_class=PlainTextResponse)
def metrics(serving: Serving) -> Response:
    """All metrics as text. OpenMetrics is not offered, because it would change names with colons."""
    return Response(generate_latest(serving.metrics.registry), media_type=CONTENT_TYPE_LATEST)


class PromptOrMessages(RequestModel):
    """A request with either a prompt or messages."""

    model: str | None = Field(None, description="name of the served model, which is the default")
    prompt: str | None = Field(None, description="a text")
    messages: Messages | None = Field(None, description="a conversation, instead of a text")

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise mistake("one_form", "give either prompt or messages", "prompt")
        return self


class TokenizeRequest(PromptOrMessages, PromptEnd, fields_of("tokenize")):
    """A text or a conversation whose tokens are wanted."""

    tools: Tools | None = Field(None, description="functions to describe to the model; only with messages")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="variables of the chat template; only with messages"
    )
    add_special_tokens: bool | None = Field(
        None, description="add the tokenizer's special tokens (default: true); a conversation has those of its template"
    )
    return_token_strs: bool | None = Field(None, description="also return the tokens as strings")

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        for name in ("tools", "chat_template_kwargs", "continue_final_message"):
            if self.messages is None and getattr(self, name):
                raise mistake("no_messages", "this belongs to messages, not to a prompt", name)
        if self.messages is not None and self.add_special_tokens:
            raise mistake(
                "not_served",
                "the chat template adds the special tokens of a conversation; leave it out",
                "add_special_tokens",
            )
        return self


class TokenizeReply(BaseModel):
    """The tokens of a text; `max_model_len` is the model's context, null if it has no limit."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(RequestModel):
    """Tokens whose text is wanted."""

    model: str | None = Field(None, description="name of the served model, which is the default")
    tokens: ListOf[TokenId] = Field(description="token ids")


class DetokenizeReply(BaseModel):
    """The text of tokens, special ones included."""

    prompt: str


@router.post("/tokenize", tags=["tokens"])
async def tokenize(request: Body[TokenizeRequest], serving: Serving, response: Response) -> TokenizeReply:
    """Tokenize a text, or a conversation up to the beginning of the next answer."""
    serving.check_model(request.model)
    tokenizer = _tokenizer(serving)
    tokens = await _tokens(request, tokenizer, serving)
    names = await asyncio.to_thread(tokenizer.convert_ids_to_tokens, tokens) if request.return_token_strs else None
    response.headers.update(await warning(request, serving))
    context = serving.decoder.target.context
    return TokenizeReply(count=len(tokens), max_model_len=context, tokens=tokens, token_strs=names)


@router.post("/detokenize", tags=["tokens"])
async def detokenize(request: Body[DetokenizeRequest], serving: Serving) -> DetokenizeReply:
    """The text of tokens."""
    serving.check_model(request.model)
    check_tokens("tokens", request.tokens, serving.decoder)
    return DetokenizeReply(prompt=await asyncio.to_thread(_tokenizer(serving).decode, request.tokens))


async def _tokens(request: TokenizeRequest, tokenizer: Any, serving: ServingContext) -> list[int]:
    """The token ids of a text or a conversation."""
    if request.messages is None:
        return await asyncio.to_thread(_tokens_of_text, request, tokenizer, serving.decoder.target.context)
    names = ("messages", "tools", "chat_template_kwargs", *PromptEnd.model_fields)
    chat = ChatRequest.of(request, "chat", (), **{name: getattr(request, name) for name in names})
    return (await prompt_of(chat, serving)).tokens


def _tokens_of_text(request: TokenizeRequest, tokenizer: Any, context: int | None) -> list[int]:
    text = request.prompt or ""
    with blaming("prompt"):
        check_characters(text, tokenizer, context)
    return list(tokenizer(text, add_special_tokens=request.add_special_tokens is not False)["input_ids"])


def _tokenizer(serving: ServingContext) -> Any:
    """The model's tokenizer.

    Raises:
        ServerError: the model has no tokenizer.
    """
    if serving.decoder.tokenizer is None:
        raise ServerError(400, "the served model has no tokenizer; it takes and gives token ids")
    return serving.decoder.tokenizer
