"""Conversations as prompts: lists of messages, rendered by the tokenizer's chat template."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from drafttree.core.errors import InputError
from drafttree.engine.control_tokens import ROLES, ControlTokens
from drafttree.engine.detokenizer import special_tokens
from drafttree.engine.prompt_length import check_characters

Message = Mapping[str, Any]
"""A turn of a conversation, as transformers' pipelines take it: {"role": "user", "content": "..."}.

The content is text, or a list of parts {"type": "text", "text": "..."}; an assistant's may be None or left out.
"""
TOOL_USE = "tool_use"
"""The name by which transformers knows a tokenizer's template of conversations with tools."""
CALL = "call"
"""Stands for the name of a function that the assistant calls, where `ROLES` stand for the content of messages."""


def is_conversation(prompt: object) -> bool:
    """True for a list of messages; what a tokenizer returns is a mapping as well and no message."""
    first_message = prompt[0] if isinstance(prompt, list | tuple) and prompt else None
    return isinstance(first_message, Mapping) and "input_ids" not in first_message


def render_chat(
    messages: Sequence[Message],
    tokenizer: Any,
    context: int | None = None,
    first: int = 1,
    marked: ControlTokens | None = None,
    restore: Callable[[str], str] = str,
    /,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    **variables: Any,
) -> list[int]:
    """The token ids of a conversation, up to where the assistant's next answer begins.

    Args:
        messages: messages from the first to the one to be answered, with a role of `ROLES`; further keys are for the
            template. It is given their content as text, or in parts where it shows only those.
        tokenizer: the tokenizer of transformers, with a chat template.
        context: as for `drafttree.engine.prompt.encode`.
        first: the number by which errors name the first message; 0 for one that tells of tools before the client's own.
        marked: what has marked the control tokens in messages and variables; they stay text. None for tokens.
        restore: puts back what stands for something else in messages, in what the template renders.
        add_generation_prompt: begin the answer; otherwise the token ids end with the last message.
        continue_final_message: end within the last message, which the text goes on with; no answer begins then.
        **variables: variables of the template, such as `tools`.

    Raises:
        ContextError: the rendered text has too many characters for the context.
        InputError: there is no chat template, it fails or leaves out what a message says, or the messages are
            malformed; names the message.
    """
    try:
        text = _rendered(messages, tokenizer, first, add_generation_prompt, continue_final_message, variables)
    except InputError as error:
        message = restore(str(error))
        raise InputError(marked.plain(message) if marked else message) from error.__cause__
    text = restore(text)
    check_characters(marked.plain(text) if marked else text, tokenizer, context)
    return marked.encode(text) if marked else list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _rendered(
    messages: Sequence[Message], tokenizer: Any, first: int, begins: bool, goes_on: bool, variables: dict[str, Any]
) -> str:
    """What the chat template makes of messages."""
    if not getattr(tokenizer, "chat_template", None):
        raise InputError("the target's tokenizer has no chat template; give text or token ids instead of messages")
    message_texts = [_texts(number, message) for number, message in enumerate(messages, first)]
    if variables.get("tools") is None and any(map(_is_about_calls, messages)):
        variables["tools"] = _no_tools(tokenizer)
    begins = begins and not goes_on
    if begins and messages[-1]["role"] == "assistant":
        raise InputError("the last message is the assistant's own; end with the message that it is to answer")
    if goes_on and not any(message_texts[-1]):
        raise InputError("the last message has no content that continue_final_message could go on with")

    def render(shaped: Sequence[Message]) -> str:
        ends = {"add_generation_prompt": begins, "continue_final_message": goes_on}
        ends = ends if len(shaped) == len(messages) else {}
        return tokenizer.apply_chat_template(list(shaped), tokenize=False, **{**variables, **ends})

    shaped_messages: list[Message] = list(messages)
    try:
        template = tokenizer.get_chat_template(tools=variables.get("tools"))
        shaped_messages = [
            _shaped(*entry, tokenizer, template) for entry in zip(itertools.count(first), messages, message_texts)
        ]
        text = render(shaped_messages)
        _check_shown(shaped_messages, tokenizer, template, render, first)
    except InputError:
        raise
    except Exception as error:  # a template is a program: it raises what it likes
        raise _failure(error, shaped_messages, render, first) from error
    return text


