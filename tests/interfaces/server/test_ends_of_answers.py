"""Where the answers of a model end whose chat template ends them by plain text."""

import pytest

from drafttree.text.chat import turn_end


@pytest.mark.few(1)
@pytest.mark.parametrize("route", ["chat/completions", "messages"])
def test_an_answer_that_ignores_its_end_has_all_tokens(post, decoder, route):
    assert turn_end(decoder.tokenizer)
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 200, "temperature": 0}

    def written(**more: object) -> int:
        usage = post(route, **body, **more).json()["usage"]
        return usage.get("completion_tokens", usage.get("output_tokens"))

    assert written() < 200
    assert written(ignore_eos=True) == 200


def test_a_form_is_not_cut_where_a_turn_would_end(post, decoder):
    pytest.importorskip("llguidance")
    said = f"one{turn_end(decoder.tokenizer)} two"
    body = {"messages": [{"role": "user", "content": "Hello"}], "structured_outputs": {"choice": [said]}}
    assert post("chat/completions", **body).json()["choices"][0]["message"]["content"] == said
