"""/v1/responses: the answer of a chat as OpenAI's Responses API has it."""

import time
import uuid
from typing import Any

from fastapi import APIRouter, Response

from drafttree.interfaces.server.chat_routes import begin_answers
from drafttree.interfaces.server.protocol.request_fields import RequestModel
from drafttree.interfaces.server.reply import STREAMED, EventReply
from drafttree.interfaces.server.responses.replies import ModelResponse
from drafttree.interfaces.server.responses.request import ResponseRequest
from drafttree.interfaces.server.responses.response import ResponseText
from drafttree.interfaces.server.serving import Serving, ServingContext

router = APIRouter(prefix="/v1/responses", tags=["responses"])


@router.post("", response_model=ModelResponse, responses=STREAMED)
async def respond(request: ResponseRequest, serving: Serving) -> Response:
    """Answer a conversation, at once or as a stream of events."""
    choices, (answer,) = await begin_answers(request.as_chat(), serving)
    text = ResponseText(answer, _head(request, serving), lambda: choices.usage)
    return await EventReply(choices, text, reads_thoughts=serving.dialect.thought_name is not None).response(request)


def _head(request: ResponseRequest, serving: ServingContext) -> dict[str, Any]:
    """The fields of a response that are known when it begins, most of them the request's own."""
    repeated = ("instructions", "temperature", "top_p", "top_logprobs", "max_output_tokens")
    choice, form = request.tool_choice or "auto", request.text and request.text.format
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "model": request.model or serving.model_name,
        **{name: getattr(request, name) for name in repeated},
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "tool_choice": _given(choice) if isinstance(choice, RequestModel) else choice,
        "tools": [_given(tool) for tool in request.tools or ()],
        "text": {"format": _given(form) if form else {"type": "text"}},
        "truncation": "disabled",
        "background": False,
        "previous_response_id": None,
        **serving.decoder.fidelity.to_json(),
    }


def _given(part: RequestModel) -> dict[str, Any]:
    """A part of the request as it was given."""
    return part.model_dump(mode="json", by_alias=True, exclude_unset=True)
