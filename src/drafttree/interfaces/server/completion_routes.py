"""/v1/completions."""

import asyncio
from functools import partial
from typing import Any

from fastapi import APIRouter, Response

from drafttree.engine.prompt import encode
from drafttree.interfaces.server.choices import Choices
from drafttree.interfaces.server.continuation import Continuation, EchoedPrompt
from drafttree.interfaces.server.engine_options import engine_options, seeds
from drafttree.interfaces.server.model_routes import check_model
from drafttree.interfaces.server.protocol.completion_reply import Completion
from drafttree.interfaces.server.protocol.completion_request import CompletionRequest
from drafttree.interfaces.server.reply import Reply
from drafttree.interfaces.server.reply_head import reply_head
from drafttree.interfaces.server.serving import Serving, ServingContext
from drafttree.interfaces.server.token_names import TokenNames

router = APIRouter(prefix="/v1/completions", tags=["completions"])


@router.post("", response_model=Completion)
async def complete(request: CompletionRequest, serving: Serving) -> Response:
    """Continue texts, at once or as a stream of chunks."""
    check_model(serving, request.model)
    serving.admission.check()
    prompts, options = await asyncio.to_thread(_prepare, request, serving)
    names = await asyncio.to_thread(TokenNames.of, serving.decoder) if request.wanted_logprobs else None
    choices = await Choices.submit(serving, prompts, options, seeds(request), wanted=request.limit > 0)
    echoes = [_echo(request, place, tokens, serving) for place, tokens in enumerate(prompts) for _ in seeds(request)]
    make = partial(Completion, object="text_completion", **reply_head("cmpl", serving))
    texts = [Continuation(index, names, echo) for index, echo in enumerate(echoes)]
    return await Reply(choices, texts, make, make).response(request)


def _prepare(request: CompletionRequest, serving: ServingContext) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """The token ids of the prompts, and the options of their texts."""
    decoder, logprobs = serving.decoder, request.wanted_logprobs
    prompts = [encode(prompt, decoder.tokenizer, decoder.target.vocab_size) for prompt in request.prompt]
    wanted = {"logprobs": logprobs, "prompt_logprobs": logprobs if request.echo else None}
    limit = max(request.limit, 1)
    return prompts, [engine_options(request, decoder, len(tokens), limit) | wanted for tokens in prompts]


def _echo(request: CompletionRequest, place: int, tokens: list[int], serving: ServingContext) -> EchoedPrompt | None:
    """The prompt at a place, if it is to be repeated."""
    if not request.echo:
        return None
    given, tokenizer = request.prompt[place], serving.decoder.tokenizer
    if not isinstance(given, str):
        given = tokenizer.decode(tokens, skip_special_tokens=True) if tokenizer else ""
    return EchoedPrompt(given, tokens)
