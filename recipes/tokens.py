"""Trains the tokenizer of the embedded pair (lossless byte-level BPE, 4096 entries) and caches token ids on disk.

The vocabulary is small on purpose: in a model of ten million parameters every entry costs parameters twice, in the
embedding and in the output projection.
"""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from corpus import END_OF_TEXT
from disk import atomic_file

VOCABULARY = 4096

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ {'user': 'User', 'assistant': 'Assistant', 'system': 'System'}[message['role']] }}: "
    "{{ message['content'].strip() }}{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


def train_tokenizer(texts: list[str], folder: Path) -> PreTrainedTokenizerFast:
    """Learn the merges and save an ordinary transformers tokenizer: no normaliser, no prefix space."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet)
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer


def token_cache(texts: list[str], tokenizer: PreTrainedTokenizerFast, path: Path) -> np.ndarray:
    """Write all documents as one stream of token ids, each after an EOS token, in two bytes per id if they suffice."""
    rows = tokenizer.backend_tokenizer.encode_batch(texts)
    kind = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    separator = np.array([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id], kind)
    stream = np.concatenate([part for row in rows for part in (separator, np.array(row.ids, kind))])
    with atomic_file(path) as file:
        np.save(file, stream)
    return stream


def read_stream(path: Path) -> np.ndarray:
    """Map the token ids of a cache file, without reading them into memory.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        return np.load(path, mmap_mode="r")
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is truncated or damaged; delete it, and the same command makes it again") from error
