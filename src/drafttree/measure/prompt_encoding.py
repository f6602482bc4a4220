"""Token ids of prompts, as plain text or as conversations whose answers the target itself writes."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from drafttree.core.errors import ContextError, InputError
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Generation
from drafttree.measure.prompt_form import PromptForm
from drafttree.measure.prompts import Example
from drafttree.text.chat import Message, render_chat, turn_end

BETWEEN = "\n\n"
"""The text between an answer and the next turn, if no chat template is used."""


def encode_prompts(
    decoder: Decoder, examples: Iterable[Example], form: PromptForm, max_new_tokens: int
) -> list[list[int]]:
    """The token ids of every turn; those that do not fit into the context are cut to their last tokens.

    Args:
        decoder: the decoder with a tokenizer.
        examples: the prompts.
        form: the form of the prompts.
        max_new_tokens: new tokens to leave room for, and the maximum for the target's answers to earlier turns.

    Raises:
        ContextError: there is no room for any prompt.
        InputError: there is no tokenizer, or a chat template is needed and missing.
    """
    turns = list[list[int]]()
    for example in examples:
        turns += encode_turns(decoder, example, form, max_new_tokens)
    return [fit(decoder, ids, max_new_tokens)[0] for ids in turns]


def encode_turns(decoder: Decoder, example: Example, form: PromptForm, max_new_tokens: int) -> list[list[int]]:
    """The token ids of every turn of a prompt, each after all earlier turns and the target's greedy answers.

    Arguments and errors as for `encode_prompts`; nothing is cut to fit into the context.
    """
    if decoder.tokenizer is None:
        raise InputError("a text prompt needs a tokenizer; pass token ids or give the decoder a tokenizer")
    if form.chat and not getattr(decoder.tokenizer, "chat_template", None):
        name = getattr(decoder.tokenizer, "name_or_path", "") or "the target"
        raise InputError(f"the tokenizer of {name!r} has no chat template; leave --chat out, or take another target")
    turns = (example.prompt, *example.later_turns)[: form.most_turns]
    encode = _chat_turns if form.chat else _plain_turns
    return encode(decoder, turns, form.tokens, max_new_tokens)


def _plain_turns(
    decoder: Decoder, turns: Sequence[str], max_tokens: int | None, max_new_tokens: int
) -> list[list[int]]:
    turn_ids = [_ids(decoder, turns[0])[:max_tokens]]
    for turn in turns[1:]:
        answer = [token for token in _answer(decoder, turn_ids[-1], max_new_tokens).tokens if token not in decoder.eos]
        question_ids = _ids(decoder, BETWEEN + turn, add_special_tokens=False)
        turn_ids.append([*turn_ids[-1], *answer, *question_ids[:max_tokens]])
    return turn_ids


def _chat_turns(decoder: Decoder, turns: Sequence[str], max_tokens: int | None, max_new_tokens: int) -> list[list[int]]:
    messages: list[Message] = []
    turn_ids: list[list[int]] = []
    for turn in turns:
        if turn_ids:
            answer = _answer(decoder, turn_ids[-1], max_new_tokens, chat=True)
            messages.append({"role": "assistant", "content": answer.text.strip()})
        messages.append({"role": "user", "content": _cut(decoder, turn, max_tokens)})
        turn_ids.append(render_chat(messages, decoder.tokenizer))
    return turn_ids


def _cut(decoder: Decoder, text: str, max_tokens: int | None) -> str:
    """The beginning of a text, of at most `max_tokens` tokens."""
    if max_tokens is None:
        return text
    ids = _ids(decoder, text, add_special_tokens=False)
    tokenizer = cast(Any, decoder.tokenizer)
    return text if len(ids) <= max_tokens else tokenizer.decode(ids[:max_tokens])


def _ids(decoder: Decoder, text: str, **options: bool) -> list[int]:
    return list(cast(Any, decoder.tokenizer)(text, **options)["input_ids"])


def _answer(decoder: Decoder, ids: list[int], max_new_tokens: int, *, chat: bool = False) -> Generation:
    """The target's greedy answer."""
    stop = turn_end(decoder.tokenizer) if chat else None
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": 0.0, "stop": [stop] if stop else None}
    prompt, _ = fit(decoder, ids, max_new_tokens)
    return decoder.plain().with_verifier(None).generate(prompt, **options)


def fit(decoder: Decoder, prompt: str | Sequence[int], max_new_tokens: int) -> tuple[list[int], bool]:
    """A prompt's token ids, cut to the last ones that fit into the context, and whether they were cut.

    Raises:
        ContextError: there is no room for any prompt.
        InputError: the prompt is a text and there is no tokenizer.
    """
    if isinstance(prompt, str):
        if decoder.tokenizer is None:
            raise InputError("a text prompt needs a tokenizer; pass token ids or give the decoder a tokenizer")
        prompt = decoder.tokenizer(prompt)["input_ids"]
    ids = [int(token) for token in prompt]
    if decoder.target.context is None:
        return ids, False
    room = decoder.target.context - max_new_tokens
    if room < 1:
        raise ContextError(f"max_new_tokens={max_new_tokens} fills the model's context of {decoder.target.context}")
    return ids[-room:], len(ids) > room
