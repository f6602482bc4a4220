"""What drafters see of images: counts against a search, and drafts as of a text with one placeholder for each image."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drafttree.drafters import (
    LanguageModelDrafter,
    MixedDrafter,
    OtherTokenizerDrafter,
    PromptLookupDrafter,
    SuffixDrafter,
    VocabularyMap,
)
from drafttree.drafters.assistant import AssistantSession
from drafttree.drafters.base import Session
from drafttree.drafters.block import BlockSession
from drafttree.drafters.head import HeadSession
from drafttree.drafters.head_chain import HeadChainSession
from drafttree.drafters.heads import HeadsSession
from drafttree.drafters.image_placeholders import NO_IMAGES, ImagePlaceholders
from drafttree.images.prompt_images import PromptImages
from drafttree.models import TargetModel
from testing import tiny
from testing.tokenizers import words

IMAGE = 90
"""A placeholder."""
VOCAB = tiny.VOCAB
PROMPT = [2, 5, *[IMAGE] * 6, 7, 8, 9, 3, *[IMAGE] * 4, 6, 5, 7, 8]
SPANS = [(2, 8), (12, 16)]
SEEN = [2, 5, IMAGE, 7, 8, 9, 3, IMAGE, 6, 5, 7, 8]
IMAGES = ImagePlaceholders(IMAGE, SPANS)
pieces = st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=6)


def test_the_placeholders_of_a_prompt():
    images = PromptImages({}, [SPANS[1], SPANS[0]], [b"b", b"a"])
    assert ImagePlaceholders.of(images, PROMPT) == IMAGES
    assert IMAGES.shown(PROMPT) == SEEN


@given(pieces)
def test_counts_are_those_of_a_search(pieces):
    text, seen_ends, spans = [], [0], []
    for is_image, size in pieces:
        if is_image:
            spans.append((len(text), len(text) + size))
        for index in range(size):
            seen_ends.append(seen_ends[-1] + (not is_image or index == 0))
            text.append(IMAGE if is_image else len(text))
    images = ImagePlaceholders(IMAGE, spans)
    shown = images.shown(text)
    assert len(shown) == seen_ends[-1]
    for tokens, seen in enumerate(seen_ends):
        assert images.seen(tokens) == seen
        last = max(count for count, other in enumerate(seen_ends) if other == seen)
        assert images.read_by(seen) == last
        for further in range(len(text) - last + 1):
            assert images.seen_after(seen, further) == seen_ends[last + further]


def test_without_images_every_token_is_seen():
    assert NO_IMAGES.shown(PROMPT) == PROMPT
    assert [NO_IMAGES.seen(4), NO_IMAGES.read_by(4), NO_IMAGES.seen_after(4, 3)] == [4, 4, 7]


def test_a_session_of_ones_own_sees_every_token():
    session = Session(object(), torch.device("cpu"))
    session.see_images(IMAGES)
    assert session.images == NO_IMAGES


@pytest.mark.parametrize("drafter", [PromptLookupDrafter(VOCAB), SuffixDrafter(VOCAB)], ids=["lookup", "suffix"])
def test_lookup_matches_placeholders_and_never_proposes_them(drafter):
    session = drafter.start(PROMPT, 64)
    session.see_images(IMAGES)
    session.prefill((), len(PROMPT) - 1)
    assert int(session.draft_root()[0, 0, :VOCAB].argmax()) == 9
    session.commit([5], ())  # what followed it was an image, and 7
    probs = session.draft_root()[0, 0].exp()
    assert probs[:VOCAB].nonzero()[:, 0].tolist() == [7]
    session.commit([2, 5], ())  # what followed both was an image
    assert IMAGE not in session.draft_root()[0, 0, :VOCAB].exp().nonzero()[:, 0].tolist()
    after = session.draft_level(torch.tensor([[IMAGE]]), torch.tensor([[0]]))[0, 0]
    assert int(after[:VOCAB].argmax()) in (7, 6)
    session.commit([IMAGE, 4, 4, IMAGE, 4, 4], ())  # even one that the target wrote
    assert float(session.draft_root()[0, 0, IMAGE].exp()) == 0


def test_lookup_drafts_as_of_the_text_that_it_sees():
    made = SuffixDrafter(VOCAB)
    session, other = made.start(PROMPT, 64), made.start(SEEN, 64)
    session.see_images(IMAGES)
    without = ImagePlaceholders(IMAGE)
    other.see_images(without)
    for commits in ([9, 3], [7, 8], [6, 5]):
        assert session.draft_root().tolist() == other.draft_root().tolist()
        session.commit(commits, ())
        other.commit(commits, ())


def language_model(name: str = "llama") -> tuple[LanguageModelDrafter, torch.nn.Module]:
    return LanguageModelDrafter(TargetModel(tiny.build(name))), tiny.build(name)


def other_tokenizer() -> tuple[OtherTokenizerDrafter, torch.nn.Module]:
    """A draft model whose words are the target's in another order, but for the placeholder."""
    ours = [f"w{index}" for index in range(VOCAB)]
    theirs = [*reversed(ours[:IMAGE]), *ours[IMAGE + 1 :], "?"]
    target, draft = words(*ours), words(*theirs)
    draft.unk_token = "?"
    vocabulary = VocabularyMap(target, draft, VOCAB, VOCAB, torch.device("cpu"))
    assert vocabulary.twin(IMAGE) == theirs.index("?")
    return OtherTokenizerDrafter(TargetModel(tiny.build("llama")), vocabulary), tiny.build("llama")


