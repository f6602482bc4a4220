"""Renders conversations, which are lists of messages, to prompts by the tokenizer's chat template."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from drafttree.core.errors import InputError
from drafttree.text.control_tokens import ROLES, ControlTokens
from drafttree.text.detokenizer import special_tokens
from drafttree.text.prompt_length import check_characters

Message = Mapping[str, Any]
"""A message of a conversation, as transformers' pipelines take it: {"role": "user", "content": "..."}.

The content is text, or a list of parts {"type": "text", "text": "..."} and, for models that read images, {"type":
"image", "image": ...}; that of an assistant may be None or left out.
"""
Expand = Callable[[str], str]
"""Puts the placeholder tokens of images into a rendered conversation, which has one for each."""
IMAGE_MARK = {"type": "image"}
"""A part of a message that stands for an image, as chat templates know it."""
TOOL_USE = "tool_use"
"""transformers' name of a tokenizer's template for conversations with tools."""
CALL = "call"
"""Used like a role, but for the name of a function that the assistant calls instead of the content of a message."""


def is_conversation(prompt: object) -> bool:
    """Whether this is a list of messages. The output of a tokenizer, which is a mapping too, is not a message."""
    first_message = prompt[0] if isinstance(prompt, list | tuple) and prompt else None
    return isinstance(first_message, Mapping) and "input_ids" not in first_message


def render_chat(
    messages: Sequence[Message],
    tokenizer: Any,
    context: int | None = None,
    first_number: int = 1,
    marked: ControlTokens | None = None,
    restore: Callable[[str], str] = str,
    expand: Expand | None = None,
    /,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    **variables: Any,
) -> list[int]:
    """Return the token ids of a conversation, up to the beginning of the assistant's next answer.

    Args:
        messages: messages from the first to the one to answer, each with a role of `ROLES`. The template is given their
            content as text, or in parts if it shows only parts, and their other keys as they are.
        tokenizer: a tokenizer of transformers, with a chat template.
        context: as for `drafttree.text.prompt.encode`.
        first_number: the number of the first message in errors; 0 if it describes tools, before the client's own
            messages.
        marked: the control tokens, if they were marked in messages and variables to stay text; None if they become
            tokens.
        restore: replaces placeholders of the messages in the rendered text.
        expand: puts the placeholder tokens of images into the rendered text, whose control tokens are marked. None
            refuses images.
        add_generation_prompt: begin the answer; if False, the token ids end with the last message.
        continue_final_message: end inside the last message, which the text then continues; no answer begins.
        **variables: variables of the template, such as `tools`.

    Raises:
        ContextError: if the rendered text has too many characters for the context.
        InputError: if there is no chat template, it fails or leaves out what a message says, or a message is malformed;
            names the message.
    """
    if expand is None and (images := image_parts(messages)):
        index, image = images[0]
        number = index - 1 + first_number
        raise InputError(f"the content of message {number} has {image!r} as a part; give parts of type 'text'")
    try:
        text = _rendered(messages, tokenizer, first_number, add_generation_prompt, continue_final_message, variables)
    except InputError as error:
        message = restore(str(error))
        raise InputError(marked.plain(message) if marked else message) from error.__cause__
    text = restore(text)
    text = expand(text) if expand else text
    check_characters(marked.plain(text) if marked else text, tokenizer, context)
    return marked.encode(text) if marked else list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _rendered(
    messages: Sequence[Message],
    tokenizer: Any,
    first_number: int,
    begins: bool,
    goes_on: bool,
    variables: dict[str, Any],
) -> str:
    """Render messages by the chat template; arguments and errors are those of `render_chat`."""
    if not getattr(tokenizer, "chat_template", None):
        raise InputError("the target's tokenizer has no chat template; give text or token ids instead of messages")
    message_texts = [_texts(number, message) for number, message in enumerate(messages, first_number)]
    if variables.get("tools") is None and any(map(_is_about_calls, messages)):
        variables["tools"] = _no_tools(tokenizer)
    begins = begins and not goes_on
    if begins and messages[-1]["role"] == "assistant":
        raise InputError("the last message is the assistant's own; end with the message that it is to answer")
    if goes_on and not any(message_texts[-1]):
        raise InputError("the last message has no content that continue_final_message could continue")

    def render(shaped: Sequence[Message]) -> str:
        options = {**variables}
        if len(shaped) == len(messages):
            options |= {"add_generation_prompt": begins, "continue_final_message": goes_on}
        return tokenizer.apply_chat_template(list(shaped), tokenize=False, **options)

    shaped_messages: list[Message] = list(messages)
    try:
        template = _Template(tokenizer, tokenizer.get_chat_template(tools=variables.get("tools")))
        shaped_messages = [
            _shaped(number, message, texts, template)
            for number, message, texts in zip(itertools.count(first_number), messages, message_texts)
        ]
        text = render(shaped_messages)
        _check_shown(shaped_messages, template, render, first_number)
    except InputError:
        raise
    except Exception as error:  # a template is a program: it raises what it likes
        raise _failure(error, shaped_messages, render, first_number) from error
    return text


def _is_about_calls(message: Message) -> bool:
    """Whether a message calls tools, or has the result of a call."""
    return bool(message.get("tool_calls")) or message["role"] == "tool"


def _no_tools(tokenizer: Any, template: str | None = None) -> list[Any] | None:
    """The value of `tools` in a chat without tools: [] for the template `TOOL_USE`, which iterates over it, else None.

    If no template is given and the tokenizer has that one, the list also makes transformers choose it.
    """
    templates = tokenizer.chat_template
    if isinstance(templates, dict) and TOOL_USE in templates and template in (None, templates[TOOL_USE]):
        return []
    return None


def as_text(texts: Sequence[str]) -> str:
    """The content of a message as text, for most chat templates."""
    return "\n".join(texts)


def as_parts(texts: Sequence[str]) -> list[dict[str, str]]:
    """The content of a message in parts, for templates that iterate over them."""
    return [{"type": "text", "text": text} for text in texts]


def _as_one_part(texts: Sequence[str]) -> list[dict[str, str]]:
    """The content of a message in a single part, for templates that read only the first one."""
    return as_parts([as_text(texts)])


class _Template(NamedTuple):
    """A chat template.

    Attributes:
        tokenizer: the tokenizer of transformers that renders it.
        source: the template itself, one of those that the tokenizer has.
    """

    tokenizer: Any
    source: str


Form = Callable[[Sequence[str]], Any]
FORMS: tuple[Form, ...] = (as_text, as_parts, _as_one_part)
WORDS = ("7391846205", "5026481937")
"""Test content that is looked for in rendered text: digits, which no template changes."""


@lru_cache(maxsize=64)
def _form(template: _Template, role: str, call_content: str = "") -> Form | None:
    """Find the form of content in which a template shows all that a message of this role says; None if there is none.

    If the template fails on all test conversations, the form is text, so that its error on the real one is reported.
    For `CALL`, `call_content` is the content of the message with the call.
    """
    tokenizer, source = template
    omits_text = False
    for form, arguments in itertools.product(FORMS, ({}, "{}")):
        try:
            sample = _sample(template, role, form(WORDS), arguments, call_content)
            tools = _no_tools(tokenizer, source)
            text = tokenizer.apply_chat_template(sample, tools=tools, tokenize=False, chat_template=source)
        except Exception:  # as above
            continue
        shows_python = f"'text': '{WORDS[0]}" in text  # as Python prints parts
        if all(word in text for word in WORDS) and not shows_python:
            return form
        omits_text = omits_text or form is as_text
    return None if omits_text else as_text


def _content(template: _Template, role: str, texts: Sequence[str]) -> Any:
    """The content of a message in the form that the template shows for its role, or as text."""
    form = _form(template, role) or as_text
    return form(texts)


def _sample(template: _Template, role: str, content: Any, arguments: object, call_content: str) -> list[dict[str, Any]]:
    """A short test conversation in which a message of this role has this content."""

    def say(role: str) -> dict[str, Any]:
        return {"role": role, "content": _content(template, role, ["hello"])}

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
        "content": _content(template, "assistant", [call_content]) if call_content else "",
        "tool_calls": [{"id": 9 * "a", "type": "function", "function": function}],
    }
    result = message if role == "tool" else say("tool")
    return [say("user"), call, {**result, "tool_call_id": 9 * "a", "name": "f"}]


@lru_cache(maxsize=64)
def shows_images(tokenizer: Any, role: str) -> bool:
    """Whether the chat template has a place for the images in messages of a role."""
    template = _Template(tokenizer, tokenizer.get_chat_template())
    texts = as_parts([WORDS[0]])
    rendered_texts = list[str]()
    for content in (texts, [*texts, IMAGE_MARK]):
        try:
            sample = _sample(template, role, content, {}, "")
            rendered_texts.append(tokenizer.apply_chat_template(sample, tokenize=False))
        except Exception:  # as above
            return False
    without_image, with_image = rendered_texts
    return WORDS[0] in with_image and with_image != without_image and "'type': 'image'" not in with_image


def turn_end(tokenizer: Any) -> str | None:
    """The text between an answer and the next message, if the chat template ends answers by plain text.

    A model that was trained on such texts continues with the user's next message unless this string stops it. None if a
    special token ends an answer.
    """
    question = "<|question|>"
    answer = "<|answer|>"
    try:
        template = _Template(tokenizer, tokenizer.get_chat_template())
        user_message = {"role": "user", "content": _content(template, "user", [question])}
        assistant_message = {"role": "assistant", "content": _content(template, "assistant", [answer])}
        text = tokenizer.apply_chat_template([user_message, assistant_message, user_message], tokenize=False)
    except Exception:  # as above; the error is reported where an answer is wanted
        return None
    separator = text.partition(answer)[2].partition(question)[0].rstrip()
    is_special = any(token in separator for token in special_tokens(tokenizer).values())
    return None if is_special else separator or None


def _texts(number: int, message: object) -> list[str]:
    """The texts of a message's parts.

    Raises:
        InputError: if the message has anything that templates would silently ignore, or print as a Python object.
    """
    if not isinstance(message, Mapping):
        raise InputError(f"message {number} is {message!r}; give a dictionary with role and content")
    role = message.get("role")
    content = message.get("content")
    if role not in ROLES:
        raise InputError(f"message {number} has the role {role!r}; known: {', '.join(ROLES)}")
    if isinstance(content, str) or (content is None and role == "assistant"):
        return [content or ""]
    if not isinstance(content, list | tuple):
        type_name = type(content).__name__ if "content" in message else "missing"
        raise InputError(f"the content of message {number} is {type_name}; give text")
    for content_part in content:
        if not (_is_text_part(content_part) or is_image_part(content_part)):
            raise InputError(
                f"the content of message {number} has {content_part!r} as a part; give parts of type 'text' or 'image'"
            )
    return [content_part["text"] for content_part in content if not is_image_part(content_part)]


def is_image_part(content_part: object) -> bool:
    """Whether a part of a message is an image: {"type": "image", ...}, whatever says where it is."""
    return isinstance(content_part, Mapping) and content_part.get("type") == "image"


def image_parts(messages: Any) -> list[tuple[int, Mapping[str, Any]]]:
    """The image parts of a conversation in order, each with the number of its message; none for other prompts."""
    images = list[tuple[int, Mapping[str, Any]]]()
    if not is_conversation(messages):
        return images
    for number, message in enumerate(messages, start=1):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list | tuple):
            for content_part in content:
                if is_image_part(content_part):
                    images.append((number, content_part))
    return images


def without_images(messages: Sequence[Message]) -> list[Message]:
    """The messages of a conversation with `IMAGE_MARK` in the place of each image."""
    marked_messages = list[Message]()
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list | tuple) and any(map(is_image_part, content)):
            message = {**message, "content": [*map(_template_part, content)]}
        marked_messages.append(message)
    return marked_messages


def _is_text_part(content_part: object) -> bool:
    if not isinstance(content_part, Mapping) or content_part.get("type") != "text":
        return False
    return isinstance(content_part.get("text"), str)


def _shaped(number: int, message: Message, texts: Sequence[str], template: _Template) -> Message:
    """A message with its content in the form that the template shows.

    Raises:
        InputError: if the template leaves out its content or its tool calls.
    """
    role = message["role"]
    form = _form(template, role)
    if form is None and any(texts):
        raise InputError(
            f"the chat template leaves out what message {number} says, as it does for all messages of the role "
            f"{role!r}; use another chat template or role"
        )
    if any(map(is_image_part, content := message.get("content") or ())):
        return {**message, "content": [*map(_template_part, content)]}
    call_text = "hello" if any(texts) else ""
    if message.get("tool_calls") and _form(template, CALL, call_text) is None:
        raise InputError(f"the chat template leaves out the tool calls of message {number}; give them as its content")
    return {**message, "content": (form or as_text)(texts or [""])}


def _template_part(content_part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a message as templates know it, without the image itself."""
    return IMAGE_MARK if is_image_part(content_part) else {**content_part}


