"""A drafter of every kind on the embedded target, and random prompts and hidden states for it."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import drafttree
from drafttree.drafters import (
    Drafter,
    HeadDrafter,
    HiddenStates,
    LanguageModelDrafter,
    OtherTokenizerDrafter,
    VocabularyMap,
)
from drafttree.drafters.eagle import eagle_drafter
from drafttree.drafters.formats import mtp, read_config, read_tensors
from drafttree.drafters.head_backend import HeadBackend
from drafttree.loading import load_model, zoo
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.recorded.recorded_passes import RecordedBackend
from helpers.checkpoints import FORMATS
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
    assert isinstance(fused, HeadDrafter)
    return eagle_drafter(fused.modules[0], fused.hidden_layers, fused.nbytes)


def _packed_eagle3() -> Drafter:
    """The embedded head, whose passes are recorded and attend to the prefixes of all requests at once."""
    fused = _embedded("embedded-eagle3")
    assert isinstance(fused, HeadDrafter)
    return eagle_drafter(
        fused.modules[0],
        fused.hidden_layers,
        fused.nbytes,
        lambda head: HeadBackend(head, RecordedBackend(FusedBackend(head), Operations(), stand_in())),
    )


def _written(name: str, **fields: object) -> Drafter:
    """A random drafter of a format, of the sizes of the embedded target."""
    form = FORMATS[name].but(sizes={"H": HIDDEN, "T": HIDDEN, "V": VOCAB, "W": 64})
    with TemporaryDirectory() as folder:
        found = drafttree.load("embedded", form.write(Path(folder), **fields), dtype="float32", device="cpu").drafter
    assert found
    return found


def _deep_mtp() -> Drafter:
    """Two MTP layers, which happen to be the same."""
    target = load_model("embedded", torch.float32, torch.device("cpu"))
    tensors = read_tensors(zoo.folder("embedded-mtp"))
    again = {name.replace("layers.0.", "layers.1."): tensor for name, tensor in tensors.items()}
    return mtp.FORMAT.load(tensors | again, read_config(zoo.folder("embedded-mtp")), target)


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
    "hydra": lambda: _written("Hydra"),
    "hydra++": lambda: _embedded("embedded-hydra"),
    "mtp": lambda: _embedded("embedded-mtp"),
    "mtp, two layers": _deep_mtp,
    "block": lambda: _written("DSpark, recurrent", num_target_layers=None, causal=True),
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
