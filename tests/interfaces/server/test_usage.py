"""What a request's texts have cost so far."""

from types import SimpleNamespace

from drafttree import Metrics
from drafttree.engine.metrics import Round
from drafttree.interfaces.server.texts import Texts


def turn(nodes: int) -> Round:
    return Round(1, 0, nodes, 1, 1, 0.0, 0.0, 0.0)


def test_drafted_tokens_are_counted_once_however_often_they_are_asked_for():
    rounds = [turn(5), turn(1)]
    texts = Texts([[1]], [SimpleNamespace(metrics=Metrics(rounds=rounds))])
    assert [texts.usage.rejected, texts.usage.rejected] == [4, 4]
    rounds[0] = turn(100)  # a round that was counted is not looked at again
    rounds.append(turn(3))
    assert texts.usage.rejected == 6


def usage_of(prompts, texts):
    """The usage of texts, each of which has taken over so many tokens and had so many rounds."""
    metrics = [Metrics(reused_tokens=reused, rounds=[turn(1)] * rounds) for reused, rounds in texts]
    usage = Texts(prompts, [SimpleNamespace(metrics=each) for each in metrics]).usage
    return usage.prompt, usage.cached


def test_tokens_that_one_text_of_a_prompt_has_read_for_the_others_are_not_cached():
    prompts = [[1] * 10, [2] * 20]
    assert usage_of(prompts, [(0, 1), (9, 1), (9, 1), (19, 1), (7, 1), (19, 1)]) == (30, 0 + 7)


def test_texts_that_have_not_begun_say_nothing_of_what_was_cached():
    assert usage_of([[1] * 10], [(8, 2), (0, 0)]) == (10, 8)
    assert usage_of([[1] * 10], [(0, 0), (0, 0)]) == (10, 0)
