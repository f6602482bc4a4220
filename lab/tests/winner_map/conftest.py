"""A target and a draft model of eight tokens, and runs of texts by them."""

import pytest

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.measure.run_store import RunStore
from drafttree_lab.graded import KnownText
from drafttree_lab.winner_map.winner_map import TextRuns
from testing.small_trees import DRAFT, TARGET
from testing.toy import ToyModel, greedy_text

PROMPTS = [[3, 1, 4], [2, 7, 1, 5], [6, 6, 2]]
LENGTH = 10


@pytest.fixture
def draft():
    """The draft model as a drafter."""
    return LanguageModelDrafter(ToyModel(DRAFT))


@pytest.fixture
def target():
    """The target as a drafter."""
    return LanguageModelDrafter(ToyModel(TARGET))


@pytest.fixture
def texts(draft, target):
    """What both models expect along the target's own texts."""
    return [KnownText.read(draft.model, target.model, each, greedy_text(TARGET, each, LENGTH)) for each in PROMPTS]


@pytest.fixture
def make_runs(draft, target):
    """Makes runs of texts, with a store of their own unless one is given."""

    def make(store=None):
        runs = TextRuns(Decoder(target.model, draft), store or RunStore(), LENGTH, seed=0)
        runs.prompts = PROMPTS
        return runs

    return make
