"""/tokenize and /detokenize, and embeddings, which are refused."""

import httpx
import pytest

TEXT = "Grüße, 你好 🎉"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def ask(address):
    """Posts a body to a path."""
    return lambda path, **body: httpx.post(f"{address}/{path}", json=body, timeout=60)


def test_a_text_is_its_tokens_and_back(ask, decoder):
    found = ask("tokenize", prompt=TEXT).json()
    tokens = decoder.tokenizer(TEXT)["input_ids"]
    assert found == {"count": len(tokens), "max_model_len": 2048, "tokens": tokens, "token_strs": None}
    assert ask("detokenize", tokens=tokens).json() == {"prompt": TEXT}


def test_tokens_are_told_as_the_vocabulary_has_them(ask, decoder):
    found = ask("tokenize", prompt=TEXT, return_token_strs=True).json()
    assert found["token_strs"] == decoder.tokenizer.convert_ids_to_tokens(found["tokens"])


def test_special_tokens_are_added_unless_they_are_not_wanted(ask, decoder, monkeypatch):
    seen = []
    wrapped = type(decoder.tokenizer).__call__
    spy = lambda tokenizer, *args, **options: seen.append(options) or wrapped(tokenizer, *args, **options)  # noqa: E731
    monkeypatch.setattr(type(decoder.tokenizer), "__call__", spy)
    for wanted in (None, True, False):
        ask("tokenize", prompt=TEXT, add_special_tokens=wanted)
    assert [options["add_special_tokens"] for options in seen] == [True, True, False]


def test_a_conversation_has_as_many_tokens_as_its_prompt(ask, post):
    usage = post("chat/completions", messages=HELLO, max_tokens=1).json()["usage"]
    assert ask("tokenize", messages=HELLO).json()["count"] == usage["prompt_tokens"]
    tool = {"type": "function", "function": {"name": "f"}}
    assert ask("tokenize", messages=HELLO, tools=[tool]).json()["count"] > usage["prompt_tokens"]


@pytest.mark.parametrize("end", [{"add_generation_prompt": False}, {"continue_final_message": True}])
def test_a_conversation_may_end_with_its_last_message(ask, decoder, end):
    said = [*HELLO, {"role": "assistant", "content": "Good day"}]
    options = {"add_generation_prompt": False, **end}
    assert (
        ask("tokenize", messages=said, **end).json()["tokens"]
        == (decoder.tokenizer.apply_chat_template(said, **options)["input_ids"])
    )


def test_no_text_has_no_tokens(ask):
    assert ask("tokenize", prompt="").json()["tokens"] == []
    assert ask("detokenize", tokens=[]).json() == {"prompt": ""}
