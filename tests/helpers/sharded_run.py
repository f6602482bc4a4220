"""A program for two processes of torchrun: what a sharded target writes and refuses, a file per process.

torchrun --nproc-per-node 2 -m helpers.sharded_run FOLDER
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import drafttree
from drafttree.errors import DraftTreeError
from drafttree.evaluation.toy_models import TOY_COSTS

PROMPT = "The old man looked at the sea"
GREEDY: dict[str, Any] = {"max_new_tokens": 24, "temperature": 0.0}
SEEDED: dict[str, Any] = {"max_new_tokens": 24, "temperature": 1.0, "seed": 7}
TEXTS = (GREEDY, SEEDED)
DRAFTERS = ("embedded-draft", "lookup", "embedded-eagle3", "embedded-medusa", "embedded-hydra", "none")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    decoder = drafttree.load("embedded", "embedded-draft", dtype="float32", tensor_parallel_size=2)
    found: dict[str, Any] = {"backend": type(decoder.target.backend).__name__, "heads": cache_heads(decoder)}
    for name in DRAFTERS:
        each = drafttree.load("embedded", name, dtype="float32", tensor_parallel_size=2)
        found[name] = [each.generate(PROMPT, **options).tokens for options in TEXTS]
    unseeded = decoder.generate(PROMPT, max_new_tokens=8, temperature=1.0)
    found["unseeded"] = [unseeded.seed, unseeded.tokens]
    windowed = drafttree.load("embedded", "embedded-draft", dtype="float32", lossy_window=8, tensor_parallel_size=2)
    found["window"] = windowed.generate(PROMPT, **GREEDY).tokens
    auto = decoder.with_policy(drafttree.policies.Auto())
    found["auto with costs"] = auto.with_costs(TOY_COSTS).generate(PROMPT, **GREEDY).tokens
    found["refused"] = refusals(decoder, rank)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def cache_heads(decoder: drafttree.Decoder) -> list[int]:
    """The heads of each buffer of a KV cache."""
    return [heads for heads, _, _ in decoder.target.new_cache(4).layout.buffers]


def refusals(decoder: drafttree.Decoder, rank: int) -> dict[str, str]:
    """The messages of what is refused."""
    load = {"dtype": "float32", "tensor_parallel_size": 2}
    tried: dict[str, Callable[[], object]] = {
        "verifier": lambda: decoder.with_verifier(drafttree.verifiers.Traversal),
        "auto": lambda: decoder.with_policy(drafttree.policies.Auto()).generate(PROMPT, **GREEDY),
        "engine": lambda: drafttree.Engine(decoder),
        "several": lambda: decoder.generate([PROMPT, PROMPT], **GREEDY),
        "max_time": lambda: decoder.generate(PROMPT, max_time=1.0),
        "exact_text": lambda: drafttree.load(exact_text=True, **load),
        "quantize": lambda: drafttree.load(quantize="int8", **load),
        "loaded": lambda: drafttree.load(decoder.target.module, tensor_parallel_size=2),
        "different prompts": lambda: decoder.generate(f"{PROMPT} {rank}", **GREEDY),
    }
    return {name: message(call) for name, call in tried.items()}


def message(call: Callable[[], object]) -> str:
    try:
        call()
    except DraftTreeError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
