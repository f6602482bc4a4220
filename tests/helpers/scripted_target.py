"""A target that writes scripted turns to a coding agent, behind drafttree's own server."""

import json
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlavaForConditionalGeneration,
    LogitsProcessor,
    PreTrainedTokenizerFast,
)

import drafttree
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers.dialects import tokenizer_of
from helpers.image_folders import llava
from testing import tiny
from testing.live_server import serving

SIZES = {"num_hidden_layers": 1, "max_position_embeddings": 131_072}
DOCS = Path(__file__).parents[2] / "docs"
WRITING = ("/v1/messages", "/v1/responses", "/v1/chat/completions")
TURN = "<|im_start|>assistant\n"
PLACEHOLDER = "<image>"
PARTS_AS_TEXT = (
    "{%- set ns = namespace(messages=[]) %}{%- for message in messages %}{%- if message.content is string %}"
    "{%- set ns.messages = ns.messages + [message] %}{%- else %}{%- set of = namespace(text='') %}"
    "{%- for part in message.content or [] %}"
    "{%- set of.text = of.text + ('<image>' if part.type == 'image' else part.text) %}{%- endfor %}"
    "{%- set ns.messages = ns.messages + [dict(message, content=of.text)] %}{%- endif %}{%- endfor %}"
    "{%- set messages = ns.messages %}"
)
"""Begins a chat template: makes texts of parts, with a placeholder for each image."""
ASIDE = "A greeting"
"""What is answered where no tools are told, as where an agent asks for a title."""


class ScriptedTurns(LogitsProcessor):
    """Raises the score of the next token of a script; which turn it is, the prompt tells.

    The target, the drafter and the grammar stay what they are, and the text is the script's.

    Args:
        tokenizer: whose chat template is one of ChatML.
        turns: what is written in each turn.
        tool: the name of a tool; conversations that are not told of it are answered by `ASIDE`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, turns: Sequence[str], tool: str) -> None:
        self._tokenizer, self._tool = tokenizer, f'"name": "{tool}"'
        self._aside, *self._turns = map(self._ids, [ASIDE, *turns])
        self._opening = tokenizer(TURN, add_special_tokens=False)["input_ids"]
        self._scripts: dict[bytes, list[int]] = {}

    def _ids(self, text: str) -> list[int]:
        return [*self._tokenizer(text, add_special_tokens=False)["input_ids"], self._tokenizer.eos_token_id]

    def _script(self, prompt: Tensor) -> list[int]:
        """The tokens that are to be written behind a prompt."""
        key = prompt.numpy().tobytes()
        if key not in self._scripts:
            text = self._tokenizer.decode(prompt)
            turn = text.count(TURN) - 1  # a draft that goes on behind a turn may be above the last one
            self._scripts[key] = self._turns[min(turn, len(self._turns) - 1)] if self._tool in text else self._aside
        return self._scripts[key]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        for row, ids in enumerate(input_ids):
            marks = (ids == self._opening[0]).nonzero().flatten()
            if not len(marks):  # a trial of the library's own
                continue
            begin = int(marks[-1]) + len(self._opening)
            script, written = self._script(ids[:begin]), ids[begin:].tolist()
            follows = written == script[: len(written)] and len(written) < len(script)
            scores[row, script[len(written)] if follows else script[-1]] += 1e4
        return scores


class NotedTurns:
    """Middleware that notes the requests in which an agent may call a tool.

    Args:
        app: the application.
        tool: the name of the tool.
        bodies: where they are noted.
    """

    def __init__(self, app: ASGIApp, tool: str, bodies: list[dict[str, Any]]) -> None:
        self._app, self._tool, self._bodies = app, tool, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        body = b""

        async def note() -> Message:
            nonlocal body
            message = await receive()
            body += message.get("body", b"")
            return message

        await self._app(scope, note, send)
        if scope.get("path") in WRITING:
            request = json.loads(body)
            tools = request.get("tools") or []
            if self._tool in [tool.get("function", tool).get("name") for tool in tools]:
                self._bodies.append(request)


def _tokenizer() -> PreTrainedTokenizerFast:
    text = (DOCS / "server.md").read_text() + (DOCS / "architecture.md").read_text()
    return tokenizer_of("qwen3", text, size=4000)


def _text_model() -> drafttree.Decoder:
    tokenizer = _tokenizer()
    config = LlamaConfig(**tiny.GROUPED | SIZES | {"vocab_size": len(tokenizer)})
    return drafttree.load(LlamaForCausalLM(config).eval(), "lookup", dtype="float32", tokenizer=tokenizer)


def _image_model() -> drafttree.Decoder:
    """A model that reads images, also those that tools return."""
    tokenizer = _tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [PLACEHOLDER]})
    tokenizer.chat_template = PARTS_AS_TEXT + tokenizer.chat_template
    processor, config = llava(tokenizer, tiny.GROUPED | SIZES)
    with tempfile.TemporaryDirectory() as folder:
        LlavaForConditionalGeneration(config).eval().save_pretrained(folder)
        processor.save_pretrained(folder)
        decoder = drafttree.load(folder, "lookup", dtype="float32")
        assert decoder.image_reader
        assert decoder.image_reader.processor  # loads it, while the folder is there
    return decoder


@contextmanager
def scripted_server(
    turns: Sequence[str], tool: str, *, reads_images: bool = False
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a server of a small random model that writes the turns, and the requests for turns so far."""
    torch.manual_seed(0)
    decoder = _image_model() if reads_images else _text_model()
    tokenizer: Any = decoder.tokenizer
    decoder = decoder.with_costs(TOY_COSTS).with_defaults(logits_processor=[ScriptedTurns(tokenizer, turns, tool)])
    app, bodies = create_app(decoder, ServerSettings("scripted")), list[dict[str, Any]]()
    assert app.state.serving.images.are_read == reads_images
    app.add_middleware(NotedTurns, tool=tool, bodies=bodies)
    with serving(app) as address:
        yield address, bodies


class _Refusal(BaseHTTPRequestHandler):
    """Refuses to pass anything on, and notes what was asked for."""

    server: "_Proxy"

    def _refuse(self) -> None:
        self.server.asked.append(self.path)
        self.send_error(403)

    do_CONNECT = do_GET = do_POST = do_HEAD = do_PUT = _refuse

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True
    asked: list[str]


@contextmanager
def closed_proxy() -> Iterator[tuple[dict[str, str], list[str]]]:
    """Variables by which programs reach this machine alone, and the list of what else they asked for."""
    with _Proxy(("127.0.0.1", 0), _Refusal) as proxy:
        proxy.asked = []
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        address = f"http://127.0.0.1:{proxy.server_port}"
        variables = dict.fromkeys([*names, *map(str.lower, names)], address)
        variables |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
        try:
            yield variables, proxy.asked
        finally:
            proxy.shutdown()
