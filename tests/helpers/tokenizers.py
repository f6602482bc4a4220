"""Tokenizers of a few words."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast


def words(*vocabulary: str) -> PreTrainedTokenizerFast:
    """A tokenizer whose ids are the places of the words."""
    model = WordLevel({word: index for index, word in enumerate(vocabulary)}, unk_token=vocabulary[0])
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))
