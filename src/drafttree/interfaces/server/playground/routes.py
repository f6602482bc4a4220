"""The page, and the stream of rounds that it reads."""

from collections.abc import AsyncIterator, Iterable
from itertools import groupby, islice
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse
from pydantic import Field, model_validator
from sse_starlette import EventSourceResponse, JSONServerSentEvent

from drafttree.engine.batching import Handle
from drafttree.engine.chat import turn_end
from drafttree.engine.generation import Chunk
from drafttree.engine.prompt import Prompt
from drafttree.evaluation.trace import TokenTexts, TracingObserver
from drafttree.interfaces.page_parts.round_packing import pack_round
from drafttree.interfaces.server.body_reading import Body, BodyRoute
from drafttree.interfaces.server.errors import as_server_error
from drafttree.interfaces.server.fields import RequestModel
from drafttree.interfaces.server.playground.drafting_engine import DraftingEngine
from drafttree.interfaces.server.playground.page import Facts, make_page
from drafttree.interfaces.server.reply import stream_response
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
        max_tokens: the number of tokens to write at most.
        temperature: 0 is greedy.
        top_p: keep the most probable tokens up to this probability.
        seed: decides the draws; None for another seed each time.
        stop: strings that end the text.
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
            raise ValueError("give either prompt or messages")
        return self

    def decoder_prompt(self) -> Prompt:
        """The prompt as `Engine.submit` takes it."""
        if self.messages is not None:
            return [message.model_dump() for message in self.messages]
        assert self.prompt is not None
        return self.prompt

    def options(self, tokenizer: Any) -> dict[str, Any]:
        """The options of `Engine.submit`."""
        end = turn_end(tokenizer) if self.messages else None
        return {
            "max_new_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": [*self.stop, *([end] if end else [])] or None,
            "speculate": self.speculate,
        }


def _find(request: Request) -> DraftingEngine:
    return request.app.state.drafting


Drafting = Annotated[DraftingEngine, Depends(_find)]


@router.head("/", include_in_schema=False)
@router.get("/")
def page(serving: Serving) -> HTMLResponse:
    """The page."""
    made = make_page(Facts.of(serving.decoder, serving.model_name, wants_key=bool(serving.settings.api_keys)))
    headers = {"Content-Security-Policy": made.security_policy, "Cache-Control": "no-store"}
    return HTMLResponse(made.html, headers=headers)


@router.post("/v1/playground/rounds")
async def rounds(asked: Body[Asked], serving: Serving, drafting: Drafting) -> EventSourceResponse:
    """Write a text and stream its rounds."""
    observer = TracingObserver(TokenTexts(serving.decoder.tokenizer))
    options = asked.options(serving.decoder.tokenizer)
    to = None if asked.as_served or serving.decoder.drafter is None else drafting.submit
    handle = await serving.admission.submit(asked.decoder_prompt(), to=to, observer=observer, **options)
    return stream_response(RoundEvents(handle, observer))


class RoundEvents:
    """The rounds of a text while it is written.

    A `round` has new text, the tree of the round and the time so far; `end` has the figures of the text, and `error`
    what a failed request's reply has. Texts of tokens are sent once: `strings` has those that are new in a round.

    Args:
        handle: the text in the engine; it is cancelled where nobody reads to the end.
        observer: has seen the rounds of the text.
    """

    def __init__(self, handle: Handle, observer: TracingObserver) -> None:
        self._handle, self._observer = handle, observer
        self._strings: dict[str, int] = {}

    async def __aiter__(self) -> AsyncIterator[JSONServerSentEvent]:
        try:
            async for chunk in self._handle:
                yield JSONServerSentEvent(self._round(chunk), event="round")
            yield JSONServerSentEvent(self._end(), event="end")
        except Exception as error:
            yield JSONServerSentEvent(as_server_error(error).body, event="error")
        finally:
            self._handle.cancel()

    def _round(self, chunk: Chunk) -> dict[str, Any]:
        """A round, or the text that a cancelled request had held back."""
        metrics = self._handle.metrics
        added = {"text": _pieces(chunk), "seconds": round(metrics.decoding_seconds, 5)}
        served = self._observer.take() if chunk.tokens else None
        if served is None:
            return added
        known = len(self._strings)
        packed = pack_round(served.traced, self._strings)
        return added | {
            "round": packed,
            "strings": list(islice(self._strings, known, None)),
            "passes": served.cost.draft_passes,
            "reason": served.reason,
        }

    def _end(self) -> dict[str, Any]:
        whole = self._handle.result()
        summary = whole.metrics.summary()
        figures = {name: summary[name] for name in FIGURES}
        return {"finish": whole.finish_reason, "figures": figures}


def _pieces(chunk: Chunk) -> list[tuple[str, bool]]:
    """The new text in pieces, each with whether the drafter proposed it."""
    characters: Iterable[tuple[str, bool]] = zip(chunk.text, chunk.drafted_text, strict=True)
    return [
        ("".join(character for character, _ in piece), drafted)
        for drafted, piece in groupby(characters, key=lambda each: each[1])
    ]
