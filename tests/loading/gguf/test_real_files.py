"""GGUF files that people have, read as transformers reads them."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import drafttree
from drafttree.loading import load_model
from drafttree.loading.gguf.reader import GGUFFile
from drafttree.loading.gguf.tokenizers import tokenizer_of
from helpers import real_models

pytestmark = [pytest.mark.real, pytest.mark.slow]
SMALL = ("gemma-270m", "qwen-coder-0.5b")
PROMPTS = [
    "def quicksort(values):\n",
    "The old man looked at the sea and",
    "<|im_start|>user\nWrite a haiku.<|im_end|>\n<|im_start|>assistant\n",
    "1, 1, 2, 3, 5, 8, 13,",
    "caf\u00e9  \t\u65e5\u672c\u8a9e \U0001f642\n\n",
]


@pytest.mark.parametrize("name", real_models.NAMES)
def test_texts_are_cut_as_transformers_cuts_them(name):
    path = real_models.gguf_file(name)
    ours, theirs = tokenizer_of(GGUFFile(path)), AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    assert len(ours) == len(theirs)
    for prompt in PROMPTS:
        ids = theirs(prompt).input_ids
        assert ours(prompt).input_ids == ids
        assert ours.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize("name", SMALL)
def test_texts_in_float32_are_those_of_transformers_on_the_same_file(name):
    path = real_models.gguf_file(name)
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    weights = load_model(path, torch.float32, torch.device("cpu")).state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in theirs.state_dict().items())
    del weights
    with drafttree.load(path, "lookup", dtype="float32", quantize="none") as decoder:
        assert "NativeBackend" in repr(decoder.target)
        for prompt in PROMPTS:
            result = decoder.generate(prompt, max_new_tokens=32, temperature=0, ignore_eos=True)
            ids = torch.tensor([decoder.tokenizer(prompt).input_ids])
            expected = theirs.generate(ids, max_new_tokens=32, min_new_tokens=32, do_sample=False, eos_token_id=None)
            assert result.tokens == expected[0, ids.shape[1] :].tolist()
