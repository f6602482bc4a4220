"""Tree drafting inside transformers' `generate`: the public names of `drafttree.interfaces.transformers_generate`."""

from drafttree.interfaces.transformers_generate import TreeGenerate, generate

__all__ = ["TreeGenerate", "generate"]
