"""Tree speculative decoding: any drafter x any tree policy x any verifier, losslessly, on Hugging Face models.

import drafttree
decoder = drafttree.load()
print(decoder.generate("It was the best of times").text)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drafttree import drafters, errors, exactness, grammar, hf, models, policies, verifiers
    from drafttree.core import DraftTree, Layer, Proposal, Sampling, Verdict
    from drafttree.core.cost_curve import CostCurve
    from drafttree.core.errors import DraftTreeError
    from drafttree.engine import Chunk, Decoder, Engine, Generation, Handle, Metrics
    from drafttree.engine.generation import Fidelity
    from drafttree.engine.generation_options import GenerationOptions
    from drafttree.loading.load import load
    from drafttree.measure.law import SpeedupLaw

__version__ = "0.1.0"

__all__ = [
    "Chunk",
    "CostCurve",
    "Decoder",
    "DraftTree",
    "DraftTreeError",
    "Engine",
    "Fidelity",
    "Generation",
    "GenerationOptions",
    "Handle",
    "Layer",
    "Metrics",
    "Proposal",
    "Sampling",
    "SpeedupLaw",
    "Verdict",
    "drafters",
    "errors",
    "exactness",
    "grammar",
    "hf",
    "load",
    "models",
    "policies",
    "verifiers",
]

_HOMES = [
    f"drafttree.{name}"
    for name in (
        "core",
        "core.errors",
        "core.cost_curve",
        "engine",
        "engine.generation",
        "engine.generation_options",
        "loading.load",
        "measure.law",
    )
]


def __getattr__(name: str) -> Any:
    # not before: the command answers Ctrl-C as soon as this file is read
    from drafttree.core.lazy import lazy_door
    from drafttree.core.requirements import check_requirements

    check_requirements("drafttree")
    return lazy_door(__name__, __all__, _HOMES)(name)


def __dir__() -> list[str]:
    return __all__
