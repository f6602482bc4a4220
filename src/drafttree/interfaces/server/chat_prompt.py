"""Renders conversations as prompts with the model's chat template."""

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from drafttree.engine.image_prompt import EncodedPrompt
from drafttree.images.processor import PreparedImages
from drafttree.interfaces.server.dialect.arguments import written_arguments
from drafttree.interfaces.server.dialect.families import HERMES, CallForm
from drafttree.interfaces.server.dialect.model_dialect import SWITCHES, Dialect
from drafttree.interfaces.server.errors import ServerError, blaming
from drafttree.interfaces.server.request import ChatRequest, CustomCall, ImagePart, Message, Tool, ToolCallParam
from drafttree.interfaces.server.written_json import WrittenArguments
from drafttree.text.chat import IMAGE_MARK, as_parts, as_text, is_image_part, render_chat, shows_images
from drafttree.text.control_tokens import START, ControlTokens, placeholder_tokens

TOOLS_INTRODUCTION = "You may call these functions, described by one line of JSON each:"
HOW_TO_CALL = "To call one, write its name and arguments in this form:\n"
RESULT = "<tool_response>\n{}\n</tool_response>"
OWN_ARGUMENTS = {"messages", "sanitize_control_tokens"}
OWN_ARGUMENTS |= {*inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters}
"""Arguments of `apply_chat_template` and the variables that it sets. A request may not set these."""
NO_EFFORT = "none"
Call = ToolCallParam | CustomCall


def known_marks(dialect: Dialect) -> str:
    """The marks of thinking, tool calls and results, including those that only the server writes."""
    form = dialect.calls or HERMES
    call = form.text([("", written_arguments(form.arguments, '{"": ""}'))])
    return "\n".join([RESULT, call, *(dialect.thinking.marks if dialect.thinking else ())])


def read_prompt(
    request: ChatRequest,
    tokenizer: Any,
    dialect: Dialect,
    context: int | None = None,
    control_tokens: ControlTokens | None = None,
    images: PreparedImages | None = None,
) -> EncodedPrompt:
    """The prompt of a conversation.

    If the chat template does not support tools, the system message describes them, and calls and their results are
    shown as text.

    Args:
        request: the client's request.
        tokenizer: the model's tokenizer, with its chat template.
        dialect: how the template, and the model, write tool calls and thinking.
        context: as for `render_chat`.
        control_tokens: makes control tokens in the request plain text, unlike those of the template; None to keep
            all of them as tokens.
        images: the images of the request.

    Raises:
        ServerError: `chat_template_kwargs` has a name that is not a template's variable, the template does not support
            `reasoning_effort`, or `render_chat` cannot render the messages.
    """
    if images:
        control_tokens = control_tokens or placeholder_tokens(tokenizer, images.placeholders)
    form = ShownMessages(dialect, control_tokens)
    variables = _variables(request, dialect, form)
    messages = shown_messages = [form.message(message) for message in request.messages]
    if not dialect.native:
        shown_messages = form.with_tools(messages, request.told_tools)
    first_number = 1 - len(shown_messages) + len(messages)
    if images and not (dialect.native and shows_images(tokenizer, "tool")):
        shown_messages = without_tool_images(shown_messages)
    expand = partial(images.expand, mark=START) if images else None
    with blaming(request.called("messages")):
        tokens = render_chat(
            *(shown_messages, tokenizer, context, first_number, control_tokens, form.arguments.restored, expand),
            **variables,
        )
        return EncodedPrompt(tokens, images.of_tokens(tokens) if images else None)


def _variables(request: ChatRequest, dialect: Dialect, form: "ShownMessages") -> dict[str, Any]:
    """The variables of the chat template.

    Raises:
        ServerError: `chat_template_kwargs` has a name that is not a template's variable, or as for `_effort`.
    """
    given_variables = request.chat_template_kwargs or {}
    if wrong_name := next((name for name in given_variables if name in OWN_ARGUMENTS), None):
        raise ServerError(400, f"{wrong_name!r} is not a variable of chat templates", param="chat_template_kwargs")
    variables = _effort(request, dialect)
    variables |= {name: form.kept(value) for name, value in given_variables.items()}
    variables["add_generation_prompt"] = request.add_generation_prompt is not False
    variables["continue_final_message"] = bool(request.continue_final_message)
    if dialect.native:
        described = [tool.model_dump(exclude_none=True, exclude={"cache_control"}) for tool in request.told_tools]
        variables["tools"] = form.kept(described) or None
    return variables


def _effort(request: ChatRequest, dialect: Dialect) -> dict[str, Any]:
    """The template variables for the request's reasoning effort, including switches that turn thinking on or off.

    Raises:
        ServerError: the template supports none of them. A model without thinking may be asked not to think.
    """
    effort = request.reasoning_effort
    field = request.called("reasoning_effort")
    if effort is None or (effort == NO_EFFORT and not dialect.thinking and not dialect.takes_effort):
        return {}
    if not dialect.takes_effort:
        message = f"{field} is {effort!r}, but the model's chat template does not support it; leave it out"
        raise ServerError(400, message, param=field, code="not_served")
    return {"reasoning_effort": effort, **dict.fromkeys(SWITCHES, effort != NO_EFFORT)}


