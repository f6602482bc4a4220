"""`drafttree serve`: what it is told reaches the server, and mistakes are one line."""

import logging
import socket

import pytest
from fastapi import FastAPI

import drafttree
from drafttree.interfaces.cli import decoders
from drafttree.interfaces.server import lifecycle
from drafttree.interfaces.server.dialect.families import CALLS
from testing.command_line import complaint, run


@pytest.fixture
def served(quick, monkeypatch):
    """The application that a command would serve."""
    found: list[FastAPI] = []
    monkeypatch.setattr(lifecycle, "run", lambda app, listener, tell: found.append(app))
    yield found
    for app in found:
        app.state.serving.engine.close()


def serve(*arguments, **options):
    result = run("serve", "--port", 0, *arguments, **options)
    assert result.exit_code == 0, result.exception
    return result


def test_options_reach_the_server(served):
    limits = ("--max-batch", 3, "--max-queue", 5, "--timeout", 2.5)
    serve("--drafter", "none", *limits, "--api-key", "k", "--cors", "https://a", "--cors", "https://b")
    serving = served[0].state.serving
    settings = serving.settings
    assert (settings.max_batch, settings.max_queue, settings.timeout) == (3, 5, 2.5)
    assert (settings.api_keys, settings.cors) == (("k",), ("https://a", "https://b"))
    assert (settings.grace, settings.allowed_hosts) == (10, ("localhost", "127.0.0.1"))
    assert settings.model_name == "embedded"
    assert serving.decoder.drafter is None


def test_a_server_may_be_called_by_other_names_and_take_longer_to_end(served):
    serve("--allowed-hosts", "Api.Example", "--allowed-hosts", "*", "--grace", 2.5)
    settings = served[0].state.serving.settings
    assert settings.allowed_hosts == ("localhost", "127.0.0.1", "api.example", "*")
    assert settings.grace == 2.5


def test_what_a_proxy_needs_reaches_the_server(served, monkeypatch):
    log = logging.getLogger("drafttree.access")
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(log, name, getattr(log, name))
    serve("--trusted-proxies", "10.0.0.7", "--trusted-proxies", "fd00::/8", "--keep-alive", 75, "--access-log")
    settings = served[0].state.serving.settings
    assert settings.trusted_proxies == ("10.0.0.7", "fd00::/8")
    assert (settings.keep_alive, settings.access_log) == (75, True)


@pytest.mark.parametrize("proxy", ["", "nginx", "10.0.0.7/8", "10.0.0.7:80", "* "])
def test_a_proxy_that_no_address_names_is_one_line(capsys, proxy):
    assert f"{proxy!r} is not an address; give one such as 10.0.0.7" in complaint(
        capsys, "serve", "--trusted-proxies", proxy
    )


@pytest.mark.parametrize("host", ["", "http://api.example", "api.example:8000", "a/b", "two words"])
def test_a_name_by_which_no_request_can_call_is_one_line(capsys, host):
    assert "give one such as api.example.com" in complaint(capsys, "serve", "--allowed-hosts", host)


def test_a_limit_of_the_context_is_told_with_what_it_saves(served, monkeypatch):
    monkeypatch.setattr(decoders, "load", drafttree.load)
    told = serve("--max-model-len", 512, "--dtype", "float32").stderr
    assert "512 tokens of a text take 6.3 MB of the KV cache instead of 25.2 MB for 2048 tokens" in told
    assert served[0].state.serving.decoder.target.context == 512
    assert "KV cache" not in serve().stderr


def test_a_context_that_the_model_does_not_have_is_one_line(capsys, monkeypatch, quick):
    monkeypatch.setattr(decoders, "load", drafttree.load)
    assert "the model's context is 2048; give at most that" in complaint(capsys, "serve", "--max-model-len", 4096)


def test_parsers_reach_the_server(served):
    serve("--tool-parser", "llama3_json", "--reasoning-parser", "none")
    dialect = served[0].state.serving.dialect
    assert (dialect.calls, dialect.thinking) == (CALLS["llama3_json"], None)


