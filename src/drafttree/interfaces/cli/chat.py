"""`drafttree chat`: a conversation in the terminal."""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from drafttree.core.errors import ConfigError, ContextError, DraftTreeError, InputError
from drafttree.interfaces.cli.image_files import ImageFile, check_reads_images, message_content, pasted_paths
from drafttree.interfaces.cli.option_groups import DecoderOptions, ShapingOptions, given_options, grouped
from drafttree.interfaces.cli.options import (
    DraftTemperature,
    Target,
)
from drafttree.interfaces.console import make_console
from drafttree.loading import make_policy
from drafttree.measure.prompts import read_text

if TYPE_CHECKING:
    from drafttree.engine.decoder import Decoder
    from drafttree.engine.request import Request

HELP = """\
/image FILE   attach an image to the next message; without FILE, list what is attached
/detach       attach no image to the next message
/reset        begin a new conversation
/save FILE    write the messages to a file, as JSON
/policy SPEC  grow the trees by another policy, such as talon:budget=60
/seed N       draw every answer with this seed from now on; without N, another one each time
/help         show this list
/quit         leave, as Ctrl-D does
Ctrl-C stops an answer and keeps what was written."""


@grouped
def chat(
    models: DecoderOptions,
    shaping: ShapingOptions,
    target: Target = "embedded",
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")] = None,
    template: Annotated[
        Path | None,
        typer.Option(
            "--chat-template",
            metavar="FILE",
            help="Chat template, a Jinja file.",
            show_default="the model's own",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="Random seed.", show_default="a new one for each answer"),
    ] = None,
    draft_temperature: DraftTemperature = None,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Stop string. May be repeated.")] = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, metavar="TOKENS", help="Maximum number of tokens per answer.")
    ] = 512,
) -> None:
    """Chat with a model in the terminal.

    Accepted draft tokens are green, and /help lists the commands. Every line of standard input is a message, or a
    command that begins with a slash. /image FILE attaches an image to the next message, if the model reads images. Each
    answer reads only the newest message; the rest stays in the KV cache.
    """
    template_text = read_text(template) if template else None
    options = shaping.to_dict()
    models.check()

    from drafttree.interfaces.display import show_lossy
    from drafttree.text.chat import turn_end

    _say("Loading " + ("embedded, a toy model of 10 M parameters" if target == "embedded" else target) + " ...")
    decoder = models.load(target)
    if template_text is not None and decoder.tokenizer:
        decoder.tokenizer.chat_template = template_text
    if not getattr(decoder.tokenizer, "chat_template", None):
        raise ConfigError(f"{target!r} has no chat template; give one with --chat-template FILE, or use generate")
    stops = [*(stop or ()), *filter(None, [turn_end(decoder.tokenizer)])]
    options |= given_options({"seed": seed, "stop": stops or None, "draft_temperature": draft_temperature})
    conversation = Conversation(decoder, options, max_new_tokens, system)
    interactive = sys.stdin is not None and sys.stdin.isatty()
    if interactive:
        _say("/help lists the commands")
    show_lossy(decoder.fidelity)
    for line in _typed_lines() if interactive else _piped_lines():
        try:
            conversation.take(line)
        except DraftTreeError as error:
            if not interactive:
                raise
            _say(f"error: {error}")


