"""What a user's drafter, policy, verifier or criterion does to the objects it is given changes no text."""

import numpy as np
import pytest
import torch

from drafttree import Decoder, Verdict
from drafttree.drafters import MixedDrafter, PromptLookupDrafter
from drafttree.engine.batching import Engine
from drafttree.policies import Talon
from drafttree.verifiers import Coupled, Greedy
from drafttree.verifiers.base import SamplingVerifier
from testing.costs import toy_decoder
from testing.small_trees import DRAFT, TARGET
from testing.toy import ToyDraft, ToyDrafter, ToyModel

PROMPTS = [[place % 8, 1, 4, 1, 5][: 1 + place % 5] for place in range(6)]
SAMPLED = {"temperature": 0.9, "seed": 3}
LENGTH = 16


def decoder(drafter=None, policy=None, verifier=None) -> Decoder:
    parts = drafter or ToyDrafter(DRAFT), policy or Talon(width=4, budget=12), verifier
    return toy_decoder(ToyModel(TARGET), *parts)


def check_texts(rude: Decoder, **options) -> None:
    """Its texts, alone and in a batch, are those of plain decoding with parts that keep their hands to themselves."""
    options["max_new_tokens"] = LENGTH
    expected = [decoder().plain().generate(prompt, **options).tokens for prompt in PROMPTS]
    assert [rude.generate(prompt, **options).tokens for prompt in PROMPTS] == expected
    with Engine(rude, max_batch=4) as engine:
        handles = [engine.submit(prompt, **options) for prompt in PROMPTS]
        assert [handle.result(20).tokens for handle in handles] == expected


class RudeSession(ToyDraft):
    """Keeps its text in the list that it is given, and overwrites what it has read."""

    def __init__(self, prompt: list[int]) -> None:
        super().__init__([DRAFT], [prompt], torch.float32)
        self.text = prompt

    def draft_level(self, tokens, origins):
        logits = super().draft_level(tokens, origins)
        tokens.zero_()
        origins.fill_(7)
        return logits

    def commit(self, tokens, hidden_states) -> None:
        super().commit(tokens, hidden_states)
        self.text += tokens
        tokens.reverse()


class RudeDrafter(ToyDrafter):
    def start(self, prompt, capacity):
        return RudeSession(prompt)


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_drafter(options, mixed):
    drafter = RudeDrafter(DRAFT)
    check_texts(decoder(MixedDrafter(PromptLookupDrafter(8), drafter) if mixed else drafter), **options)


def overwrite(*given) -> None:
    """Overwrite arrays and lists where that is possible."""
    for each in given:
        if isinstance(each, list):
            each.clear()
        elif isinstance(each, np.ndarray) and each.flags.writeable:
            each[...] = 0


class RudePolicy(Talon):
    def keep(self, layer):
        kept = super().keep(layer).copy()
        overwrite(layer.logprobs, layer.parent_logprobs, layer.parent_scores, layer.path_logprobs, layer.scores)
        overwrite(layer.rank, layer.possible, layer.labels, layer.tree.tokens, layer.tree.draft_probs)
        return kept

    def label(self, layer):
        return layer.logprobs.argsort()

    def stop(self, tree, frontier):
        overwrite(frontier, tree.tokens, tree.parents, tree.path_logprobs, tree.scores)

    def observe(self, state, outcome):
        tree = outcome.tree
        overwrite(outcome.path, tree.tokens, tree.parents, tree.path_logprobs, tree.scores, tree.depths, tree.children)
        overwrite(*tree.children)


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_a_policy(options):
    """Nor does it change which tokens the text says were drafted, what the next policy sees, or later trees."""
    usual, rude = decoder(), decoder(policy=RudePolicy(width=4, budget=12))
    check_texts(rude, **options)
    for prompt in PROMPTS:
        found, expected = (each.generate(prompt, max_new_tokens=LENGTH, **options) for each in (rude, usual))
        assert found.drafted == expected.drafted
        assert [turn.widths for turn in found.metrics.rounds] == [turn.widths for turn in expected.metrics.rounds]


def overwrite_round(tree, logits, randomness, sampling) -> None:
    """Overwrite all that a verifier is given."""
    overwrite(tree.tokens, tree.parents, tree.path_logprobs, tree.scores, tree.depths, tree.children, *tree.children)
    tree.ancestors[:] = False
    logits.zero_()
    if not sampling.greedy:
        for depth in range(tree.levels + 3):
            randomness.gumbel(depth).zero_()


