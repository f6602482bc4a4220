"""llama.cpp on a GGUF file, by the functions of its library: greedy texts, and passes over several rows."""

import ctypes
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from drafttree.core.errors import ModelError
from drafttree.evaluation.reference import ReferenceRun

_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
"""Kept here, since llama.cpp calls it as long as the process lives."""


class LlamaCpp:
    """A model in llama.cpp, one text at a time.

    Args:
        path: the GGUF file.
        exact_cache: keep keys and values in float32, not in float16 as llama.cpp does by default.
        threads: of the CPU.
        eos: tokens that end a text.
        context: tokens of a text at most.

    Raises:
        ModelError: llama.cpp does not read the file.
    """

    def __init__(self, path: Path, *, exact_cache: bool, threads: int, eos: Sequence[int], context: int) -> None:
        self._library = library = import_module("llama_cpp")
        library.llama_log_set(_SILENT, None)
        self._eos = frozenset(eos)
        self._model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
        if not self._model:
            raise ModelError(f"llama.cpp {library.__version__} does not read {path}")
        settings = library.llama_context_default_params()
        settings.n_ctx = settings.n_batch = context  # a prompt is one batch, and llama.cpp aborts on larger ones
        settings.n_threads = settings.n_threads_batch = threads
        if exact_cache:
            settings.type_k = settings.type_v = library.GGML_TYPE_F32
        self._context = library.llama_init_from_model(self._model, settings)
        self._memory = library.llama_get_memory(self._context)
        self._sampler = library.llama_sampler_init_greedy()

    def generate(self, prompt: Sequence[int], max_new_tokens: int) -> ReferenceRun:
        """A greedy text."""
        sample = self._library.llama_sampler_sample
        started = time.perf_counter()
        self._library.llama_memory_clear(self._memory, False)
        self._decode(prompt)
        tokens = [sample(self._sampler, self._context, -1)]
        while len(tokens) < max_new_tokens and tokens[-1] not in self._eos:
            self._decode(tokens[-1:])
            tokens.append(sample(self._sampler, self._context, -1))
        return ReferenceRun(tokens, time.perf_counter() - started)

    def time_passes(self, sizes: Sequence[int], context: int, repeats: int) -> dict[int, float]:
        """The least seconds of passes over so many rows behind a context, with the logits of every row."""
        self._library.llama_memory_clear(self._memory, False)
        self._decode([0] * context)
        times: dict[int, list[float]] = {size: [] for size in sizes}
        for _ in range(1 + repeats):
            for size in sizes:
                started = time.perf_counter()
                self._decode_rows(size, context)
                times[size].append(time.perf_counter() - started)
                self._library.llama_memory_seq_rm(self._memory, 0, context, -1)
        return {size: min(spent) for size, spent in times.items()}

    def close(self) -> None:
        """Free the memory of the model."""
        self._library.llama_sampler_free(self._sampler)
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def _decode(self, tokens: Sequence[int]) -> None:
        held = (self._library.llama_token * len(tokens))(*tokens)
        self._check(self._library.llama_decode(self._context, self._library.llama_batch_get_one(held, len(tokens))))

    def _decode_rows(self, rows: int, context: int) -> None:
        batch = self._library.llama_batch_init(rows, 0, 1)
        batch.n_tokens = rows
        for row in range(rows):
            batch.token[row], batch.pos[row], batch.logits[row] = 0, context + row, True
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
        self._check(self._library.llama_decode(self._context, batch))
        self._library.llama_synchronize(self._context)
        self._library.llama_batch_free(batch)

    def _check(self, status: int) -> None:
        if status:
            raise ModelError(f"llama.cpp did not decode (llama_decode gave {status})")
