"""/tokenize and /detokenize: texts as the model's tokens, and back, as vLLM has them."""

import asyncio
from typing import Any

from fastapi import APIRouter

from drafttree.engine.prompt_length import check_characters
from drafttree.interfaces.server.chat_prompt import read_prompt
from drafttree.interfaces.server.dialect.model_dialect import Dialect
from drafttree.interfaces.server.engine_options import check_tokens
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.protocol.tokens import (
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeReply,
    TokenizeRequest,
)
from drafttree.interfaces.server.serving import Serving, ServingContext

router = APIRouter(tags=["tokens"])


@router.post("/tokenize")
async def tokenize(request: TokenizeRequest, serving: Serving) -> TokenizeReply:
    """The tokens of a text, or of a conversation up to where the next answer begins."""
    serving.check_model(request.model)
    tokenizer = _tokenizer(serving)
    context = serving.decoder.target.context
    tokens = await asyncio.to_thread(_tokens, request, tokenizer, serving.dialect, context)
    names = tokenizer.convert_ids_to_tokens(tokens) if request.return_token_strs else None
    return TokenizeReply(count=len(tokens), max_model_len=context, tokens=tokens, token_strs=names)


@router.post("/detokenize")
async def detokenize(request: DetokenizeRequest, serving: Serving) -> DetokenizeReply:
    """The text of tokens."""
    serving.check_model(request.model)
    check_tokens("tokens", request.tokens, serving.decoder)
    return DetokenizeReply(prompt=await asyncio.to_thread(_tokenizer(serving).decode, request.tokens))


def _tokens(request: TokenizeRequest, tokenizer: Any, dialect: Dialect, context: int | None) -> list[int]:
    if request.chat:
        return read_prompt(request.chat, tokenizer, dialect, context)
    text = request.prompt or ""
    check_characters(text, tokenizer, context)
    return list(tokenizer(text, add_special_tokens=request.add_special_tokens is not False)["input_ids"])


def _tokenizer(serving: ServingContext) -> Any:
    """The model's tokenizer.

    Raises:
        ServerError: it has none.
    """
    if serving.decoder.tokenizer is None:
        raise ServerError(400, "the served model has no tokenizer; it takes and gives token ids")
    return serving.decoder.tokenizer
