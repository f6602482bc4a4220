"""Multi-token-prediction (MTP) layers, which come with the target's own checkpoint, for `HeadDrafter`.

An MTP layer is a decoder layer of the target's class. Instead of an embedding, it reads a projection of a token's
embedding and a hidden state. Its output goes through its own norm to the target's output layer: h = norm(block(eh_proj(
[enorm(embedding); hnorm(state)]))) (DeepSeek-V3, arXiv 2412.19437, section 2.2). So it runs as a language model of one
layer whose embedding also reads a state.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.drafters.base import HiddenStates, as_tensor
from drafttree.drafters.head import HeadDrafter, split_by_segment
from drafttree.drafters.head_chain import HeadChainDrafter
from drafttree.drafters.ranked_logits import DraftLogits, logits_of
from drafttree.drafters.target_parts import last_layer, own_bytes, zero_hidden
from drafttree.models import Segment, TargetModel, TreeCache
from drafttree.models.backend_choice import choose_backend
from drafttree.models.segment import join


class MtpLayer:
    """Runs an MTP layer; see `drafttree.drafters.head.Head`.

    Args:
        module: a language model of the target's class: its embedding an `MtpEmbedding`, its head the target's.

    Attributes:
        model: the module on its fastest backend.
    """

    def __init__(self, module: PreTrainedModel) -> None:
        self.model = TargetModel(module, choose_backend)
        self._embedding: Any = module.get_input_embeddings()
        self._output = (last_layer(module),)

    def new_cache(self, capacity: int) -> TreeCache:
        return self.model.new_cache(capacity)

    def fuse(self, hidden_states: HiddenStates) -> Tensor:
        return hidden_states[0]

    def __call__(self, segments: Sequence[Segment], states: Tensor) -> tuple[DraftLogits, Tensor]:
        if len(segments) > 1 and not self.model.shares_passes:
            logits_by_segment = list[Tensor]()
            states_by_segment = list[Tensor]()
            for segment, segment_states in zip(segments, split_by_segment(states, segments), strict=True):
                logits, next_states = self([segment], segment_states)
                logits_by_segment.append(as_tensor(logits, states.device))
                states_by_segment.append(next_states)
            return join(logits_by_segment, 0), join(states_by_segment)
        self._embedding.states = states
        try:
            outputs = self.model.forward(segments, hidden_layers=self._output)
        finally:
            self._embedding.states = None
        return logits_of(outputs), join([output.hidden[0] for output in outputs])

    @property
    def draft_chains(self) -> Any:
        """The backend's function that drafts chains in one call; None if it has none."""
        return getattr(self.model.backend, "draft_chains", None)


def mtp_drafter(modules: Sequence[PreTrainedModel], target: PreTrainedModel) -> HeadDrafter:
    """Make the drafter of MTP layers, each given as `MtpLayer` takes it."""
    layers = [MtpLayer(module) for module in modules]
    nbytes = own_bytes(nn.ModuleList(modules), target)
    vocab = layers[0].model.vocab_size
    drafter_class = HeadDrafter if len(layers) == 1 else HeadChainDrafter
    return drafter_class("mtp", layers, (last_layer(target),), (zero_hidden(target),), vocab, nbytes)