def _check_shown(
    messages: Sequence[Message], template: _Template, render: Callable[[Sequence[Message]], str], first_number: int
) -> None:
    """Check that a template shows all system messages and all tool calls, of which some show only one.

    Raises:
        InputError: if it leaves one out.
    """
    system_indices = _system_indices(messages)
    call_indices = [index for index, message in enumerate(messages) if len(message.get("tool_calls") or ()) > 1]
    if not system_indices and not call_indices:
        return
    test_messages = [*messages]
    for index in system_indices:
        content = _content(template, messages[index]["role"], [_word(index)])
        test_messages[index] = {**messages[index], "content": content}
    for index in call_indices:
        calls = [_renamed(call, _word(index, number)) for number, call in enumerate(messages[index]["tool_calls"])]
        test_messages[index] = {**messages[index], "tool_calls": calls}
    text = render(test_messages)
    for index in system_indices:
        if _word(index) not in text:
            raise InputError(
                f"the chat template leaves out what message {index + first_number} says, since it shows the role "
                f"{messages[index]['role']!r} in one place only; put all of that into the first message"
            )
    for index in call_indices:
        for number in range(len(messages[index]["tool_calls"])):
            if _word(index, number) not in text:
                raise InputError(
                    f"the chat template leaves out tool call {number + 1} of message {index + first_number}; give each "
                    "call, with its result behind it, in a message of its own"
                )


