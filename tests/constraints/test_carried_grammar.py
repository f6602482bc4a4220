"""Grammars that are compiled in one process and used in another."""

import pytest
import torch
import xgrammar

from drafttree.constraints import carried_grammar, grammar
from drafttree.constraints.carried_grammar import pack
from drafttree.constraints.grammar import vocabulary_of
from drafttree.errors import ConfigError
from testing.tokenizers import words

LETTERS = ("<eos>", *'ab"{}:, ')
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a{1,200}$"}, "b": {"enum": ["b"]}}}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "parsed"])
def test_a_carried_grammar_allows_what_the_grammar_does(monkeypatch, compiled):
    monkeypatch.setattr(carried_grammar, "MOST_CARRIED", 10**9 if compiled else 0)
    made = grammar.json_schema(SCHEMA)
    tokenizer, vocab = words(*LETTERS), len(LETTERS)
    vocabulary = vocabulary_of(tokenizer, vocab, (0,))
    carried = pack(made, xgrammar.TokenizerInfo.deserialize_json(vocabulary.serialize_json()), 1)
    assert (carried.name, carried.compiled) == ("JSON schema", compiled)
    states = [each.new_state(tokenizer, vocab, (0,)) for each in (made, carried.unpack(vocabulary))]
    for letter in '{"a": "aaa", "b": "b"}':
        expected, found = (state.restrict([()], torch.zeros(1, vocab)) for state in states)
        assert torch.equal(expected, found)
        for state in states:
            state.commit(LETTERS.index(letter))


def test_a_grammar_of_many_rules_is_carried_as_it_was_parsed():
    vocabulary = vocabulary_of(words(*LETTERS), len(LETTERS), (0,))
    schema = {"type": "object", "properties": {f"name {place}": {} for place in range(250)}}
    assert not pack(grammar.json_schema(schema), vocabulary, 1).compiled
    assert pack(grammar.json_schema(SCHEMA), vocabulary, 1).compiled


def test_what_xgrammar_cannot_compile_is_refused_before_it_is_carried():
    vocabulary = vocabulary_of(words(*LETTERS), len(LETTERS), (0,))
    unchecked = grammar.Grammar("regex", lambda xgr: xgr.Grammar.from_regex("a{3000000000}"))
    with pytest.raises(ConfigError, match=r"xgrammar cannot compile the regex: .+"):
        pack(unchecked, vocabulary, 1)
