"""Groups of options of `drafttree serve`: limits, how the model writes its answers, and who may call the server."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated

import typer

from drafttree.core.counts import MAX_BATCH, MAX_IMAGES, MAX_PIXELS, MAX_TOKEN_GAP
from drafttree.core.errors import ConfigError
from drafttree.interfaces.cli.options import MaxBatch, MaxModelLen, MaxTokenGap, PrefixTokens


@dataclass(frozen=True)
class LimitOptions:
    """Limits on the texts of a server: how many run and wait, how long they are and how long they take."""

    max_batch: MaxBatch = MAX_BATCH
    max_queue: Annotated[
        int,
        typer.Option(min=0, metavar="TEXTS", help="Maximum number of waiting texts. Further requests get status 429."),
    ] = 256
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="SECONDS",
            help="Maximum seconds per request, waiting included.",
            show_default="no limit",
        ),
    ] = None
    max_model_len: MaxModelLen = None
    prefix_tokens: PrefixTokens = None
    max_token_gap: MaxTokenGap = MAX_TOKEN_GAP
    max_images: Annotated[int, typer.Option(min=0, metavar="IMAGES", help="Maximum number of images of a request.")] = (
        MAX_IMAGES
    )
    max_pixels: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="PIXELS",
            help="Maximum pixels of all images of a request, before the model's processor makes them smaller.",
        ),
    ] = MAX_PIXELS


@dataclass(frozen=True)
class DialectOptions:
    """How the model writes tool calls and reasoning, and whether control tokens in requests are text."""

    tool_parser: Annotated[
        str,
        typer.Option(
            metavar="NAME", help='Format of tool calls, such as "hermes". "auto" detects it from the chat template.'
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        typer.Option(
            metavar="NAME", help='Format of reasoning, such as "qwen3". "auto" detects it from the chat template.'
        ),
    ] = "auto"
    sanitize_control_tokens: Annotated[
        bool,
        typer.Option(
            "--sanitize-control-tokens",
            help="Treat control tokens in messages and tools as plain text. Those of the chat template remain tokens.",
        ),
    ] = False


@dataclass(frozen=True)
class AccessOptions:
    """Who may call a server: with which keys, by which host names, from which pages and through which proxies."""

    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="DRAFTTREE_API_KEY",
            metavar="KEY",
            help="Key that requests to /v1, /tokenize and /detokenize must carry. May be repeated. Prefer "
            "DRAFTTREE_API_KEY or --api-key-file: other users can see arguments.",
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with such keys, one per line. Lines that begin with # are skipped."),
    ] = None
    max_texts_per_key: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="TEXTS",
            help="Maximum number of running and waiting texts of each key.",
            show_default="no limit",
        ),
    ] = None
    share_prefixes: Annotated[
        bool | None,
        typer.Option(
            help="Share the KV rows of common prefixes among requests that have neither an API key nor a cache_salt.",
            show_default="on a loopback address only",
        ),
    ] = None
    cors: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help='Origin whose pages may call the server, or "*". May be repeated.'),
    ] = None
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help='Host name that requests may use besides --host and localhost, or "*". May be repeated.',
        ),
    ] = None
    allow_image_urls: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help='Host that images at addresses are fetched from, or "*" for all public hosts. May be repeated.',
            show_default="data URLs only",
        ),
    ] = None
    trusted_proxies: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help='Address or network of a proxy whose X-Forwarded-For is trusted, or "*". May be repeated.',
        ),
    ] = None

    def read_keys(self) -> tuple[str, ...]:
        """The API keys from the options, then those from the key file; empty if no key is needed.

        Raises:
            ConfigError: the key file cannot be read or is empty, a key is malformed, or there is a limit per key but no
                key.
        """
        keys = (*(self.api_key or ()), *(_keys_of(self.api_key_file) if self.api_key_file else ()))
        for key in keys:
            _check_key(key)
        if self.max_texts_per_key and not keys:
            raise ConfigError(
                "--max-texts-per-key needs API keys, and there are none; give --api-key, or use --max-queue"
            )
        return keys

    def check_addresses(self) -> None:
        """Check the host names, origins and proxies before a model is loaded.

        Raises:
            ConfigError: one of them is malformed; the message names it.
        """
        _check_hosts("--allowed-hosts", self.allowed_hosts or ())
        _check_hosts("--allow-image-urls", self.allow_image_urls or ())
        _check_origins(self.cors or ())
        _check_proxies(self.trusted_proxies or ())

    def shares_prefixes(self, host: str) -> bool:
        """Whether requests with neither key nor cache_salt share prefixes on a server that listens at `host`."""
        return is_loopback(host) if self.share_prefixes is None else self.share_prefixes


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens at `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _keys_of(file: Path) -> list[str]:
    """The keys in a file, one per line, without blank lines and comments.

    Raises:
        ConfigError: the file cannot be read, or has no key.
    """
    try:
        lines = map(str.strip, file.read_text().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file {str(file)!r} cannot be read: {error}") from None
    if not (keys := [line for line in lines if line and not line.startswith("#")]):
        raise ConfigError(f"--api-key-file {str(file)!r} has no key; write one per line")
    return keys


def _check_key(key: str) -> None:
    """Refuse a key that no request header could carry.

    Raises:
        ConfigError: the key is empty, or has spaces or other than printable ASCII characters.
    """
    if not (key and key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError("--api-key: a key is empty, or has characters that are not printable ASCII; give another one")


def _check_origins(origins: Iterable[str]) -> None:
    """Refuse origins that no browser sends.

    Raises:
        ConfigError: an origin is neither "*" nor a scheme and a host without a path.
    """
    for origin in origins:
        scheme, _, host = origin.partition("://")
        if origin != "*" and (not scheme or not host or "/" in host):
            raise ConfigError(f"--cors {origin!r} is not an origin; give one such as https://example.com, or '*'")


def _check_hosts(option: str, hosts: Iterable[str]) -> None:
    """Refuse host names that no address could have.

    Raises:
        ConfigError: a host is not a name, or has a port.
    """
    from drafttree.interfaces.server.access import name_of

    for host in hosts:
        if name_of(host) != host.lower():
            raise ConfigError(f"{option} {host!r} is not a host name; give one such as api.example.com, or '*'")


def _check_proxies(proxies: Iterable[str]) -> None:
    """Refuse proxies that are not addresses.

    Raises:
        ConfigError: a proxy is neither "*" nor an IP address or network.
    """
    for proxy in proxies:
        try:
            ip_network(proxy if proxy != "*" else "0.0.0.0")
        except ValueError:
            message = f"--trusted-proxies {proxy!r} is not an address; give one such as 10.0.0.7 or 10.0.0.0/8, or '*'"
            raise ConfigError(message) from None
