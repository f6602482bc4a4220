"""Drafts of a model with another tokenizer: its own logits at every node, and the target's texts."""

from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from transformers import PreTrainedModel

import drafttree
from drafttree import Decoder
from drafttree.drafters import MixedDrafter, OtherTokenizerDrafter, VocabularyMap
from drafttree.errors import TokenizerMismatch
from drafttree.exactness import TabularModel, law
from drafttree.loading import make_policy
from drafttree.models import TargetModel
from drafttree.verifiers import VERIFIERS
from helpers.refusals import told
from testing import tiny
from testing.tokenizers import words
from testing.toy_pairs import EXACT, SMALL_TREES

CPU = torch.device("cpu")
WORDS = [f"w{index}" for index in range(tiny.VOCAB)]
OTHERS = 20
"""Words that the draft model does not know, and those it knows alone; each in one part."""
THEIRS = [*reversed(WORDS[OTHERS:]), *(f"o{index}" for index in range(OTHERS - 1)), "?"]
PROMPT = [30, 31, 3, 40, 5, 6, 41, 42]
POLICIES = ["chain", "talon:budget=20", "dynatree", "auto"]


def tokenizers() -> tuple:
    ours, theirs = words(*WORDS), words(*THEIRS)
    theirs.unk_token = "?"
    return ours, theirs


def draft_model(name: str = "llama", noise: float = 0.0, **sizes: int) -> PreTrainedModel:
    """The target of another vocabulary: its rows belong to the same words, in another order."""
    if sizes:
        config = tiny.CONFIGS[name]()
        config.update(sizes)
        return tiny.from_config(config, seed=3)
    made = deepcopy(tiny.build(name))
    order = [*reversed(range(OTHERS, tiny.VOCAB)), *range(OTHERS)]
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for layer in (made.get_input_embeddings(), made.get_output_embeddings()):
            weight = layer.weight[order]
            layer.weight.copy_(weight + noise * torch.randn(weight.shape, generator=generator))
    return made


def drafter(model: PreTrainedModel) -> OtherTokenizerDrafter:
    vocabulary = VocabularyMap(*tokenizers(), tiny.VOCAB, tiny.VOCAB, CPU)
    return OtherTokenizerDrafter(TargetModel(model), vocabulary)


def decoder(policy: str, noise: float = 0.0) -> Decoder:
    return Decoder(TargetModel(tiny.build("llama")), drafter(draft_model(noise=noise)), make_policy(policy))


def own(text: list[int]) -> list[int]:
    """A text in the draft model's ids: a run of words that it does not know is one unknown word."""
    found = [THEIRS.index(WORDS[token]) if token >= OTHERS else THEIRS.index("?") for token in text]
    unknown = THEIRS.index("?")
    return [now for before, now in pairwise([None, *found]) if not (now == before == unknown)]


@torch.no_grad()
def expected(reference: PreTrainedModel, text: list[int]) -> torch.Tensor:
    """The probabilities of the target's tokens after a text; the last is that of all others."""
    probs = reference(torch.tensor([own(text)])).logits[0, -1].softmax(-1)
    known = probs[[THEIRS.index(word) for word in WORDS[OTHERS:]]]
    return torch.cat((torch.zeros(OTHERS), known, 1 - known.sum(0, keepdim=True)))


def check(logits: torch.Tensor, reference: PreTrainedModel, text: list[int]) -> None:
    torch.testing.assert_close(logits.softmax(-1), expected(reference, text), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral_sliding"])
def test_logits_are_those_of_the_model_at_every_node(name):
    model = draft_model(name)
    reference, session = deepcopy(model), drafter(model).start(PROMPT, 16)
    session.prefill((), 4)
    session.prefill((), 2)
    text = list(PROMPT)
    for commits in ([50, 60, 7], [90, 4, 70], [9], [33], [50, 61, 80]):
        check(session.draft_root()[0, 0], reference, text)
        level = session.draft_level(torch.tensor([[50, 90, 3]]), torch.tensor([[0, 0, 0]]))[0]
        deeper = session.draft_level(torch.tensor([[60, 61]]), torch.tensor([[0, 1]]))[0]
        for row, path in zip([*level[:2], *deeper], ([50], [90], [50, 60], [90, 61]), strict=True):
            check(row, reference, text + path)
        session.commit(commits, ())
        text += commits
    assert session.passes == 3 * 5


def test_accepted_rows_are_not_read_again():
    session = drafter(draft_model()).start(PROMPT, 16)
    session.draft_root()
    session.draft_level(torch.tensor([[50, 90]]), torch.tensor([[0, 0]]))
    session.draft_level(torch.tensor([[60, 61]]), torch.tensor([[0, 1]]))
    session.commit([90, 61, 5], ())
    assert session.unread == own([5])


@pytest.mark.parametrize("shared", [1, 3, 4, 5, 6, 8])
def test_a_session_goes_on_from_a_text_with_the_same_beginning(shared):
    model = draft_model()
    reference, made = deepcopy(model), drafter(model)
    first = made.start(PROMPT, 32)
    first.prefill((), len(PROMPT) - 1)
    first.draft_root()
    first.commit([7, 8, 50], ())
    kept = first.snapshot(len(PROMPT) + 2)
    text = [*PROMPT[:shared], 8, 9, 44, 45]
    second = made.start(text, 32)
    resumed = second.restore(kept, shared)
    assert resumed <= shared
    assert second.cache.length >= len(own(PROMPT[:shared])) - 1
    second.prefill((), len(text) - 1 - resumed)
    check(second.draft_root()[0, 0], reference, text)


@pytest.mark.few(1)
@pytest.mark.parametrize("policy", POLICIES)
def test_greedy_texts_are_the_targets_and_drafts_are_accepted(policy):
    decoding = decoder(policy)
    found = decoding.generate(PROMPT, max_new_tokens=40)
    assert found.tokens == decoding.plain().generate(PROMPT, max_new_tokens=40).tokens
    assert any(found.drafted)


@pytest.mark.few(1)
@pytest.mark.parametrize("policy", ["talon:budget=20", "auto"])
def test_a_batch_writes_the_texts_of_each_request(policy):
    decoding = decoder(policy, noise=0.05)
    prompts = [PROMPT, PROMPT[:3], [5], [*PROMPT, 2, 77]]
    for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 4}):
        found = decoding.generate(prompts, max_new_tokens=24, **options)
        for prompt, got in zip(prompts, found, strict=True):
            assert got.tokens == decoding.plain().generate(prompt, max_new_tokens=24, **options).tokens