class RudeGreedy(Greedy):
    """Also hands out one list for all paths, and the bonus token as a tensor."""

    def __init__(self, sampling) -> None:
        super().__init__(sampling)
        self.path: list[int] = []

    def verify(self, tree, logits, randomness):
        found = super().verify(tree, logits, randomness)
        self.path[:] = found.path
        overwrite_round(tree, logits, randomness, self.sampling)
        return Verdict(self.path, torch.tensor(found.bonus))  # pyright: ignore[reportArgumentType]


class RudeCoupled(Coupled):
    def guide(self, logits, depth, randomness):
        noise = randomness.gumbel(depth)
        guided = self.sampling.process(logits) + noise
        noise.zero_()
        logits.zero_()
        return guided

    def verify(self, tree, logits, randomness):
        found = super().verify(tree, logits, randomness)
        overwrite_round(tree, logits, randomness, self.sampling)
        return found


@pytest.mark.parametrize(("verifier", "options"), [(RudeGreedy, {}), (RudeCoupled, SAMPLED)])
def test_a_verifier(verifier, options):
    """Nor does it change the log-probabilities that are told of the tokens."""
    usual, rude = decoder(), decoder(verifier=verifier)
    check_texts(rude, **options)
    options = {"max_new_tokens": LENGTH, "logprobs": 2, **options}
    found, expected = (each.generate([1, 2], **options) for each in (rude, usual))
    assert all(type(token) is int for token in found.tokens)
    assert found.drafted == expected.drafted
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert found.top_logprobs == [pytest.approx(row, abs=1e-5) for row in expected.top_logprobs or ()]


def test_a_stopping_criterion():
    """A later call sees the text as it is."""
    text = decoder().plain().generate([1, 2], max_new_tokens=LENGTH).tokens
    pair = text[4:6]

    def ends(input_ids, scores):
        found = input_ids[0, -2:].tolist() == pair
        input_ids.zero_()
        return torch.tensor([found])

    found = decoder().generate([1, 2], max_new_tokens=LENGTH, stopping_criteria=[ends])
    end = next(place for place in range(2, LENGTH + 1) if text[place - 2 : place] == pair)
    assert found.tokens == text[:end]


def test_what_a_reader_does_to_chunks():
    """Neither the rest of the text nor its result changes."""
    options = {"max_new_tokens": LENGTH, "logprobs": 2, "prompt_logprobs": 2}
    expected = decoder().generate([1, 2, 3], **options)
    stream = decoder().stream([1, 2, 3], **options)
    for chunk in stream:
        for row in chunk.top_logprobs:
            row.clear()
        for each in (chunk.tokens, chunk.drafted, chunk.logprobs, chunk.top_logprobs, chunk.origins):
            each.clear()
        if chunk.prompt_logprobs:
            chunk.prompt_logprobs.tokens.clear()
    for name in ("tokens", "drafted", "logprobs", "top_logprobs", "prompt_logprobs"):
        assert getattr(stream.result, name) == getattr(expected, name)


@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        (None, "Wrong returns None; a verdict is the accepted nodes, from the root's 0 down, and the bonus token"),
        (
            ([0], 0.5),
            "Wrong returns ([0], 0.5); a verdict is the accepted nodes, from the root's 0 down, and the bonus token",
        ),
        (([], 1), "Wrong accepts the nodes [], which do not form a path from the root"),
        (([0], 8), "Wrong gives the bonus token 8; the vocabulary has 8"),
    ],
    ids=str,
)
def test_what_is_no_verdict(verdict, message):
    class Wrong(Greedy):
        def verify(self, tree, logits, randomness):
            return verdict

    with pytest.raises(ValueError) as told:  # noqa: PT011
        decoder(verifier=Wrong).generate([1, 2], max_new_tokens=4)
    assert str(told.value) == message


@pytest.mark.parametrize("judged", [None, [0], ([0], 1, 2)], ids=str)
def test_what_a_sampling_verifier_judges_that_is_no_verdict(judged):
    class Wrong(SamplingVerifier):
        def judge(self, view):
            return judged

    with pytest.raises(ValueError) as told:  # noqa: PT011
        decoder(verifier=Wrong).generate([1, 2], max_new_tokens=4, temperature=1.0)
    wanted = "a verdict is the accepted nodes, from the root's 0 down, and the bonus token"
    assert str(told.value) == f"Wrong returns {judged!r}; {wanted}"