def _system_indices(messages: Sequence[Message]) -> list[int]:
    """The indices of system messages that say something; none if the first message is the only system message."""
    indices = [index for index, message in enumerate(messages) if message["role"] in ("system", "developer")]
    if indices == [0]:
        return []
    return [index for index in indices if any(_texts(index, messages[index]))]


def _word(index: int, number: int = 0) -> str:
    """Test content of the message at `index`, or test name of its tool call `number`, to look for in rendered text."""
    return f"{WORDS[0]}{index:06}{number:06}{WORDS[1]}"


def _renamed(call: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A tool call with another function name."""
    return {**call, "function": {**call["function"], "name": name}} if "function" in call else {**call, "name": name}


def _failure(
    error: Exception, messages: Sequence[Message], render: Callable[[Sequence[Message]], str], first_number: int
) -> InputError:
    """The error to raise if a template fails; names the message from which on it does, unless it fails on any."""

    def fails(subset: Sequence[Message]) -> bool:
        try:
            render(subset)
        except Exception as other_error:  # as above
            return str(other_error) == str(error)
        return False

    subject = "these messages"
    if not fails([{"role": "user", "content": "hello"}]):
        passing_count = 0
        failing_count = len(messages)
        while failing_count - passing_count > 1:
            middle_count = (passing_count + failing_count) // 2
            if fails(messages[:middle_count]):
                failing_count = middle_count
            else:
                passing_count = middle_count
        number = failing_count - 1 + first_number
        message_name = f"message {number}" if number else "the message that describes the tools"
        subject = f"{message_name} (role {messages[failing_count - 1]['role']!r})"
    reason = " ".join(str(error).split())
    if type(error).__name__ == "TemplateError":  # jinja2's own kinds are subclasses
        return InputError(f"the chat template refuses {subject} with an error of its own: {reason}")
    return InputError(f"the chat template fails on {subject}: {type(error).__name__}: {reason}")
