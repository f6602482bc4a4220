"""The last check before a model is trusted: a small tree, scored both ways."""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.models.base import append
from drafttree.models.cuda_graphs import CudaGraphs
from drafttree.models.fused import LeanModel, fits
from drafttree.models.huggingface import HuggingFaceModel
from drafttree.models.recorded import StaticModel
from drafttree.models.tree_attention import NoTreeError

TOKENS = (1, 2, 3, 4, 5, 6)
PARENTS = (-1, 0, 0, 1, 2)
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
LEAN_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
REDUCED = 0.1

_verified: WeakKeyDictionary[PreTrainedModel, tuple[torch.dtype, torch.device]] = WeakKeyDictionary()


def wrap(module: PreTrainedModel) -> HuggingFaceModel:
    """Wrap a model after comparing a tree pass with the model's own logits along both of the tree's paths.

    Where a lean decoder fits the model and gives the same logits, it is preferred; on CUDA its passes are recorded.

    Raises:
        ModelError: the model has layers that cannot be verified in a tree, or its tree pass gives other logits.
    """
    model = HuggingFaceModel(module)
    own = _verify(model)
    if not fits(model):
        return model
    allowed = LEAN_TOLERANCE.get(model.dtype, REDUCED)
    lean = LeanModel(model)
    if _gap(lean, own) > allowed:
        return model
    if model.device.type != "cuda":
        return lean
    recorded = StaticModel(lean, CudaGraphs(model.device))
    return recorded if _repeats(recorded, own, allowed) else lean


def verify_once(model: HuggingFaceModel) -> None:
    """Compare a model's tree pass with its own logits, unless that was done with its dtype and device before.

    Raises:
        ModelError: as for `wrap`.
    """
    place = (model.dtype, model.device)
    if _verified.get(model.module) != place:
        _verify(model)
        _verified[model.module] = place


def _verify(model: HuggingFaceModel) -> Tensor:
    """The model's own logits, which its tree pass has given too; a model that is refused is released."""
    model.release()
    own = _own_logits(model)
    if not own.isfinite().all():
        raise ModelError(f"{type(model.module).__name__} computes no finite logits; its weights may be damaged")
    if reason := _objection(model, own):
        model.release()
        raise ModelError(f"{type(model.module).__name__} cannot be verified in a tree: {reason}")
    return own


def _objection(model: HuggingFaceModel, own: Tensor) -> str | None:
    """Why a model's tree pass cannot be trusted; None if it can."""
    try:
        gap = _gap(model, own)
    except NoTreeError:
        return "its attention layers do not pass the tree on"
    except (ModelError, RuntimeError, TypeError, ValueError) as error:
        return str(error)
    allowed = TOLERANCE.get(model.dtype, REDUCED)
    return None if gap <= allowed else f"its logits there differ by {gap:.3g} from its own"


def _gap(model: HuggingFaceModel, own: Tensor) -> float:
    """The largest difference from the module's own logits, relative to the largest of them if that is above 1."""
    return float((_tree_logits(model) - own).abs().max()) / max(float(own.abs().max()), 1.0)


def _repeats(recorded: StaticModel, own: Tensor, allowed: float) -> bool:
    """Whether passes that were recorded on other tokens give the module's logits when they are repeated."""
    _tree_logits(recorded, shift=1)
    return _gap(recorded, own) <= allowed


def _tokens(vocab: int) -> list[int]:
    return [token % vocab for token in TOKENS]


@torch.inference_mode()
def _own_logits(model: HuggingFaceModel) -> Tensor:
    """`[2, vocab]` at the end of both paths, by the untouched model."""
    first, root, left, right, below_left, below_right = _tokens(model.vocab_size)
    paths = torch.tensor([[first, root, left, below_left], [first, root, right, below_right]], device=model.device)
    return model.module(input_ids=paths, use_cache=False).logits[:, -1].float()


@torch.inference_mode()
def _tree_logits(model: HuggingFaceModel, shift: int = 0) -> Tensor:
    """`[2, vocab]` at the two leaves of the tree, whose tokens may be other ones."""
    tokens = [(token + shift) % model.vocab_size for token in _tokens(model.vocab_size)]
    cache = model.new_cache(1, len(tokens))
    append(model, cache, tokens[:1])
    visible = torch.eye(len(PARENTS), dtype=torch.bool, device=model.device)
    for node, parent in enumerate(PARENTS[1:], start=1):
        visible[node] |= visible[parent]
    ids = torch.tensor([tokens[1:]], device=model.device)
    positions = visible.sum(1)[None]
    return model.forward(cache, ids, positions, visible[None]).logits[0, -2:].float()
