"""What weights of eight bits cost: the same tokens scored in three ways, against logits of transformers."""

import gzip
import json
import math

import pytest
import torch

from drafttree.loading.pretrained import load_model, load_tokenizer
from drafttree_lab.bench import perplexity
from testing.command_line import complaint, run

TEXT = "The old man went down to the sea, and the sea was as it had always been. " * 8


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(TEXT.encode()))
    return path


@pytest.mark.usefixtures("quick")
def test_the_perplexity_is_that_of_transformers_logits(text):
    options = ["--text", text, "--tokens", 64, "--length", 16, "--dtype", "float32"]
    rows = json.loads(run("bench", "perplexity", "embedded-draft", *options, "--json").stdout)["rows"]
    assert [row["weights"] for row in rows] == [perplexity.BASE, perplexity.WAYS["int8"], perplexity.WAYS["int8-head"]]
    tokenizer, module = (
        load_tokenizer("embedded-draft"),
        load_model("embedded-draft", torch.float32, torch.device("cpu")),
    )
    parts = perplexity.read_parts(text, tokenizer, 64, 16)
    losses = []
    for part in parts:
        ids = torch.tensor([part])
        with torch.inference_mode():
            losses.append(float(module(ids, labels=ids).loss))
    assert len(parts) == 4
    assert rows[0]["perplexity"] == pytest.approx(math.exp(sum(losses) / 4), rel=1e-4)
    assert rows[0]["change_percent"] == 0
    assert rows[0]["best_tokens_unchanged"] == 1
    assert all(abs(row["change_percent"]) < 5 and row["error_percent"] > 0 for row in rows[1:])
    assert rows[1]["perplexity"] != rows[2]["perplexity"]


def test_a_change_and_its_error_are_of_the_same_tokens():
    base = [{"logprobs": [-1.0, -2.0], "best": [1, 2]}, {"logprobs": [-3.0, -4.0], "best": [3, 4]}]
    own = [{"logprobs": [-1.1, -2.1], "best": [1, 2]}, {"logprobs": [-3.3, -4.3], "best": [3, 9]}]
    row = perplexity.compare("int8", own, base)
    assert row["change_percent"] == pytest.approx(100 * math.expm1(0.2))
    assert row["error_percent"] == pytest.approx(10)  # means 0.1 and 0.3: deviation 0.1414, over the root of 2
    assert row["best_tokens_unchanged"] == 0.75


def test_one_part_has_no_error():
    part = [{"logprobs": [-1.0], "best": [1]}]
    assert perplexity.compare("int8", part, part)["error_percent"] is None


def test_a_text_that_is_too_short_is_told(capsys, text):
    told = complaint(capsys, "bench", "perplexity", "embedded-draft", "--text", text, "--length", 4096)
    assert "give a longer text or --length" in told
