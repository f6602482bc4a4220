"""Turns prompts (text, token ids or a conversation) into token ids of the target, and checks them."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from typing import Any, cast

from drafttree.core.counts import is_whole
from drafttree.core.errors import ContextError, InputError
from drafttree.text.chat import Expand, Message, is_conversation, render_chat
from drafttree.text.control_tokens import control_tokens, placeholder_tokens
from drafttree.text.prompt_length import check_characters

MOST_TOKENS = 2**31 - 1
"""The most tokens of a prompt and its text if the model has no limit."""

Prompt = str | Sequence[int] | Sequence[Message]


def is_batch(prompt: object) -> bool:
    """Whether this is a list of prompts."""
    if not isinstance(prompt, list | tuple) or not prompt:
        return False
    return not isinstance(prompt[0], Number) and not is_conversation(prompt)


def encode(
    prompt: object,
    tokenizer: Any,
    vocab_size: int,
    context: int | None = None,
    *,
    sanitize: bool = False,
    placeholders: Sequence[str] = (),
    expand: Expand | None = None,
) -> list[int]:
    """Return the token ids of a prompt.

    Args:
        prompt: text, token ids, a tensor or an array of them, the output of a tokenizer, or a list of messages.
        tokenizer: a tokenizer of transformers; None if prompts are token ids.
        vocab_size: the vocabulary size of the target.
        context: the most tokens of the target; None for no limit. A text that is too long whatever its tokens are is
            not tokenised.
        sanitize: keep control tokens in the messages of a conversation plain text.
        placeholders: tokens that stand for images, which messages may spell as plain text in any case.
        expand: as for `render_chat`.

    Raises:
        ContextError: if the prompt has too many characters for the context.
        InputError: if the prompt is empty, no prompt, outside the vocabulary, needs a tokenizer or a chat template that
            is missing, or is to be sanitized and is not a conversation.
    """
    if sanitize and not is_conversation(prompt):
        raise InputError("sanitize_control_tokens applies only to conversations; leave it out for a prompt")
    if is_conversation(prompt):
        sanitizer = control_tokens(tokenizer) if sanitize else placeholder_tokens(tokenizer, placeholders)
        messages = cast(Sequence[Message], sanitizer.kept(prompt) if sanitizer else prompt)
        prompt = render_chat(messages, tokenizer, context, 1, sanitizer, str, expand)
    if isinstance(prompt, str):
        if tokenizer is None:
            raise InputError("a text prompt needs a tokenizer; pass token ids or give the decoder a tokenizer")
        check_characters(prompt, tokenizer, context)
        prompt = tokenizer(prompt)["input_ids"]
    if isinstance(prompt, Mapping) and "input_ids" in prompt:
        if not all(_single_row(prompt.get("attention_mask", []))):
            raise InputError("the tokenizer's output contains padding; tokenize without padding")
        prompt = _single_row(prompt["input_ids"])
    if isinstance(prompt, bytes | bytearray):
        raise InputError(f"a prompt is text or token ids, not {type(prompt).__name__}; decode it first")
    prompt = _single_row(prompt) if hasattr(prompt, "tolist") else prompt
    if not isinstance(prompt, Iterable) or isinstance(prompt, dict | set | frozenset):
        raise InputError(f"a prompt is text or token ids, not {type(prompt).__name__}")
    tokens = list(prompt)
    if not tokens:
        raise InputError("the prompt is empty; give at least one token")
    for token in tokens:
        if not is_whole(token):
            raise InputError(f"a token id is a whole number, not {token!r}")
    ids = [int(token) for token in tokens]
    for index in ids:
        if not 0 <= index < vocab_size:
            raise InputError(f"token id {index} is outside the vocabulary of {vocab_size}")
    return ids


def _single_row(numbers: Any) -> Any:
    """Return the only row of token ids `[1, length]`, as a tokenizer returns them; a flat list stays as it is.

    Raises:
        InputError: if there are several rows.
    """
    rows = getattr(numbers, "tolist", lambda: numbers)()
    if not is_batch(rows):
        return rows
    if len(rows) > 1:
        raise InputError(f"these token ids are {len(rows)} prompts in one; give a list of them, without padding")
    return rows[0]


def check_room(prompt_length: int, max_new_tokens: int, context: int | None) -> None:
    """Check that a prompt and its text fit into the model's context.

    Raises:
        ContextError: if they do not.
    """
    context = MOST_TOKENS if context is None else context
    if prompt_length + max_new_tokens <= context:
        return
    if prompt_length >= context:
        raise ContextError(
            f"the prompt of {prompt_length} tokens leaves no room for a text in the model's context of {context}; "
            "shorten the prompt"
        )
    raise ContextError(
        f"the prompt of {prompt_length} tokens and max_new_tokens={max_new_tokens} exceed the model's context "
        f"of {context}; shorten the prompt or ask for at most {context - prompt_length} tokens"
    )
