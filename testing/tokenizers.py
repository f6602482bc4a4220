"""Small tokenizers, of a few words or trained on a text."""

import json

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast


def words(*vocabulary: str) -> PreTrainedTokenizerFast:
    """A tokenizer whose ids are the places of the words."""
    model = WordLevel({word: index for index, word in enumerate(vocabulary)}, unk_token=vocabulary[0])
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))


CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }} {{ message.content }} end {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)
CHAT_WORDS = ("?", "system", "user", "assistant", "end", "hello", "you", "bye")


def chat_words(template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """A tokenizer of `CHAT_WORDS` with a chat template."""
    made = words(*CHAT_WORDS)
    made.backend_tokenizer.pre_tokenizer = Whitespace()
    made.chat_template = template
    return made


def spelled(text: str) -> list[int]:
    """The ids of words of `CHAT_WORDS`."""
    return [CHAT_WORDS.index(word) for word in text.split()]


def byte_level(text: str, size: int, special: str = "<|end|>") -> PreTrainedTokenizerFast:
    """A BPE tokenizer over bytes, which writes a space as `Ġ`, trained on a text."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=size, special_tokens=[special], initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=special)


def pieces(text: str, size: int) -> PreTrainedTokenizerFast:
    """A BPE tokenizer as SentencePiece makes them: spaces are `▁`, one is put before a text, bytes are `<0x0A>`."""
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    made = Tokenizer(BPE(unk_token="<unk>", byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(parts)
    trainer = BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    made.train_from_iterator([text], trainer)
    state = json.loads(made.to_str())
    state["added_tokens"] = state["added_tokens"][:3]  # the trainer takes bytes for special tokens
    marks = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)), **marks)
