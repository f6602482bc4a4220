"""A traced text is the text without a trace, and its nodes have the probabilities of the laws they came from."""

import json

import pytest
import torch

import drafttree
from drafttree.drafters import SuffixDrafter
from drafttree.engine.compatibility import incompatibility
from drafttree.evaluation.trace import Outcome, Tracer, trace_text
from drafttree.policies import POLICIES
from drafttree.verifiers import VERIFIERS
from testing.costs import toy_decoder
from testing.small_trees import DRAFT, LENGTH, PROMPT, SMALL, TARGET, VOCAB, small
from testing.toy import PieceTokenizer, Script, ToyDrafter, ToyModel, softmax

PAIRS = [
    (policy, verifier)
    for policy in SMALL
    for verifier in VERIFIERS
    if not incompatibility(small(policy), VERIFIERS[verifier])
]
OPTIONS = {"max_new_tokens": LENGTH, "seed": 5}


def toys(policy: str, verifier: str | None = None, **named):
    parts = ToyModel(TARGET, VOCAB), ToyDrafter(DRAFT, VOCAB), small(policy)
    return toy_decoder(*parts, VERIFIERS[verifier] if verifier else None, **named)


def temperature(verifier: str) -> float:
    return 0.0 if verifier == "greedy" else 1.0


@pytest.mark.few(7)
@pytest.mark.parametrize(("policy", "verifier"), PAIRS)
def test_a_traced_text_is_the_one_without_a_trace(policy, verifier):
    options = {**OPTIONS, "temperature": temperature(verifier)}
    expected = toys(policy, verifier).generate(PROMPT, **options)
    tracer = Tracer(toys(policy, verifier), PROMPT, **options)
    assert [turn.committed for turn in tracer.run()] == [turn.committed for turn in expected.metrics.rounds]
    assert tracer.request.tokens[len(PROMPT) :] == expected.tokens
    assert [turn.size for turn in tracer.rounds] == [turn.nodes for turn in expected.metrics.rounds]


def test_a_trace_says_that_its_text_is_not_lossless():
    found = trace_text(toys("talon", "lossy-typical"), PROMPT, **OPTIONS, temperature=1.0).setting["text"]
    assert found == "NOT lossless: the verifier lossy-typical does not follow the target's distribution"


def test_a_trace_names_the_parts_of_its_decoder():
    decoder = drafttree.load("embedded", "mixed:embedded-eagle3", "talon:budget=16", dtype="float32")
    found = trace_text(decoder, "one two three", max_new_tokens=2, temperature=0.8, seed=3).setting
    assert found == {
        "target": "embedded",
        "drafter": "mixed:embedded-eagle3",
        "policy": "talon:budget=16",
        "verifier": "coupled",
        "precision": "float32",
        "temperature": "0.8",
        "seed": "3",
        "text": "lossless",
    }


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_k": 5}], ids=["greedy", "coupled"])
@pytest.mark.parametrize("policy", ["talon", "eagle", "auto"])
def test_probabilities_are_those_of_the_two_laws(policy, sampling):
    decoder = toys(policy)
    text, found = list(PROMPT), 0
    for turn in trace_text(decoder, PROMPT, **OPTIONS, **sampling).rounds:
        paths = [list(text)]
        for node in turn.nodes[1:]:
            before = paths[node.parent]
            paths.append([*before, node.token])
            assert node.draft == pytest.approx(chances(DRAFT(before), sampling)[node.token], abs=1e-5)
            if node.target is not None:
                assert node.target == pytest.approx(chances(TARGET(before), sampling)[node.token], abs=1e-5)
                found += 1
        text = [*paths[turn.path[-1]], turn.bonus.token]
    assert found > LENGTH


def chances(logits: list[float], sampling: dict) -> list[float]:
    """Probabilities after a temperature and top-k, by hand."""
    kept = sorted(logits, reverse=True)[: sampling.get("top_k", len(logits))]
    scaled = [logit / sampling.get("temperature", 1.0) if logit in kept else -1e9 for logit in logits]
    return softmax([logit - max(scaled) for logit in scaled])


def test_the_policy_saw_the_noise_of_coupled_sampling_and_no_other():
    coupled = trace_text(toys("talon"), PROMPT, **OPTIONS, temperature=1.0)
    greedy = trace_text(toys("talon"), PROMPT, **OPTIONS)
    assert any(abs(node.draft - node.seen) > 0.1 for turn in coupled.rounds for node in turn.nodes[1:])
    assert all(node.draft == pytest.approx(node.seen) for turn in greedy.rounds for node in turn.nodes[1:])


