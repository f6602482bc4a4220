"""/v1/chat/completions: the prompt in the words of the model's chat template, and the answers."""

import asyncio
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Response
from transformers import PreTrainedTokenizerBase

from drafttree.engine.chat import render_chat, turn_end
from drafttree.interfaces.server.answer import Answer
from drafttree.interfaces.server.choices import Choices
from drafttree.interfaces.server.engine_options import engine_options, seeds
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.protocol.messages import Message, Tool, ToolCallParam
from drafttree.interfaces.server.protocol.replies import ChatCompletion, ChatCompletionChunk
from drafttree.interfaces.server.protocol.requests import ChatRequest
from drafttree.interfaces.server.reply import STREAMED, Reply, reply_head
from drafttree.interfaces.server.serving import Serving, ServingContext
from drafttree.interfaces.server.text_pieces import TokenNames
from drafttree.interfaces.server.tool_calls import BEGIN, BETWEEN, ToolCallReader, call_text

TOOLS_INTRODUCTION = "You may call these functions, described by one line of JSON each:"
HOW_TO_CALL = f"To call one, write its name and arguments in this form:\n{call_text('NAME', '{...}')}"
OWN_ARGUMENTS = {"messages", *inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters}
"""What `apply_chat_template` itself takes or sets, so that a request may not."""
router = APIRouter(prefix="/v1/chat", tags=["chat"])


@router.post("/completions", response_model=ChatCompletion, responses=STREAMED)
async def answer(request: ChatRequest, serving: Serving) -> Response:
    """Answer a conversation, at once or as a stream of chunks."""
    choices, answers = await begin_answers(request, serving)
    head = reply_head("chatcmpl", request, serving)
    reply = Reply(
        choices,
        answers,
        partial(ChatCompletionChunk, object="chat.completion.chunk", **head),
        partial(ChatCompletion, object="chat.completion", **head),
    )
    return await reply.response(request)


async def begin_answers(request: ChatRequest, serving: ServingContext) -> tuple[Choices, list[Answer]]:
    """Let the answers to a conversation into the engine: how it writes them, and how they are read.

    Raises:
        ServerError: as for `check_model`, `Admission.check` and `Choices.submit`.
        DraftTreeError: as for `render_chat` and `engine_options`.
    """
    serving.check_model(request.model)
    serving.admission.check()
    prompt, options = await asyncio.to_thread(_prepare, request, serving)
    names = await asyncio.to_thread(TokenNames, serving.decoder) if request.logprobs else None
    choices = await Choices.submit(serving, [prompt], [options], seeds(request))
    return choices, [Answer(index, names, _calls(request)) for index in range(request.choices)]


def _prepare(request: ChatRequest, serving: ServingContext) -> tuple[list[int], dict[str, Any]]:
    """The token ids of the conversation, and the options of its answers."""
    decoder = serving.decoder
    prompt = read_prompt(request, decoder.tokenizer)
    options = engine_options(request, decoder, len(prompt), request.limit)
    if end := turn_end(decoder.tokenizer):
        options["stop"] = [*(request.stop or ()), end]
    return prompt, options | {"logprobs": request.wanted_logprobs}


def _calls(request: ChatRequest) -> ToolCallReader | None:
    """What reads the calls of an answer, if it may have any."""
    return ToolCallReader(speaks=not request.must_call) if request.callable_tools else None


def read_prompt(request: ChatRequest, tokenizer: Any) -> list[int]:
    """The token ids of a conversation.

    A template that does not know how calls are written here (see `tool_calls`) is told of the tools by the system
    message, and sees calls and their results as text.

    Raises:
        ServerError: `chat_template_kwargs` has arguments that are no variables of a template.
        InputError: as for `render_chat`.
    """
    variables = dict(request.chat_template_kwargs or {})
    if wrong := next((name for name in variables if name in OWN_ARGUMENTS), None):
        raise ServerError(400, f"{wrong!r} is no variable of a chat template", param="chat_template_kwargs")
    variables |= request.end_options
    template = str(getattr(tokenizer, "chat_template", ""))
    tools = [] if request.tool_choice == "none" else request.tools or []
    if "tools" in template and BEGIN in template:
        messages = [_native(message, template) for message in request.messages]
        described = [tool.model_dump(exclude_none=True, exclude={"cache_control"}) for tool in tools] or None
        return render_chat(messages, tokenizer, **{**variables, "tools": described})
    messages = [_as_text(message, template) for message in request.messages]
    return render_chat(_with_tools(messages, tools), tokenizer, **variables)


def _role(message: Message, template: str) -> str:
    """The role, "system" for "developer" where a template does not know that newer name."""
    return "system" if message.role == "developer" and message.role not in template else message.role


def _native(message: Message, template: str) -> dict[str, Any]:
    """A message as templates that know tools want it."""
    found = message.model_dump(include={"name", "tool_call_id"}, exclude_none=True)
    found |= {"role": _role(message, template), "content": message.text}
    if message.tool_calls:
        found["tool_calls"] = [_native_call(call) for call in message.tool_calls]
    return found


def _native_call(call: ToolCallParam) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.parsed_arguments}
    return {"id": call.id, "type": call.type, "function": function}


def _as_text(message: Message, template: str) -> dict[str, Any]:
    """A message without calls and results of tools, which become text."""
    if message.role == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message.text}\n</tool_response>"}
    calls = [call_text(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    named = {} if message.name is None else {"name": message.name}
    content = BETWEEN.join(filter(None, [message.text, *calls]))
    return {"role": _role(message, template), "content": content, **named}


def _with_tools(messages: Sequence[Mapping[str, Any]], tools: Iterable[Tool]) -> list[Mapping[str, Any]]:
    """The messages, the first of which tells of the tools if there are any."""
    described = [json.dumps(tool.function.model_dump(exclude_none=True, exclude={"strict"})) for tool in tools]
    if not described:
        return [*messages]
    told = "\n".join([TOOLS_INTRODUCTION, *described, HOW_TO_CALL])
    first, rest = messages[0], messages[1:]
    if first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{told}"}, *rest]
    return [{"role": "system", "content": told}, *messages]
