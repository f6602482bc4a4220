"""Drafters that are fitted to a reference row: by a closed form of its tokens per round, and what they decide."""

import math
from dataclasses import replace

import pytest

from drafttree.drafters import LanguageModelDrafter
from drafttree_lab.graded import Grade, KnownText, agreement
from drafttree_lab.replay.agreement import (
    GRADED,
    Fit,
    find_root,
    fit,
    plan_reference,
    published_tau,
    replace_drafter,
    replace_role,
)
from drafttree_lab.replay.inputs import find_roles, read_prompt_texts
from drafttree_lab.replay.intervals import Jackknife
from drafttree_lab.replay.measured import Fitted
from drafttree_lab.replay.paper import Comparison
from drafttree_lab.replay.paper_files import paper_names, read_paper
from drafttree_lab.replay.plan import Sizes, Task, plan
from drafttree_lab.replay.text_cell import TextCounts
from drafttree_lab.replay.verdicts import judge_claims
from lab_helpers.replay_cells import counted, measured, plain
from testing.small_trees import DRAFT, TARGET
from testing.toy import ToyModel, greedy_text

DEPTH = 5
PROMPTS = [[3, 1, 4], [2, 7, 1, 5], [6, 6, 2], [1, 1], [5, 0, 2], [4, 4]]


@pytest.fixture(scope="module")
def texts():
    """What two toy models expect along texts of the target's own."""
    draft, target = (LanguageModelDrafter(ToyModel(table)).model for table in (DRAFT, TARGET))
    return [KnownText.read(draft, target, each, greedy_text(TARGET, each, 40)) for each in PROMPTS]


def chain(texts):
    """The tokens per round of a chain by drafter, in closed form: a token is drafted rightly as often as it agrees."""
    jackknife = Jackknife({"a": len(texts)})

    def tau(name):
        grade = Grade.parse(name.removeprefix(GRADED))
        shares = [agreement(grade, [text]) for text in texts]
        taus = [sum(share**level for level in range(DEPTH + 1)) for share in shares]
        return jackknife, jackknife.mean([("a", [(tau, 1.0) for tau in taus])])

    return tau


def test_a_drafter_is_found_with_which_the_reference_commits_as_much_as_published(texts):
    found = fit("Chain", 3.0, chain(texts), texts, seed=0)
    assert found.agreement == pytest.approx(0.7, abs=0.1)  # 1 + 0.7 + ... + 0.7^5 is 2.94
    for name in found.drafters.values():
        assert chain(texts)(name)[1][0].item() == pytest.approx(3.0, rel=0.06)  # two hundred positions
    assert list(found.drafters) == [0.4, 1.0, 2.0]
    sure, right, unsure = (Grade.parse(name.removeprefix(GRADED)) for name in found.drafters.values())
    assert (sure.temperature, unsure.temperature) == pytest.approx((0.4 * right.temperature, 2 * right.temperature))


@pytest.mark.parametrize("wanted", [3.0, 1 + DEPTH * 0.98])
def test_the_moved_drafter_is_one_standard_error_off(texts, wanted):
    found, tau = fit("Chain", wanted, chain(texts), texts, seed=0), chain(texts)
    (_, values), (_, moved) = tau(found.drafters[1.0]), tau(found.moved)
    logs = values[1:].log()
    error = math.sqrt(5 / 6 * (logs - logs.mean()).square().sum().item())
    assert abs(moved[0].log() - values[0].log()) == pytest.approx(error, rel=0.1)
    assert found.error == pytest.approx(
        abs(agreement(Grade.parse(found.moved.removeprefix(GRADED)), texts) - found.agreement), abs=0.02
    )


def test_more_tokens_than_any_drafter_commits_are_no_fit(texts):
    found = fit("Chain", DEPTH + 2.0, chain(texts), texts, seed=0)
    assert (found.agreement, found.drafters) == (None, {})
    assert str(found).startswith(
        "no drafter is so near to the target that Chain commits 7.00 tokens a round on 6 prompts"
    )


def test_a_root_is_found_where_there_is_one():
    assert find_root(lambda place: place - 0.33, 0.85) == pytest.approx(0.33, abs=0.01)
    assert find_root(lambda place: place - 0.97, 0.85) == pytest.approx(0.97, abs=0.01)
    assert find_root(lambda place: place - 0.851, 0.85) == 0.85
    assert find_root(lambda place: place + 1, 0.85) is None


@pytest.mark.parametrize("paper", paper_names())
def test_every_model_has_a_reference_whose_tokens_per_round_are_published(paper):
    found, (drafters, _) = read_paper(paper), find_roles([paper], "embedded", {})
    for name, model in found.models.items():
        assert model.references
        for reference in model.references:
            alone = plan_reference(paper, reference, drafters, Sizes(model=name))
            assert [*alone.blocks[0].ways] == ["AR", reference.method]
            assert published_tau(alone, reference, [alone.blocks[0].setting.set]) > 1


