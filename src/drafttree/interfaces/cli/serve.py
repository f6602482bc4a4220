"""`drafttree serve`: an OpenAI-compatible server."""

import logging
import sys
from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated

import typer

from drafttree.core.counts import MAX_BATCH, MAX_TOKEN_GAP
from drafttree.core.errors import ConfigError
from drafttree.core.requirements import check_requirements
from drafttree.interfaces.cli.option_groups import DecoderOptions, grouped
from drafttree.interfaces.cli.options import MaxBatch, MaxModelLen, MaxTokenGap, PrefixTokens


@grouped
def serve(
    models: DecoderOptions,
    model: Annotated[
        str, typer.Argument(help='The model to serve: "embedded", a folder, a GGUF file or a hub name.')
    ] = "embedded",
    max_batch: MaxBatch = MAX_BATCH,
    max_queue: Annotated[
        int, typer.Option(min=0, help="Maximum number of waiting texts. Further requests get status 429.")
    ] = 256,
    timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Maximum seconds per request, waiting included. Default: no limit.")
    ] = None,
    max_model_len: MaxModelLen = None,
    prefix_tokens: PrefixTokens = None,
    max_token_gap: MaxTokenGap = MAX_TOKEN_GAP,
    tool_parser: Annotated[
        str,
        typer.Option(help='Format of tool calls, such as "hermes". "auto" detects it from the chat template.'),
    ] = "auto",
    reasoning_parser: Annotated[
        str,
        typer.Option(help='Format of reasoning, such as "qwen3". "auto" detects it from the chat template.'),
    ] = "auto",
    sanitize_control_tokens: Annotated[
        bool,
        typer.Option(
            "--sanitize-control-tokens",
            help="Keep control tokens in messages and tools text; those of the chat template remain tokens.",
        ),
    ] = False,
    host: Annotated[str, typer.Option(help='Address to listen on. "0.0.0.0" listens on all interfaces.')] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on. 0 takes a free one.")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="DRAFTTREE_API_KEY",
            help="Key that requests to /v1, /tokenize and /detokenize must carry. May be repeated. Prefer "
            "DRAFTTREE_API_KEY or --api-key-file: other users can see arguments.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with such keys, one per line. Lines that begin with # are skipped.")
    ] = None,
    max_texts_per_key: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of running and waiting texts of each key.")
    ] = None,
    share_prefixes: Annotated[
        bool | None,
        typer.Option(
            help="Share the KV rows of common prefixes among requests without key and cache_salt. "
            "Default: on a loopback address only."
        ),
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(help='Origin whose pages may call the server, or "*". May be repeated.')
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(help='Host name that requests may use besides --host and localhost, or "*". May be repeated.'),
    ] = None,
    trusted_proxies: Annotated[
        list[str] | None,
        typer.Option(help='Address or network of a proxy whose X-Forwarded-For counts, or "*". May be repeated.'),
    ] = None,
    keep_alive: Annotated[int, typer.Option(min=0, help="Seconds that a connection without a request is kept.")] = 5,
    access_log: Annotated[bool, typer.Option("--access-log", help="Print a line for each request.")] = False,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="Look for evidence that drawn texts do not follow the target's distribution. /metrics tells it.",
        ),
    ] = False,
    grace: Annotated[
        float, typer.Option(min=0, max=86400, help="Maximum seconds from SIGTERM to the end of all texts.")
    ] = 10,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="Model name that clients use. Default: MODEL. May be repeated."),
    ] = None,
) -> None:
    """Run an OpenAI-compatible server, with a playground at /.

    Ctrl-C or SIGTERM lets running texts finish within --grace and answers new requests with 503. A second one ends at
    once.
    """
    check_requirements("serving", "serve")
    keys = [*(api_key or ()), *(_keys_of(api_key_file) if api_key_file else ())]
    for key in keys:
        _check_key(key)
    if max_texts_per_key and not keys:
        raise ConfigError("--max-texts-per-key limits keys, and there are none; give --api-key, or use --max-queue")
    shares_prefixes = _is_loopback(host) if share_prefixes is None else share_prefixes
    if "" in (served_model_name or ()):
        raise ConfigError("--served-model-name: a name is empty, by which no request calls a model; give another one")
    _check_hosts(allowed_hosts or ())
    _check_origins(cors or ())
    _check_proxies(trusted_proxies or ())
    models.check()

    from drafttree.interfaces.server.access import own_names
    from drafttree.interfaces.server.dialect.families import check_parsers
    from drafttree.interfaces.server.lifecycle import listen, run
    from drafttree.interfaces.server.serving import ServerSettings

    check_parsers(tool_parser, reasoning_parser)
    names = list(dict.fromkeys(served_model_name or [model]))
    settings = ServerSettings(
        model_name=names[0],
        other_names=tuple(names[1:]),
        api_keys=tuple(keys),
        shares_prefixes=shares_prefixes,
        max_texts_per_key=max_texts_per_key,
        cors=tuple(cors or ()),
        max_batch=max_batch,
        max_queue=max_queue,
        timeout=timeout,
        trusted_proxies=tuple(trusted_proxies or ()),
        keep_alive=keep_alive,
        access_log=access_log,
        grace=grace,
        allowed_hosts=(*own_names(host), *map(str.lower, allowed_hosts or ())),
        prefix_tokens=prefix_tokens,
        max_token_gap=max_token_gap,
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        sanitize_control_tokens=sanitize_control_tokens,
        audit=audit,
    )
    if access_log:
        lines = logging.StreamHandler(sys.stdout)
        lines.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log = logging.getLogger("drafttree.access")
        log.handlers = [lines]
        log.propagate = False
        log.setLevel(logging.INFO)
    with listen(host, port) as listener:
        from drafttree.interfaces.server.app import create_app

        decoder = models.load_served(model, max_model_len)
        if not keys and not _is_loopback(host):
            _tell("whoever can reach this machine can use the server; --api-key asks for a key")
        run(create_app(decoder, settings), listener, _tell)


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _keys_of(file: Path) -> list[str]:
    """The keys in a file.

    Raises:
        ConfigError: it cannot be read, or has none.
    """
    try:
        lines = map(str.strip, file.read_text().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file {str(file)!r} cannot be read: {error}") from None
    if not (keys := [line for line in lines if line and not line.startswith("#")]):
        raise ConfigError(f"--api-key-file {str(file)!r} has no key; write one per line")
    return keys


def _check_key(key: str) -> None:
    """Refuse a key that no request could carry.

    Raises:
        ConfigError: says why.
    """
    if not (key and key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError("--api-key: a key is empty or has other than printable ASCII characters; give another one")


def _check_origins(origins: Iterable[str]) -> None:
    """Refuse what no browser sends as an origin.

    Raises:
        ConfigError: names it.
    """
    for origin in origins:
        scheme, _, host = origin.partition("://")
        if origin != "*" and (not scheme or not host or "/" in host):
            raise ConfigError(f"--cors {origin!r} is not an origin; give one such as https://example.com, or '*'")


def _check_hosts(hosts: Iterable[str]) -> None:
    """Refuse what no request could call the server by.

    Raises:
        ConfigError: names it.
    """
    from drafttree.interfaces.server.access import name_of

    for wrong_host in (host for host in hosts if name_of(host) != host.lower()):
        raise ConfigError(
            f"--allowed-hosts {wrong_host!r} is not a host name; give one such as api.example.com, or '*'"
        )


def _check_proxies(proxies: Iterable[str]) -> None:
    """Refuse what is the address of no proxy.

    Raises:
        ConfigError: names it.
    """
    for proxy in proxies:
        try:
            ip_network(proxy if proxy != "*" else "0.0.0.0")
        except ValueError:
            message = f"--trusted-proxies {proxy!r} is no address; give one such as 10.0.0.7 or 10.0.0.0/8, or '*'"
            raise ConfigError(message) from None


def _tell(what: str) -> None:
    print(f"drafttree: {what}", file=sys.stderr, flush=True)