def _is_about_calls(message: Message) -> bool:
    """Whether a message has calls, or what a call has returned."""
    return bool(message.get("tool_calls")) or message["role"] == "tool"


def _no_tools(tokenizer: Any, template: str | None = None) -> list[Any] | None:
    """How a template is told that there are no tools: by an empty list if it is `TOOL_USE`, which walks through it.

    The list also has transformers choose that template, where none is given and the tokenizer has it.
    """
    templates = tokenizer.chat_template
    if isinstance(templates, dict) and TOOL_USE in templates and template in (None, templates[TOOL_USE]):
        return []
    return None


def as_text(texts: Sequence[str]) -> str:
    """The content of a message as most chat templates want it."""
    return "\n".join(texts)


def as_parts(texts: Sequence[str]) -> list[dict[str, str]]:
    """The content of a message as templates want it that walk through its parts."""
    return [{"type": "text", "text": text} for text in texts]


def _as_one_part(texts: Sequence[str]) -> list[dict[str, str]]:
    """The content of a message as templates want it that read its first part alone."""
    return as_parts([as_text(texts)])


Form = Callable[[Sequence[str]], Any]
FORMS: tuple[Form, ...] = (as_text, as_parts, _as_one_part)
WORDS = ("7391846205", "5026481937")
"""What is looked for in a prompt: digits, which no template changes."""


@lru_cache(maxsize=64)
def _form(tokenizer: Any, template: str, role: str, beside: str = "") -> Form | None:
    """The form in which a template shows all of what a message of a role says; None where it shows it in none.

    Text where it fails on the conversations that are tried, so that it says what it wants of the real one. For `CALL`,
    `beside` is what the message says that has the call.
    """
    silent = False
    for form, arguments in itertools.product(FORMS, ({}, "{}")):
        try:
            sample = _sample(tokenizer, template, role, form(WORDS), arguments, beside)
            tools = _no_tools(tokenizer, template)
            text = tokenizer.apply_chat_template(sample, tools=tools, tokenize=False, chat_template=template)
        except Exception:  # as above
            continue
        if all(word in text for word in WORDS) and f"'text': '{WORDS[0]}" not in text:  # as Python shows parts
            return form
        silent = silent or form is as_text
    return None if silent else as_text


def _sample(
    tokenizer: Any, template: str, role: str, content: Any, arguments: object, beside: str
) -> list[dict[str, Any]]:
    """A short conversation in which a message of a role has some content."""

    def say(role: str) -> dict[str, Any]:
        return {"role": role, "content": (_form(tokenizer, template, role) or as_text)(["hello"])}

    message = {"role": role, "content": content}
    if role == "user":
        return [message]
    if role == "assistant":
        return [say("user"), message, say("user")]
    if role not in ("tool", CALL):
        return [message, say("user")]
    function = {"name": content if role == CALL else "f", "arguments": arguments}
    call = {
        **say("assistant"),
        "content": (_form(tokenizer, template, "assistant") or as_text)([beside]) if beside else "",
        "tool_calls": [{"id": 9 * "a", "type": "function", "function": function}],
    }
    result = message if role == "tool" else say("tool")
    return [say("user"), call, {**result, "tool_call_id": 9 * "a", "name": "f"}]


def turn_end(tokenizer: Any) -> str | None:
    """The text between an answer and the next message, where the chat template ends answers by plain text.

    A model that was trained on such texts goes on with the user's next turn unless this string stops it. None where a
    special token ends an answer.
    """
    answer, question = "<|answer|>", "<|question|>"
    turns = [("user", question), ("assistant", answer), ("user", question)]
    try:
        template = tokenizer.get_chat_template()
        forms = {role: _form(tokenizer, template, role) or as_text for role, _ in turns}
        messages = [{"role": role, "content": forms[role]([content])} for role, content in turns]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # as above; what is wrong is told where an answer is wanted
        return None
    separator = text.partition(answer)[2].partition(question)[0].rstrip()
    is_special = any(token in separator for token in special_tokens(tokenizer).values())
    return None if is_special else separator or None


