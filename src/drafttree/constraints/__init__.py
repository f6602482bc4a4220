"""Constraints on the text, applied along every path of a draft tree: generation options, processors, grammars."""
