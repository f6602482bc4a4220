"""llama.cpp on a GGUF file, through its C library: greedy texts, passes over several rows, many texts at once."""

import ctypes
import time
import weakref
from collections import deque
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from drafttree.core.errors import ModelError
from drafttree.measure.reference import ReferenceRun

_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
"""Stays referenced here, since llama.cpp calls it until the process ends."""
BATCH = 2048
"""Maximum rows of a pass, as in llama.cpp's server."""
READ, COPIED = 512, 1
"""Number of tokens that are really read for a long context; the sequence that holds copies of their cache rows."""


class Row(NamedTuple):
    """A token of a pass: its position, its text, and whether the pass returns its logits."""

    token: int
    position: int
    stream: int
    wanted: bool


class LlamaCpp:
    """A model in llama.cpp.

    Args:
        path: the GGUF file.
        exact_cache: whether to hold keys and values in float32, not in float16 as by default.
        threads: number of CPU threads.
        eos: tokens that end a text.
        context: maximum length of a text in tokens.
        streams: maximum number of texts at once.

    Raises:
        ModelError: llama.cpp cannot read the file.
    """

    def __init__(
        self, path: Path, *, exact_cache: bool, threads: int, eos: Sequence[int], context: int, streams: int = 1
    ) -> None:
        self._library = library = import_module("llama_cpp")
        library.llama_log_set(_SILENT, None)
        self._eos = frozenset(eos)
        self._model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
        if not self._model:
            raise ModelError(f"llama.cpp {library.__version__} does not read {path}")
        settings = library.llama_context_default_params()
        settings.n_seq_max = max(streams, 1 + COPIED)
        settings.kv_unified = streams == 1
        # a prompt is one batch, and llama.cpp aborts on larger ones
        settings.n_ctx = settings.n_batch = context * streams
        settings.n_threads = settings.n_threads_batch = threads
        if exact_cache:
            settings.type_k = settings.type_v = library.GGML_TYPE_F32
        self._context = library.llama_init_from_model(self._model, settings)
        self._memory = library.llama_get_memory(self._context)
        self._sampler = library.llama_sampler_init_greedy()
        weakref.finalize(self, _free, library, self._sampler, self._context, self._model)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, with the tokenizer's prefix, such as BOS."""
        raw = text.encode()
        token_buffer = (self._library.llama_token * (len(raw) + 8))()
        vocabulary = self._library.llama_model_get_vocab(self._model)
        count = self._library.llama_tokenize(vocabulary, raw, len(raw), token_buffer, len(token_buffer), True, False)
        return [*token_buffer[:count]]

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
        """The shortest time of passes over each number of rows after a context, with logits for every row.

        Only `READ` tokens of the context are read; the other cache rows are copies of theirs.
        """
        self._fill(context)
        times: dict[int, list[float]] = {size: [] for size in sizes}
        for _ in range(1 + repeats):
            for size in sizes:
                rows = [Row(row, context + row, 0, True) for row in range(size)]
                started = time.perf_counter()
                self._decode_rows(rows)
                times[size].append(time.perf_counter() - started)
                self._library.llama_memory_seq_rm(self._memory, 0, context, -1)
        return {size: min(seconds) for size, seconds in times.items()}

    def generate_together(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Write greedy texts at once, scheduled as by llama.cpp's server; also return when tokens came.

        A pass has a row for every text that is being written, and as many tokens of waiting prompts as fit.
        """
        start = time.perf_counter()
        self._library.llama_memory_clear(self._memory, False)
        texts: list[list[int]] = [[] for _ in prompts]
        times: list[list[float]] = [[] for _ in prompts]
        unread_rows = deque(
            Row(token, position, stream, position == len(prompt) - 1)
            for stream, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        )
        text_rows: list[Row] = []
        while text_rows or unread_rows:
            rows = text_rows + [unread_rows.popleft() for _ in range(min(len(unread_rows), BATCH - len(text_rows)))]
            self._decode_rows(rows)
            text_rows = []
            for index, row in enumerate(rows):
                if not row.wanted:
                    continue
                token = self._library.llama_sampler_sample(self._sampler, self._context, index)
                texts[row.stream].append(token)
                times[row.stream].append(time.perf_counter() - start)
                if len(texts[row.stream]) < max_new_tokens:
                    text_rows.append(Row(token, row.position + 1, row.stream, True))
        return texts, times

    def _fill(self, context: int) -> None:
        """Extend the cached text to a length, by copies of its first rows at later positions."""
        library = self._library
        memory = self._memory
        library.llama_memory_clear(memory, False)
        self._decode([0] * min(context, READ))
        size = library.llama_state_seq_get_size(self._context, 0)
        state = (ctypes.c_uint8 * size)()
        library.llama_state_seq_get_data(self._context, state, size, 0)
        for position in range(READ, context, READ):
            if not library.llama_state_seq_set_data(self._context, state, size, COPIED):
                raise ModelError(f"llama.cpp has no room for the rows from {position} on")
            library.llama_memory_seq_rm(memory, COPIED, context - position, -1)
            library.llama_memory_seq_add(memory, COPIED, 0, -1, position)
            library.llama_memory_seq_cp(memory, COPIED, 0, -1, -1)
        library.llama_memory_seq_rm(memory, COPIED, -1, -1)

    def _decode(self, tokens: Sequence[int]) -> None:
        token_buffer = (self._library.llama_token * len(tokens))(*tokens)
        self._check(
            self._library.llama_decode(self._context, self._library.llama_batch_get_one(token_buffer, len(tokens)))
        )

    def _decode_rows(self, rows: Sequence[Row]) -> None:
        batch = self._library.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for index, row in enumerate(rows):
            batch.token[index] = row.token
            batch.pos[index] = row.position
            batch.logits[index] = row.wanted
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = row.stream
        self._check(self._library.llama_decode(self._context, batch))
        self._library.llama_synchronize(self._context)
        self._library.llama_batch_free(batch)

    def _check(self, status: int) -> None:
        if status:
            raise ModelError(f"llama.cpp did not decode (llama_decode gave {status})")


def _free(library: Any, sampler: Any, context: Any, model: Any) -> None:
    library.llama_sampler_free(sampler)
    library.llama_free(context)
    library.llama_model_free(model)