def test_a_text_beyond_the_draft_models_context_is_written_on():
    """Two of the draft model's tokens for each of the target's, and a table of positions that ends."""
    ours, theirs = words("aa", "bb", "cc", *WORDS[3:]), words("a", "b", "c", *WORDS[3:])
    model = draft_model("gpt2", max_position_embeddings=24, n_positions=24)
    vocabulary = VocabularyMap(ours, theirs, tiny.VOCAB, tiny.VOCAB, CPU)
    decoding = Decoder(
        TargetModel(tiny.build("llama")), OtherTokenizerDrafter(TargetModel(model), vocabulary), make_policy("dynatree")
    )
    prompt = [0, 1, 2] * 6
    assert len(vocabulary.translate(prompt)[0]) == 36
    found = decoding.generate(prompt, max_new_tokens=20)
    assert found.tokens == decoding.plain().generate(prompt, max_new_tokens=20).tokens
    assert sum(round.draft_passes for round in found.metrics.rounds) > 0


class Mapped(TabularModel):
    """A toy draft of four tokens, of which the target has two; it reads the target's texts by its own tokens."""

    def __init__(self, target: TabularModel) -> None:
        super().__init__(4, 1, seed=11)
        self._vocabulary = VocabularyMap(words("a", "b", "c"), words("x", "c", "y", "a"), 3, 4, CPU)
        self.vocab = target.vocab

    def logits(self, context):
        own = self._vocabulary.translate(context)[0] if context else []
        return self._vocabulary.spread(self.rows[tuple(own[-1:])][None])[0]


@pytest.mark.few(7)
@pytest.mark.parametrize("verifier", [name for name in VERIFIERS if name not in {"greedy", "coupled", "lossy-typical"}])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_every_verifier_keeps_the_targets_law(verifier, temperature):
    target, kind = TabularModel(3, 2, seed=7), VERIFIERS[verifier]
    policy = make_policy("chain:depth=2") if kind.chains_only else SMALL_TREES["ragged"]
    found = law(target, Mapped(target), policy, kind, temperature=temperature)
    assert found.total_variation < EXACT
    assert found.expected_accepted > 0.1


@pytest.fixture
def folders(tmp_path):
    tiny.build("llama").save_pretrained(tmp_path / "target")
    draft_model(noise=0.05).save_pretrained(tmp_path / "draft")
    for tokenizer, name in zip(tokenizers(), ("target", "draft"), strict=True):
        tokenizer.save_pretrained(tmp_path / name)
    return tmp_path / "target", tmp_path / "draft"


def test_a_folder_of_another_tokenizer_drafts_and_tells_what_it_can(folders, caplog):
    target, draft = folders
    decoding = drafttree.load(target, draft, "talon:budget=20", dtype="float32", device="cpu")
    assert isinstance(decoding.drafter, OtherTokenizerDrafter)
    assert "another tokenizer: it can draft 77 of the target's 97 tokens (79 %)" in caplog.text
    found = decoding.generate(PROMPT, max_new_tokens=30)
    assert found.tokens == decoding.plain().generate(PROMPT, max_new_tokens=30).tokens
    mixed = drafttree.load(target, f"mixed:{draft}", dtype="float32", device="cpu")
    assert isinstance(mixed.drafter, MixedDrafter)
    assert isinstance(mixed.drafter.model, OtherTokenizerDrafter)
    assert mixed.generate(PROMPT, max_new_tokens=30).tokens == found.tokens


@pytest.mark.parametrize(("common", "fits"), [(33, True), (32, False)])
def test_less_than_a_third_in_common_is_refused_with_the_numbers(folders, common, fits):
    target, draft = folders
    words(*reversed(WORDS[:common]), *(f"o{index}" for index in range(97 - common))).save_pretrained(draft)
    if fits:
        assert drafttree.load(target, draft, device="cpu").drafter
        return
    message = told(TokenizerMismatch, drafttree.load, target, draft, device="cpu")
    assert "token 0 is 'w0' for the target and 'w31' for the drafter" in message
    assert "has 32 of the target's 97 tokens, less than a third" in message
