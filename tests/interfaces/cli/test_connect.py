"""`drafttree connect`: what points an agent at a running server."""

import json
import os
import shlex
import subprocess
import sys

import pytest
from fastapi import FastAPI, Header, HTTPException

from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from testing.command_line import complaint, run
from testing.live_server import serving

CARDS = [{"id": "org/large", "max_model_len": 131072}, {"id": "small", "max_model_len": 2048}, {"id": "ö"}]
CONTEXTS = [("claude-code", 65536), ("codex", 32768), ("opencode", 32768)]
CARDS += [{"id": f"{agent}-{less}", "max_model_len": tokens - less} for agent, tokens in CONTEXTS for less in (0, 1)]
CARDS += [{"id": "eyes", "input_modalities": ["text", "image"]}]


@pytest.fixture(scope="module")
def url():
    """A server with a key and models of several contexts."""
    app = FastAPI()

    @app.get("/v1/models")
    def models(authorization: str = Header("")):
        if authorization != "Bearer k'ey":
            raise HTTPException(401)
        return {"data": CARDS}

    @app.get("/else/v1/models")
    def nothing():
        return ["no models"]

    @app.get("/bare/v1/models")
    def bare():
        return {"data": []}

    with serving(app) as found:
        yield found


def connect(url, agent, *arguments):
    result = run("connect", agent, "--url", url, "--api-key", "k'ey", *arguments)
    assert result.exit_code == 0, result.exception
    return result.stdout


def variables(script):
    """The variables that lines for a shell leave, and the command in their last line."""
    *lines, command = script.splitlines()
    show = f'{shlex.quote(sys.executable)} -c "import json, os; print(json.dumps(dict(os.environ)))"'
    found = subprocess.run(["sh", "-c", "\n".join([*lines, show])], capture_output=True, text=True, check=True).stdout
    return json.loads(found), shlex.split(command)


def test_claude_code_gets_the_address_the_key_and_the_model(url):
    found, (program, option, settings) = variables(connect(url, "claude-code"))
    assert (program, option, found["ANTHROPIC_AUTH_TOKEN"]) == ("claude", "--settings", "k'ey")
    env = json.loads(settings)["env"]
    assert (env["ANTHROPIC_BASE_URL"], env["ANTHROPIC_API_KEY"]) == (url, "")
    assert {value for name, value in env.items() if name.endswith("_MODEL")} == {"org/large"}
    assert (env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"], env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"]) == ("131072", "16384")
    assert "k'ey" not in settings  # other users can see arguments


def test_an_address_without_a_scheme_is_one_of_http(url):
    assert connect(url.removeprefix("http://"), "codex") == connect(url, "codex")


def test_codex_gets_settings_of_one_run(url):
    found, command = variables(connect(url + "/v1/", "codex"))
    assert found["DRAFTTREE_API_KEY"] == "k'ey"
    assert command[:3] == ["codex", "-c", 'model="org/large"']
    assert f'model_providers.drafttree.base_url="{url}/v1"' in command
    assert 'model_providers.drafttree.env_key="DRAFTTREE_API_KEY"' in command
    assert "model_context_window=131072" in command


def test_opencode_gets_a_configuration(url):
    found, command = variables(connect(url, "opencode", "--model", "ö"))
    content = json.loads(found["OPENCODE_CONFIG_CONTENT"])
    assert content["model"] == "drafttree/ö"
    provider = content["provider"]["drafttree"]
    assert provider["options"] == {"baseURL": f"{url}/v1", "apiKey": "k'ey"}
    assert provider["models"] == {"ö": {"name": "ö"}}
    assert command == ["opencode"]


def test_opencode_is_told_that_a_model_reads_images(url):
    found, _ = variables(connect(url, "opencode", "--model", "eyes"))
    model = json.loads(found["OPENCODE_CONFIG_CONTENT"])["provider"]["drafttree"]["models"]["eyes"]
    assert (model["attachment"], model["modalities"]["input"]) == (True, ["text", "image"])


def test_a_command_runs_with_what_the_agent_needs(url, monkeypatch):
    ran = []
    monkeypatch.setattr(os, "execvpe", lambda *arguments: ran.append(arguments))
    assert connect(url, "codex", "--", "/bin/codex", "exec", "--json", "hello") == ""
    program, arguments, environment = ran[0]
    assert (program, arguments[0]) == ("/bin/codex", "/bin/codex")
    assert arguments[1:3] == ["-c", 'model="org/large"']
    assert arguments[-3:] == ["exec", "--json", "hello"]
    assert (environment["DRAFTTREE_API_KEY"], environment["PATH"]) == ("k'ey", os.environ["PATH"])


def test_of_several_keys_of_the_server_the_first_is_taken(url, monkeypatch):
    monkeypatch.setenv("DRAFTTREE_API_KEY", "k'ey other")
    result = run("connect", "codex", "--url", url)
    assert variables(result.stdout)[0]["DRAFTTREE_API_KEY"] == "k'ey"


@pytest.mark.parametrize(("agent", "needed"), CONTEXTS)
def test_the_context_that_an_agent_needs_is_checked(capsys, url, agent, needed):
    connect(url, agent, "--model", f"{agent}-0")
    message = complaint(capsys, "connect", agent, "--url", url, "--api-key", "k'ey", "--model", f"{agent}-1")
    assert f"{agent} needs a context of {needed} tokens, and '{agent}-1' has {needed - 1}; serve a" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "gpt"), "serves org/large, small, ö, claude-code-0"),
        (("--api-key", "wrong"), "answers 401 Unauthorized; give its key by --api-key or DRAFTTREE_API_KEY"),
        (("--url", "http://127.0.0.1:9"), "no server answers at http://127.0.0.1:9 ("),
        (("--url", "http://two words"), "http://two words/v1/models lists no models; give the address"),
        (("--url", "no.such.host"), "no server answers at http://no.such.host ("),
        (
            ("--url", "ftp://host"),
            "--url 'ftp://host' is not an address of a server; give one that begins with http://",
        ),
        (("--", "no-such-agent"), "no-such-agent cannot be run: No such file or directory; install it"),
    ],
)
def test_what_cannot_be_connected_is_one_line(capsys, url, arguments, message):
    where = () if "--url" in arguments else ("--url", url)
    key = () if "--api-key" in arguments else ("--api-key", "k'ey")
    assert message in complaint(capsys, "connect", "claude-code", *where, *key, *arguments)


@pytest.mark.parametrize(("path", "message"), [("else", "lists no models"), ("bare", "serves no model")])
def test_a_server_that_is_none_is_one_line(capsys, url, path, message):
    assert message in complaint(capsys, "connect", "codex", "--url", f"{url}/{path}")


def test_our_own_server_says_its_context_and_asks_for_its_key(capsys, embedded):
    with serving(create_app(embedded, ServerSettings("mine", api_keys=("key",)))) as url:
        assert "answers 401" in complaint(capsys, "connect", "codex", "--url", url)
        told = complaint(capsys, "connect", "codex", "--url", url, "--api-key", "key")
    assert "codex needs a context of 32768 tokens, and 'mine' has 2048" in told
