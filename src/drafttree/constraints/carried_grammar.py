"""Grammars that one process compiles and another one uses.

xgrammar writes a compiled grammar as JSON in which every rule has a copy of the automaton of all rules. With many rules
it takes longer to write and read that than to compile, and the grammar that was read has twenty times the memory. So
such grammars are carried as they were parsed, and compiled again where they are used.
"""

from typing import Any, NamedTuple

from drafttree.constraints.grammar import Grammar
from drafttree.constraints.xgrammar_library import load_xgrammar

MOST_CARRIED = 4_000_000
"""Rules times characters of a parsed grammar that is carried compiled; its automata are some 10 MB of JSON."""


class CarriedGrammar(NamedTuple):
    """A grammar on its way from one process to another.

    Attributes:
        name: name in error messages.
        compiled: whether it is carried as it was compiled; else as it was parsed.
        text: xgrammar's JSON of it.
    """

    name: str
    compiled: bool
    text: str

    def unpack(self, vocabulary: Any) -> "CompiledGrammar":
        """The grammar in this process.

        Args:
            vocabulary: the `TokenizerInfo` that it was compiled for.
        """
        xgrammar = load_xgrammar()
        if self.compiled:
            found = xgrammar.CompiledGrammar.deserialize_json(self.text, vocabulary)
        else:
            parsed = xgrammar.Grammar.deserialize_json(self.text)
            found = xgrammar.GrammarCompiler(vocabulary, max_threads=1).compile_grammar(parsed)
        return CompiledGrammar(self.name, found, max(len(self.text), found.memory_size_bytes))


def pack(grammar: Grammar, vocabulary: Any, threads: int) -> CarriedGrammar:
    """Compile a grammar for another process.

    Args:
        grammar: the grammar.
        vocabulary: the `TokenizerInfo` to compile it for.
        threads: threads to compile it with.

    Raises:
        ConfigError: xgrammar cannot compile it.
    """
    compiled = grammar.compile_with(load_xgrammar().GrammarCompiler(vocabulary, max_threads=threads))
    written = str(grammar.parsed)
    if written.count("::=") * len(written) > MOST_CARRIED:
        return CarriedGrammar(grammar.name, compiled=False, text=grammar.parsed.serialize_json())
    return CarriedGrammar(grammar.name, compiled=True, text=compiled.serialize_json())


class CompiledGrammar(Grammar):
    """A grammar that is compiled already, for the only vocabulary and EOS tokens it is used with.

    Args:
        name: name in error messages.
        compiled: xgrammar's compiled grammar.
        nbytes: about the memory that it has.
    """

    def __init__(self, name: str, compiled: Any, nbytes: int) -> None:
        self.name, self._compiled, self.nbytes = name, compiled, nbytes

    def _compile(self, tokenizer: object, vocab_size: int, eos: tuple[int, ...]) -> Any:
        return self._compiled
