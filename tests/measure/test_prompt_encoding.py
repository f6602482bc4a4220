"""Prompts as token ids: cut, rendered by a chat template, and with the target's own answers between turns."""

import pytest

from drafttree import Decoder
from drafttree.errors import InputError
from drafttree.measure.prompt_encoding import encode_prompts
from drafttree.measure.prompt_form import AS_TEXT, PromptForm
from drafttree.measure.prompts import Example
from testing.tokenizers import CHAT_WORDS, chat_words, spelled
from testing.toy import ToyModel

TALK = Example("hello you", later_turns=("bye", "hello"))
ANSWER = "you you"


def polite(prefix):
    """The law of a model that says "you" whatever it is told."""
    return [float(word == "you") for word in CHAT_WORDS]


def encoded(*examples: Example, form: PromptForm = AS_TEXT, context: int | None = None, template: str | None = "own"):
    tokenizer = chat_words() if template else chat_words(None)
    tokenizer.name_or_path = "tiny"
    decoder = Decoder(ToyModel(polite, vocab=len(CHAT_WORDS), context=context), tokenizer=tokenizer)
    return encode_prompts(decoder, examples, form, max_new_tokens=2)


def test_a_prompt_is_its_first_turn_as_it_stands():
    assert encoded(TALK, Example("bye")) == [spelled("hello you"), spelled("bye")]


def test_a_prompt_is_cut_at_its_end_to_the_tokens_asked_for():
    assert encoded(Example("hello you bye bye"), form=PromptForm(tokens=3)) == [spelled("hello you bye")]


def test_a_prompt_that_leaves_no_room_is_cut_at_its_beginning():
    assert encoded(Example("hello you bye bye"), context=5) == [spelled("you bye bye")]


def test_every_turn_is_asked_behind_the_targets_own_answers():
    first, second = encoded(TALK, form=PromptForm(turns=2))
    assert first == spelled("hello you")
    assert second == spelled(f"hello you {ANSWER} bye")


def test_a_chat_template_renders_all_turns_one_after_the_other():
    turns = encoded(TALK, form=PromptForm(chat=True))
    middle = f"user hello you end assistant {ANSWER} end user bye end assistant"
    assert turns == [
        spelled("user hello you end assistant"),
        spelled(middle),
        spelled(f"{middle} {ANSWER} end user hello end assistant"),
    ]


def test_a_chat_has_no_more_turns_than_asked_for():
    assert encoded(TALK, form=PromptForm(chat=True, turns=1)) == [spelled("user hello you end assistant")]


def test_in_a_chat_the_message_is_cut_and_not_the_template():
    form = PromptForm(chat=True, turns=1, tokens=1)
    assert encoded(TALK, form=form) == [spelled("user hello end assistant")]


def test_a_target_without_a_chat_template_is_named():
    with pytest.raises(InputError, match="the tokenizer of 'tiny' has no chat template; leave --chat out"):
        encoded(TALK, form=PromptForm(chat=True), template=None)


def test_texts_need_a_tokenizer():
    with pytest.raises(InputError, match="needs a tokenizer"):
        encode_prompts(Decoder(ToyModel(polite)), [TALK], AS_TEXT, 2)
