"""The list of models."""

import openai
import pytest
from fastapi.testclient import TestClient
from openai.types import Model

from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from testing.live_server import strict


def test_the_served_model_is_listed(client, address):
    assert [model.id for model in client.models.list()] == ["embedded"]
    card = client.models.retrieve("embedded").model_dump(exclude_unset=True)
    assert (card["owned_by"], card.pop("max_model_len")) == ("drafttree", 2048)
    assert card.pop("input_modalities") == ["text"]
    strict(Model, card)


def test_a_model_of_several_names_is_listed_and_called_by_each(decoder):
    app = create_app(decoder, ServerSettings("embedded", other_names=("gpt-4",)))
    body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1}
    with TestClient(app) as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["embedded", "gpt-4"]
        assert client.get("/v1/models/gpt-4").json()["id"] == "gpt-4"
        for name, called in {None: "embedded", "embedded": "embedded", "gpt-4": "gpt-4"}.items():
            assert client.post("/v1/chat/completions", json=body | {"model": name}).json()["model"] == called
        refusal = client.post("/v1/chat/completions", json=body | {"model": "other"}).json()["error"]
    assert refusal["message"] == "the model 'other' is not served; 'embedded' or 'gpt-4' is"


def test_another_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError, match="the model 'org/other' is not served") as raised:
        client.models.retrieve("org/other")
    assert raised.value.code == "model_not_found"
