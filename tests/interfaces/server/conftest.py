"""The embedded pair behind a server, and the official clients."""

import httpx
import openai
import pytest

import drafttree
from drafttree.errors import InputError
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from drafttree.policies import Talon
from testing.live_server import serving

MODEL = "embedded"


@pytest.fixture(scope="package")
def decoder():
    return drafttree.load(dtype="float32", policy=Talon(budget=12)).with_costs(TOY_COSTS)


@pytest.fixture(scope="package")
def address(decoder):
    """The address of a server of the embedded pair."""
    with serving(create_app(decoder, ServerSettings(MODEL, max_batch=8))) as found:
        yield found


@pytest.fixture(scope="package")
def client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="package")
def post(address):
    """Posts a body to a path below /v1."""
    with httpx.Client(base_url=f"{address}/v1", timeout=60) as made:
        yield lambda path, **body: made.post(path, json=body)


@pytest.fixture
def broken(decoder, monkeypatch):
    """The target refuses every pass."""

    def refuse(*_, **__):
        raise InputError("the pass is refused")

    monkeypatch.setattr(decoder.target, "forward", refuse)
