"""EBNF grammars: what is written conforms, what conforms is accepted, and what is malformed is told with its place."""

import ast
import json
import random
import re

import pytest

from drafttree.constraints import grammar
from drafttree.errors import ConfigError
from testing.grammars import accepts, written

pytest.importorskip("llguidance")

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws  # a comment
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ("0" | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [1-9] [0-9]{0,1})? ws
ws     ::= "" | " " | "\n" [ \t]{0,3}
"""
ARITHMETIC = """
root ::= expr
expr ::= term (("+" | "-") term)*
term ::= factor
    (("*" | "//") factor)*
factor ::= [1-9] [0-9]* | "(" expr ")"
"""
LIST = 'root ::= item+\nitem ::= "- " [^\\r\\n]{1,9} "\\n"'
OVERLAPPING = 'root ::= [a-z]{0,3} "abc" | "a" "bc" "x" | "ab" tail{0,2}\ntail ::= "d" | "\\u00e9" | "\\U0001F600"'


def fullmatch(pattern):
    return lambda text: re.fullmatch(pattern, text, re.DOTALL)


WALKED = {
    JSON: json.loads,
    ARITHMETIC: lambda text: ast.parse(text, mode="eval"),
    LIST: fullmatch("(- [^\r\n]{1,9}\n)+"),
    OVERLAPPING: fullmatch("[a-z]{0,3}abc|abcx|ab[dé😀]{0,2}"),
    'root ::= "a" root "b" | "c"': fullmatch("a*cb*"),
    'root ::= word "," root | word\nword ::= word [a-c] | [x-z]': fullmatch("[x-z][a-c]*(,[x-z][a-c]*)*"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("text", WALKED, ids=["json", "arithmetic", "list", "overlapping", "nested", "loops"])
def test_whatever_is_written_conforms(text):
    draw, made = random.Random(0), grammar.ebnf(text)
    for _ in range(200):
        assert WALKED[text](written(made, draw)) not in (None, False)


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        (JSON, '{"a": [1, {"b": "x\\n"}, -2.5e1, null] }', '{"a": [1,]}'),
        (ARITHMETIC, "1+2*(34-5)", "1+"),
        (LIST, "- a\n- b\n", "- a"),
        (OVERLAPPING, "xxabc", "ab😁"),
        ('root ::= "a" . "b"', "aéb", "a\nb"),
        ("root ::= [^a-c]", "é", "a"),
        (r'root ::= "\x41\u0042\"\\/"', 'AB"\\/', "AB"),
        ('root ::= ("a" | "b" "c"){2}', "abc", "a"),
        ('root ::= "a"{2,} "b"?', "aaab", "ab"),
        ('root ::= x-y\nx-y ::= "a"', "a", "b"),
        ('root ::=\n  "a" |\n  "b"', "b", "c"),
        (r"root ::= [\]\-/\[a&&b]+", "]-/[&ab", "c"),
        ('root ::= "" | "a"', "", "b"),
        ('root ::= [a-z ] root | ""', "a b" * 300, "aB"),
        ('root ::= root "a" | root "b" | "x"', "xab", "ax"),
        ('root ::= root* "a" | "b"', "bba", "ab"),
    ],
)
def test_texts_are_accepted_as_the_grammar_says(text, good, bad):
    made = grammar.ebnf(text)
    assert accepts(made, good)
    assert not accepts(made, bad)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('root ::= "a', "unexpected '\"' at line 1, column 10"),
        ('root ::= ("a"', "a parenthesis is not closed at line 1, column 10"),
        ('root ::= "a")', r"unexpected '\)' at line 1, column 13"),
        ('root ::= "a"\nroot ::= "b"', "the rule root is there twice at line 2, column 1"),
        ('root ::= "a"\n+ x ::= *', r"'\*' has nothing before it to repeat at line 2, column 9"),
        ('"a"', "expected a rule such as root ::= ..., not '\"a\"' at line 1, column 1"),
        (r'root ::= "\q"', r"'\\\\q' is not an escape at line 1, column 10"),
        (r'root ::= "\U00110000"', r"\\U00110000 is not a character at line 1, column 10"),
        (r'root ::= "\U0000d800"', r"\\U0000d800 is not a character at line 1, column 10"),
        ("root ::= r0\n" + "\n".join(f"r{at} ::= r{at + 1}" for at in range(9_999)), "it has more than 5000 rules"),
        ('root ::= "a"{3,2}', r"'\{3,2\}' ends before it begins"),
        ("root ::= []", "ambiguous among regex dialects"),
        ("root ::= " + "(" * 5000, "(nested too deeply|not closed)"),
    ],
)
def test_malformed_grammars_are_told_with_their_place(text, words):
    with pytest.raises(ConfigError, match="^invalid EBNF grammar: .*" + words):
        grammar.ebnf(text)
