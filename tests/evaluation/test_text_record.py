"""Records of single texts, worked out by hand."""

from drafttree import Metrics
from drafttree.engine.metrics import Round
from drafttree.evaluation.text_record import TextRecord

ROUNDS = [
    Round(3, 2, 7, 3, 4, 0.5, 2.0, 3.0, ranks=(1, 3)),
    Round(1, 0, 1, 0, 0, 0.0, 1.0, 1.5),
]


def test_a_record_has_the_times_of_its_text_and_a_member_per_round():
    metrics = Metrics(ROUNDS, prefill_seconds=1.0, seconds=5.5, first_token_seconds=[4.0])
    record = TextRecord.of(metrics, "talon", 2, group="chat", repeat=1)
    assert (record.way, record.group, record.prompt, record.repeat) == ("talon", "chat", 2, 1)
    assert (record.tokens, record.seconds, record.ttft, record.tpot) == (4, 5.5, 4.0, 0.5)
    assert record.mean_path_length == 1.0
    assert (record.committed, record.accepted, record.nodes) == ([3, 1], [2, 0], [7, 1])
    assert (record.levels, record.draft_passes, record.ranks) == ([3, 0], [4, 0], [(1, 3), ()])
