"""A server does not start over a generation config that no request could run with, and starts over any other."""

import json
import shutil

import httpx
import pytest

import drafttree
from drafttree.errors import ConfigError
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from drafttree.loading import zoo
from testing.live_server import serving

BEFORE = "no request could run with 'model': its generation_config.json "
AFTER = "; remove that from the file"


@pytest.fixture
def load(tmp_path):
    """Loads the embedded target with a generation config."""
    folder = tmp_path / "model"
    shutil.copytree(zoo.folder("embedded"), folder)

    def load(**config):
        (folder / "generation_config.json").write_text(json.dumps(config))
        return drafttree.load(folder, drafter=None, dtype="float32")

    return load


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"num_beams": 4, "guidance_scale": 1.5},
            "sets num_beams=4, guidance_scale=1.5, which tree drafting does not support",
        ),
        (
            {"no_repeat_ngram_size": -1},
            "is wrong: no_repeat_ngram_size is -1: `ngram_size` has to be a strictly positive integer, but is -1",
        ),
        (
            {"bad_words_ids": [[10**6]]},
            "is wrong: bad_words_ids is [[1000000]]: token id 1000000 is outside the vocabulary of 4096",
        ),
    ],
)
def test_what_no_request_could_run_with_is_refused_at_the_start(load, config, reason):
    with pytest.raises(ConfigError) as refused:
        create_app(load(**config), ServerSettings("m"))
    assert str(refused.value) == BEFORE + reason + AFTER


@pytest.mark.parametrize(
    "config",
    [
        {"num_beams": 1, "early_stopping": True, "temperature": 0.5, "do_sample": True, "min_new_tokens": 2},
        {"do_sample": True, "temperature": 0.0},  # requests give their own temperature
    ],
)
def test_defaults_that_requests_can_run_with_are_served(load, config):
    with serving(create_app(load(**config), ServerSettings("m"))) as address:
        body = {"prompt": "The sea", "max_tokens": 2, "temperature": 0.7}
        assert httpx.post(f"{address}/v1/completions", json=body, timeout=60).status_code == 200
