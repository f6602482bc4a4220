"""OpenVINO GenAI on a GGUF file: greedy texts."""

import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np

from drafttree.measure.reference import ReferenceRun

PRECISION = {"float32": "f32", "bfloat16": "bf16"}
"""Type of computation and KV cache by dtype; for other dtypes OpenVINO chooses."""


class OpenVino:
    """A model in OpenVINO GenAI, one text at a time.

    Args:
        path: GGUF file with f16 or q8_0 weights; OpenVINO does not read others.
        dtype: "float32", "bfloat16" or "int8".
        threads: number of CPU threads.
        eos: tokens that end a text.
    """

    def __init__(self, path: Path, *, dtype: str, threads: int, eos: Sequence[int]) -> None:
        self._library = import_module("openvino_genai")
        self._tensor = import_module("openvino").Tensor
        properties: dict[str, object] = {"INFERENCE_NUM_THREADS": threads}
        if precision := PRECISION.get(dtype):
            properties |= {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision}
        self._pipeline = self._library.LLMPipeline(path, "CPU", **properties)
        self._eos = set(eos)

    def generate(self, prompt: Sequence[int], max_new_tokens: int) -> ReferenceRun:
        """A greedy text."""
        settings = self._library.GenerationConfig()
        settings.do_sample = False
        settings.max_new_tokens = max_new_tokens
        settings.stop_token_ids = self._eos
        started = time.perf_counter()
        results = self._pipeline.generate(self._tensor(np.array([prompt], dtype=np.int64)), settings)
        return ReferenceRun([int(token) for token in results.tokens[0]], time.perf_counter() - started)
