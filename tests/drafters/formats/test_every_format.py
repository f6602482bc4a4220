"""Checkpoints of every format are told apart and described, and draft what their authors' formula gives."""

import re
from copy import deepcopy
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch

import drafttree
from drafttree import Decoder
from drafttree.drafters import Drafter, Frontier
from drafttree.drafters.formats import recognise
from drafttree.errors import ModelError
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.loading.inspect import inspect
from drafttree.policies import POLICIES, Talon
from helpers.checkpoints import FORMATS, HIDDEN, MTP, SCHEMES, VOCAB, Format, MtpFormat, in_fp8, out_of_fp8
from helpers.refusals import told
from helpers.trained import check_roots
from testing import tiny

ALL: dict[str, Format | MtpFormat] = {**FORMATS, **{f"MTP, {name}": each for name, each in MTP.items()}}
FRONTIERS = (Frontier([1, 2, 3], [0, 0, 0]), Frontier([4, 5, 4, 6], [0, 0, 1, 2]), Frontier([7, 8], [3, 0]))
every_format = pytest.mark.parametrize("name", ALL)
FIRST = {form.kind: name for name, form in reversed(ALL.items())}
"""A format of each kind. What reads no name of a format runs with these; with the others it is slow."""


def marks(name: str) -> list[pytest.MarkDecorator]:
    return [] if name in FIRST.values() else [pytest.mark.slow]


one_of_a_kind = pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in ALL])


def loaded(form: Format | MtpFormat, folder, dtype=torch.float32) -> tuple[Decoder, Any]:
    """A decoder of a written checkpoint, and another module with the numbers of its target, in float32."""
    target = form.target().to(dtype)
    clone = deepcopy(target).float()
    return drafttree.load(target, folder, "chain", dtype=dtype, device="cpu"), clone