def without_tool_images(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with the images of tool results in the user's message behind them, for templates without such.

    If the user says nothing there, a message of the user is added.
    """
    shown_messages = list[Mapping[str, Any]]()
    tool_images = list[Mapping[str, Any]]()
    for message in messages:
        role = message["role"]
        if role == "tool":
            tool_images += [content_part for content_part in message["content"] if is_image_part(content_part)]
            texts = [content_part for content_part in message["content"] if not is_image_part(content_part)]
            shown_messages.append({**message, "content": texts})
            continue
        if tool_images and role == "user":
            message = {**message, "content": [*tool_images, *message["content"]]}
        elif tool_images:
            shown_messages.append({"role": "user", "content": tool_images})
        tool_images = []
        shown_messages.append(message)
    if tool_images:
        shown_messages.append({"role": "user", "content": tool_images})
    return shown_messages


class ShownMessages:
    """Converts the messages of a request to messages for a chat template.

    Args:
        dialect: how the template, and the model, write tool calls and thinking.
        control_tokens: makes control tokens in the request plain text; None to keep them as tokens.

    Attributes:
        arguments: reads the arguments of tool calls.
    """

    def __init__(self, dialect: Dialect, control_tokens: ControlTokens | None) -> None:
        self._dialect = dialect
        self._control_tokens = control_tokens
        self.arguments = WrittenArguments(self.kept)

    def kept(self, value: Any) -> Any:
        """A value of the request, in which control tokens are marked as text unless they are kept as tokens."""
        return self._control_tokens.kept(value) if self._control_tokens else value

    def message(self, message: Message) -> dict[str, Any]:
        """A message for the template; if that does not support tools, calls and their results become text."""
        dialect = self._dialect
        native = self._dialect.native
        texts = self.kept(message.texts)
        calls = message.tool_calls or ()
        if message.role == "tool" and not native:
            images = [IMAGE_MARK for _ in message.images]
            return {"role": "user", "content": [*as_parts([RESULT.format(as_text(texts))]), *images]}
        knows_role = message.role != "developer" or message.role in dialect.template  # the newer name of "system"
        message_fields: dict[str, Any] = {} if message.name is None else {"name": self.kept(message.name)}
        if native and message.tool_call_id is not None:
            message_fields["tool_call_id"] = self._call_id(message.tool_call_id)
        if native and calls:
            message_fields["tool_calls"] = [self._native_call(call, native) for call in calls]
        elif calls:
            texts = [*filter(None, texts), self._calls_as_text(calls)]
        message_fields |= self._thought(message)
        content = self._content(message, texts)
        return {"role": message.role if knows_role else "system", "content": content, **message_fields}

    def _content(self, message: Message, texts: Sequence[str]) -> list[dict[str, Any]]:
        """The content of a message for the template: its texts, which begin with those of its parts, and images."""
        if not message.images:
            return [*as_parts(texts)]
        content = list[dict[str, Any]]()
        later_texts = iter(texts)
        for content_part in message.content or ():
            content += [IMAGE_MARK] if isinstance(content_part, ImagePart) else as_parts([next(later_texts)])
        return content + as_parts([*later_texts])

    def with_tools(self, messages: Sequence[Mapping[str, Any]], tools: Iterable[Tool]) -> list[Mapping[str, Any]]:
        """The messages with a system message that describes the tools, if there are any."""
        function_fields = {"name", "description", "parameters"}
        functions = [tool.function.model_dump(exclude_none=True, include=function_fields) for tool in tools]
        if not functions:
            return [*messages]
        form = self._dialect.calls or HERMES
        example = "{...}" if form.arguments == "json" else written_arguments(form.arguments, '{"KEY": "VALUE"}')
        call_advice = HOW_TO_CALL + form.text([("NAME", example)])
        tools_text = "\n".join([TOOLS_INTRODUCTION, *self.kept([*map(json.dumps, functions)]), call_advice])
        first_message, later_messages = messages[0], messages[1:]
        if first_message["role"] == "system":
            return [
                {**first_message, "content": [*first_message["content"], *as_parts([f"\n{tools_text}"])]},
                *later_messages,
            ]
        return [{"role": "system", "content": tools_text}, *messages]

    def _thought(self, message: Message) -> dict[str, str]:
        """The field of a message with its thinking; empty if the template does not read it."""
        name = self._dialect.thought_name
        if not name or not message.reasoning_content:
            return {}
        if name == "thinking" and message.tool_calls and any(message.texts):  # gpt-oss's template refuses both
            return {}
        return {name: self.kept(message.reasoning_content)}

    def _calls_as_text(self, calls: Iterable[Call]) -> str:
        form = self._dialect.calls or HERMES
        functions = [call.function for call in calls]
        return form.text([(self.kept(call.name), self._arguments_as_text(call.arguments, form)) for call in functions])

    def _arguments_as_text(self, text: str, form: CallForm) -> str:
        if form.arguments == "json":
            return self.kept(text)
        return written_arguments(form.arguments, text, lambda arguments: self.kept(self.arguments.read(arguments)))

    def _native_call(self, call: Call, form: CallForm) -> dict[str, Any]:
        text = call.function.arguments
        arguments = self.kept(text if form.template_writes_text else self.arguments.read(text))
        function = {"name": self.kept(call.function.name), "arguments": arguments}
        return {"id": self._call_id(call.id), "type": "function", "function": function}

    def _call_id(self, original_id: str) -> str:
        return self.kept(self._dialect.call_id(original_id))
