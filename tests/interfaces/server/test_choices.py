"""What a request's texts have cost so far."""

from types import SimpleNamespace

from drafttree.engine.metrics import Metrics, Round
from drafttree.interfaces.server.choices import Choices, DraftedTokens


def turn(nodes: int) -> Round:
    return Round(1, 0, nodes, 1, 1, 0.0, 0.0, 0.0)


def test_drafted_tokens_are_counted_once_however_often_they_are_asked_for():
    rounds = [turn(5), turn(1)]
    drafted = DraftedTokens(rounds)
    assert [drafted.count(), drafted.count()] == [4, 4]
    rounds[0] = turn(100)  # a round that was counted is not looked at again
    rounds.append(turn(3))
    assert drafted.count() == 6


def test_tokens_that_several_texts_of_a_prompt_reuse_are_counted_once():
    prompts, reused = [[1] * 10, [2] * 20], [0, 9, 9, 7, 15, 15]
    handles = [SimpleNamespace(metrics=Metrics(reused_tokens=tokens)) for tokens in reused]
    usage = Choices(prompts, handles).usage
    assert (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens) == (30, 9 + 15)
