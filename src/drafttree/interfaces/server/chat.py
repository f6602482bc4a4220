"""/v1/chat/completions: conversations, rendered by the model's chat template, and their answers."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any

from fastapi import APIRouter, Response

from drafttree.engine.generation import Chunk
from drafttree.engine.image_prompt import EncodedPrompt
from drafttree.interfaces.server.body_reading import Body, BodyRoute
from drafttree.interfaces.server.chat_prompt import read_prompt
from drafttree.interfaces.server.dialect.reader import AnswerReader, CallArguments, CallBegun, Said, Thought
from drafttree.interfaces.server.errors import blaming
from drafttree.interfaces.server.grammar import chat_grammar
from drafttree.interfaces.server.reply import STREAMED, Completions, Described, reply
from drafttree.interfaces.server.request import ChatRequest, FunctionDefinition
from drafttree.interfaces.server.sampling import engine_options
from drafttree.interfaces.server.serving import Serving, ServingContext
from drafttree.interfaces.server.texts import Ended, Json, Text, Texts
from drafttree.text.chat import turn_end
from drafttree.text.detokenizer import check_stop

logger = logging.getLogger("drafttree")
router = APIRouter(route_class=BodyRoute, prefix="/v1/chat", tags=["chat"])


class ChatCompletion(Described):
    """`openai.types.chat.ChatCompletion`, with the fields below; messages may have `reasoning_content`."""


@router.post("/completions", response_model=ChatCompletion, responses=STREAMED)
async def answer(request: Body[ChatRequest], serving: Serving) -> Response:
    """Answer a conversation, at once or as a stream of chunks."""
    texts = await begin_answers(request, serving)
    choices = [ChatChoice(text, keeps_scores=not request.stream) for text in texts.all]
    return await reply(request, serving, texts, Completions(request, serving, texts, choices, chat=True))


async def begin_answers(request: ChatRequest, serving: ServingContext, **submit_options: Any) -> Texts:
    """Submit the answers to a conversation.

    Args:
        request: the client's request.
        serving: the served model.
        **submit_options: further options of the texts, as for `Admission.submit`.

    Raises:
        ServerError: as for `check_model`, `Admission.check` and `Texts.submit`.
        DraftTreeError: as for `read_prompt` and `engine_options`.
    """
    serving.check_model(request.model)
    serving.admission.check()
    if request.left_out:
        _warn_of(request.left_out)
    prompt = await prompt_of(request, serving)
    options, reader = await asyncio.to_thread(_prepare, request, serving, prompt)
    return await Texts.submit(request, serving, [prompt], [options], reader, **submit_options)


async def prompt_of(request: ChatRequest, serving: ServingContext) -> EncodedPrompt:
    """The prompt of a conversation, with its images.

    Raises:
        ServerError: as for `ServedImages.prepare` and `read_prompt`.
    """
    images = await serving.images.prepare(request)
    decoder = serving.decoder
    template = decoder.tokenizer, serving.dialect, decoder.target.context, serving.control_tokens
    return await asyncio.to_thread(read_prompt, request, *template, images)


@lru_cache(maxsize=64)
def _warn_of(tools: tuple[str, ...]) -> None:
    """Log that tools are left out. Every turn of a conversation repeats its tools, so each list is logged only once."""
    logger.warning("tools that this server cannot run are left out: %s", ", ".join(tools))


def _prepare(
    request: ChatRequest, serving: ServingContext, prompt: EncodedPrompt
) -> tuple[Json, Callable[[], AnswerReader]]:
    """The options of the answers to a conversation, and a function that makes a reader for an answer."""
    decoder = serving.decoder
    dialect = serving.dialect
    tools = request.callable_tools
    thinks = dialect.thinks(decoder.tokenizer, prompt.tokens)
    grammar = chat_grammar(request, dialect, thinks)
    options = engine_options(request, decoder, prompt.length, request.limit)
    end = turn_end(decoder.tokenizer)
    # A grammar ends the text by itself, and a stop string could cut off the thinking before it.
    if end and not request.has_form and not request.ignore_eos:
        options["stop"] = [*(request.stop or ()), end]
    spelled_tokens = dialect.spelled_tokens(decoder.tokenizer, decoder.target.vocab_size, calls=bool(tools))
    with blaming(request.called("stop")):
        check_stop(request.stop or (), decoder.tokenizer, spelled_tokens)
    answer_options = {"spelled_tokens": spelled_tokens, "logprobs": request.wanted_logprobs, "grammar": grammar}
    answer_options |= {"unstopped": dialect.unstopped(thinks)}
    calls = dialect.calls if tools else None
    schemas = {tool.name: tool.parameters for tool in tools.values()}
    reader = partial(
        AnswerReader,
        dialect.thinking,
        calls,
        thinks=thinks,
        speaks=not request.must_call,
        schemas=schemas,
        single_call=request.parallel_tool_calls is False or dialect.one_call,
        untagged=[] if calls is None or request.has_form else calls.untagged_forms(_not_strict(tools.values())),
    )
    reader()  # compiles its patterns in this thread: hundreds of names take a third of a second
    return options | answer_options, reader


def _not_strict(tools: Iterable[FunctionDefinition]) -> list[str]:
    """The names of tools that are not strict. Only these can be called without marks, where no grammar applies."""
    return [tool.name for tool in tools if not tool.strict]


class ChatChoice:
    """Writes one answer.

    Args:
        text: the answer.
        keeps_scores: whether to keep log-probabilities for the whole reply; a stream does not need them.
    """

    def __init__(self, text: Text, *, keeps_scores: bool) -> None:
        self._text = text
        self._keeps_scores = keeps_scores
        self._said = ""
        self._thoughts = ""
        self._calls = list[Json]()
        self._scores = list[Json]()
        self._reason = None

    def add(self, chunk: Chunk) -> Iterator[Json]:
        for answer_part, scores in self._text.parts(chunk):
            self._scores += scores if self._keeps_scores else ()
            match answer_part:
                case None:
                    yield self._chunk({}, scores)
                case Said(text=text):
                    self._said += text
                    yield self._chunk({"content": text}, scores)
                case Thought(text=text):
                    self._thoughts += text
                    yield self._chunk({"reasoning_content": text})
                case CallBegun(index=index, name=name, id=id_):
                    call: Json = {"id": id_, "type": "function", "function": {"name": name, "arguments": ""}}
                    self._calls.append(call)
                    yield self._chunk({"tool_calls": [{"index": index, **call}]})
                case CallArguments(index=index, text=text):
                    self._calls[index]["function"]["arguments"] += text
                    yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
                case Ended(reason=reason):
                    self._reason = reason
                    yield self._chunk({}, reason=reason)

    @property
    def whole(self) -> Json:
        silent = not self._said and (self._calls or self._thoughts)
        message: Json = {"role": "assistant", "content": None if silent else self._said, "refusal": None}
        message |= {"reasoning_content": self._thoughts} if self._thoughts else {}
        message |= {"tool_calls": self._calls} if self._calls else {}
        return {"message": message, "logprobs": self._logprobs(self._scores), "finish_reason": self._reason}

    def _chunk(self, delta: Json, scores: list[Json] | None = None, reason: str | None = None) -> Json:
        logprobs = None if scores is None else self._logprobs(scores)
        return {"delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, scores: list[Json]) -> Json | None:
        return {"content": scores, "refusal": None} if self._text.names else None
