"""/v1/completions: texts that continue prompts."""

import asyncio
from bisect import bisect_left
from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import Annotated, Any, Self

from fastapi import APIRouter, Response
from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from drafttree.engine.generation import Chunk, Logprobs
from drafttree.engine.image_prompt import EncodedPrompt
from drafttree.interfaces.server.body_reading import Body, BodyRoute
from drafttree.interfaces.server.errors import blaming
from drafttree.interfaces.server.fields import ListOf, fields_of, mistake
from drafttree.interfaces.server.grammar import outputs_grammar
from drafttree.interfaces.server.reply import STREAMED, Completions, Described, reply
from drafttree.interfaces.server.sampling import INT64, MAX_LOGPROBS, SeveralTexts, TokenId, engine_options
from drafttree.interfaces.server.serving import Serving, ServingContext
from drafttree.interfaces.server.texts import Json, Text, Texts
from drafttree.text.detokenizer import check_stop
from drafttree.text.prompt import encode

router = APIRouter(route_class=BodyRoute, prefix="/v1/completions", tags=["completions"])
MAX_PROMPTS = 256
DEFAULT_LIMIT = 16

PromptText = Annotated[str, Field(min_length=1)]
TokenIds = Annotated[ListOf[TokenId], Field(min_length=1)]


def _as_list(prompt: object) -> object:
    """A list of prompts."""
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and not isinstance(prompt[0], str | list)):
        prompt = [prompt]
    if not isinstance(prompt, list) or not (
        _is_list_of(prompt, str) or all(_is_list_of(entry, int) for entry in prompt)
    ):
        raise mistake("wrong_prompt", "a prompt is text, a list of texts, token ids, or a list of lists of token ids")
    if not prompt or not all(prompt):
        raise mistake("empty_prompt", "a prompt is empty; give at least one token")
    tokens = (token for entry in prompt for token in entry if isinstance(token, int))
    if wrong_token := next((token for token in tokens if not 0 <= token < INT64), None):
        raise mistake(
            "no_token_id", f"{wrong_token if abs(wrong_token) < INT64 else 'a number above 64 bits'} is not a token id"
        )
    return prompt


def _is_list_of(values: object, element_type: type) -> bool:
    return isinstance(values, list) and all(
        isinstance(element, element_type) and not isinstance(element, bool) for element in values
    )


Prompts = Annotated[
    ListOf[PromptText] | ListOf[TokenIds],
    Field(max_length=MAX_PROMPTS),
    BeforeValidator(_as_list, json_schema_input_type=PromptText | list[PromptText] | TokenIds | list[TokenIds]),
]


class CompletionRequest(SeveralTexts, fields_of("completions")):
    """Prompts whose continuations are wanted."""

    prompt: Prompts = Field(description="a text, a list of texts, token ids, or a list of lists of token ids")
    max_tokens: Annotated[int, Field(ge=0, lt=INT64)] | None = Field(
        None, description="maximum number of tokens; default: 16; with echo, 0 is possible"
    )
    echo: bool | None = Field(None, description="start the text with the prompt")
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        None,
        description="return the target model's own log-probability of every token, and of this many most likely tokens",
    )
    _api: str = PrivateAttr("completions")

    @model_validator(mode="after")
    def _check_tokens(self) -> Self:
        if self.limit == 0 and not self.echo:
            raise mistake("no_tokens", "this is 0, so there is nothing to send without echo", "max_tokens")
        return self

    @property
    def limit(self) -> int:
        """The most tokens of a text."""
        return DEFAULT_LIMIT if self.max_tokens is None else self.max_tokens

    @property
    def wanted_logprobs(self) -> bool | int | None:
        """The value of the engine's option `logprobs`."""
        return (self.logprobs or True) if self.logprobs is not None else None


class Completion(Described):
    """`openai.types.Completion`, with the fields below.

    With `echo`, the prompt's first token has neither a log-probability nor likeliest tokens.
    """


