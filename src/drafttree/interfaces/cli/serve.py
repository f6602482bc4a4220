"""`drafttree serve`: an OpenAI-compatible server."""

import logging
import sys
from typing import Annotated

import typer

from drafttree.core.errors import ConfigError
from drafttree.core.requirements import check_requirements
from drafttree.interfaces.cli.option_groups import DecoderOptions, grouped
from drafttree.interfaces.cli.options import ServedTarget, ServedTargetName, choose_target
from drafttree.interfaces.cli.server_options import AccessOptions, DialectOptions, LimitOptions, is_loopback


@grouped
def serve(
    name: ServedTargetName = None,
    target: ServedTarget = None,
    *,
    models: DecoderOptions,
    limits: LimitOptions,
    dialect: DialectOptions,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help='Address to listen on. "0.0.0.0" listens on all interfaces.')
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="Port to listen on. 0 takes a free one.")
    ] = 8000,
    access: AccessOptions,
    keep_alive: Annotated[
        int, typer.Option(min=0, metavar="SECONDS", help="Seconds that a connection without a request is kept.")
    ] = 5,
    access_log: Annotated[bool, typer.Option("--access-log", help="Print a line for each request.")] = False,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="Look for evidence that sampled texts do not follow the target's distribution. /metrics shows it.",
        ),
    ] = False,
    grace: Annotated[
        float,
        typer.Option(min=0, max=86400, metavar="SECONDS", help="Maximum seconds from SIGTERM to the end of all texts."),
    ] = 10,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Model name that clients use. May be repeated.", show_default="the target's name"
        ),
    ] = None,
) -> None:
    """Run an OpenAI-compatible server, with a playground at /.

    Ctrl-C or SIGTERM lets running texts finish within --grace and answers new requests with 503. A second one ends at
    once.
    """
    target = choose_target(name, target)
    check_requirements("serving", "serve")
    api_keys = access.read_keys()
    if "" in (served_model_name or ()):
        raise ConfigError("--served-model-name is empty; give the name that clients use")
    access.check_addresses()
    models.check()

    from drafttree.interfaces.server.access import own_names
    from drafttree.interfaces.server.dialect.families import check_parsers
    from drafttree.interfaces.server.lifecycle import listen, run
    from drafttree.interfaces.server.serving import ServerSettings

    check_parsers(dialect.tool_parser, dialect.reasoning_parser)
    names = list(dict.fromkeys(served_model_name or [target]))
    settings = ServerSettings(
        model_name=names[0],
        other_names=tuple(names[1:]),
        api_keys=api_keys,
        shares_prefixes=access.shares_prefixes(host),
        max_texts_per_key=access.max_texts_per_key,
        cors=tuple(access.cors or ()),
        max_batch=limits.max_batch,
        max_queue=limits.max_queue,
        timeout=limits.timeout,
        trusted_proxies=tuple(access.trusted_proxies or ()),
        keep_alive=keep_alive,
        access_log=access_log,
        grace=grace,
        allowed_hosts=(*own_names(host), *map(str.lower, access.allowed_hosts or ())),
        prefix_tokens=limits.prefix_tokens,
        max_token_gap=limits.max_token_gap,
        tool_parser=dialect.tool_parser,
        reasoning_parser=dialect.reasoning_parser,
        sanitize_control_tokens=dialect.sanitize_control_tokens,
        audit=audit,
        max_images=limits.max_images,
        max_pixels=limits.max_pixels,
        image_hosts=tuple(map(str.lower, access.allow_image_urls or ())),
    )
    if access_log:
        _print_access_log()
    with listen(host, port) as listener:
        from drafttree.interfaces.server.app import create_app

        decoder = models.load_served(target, limits.max_model_len)
        if not api_keys and not is_loopback(host):
            _tell("everyone who can reach this machine can use the server; --api-key makes it ask for a key")
        run(create_app(decoder, settings), listener, _tell)


def _print_access_log() -> None:
    """Have the logger of requests print its lines, with their times, to standard output."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("drafttree.access")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)


def _tell(line: str) -> None:
    print(f"drafttree: {line}", file=sys.stderr, flush=True)
