"""What a request's texts have cost so far."""

from drafttree.engine.metrics import Round
from drafttree.interfaces.server.choices import DraftedTokens


def turn(nodes: int) -> Round:
    return Round(1, 0, nodes, 1, 1, 0.0, 0.0, 0.0)


def test_drafted_tokens_are_counted_once_however_often_they_are_asked_for():
    rounds = [turn(5), turn(1)]
    drafted = DraftedTokens(rounds)
    assert [drafted.count(), drafted.count()] == [4, 4]
    rounds[0] = turn(100)  # a round that was counted is not looked at again
    rounds.append(turn(3))
    assert drafted.count() == 6