def _texts(number: int, message: object) -> list[str]:
    """The texts of a message's parts; refuses what templates would pass over in silence, or would print as it is."""
    if not isinstance(message, Mapping):
        raise InputError(f"message {number} is {message!r}; give a dictionary with role and content")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise InputError(f"message {number} has the role {role!r}; known: {', '.join(ROLES)}")
    if isinstance(content, str) or (content is None and role == "assistant"):
        return [content or ""]
    if not isinstance(content, list | tuple):
        type_name = type(content).__name__ if "content" in message else "missing"
        raise InputError(f"the content of message {number} is {type_name}; give text")
    for content_part in content:
        if (
            not isinstance(content_part, Mapping)
            or content_part.get("type") != "text"
            or not isinstance(content_part.get("text"), str)
        ):
            raise InputError(
                f"the content of message {number} has {content_part!r} as a part; give parts of type 'text'"
            )
    return [content_part["text"] for content_part in content]


def _shaped(number: int, message: Message, texts: Sequence[str], tokenizer: Any, template: str) -> Message:
    """A message with its content in the form that a template shows; refuses one that it leaves out."""
    role = message["role"]
    form = _form(tokenizer, template, role)
    if form is None and any(texts):
        raise InputError(
            f"the chat template leaves out what message {number} says, as all content of the role {role!r}; use "
            "another chat template or role"
        )
    call_text = "hello" if any(texts) else ""
    if message.get("tool_calls") and _form(tokenizer, template, CALL, call_text) is None:
        raise InputError(f"the chat template leaves out the tool calls of message {number}; give them as its content")
    return {**message, "content": (form or as_text)(texts or [""])}


def _check_shown(
    messages: Sequence[Message], tokenizer: Any, template: str, render: Callable[[Sequence[Message]], str], first: int
) -> None:
    """Refuse what a template leaves out since it shows but one of several: messages of the system, and calls."""
    system_indices = [index for index, message in enumerate(messages) if message["role"] in ("system", "developer")]
    system_indices = [
        index for index in system_indices if system_indices != [0] and any(_texts(index, messages[index]))
    ]
    call_indices = [index for index, message in enumerate(messages) if len(message.get("tool_calls") or ()) > 1]
    probe_messages = [*messages]
    for index in system_indices:
        form = _form(tokenizer, template, messages[index]["role"]) or as_text
        probe_messages[index] = {**messages[index], "content": form([_word(index)])}
    for index in call_indices:
        calls = [_renamed(call, _word(index, number)) for number, call in enumerate(messages[index]["tool_calls"])]
        probe_messages[index] = {**messages[index], "tool_calls": calls}
    if probe_messages == [*messages]:
        return
    text = render(probe_messages)
    if (omitted_index := next((index for index in system_indices if _word(index) not in text), None)) is not None:
        raise InputError(
            f"the chat template leaves out what message {omitted_index + first} says, since it shows the role "
            f"{messages[omitted_index]['role']!r} at one place alone; say all of that in the first message"
        )
    for index in call_indices:
        for number in range(len(messages[index]["tool_calls"])):
            if _word(index, number) not in text:
                raise InputError(
                    f"the chat template leaves out tool call {number + 1} of message {index + first}; give each call, "
                    "with its result behind it, in a message of its own"
                )


def _word(place: int, number: int = 0) -> str:
    """What stands for what a message says, or for the name of a call, where it is looked for in a prompt."""
    return f"{WORDS[0]}{place:06}{number:06}{WORDS[1]}"


def _renamed(call: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A call of another function."""
    return {**call, "function": {**call["function"], "name": name}} if "function" in call else {**call, "name": name}


def _failure(
    error: Exception, messages: Sequence[Message], render: Callable[[Sequence[Message]], str], first: int
) -> InputError:
    """What to say where a template fails; names the message with which that begins, unless it fails on any."""

    def fails(tried: Sequence[Message]) -> bool:
        try:
            render(tried)
        except Exception as found:  # as above
            return str(found) == str(error)
        return False

    subject = "these messages"
    if not fails([{"role": "user", "content": "hello"}]):
        passes, number = 0, len(messages)
        while number - passes > 1:
            middle = (passes + number) // 2
            passes, number = (passes, middle) if fails(messages[:middle]) else (middle, number)
        message_name = f"message {number - 1 + first}" if number - 1 + first else "the message that tells of the tools"
        subject = f"{message_name} (role {messages[number - 1]['role']!r})"
    reason = " ".join(str(error).split())
    if type(error).__name__ == "TemplateError":  # jinja2's own kinds are subclasses
        return InputError(f"the chat template refuses {subject} with an error of its own: {reason}")
    return InputError(f"the chat template fails on {subject}: {type(error).__name__}: {reason}")
