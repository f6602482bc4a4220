"""A model that is served: its settings, and what routes share."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from drafttree.constraints.options import ProcessorContext
from drafttree.core.counts import MAX_BATCH, MAX_TOKEN_GAP
from drafttree.core.errors import ConfigError
from drafttree.engine.batching import Engine
from drafttree.engine.control_tokens import control_tokens
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
from drafttree.interfaces.server.grammar import Grammars
from drafttree.interfaces.server.metrics import ServerMetrics
from drafttree.interfaces.server.sampling import SAME_NAMES
from drafttree.loading.names import target_name


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        model_name: the name by which requests call the model, and replies where a request gives none.
        api_keys: the keys of which every request to `/v1` must carry one; none lets in everybody.
        shares_prefixes: whether requests without key and `cache_salt` share the beginnings of their prompts.
        max_texts_per_key: the number of texts of each key that may run or wait; None for no limit.
        cors: origins whose pages may call the server from a browser.
        max_batch: the number of requests that may run at once.
        max_queue: the number of requests that may wait; one more is refused.
        timeout: seconds from its arrival after which a request ends where it is; None for no end.
        prefix_tokens: as for `Engine`.
        max_token_gap: as for `Engine`.
        max_body_bytes: the largest body of a request, in bytes; None for what the model's context needs.
        grace: seconds from the signal that ends the server to its end.
        access_log: whether to log a line for each request.
        trusted_proxies: addresses and networks of the proxies that may say whose requests they hand on; "*" for any.
        keep_alive: seconds that a connection without a request is kept.
        allowed_hosts: the hosts, without port, that requests may name as this server's; "*" for any.
        other_names: further names by which requests may call the model.
        tool_parser: the form of calls of tools by its name; "auto" for the chat template's own, "none" to read none.
        reasoning_parser: likewise, the marks of thinking.
        sanitize_control_tokens: whether control tokens in messages and tools are text.
        audit: whether to look for evidence against the target's law in texts that are drawn.
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

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names of the model, which `/v1/models` lists."""
        return self.model_name, *self.other_names


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
    """A model that is served; its engine begins with it.

    Attributes:
        engine: writes the texts.
        drafting: writes those of the playground; None without a drafter.
        metrics: counts the texts and takes their times.
        admission: lets requests into the engine.
        grammars: makes the grammars of requests.
        dialect: how the model writes thinking and calls of tools.
        control_tokens: keeps those that requests bring text; None where they are tokens.
        bodies: reads what requests send.

    Raises:
        ConfigError: the settings name a parser that is none, or no request could run with the model's defaults.
        InputError: control tokens are to be text, and the tokenizer cannot keep them so.
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
        self.bodies = BodyReader(decoder.target.context, settings.max_body_bytes)

    def check_model(self, name: str | None) -> None:
        """Refuse a request for another model than the served one.

        Raises:
            ServerError: has both names.
        """
        if name is not None and name not in self.settings.model_names:
            served_names = " or ".join(map(repr, self.settings.model_names))
            message = f"the model {name!r} is not served; {served_names} is"
            raise ServerError(404, message, param="model", code="model_not_found")


def _find(request: Request) -> ServingContext:
    return request.app.state.serving


Serving = Annotated[ServingContext, Depends(_find)]
"""A parameter of a route."""
