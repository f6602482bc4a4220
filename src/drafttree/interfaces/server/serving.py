"""A served model: the settings of its server, and the objects that all routes use."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from drafttree.constraints.options import ProcessorContext
from drafttree.core.counts import MAX_BATCH, MAX_IMAGES, MAX_PIXELS, MAX_TOKEN_GAP
from drafttree.core.errors import ConfigError
from drafttree.engine.batching import Engine
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation_options import SERVED, RequestOptions, show_options
from drafttree.engine.pass_recording import record_passes
from drafttree.interfaces.server.admission import Admission
from drafttree.interfaces.server.audit import AuditCollector, ServedAudit
from drafttree.interfaces.server.body_reading import BodyReader
from drafttree.interfaces.server.chat_prompt import known_marks
from drafttree.interfaces.server.dialect.families import AUTO, check_parsers
from drafttree.interfaces.server.dialect.model_dialect import Dialect
from drafttree.interfaces.server.drafting_engine import drafting_engine
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.fields import ServedModel
from drafttree.interfaces.server.grammar import Grammars
from drafttree.interfaces.server.images import ServedImages
from drafttree.interfaces.server.metrics import ServerMetrics
from drafttree.interfaces.server.sampling import SAME_NAMES
from drafttree.loading.names import target_name
from drafttree.text.control_tokens import control_tokens


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        model_name: name of the model in requests, and in replies to requests without one.
        api_keys: the API keys. Every request to `/v1` needs one of them; if empty, no request needs a key.
        shares_prefixes: whether requests without key and `cache_salt` share the KV rows of common prefixes.
        max_texts_per_key: the most texts of each key that may run or wait; None for no limit.
        cors: origins of the pages that may call the server from a browser.
        max_batch: the most texts that run at once.
        max_queue: the most texts that wait; more are refused.
        timeout: seconds after the arrival of a request until its texts are cut off; None for no limit.
        prefix_tokens: as for `Engine`.
        max_token_gap: as for `Engine`.
        max_body_bytes: the largest body of a request, in bytes; None for as much as the model's context needs.
        grace: the most seconds from the first SIGTERM to the end of the server.
        access_log: whether to log a line for each request.
        trusted_proxies: addresses and networks of proxies whose X-Forwarded-For is believed; "*" for any.
        keep_alive: seconds that a connection without a request is kept open.
        allowed_hosts: host names, without port, that requests may use; "*" for any.
        other_names: further names of the model in requests.
        tool_parser: name of the format of tool calls; "auto" to detect it from the chat template, "none" to read none.
        reasoning_parser: name of the marks of thinking; "auto" and "none" as for `tool_parser`.
        sanitize_control_tokens: whether control tokens in messages and tools are read as text.
        audit: whether to look for evidence that sampled texts do not follow the target's distribution.
        max_images: the most images of a request, if the model reads images.
        max_pixels: the most pixels of the images of a request together, before the processor makes them smaller.
        image_hosts: hosts that images at addresses are fetched from, with their subdomains; "*" for all public hosts,
            empty for none.
    """

    model_name: str
    api_keys: tuple[str, ...] = ()
    shares_prefixes: bool = True
    max_texts_per_key: int | None = None
    cors: tuple[str, ...] = ()
    max_batch: int = MAX_BATCH
    max_queue: int = 256
    timeout: float | None = None
    prefix_tokens: int | None = None
    max_token_gap: float = MAX_TOKEN_GAP
    max_body_bytes: int | None = None
    grace: float = 10.0
    access_log: bool = False
    trusted_proxies: tuple[str, ...] = ()
    keep_alive: int = 5
    allowed_hosts: tuple[str, ...] = ("*",)
    other_names: tuple[str, ...] = ()
    tool_parser: str = AUTO
    reasoning_parser: str = AUTO
    sanitize_control_tokens: bool = False
    audit: bool = False
    max_images: int = MAX_IMAGES
    max_pixels: int = MAX_PIXELS
    image_hosts: tuple[str, ...] = ()

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names of the model, as `/v1/models` lists them."""
        return self.model_name, *self.other_names


def check_defaults(decoder: Decoder) -> None:
    """Refuse a model if its generation config has a value that no request can run with or override.

    Raises:
        ConfigError: the generation config has such a value; the message names it and the file.
    """
    overrides = dict.fromkeys((*SAME_NAMES, "top_k", "min_new_tokens", "sequence_bias")) | {"temperature": 0.0}
    target = decoder.target
    try:
        options = RequestOptions.merge(decoder.defaults, overrides)
        options.processors(ProcessorContext(1, 2, decoder.eos, target.vocab_size, target.device))
    except ConfigError as error:
        unserved_options = {name: value for name, value in decoder.defaults.items() if name not in SERVED}
        reason = (
            f"sets {show_options(unserved_options)}, which tree drafting does not support"
            if unserved_options
            else f"is wrong: {error}"
        )
        raise ConfigError(
            f"no request could run with {target_name(target)!r}: its generation_config.json {reason}; remove "
            "that from the file"
        ) from None


class ServingContext:
    """A served model with its running engine.

    Attributes:
        engine: writes the texts.
        drafting: writes the texts of the playground; None without a drafter.
        metrics: counts and times of the texts.
        admission: submits texts to the engine within the server's limits.
        grammars: compiles the grammars of requests.
        dialect: how the model writes thinking and tool calls.
        control_tokens: makes control tokens in requests plain text; None to keep them as tokens.
        images: reads the images of requests.
        bodies: reads the bodies of requests.

    Raises:
        ConfigError: the settings name an unknown parser, or no request could run with the model's generation config.
        InputError: control tokens should become plain text, but the tokenizer does not support this.
    """

    def __init__(self, decoder: Decoder, settings: ServerSettings) -> None:
        check_parsers(settings.tool_parser, settings.reasoning_parser)
        check_defaults(decoder)
        self.decoder = decoder
        self.settings = settings
        self.dialect = Dialect.of(decoder.tokenizer, settings.tool_parser, settings.reasoning_parser)
        self.control_tokens = None
        if settings.sanitize_control_tokens:
            self.control_tokens = control_tokens(decoder.tokenizer, known_marks(self.dialect))
        self.engine = Engine(
            decoder,
            max_batch=settings.max_batch,
            prefix_tokens=settings.prefix_tokens,
            max_token_gap=settings.max_token_gap,
        )
        self.drafting = drafting_engine(decoder) if decoder.drafter else None
        record_passes(decoder, settings.max_batch, self.engine.memory.rows)
        self.metrics = ServerMetrics(self.engine, settings.model_name)
        audit = ServedAudit() if settings.audit else None
        if audit:
            self.metrics.registry.register(AuditCollector(audit, {"model_name": settings.model_name}))
        self.admission = Admission(
            self.engine,
            self.metrics,
            settings.max_batch + settings.max_queue,
            shares_prefixes=settings.shares_prefixes,
            max_texts_per_key=settings.max_texts_per_key,
            audit=audit,
        )
        self.grammars = Grammars(decoder, self.metrics.grammar)
        self.images = ServedImages(
            decoder, self.admission, settings.max_images, settings.max_pixels, settings.image_hosts
        )
        model = ServedModel(reads_images=self.images.are_read)
        self.bodies = BodyReader(decoder.target.context, settings.max_body_bytes, model)

    def check_model(self, name: str | None) -> None:
        """Refuse a request for another model.

        Raises:
            ServerError: `name` is not one of the model's names (404).
        """
        if name is not None and name not in self.settings.model_names:
            served_names = " or ".join(map(repr, self.settings.model_names))
            message = f"the model {name!r} is not served; {served_names} is"
            raise ServerError(404, message, param="model", code="model_not_found")


def _find(request: Request) -> ServingContext:
    return request.app.state.serving


Serving = Annotated[ServingContext, Depends(_find)]
"""Annotation of a route's parameter that gets the `ServingContext`."""
