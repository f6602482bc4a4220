"""Drafts behind images: lookup and draft models see one placeholder for each image, and no text changes."""

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import drafttree
from drafttree import Decoder
from drafttree.core.errors import InputError
from drafttree.drafters import LanguageModelDrafter, MixedDrafter, OtherTokenizerDrafter, PromptLookupDrafter
from drafttree.drafters.base import Session
from drafttree.drafters.image_placeholders import ImagePlaceholders
from drafttree.models import TargetModel
from helpers.image_folders import FOLDERS, ImageFolder, image_folder
from helpers.image_models import IMAGE, TEXT, VOCAB, image_model
from testing.tokenizers import byte_level

NEW = 24
OPTIONS = {"max_new_tokens": NEW, "ignore_eos": True}
IMAGES = [
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (60 + 20 * seed, 90, 3), dtype=np.uint8))
    for seed in range(3)
]
CHAT = [
    {"role": "user", "content": [{"type": "image", "image": IMAGES[0]}, {"type": "text", "text": "what is in this?"}]},
    {"role": "assistant", "content": "the quick brown fox"},
    {
        "role": "user",
        "content": [{"type": "image", "image": IMAGES[1]}, {"type": "text", "text": "or in this?"}],
    },
]
TREE = "talon:budget=12,width=3"


class Counted(TargetModel):
    """A draft model that counts the tokens that it reads."""

    forwarded = 0

    def forward(self, segments, **options):
        self.forwarded += sum(segment.nodes for segment in segments)
        return super().forward(segments, **options)


def text_model(vocab: int, seed: int = 1, **sizes: int) -> transformers.PreTrainedModel:
    """A small random model without eyes."""
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT | {"vocab_size": vocab} | sizes)).eval()


