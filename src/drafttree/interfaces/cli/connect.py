"""`drafttree connect`: set up a coding agent for a running server."""

import json
import os
import shlex
from collections.abc import Callable, Sequence
from enum import StrEnum
from http.client import HTTPException
from typing import Annotated, Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import typer

from drafttree.core.errors import ConfigError

TIMEOUT = 10
"""Seconds to wait for the server's list of models."""
NO_KEY = "none"
"""Key for a server without keys, because the agents require one."""


class Agent(StrEnum):
    """An agent that can be connected."""

    CLAUDE_CODE = "claude-code"
    CODEX = "codex"
    OPENCODE = "opencode"


class Served(NamedTuple):
    """A model of a running server.

    Attributes:
        url: address of the server.
        model: name of the model.
        context: its context in tokens; None if the server does not tell it.
        key: key of the server; None if it asks for none.
        reads_images: whether the model reads images.
    """

    url: str
    model: str
    context: int | None
    key: str | None
    reads_images: bool = False


class Setup(NamedTuple):
    """How to start an agent: its command, environment variables, and arguments that precede all others."""

    program: str
    environment: dict[str, str]
    arguments: Sequence[str] = ()


def claude_code(served: Served) -> Setup:
    """Set up Claude Code by settings for one run. Unlike environment variables, these override its files.

    The served model replaces all models of Claude Code. The key is not an argument, because other users of the machine
    can see arguments.
    """
    prefixes = ("", "DEFAULT_OPUS_", "DEFAULT_SONNET_", "DEFAULT_HAIKU_", "DEFAULT_FABLE_")
    variables = {
        "ANTHROPIC_BASE_URL": served.url,
        "ANTHROPIC_API_KEY": "",  # it would take precedence over the token
        **{f"ANTHROPIC_{prefix}MODEL": served.model for prefix in prefixes},
        "CLAUDE_CODE_SUBAGENT_MODEL": served.model,
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # with it, no two prompts begin alike, and no prefix is reused
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if served.context is not None:
        limits = ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_AUTO_COMPACT_WINDOW")
        variables |= dict.fromkeys(limits, str(served.context))
        variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(served.context // 8)  # Claude Code keeps this many free
    arguments = ["--settings", json.dumps({"env": variables})]
    return Setup("claude", {"ANTHROPIC_AUTH_TOKEN": served.key or NO_KEY}, arguments)


def codex(served: Served) -> Setup:
    """Set up Codex by settings for one run, which override its file."""
    provider = {"name": "drafttree", "base_url": f"{served.url}/v1", "wire_api": "responses"}
    provider |= {"env_key": "DRAFTTREE_API_KEY"} if served.key else {}
    settings: dict[str, object] = {
        "model": served.model,
        "model_provider": "drafttree",
        **{f"model_providers.drafttree.{name}": value for name, value in provider.items()},
    }
    if served.context is not None:
        settings["model_context_window"] = served.context
    assignments = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in settings.items()]
    arguments = [argument for assignment in assignments for argument in ("-c", assignment)]
    return Setup("codex", {"DRAFTTREE_API_KEY": served.key} if served.key else {}, arguments)


def opencode(served: Served) -> Setup:
    """Set up OpenCode by a configuration that overrides its files."""
    name = f"drafttree/{served.model}"
    model = dict[str, Any](name=served.model)
    if served.context is not None:
        model["limit"] = {"context": served.context, "output": served.context // 4}
    if served.reads_images:
        model |= {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "drafttree",
        "options": {"baseURL": f"{served.url}/v1", "apiKey": served.key or NO_KEY},
        "models": {served.model: model},
    }
    content = {"model": name, "small_model": name, "provider": {"drafttree": provider}}
    return Setup("opencode", {"OPENCODE_CONFIG_CONTENT": json.dumps(content)})


SETUPS: dict[Agent, tuple[Callable[[Served], Setup], int]] = {
    Agent.CLAUDE_CODE: (claude_code, 65536),
    Agent.CODEX: (codex, 32768),
    Agent.OPENCODE: (opencode, 32768),
}
"""By agent: the function that makes its setup, and the smallest usable context in tokens.

The first prompt of Claude Code has about 20,000 tokens, those of the others about 10,000. Claude Code also shortens a
conversation before the context is full: it leaves 13,000 tokens and the length of an answer unused.
"""


def connect(
    agent: Annotated[Agent, typer.Argument(help=f"The agent to connect: {', '.join(Agent)}.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND]", help="Command of the agent to run, with arguments.")
    ] = None,
    url: Annotated[
        str,
        typer.Option(
            "--url", metavar="URL", help="Address of the server. Without http:// or https://, http:// is meant."
        ),
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the model.", show_default="the first one served")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="DRAFTTREE_API_KEY", metavar="KEY", help="Key of the server, if it asks for one."),
    ] = None,
) -> None:
    """Point a coding agent at a running server.

    Prints the shell commands that set up and start the agent. With a command after --, runs it instead, as in
    "drafttree connect claude-code -- claude". The server must be running, accept the key, and have the context that the
    agent needs.
    """
    keys = (api_key or "").split()  # the server's own variable may hold several keys
    url = url if "://" in url else f"http://{url}"
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url {url!r} is not an address of a server; give one that begins with http:// or https://")
    server = _find(url.rstrip("/").removesuffix("/v1"), model, keys[0] if keys else None)
    setup_of, needed_context = SETUPS[agent]
    if server.context is not None and server.context < needed_context:
        raise ConfigError(
            f"{agent} needs a context of {needed_context} tokens, and {server.model!r} has {server.context}; serve a "
            "model with a larger one, or raise --max-model-len where that limits it"
        )
    setup = setup_of(server)
    if not command:
        lines = [f"export {name}={shlex.quote(value)}" for name, value in setup.environment.items()]
        print(*lines, shlex.join([setup.program, *setup.arguments]), sep="\n")
        return
    program, *arguments = command
    try:
        os.execvpe(program, [program, *setup.arguments, *arguments], {**os.environ, **setup.environment})
    except OSError as error:
        raise ConfigError(f"{program} cannot be run: {error.strerror}; install it, or name its path") from None


def _find(url: str, model: str | None, key: str | None) -> Served:
    """Find a model of a server by its name; without a name, the first one.

    Raises:
        ConfigError: no server answers at the URL, it refuses the key, or it does not have the model.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urlopen(Request(f"{url}/v1/models", headers=headers), timeout=TIMEOUT) as reply:
            cards = {card["id"]: card for card in json.load(reply)["data"]}
            limits = {name: card.get("max_model_len") for name, card in cards.items()}
            contexts = {name: limit if isinstance(limit, int) else None for name, limit in limits.items()}
    except HTTPError as error:
        advice = "; give its key by --api-key or DRAFTTREE_API_KEY" if error.code == 401 else ""
        raise ConfigError(f"{url}/v1/models answers {error.code} {error.reason}{advice}") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(f"no server answers at {url} ({reason}); start drafttree serve, or give its --url") from None
    except (HTTPException, ValueError, TypeError, KeyError):
        raise ConfigError(f"{url}/v1/models lists no models; give the address of a server as --url") from None
    if not contexts or model not in (None, *contexts):
        raise ConfigError(f"{url} serves {', '.join(contexts) or 'no model'}, not {model}; name another --model")
    name = model or next(iter(contexts))
    modalities = cards[name].get("input_modalities")
    reads_images = isinstance(modalities, list) and "image" in modalities
    return Served(url, name, contexts[name], key, reads_images)
