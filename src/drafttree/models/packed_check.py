"""Whether the layers of a module can be handed several requests at once, tried on small trees.

Layers that compute over neighbouring tokens cannot, for one.
"""

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from drafttree.models.base import Backend, Output
from drafttree.models.module_checks import logits_width
from drafttree.models.packed import forward_in_groups
from drafttree.models.probe import LEAVES, Probe, make_probes, relative_gap, segment_of, tolerance, tree_logits
from drafttree.models.segment import Segment


@torch.inference_mode()
def packs_alike(backend: Backend, module: PreTrainedModel, run: Callable[[list[Segment]], list[Output]]) -> bool:
    """Whether packed passes over trees behind prefixes of different lengths give the logits of passes over each.

    Args:
        backend: of the module; runs each tree on its own.
        run: a packed pass.
    """
    vocab = logits_width(module)
    probes = [each for probe in make_probes(module) for each in (probe, _shorter(probe).shifted(vocab))]
    alone = [tree_logits(backend, probe) for probe in probes]
    segments = [segment_of(backend, probe)._replace(wanted=slice(LEAVES[0], None)) for probe in probes]
    try:
        outputs = forward_in_groups(segments, lambda segment: segment.cache.long_rope, run)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a module raises that was made for other passes
        return False
    leaves = [leaf - LEAVES[0] for leaf in LEAVES]
    found = [output.logits[0, leaves].float() for output in outputs]
    return all(relative_gap(*pair) <= tolerance(module.dtype) for pair in zip(found, alone, strict=True))


def _shorter(probe: Probe) -> Probe:
    return probe._replace(prefix=probe.prefix[: len(probe.prefix) // 3])
