"""/v1/responses: the answer of a chat in the form of OpenAI's Responses API."""

import time
import uuid
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Response

from drafttree.engine.generation import Chunk
from drafttree.interfaces.server.admission import read_request
from drafttree.interfaces.server.body_reading import Body, BodyRoute
from drafttree.interfaces.server.chat import begin_answers
from drafttree.interfaces.server.dialect.reader import CallArguments, CallBegun, Said, Thought
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.fields import RequestModel
from drafttree.interfaces.server.reply import STREAMED, Described, reply, reply_head
from drafttree.interfaces.server.request import LeftOut
from drafttree.interfaces.server.responses.request import ResponseRequest
from drafttree.interfaces.server.serving import Serving, ServingContext
from drafttree.interfaces.server.texts import Ended, Json, Texts

router = APIRouter(route_class=BodyRoute, prefix="/v1/responses", tags=["responses"])


class ModelResponse(Described):
    """`openai.types.responses.Response`, with the fields below. It repeats fields of the request."""


@router.post("", response_model=ModelResponse, responses=STREAMED)
async def respond(request: Body[ResponseRequest], serving: Serving) -> Response:
    """Answer a conversation, at once or as a stream of events."""
    texts = await begin_answers(await read_request(request.as_chat), serving)
    return await reply(request, serving, texts, ResponseText(request, serving, texts))


def _new_response(request: ResponseRequest, serving: ServingContext) -> Json:
    """The fields of a response before its text begins."""
    repeated = ("instructions", "temperature", "top_p", "top_logprobs", "max_output_tokens")
    choice = request.tool_choice or "auto"
    form = request.text and request.text.format
    return {
        **reply_head("resp_", request, serving),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
        **{name: getattr(request, name) for name in repeated},
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "tool_choice": _as_sent(choice) if isinstance(choice, RequestModel) else choice,
        "tools": [_as_sent(tool) for tool in request.tools or () if not isinstance(tool, LeftOut)],
        "text": {"format": _as_sent(form) if form else {"type": "text"}},
        "truncation": "disabled",
        "background": False,
        "previous_response_id": None,
    }


def _as_sent(request_part: RequestModel) -> Json:
    """A part of the request as the client sent it."""
    return request_part.model_dump(mode="json", by_alias=True, exclude_unset=True)


