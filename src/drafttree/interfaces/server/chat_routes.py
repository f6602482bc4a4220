"""/v1/chat/completions: the prompt in the words of the model's chat template, and the answers."""

import asyncio
from functools import partial
from typing import Any

from fastapi import APIRouter, Response

from drafttree.engine.chat import turn_end
from drafttree.interfaces.server.answer import Answer
from drafttree.interfaces.server.chat_prompt import read_prompt
from drafttree.interfaces.server.choices import Choices
from drafttree.interfaces.server.dialect.model_dialect import Dialect
from drafttree.interfaces.server.dialect.reader import AnswerReader, Thinks
from drafttree.interfaces.server.engine_options import engine_options, seeds
from drafttree.interfaces.server.protocol.replies import ChatCompletion, ChatCompletionChunk
from drafttree.interfaces.server.protocol.requests import ChatRequest
from drafttree.interfaces.server.reply import STREAMED, Reply, reply_head
from drafttree.interfaces.server.reply_grammar import chat_grammar
from drafttree.interfaces.server.serving import Serving, ServingContext
from drafttree.interfaces.server.text_pieces import TokenNames

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
        reads_thoughts=serving.dialect.thought_name is not None,
    )
    return await reply.response(request)


async def begin_answers(request: ChatRequest, serving: ServingContext) -> tuple[Choices, list[Answer]]:
    """Let the answers to a conversation into the engine: how it writes them, and how they are read.

    Raises:
        ServerError: as for `check_model`, `Admission.check` and `Choices.submit`.
        DraftTreeError: as for `read_prompt` and `engine_options`.
    """
    serving.check_model(request.model)
    serving.admission.check()
    prompt, thinks, options = await asyncio.to_thread(_prepare, request, serving)
    names = await asyncio.to_thread(TokenNames, serving.decoder) if request.logprobs else None
    choices = await Choices.submit(serving, [prompt], [options], seeds(request))
    readers = [_reader(request, serving.dialect, thinks) for _ in range(request.choices)]
    choices.answers = [Answer(index, names, reader) for index, reader in enumerate(readers)]
    return choices, choices.answers


def _prepare(request: ChatRequest, serving: ServingContext) -> tuple[list[int], Thinks, dict[str, Any]]:
    """The token ids of the conversation, whether its answers begin with thinking, and their options."""
    decoder, dialect = serving.decoder, serving.dialect
    prompt = read_prompt(request, decoder.tokenizer, dialect, decoder.target.context)
    thinks = dialect.thinks(decoder.tokenizer, prompt)
    grammar = chat_grammar(request, dialect, thinks)
    options = engine_options(request, decoder, len(prompt), request.limit, grammar)
    end = turn_end(decoder.tokenizer)
    if end and not request.has_form:  # a form ends by itself, and may not be cut while it is being thought about
        options["stop"] = [*(request.stop or ()), end]
    if spelled := dialect.spelled_tokens(decoder.tokenizer, calls=bool(request.callable_tools)):
        options["spelled_tokens"] = spelled
    return prompt, thinks, options | {"logprobs": request.wanted_logprobs}


def _reader(request: ChatRequest, dialect: Dialect, thinks: Thinks) -> AnswerReader:
    """What reads an answer."""
    tools = request.callable_tools
    schemas = {name: tool.parameters for name, tool in tools.items()}
    calls = dialect.calls if tools else None
    return AnswerReader(dialect.thinking, calls, thinks=thinks, speaks=not request.must_call, schemas=schemas)
