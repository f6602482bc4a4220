"""Tokenizers of a few words."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
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