class Conversation:
    """A conversation, which continues with each line of the user.

    Args:
        decoder: the decoder, whose tokenizer has a chat template.
        options: options of `Decoder.generate`.
        max_new_tokens: the most new tokens per answer; an answer also ends at the end of the model's context.
        system: the system message; None for none.

    Attributes:
        messages: the messages so far.
    """

    def __init__(self, decoder: "Decoder", options: dict[str, Any], max_new_tokens: int, system: str | None) -> None:
        self._decoder = decoder
        self._limit = max_new_tokens
        self._options: dict[str, Any] = options
        self._first_messages = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, Any]] = [*self._first_messages]
        self._attached_images = list[ImageFile]()

    def take(self, line: str) -> None:
        """Answer a message, or execute a command.

        Raises:
            DraftTreeError: the message cannot be answered, or the command fails; the conversation is unchanged.
            typer.Exit: the command ends the conversation.
        """
        if not line.startswith("/"):
            self._answer(line)
            return
        name, _, argument = line[1:].partition(" ")
        command = getattr(self, f"command_{name}", None)
        if command is None:
            raise ConfigError(f"there is no command /{name}; /help lists them")
        command(argument.strip())

    def command_help(self, _: str) -> None:
        _say(HELP)

    def command_quit(self, _: str) -> None:
        raise typer.Exit

    def command_image(self, paths: str) -> None:
        if paths:
            check_reads_images(self._decoder)
            self._attached_images += [ImageFile.read(path) for path in pasted_paths(paths)]
        descriptions = ", ".join(image.description for image in self._attached_images)
        _say(f"with the next message: {descriptions}" if descriptions else "no image is attached; /image FILE does it")

    def command_detach(self, _: str) -> None:
        self._attached_images.clear()
        _say("no image is attached")

    def command_reset(self, _: str) -> None:
        self.messages = [*self._first_messages]
        self._attached_images.clear()
        self._decoder.prefixes.clear()
        _say("a new conversation")

    def command_save(self, name: str) -> None:
        if not name:
            raise ConfigError("/save needs the name of a file")
        try:
            Path(name).write_text(json.dumps(self.messages, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"{name} cannot be written: {getattr(error, 'strerror', None) or error}") from None
        _say(f"{len(self.messages)} messages are in {name}")

    def command_policy(self, spec: str) -> None:
        self._decoder = self._decoder.with_policy(make_policy(spec))
        _say(f"policy: {self._decoder.policy!r}")

    def command_seed(self, number: str) -> None:
        if number and not number.isdecimal():
            raise ConfigError(f"/seed is {number!r}; give a whole number, or nothing for another seed each time")
        self._options["seed"] = int(number) if number else None
        _say(f"seed: {number or 'another one each time'}")

    def _answer(self, text: str) -> None:
        from drafttree.interfaces import display

        messages = [*self.messages, {"role": "user", "content": message_content(text, self._attached_images)}]
        request = self._request(messages)
        console = make_console()
        with suppress(KeyboardInterrupt):
            for chunk in self._decoder.stream_request(request):
                display.show_chunk(console, chunk)
        if not request.text.finish_reason:
            request.end("interrupted")
        print(flush=True)
        self.messages = [*messages, {"role": "assistant", "content": request.text.detokenizer.text.strip()}]
        self._attached_images.clear()
        display.show_speed(request.generation())

    def _request(self, messages: list[dict[str, Any]]) -> "Request":
        """The request of an answer that fits into the model's context."""
        try:
            return self._decoder.new_request(messages, max_new_tokens=self._limit, **self._options)
        except ContextError:
            room = self._room(messages)
        return self._decoder.new_request(messages, max_new_tokens=room, **self._options)

    def _room(self, messages: list[dict[str, Any]]) -> int:
        """The number of tokens of an answer that the model's context has room for.

        Raises:
            ContextError: there is no room.
        """
        context = self._decoder.target.context
        assert context is not None, "only a limited context is exceeded"
        try:
            prompt = self._decoder.prepare(messages, max_new_tokens=1, min_new_tokens=0)
        except ContextError:
            raise ContextError(
                f"the messages of this conversation leave no room in the model's context of {context}; begin a new one "
                "with /reset"
            ) from None
        return context - len(prompt.tokens)


def _typed_lines() -> Iterator[str]:
    """Lines from a terminal, with line editing and history; Ctrl-C discards a line, Ctrl-D ends the input."""
    with suppress(ImportError):  # Windows has no readline, and edits lines itself
        import readline  # noqa: F401
    while True:
        try:
            line = input("> ")
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            print()
            return
        if line.strip():
            yield line.strip()


def _piped_lines() -> Iterator[str]:
    """The lines of standard input that are not blank."""
    try:
        for line in sys.stdin or ():
            if line.strip():
                yield line.strip()
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8 text") from None


def _say(text: str) -> None:
    """Print a line on standard error; standard output is for answers only."""
    make_console(stderr=True).print(Text(text, style="dim"), soft_wrap=True)
