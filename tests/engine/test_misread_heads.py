"""A head that is read in a wrong way claims far more than its tokens are worth, and one warning for a pair says so."""

import re
from itertools import accumulate, islice

import pytest
import torch
from torch import nn
from transformers import LogitsProcessorList, TemperatureLogitsWarper

import drafttree
from drafttree import Decoder
from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.engine.batching import Engine
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.measure.prompt_sets import shipped_prompts

HEADS = ("eagle3", "mtp", "block", "hydra", "medusa")
PROMPTS = shipped_prompts()[:4]
LONG = {"max_new_tokens": 40, "ignore_eos": True}
SAMPLED = {"temperature": 1.0, "seed": 1}
DEAR_DRAFTS = CostCurve(
    target=Costs.of({1: 1.0, 4: 1.2, 8: 1.45, 16: 1.85, 64: 5.0}),
    draft=(DraftCosts(0.28, Costs.of({1: 0.22, 8: 0.3, 64: 0.8})),),
    overhead=0.4,
    plain_overhead=0.15,
)
WARNING = re.compile(
    r"the drafter (\S+) may be misread: the target's token was among the head's 3 likeliest in (\d+) of (\d+) "
    r"rounds; by the head's own probabilities it should have been in (\d+)\. The head may be made for another .*"
)


def pair(drafter: str, policy: str = "chain:depth=1") -> Decoder:
    return drafttree.load("embedded", drafter, policy, dtype="float32")


@torch.no_grad()
def swap_halves(decoder: Decoder) -> None:
    """The first layer takes the state for the embedding and the embedding for the state."""
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = getattr(decoder.drafter.modules[0].layers[0].self_attn, name).weight
        weight.copy_(weight.roll(weight.shape[1] // 2, 1))


def leave_out_final_norm(decoder: Decoder) -> None:
    decoder.drafter.block.norm = nn.Identity()


def leave_out_residuals(decoder: Decoder) -> None:
    for head in decoder.drafter.heads:
        head[0].register_forward_hook(lambda block, given, result: result - given[0])


def leave_out_prefix(decoder: Decoder) -> None:
    decoder.drafter.extend_context = lambda cache, hidden: hidden


BROKEN = {
    "eagle3": swap_halves,
    "block": leave_out_final_norm,
    "medusa": leave_out_residuals,
    "hydra": leave_out_prefix,
}


def told(caplog) -> list[re.Match[str]]:
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    caplog.clear()
    return [found for line in lines if (found := WARNING.fullmatch(line))]


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", HEADS)
def test_no_shipped_head_is_warned_of(kind, caplog):
    for options in ({}, SAMPLED):
        decoder = pair(f"embedded-{kind}")
        for prompt in PROMPTS:
            decoder.generate(prompt, **LONG, **options)
        assert decoder.learned.head_watch.found.rounds >= 32
        assert (decoder.learned.head_watch.is_misread, told(caplog)) == (False, [])


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", BROKEN)
def test_a_misread_head_is_warned_of_once_and_writes_the_same_texts(kind, caplog):
    decoder, name = pair(f"embedded-{kind}"), f"embedded-{kind}"
    wanted = [text.tokens for text in decoder.plain().generate(PROMPTS, **LONG)]
    BROKEN[kind](decoder)
    texts = [decoder.generate(prompt, **LONG) for prompt in PROMPTS]
    assert [text.tokens for text in texts] == wanted
    (line,) = told(caplog)
    watch = decoder.learned.head_watch
    assert line.groups() == (name, str(watch.found.accepted), str(watch.found.rounds), f"{watch.claimed:.0f}")
    assert watch.is_misread
    decoder.with_policy("chain:depth=2").generate(PROMPTS[0], **LONG, **SAMPLED)
    assert told(caplog) == []


@pytest.mark.slow
def test_texts_of_an_engine_are_counted_together(caplog):
    """Few of its rounds draft at all, since the drafts are of no use."""
    decoder = pair("mixed:embedded-eagle3", "fixed:depth=2")
    swap_halves(decoder.with_drafter(decoder.drafter.model))
    with Engine(decoder.with_costs(TOY_COSTS), max_batch=2) as engine:
        for seed in range(3):
            for handle in [engine.submit(prompt, **LONG, temperature=1.0, seed=seed) for prompt in PROMPTS * 2]:
                handle.result()
    (line,) = told(caplog)
    assert line[1] == "mixed:embedded-eagle3"
    assert decoder.learned.head_watch.is_misread


@pytest.mark.few(1)
@pytest.mark.parametrize(("verifier", "options"), [("auto", {}), ("traversal", SAMPLED)])
def test_a_misread_head_that_auto_drops_at_once_is_warned_of_within_some_texts(verifier, options, caplog):
    """It pauses after a few rounds, and is asked now and then all the same, until it is known how it is read.

    Texts whose draws depend on drafts do not ask it more often for that, but each begins with drafts.
    """
    decoder = pair("embedded-eagle3", "auto").with_costs(DEAR_DRAFTS).with_verifier(verifier)
    swap_halves(decoder)
    asked = []
    for seed, prompt in enumerate([*PROMPTS] * 6):
        rounds = decoder.generate(prompt, **LONG, **options | {"seed": seed}).metrics.rounds
        asked += [bool(each.widths) for each in rounds]
        if lines := told(caplog):
            break
    assert len(lines) == 1
    assert decoder.learned.head_watch.is_misread
    assert sum(asked) < len(asked) / 5


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "seed": 3, "top_p": 0.9}], ids=["greedy", "sampled"])
def test_the_counts_are_those_of_the_heads_own_probabilities(options):
    decoder = pair("embedded-mtp", "fixed:depth=2")
    own, rows = decoder.drafter.draft_root, list[torch.Tensor]()

    def root(sessions):
        rows.append(own(sessions)[0].clone())
        return rows[-1]

    decoder.drafter.draft_root = lambda sessions: root(sessions)[None]
    watch = decoder.learned.head_watch
    contexts, found, claimed = set[tuple[int, ...]](), [], []
    for prompt in PROMPTS:
        if not watch.is_open:
            break
        rows.clear()
        text = decoder.generate(prompt, **LONG, **options)
        tokens = [*decoder.tokenizer(prompt).input_ids, *text.tokens]
        places = accumulate(
            (turn.committed for turn in text.metrics.rounds[:-1]), initial=len(tokens) - len(text.tokens)
        )
        for row, place in zip(rows, islice(places, len(rows)), strict=True):
            if (context := tuple(tokens[:place][-8:])) in contexts:
                continue
            contexts.add(context)
            best = row.softmax(-1).topk(3)
            found.append(tokens[place] in best.indices.tolist())
            claimed.append(float(best.values.sum()))
    rounds = watch.found.rounds
    assert 32 <= rounds <= len(found)
    assert (watch.found.accepted, watch.claimed) == (sum(found[:rounds]), pytest.approx(sum(claimed[:rounds])))