@pytest.mark.parametrize("name", POLICIES)
def test_the_tree_of_the_first_round_is_the_one_that_is_proposed(name):
    request = toys(name).new_request(PROMPT, **OPTIONS)
    decoder = toys(name)
    with torch.inference_mode():
        decoder.loop.read_prompt(request)
        (proposed,) = decoder.loop.trees.draft([request]).trees
    turn = next(Tracer(toys(name), PROMPT, **OPTIONS).run())
    nodes = turn.nodes[: turn.size]
    assert [node.token for node in nodes] == [*proposed.tokens]
    assert [node.parent for node in nodes] == [*proposed.parents]


def test_every_drafted_node_is_accepted_rejected_or_not_reached():
    for turn in trace_text(toys("eagle"), PROMPT, **OPTIONS).rounds:
        outcomes = [node.outcome for node in turn.nodes]
        assert [place for place, outcome in enumerate(outcomes) if outcome is Outcome.ACCEPTED] == turn.path[1:]
        for node in turn.nodes[1 : turn.size]:
            judged = node.parent in turn.path
            assert (node.outcome is not Outcome.UNREACHED) == judged
        assert set(outcomes[turn.size :]) <= {Outcome.CUT}


def test_a_trace_leaves_no_mark_on_the_next_text():
    traced, plain = toys("auto"), toys("auto")
    trace_text(traced, PROMPT, **OPTIONS)
    plain.generate(PROMPT, **OPTIONS)
    after, expected = (decoder.generate(PROMPT[:2], **OPTIONS).metrics.rounds for decoder in (traced, plain))
    assert [turn.nodes for turn in after] == [turn.nodes for turn in expected]


@pytest.mark.few(1)
@pytest.mark.parametrize("drafter", ["embedded-eagle3", "embedded-draft", "mixed:embedded-eagle3"])
def test_a_chain_that_a_drafter_drafts_in_one_call_is_traced_whole(drafter):
    decoder = drafttree.load("embedded", drafter, "chain", dtype="float32")
    expected = decoder.generate("The old man", max_new_tokens=16, temperature=0).metrics.rounds
    rounds = trace_text(decoder, "The old man", max_new_tokens=16, temperature=0).rounds
    assert [(turn.size, len(turn.path) - 1) for turn in rounds[:-1]] == [
        (turn.nodes, turn.accepted) for turn in expected[:-1]
    ]
    assert max(len(turn.path) for turn in rounds) > 2


def test_tokens_that_a_grammar_forces_are_nodes():
    decoder = drafttree.load("embedded", "embedded-eagle3", "talon", dtype="float32")
    made = drafttree.grammar.regex("the sea and the ship and the sea")
    first = trace_text(decoder, "Once ", max_new_tokens=24, temperature=0, grammar=made).rounds[0]
    assert first.widths == []
    assert first.size > 2
    assert {node.draft for node in first.nodes[1 : first.size]} == {1.0}
    assert first.bonus.parent == first.path[-1]


def test_ctrl_c_ends_a_trace_with_what_was_written():
    decoder = toys("chain")
    decoder.target.interrupt_at = 5
    found = trace_text(decoder, PROMPT, **OPTIONS)
    assert found.finish_reason == "interrupted"
    assert len(found.rounds) == 3
    assert sum(turn.committed for turn in found.rounds) == len(found.pieces)


def test_the_pieces_of_a_text_join_at_characters_of_several_tokens_and_end_before_a_stop_string():
    tokenizer = PieceTokenizer([b"a", b"\xc3", b"\xa9", b"b", b"c"])
    script = Script([0, 1, 2, 3, 0, 4], 5)
    decoder = toy_decoder(ToyModel(script, 5), ToyDrafter(script, 5), small("chain"), tokenizer=tokenizer)
    found = trace_text(decoder, [3], max_new_tokens=6, stop="ac")
    assert found.pieces == ["a", "", "\u00e9", "b", "", ""]
    assert found.text == "a\u00e9b"
    assert found.finish_reason == "stop"


def test_json_has_all_of_it_in_one_line():
    found = trace_text(toys("eagle"), PROMPT, **OPTIONS)
    line = found.to_json()
    read = json.loads(line)
    assert "\n" not in line
    assert len(read["rounds"]) == len(found.rounds)
    assert read["rounds"][0]["nodes"][1]["outcome"] in ("accepted", "rejected")
    assert read["acceptance"][0]["depth"] == 1


def test_a_drafter_without_a_match_leaves_rounds_without_a_tree():
    drafter = SuffixDrafter(VOCAB, torch.device("cpu"))
    found = trace_text(toy_decoder(ToyModel(TARGET, VOCAB), drafter, small("chain")), [1, 2], max_new_tokens=3)
    assert found.rounds[0].accepted == 0
    assert found.rounds[0].bonus.outcome is Outcome.BONUS