@pytest.mark.parametrize(("option", "known"), [("--tool-parser", "hermes"), ("--reasoning-parser", "qwen3")])
def test_an_unknown_parser_is_one_line_with_those_that_are_known(capsys, option, known):
    error = complaint(capsys, "serve", option, "nobody")
    assert f"{option} is 'nobody'; known: auto, none, " in error
    assert known in error


def test_a_model_is_served_under_the_name_it_is_given(served):
    serve("embedded", "--served-model-name", "mine")
    assert served[0].state.serving.settings.model_names == ("mine",)


def test_a_model_may_be_served_under_several_names(served):
    serve("embedded", "--served-model-name", "mine", "--served-model-name", "gpt-4")
    assert served[0].state.serving.settings.model_names == ("mine", "gpt-4")


def test_the_key_may_come_from_the_environment(served):
    serve(env={"DRAFTTREE_API_KEY": "from outside"[:4]})
    assert served[0].state.serving.settings.api_keys == ("from",)


def test_keys_may_be_several_and_come_from_a_file(served, tmp_path):
    (tmp_path / "keys").write_text("# of the house\nthird\n\n  fourth  \n")
    result = serve("--api-key", "first", "--api-key", "second", "--api-key-file", tmp_path / "keys")
    assert served[0].state.serving.settings.api_keys == ("first", "second", "third", "fourth")
    assert "third" not in result.output


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"\n# none\n", "has no key; write one per line"),
        (b"\xff\xfe", "cannot be read"),
        ("schlüssel".encode(), "characters that are not printable ASCII"),
        (b"two words", "characters that are not printable ASCII"),
    ],
)
def test_a_file_without_usable_keys_is_one_line(capsys, tmp_path, content, words):
    if content is not None:
        (tmp_path / "keys").write_bytes(content)
    assert words in complaint(capsys, "serve", "--api-key-file", tmp_path / "keys")


def test_a_limit_for_keys_needs_keys(served, capsys):
    serve("--api-key", "k", "--max-texts-per-key", 3)
    assert served[0].state.serving.settings.max_texts_per_key == 3
    assert "there are none; give --api-key" in complaint(capsys, "serve", "--max-texts-per-key", 3)


def test_prefixes_are_shared_among_all_on_a_loopback_address_or_on_demand(served):
    everywhere = ("--host", "0.0.0.0")
    for options in ((), ("--no-share-prefixes",), everywhere, (*everywhere, "--share-prefixes")):
        serve("--drafter", "none", *options)
    serve("--drafter", "none", "--host", "127.0.0.2")
    assert [app.state.serving.settings.shares_prefixes for app in served] == [True, False, False, True, True]


def test_a_server_that_others_reach_without_a_key_says_so(served):
    assert "--api-key makes it ask for a key" in serve("--host", "0.0.0.0").stderr
    assert "--api-key" not in serve("--host", "0.0.0.0", "--api-key", "k").stderr
    for host in ("127.0.0.1", "127.0.0.2", "localhost"):
        assert "--api-key" not in serve("--host", host).stderr


def test_a_port_in_use_is_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "in use; choose another" in complaint(capsys, "serve", "--port", taken.getsockname()[1])


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "line\n"])
def test_a_key_that_no_request_could_carry_is_one_line(capsys, key):
    assert "--api-key" in complaint(capsys, "serve", "--api-key", key)


def test_numbers_out_of_range_are_one_line(capsys):
    assert "--port" in complaint(capsys, "serve", "--port", 65536)
    assert "--timeout" in complaint(capsys, "serve", "--timeout", 0)


def test_an_unknown_policy_is_one_line(capsys):
    assert "did you mean 'talon'?" in complaint(capsys, "serve", "--policy", "talom")


@pytest.mark.parametrize("origin", ["ftp", "example.com", "https://example.com/path"])
def test_what_no_browser_sends_as_an_origin_is_one_line(capsys, origin):
    assert "give one such as https://example.com" in complaint(capsys, "serve", "--cors", origin)


def test_a_model_without_a_name_is_one_line(capsys):
    assert "--served-model-name is empty" in complaint(capsys, "serve", "--served-model-name", "")


def test_a_name_that_is_given_twice_is_served_once(served):
    serve("embedded", "--served-model-name", "a", "--served-model-name", "a")
    assert served[0].state.serving.settings.model_names == ("a",)
