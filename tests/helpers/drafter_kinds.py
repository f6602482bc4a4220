"""A drafter of every kind on the embedded target, and random prompts and hidden states for it."""

from collections.abc import Callable
from functools import cache

import torch
from transformers import Qwen3Config

import drafttree
from drafttree.drafters import (
    BlockDrafter,
    Drafter,
    Eagle3Drafter,
    HiddenStates,
    HydraDrafter,
    LanguageModelDrafter,
    OtherTokenizerDrafter,
    VocabularyMap,
)
from drafttree.drafters.block_layers import BlockConfig, BlockLayers
from drafttree.drafters.formats import mtp, read_config, read_tensors
from drafttree.drafters.fused_eagle3 import FusedEagle3, RecordedEagle3
from drafttree.drafters.hydra import HydraHeads
from drafttree.loading import load_model, zoo
from helpers.replays import Operations
from helpers.varlen import stand_in
from testing.tokenizers import words
from testing.toy import Table, ToyModel

HIDDEN, VOCAB = 256, 4096


def _embedded(name: str) -> Drafter:
    found = drafttree.load("embedded", name, dtype="float32").drafter
    assert found
    return found


def _module_eagle3() -> Drafter:
    """The embedded head on its module backend."""
    fused = _embedded("embedded-eagle3")
    assert isinstance(fused, Eagle3Drafter)
    return Eagle3Drafter(fused.head, fused.hidden_layers, fused.nbytes)


def _packed_eagle3() -> Drafter:
    """The embedded head, whose passes are recorded and attend to the prefixes of all requests at once."""
    fused = _embedded("embedded-eagle3")
    assert isinstance(fused, Eagle3Drafter)
    return Eagle3Drafter(
        fused.head,
        fused.hidden_layers,
        fused.nbytes,
        lambda head: RecordedEagle3(FusedEagle3(head), Operations(), stand_in()),
    )


@torch.no_grad()
def _plain_hydra() -> Drafter:
    """Random heads without a prefix layer."""
    target = load_model("embedded", torch.float32, torch.device("cpu"))
    torch.manual_seed(0)
    return HydraDrafter(HydraHeads(3, 1, HIDDEN, VOCAB).eval(), target)


def _deep_mtp() -> Drafter:
    """Two MTP layers, which happen to be the same."""
    target = load_model("embedded", torch.float32, torch.device("cpu"))
    tensors = read_tensors(zoo.folder("embedded-mtp"))
    again = {name.replace("layers.0.", "layers.1."): tensor for name, tensor in tensors.items()}
    return mtp.load(tensors | again, read_config(zoo.folder("embedded-mtp")), target)


@torch.no_grad()
def _random_block() -> Drafter:
    """A random block drafter whose drafts depend on their path."""
    torch.manual_seed(0)
    layer = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
    )
    sizes = {"vocab": VOCAB, "draft_vocab": VOCAB, "target_hidden": HIDDEN, "states": 2, "block": 6, "mask_token": 0}
    config = BlockConfig(layer, **sizes, levels=6, from_root=True, causal=(False, True), transition="rnn", rank=8)
    return BlockDrafter(BlockLayers(config).eval().requires_grad_(False), (2, 6), 0)


def _users_model() -> Drafter:
    """A model that has no packed pass of its own."""
    return LanguageModelDrafter(ToyModel(Table(vocab=16, order=1), vocab=16))


def _other_tokenizer() -> Drafter:
    """A model whose ids are in another order, and which lacks four of the target's words."""
    ours = words(*(f"w{index}" for index in range(16)))
    theirs = words(*(f"w{index}" for index in reversed(range(4, 16))), "o1", "o2", "o3", "?")
    theirs.unk_token = "?"
    model = ToyModel(Table(vocab=16, order=1), vocab=16)
    return OtherTokenizerDrafter(model, VocabularyMap(ours, theirs, 16, 16, model.device))


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "language model": lambda: _embedded("embedded-draft"),
    "a user's model": _users_model,
    "a model of another tokenizer": _other_tokenizer,
    "eagle3": lambda: _embedded("embedded-eagle3"),
    "eagle3, module": _module_eagle3,
    "eagle3, packed": _packed_eagle3,
    "medusa": lambda: _embedded("embedded-medusa"),
    "hydra": _plain_hydra,
    "hydra++": lambda: _embedded("embedded-hydra"),
    "mtp": lambda: _embedded("embedded-mtp"),
    "mtp, two layers": _deep_mtp,
    "block": _random_block,
    "lookup": lambda: _embedded("lookup"),
    "suffix": lambda: _embedded("suffix"),
    "mixed": lambda: _embedded("mixed:embedded-eagle3"),
}


@cache
def drafter_of(kind: str) -> Drafter:
    """The drafter of a kind, made once."""
    return DRAFTERS[kind]()


def random_text(count: int, seed: int) -> list[int]:
    """Token ids that repeat themselves now and then."""
    return torch.randint(9, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def random_states(drafter: Drafter, count: int, seed: int) -> HiddenStates:
    """Hidden states of the layers a drafter reads; which ones makes no difference to how it reads them."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, count, HIDDEN, generator=generator) for _ in drafter.hidden_layers)
