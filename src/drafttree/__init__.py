"""Tree speculative decoding: any drafter x any tree policy x any verifier, losslessly, on Hugging Face models.

import drafttree
decoder = drafttree.load()
print(decoder.generate("It was the best of times").text)
"""

from drafttree import drafters, exactness, hf, models, policies, verifiers
from drafttree.constraints import grammar
from drafttree.core import errors
from drafttree.core.errors import DraftTreeError
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, Layer, Verdict
from drafttree.engine.decoder import Decoder
from drafttree.engine.metrics import Metrics, SpeedupLaw
from drafttree.engine.request import Chunk, Generation
from drafttree.loading.load import load

__version__ = "0.1.0"

__all__ = [
    "Chunk",
    "Decoder",
    "DraftTree",
    "DraftTreeError",
    "Generation",
    "Layer",
    "Metrics",
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