class Text:
    """A session on random hidden states; its logits are compared with the formula of its format."""

    def __init__(self, drafter: Drafter, prompt: int, dtype: torch.dtype, expected) -> None:
        self.dtype, self.generator = dtype, torch.Generator().manual_seed(prompt)
        self.expected, self.count = expected, len(drafter.hidden_layers)
        self.tokens = torch.randint(VOCAB, (prompt,), generator=self.generator).tolist()
        self.session: Any = drafter.start(self.tokens, 32)
        self.states, self.paths = self.draw(prompt - 1), [[]]
        parts = (1, prompt - 2) if prompt > 2 else (1,)
        for start, size in zip((0, 1), parts, strict=False):
            self.session.prefill(tuple(state[:, start : start + size] for state in self.states), size)

    def draw(self, count: int) -> tuple[torch.Tensor, ...]:
        shape = (1, count, HIDDEN)
        return tuple(torch.randn(shape, generator=self.generator).to(self.dtype) for _ in range(self.count))

    def gap(self, logits: torch.Tensor) -> float:
        """How far the logits of a frontier are from the formula's, as a share of the largest."""
        rows = [self.expected([state[0] for state in self.states], self.tokens, path) for path in self.paths]
        expected = torch.stack(rows)
        shared = expected.isfinite() & logits.isfinite()
        assert self.dtype != torch.float32 or torch.equal(shared, expected.isfinite() | logits.isfinite())
        assert shared.sum() > 0.8 * expected.isfinite().sum()
        return float((logits - expected)[shared].abs().max() / expected[shared].abs().max())

    def descend(self, frontier: Frontier) -> None:
        self.paths = [[*self.paths[origin], token] for token, origin in zip(*frontier, strict=True)]

    def commit(self, tokens: list[int]) -> None:
        new, self.paths = self.draw(len(tokens)), [[]]
        self.session.commit(tokens, new)
        self.tokens = self.tokens + tokens
        self.states = tuple(torch.cat(pair, 1) for pair in zip(self.states, new, strict=True))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [pytest.param(name, torch.float32, marks=marks(name)) for name in ALL]
    + [pytest.param(name, torch.bfloat16, marks=pytest.mark.slow) for name in ALL],
)
@torch.inference_mode()
def test_drafts_of_every_path_and_round_follow_the_authors_formula(name, dtype, tmp_path):
    form = ALL[name]
    folder, tensors = form.write(tmp_path, dtype=dtype), form.tensors()
    tensors = {key: each.to(dtype) if each.is_floating_point() else each for key, each in tensors.items()}
    decoder, clone = loaded(form, folder, dtype)
    drafter: Any = decoder.drafter
    assert drafter.levels == form.levels
    if form.kind == "eagle3":
        assert drafter.nbytes == sum(each.nbytes for key, each in tensors.items() if key not in ("d2t", "t2d"))
    assert drafter.hidden_layers == form.states

    def expected(*given) -> torch.Tensor:
        return form.logits(tensors, clone, *given)

    texts, gaps = [Text(drafter, prompt, dtype, expected) for prompt in (5, 2, 9)], []
    sessions = [text.session for text in texts]
    for commits in ([[1, 5, 9]], [[9], [6, 7]], []):  # the second behind a round without a draft
        for text, row in zip(texts, drafter.draft_root(sessions), strict=True):
            gaps.append(text.gap(row[None].float()))
        for frontier in FRONTIERS[: form.levels and form.levels - 1]:
            together = drafter.draft_level(sessions, [frontier] * len(texts)).split(len(frontier.tokens))
            for text, logits in zip(texts, together, strict=True):
                text.descend(frontier)
                gaps.append(text.gap(logits.float()))
        for text in texts:
            for committed in commits:
                text.commit(committed)
    if dtype == torch.float32:
        assert max(gaps) < 2e-5
    else:  # of experts and candidates that are nearly equal, rounding takes either
        assert np.median(gaps) < 0.05


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["MTP, deepseek_v3", "MTP, ernie4_5_moe", "SafeAILab", "Medusa-1"])
@pytest.mark.parametrize("scheme", SCHEMES)
@torch.inference_mode()
def test_weights_in_fp8_draft_as_their_originals_rounded(name, scheme, tmp_path):
    form = ALL[name]
    tensors, settings = in_fp8(form.tensors(), scheme)
    assert sum(each.dtype == torch.float8_e4m3fn for each in tensors.values()) > 1
    form.write(tmp_path / "fp8", tensors, quantization_config=settings)
    form.write(tmp_path / "rounded", out_of_fp8(tensors, settings))
    form.write(tmp_path / "original")
    folders = ("fp8", "rounded", "original")
    drafters = [loaded(form, tmp_path / each)[0].drafter for each in folders]
    fp8, rounded, original = (each.draft_root([Text(each, 5, torch.float32, None).session]) for each in drafters)
    torch.testing.assert_close(fp8, rounded, rtol=1e-4, atol=1e-4)
    finite = original.isfinite()
    assert 0 < float((fp8 - original)[finite].norm() / original[finite].norm()) < 0.1
    assert inspect(str(tmp_path / "fp8")).problems == ()


DAMAGE = {
    "lost": (lambda tensor: None, r"missing .*{0}"),
    "longer": (lambda tensor: torch.cat((tensor, tensor[:1])), r"{0} is \{found} and should be \{wanted}"),
    "no numbers": (lambda tensor: tensor / 0, r"{0} holds numbers that are not finite"),
    "integers": (lambda tensor: tensor.int(), r"{0} is int32 and should be floating-point"),
}
"""Changes of a weight, and the phrases that tell of them by the end of its name."""


