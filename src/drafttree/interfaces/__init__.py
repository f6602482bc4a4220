"""The command line, the terminal display and the function for transformers' `generate`."""

from drafttree.interfaces.transformers_generate import TreeGenerate, generate

__all__ = ["TreeGenerate", "generate"]
