"""A check finds what is exact, refused, wrong or broken."""

import pytest
import torch
from torch import nn

from drafttree import Decoder
from drafttree.errors import ConfigError
from drafttree.models import TargetModel
from drafttree.models.attention.tree_attention import TreePlan
from drafttree.models.windows import EVERYTHING, Span
from drafttree_lab.support import check, random_models
from drafttree_lab.support.overrides import OVERRIDES

LATE = 30
"""More rows than the probe of `load` reads."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A long and a short tree, behind two prompts."""
    monkeypatch.setattr(check, "POLICIES", {name: check.POLICIES[name] for name in ("chain", "template")})
    monkeypatch.setattr(check, "PROMPT_LENGTHS", (3, 21))
    monkeypatch.setattr(check, "MIN_BRANCHING", 3)


def test_an_exact_architecture_accepts_what_its_drafter_knows():
    finding = check.check_architecture("mistral")
    assert (finding.result, finding.reason, finding.exact) == ("exact", "", [*check.POLICIES])
    assert finding.texts == len(check.POLICIES) * (len(check.PROMPT_LENGTHS) + 1)
    assert 1 < finding.accepted < 3
    assert finding.passed


def test_a_refusal_is_one_line():
    finding = check.check_architecture("rwkv")
    assert finding.result == "refused"
    start = "RwkvForCausalLM cannot be verified in a tree: it has recurrent layers (rwkv) that "
    assert finding.reason.startswith(start)
    assert "\n" not in finding.reason
    assert finding.passed


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("change", [-1, 1, 100])
def test_a_wrong_window_fails(monkeypatch, change):
    """One that is wrong only behind more tokens than the probe of `load` has."""
    mask = TreePlan.mask

    def wrong(self, groups, span=EVERYTHING):
        late = span.window is not None and self._cache.length > LATE
        return mask(self, groups, Span(span.window + change) if late else span)

    monkeypatch.setattr(TreePlan, "mask", wrong)
    finding = check.check_architecture("mistral")
    assert finding.result == "fails"
    assert finding.reason.startswith("plain decoding: after ")
    assert not finding.passed


def test_branches_that_see_each_other_fail(monkeypatch):
    """The probe of `load` has 6 nodes and is left alone."""
    make = TreePlan._make

    def blurred(self, groups, window):
        if self._visible.shape[1] > 6:
            self._visible = torch.ones_like(self._visible).tril()
        return make(self, groups, window)

    monkeypatch.setattr(TreePlan, "_make", blurred)
    finding = check.check_architecture("mixtral")
    assert finding.result == "fails"
    assert finding.exact == ["chain"]
    assert "template: after 3 tokens" in finding.reason


def test_a_raw_error_fails(monkeypatch):
    mask = TreePlan.mask
    monkeypatch.setattr(
        TreePlan, "mask", lambda self, *given: 1 / 0 if self._cache.length > LATE else mask(self, *given)
    )
    finding = check.check_architecture("mixtral")
    assert (finding.result, finding.reason) == ("fails", "ZeroDivisionError: division by zero")


def test_what_only_chains_serve_is_exact_with_those(monkeypatch):
    with_policy = Decoder.with_policy

    def refuse(self, policy):
        if policy.branches:
            raise ConfigError("chains only")
        return with_policy(self, policy)

    monkeypatch.setattr(Decoder, "with_policy", refuse)
    finding = check.check_architecture("mistral")
    assert (finding.result, finding.reason, finding.exact) == ("exact", "chains only", ["chain"])


def test_what_cannot_be_made_is_not_built(monkeypatch):
    monkeypatch.setitem(OVERRIDES, "llama", {"num_attention_heads": 5})
    finding = check.check_architecture("llama")
    assert finding.result == "not built"
    assert "not a multiple of the number of attention heads (5)" in finding.reason
    assert "\n" not in finding.reason
    assert finding.passed


def test_what_no_rule_shrinks_is_not_built(monkeypatch):
    monkeypatch.setattr(random_models, "MAX_PARAMETERS", 1000)
    assert "parameters are left of its configuration" in check.check_architecture("llama").reason


def test_texts_that_say_little_are_not_taken(monkeypatch):
    monkeypatch.setattr(random_models, "randomise", lambda module, _: nn.init.zeros_(module.lm_head.weight))
    monkeypatch.setattr(check, "SEEDS", range(2))
    finding = check.check_architecture("llama")
    assert finding.result == "not built"
    assert "vary too little" in finding.reason


def test_a_family_is_exact_behind_images_and_refuses_video():
    finding = check.check_images("llava+images")
    assert (finding.result, finding.reason, finding.exact) == ("exact", "", [*check.POLICIES])
    assert finding.texts == len(check.POLICIES) * (len(check.IMAGE_PROMPTS) + 1)
    assert finding.runs_on == "NativeBackend"


def test_a_family_that_cannot_go_on_as_text_is_refused_by_name():
    finding = check.check_images("mllama+images")
    assert (finding.result, "cross-attention layers of Mllama" in finding.reason) == ("refused", True)


def test_a_wrong_text_behind_images_fails(monkeypatch):
    read = TargetModel.read_images

    def shifted(self, cache, *given, **options):
        states = read(self, cache, *given, **options)
        cache.first_position += 3
        return states

    monkeypatch.setattr(TargetModel, "read_images", shifted)
    finding = check.check_images("qwen2_vl+images")
    assert (finding.result, finding.reason) == ("fails", "plain decoding: another text behind 16 tokens")


def test_video_that_is_not_refused_fails(monkeypatch):
    monkeypatch.setattr(check, "UNREAD", ("pixel_extras",))
    assert check.check_images("llava+images").reason == "pixel_extras is not refused"
