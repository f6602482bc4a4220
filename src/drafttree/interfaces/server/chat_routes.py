"""/v1/chat/completions."""

import asyncio
from functools import partial
from typing import Any

from fastapi import APIRouter, Response

from drafttree.engine.chat import turn_end
from drafttree.interfaces.server.answer import Answer
from drafttree.interfaces.server.chat_prompt import read_prompt
from drafttree.interfaces.server.choices import Choices
from drafttree.interfaces.server.engine_options import engine_options, keeps_beginnings, seeds
from drafttree.interfaces.server.model_routes import check_model
from drafttree.interfaces.server.protocol.chat_reply import ChatCompletion, ChatCompletionChunk
from drafttree.interfaces.server.protocol.chat_request import ChatRequest
from drafttree.interfaces.server.reply import Reply
from drafttree.interfaces.server.reply_head import reply_head
from drafttree.interfaces.server.serving import Serving, ServingContext
from drafttree.interfaces.server.token_names import TokenNames
from drafttree.interfaces.server.tool_calls import ToolCallReader

router = APIRouter(prefix="/v1/chat", tags=["chat"])


@router.post("/completions", response_model=ChatCompletion)
async def answer(request: ChatRequest, serving: Serving) -> Response:
    """Answer a conversation, at once or as a stream of chunks."""
    check_model(serving, request.model)
    serving.admission.check()
    prompt, options = await asyncio.to_thread(_prepare, request, serving)
    names = await asyncio.to_thread(TokenNames.of, serving.decoder) if request.logprobs else None
    choices = await Choices.submit(serving, [prompt], [options], seeds(request))
    head = reply_head("chatcmpl", serving)
    reply = Reply(
        choices,
        [Answer(index, names, _calls(request)) for index in range(request.choices)],
        partial(ChatCompletionChunk, object="chat.completion.chunk", **head),
        partial(ChatCompletion, object="chat.completion", **head),
    )
    return await reply.response(request)


def _calls(request: ChatRequest) -> ToolCallReader | None:
    """What reads the calls of an answer, if it may have any."""
    return ToolCallReader(speaks=not request.must_call) if request.callable_tools else None


def _prepare(request: ChatRequest, serving: ServingContext) -> tuple[list[int], dict[str, Any]]:
    """The token ids of the conversation, and the options of its answers."""
    decoder = serving.decoder
    prompt = read_prompt(request, decoder.tokenizer)
    options = engine_options(request, decoder, len(prompt), request.limit)
    if end := turn_end(decoder.tokenizer):
        options["stop"] = [*(request.stop or ()), end]
    if keeps_beginnings(decoder):
        options["reuse_prefix"] = True
    return prompt, options | {"logprobs": request.wanted_logprobs}