def test_tokens_that_a_head_cannot_draft_say_nothing_of_it(caplog):
    decoder = pair("embedded-eagle3")
    own = decoder.drafter.draft_root

    def root(sessions):
        logits = own(sessions)
        return logits.masked_fill(logits < logits.topk(3).values[:, -1:], -torch.inf)

    decoder.drafter.draft_root = root
    for prompt in PROMPTS:
        decoder.generate(prompt, **LONG, **SAMPLED)
    found = decoder.learned.head_watch.found
    assert found.accepted == found.rounds > 0
    assert told(caplog) == []


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("drafter", "options"),
    [
        ("lookup", {}),
        ("embedded-draft", {}),
        ("embedded-eagle3", {"temperature": 1.2}),
        ("embedded-eagle3", {"temperature": 1.0, "typical_p": 0.5}),
        ("embedded-eagle3", {"logits_processor": LogitsProcessorList([TemperatureLogitsWarper(3.0)])}),
        ("embedded-eagle3", {"speculate": False}),
        ("none", {}),
    ],
)
def test_what_is_not_judged(drafter, options):
    decoder = pair(drafter)
    decoder.generate(PROMPTS[0], **LONG, **options)
    assert decoder.learned.head_watch.found.rounds == 0


def test_rounds_that_measure_costs_are_not_judged():
    decoder = pair("embedded-eagle3", "auto")
    decoder.costs()
    assert decoder.learned.head_watch.found.rounds == 0
