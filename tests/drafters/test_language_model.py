"""The language-model drafter: exact logits in every round, one pass per call, and no token read twice."""

import pytest
import torch
from torch import Tensor

from drafttree.drafters import LanguageModelDrafter
from drafttree.models import TargetModel
from testing import tiny

PROMPT = tiny.random_tokens(6, 1)
TOLERANCE = 1e-4


class Counted(TargetModel):
    """A model that records the number of tokens of each forward pass."""

    def __init__(self, module) -> None:
        super().__init__(module)
        self.forwarded: list[int] = []

    def forward(self, segments, **options):
        self.forwarded.append(sum(segment.nodes for segment in segments))
        return super().forward(segments, **options)


class Session:
    """A draft session and the committed tokens; compares all its logits with a full recomputation."""

    def __init__(self, name: str = "llama", prompt: list[int] = PROMPT) -> None:
        self.reference = tiny.build(name)
        self.model = Counted(tiny.build(name))
        self.draft = LanguageModelDrafter(self.model).start(prompt, capacity=32)
        self.draft.prefill((), len(prompt) - 1)
        self.committed = list(prompt)
        self.calls = 0

    def expected(self, path: list[int]) -> Tensor:
        with torch.inference_mode():
            return self.reference(torch.tensor([self.committed + path])).logits[0, -1]

    def draft_root(self) -> None:
        logits = self.draft.draft_root()
        self.calls += 1
        self.frontier: list[list[int]] = [[]]
        self.expanded: list[list[int]] = [[]]
        assert logits.shape == (1, 1, tiny.VOCAB)
        torch.testing.assert_close(logits[0, 0], self.expected([]), atol=TOLERANCE, rtol=0)

    def draft_level(self, tokens: list[int], origins: list[int]) -> None:
        logits = self.draft.draft_level(torch.tensor([tokens]), torch.tensor([origins]))
        self.calls += 1
        self.frontier = [[*self.frontier[origin], token] for token, origin in zip(tokens, origins, strict=True)]
        self.expanded += self.frontier
        assert logits.shape == (1, len(tokens), tiny.VOCAB)
        for row, path in zip(logits[0], self.frontier, strict=True):
            torch.testing.assert_close(row, self.expected(path), atol=TOLERANCE, rtol=0)

    def commit(self, tokens: list[int], hidden_states: tuple = ()) -> None:
        self.draft.commit(tokens, hidden_states)
        self.committed += tokens


def draft_three_levels(session: Session) -> None:
    session.draft_root()
    session.draft_level([10, 11, 12], [0, 0, 0])
    session.draft_level([20, 21, 20, 22], [0, 0, 1, 2])
    session.draft_level([30, 31, 30], [3, 0, 1])


COMMITS = {
    "only the bonus": ([50], 1),
    "one node": ([11, 50], 1),
    "first of every level": ([10, 20, 31, 50], 1),
    "last of every level": ([12, 22, 30, 50], 1),
    "the same token under another parent": ([11, 20, 50], 1),
    "deepest accepted node not expanded": ([10, 21, 77, 50], 2),
    "accepted child of the root not expanded": ([77, 50], 2),
    "accepted leaf not expanded": ([10, 21, 30, 77, 50], 2),
    "accepted token expanded under another parent only": ([11, 22, 50], 2),
    "bonus was expanded": ([10, 20], 1),
    "bonus below the root was expanded": ([11], 1),
    "bonus was a leaf": ([10, 21, 30], 1),
    "bonus repeats a token of another branch": ([11, 22], 1),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("case", COMMITS)
@pytest.mark.parametrize("name", ["llama", "mistral_sliding", "gpt2"])
def test_logits_equal_full_recompute_after_every_kind_of_commit(name, case):
    tokens, unread = COMMITS[case]
    session = Session(name)
    for _ in range(2):
        draft_three_levels(session)
        session.commit(tokens, ())
        session.model.forwarded.clear()
    draft_three_levels(session)
    assert session.model.forwarded == [unread, 3, 4, 3]


def test_a_second_tree_may_begin_at_the_same_root():
    session = Session()
    draft_three_levels(session)
    session.draft_root()
    session.draft_level([7, 8], [0, 0])
    session.draft_level([9], [1])
    session.commit([8, 50])
    assert session.model.forwarded[-2:] == [2, 1]
    draft_three_levels(session)
    assert session.model.forwarded[-4:] == [1, 3, 4, 3]


@pytest.mark.few(4)
@pytest.mark.parametrize("name", tiny.CONFIGS)
@pytest.mark.parametrize("seed", [0, 1])
def test_logits_equal_full_recompute_over_random_rounds(name, seed):
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, count: int) -> list[int]:
        return torch.randint(high, (count,), generator=generator).tolist()

    session = Session(name)
    for _ in range(5):
        session.draft_root()
        for width in draw(4, draw(4, 1)[0]):
            origins = sorted(draw(len(session.frontier), width + 1))
            tokens = torch.randperm(tiny.VOCAB, generator=generator)[: width + 1].tolist()
            session.draft_level(tokens, origins)
        accepted = session.expanded[draw(len(session.expanded), 1)[0]]
        session.commit(accepted + draw(tiny.VOCAB, 1 + draw(2, 1)[0]), ())


def test_passes_count_the_calls_without_prefill():
    session = Session()
    for round_ in range(3):
        draft_three_levels(session)
        session.commit([10, 20, 50 + round_], ())
    assert session.draft.passes == session.calls == 12
    assert len(session.model.forwarded) == 13
    assert session.draft.seconds > 0


def test_the_prompt_is_read_once_and_every_committed_token_at_most_once_more():
    session = Session()
    for _ in range(4):
        draft_three_levels(session)
        session.commit([12, 22, 77, 50], ())
    assert sum(session.model.forwarded) == len(PROMPT) + 4 * 10 + 3 * 2


def test_a_round_without_expansion_reads_the_bonus_token_alone():
    session = Session()
    for bonus in (5, 6, 7):
        session.draft_root()
        session.commit([bonus], ())
    session.draft_root()
    assert session.model.forwarded == [len(PROMPT) - 1, 1, 1, 1, 1]


def test_tokens_committed_without_a_draft_are_read_by_the_next_root():
    session = Session()
    session.commit([5], ())
    session.draft_root()
    session.commit([6], ())
    session.commit([7], ())
    session.commit([8, 9], ())
    draft_three_levels(session)
    assert session.draft.passes == session.calls


def test_a_prompt_of_one_token_is_enough():
    session = Session(prompt=[3])
    draft_three_levels(session)
    assert session.model.forwarded == [1, 3, 4, 3]


def test_the_drafter_has_its_models_vocabulary_and_context():
    drafter = LanguageModelDrafter(TargetModel(tiny.build("gpt2")))
    assert (drafter.vocab_size, drafter.context) == (tiny.VOCAB, 64)
