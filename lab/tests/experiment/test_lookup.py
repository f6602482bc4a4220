"""The lookup benchmark: a replay accepts what was recorded and nothing else, and its figures are the drafter's."""

import ast
import re

import pytest
import torch

from drafttree import Decoder
from drafttree.drafters import PromptLookupDrafter, SuffixDrafter
from drafttree.errors import InputError
from drafttree.evaluation.prompts import Example
from drafttree.models import TargetModel
from drafttree.policies import Chain, Talon
from drafttree_lab.experiment.lookup import CONTEXTS, Recording, bench_lookup, code_edits, drafting_cost
from testing import tiny


class Bytes:
    """A tokenizer whose ids are bytes."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [code % tiny.VOCAB for code in text.encode()]}

    def decode(self, token_ids, **_) -> str:
        return "".join(map(chr, token_ids))


@pytest.mark.parametrize("policy", [Chain(depth=6), Talon()], ids=["chain", "talon"])
def test_a_replay_says_the_recorded_text(policy):
    text = [1, 2, 3, 4, 5, 1, 2, 3, 6, 1, 2, 3, 4, 5, 0]
    for cut in (1, 4, 9):
        for drafter in (None, PromptLookupDrafter(8), SuffixDrafter(8)):
            out = Decoder(Recording(text, 8), drafter, policy).generate(text[:cut], max_new_tokens=len(text) - cut)
            assert out.tokens == text[cut:]


def test_a_replayed_chain_is_accepted_as_far_as_it_was_recorded():
    text = [1, 2, 3, 4, 5, 1, 2, 3, 9, 9]
    decoder = Decoder(Recording(text, 10), SuffixDrafter(10), Chain(depth=4))
    rounds = decoder.generate(text[:6], max_new_tokens=4).metrics.rounds
    assert [(r.accepted, r.committed) for r in rounds] == [(2, 3), (0, 1)]


def test_every_set_is_measured_in_the_ways_it_can_be():
    decoder = Decoder(TargetModel(tiny.build("llama")), tokenizer=Bytes())
    sets = {"one": [Example("abcabc", "abcabcabd"), Example("xyz")], "two": [Example("no reference")]}
    seen = []
    result = bench_lookup(decoder, sets, ["chain", "talon:budget=8"], max_new_tokens=9, repeats=1, progress=seen.append)
    ways = [(row.prompts, row.way, row.drafter, row.policy) for row in result.rows]
    assert set(ways) == {
        (*way, drafter, policy)
        for way in (("one", "target"), ("one", "replay"), ("two", "target"))
        for drafter in ("lookup", "suffix")
        for policy in ("chain", "talon:budget=8")
    }
    assert len(ways) == len(set(ways)) == len(seen) == 12
    tokens = {(row.prompts, row.way): row.tokens for row in result.rows}
    assert tokens == {("one", "target"): 18, ("one", "replay"): 9, ("two", "target"): 9}
    assert all(row.tau >= 1 for row in result.rows)
    assert max(row.tau for row in result.rows if row.way == "replay") > 1.5
    assert [(cost.drafter, cost.context) for cost in result.costs] == [
        (drafter, context) for drafter in ("lookup", "suffix") for context in CONTEXTS
    ]
    assert result.summary()["rows"][0]["prompts"] == "one"


def test_prompts_need_a_tokenizer():
    with pytest.raises(InputError, match="tokenizer"):
        bench_lookup(Decoder(TargetModel(tiny.build("llama"))), {}, ["chain"])


def test_drafting_is_timed_alone():
    stream = torch.randint(50, (9000,), generator=torch.Generator().manual_seed(0)).tolist()
    costs = drafting_cost("lookup", PromptLookupDrafter(50), stream, repeats=1)
    assert [cost.context for cost in costs] == list(CONTEXTS)
    assert all(cost.read > 0 and cost.round > 0 for cost in costs)


def test_code_edits_are_renamings_of_our_own_files():
    examples = code_edits()
    assert len(examples) >= 10
    for example in examples:
        old, new = re.findall(r"`(\w+)`", example.prompt)[:2]
        source = example.prompt.split("```python\n")[1].rsplit("```", 1)[0]
        edited = example.reference.removesuffix("```\n")
        ast.parse(edited)
        assert re.search(rf"\b{old}\b", source)
        assert not re.search(rf"\b{old}\b", edited)
        assert edited.replace(new, old) == source