def text_part(module: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """The language part of a LLaVA, which drafts as well as a model without eyes can."""
    made = transformers.LlamaForCausalLM(module.config.get_text_config()).eval()
    made.model.load_state_dict(module.model.language_model.state_dict())
    made.lm_head.load_state_dict(module.lm_head.state_dict())
    return made


@pytest.fixture(scope="module", params=sorted(FOLDERS))
def folder(request, tmp_path_factory) -> ImageFolder:
    return image_folder(request.param, tmp_path_factory.mktemp(request.param))


def other_words(path) -> None:
    """Save a draft model with a tokenizer of its own."""
    tokenizer = byte_level("a fox and a dog; what is this and that?" * 9, 270)
    text_model(len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)


def decoder_of(folder: ImageFolder, kind: str, tmp_path) -> Decoder:
    decoder = drafttree.load(folder.path, "lookup", TREE, dtype="float32")
    vocab = decoder.target.vocab_size
    match kind:
        case "lookup" | "suffix":
            return decoder.with_drafter(kind)
        case "draft model":
            return decoder.with_drafter(LanguageModelDrafter(TargetModel(text_model(vocab))))
        case "draft model without the placeholder":
            return decoder.with_drafter(LanguageModelDrafter(TargetModel(text_model(256))))
        case "draft model with eyes":
            return decoder.with_drafter(LanguageModelDrafter(TargetModel(folder.module)))
        case "lookup and draft model":
            model = LanguageModelDrafter(TargetModel(text_model(vocab)))
            return decoder.with_drafter(MixedDrafter(PromptLookupDrafter(vocab), model))
        case _:
            other_words(tmp_path / "other")
            return decoder.with_drafter(str(tmp_path / "other"))


KINDS = (
    *("lookup", "suffix", "draft model", "draft model without the placeholder", "draft model with eyes"),
    *("lookup and draft model", "other vocabulary"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_and_turns_are_those_of_plain_decoding(folder, kind, tmp_path):
    decoder = decoder_of(folder, kind, tmp_path)
    assert isinstance(decoder.drafter, OtherTokenizerDrafter) == (kind == "other vocabulary")
    plain = decoder.plain()
    first = decoder.generate(CHAT, **OPTIONS)
    assert first.tokens == folder.generate(CHAT, NEW)
    again = decoder.generate(CHAT, **OPTIONS)
    assert again.metrics.reused_tokens > decoder.new_request(CHAT).task.images.end
    assert again.tokens == first.tokens
    turn = [*CHAT, {"role": "assistant", "content": first.text}]
    question = [{"type": "image", "image": IMAGES[2]}, {"type": "text", "text": "and this?"}]
    turn.append({"role": "user", "content": question})
    assert decoder.generate(turn, **OPTIONS).tokens == folder.generate(turn, NEW)
    sampled = {**OPTIONS, "temperature": 0.8, "seed": 5}
    assert decoder.generate(CHAT, **sampled).tokens == plain.generate(CHAT, **sampled).tokens
    texts = ["the quick brown", CHAT, turn[:1]]
    for result, text in zip(decoder.generate(texts, **OPTIONS), texts, strict=True):
        assert result.tokens == plain.generate(text, **OPTIONS).tokens


@pytest.mark.parametrize("kind", ["draft model", "other vocabulary"])
def test_a_draft_model_reads_one_token_an_image(folder, kind, tmp_path):
    decoder = decoder_of(folder, kind, tmp_path).with_policy("chain:depth=1")
    drafter = decoder.drafter
    counted = Counted(drafter.model.module)
    if kind == "draft model":
        decoder = decoder.with_drafter(LanguageModelDrafter(counted))
    else:
        decoder = decoder.with_drafter(OtherTokenizerDrafter(counted, drafter.vocabulary))
    request = decoder.new_request(CHAT, **OPTIONS)
    prompt, images = request.task.prompt, request.task.images
    assert len(images.spans) == 2
    decoder.step(request)
    shown = ImagePlaceholders.of(images, prompt).shown(prompt)
    assert len(shown) == len(prompt) - sum(end - begin - 1 for begin, end in images.spans)
    if kind == "draft model":
        assert counted.forwarded == len(shown)
    else:
        image_token = prompt[images.spans[0][0]]
        begin, end = shown.index(image_token), len(shown) - shown[::-1].index(image_token)
        pieces = [shown[:begin], shown[begin + 1 : end - 1], shown[end:]]
        own = [drafter.vocabulary.translate(piece)[0] for piece in pieces]
        assert counted.forwarded == sum(map(len, own)) + 2


def test_lookup_copies_no_placeholders():
    """A text that repeats what came before its images."""
    model = image_model("llava")
    inputs = model.prompt([2, 5, 6], [7, 8, 2, 5, 6], [7, 8, 9, 2, 5, 6])
    decoder = drafttree.load(model.module, "lookup", TREE)
    request = decoder.new_request(inputs, **OPTIONS)
    drafted = []
    request.observer = Watching(drafted)
    while not request.text.finish_reason:
        decoder.step(request)
    assert request.text.generated == model.generate(inputs, NEW)
    assert drafted
    assert IMAGE not in drafted


class Watching:
    """Keeps all drafted tokens."""

    def __init__(self, drafted: list[int]) -> None:
        self._drafted = drafted

    def drafted(self, request, grown, reason) -> None:
        self._drafted += grown.tokens[1:]

    def settled(self, *_) -> None:
        pass


def test_a_draft_model_drafts_what_a_model_without_eyes_would():
    model = image_model("llava")
    draft = text_part(model.module)
    decoder = drafttree.load(model.module, draft, "chain:depth=3")
    result = decoder.generate(model.inputs, **OPTIONS)
    assert result.tokens == model.generate(model.inputs, NEW)
    prompt = model.inputs["input_ids"][0].tolist()
    shown = [token for before, token in zip([None, *prompt], prompt, strict=False) if not token == before == IMAGE]
    request = decoder.new_request(model.inputs, **OPTIONS)
    decoder.step(request)
    session = request.drafting.session
    session.draft_root()
    with torch.no_grad():
        expected = draft(torch.tensor([shown + request.text.generated])).logits[0, -1]
    torch.testing.assert_close(session.output.logits[0, -1], expected, atol=1e-4, rtol=1e-4)


class HiddenReader:
    """A drafter of a user's own that keeps the states it reads, and goes on from a few tokens of another session."""

    context, levels, nbytes, vocab_size = None, None, 0, VOCAB

    def __init__(self, restored: int) -> None:
        self.hidden_layers = (TEXT["num_hidden_layers"],)
        self.restored = restored

    def start(self, prompt, capacity):
        return HiddenReaderSession(self)


class HiddenReaderSession(Session):
    def __init__(self, drafter: HiddenReader) -> None:
        super().__init__(drafter, torch.device("cpu"))
        self.read = torch.zeros(1, 0, TEXT["hidden_size"])
        self.parts = []

    def prefill(self, hidden_states, tokens):
        self.read = torch.cat((self.read, hidden_states[0]), 1)
        self.parts.append((hidden_states[0].shape[1], tokens))

    def snapshot(self, tokens):
        return self.read[:, :tokens]

    def restore(self, snapshot, tokens):
        if snapshot is None:
            return 0
        self.read = snapshot[:, : min(self.drafter.restored, tokens)]
        return self.read.shape[1]

    def draft_root(self):
        return torch.zeros(1, 1, VOCAB)

    def draft_level(self, tokens, origins):
        return torch.zeros(1, tokens.shape[1], VOCAB)


@pytest.mark.parametrize("restored", [0, 3, 6, 1000])
@pytest.mark.parametrize("family", ["gemma3", "llava", "qwen2_5_vl"])
def test_a_drafter_that_reads_states_gets_those_of_each_token(family, restored):
    """Though it goes on from the middle of an image, where the target cannot."""
    model = image_model(family)
    decoder = drafttree.load(model.module, None, "chain:depth=2").with_drafter(HiddenReader(restored))
    inputs = model.prompt([2, 5, 6], [7, 8], [9, 3, 4, 5])
    length = inputs["input_ids"].shape[1] - 1
    with torch.no_grad():
        expected = model.module(**inputs, output_hidden_states=True).hidden_states[-1][:, :length]
    for turn in range(2):
        request = decoder.new_request(inputs, **OPTIONS, reuse_prefix=True)
        with decoder.prefixes.storing(request):
            decoder.step(request)
            session = request.drafting.session
            torch.testing.assert_close(session.read[:, :length], expected, atol=1e-4, rtol=1e-4)
            assert all(states == tokens for states, tokens in session.parts)
            while not request.text.finish_reason:
                decoder.step(request)
        assert request.text.generated == model.generate(inputs, NEW)
        reused = min(restored, length - 1) if turn else 0
        assert request.metrics.reused_tokens == reused
        assert sum(tokens for _, tokens in session.parts) == length - reused


def test_an_image_beyond_the_draft_models_context_is_not_counted():
    """It has room for the text, though not for the placeholders."""
    model = image_model("qwen2_5_vl")
    length = model.inputs["input_ids"].shape[1]
    spans = [index for index, token in enumerate(model.inputs["input_ids"][0].tolist()) if token == IMAGE]
    shown = length - len(spans) + 1
    draft = text_model(model.module.config.get_text_config().vocab_size, max_position_embeddings=shown + 4)
    decoder = drafttree.load(model.module, draft, "chain:depth=1")
    request = decoder.new_request(model.inputs, **OPTIONS)
    while not request.text.finish_reason:
        decoder.step(request)
    assert request.text.generated == model.generate(model.inputs, NEW)
    drafted = [text_round.nodes > 1 for text_round in request.metrics.rounds]
    assert drafted[0]
    assert not drafted[-2]
    assert request.metrics.collapsed_texts == 1


def test_a_prompt_that_ends_with_an_image_is_refused():
    model = image_model("llava")
    tokens = model.inputs["input_ids"]
    end = tokens.shape[1] - tokens[0].tolist()[::-1].index(IMAGE)
    cut = {**model.inputs, "input_ids": tokens[:, :end]}
    with pytest.raises(InputError, match="the prompt ends with an image; give text behind it"):
        drafttree.load(model.module, "lookup").generate(cut, **OPTIONS)
