"""A model that is served: its settings, the admission of requests to its engine, and what routes share."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Request

from drafttree.constraints.options import ProcessorContext
from drafttree.core.counts import MAX_BATCH, MAX_TOKEN_GAP
from drafttree.core.errors import ConfigError
from drafttree.engine.batching import Engine, Handle
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation_options import SERVED, RequestOptions, show_options
from drafttree.engine.pass_recording import record_passes
from drafttree.engine.prompt import Prompt
from drafttree.interfaces.server.dialect.families import AUTO, check_parsers
from drafttree.interfaces.server.dialect.model_dialect import Dialect
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.grammars import Grammars
from drafttree.interfaces.server.metrics import ServerMetrics
from drafttree.interfaces.server.open_request import OpenRequest, open_request
from drafttree.interfaces.server.sampling import SAME_NAMES
from drafttree.loading.names import target_name


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        model_name: the name by which requests call the model, and replies where a request gives none.
        api_key: the key that every request to `/v1` must carry; None for none.
        cors: origins whose pages may call the server from a browser.
        max_batch: the number of requests that may run at once.
        max_queue: the number of requests that may wait; one more is refused.
        timeout: seconds from its arrival after which a request ends where it is; None for no end.
        prefix_tokens: as for `Engine`.
        max_token_gap: as for `Engine`.
        max_body_bytes: the largest body of a request, in bytes.
        grace: seconds from the signal that ends the server to its end.
        allowed_hosts: the hosts, without port, that requests may name as this server's; "*" for any.
        other_names: further names by which requests may call the model.
        tool_parser: the form of calls of tools by its name; "auto" for the chat template's own, "none" to read none.
        reasoning_parser: likewise, the marks of thinking.
    """

    model_name: str
    api_key: str | None = None
    cors: tuple[str, ...] = ()
    max_batch: int = MAX_BATCH
    max_queue: int = 256
    timeout: float | None = None
    prefix_tokens: int | None = None
    max_token_gap: float = MAX_TOKEN_GAP
    max_body_bytes: int = 4 << 20
    grace: float = 10.0
    allowed_hosts: tuple[str, ...] = ("*",)
    other_names: tuple[str, ...] = ()
    tool_parser: str = AUTO
    reasoning_parser: str = AUTO

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names of the model, which `/v1/models` lists."""
        return self.model_name, *self.other_names

    @property
    def max_texts(self) -> int:
        """The number of texts that may run or wait."""
        return self.max_batch + self.max_queue


RETRY_AFTER = 1
"""Seconds after which a request that was refused may come again."""
MAX_UNREAD = 16
"""Rounds of a text that wait for its client; then the text waits."""


class Admission:
    """Counts the texts of a server.

    Args:
        engine: writes the texts.
        settings: say how many texts may run and wait, and how long each may take.
        metrics: are told of every text.

    Attributes:
        draining: whether no more texts are let in.
    """

    def __init__(self, engine: Engine, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self._engine, self._settings, self._metrics = engine, settings, metrics
        self._handles: set[Handle] = set()
        self._preparing: set[asyncio.Timeout] = set()
        self._submitting = self._answering = 0
        self.draining = self._ending = False

    @property
    def open(self) -> int:
        """Texts that were let in and have not ended; any thread may ask."""
        self._handles.difference_update([handle for handle in tuple(self._handles) if handle.done])
        return len(self._handles) + self._submitting

    @property
    def busy(self) -> bool:
        """Whether any text has not ended, or is still on its way to a client."""
        return bool(self._answering or self.open)

    @contextmanager
    def request(self, client: str = "") -> Iterator[None]:
        """A request of the client at an address: texts that are submitted inside of it end with it."""
        with OpenRequest(client, self._settings.timeout).answering():
            yield

    @asynccontextmanager
    async def preparing(self) -> AsyncIterator[None]:
        """Hold a place for a request that has to wait before its texts can be submitted.

        Raises:
            ServerError: as for `submit`, also where the server shuts down meanwhile.
        """
        self.check()
        preparing = asyncio.timeout(None)
        self._preparing.add(preparing)
        try:
            async with preparing:
                yield
        except TimeoutError:
            self.check()
            raise
        finally:
            self._preparing.discard(preparing)

    def refuse_preparing(self) -> None:
        """End the requests that a server which shuts down would refuse as soon as they are prepared."""
        for preparing in self._preparing:
            if not preparing.expired():  # else it is ending already, which may take longer than until the next call
                preparing.reschedule(0)

    async def submit(self, prompt: Prompt, *, to: Callable[..., Handle] | None = None, **options: Any) -> Handle:
        """Submit a text; reading its prompt holds up nobody.

        Args:
            prompt: text, token ids or messages, as `Engine.submit` takes them.
            to: the `Engine.submit` of an engine that takes the text in place of the server's.
            **options: the options of `Engine.submit`.

        Raises:
            ServerError: too many texts wait (429), or the server is shutting down (503).
            DraftTreeError: as for `Engine.submit`.
        """
        self.check()
        begun = time.perf_counter()
        self._submitting += 1
        submit = partial(to or self._engine.submit, prompt, max_unread=MAX_UNREAD, **options)
        submitting = asyncio.ensure_future(asyncio.to_thread(submit))
        submitting.add_done_callback(self._count)
        try:
            handle = await asyncio.shield(submitting)
        except asyncio.CancelledError:
            submitting.add_done_callback(_cancel)
            raise
        self._metrics.watch(handle, begun)
        self._end_in_time(handle)
        return handle

    def check(self) -> None:
        """Refuse a text that cannot be taken now.

        Raises:
            ServerError: as for `submit`.
        """
        again = {"Retry-After": str(RETRY_AFTER)}
        if self.draining:
            raise ServerError(503, "the server is shutting down", code="shutting_down", headers=again)
        if (waiting := self.open + len(self._preparing)) >= self._settings.max_texts:
            message = f"{waiting} texts are running or waiting, which is the limit; try again later"
            raise ServerError(429, message, code="queue_full", headers=again)

    def cancel_all(self) -> None:
        """End all texts where they are, those that are being submitted too."""
        self._ending = True
        for handle in self._handles:
            handle.cancel()

    def _count(self, submitting: "asyncio.Future[Handle]") -> None:
        self._submitting -= 1
        if submitting.cancelled() or submitting.exception():
            return
        self._handles.add(submitting.result())
        if self._ending:
            submitting.result().cancel()

    def _end_in_time(self, handle: Handle) -> None:
        """End a text with its request, and when its time is over."""
        request = open_request()
        if request is None:
            return
        self._answering += 1
        request.ends.callback(self._answered)
        request.ends.callback(handle.cancel)
        if (left := request.seconds_left) is not None:
            timer = asyncio.get_running_loop().call_later(left, handle.cancel, "length")
            request.ends.callback(timer.cancel)

    def _answered(self) -> None:
        self._answering -= 1


def _cancel(submitting: "asyncio.Future[Handle]") -> None:
    """Cancel a text that nobody waited for."""
    if not submitting.cancelled() and not submitting.exception():
        submitting.result().cancel()


def check_defaults(decoder: Decoder) -> None:
    """Refuse to serve a model whose generation config no request could run with, since it cannot override that.

    Raises:
        ConfigError: names the values and the file.
    """
    overrides = dict.fromkeys((*SAME_NAMES, "top_k", "min_new_tokens", "sequence_bias")) | {"temperature": 0.0}
    target = decoder.target
    try:
        options = RequestOptions.merge(decoder.defaults, overrides)
        options.processors(ProcessorContext(1, 2, decoder.eos, target.vocab_size, target.device))
    except ConfigError as error:
        found = {name: value for name, value in decoder.defaults.items() if name not in SERVED}
        reason = f"sets {show_options(found)}, which tree drafting does not support" if found else f"is wrong: {error}"
        raise ConfigError(
            f"no request could run with {target_name(target)!r}: its generation_config.json {reason}; remove "
            "that from the file"
        ) from None


class ServingContext:
    """A model that is served; its engine begins with it.

    Args:
        decoder: the decoder of the served model.
        settings: what the server is told when it starts.

    Attributes:
        engine: writes the texts.
        metrics: counts the texts and takes their times.
        admission: lets requests into the engine.
        grammars: makes the grammars of requests.
        dialect: how the model writes thinking and calls of tools.

    Raises:
        ConfigError: the settings name a parser that is none, or no request could run with the model's defaults.
    """

    def __init__(self, decoder: Decoder, settings: ServerSettings) -> None:
        check_parsers(settings.tool_parser, settings.reasoning_parser)
        check_defaults(decoder)
        self.decoder, self.settings = decoder, settings
        self.dialect = Dialect.of(decoder.tokenizer, settings.tool_parser, settings.reasoning_parser)
        self.engine = Engine(
            decoder,
            max_batch=settings.max_batch,
            prefix_tokens=settings.prefix_tokens,
            max_token_gap=settings.max_token_gap,
        )
        record_passes(decoder, settings.max_batch, self.engine.memory.rows)
        self.metrics = ServerMetrics(self.engine, settings.model_name)
        self.admission = Admission(self.engine, settings, self.metrics)
        self.grammars = Grammars(decoder)

    @property
    def model_name(self) -> str:
        """The name by which requests call the model, the first of several."""
        return self.settings.model_name

    def check_model(self, name: str | None) -> None:
        """Refuse a request for another model than the served one.

        Raises:
            ServerError: has both names.
        """
        if name is not None and name not in self.settings.model_names:
            served = " or ".join(map(repr, self.settings.model_names))
            message = f"the model {name!r} is not served; {served} is"
            raise ServerError(404, message, param="model", code="model_not_found")


def _find(request: Request) -> ServingContext:
    return request.app.state.serving


Serving = Annotated[ServingContext, Depends(_find)]
"""A parameter of a route."""