@one_of_a_kind
def test_what_is_wrong_with_a_file_is_told_by_name(name, tmp_path):
    form = ALL[name]
    tensors, target = form.tensors(), form.target()

    def refusal(target, folder) -> str:
        return told(ModelError, drafttree.load, target, folder, "chain", device="cpu", dtype="float32")

    weights = [key for key, each in tensors.items() if each.ndim == 2 and re.search(r"down_proj|linear|k_proj", key)]
    for count, (kind, (change, message)) in enumerate(DAMAGE.items()):
        key = weights[count % len(weights)]
        rows, columns = tensors[key].shape
        changed = {other: change(each) if other == key else each for other, each in tensors.items()}
        form.write(tmp_path / kind, {other: each for other, each in changed.items() if each is not None})
        phrase = message.format(".".join(key.split(".")[-2:]), found=[rows + 1, columns], wanted=[rows, columns])
        assert re.search(phrase, refusal(target, tmp_path / kind))
        if form.kind != "mtp" or kind not in ("lost", "longer"):  # the target tells what else MTP layers have
            assert re.search(phrase, "; ".join(inspect(str(tmp_path / kind)).problems))
    folder = form.write(tmp_path / "whole")
    fits = inspect(str(folder)).fits
    for size, what in (("hidden_size", "hidden size"), ("vocab_size", "vocabulary")):
        own = getattr(target.config, size)
        other = tiny.from_config(type(target.config)(**{**target.config.to_dict(), size: 64}))
        if fits[what] != "not said":
            assert fits[what] == own
            assert f"made for a target with a {what} of {own}, this target's is 64" in refusal(other, folder)
    path = next(path for path in sorted(folder.iterdir()) if path.suffix in (".safetensors", ".pt", ".bin"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert f"{path} is truncated or damaged" in refusal(target, folder)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "policy"),
    [pytest.param(name, policy, marks=marks(name)) for name, policy in zip(ALL, cycle(POLICIES), strict=False)],
)
def test_texts_are_those_of_plain_decoding_alone_and_in_company(name, policy, tmp_path):
    decoder, _ = loaded(ALL[name], ALL[name].write(tmp_path))
    decoder = decoder.with_policy(POLICIES[policy]()).with_costs(TOY_COSTS)
    prompts = [[3, 1, 4, 1, 5], [8], [3, 1, 4, 1, 5, 9, 2]]
    for sampled in ({}, {"temperature": 0.9, "seed": 3}):
        options = {"max_new_tokens": 9, "ignore_eos": True, **sampled}
        expected = [decoder.plain().generate(prompt, **options).tokens for prompt in prompts]
        assert [decoder.generate(prompt, reuse_prefix=True, **options).tokens for prompt in prompts] == expected
        assert [text.tokens for text in decoder.generate(prompts, **options)] == expected


@one_of_a_kind
def test_in_the_loop_they_get_transformers_hidden_states(name, tmp_path):
    decoder, clone = loaded(ALL[name], ALL[name].write(tmp_path))
    decoder = decoder.with_policy(Talon(width=8, budget=24, margin=0.01))
    assert len(check_roots(decoder, clone, ALL[name], ALL[name].tensors(), [3, 1, 4, 1, 5], 14)) > 2


@every_format
def test_files_are_told_apart_and_described(name, tmp_path):
    form = ALL[name]
    folder = form.write(tmp_path)
    assert recognise(folder) == form.kind
    found = inspect(str(folder))
    assert (found.kind, found.problems) == (form.kind, ())
    if form.kind in ("eagle", "eagle3"):
        assert found.fits["hidden size"] == HIDDEN
        assert found.fits["vocabulary"] == VOCAB
        assert found.details["embedding"] == ("own" if "embed_tokens.weight" in form.shapes else "the target's")
        assert found.parameters == sum(
            each.numel() for key, each in form.tensors().items() if key not in ("d2t", "t2d")
        )
    if form.kind == "eagle3":
        assert found.details["format"] == name.split(",")[0]
    if form.kind in ("medusa", "hydra"):
        assert found.details["heads"] == form.levels
    if form.kind == "block":
        assert found.details["drafted levels"] == form.levels
        assert ("path" in str(found.details["transition"])) == ("transition" not in form.facts)
