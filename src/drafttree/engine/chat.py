"""Conversations as prompts: lists of messages, rendered by the tokenizer's chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from drafttree.core.errors import ContextError, InputError
from drafttree.engine.detokenizer import special_tokens
from drafttree.engine.prompt_length import check_characters, longest_token

Message = Mapping[str, Any]
"""A turn of a conversation, as transformers' pipelines take it: {"role": "user", "content": "..."}."""
ROLES = ("system", "developer", "user", "assistant", "tool")


def is_conversation(prompt: object) -> bool:
    """True for a list of messages; what a tokenizer returns is a mapping as well and no message."""
    first = prompt[0] if isinstance(prompt, list | tuple) and prompt else None
    return isinstance(first, Mapping) and "input_ids" not in first


def render_chat(
    messages: Sequence[Message],
    tokenizer: Any,
    context: int | None = None,
    /,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    **variables: Any,
) -> list[int]:
    """The token ids of a conversation, up to where the assistant's next answer begins.

    Args:
        messages: messages from the first to the one to be answered, with a role of `ROLES` and text as content; further
            keys are for the template.
        tokenizer: the tokenizer of transformers, with a chat template.
        context: as for `drafttree.engine.prompt.encode`.
        add_generation_prompt: begin the answer; otherwise the token ids end with the last message.
        continue_final_message: end within the last message, which the text goes on with; no answer begins then.
        **variables: variables of the template, such as `tools`.

    Raises:
        ContextError: the rendered text has too many characters for the context.
        InputError: there is no chat template, the template fails, or the messages are malformed; names the message.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InputError("the target's tokenizer has no chat template; give text or token ids instead of messages")
    for number, message in enumerate(messages, start=1):
        _check(number, message)
    begins = add_generation_prompt and not continue_final_message
    if begins and messages[-1]["role"] == "assistant":
        raise InputError("the last message is the assistant's own; end with the message that it is to answer")
    if continue_final_message and not messages[-1].get("content"):
        raise InputError("the last message has no content that continue_final_message could go on with")
    try:
        ends = {"add_generation_prompt": begins, "continue_final_message": continue_final_message}
        options = {**variables, **ends, "return_dict": True}
        if context is not None and longest_token(tokenizer) is not None:
            text = tokenizer.apply_chat_template(list(messages), **{**options, "tokenize": False})
            check_characters(text, tokenizer, context)
        rendered = tokenizer.apply_chat_template(list(messages), **options)
    except ContextError:
        raise
    except Exception as error:  # a template is a program: it raises what it likes
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"the chat template fails on these messages: {reason}") from error
    return list(rendered["input_ids"])


def turn_end(tokenizer: Any) -> str | None:
    """The text between an answer and the next message, where the chat template ends answers by plain text.

    A model that was trained on such texts goes on with the user's next turn unless this string stops it. None where a
    special token ends an answer.
    """
    answer, question = "<|answer|>", "<|question|>"
    turns = [("user", question), ("assistant", answer), ("user", question)]
    try:
        messages = [{"role": role, "content": content} for role, content in turns]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # as above; what is wrong is told where an answer is wanted
        return None
    between = text.partition(answer)[2].partition(question)[0].rstrip()
    special = any(token in between for token in special_tokens(tokenizer).values())
    return None if special else between or None


def _check(number: int, message: object) -> None:
    """Refuse a message that templates would pass over in silence, or would print as it is."""
    if not isinstance(message, Mapping):
        raise InputError(f"message {number} is {message!r}; give a dictionary with role and content")
    if message.get("role") not in ROLES:
        raise InputError(f"message {number} has the role {message.get('role')!r}; known: {', '.join(ROLES)}")
    calls_tools = message["role"] == "assistant" and message.get("tool_calls")
    if not isinstance(message.get("content"), str) and not (calls_tools and message.get("content") is None):
        kind = type(message["content"]).__name__ if "content" in message else "missing"
        raise InputError(f"the content of message {number} is {kind}; give text")
