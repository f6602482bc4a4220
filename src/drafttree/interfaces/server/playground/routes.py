"""The page, and the stream of rounds that it reads."""

from collections.abc import AsyncIterator, Iterable
from itertools import groupby, islice
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from pydantic import Field, model_validator
from sse_starlette import EventSourceResponse, JSONServerSentEvent

from drafttree.engine.batching import Handle
from drafttree.engine.chat import turn_end
from drafttree.engine.generation import Chunk
from drafttree.evaluation.trace import TokenTexts, TracingObserver
from drafttree.interfaces.page_parts.round_packing import pack_round
from drafttree.interfaces.server.body_reading import Body, BodyRoute
from drafttree.interfaces.server.errors import as_server_error
from drafttree.interfaces.server.fields import RequestModel, mistake
from drafttree.interfaces.server.playground.page import facts_of, make_page
from drafttree.interfaces.server.sampling import TokenCount
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
"""The figures of `Metrics.summary` that end a stream."""


class PlaygroundMessage(RequestModel):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Asked(RequestModel):
    """A text that the page wants, and how.

    Attributes:
        prompt: text to go on from; or else `messages`, a conversation to be answered.
        speculate: False to write it without drafts.
        as_served: True to draft only where that pays, as for other texts of the server; False to draft in every round.
    """

    prompt: str | None = None
    messages: Annotated[list[PlaygroundMessage], Field(min_length=1)] | None = None
    max_tokens: TokenCount = 128
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=4)] = Field([])
    speculate: bool = True
    as_served: bool = False

    @model_validator(mode="after")
    def _check_one_prompt(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise mistake("one_form", "give either prompt or messages", "prompt")
        return self

    def options(self, tokenizer: Any) -> dict[str, Any]:
        """The prompt and the options of `Engine.submit`."""
        end = turn_end(tokenizer) if self.messages else None
        return {
            "prompt": self.prompt if self.messages is None else [each.model_dump() for each in self.messages],
            "max_new_tokens": self.max_tokens,
            **self.model_dump(include={"temperature", "top_p", "seed", "speculate"}),
            "stop": [*self.stop, *([end] if end else [])] or None,
        }


@router.head("/", include_in_schema=False)
@router.get("/")
def page(serving: Serving) -> HTMLResponse:
    """The page."""
    facts = facts_of(serving.decoder, serving.settings.model_name, wants_key=bool(serving.settings.api_keys))
    html, policy = make_page(**facts)
    return HTMLResponse(html, headers={"Content-Security-Policy": policy, "Cache-Control": "no-store"})


@router.post("/v1/playground/rounds")
async def rounds(asked: Body[Asked], serving: Serving) -> EventSourceResponse:
    """Write a text and stream its rounds."""
    observer = TracingObserver(TokenTexts(serving.decoder.tokenizer))
    options = asked.options(serving.decoder.tokenizer)
    to = None if asked.as_served or serving.drafting is None else serving.drafting.submit
    handle = await serving.admission.submit(**options, to=to, observer=observer)
    return EventSourceResponse(_events(handle, observer), sep="\n")


async def _events(handle: Handle, observer: TracingObserver) -> AsyncIterator[JSONServerSentEvent]:
    """The rounds of a text, which is cancelled where nobody reads to the end.

    A `round` has new text, the tree of the round and the time so far; `end` has the figures of the text, and `error`
    what a failed request's reply has. Texts of tokens are sent once: `strings` has those that are new in a round.
    """
    strings: dict[str, int] = {}
    try:
        async for chunk in handle:
            told: dict[str, Any] = {"text": _pieces(chunk), "seconds": round(handle.metrics.decoding_seconds, 5)}
            if served := observer.take() if chunk.tokens else None:  # else it is what a cancelled text had held back
                known = len(strings)
                told |= {"round": pack_round(served.traced, strings), "strings": [*islice(strings, known, None)]}
                told |= {"passes": served.cost.draft_passes, "reason": served.reason}
            yield JSONServerSentEvent(told, event="round")
        whole = handle.result()
        summary = whole.metrics.summary()
        figures = {name: summary[name] for name in FIGURES}
        yield JSONServerSentEvent({"finish": whole.finish_reason, "figures": figures}, event="end")
    except Exception as error:
        yield JSONServerSentEvent(as_server_error(error).body, event="error")
    finally:
        handle.cancel()


def _pieces(chunk: Chunk) -> list[tuple[str, bool]]:
    """The new text in pieces, each with whether the drafter proposed it."""
    characters: Iterable[tuple[str, bool]] = zip(chunk.text, chunk.drafted_text, strict=True)
    return [
        ("".join(character for character, _ in piece), drafted)
        for drafted, piece in groupby(characters, key=lambda each: each[1])
    ]
