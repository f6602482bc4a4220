"""Drafters of earlier versions, whose methods have other names, draft as they did."""

import pytest
import torch

from drafttree.drafters import LookupDrafter, PromptLookupDrafter, Session
from testing.costs import toy_decoder
from testing.small_trees import PROMPT, TARGET, VOCAB, small
from testing.toy import ToyDraft, ToyDrafter, ToyModel

OPTIONS = {"max_new_tokens": 12, "temperature": 0.0}


def write(drafter):
    return toy_decoder(ToyModel(TARGET, VOCAB), drafter, small("talon")).generate(PROMPT, **OPTIONS)


class SharedRows:
    """A drafter without a base class, which drafts for lists of sessions by methods with former names."""

    context = levels = None
    hidden_layers = ()
    nbytes = 0
    vocab_size = VOCAB

    def __init__(self) -> None:
        self.asked: list[str] = []

    def start(self, prompt, capacity):
        return Session(self, torch.device("cpu"))

    def root(self, sessions):
        self.asked.append("root")
        return torch.zeros(len(sessions), VOCAB)

    def expand(self, sessions, frontiers):
        self.asked.append("expand")
        return torch.zeros(sum(len(frontier.tokens) for frontier in frontiers), VOCAB)


def test_a_session_with_former_names_drafts():
    with pytest.warns(
        FutureWarning, match=r"OwnSession: root is called draft_root now, expand is called draft_level now; rename it"
    ):

        class OwnSession(ToyDraft):
            def root(self):
                return super().root() + 1

            def expand(self, tokens, origins):
                return super().expand(tokens, origins) + 1

    class OwnDrafter(ToyDrafter):
        def start(self, prompt, capacity):
            return OwnSession([self.law], [prompt], torch.float32)

    texts = [write(drafter(TARGET, VOCAB)) for drafter in (ToyDrafter, OwnDrafter)]
    assert texts[0].tokens == texts[1].tokens
    assert texts[0].metrics.mean_accepted_tokens == texts[1].metrics.mean_accepted_tokens > 2


def test_a_shared_drafter_with_former_names_drafts():
    drafter = SharedRows()
    with pytest.warns(
        FutureWarning, match=r"SharedRows: root is called draft_root now, expand is called draft_level now"
    ):
        text = write(drafter)
    assert text.tokens == write(ToyDrafter(TARGET, VOCAB)).tokens
    assert set(drafter.asked) == {"root", "expand"}


class InheritedRows(SharedRows):
    """Defines no method itself."""


class OwnRows:
    """Has methods that are set on the object."""

    context = levels = None
    hidden_layers = ()
    nbytes = 0
    vocab_size = VOCAB
    start = SharedRows.start

    def __init__(self) -> None:
        rows = SharedRows()
        self.root = rows.root
        self.expand = rows.expand


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("make", [InheritedRows, OwnRows])
def test_inherited_methods_and_those_of_an_object_draft(make):
    assert write(make()).tokens == write(ToyDrafter(TARGET, VOCAB)).tokens


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_mixin_with_former_names_drafts():
    class Mixin:
        def root(self):
            return torch.zeros(1, 1, VOCAB)

        def expand(self, tokens, origins):
            return torch.zeros(*tokens.shape, VOCAB)

    class MixedSession(Mixin, Session):
        """Has the methods of its mixin."""

    class MixedDrafter(ToyDrafter):
        def start(self, prompt, capacity):
            return MixedSession(self, torch.device("cpu"))

    assert write(MixedDrafter(TARGET, VOCAB)).tokens == write(ToyDrafter(TARGET, VOCAB)).tokens


def test_a_subclass_of_a_drafter_overrides_by_a_former_name():
    with pytest.warns(FutureWarning, match=r"Watched: root is called draft_root now; rename it"):

        class Watched(PromptLookupDrafter):
            def root(self, sessions):
                self.rows = super().root(sessions)
                return self.rows

    drafter = Watched(VOCAB, torch.device("cpu"))
    write(drafter)
    assert drafter.rows.nodes == 1


def test_former_names_can_be_called():
    assert Session.expand is Session.draft_level
    assert Session.keep is Session.snapshot
    assert Session.resume is Session.restore
    assert LookupDrafter.root is LookupDrafter.draft_root
