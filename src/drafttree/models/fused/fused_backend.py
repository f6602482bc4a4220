"""The backend that runs decoders of the known families on fused layers, with fewer operations and less Python.

The time of a pass over a small model is mostly overhead: a transformers layer runs some thirty operations under a dozen
Python frames. Here a layer is a dozen operations on fused weights (query, key and value; gate and up). They are
the module's own: its parameters become views of them, and the module keeps working.
`drafttree.models.backend_choice.choose_backend` compares the two before it prefers this one.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from drafttree.models.families import Architecture, why_not_known
from drafttree.models.fused.decoder_backend import DecoderBackend
from drafttree.models.fused.fused_layer import FusedLayer, NormCall
from drafttree.models.fused.fused_linear import FusedProduct, fuse
from drafttree.models.fused.pass_inputs import PassInputs
from drafttree.models.module.module_checks import decoder_of
from drafttree.models.module.plain_module import why_not_plain
from drafttree.models.norms import norm_call
from drafttree.models.segment import Segment


class FusedBackend(DecoderBackend):
    """Runs fused layers. See `DecoderBackend`.

    Args:
        module: a model for which `why_not_fused` returns None, or a draft head that describes itself.
    """

    name = "FusedBackend"

    def make_layers(self, architecture: Architecture) -> Sequence[FusedLayer]:
        return [FusedLayer(block, index) for index, block in enumerate(architecture.blocks)]

    def make_layer_inputs(self, architecture: Architecture) -> Callable[[Tensor, Tensor], Tensor | None]:
        """See `DecoderBackend`; the module computes them."""
        if architecture.layer_inputs is None:
            return lambda tokens, x: None
        decoder = architecture.layer_inputs.decoder
        return lambda tokens, x: decoder.project_per_layer_inputs(x[None], decoder.get_per_layer_inputs(tokens))[0]

    def make_norm(self, norm: Any) -> NormCall:
        return (lambda x: x) if norm is None else norm_call(norm)

    def make_product(self, layer: Any) -> FusedProduct:
        return fuse(layer)

    def make_inputs(self, segments: Sequence[Segment], states: Tensor) -> PassInputs:
        return PassInputs.of(segments, states)


def why_not_fused(module: Any) -> str | None:
    """Why fused layers cannot stand in for a module: its family, layers, hooks or devices; None if they can."""
    if reason := why_not_known(module.config):
        return reason
    if {parameter.device for parameter in module.parameters()} != {module.device}:
        return "its weights are on several devices"
    is_wrapped = isinstance(module, PreTrainedModel) and module.config.get_text_config() is not module.config
    if not is_wrapped:
        return why_not_plain(module)
    head = module.get_output_embeddings()  # text does not pass through the encoders of images
    return why_not_plain(module, decoder_of(module)) or why_not_plain(module, head)