@router.post("", response_model=Completion, responses=STREAMED)
async def complete(request: Body[CompletionRequest], serving: Serving) -> Response:
    """Continue texts, at once or as a stream of chunks."""
    texts, echoes = await begin_texts(request, serving)
    choices = [
        Continuation(text, echoes[index // request.choices], keeps_scores=not request.stream)
        for index, text in enumerate(texts.all)
    ]
    return await reply(request, serving, texts, Completions(request, serving, texts, choices, chat=False))


async def begin_texts(
    request: CompletionRequest, serving: ServingContext, **submit_options: Any
) -> tuple[Texts, list[str]]:
    """Submit the texts that continue prompts.

    Args:
        request: the client's request.
        serving: the served model.
        **submit_options: further options of the texts, as for `Admission.submit`.

    Returns:
        The texts, and for each prompt its echo.

    Raises:
        ServerError: as for `check_model`, `Admission.check` and `Texts.submit`.
        DraftTreeError: as for `encode` and `engine_options`.
    """
    serving.check_model(request.model)
    serving.admission.check()
    prompts, options, echoes = await asyncio.to_thread(_prepare, request, serving)
    return await Texts.submit(request, serving, prompts, options, has_text=request.limit > 0, **submit_options), echoes


def _prepare(request: CompletionRequest, serving: ServingContext) -> tuple[list[EncodedPrompt], list[Json], list[str]]:
    """The prompts, the options of its texts, and its echo: the text that its replies begin with."""
    decoder = serving.decoder
    logprobs = request.wanted_logprobs
    tokenizer = decoder.tokenizer
    vocab = decoder.target.vocab_size
    context = decoder.target.context
    with blaming("prompt"):
        prompts = [EncodedPrompt(encode(prompt, tokenizer, vocab, context)) for prompt in request.prompt]
    with blaming("stop"):
        check_stop(request.stop or (), tokenizer)
    limit = max(request.limit, 1)
    grammar = request.structured_outputs and outputs_grammar(request.structured_outputs)
    text_options = {"logprobs": logprobs, "prompt_logprobs": logprobs if request.echo else None, "grammar": grammar}
    echoes = [_as_text(prompt, tokenizer) if request.echo else "" for prompt in request.prompt]
    options = [engine_options(request, decoder, prompt.length, limit) | text_options for prompt in prompts]
    return prompts, options, echoes


def _as_text(prompt: str | list[int], tokenizer: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    return tokenizer.decode(prompt, skip_special_tokens=True) if tokenizer else ""


class Continuation:
    """Writes one text of a reply.

    Args:
        text: the text.
        echo: the prompt if it is to be echoed, else "".
        keeps_scores: as for `ChatChoice`.
    """

    def __init__(self, text: Text, echo: str, *, keeps_scores: bool) -> None:
        self._text = text
        self._echo = echo
        self._keeps_scores = keeps_scores
        self._begin = len(echo)
        self._written = ""
        self._scores = list[Json]()
        self._reason = None

    def add(self, chunk: Chunk) -> Iterator[Json]:
        """Yield the choices for a chunk; the first one begins with the prompt if it is echoed."""
        first_index = self._text.told
        text = self._echo + chunk.text
        scores = self._text.tell(self._text.known_tokens(chunk.finish_reason))
        for token_index, score in enumerate(scores, first_index):  # a byte of a character has the character's offset
            score["text_offset"] = self._begin + bisect_left(self._text.origins, token_index)
        if chunk.prompt_logprobs is not None:
            scores = [*self._prompt_scores(chunk.prompt_logprobs), *scores]
        self._echo = ""
        self._written += text
        self._reason = chunk.finish_reason
        self._scores += scores if self._keeps_scores else ()
        if text or scores or chunk.finish_reason:
            yield self._choice(text, scores)

    @property
    def whole(self) -> Json:
        """The whole text."""
        return self._choice(self._written, self._scores)

    def _choice(self, text: str, scores: list[Json]) -> Json:
        logprobs = self._text.names and {
            "tokens": [score["token"] for score in scores],
            "token_logprobs": [score["logprob"] for score in scores],
            "top_logprobs": [_top_logprobs(score) for score in scores],
            "text_offset": [score["text_offset"] for score in scores],
        }
        return {"text": text, "logprobs": logprobs, "finish_reason": self._reason}

    def _prompt_scores(self, prompt_logprobs: Logprobs) -> list[Json]:
        """The scores of the prompt's tokens. If the request's time ended early, there are none for unread tokens."""
        assert self._text.names
        prompt_tokens = self._text.prompt.tokens[: 1 + len(prompt_logprobs.tokens)]
        scores = self._text.names.scores(
            prompt_tokens, [None, *prompt_logprobs.tokens], prompt_logprobs.top and [{}, *prompt_logprobs.top]
        )
        decoder = getincrementaldecoder("utf-8")("replace")
        offset = 0
        for score in scores:
            score["text_offset"] = offset
            offset += len(decoder.decode(bytes(score["bytes"])))
        return scores


def _top_logprobs(score: Json) -> dict[str, float] | None:
    """Log-probabilities of the likeliest tokens and the chosen one, by name; None for the first token of a prompt."""
    if score["logprob"] is None:
        return None
    return {token_score["token"]: token_score["logprob"] for token_score in (*score["top_logprobs"], score)}