class ResponseText:
    """Writes a response: its items, each with the events around it."""

    done = False

    def __init__(self, request: ResponseRequest, serving: ServingContext, texts: Texts) -> None:
        self.whole = _new_response(request, serving)
        self._texts = texts
        self._namespaces = request.namespaces
        self._events = 0

    def begin(self) -> Iterator[Json]:
        yield self._event("created", response=self.whole)
        yield self._event("in_progress", response=self.whole)

    def add(self, text_index: int, chunk: Chunk) -> Iterator[Json]:
        for answer_part, scores in self._texts.all[text_index].parts(chunk):
            match answer_part:
                case Thought(text=text):
                    yield from self._write("reasoning", text, scores)
                case Said(text=text):
                    yield from self._write("message", text, scores)
                case CallBegun(name=name, id=id_):
                    name_fields = self._namespaces.get(name, {"name": name})
                    yield from self._open("function_call", "fc", call_id=id_, **name_fields, arguments="")
                case CallArguments(text=text):
                    self._item["arguments"] += text
                    yield self._event("function_call_arguments.delta", **self._item_location, delta=text)
                case Ended(reason=reason):
                    yield from self._end(reason)
                case None:  # messages have no tokens of marks, thinking and calls
                    pass

    def fail(self, error: ServerError) -> Json:
        code = "invalid_prompt" if error.status < 500 else "server_error"
        if self.whole["output"]:
            self._item["status"] = "incomplete"
        self.whole |= {"status": "failed", "error": {"code": code, "message": error.message}}
        return self._event("failed", response=self.whole)

    def _write(self, item_type: str, text: str, scores: list[Json]) -> Iterator[Json]:
        """Yield the events that add text to a message or to thinking; if no such item is open, begin one."""
        is_message = item_type == "message"
        if not self.whole["output"] or self._item["type"] != item_type:
            item_fields: Json = {"role": "assistant"} if is_message else {"summary": []}
            yield from self._open(item_type, "msg" if is_message else "rs", **item_fields, content=[])
            part_fields: Json = {"annotations": [], "logprobs": []} if is_message else {}
            content_part = {"type": "output_text" if is_message else "reasoning_text", "text": "", **part_fields}
            yield self._event("content_part.added", **self._item_location, content_index=0, part=content_part)
            self._item["content"].append(content_part)
        (content_part,) = self._item["content"]
        content_part["text"] += text
        if is_message:
            content_part["logprobs"] += scores
        if text:
            logprob_fields = {"logprobs": _without_bytes(scores)} if is_message else {}
            yield self._event(
                f"{content_part['type']}.delta", **self._item_location, content_index=0, delta=text, **logprob_fields
            )

    def _open(self, item_type: str, prefix: str, **fields: Any) -> Iterator[Json]:
        """Yield the events that end the open item and begin a new one."""
        yield from self._close("completed")
        item = {"type": item_type, "id": f"{prefix}_{uuid.uuid4().hex}", "status": "in_progress", **fields}
        self.whole["output"].append(item)
        yield self._event("output_item.added", output_index=self._item_location["output_index"], item=item)

    def _close(self, status: str) -> Iterator[Json]:
        """Yield the events that end the open item, if there is one."""
        if not self.whole["output"]:
            return
        item = self._item
        location = self._item_location
        if item["type"] == "function_call":
            yield self._event("function_call_arguments.done", **location, arguments=item["arguments"])
        else:
            (content_part,) = item["content"]
            logprob_fields = (
                {"logprobs": _without_bytes(content_part["logprobs"])} if "logprobs" in content_part else {}
            )
            yield self._event(
                f"{content_part['type']}.done", **location, content_index=0, text=content_part["text"], **logprob_fields
            )
            yield self._event("content_part.done", **location, content_index=0, part=content_part)
        item["status"] = status
        yield self._event("output_item.done", output_index=location["output_index"], item=item)

    def _end(self, reason: str) -> Iterator[Json]:
        """Yield the events that complete the response, which gets at least one item."""
        if not self.whole["output"]:
            yield from self._write("message", "", [])
        status = "incomplete" if reason == "length" else "completed"
        is_cut = reason == "stop" and self._item["type"] == "function_call"
        yield from self._close("incomplete" if is_cut else status)
        usage = self._texts.usage
        self.whole |= {
            "status": status,
            "timings": self._texts.timings,
            "usage": {
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
                "output_tokens": usage.generated,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning},
                "total_tokens": usage.prompt + usage.generated,
            },
        }
        if status == "incomplete":
            self.whole["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            self.whole["completed_at"] = int(time.time())
        yield self._event(status, response=self.whole)

    @property
    def _item(self) -> Json:
        """The open item."""
        return self.whole["output"][-1]

    @property
    def _item_location(self) -> Json:
        """The fields of an event that identify the open item."""
        return {"output_index": len(self.whole["output"]) - 1, "item_id": self._item["id"]}

    def _event(self, name: str, **fields: Any) -> Json:
        """An event with the next sequence number."""
        self._events += 1
        return {"type": f"response.{name}", "sequence_number": self._events - 1, **fields}


def _without_bytes(scores: list[Json]) -> list[Json]:
    """Log-probabilities in the form of events, without bytes."""
    return [
        {
            "token": score["token"],
            "logprob": score["logprob"],
            "top_logprobs": [{name: top[name] for name in ("token", "logprob")} for top in score["top_logprobs"]],
        }
        for score in scores
    ]
