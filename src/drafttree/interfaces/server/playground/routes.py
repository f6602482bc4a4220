"""Routes of the playground: its page, and the stream of rounds that the page reads."""

from collections.abc import AsyncIterator, Iterable
from itertools import groupby, islice
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from sse_starlette import EventSourceResponse, JSONServerSentEvent

from drafttree.engine.batching import Handle
from drafttree.engine.generation import Chunk
from drafttree.evaluation.trace import TokenTexts, TracingObserver
from drafttree.interfaces.page_parts.round_packing import pack_round
from drafttree.interfaces.server.body_reading import Body, BodyRoute
from drafttree.interfaces.server.chat import begin_answers
from drafttree.interfaces.server.completions import CompletionRequest, PromptText, begin_texts
from drafttree.interfaces.server.errors import as_server_error
from drafttree.interfaces.server.playground.page import facts_of, make_page
from drafttree.interfaces.server.reply import warning
from drafttree.interfaces.server.request import ChatRequest
from drafttree.interfaces.server.sampling import SamplingFields, TokenCount
from drafttree.interfaces.server.service import PromptOrMessages
from drafttree.interfaces.server.serving import Serving

router = APIRouter(route_class=BodyRoute, include_in_schema=False)
FIGURES = (
    "tokens",
    "rounds",
    "mean_accepted_tokens",
    "draft_efficiency",
    "acceptance_rate",
    "mean_nodes",
    "time_to_first_token",
    "decoding_tokens_per_second",
)
"""The figures of `Metrics.summary` at the end of a stream. The other figures describe the server."""


class RoundsRequest(PromptOrMessages, SamplingFields):
    """A text for the page, and how it is written.

    Attributes:
        prompt: text to continue; otherwise `messages` has a conversation to answer.
        speculate: False for plain decoding.
        as_served: whether to draft only if it pays, as for other texts of the server, or in every round.
    """

    prompt: PromptText | None = None
    max_tokens: TokenCount | None = None
    speculate: bool = True
    as_served: bool = False


@router.head("/", include_in_schema=False)
@router.get("/")
def page(serving: Serving) -> HTMLResponse:
    """The page."""
    facts = facts_of(
        serving.decoder,
        serving.settings.model_name,
        wants_key=bool(serving.settings.api_keys),
        reads_images=serving.images.are_read,
    )
    html, policy = make_page(**facts)
    return HTMLResponse(html, headers={"Content-Security-Policy": policy, "Cache-Control": "no-store"})


@router.post("/v1/playground/rounds")
async def rounds(request: Body[RoundsRequest], serving: Serving) -> EventSourceResponse:
    """Write a text and stream its rounds."""
    observer = TracingObserver(TokenTexts(serving.decoder.tokenizer))
    submit = None if request.as_served or serving.drafting is None else serving.drafting.submit
    submit_options = {"to": submit, "observer": observer, "speculate": request.speculate}
    sampling_fields = {name: getattr(request, name) for name in (*SamplingFields.model_fields, "max_tokens")}
    if request.messages is None:
        completion = CompletionRequest.model_validate({"prompt": request.prompt, **sampling_fields})
        texts, _ = await begin_texts(completion, serving, **submit_options)
    else:
        chat = ChatRequest.model_validate({"messages": request.messages, **sampling_fields})
        texts = await begin_answers(chat, serving, **submit_options)
    headers = await warning(request, serving)
    return EventSourceResponse(_events(texts.all[0].handle, observer), headers=headers, sep="\n")


async def _events(handle: Handle, observer: TracingObserver) -> AsyncIterator[JSONServerSentEvent]:
    """The events of a text's rounds; the text is cancelled if the client disconnects.

    A `round` has the new text, the round's tree and the time so far; `end` has the figures of the text, and `error` the
    body of an error reply. Each token's text is sent once: `strings` has the new ones of a round.
    """
    strings: dict[str, int] = {}
    try:
        async for chunk in handle:
            round_event: dict[str, Any] = {"text": _pieces(chunk), "seconds": round(handle.metrics.decoding_seconds, 5)}
            # A chunk without tokens is the held-back end of a cancelled text.
            served_round = observer.take() if chunk.tokens else None
            if served_round:
                string_count = len(strings)
                round_event["round"] = pack_round(served_round.traced, strings)
                round_event["strings"] = [*islice(strings, string_count, None)]
                round_event |= {"passes": served_round.cost.draft_passes, "reason": served_round.reason}
            yield JSONServerSentEvent(round_event, event="round")
        generation = handle.result()
        summary = generation.metrics.summary()
        figures = {name: summary[name] for name in FIGURES}
        yield JSONServerSentEvent({"finish": generation.finish_reason, "figures": figures}, event="end")
    except Exception as error:
        yield JSONServerSentEvent(as_server_error(error).body, event="error")
    finally:
        handle.cancel()


def _pieces(chunk: Chunk) -> list[tuple[str, bool]]:
    """The new text in pieces, each with a flag: whether the drafter proposed it."""
    characters: Iterable[tuple[str, bool]] = zip(chunk.text, chunk.drafted_text, strict=True)
    return [
        ("".join(character for character, _ in piece), drafted)
        for drafted, piece in groupby(characters, key=lambda flagged_character: flagged_character[1])
    ]