def test_the_reference_of_dynatree_is_the_mean_of_its_linear_row():
    reference = read_paper("dynatree-v2").models["Pythia-2.8B"].references[0]
    alone = plan_reference("dynatree-v2", reference, {"Pythia": "embedded-draft"}, Sizes())
    assert published_tau(alone, reference, ["WikiText-2", "PG-19"]) == pytest.approx((6.82 + 4.56) / 2)
    assert published_tau(alone, reference, ["PG-19"]) == 4.56


def test_only_methods_of_the_role_are_run_with_another_drafter():
    drafters, _ = find_roles(["talon"], "embedded", {})
    found = replace_role(plan("talon", "1", drafters, {}, Sizes()), "EAGLE-3", f"{GRADED}mine")
    assert set(found.missing) == {"SD", "Medusa", "Hydra"}
    for block in found.blocks:
        assert {way.drafter for name, way in block.ways.items() if name != "AR"} == {f"{GRADED}mine"}
        assert set(block.ways) == {"AR", "EAGLE-3", "TALON", "OPT-Tree"}


def test_prompts_to_fit_on_are_not_judged():
    papers = ["dynatree-v1", "dynatree-v2", "talon", "traversal"]
    found = read_prompt_texts(papers, None, 10)
    judged = {
        paper: {each.prompt for (own, _), texts in found.texts.items() if own == paper for each in texts}
        for paper in papers
    }
    for place, own in found.others.items():
        assert len(own) <= 6
        assert not {each.prompt for each in own} & judged[place[0]]
    assert found.others["talon", "MT-Bench"] == []  # its figures by category judge all of it
    assert len(found.others["talon", "GSM8K"]) == 6
    assert {each.category for each in found.others["dynatree-v1", "technical"]} != {"stem"}  # all ten of it are judged


LOW, HIGH = counted([1, 1]), counted([3, 3])


@pytest.fixture
def fitted(experiment):
    """Makes the cells of an experiment with fitted drafters, by the texts of its tree with each of them."""

    def make(claim, moved=HIGH, **trees):
        base = replace(experiment, result=experiment.result.model_copy(update={"claims": [claim]}))
        texts = [{"AR": plain(4), "chain": LOW, "tree": LOW}] * 10
        found = measured(base, {"a": texts, "b": texts})
        names = {"sure": 0.4, "right": 1.0, "unsure": 2.0}
        variants = {names[name]: tree for name, tree in trees.items()}
        experiments = {}
        for confidence, tree in {**variants, "moved": moved}.items():
            blocks = [replace_drafter(block, f"graded at {confidence}") for block in base.blocks]
            own = experiments[confidence] = replace(base, blocks=blocks, missing={"other": "it drafts otherwise"})
            for block in blocks:
                for number, digest in enumerate(found.digests[block.setting.set]):
                    task = Task(own, block, number, digest, 0)
                    for name, counts in {"AR": plain(4), "chain": LOW, "tree": tree}.items():
                        found.store.run(task.counts_key(block.ways[name]), TextCounts, lambda own=counts: own)
        last = experiments.pop("moved")
        fit = Fit("chain", 2.0, 6, 0.9, 0.02, 5.0, {each: f"{each}" for each in experiments}, "moved")
        (verdict,) = judge_claims(replace(found, fitted=Fitted(fit, experiments, last)))
        return verdict

    return make


def compare(left, right):
    return Comparison(id="x", text="so", line=1, metric="tau", left=left, right=right, sign=">")


def test_a_claim_is_judged_with_our_drafter_and_with_the_fitted_one(fitted):
    found = fitted(compare("tree", "chain"), sure=HIGH, right=HIGH, unsure=HIGH)
    assert (found.by_counts.estimate, found.at_agreement.estimate) == (1.0, 2.0)
    assert found.at_agreement.outcome == "reproduced"
    assert found.at_agreement.said == "tree / chain 2.00 [2.00, 2.00]; by confidence 2.00 at 0.4, 2.00 at 2"


def test_a_verdict_that_flips_with_the_drafters_confidence_is_undecided(fitted):
    found = fitted(compare("tree", "chain"), sure=plain(2), right=HIGH, unsure=HIGH).at_agreement
    assert found.outcome == "undecided"
    assert found.said.endswith("by confidence 0.50 at 0.4, 2.00 at 2, where it flips")


def test_confidences_at_which_no_drafter_was_found_are_told_beside_the_outcome(fitted):
    found = fitted(compare("tree", "chain"), right=HIGH, unsure=HIGH).at_agreement
    assert found.outcome == "reproduced"
    row = "no drafter of them lets chain commit 2.00 tokens a round"
    assert found.said.endswith(f"by confidence 2.00 at 2; not checked at confidences of 0.4, as {row}")


def test_what_the_error_of_the_agreement_moves_is_undecided(fitted):
    found = fitted(compare("tree", "chain"), moved=LOW, sure=HIGH, right=HIGH, unsure=HIGH).at_agreement
    assert found.outcome == "undecided"
    assert found.low < 1 < found.high


def test_the_reference_row_is_judged_by_ratios_to_it_only(fitted):
    found = fitted(compare("chain", "AR"), sure=HIGH, right=HIGH, unsure=HIGH)
    assert found.at_agreement.outcome == "not comparable"
    assert found.at_agreement.said.startswith("chain has its published tokens per round by choice of the drafter")
    assert found.by_counts.outcome == "reproduced"
