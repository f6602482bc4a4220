"""A target that counts, a text that does, and this process as it was after every run."""

import gzip
import json
import signal
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from helpers import trained
from testing import tiny

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    """Recipes find each other, and what they change in this process is put back."""
    monkeypatch.syspath_prepend(RECIPES)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    """A target that counts, whose tokenizer knows a word per token."""
    folder = tmp_path_factory.mktemp("target")
    trained.counting().save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{token}": token for token in range(tiny.VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "count.txt").write_text(" ".join(f"w{token % 50}" for token in range(400)))
    with gzip.open(folder / "more.jsonl.gz", "wt") as file:
        file.write(json.dumps({"text": " ".join(f"w{token % 20}" for token in range(300))}) + "\n")
    return folder
