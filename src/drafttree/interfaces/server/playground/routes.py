"""The page and the stream of rounds that it reads."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from sse_starlette import EventSourceResponse

from drafttree.evaluation.trace import TokenTexts, TracingObserver
from drafttree.interfaces.server.event_stream import stream_response
from drafttree.interfaces.server.playground.asked import Asked
from drafttree.interfaces.server.playground.page import Facts, make_page
from drafttree.interfaces.server.playground.round_events import RoundEvents
from drafttree.interfaces.server.serving import Serving

router = APIRouter(include_in_schema=False)


@router.get("/")
def page(serving: Serving) -> HTMLResponse:
    """The page."""
    made = make_page(Facts.of(serving.decoder, serving.model_name, wants_key=serving.settings.api_key is not None))
    headers = {"Content-Security-Policy": made.security_policy, "Cache-Control": "no-store"}
    return HTMLResponse(made.html, headers=headers)


@router.post("/v1/playground/rounds")
async def rounds(asked: Asked, serving: Serving) -> EventSourceResponse:
    """Write a text and stream its rounds."""
    observer = TracingObserver(TokenTexts(serving.decoder.tokenizer))
    options = asked.options(serving.decoder.tokenizer)
    handle = await serving.admission.submit(asked.decoder_prompt(), observer=observer, **options)
    return stream_response(RoundEvents(handle, observer))
