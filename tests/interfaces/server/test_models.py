"""The list of models."""

import openai
import pytest
from openai.types import Model

from helpers.live_server import strict


def test_the_served_model_is_listed(client, address):
    assert [model.id for model in client.models.list()] == ["embedded"]
    assert client.models.retrieve("embedded").owned_by == "drafttree"
    strict(Model, client.models.retrieve("embedded").model_dump(exclude_unset=True))


def test_another_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError, match="the model 'org/other' is not served") as raised:
        client.models.retrieve("org/other")
    assert raised.value.code == "model_not_found"