def check(drafter, session, reference, seen: list[int]) -> None:
    """Compare the logits after the root with those of a model that reads the whole text that the session sees."""
    logits = session.draft_root()[0, 0]
    if isinstance(drafter, OtherTokenizerDrafter):
        seen = [drafter.vocabulary.twin(token) for token in seen]
    with torch.no_grad():
        expected = reference(torch.tensor([seen])).logits[0, -1:]
    if isinstance(drafter, OtherTokenizerDrafter):
        expected = drafter.vocabulary.spread(expected)
    torch.testing.assert_close(logits, expected[0], atol=1e-4, rtol=1e-4)


KINDS = {"same vocabulary": language_model, "other vocabulary": other_tokenizer}
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.parametrize("parts", [[23], [8, 15], [16, 3], [10], []], ids=str)
def test_a_draft_model_reads_one_token_an_image(kind, parts):
    drafter, reference = KINDS[kind]()
    session = drafter.start(PROMPT, 64)
    session.see_images(IMAGES)
    read = 0
    for tokens in parts:
        session.prefill((), tokens)
        read += tokens
        assert session.cache.length == min(IMAGES.seen(read), len(SEEN) - 1)
    check(drafter, session, reference, SEEN)
    assert session.cache.length == len(SEEN)
    session.commit([4, 5], ())
    check(drafter, session, reference, [*SEEN, 4, 5])


@every_kind
@pytest.mark.parametrize("shared", [8, 9, 12, 16, 18])
def test_a_draft_model_goes_on_from_a_text_with_the_same_images(kind, shared):
    """Of which it has copied `shared` tokens, the images among them."""
    drafter, reference = KINDS[kind]()
    first = drafter.start(PROMPT, 64)
    first.see_images(IMAGES)
    first.prefill((), len(PROMPT) - 1)
    first.draft_root()
    kept = first.snapshot(len(PROMPT))
    text = [*PROMPT[:shared], 4, 4, 5]
    images = ImagePlaceholders(IMAGE, [span for span in SPANS if span[1] <= shared])
    second = drafter.start(text, 64)
    second.see_images(images)
    assert second.restore(kept, shared) == shared
    assert second.cache.length == images.seen(shared)
    second.prefill((), 2)
    assert second.cache.length == images.seen(shared) + 2
    check(drafter, second, reference, images.shown(text))


@every_kind
def test_a_snapshot_of_fewer_tokens_is_taken_over(kind):
    drafter, reference = KINDS[kind]()
    first = drafter.start(PROMPT, 64)
    first.see_images(IMAGES)
    first.prefill((), 14)
    second = drafter.start(PROMPT, 64)
    second.see_images(IMAGES)
    assert second.restore(first.snapshot(9), 20) == 9
    assert second.cache.length == IMAGES.seen(9)
    check(drafter, second, reference, SEEN)


def test_both_models_of_a_mixed_drafter_see_one_token_an_image():
    model, reference = language_model()
    mixed = MixedDrafter(PromptLookupDrafter(VOCAB), model)
    session = mixed.start(PROMPT, 64)
    session.see_images(IMAGES)
    session.prefill((), len(PROMPT) - 1)
    assert session.images == IMAGES
    check(model, session, reference, SEEN)
    assert session.choose(1).cache.length == len(SEEN)
    assert int(session.choose(0).draft_root()[0, 0, :VOCAB].argmax()) == 9


@pytest.mark.parametrize("kind", [HeadSession, HeadChainSession, HeadsSession, BlockSession, AssistantSession])
def test_a_head_has_a_row_for_each_token(kind):
    assert kind.see_images is Session.see_images
    assert kind.images == NO_IMAGES
