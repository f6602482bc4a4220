"""Grammars that a text must follow: the public names of `drafttree.constraints.grammar`."""

from drafttree.constraints.grammar import Grammar, ebnf, json_schema, regex, structural_tag

__all__ = ["Grammar", "ebnf", "json_schema", "regex", "structural_tag"]
