"""/v1/messages: the answer of a chat as Anthropic's API has it."""

import asyncio
import uuid

from fastapi import APIRouter, Response

from drafttree.interfaces.server.anthropic.message import MessageText
from drafttree.interfaces.server.anthropic.replies import MessageReply, TokenCount
from drafttree.interfaces.server.anthropic.request import ConversationFields, CountTokensRequest, MessagesRequest
from drafttree.interfaces.server.chat_prompt import read_prompt
from drafttree.interfaces.server.chat_routes import begin_answers
from drafttree.interfaces.server.errors import ANTHROPIC, AnthropicErrorReply, ServerError, new_request_id
from drafttree.interfaces.server.reply import STREAMED, EventReply
from drafttree.interfaces.server.serving import Serving, ServingContext

ERRORS = {status: {"model": AnthropicErrorReply, "description": "An error"} for status in ("4XX", "5XX")}
router = APIRouter(prefix=ANTHROPIC, tags=["messages"], responses={**ERRORS})


@router.post("", response_model=MessageReply, responses=STREAMED)
async def write(request: MessagesRequest, serving: Serving) -> Response:
    """Answer a conversation, at once or as a stream of events."""
    _check_thinking(request, serving)
    choices, (answer,) = await begin_answers(request.as_chat(), serving)
    model = request.model or serving.model_name
    head = {"id": f"msg_{uuid.uuid4().hex}", "model": model, **serving.decoder.fidelity.to_json()}
    request_id = new_request_id()
    text = MessageText(answer, head, request.stop_strings, lambda: choices.usage, request_id)
    reads_thoughts = serving.dialect.thought_name is not None
    return await EventReply(choices, text, {"request-id": request_id}, reads_thoughts=reads_thoughts).response(request)


@router.post("/count_tokens")
async def count_tokens(request: CountTokensRequest, serving: Serving) -> TokenCount:
    """Count the tokens of a conversation, up to where the next message begins."""
    serving.check_model(request.model)
    _check_thinking(request, serving)
    decoder = serving.decoder
    prompt = await asyncio.to_thread(
        read_prompt, request.as_chat(), decoder.tokenizer, serving.dialect, decoder.target.context
    )
    return TokenCount(input_tokens=len(prompt))


def _check_thinking(request: ConversationFields, serving: ServingContext) -> None:
    """Refuse to let a model think that cannot.

    Raises:
        ServerError: it is asked to.
    """
    dialect, wanted = serving.dialect, request.thinking
    if wanted and wanted.type == "enabled" and not dialect.thinking and not dialect.takes_effort:
        raise ServerError(400, "thinking is enabled, but the model's chat template does not support it; leave it out")
