"""Grammars at every node, compared with brute force by `re` and with one token at a time; and their errors."""

import copy
import functools
import gc
import itertools
import json
import math
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import drafttree
from drafttree import Decoder
from drafttree.constraints import grammar, lark
from drafttree.errors import ConfigError
from drafttree.evaluation.certify import certify
from drafttree.measure.reference import transformers_generate
from drafttree.policies import Chain, DynaTree, Eagle, Talon, Template
from drafttree.verifiers import RRS, LossyTypical, PointMass, RRSw, Traversal
from testing.grammars import accepts
from testing.toy import Table, ToyDrafter, ToyModel

llguidance = pytest.importorskip("llguidance")

PIECES = ["<eos>", "a", "b", "c", "ab", "bc", "ca", "cab"]
VOCAB, EOS, PROMPT = len(PIECES), 0, [1, 2, 3]
PATTERNS = ["(ab|c)*", "a(bc?)+", "[ab]{2,5}c?", "(a|ab)(c|bca?){1,2}", "c(a|b|c)"]
LENGTH = 8
TARGET = Table(VOCAB, seed=4, scale=1.0)
DRAFT = TARGET.blurred(0.7)
POLICIES = {
    "chain": Chain(depth=4),
    "binary": Template(tree="binary-2"),
    "dynatree": DynaTree(base_depth=3, max_depth=4, budget=20),
    "talon": Talon(width=3, margin=0.1, budget=12),
    "eagle": Eagle(depth=3, top_k=3, budget=10),
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "moods": {"type": "array", "items": {"enum": ["glad", "sad"]}, "maxItems": 2},
    },
    "required": ["name", "age", "moods"],
}


@pytest.fixture(scope="module")
def tokenizer():
    model = WordLevel({piece: index for index, piece in enumerate(PIECES)}, unk_token="<eos>")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), eos_token="<eos>")


@pytest.fixture(scope="module")
def embedded():
    return drafttree.load(dtype="float32")


def spell(tokens) -> str:
    return "".join(PIECES[token] for token in tokens)


@functools.cache
def is_prefix_of_a_match(pattern: str, text: str) -> bool:
    """Whether some match of the pattern begins with the text; these patterns need at most three more letters."""
    ends = ("".join(word) for size in range(4) for word in itertools.product("abc", repeat=size))
    return any(re.fullmatch(pattern, text + end) for end in ends)


def allowed(pattern: str, path: tuple[int, ...]) -> list[bool]:
    """Which tokens may follow a path, found by searching for a match that begins with it."""
    text = spell(path)
    return [bool(re.fullmatch(pattern, text)), *(is_prefix_of_a_match(pattern, text + piece) for piece in PIECES[1:])]


def decoder(tokenizer, policy, verifier=None) -> Decoder:
    return Decoder(ToyModel(TARGET, VOCAB), ToyDrafter(DRAFT, VOCAB), policy, verifier, tokenizer, eos=(EOS,))


short_paths = st.lists(st.lists(st.integers(1, VOCAB - 1), max_size=2).map(tuple), min_size=1, max_size=12)


@settings(max_examples=60)
@given(pattern=st.sampled_from(PATTERNS), committed=st.lists(st.integers(1, VOCAB - 1), max_size=1), paths=short_paths)
def test_masks_after_a_path_equal_brute_force(tokenizer, pattern, committed, paths):
    state = grammar.regex(pattern).new_state(tokenizer, VOCAB, (EOS,))
    for place, token in enumerate(committed):
        if not allowed(pattern, tuple(committed[:place]))[token]:
            return
        state.restrict(paths, torch.zeros(len(paths), VOCAB))  # a look ahead may end anywhere, or in a forbidden token
        state.commit(token)
    logits = state.restrict(paths, torch.zeros(len(paths), VOCAB))
    for path, row in zip(paths, logits, strict=True):
        steps = range(len(path))
        legal = all(allowed(pattern, (*committed, *path[:at]))[path[at]] for at in steps)
        expected = allowed(pattern, (*committed, *path)) if legal else [True] * VOCAB
        assert (row == 0).tolist() == expected


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_greedy_writes_what_one_token_at_a_time_writes(tokenizer, policy, pattern):
    tokens: list[int] = []
    while len(tokens) < LENGTH and EOS not in tokens:
        logits = torch.tensor(TARGET([*PROMPT, *tokens]))
        possible = torch.tensor(allowed(pattern, tuple(tokens)))
        tokens.append(int(logits.masked_fill(~possible, -math.inf).argmax()))
    options = {"max_new_tokens": LENGTH, "grammar": grammar.regex(pattern)}
    assert decoder(tokenizer, policy).generate(PROMPT, **options).tokens == tokens


@pytest.mark.parametrize("verifier", [None, PointMass, RRS, RRSw, Traversal])
def test_sampled_texts_follow_the_grammar(tokenizer, verifier):
    pattern = PATTERNS[3]
    made, wanted = decoder(tokenizer, POLICIES["binary"], verifier), grammar.regex(pattern)
    for seed in range(12):
        out = made.generate(PROMPT, max_new_tokens=LENGTH, temperature=1.0, seed=seed, grammar=wanted)
        assert out.finish_reason == "stop"
        assert out.tokens[-1] == EOS
        assert re.fullmatch(pattern, spell(out.tokens[:-1]))


def test_a_grammar_is_used_for_many_texts_and_compiled_once(tokenizer, monkeypatch):
    wanted, made = grammar.regex("(ab|bc){2}"), decoder(tokenizer, POLICIES["talon"])
    first = made.generate(PROMPT, max_new_tokens=9, grammar=wanted).tokens
    monkeypatch.setattr(llguidance, "LLMatcher", None)
    assert made.generate(PROMPT, max_new_tokens=9, grammar=wanted).tokens == first


def test_of_long_grammars_few_stay_compiled(tokenizer):
    """What one holds is never given back otherwise."""
    for place in range(8):
        grammar.regex(f"(a|b|c){{{place + 1}}}|{'a' * grammar.LONG}").new_state(tokenizer, VOCAB, (EOS,))
    gc.collect()
    kept = [each for each in gc.get_objects() if isinstance(each, grammar.CompiledGrammar)]
    assert 1 <= sum(len(each._text) > grammar.LONG for each in kept) <= 3


def test_a_tree_costs_one_mask_per_node(tokenizer, monkeypatch):
    asked = []
    mask = grammar.GrammarState._mask
    monkeypatch.setattr(grammar.GrammarState, "_mask", lambda *arguments: asked.append(1) or mask(*arguments))
    out = decoder(tokenizer, POLICIES["eagle"]).generate(PROMPT, max_new_tokens=20, grammar=grammar.regex("(a|b|c)+"))
    assert len(asked) <= 1 + sum(round_.nodes for round_ in out.metrics.rounds)


def test_drafted_tokens_follow_the_grammar(tokenizer):
    """The drafter's most probable token is never allowed, yet its drafted tokens are accepted."""

    def law(prefix):
        return [9.0 if token == 3 else float(token == 1 + len(prefix) % 2) for token in range(VOCAB)]

    made = Decoder(ToyModel(law, VOCAB), ToyDrafter(law, VOCAB), Chain(depth=4), None, tokenizer, eos=(EOS,))
    out = made.generate([1], max_new_tokens=10, grammar=grammar.regex("[ab]+"))
    assert spell(out.tokens) == "ab" * 5 or spell(out.tokens) == "ba" * 5
    assert [round_.committed for round_ in out.metrics.rounds] == [5, 5]


def test_processors_come_before_the_grammar(tokenizer):
    """As in transformers, where custom processors, among them those of grammars, run last before the warpers."""
    seen = []

    def look(input_ids, scores):
        seen.append(bool(scores.isfinite().all()))
        return scores.roll(1, -1)

    options = {"max_new_tokens": 4, "grammar": grammar.regex("[ab]{4}"), "logits_processor": [look]}
    made = decoder(tokenizer, POLICIES["binary"])
    tokens = made.generate(PROMPT, **options).tokens
    assert tokens == made.plain().generate(PROMPT, **options).tokens
    assert re.fullmatch("[ab]{1,4}", spell(token for token in tokens if token != EOS))
    assert seen
    assert all(seen)


@pytest.mark.few(1)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_json_of_the_embedded_model_follows_its_schema(embedded, temperature):
    wanted = grammar.json_schema(SCHEMA)
    for seed in range(4):
        out = embedded.generate("Write: ", max_new_tokens=60, temperature=temperature, seed=seed, grammar=wanted)
        said = json.loads(out.text)
        assert list(said) == ["name", "age", "moods"]
        assert len(said["name"]) <= 6
        assert 0 <= said["age"] <= 120
        assert set(said["moods"]) <= {"glad", "sad"}
        assert json.dumps(said, ensure_ascii="\\u" in out.text) == out.text or "\\" in out.text


def test_greedy_is_transformers_generate_with_a_processor_for_the_grammar(embedded):
    ids = embedded.tokenizer("The old man said")["input_ids"]
    for wanted in (grammar.json_schema(SCHEMA), grammar.regex(" [a-z]+( [a-z]+){3}[.]")):
        options = {"max_new_tokens": 30, "grammar": wanted, "repetition_penalty": 1.2}
        expected = transformers_generate(embedded, ids, **options).tokens
        assert embedded.generate(ids, **options).tokens == expected
    assert certify(embedded, ["Once", "The sea"], ["talon"], max_new_tokens=20, grammar=wanted).passed


def test_a_certificate_finds_a_text_that_leaves_the_grammar(embedded, monkeypatch):
    """If the grammar is not applied at the nodes, only the reference follows it."""
    monkeypatch.setattr(
        drafttree.engine.decoder.PathConstraints, "score", lambda self, tokens, tree, logits: (logits, {})
    )
    monkeypatch.setattr(grammar.GrammarState, "commit", lambda *_: None)
    certificate = certify(embedded, ["Once"], ["chain"], max_new_tokens=8, grammar=grammar.regex("[0-9]{4}"))
    (difference,) = certificate.policies[-1].differences.values()
    assert difference.position == 0
    assert not certificate.passed


def test_schemas_may_be_text_dictionaries_or_models(embedded):
    class Mood(BaseModel):
        glad: bool

    for schema in (Mood, Mood.model_json_schema(), json.dumps(Mood.model_json_schema())):
        out = embedded.generate("Say: ", max_new_tokens=20, grammar=grammar.json_schema(schema))
        assert out.text in ('{"glad": true}', '{"glad": false}')


def test_a_grammar_may_be_given_by_its_notation(embedded):
    class Mood(BaseModel):
        glad: bool

    notations = {"json_schema": Mood, "regex": "[0-9]{4}", "ebnf": 'root ::= "yes" | "no"'}
    for name, notation in notations.items():
        options = {"max_new_tokens": 20, "temperature": 1.0, "seed": 3}
        made = embedded.generate("Say: ", grammar=getattr(grammar, name)(notation), **options)
        assert embedded.generate("Say: ", **{name: notation}, **options).tokens == made.tokens
        assert embedded.with_defaults(regex="x").generate("Say: ", **{name: notation}, **options).tokens == made.tokens
    free = embedded.with_defaults(regex="x").generate("Say: ", regex=None, **options)
    assert free.tokens == embedded.generate("Say: ", **options).tokens


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"json_schema": {}, "regex": "a"}, "json_schema and regex are given, but a text can follow only one grammar"),
        ({"grammar": "a", "ebnf": "a"}, "grammar and ebnf are given"),
        ({"json_schema": {"type": "nope"}}, "Invalid type: nope"),
        ({"regex": 5}, "regex is 5; give a string"),
        ({"regex": "a", "ignore_eos": True}, "leave out ignore_eos"),
    ],
)
def test_a_wrong_notation_is_refused(embedded, options, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        embedded.generate("Say: ", **options)


def test_a_schema_may_begin_with_a_byte_order_mark(embedded):
    wanted = grammar.json_schema('\ufeff{"const": "sea"}')
    assert embedded.generate("Say: ", max_new_tokens=20, grammar=wanted).text == '"sea"'


def test_ebnf(embedded):
    wanted = grammar.ebnf('root ::= "yes" | "no" more\nmore ::= "!"? "."')
    out = embedded.generate("Really?", max_new_tokens=30, temperature=1.0, grammar=wanted)
    assert re.fullmatch(r"yes|no!?\.", out.text)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: grammar.json_schema({"type": "strng"}), "invalid JSON schema: Invalid type: strng at #"),
        (lambda: grammar.json_schema('{\n"a": }'), "invalid JSON schema: Expecting value at line 2, column 6"),
        (lambda: grammar.json_schema({"enum": {1}}), "invalid JSON schema: .*set is not JSON serializable"),
        (lambda: grammar.json_schema({1, 2}), "text, a dictionary or a pydantic model, not set"),  # pyright: ignore
        (lambda: grammar.json_schema(3), "text, a dictionary or a pydantic model, not int"),  # pyright: ignore
        (lambda: grammar.json_schema(int), "text, a dictionary or a pydantic model, not int"),  # pyright: ignore
        (lambda: grammar.regex(5), "regex is of type int"),  # pyright: ignore
        (lambda: grammar.regex("a\ud800"), "lone surrogate"),
        (lambda: grammar.json_schema({"const": "\ud800"}), "invalid JSON schema: it has a lone surrogate"),
        (
            lambda: grammar.json_schema('{"properties": {"\\udfff": {}}}'),
            "invalid JSON schema: it has a lone surrogate",
        ),
        (lambda: grammar.ebnf(None), "EBNF grammar is of type NoneType"),  # pyright: ignore
        (lambda: grammar.json_schema({"enum": []}), "invalid JSON schema: Unsatisfiable schema: anyOf is empty at #"),
        (lambda: grammar.json_schema("false"), "Unsatisfiable schema: schema is false"),
        (
            lambda: grammar.json_schema({"minimum": 3, "maximum": 1, "type": "integer"}),
            "'minimum' 3 above 'maximum' 1",
        ),
        (lambda: grammar.regex("a("), r"invalid regex 'a\(': .*unclosed group"),
        (lambda: grammar.regex("(?=a)"), r"'\(\?=a\)' at position 0 looks ahead or behind"),
        (lambda: grammar.regex(r"a\Z"), r"unrecognized escape"),
        (lambda: grammar.regex(r"a\ud83d"), r"\\ud83d is half a surrogate pair"),
        (lambda: grammar.ebnf(r'root ::= "\ude00"'), r"\\ude00 is half a surrogate pair"),
        (
            lambda: grammar.ebnf('root ::= "a" other'),
            '"other" is not defined at line 1, column 14',
        ),
        (lambda: grammar.ebnf('main ::= "a"'), '"root" is not found'),
        (lambda: grammar.ebnf("root ::= é"), "invalid EBNF grammar: unexpected 'é' at line 1, column 10"),
    ],
)
def test_malformed_grammars_are_refused_before_a_model_is_loaded(make, words):
    with pytest.raises(ConfigError, match=words) as error:
        make()
    assert "\n" not in str(error.value)
    assert "cpp" not in str(error.value)


WRAPPING = [
    "{4294967297}",
    "{0,4294967297}",
    "{2147483648,}",
    "{ 1 , 4294967297 }",
    "{0,0004294967297}",
    "{" + "9" * 5000 + "}",
]


@pytest.mark.parametrize("bounds", WRAPPING)
def test_repetitions_beyond_32_bits_are_refused(bounds):
    parts = {"type": "sequence", "elements": [{"type": "regex", "pattern": f"a{bounds}"}]}
    for make in (
        lambda: grammar.regex(f'"(a|[b]){bounds}"'),
        lambda: grammar.regex(f"a{bounds}?"),
        lambda: grammar.ebnf(f'root ::= "a\\"" other{bounds} # {{1}}\nother ::= "b"'),
        lambda: grammar.structural_tag(parts),
        lambda: grammar.structural_tag({"type": "grammar", "grammar": f"root ::= [a-z]{bounds}"}),
    ):
        with pytest.raises(ConfigError, match="repeats more than 2147483647 times; lower its bounds"):
            make()


def test_braces_that_repeat_nothing_are_texts(embedded):
    for wanted in (
        grammar.regex(r"\{4294967297\}[{4294967297}]"),
        grammar.ebnf('root ::= "{4294967297}{" # {4294967297}'),
        grammar.ebnf("root ::= [^{0,4294967297}] [{0,4294967297}]"),
    ):
        assert embedded.generate("So:", grammar=wanted, max_new_tokens=20).finish_reason == "stop"
    assert accepts(grammar.regex("a{0,2147483647}"), "aaa")


@pytest.mark.parametrize("schema", [{"const": "Grüße"}, {"type": "object", "properties": {"größe": {"const": 1}}}])
def test_letters_of_latin_1_before_hexadecimal_digits_stay_what_they_are(embedded, schema):
    made = grammar.json_schema({**schema, **({"required": ["größe"]} if "type" in schema else {})})
    text = embedded.generate("A word:", grammar=made, max_new_tokens=40).text
    assert json.loads(text) in ("Grüße", {"größe": 1})


def tagged(schema: object) -> dict:
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": "<call>", "content": content, "end": "</call>"}


def test_tagged_parts_of_a_text_follow_their_schemas(embedded):
    calls = {"type": "tags_with_separator", "tags": [tagged({"enum": ["left", "right"]})], "separator": ", "}
    made = grammar.structural_tag({**calls, "at_least_one": True})
    text = embedded.generate("Which way?", grammar=made, max_new_tokens=40).text
    assert re.match(r'(<call>"(left|right)"</call>(, |$))+', text)


def test_a_schema_of_a_tagged_part_is_refused_where_it_cannot_be_enforced():
    with pytest.raises(ConfigError, match="'not' at # cannot be enforced"):
        grammar.structural_tag({"type": "or", "elements": [tagged({"not": {}})]})


def test_the_bytes_of_tokens_spell_a_text_whose_characters_are_split(embedded):
    text = "Grüße, 你好 🎉"
    pieces = grammar.token_bytes(embedded.tokenizer, embedded.target.vocab_size)
    spelled = [pieces[token] for token in embedded.tokenizer(text)["input_ids"]]
    assert b"".join(spelled).decode() == text
    assert any(piece.decode(errors="replace").encode() != piece for piece in spelled)


def test_the_vocabulary_is_spelled_once_where_many_ask_for_it_at_once(embedded, monkeypatch):
    spell, spelled = grammar.spell, []
    monkeypatch.setattr(grammar, "spell", lambda tokenizer: spelled.append(time.sleep(0.1)) or spell(tokenizer))
    tokenizer, vocab = copy.copy(embedded.tokenizer), embedded.target.vocab_size
    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(lambda _: grammar.token_bytes(tokenizer, vocab), range(4))
    assert len(spelled) == 1
    assert all(each is first for each in others)


@pytest.mark.parametrize("most", [128, 129, 200])
def test_patterns_of_schemas_repeat_as_often_as_they_say(most):
    schema = {
        "type": "object",
        "patternProperties": {f"^a{{1,{most}}}$": {"type": "string", "pattern": f"^a{{{most}}}$"}},
    }
    vocab = ["<eos>", "a", '"', "{", "}", ": "]
    spelled = WordLevel({piece: index for index, piece in enumerate(vocab)}, unk_token="<eos>")
    letters = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(spelled), eos_token="<eos>")
    state = grammar.json_schema(schema).new_state(letters, len(vocab), (0,))

    def following() -> list[str]:
        row = state.restrict([()], torch.zeros(1, len(vocab)))[0]
        return [vocab[token] for token in row.isfinite().nonzero().flatten()]

    for piece in ["{", '"', *["a"] * most]:
        assert piece in following()
        state.commit(vocab.index(piece))
    assert following() == ['"']
    for piece in ['"', ": ", '"', *["a"] * most, '"', "}", "<eos>"]:
        assert following() == [piece]
        state.commit(vocab.index(piece))


@pytest.mark.few(1)
@pytest.mark.parametrize("pattern", ["^.{100,400}$", r"^[^x]{1,200}$", r"^([^x]|y){0,300}$"])
def test_texts_of_patterns_that_repeat_often_are_json(embedded, pattern):
    made = grammar.json_schema({"type": "string", "pattern": pattern})
    for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 1}):
        text = json.loads(embedded.generate('He said: "', grammar=made, max_new_tokens=500, **options).text)
        assert re.fullmatch(pattern, text, re.DOTALL)


@pytest.mark.parametrize("pattern", ["", "()", "xyz"])
def test_a_grammar_without_any_text_is_refused(tokenizer, pattern):
    made = decoder(tokenizer, POLICIES["chain"])
    with pytest.raises(ConfigError, match=r"regex .* allows no text after the prompt"):
        made.new_request(PROMPT, grammar=grammar.regex(pattern))
    with pytest.raises(ConfigError, match="EBNF grammar allows no text after the prompt"):
        made.new_request(PROMPT, grammar=grammar.ebnf("root ::= root"))


def test_a_position_where_no_token_fits_the_grammar_is_named(tokenizer):
    made = decoder(tokenizer, POLICIES["chain"])
    with pytest.raises(ConfigError, match="the grammar leaves no token possible at position 4"):
        made.generate(PROMPT, grammar=grammar.regex("ax"))
    banned = {"suppress_tokens": [3], "grammar": grammar.regex("aac")}
    with pytest.raises(ConfigError, match="together with the logits processors leaves no token possible at position 5"):
        made.generate(PROMPT, **banned)


def test_a_grammar_needs_tokenizer_and_eos(tokenizer):
    wanted = grammar.regex("a+")
    with pytest.raises(ConfigError, match="needs the target's tokenizer"):
        decoder(None, Chain()).new_request(PROMPT, grammar=wanted)
    with pytest.raises(ConfigError, match="needs an EOS token"):
        Decoder(ToyModel(TARGET, VOCAB), tokenizer=tokenizer).new_request(PROMPT, grammar=wanted)
    with pytest.raises(ConfigError, match="leave out ignore_eos"):
        decoder(tokenizer, Chain()).new_request(PROMPT, grammar=wanted, ignore_eos=True)


def test_a_lossy_verifier_keeps_to_the_grammar(tokenizer):
    made = decoder(tokenizer, POLICIES["binary"], LossyTypical)
    out = made.generate(PROMPT, max_new_tokens=12, temperature=1.0, grammar=grammar.regex("(abc){2,3}"))
    assert re.fullmatch("(abc){2,3}", spell(out.tokens[:-1]))


def test_a_grammar_can_be_copied_into_another_process(tokenizer):
    copied = copy.deepcopy(grammar.regex("ab"))
    state = copied.new_state(tokenizer, VOCAB, (EOS,))
    logits = state.restrict([()], torch.zeros(1, VOCAB))
    assert [PIECES[token] for token in logits[0].isfinite().nonzero().flatten()] == ["a", "ab"]


@pytest.mark.parametrize("pattern", ["a$b", "(a$)b", "a^", "(^a)*"])
def test_anchors_inside_are_refused(pattern):
    for make in (grammar.regex, lambda each: grammar.structural_tag({"type": "regex", "pattern": each})):
        with pytest.raises(ConfigError, match=r"lookarounds not supported yet; (Start|End) in regex"):
            make(pattern)


@pytest.mark.parametrize("committed", [0, 3])
def test_masks_of_a_recursive_grammar_equal_brute_force(tokenizer, committed):
    """Texts of `a` in brackets of `b` and `c`."""
    state = grammar.ebnf('root ::= "a" | "b" root "c"').new_state(tokenizer, VOCAB, (EOS,))
    texts = ["b" * depth + "a" + "c" * depth for depth in range(9)]
    for _ in range(committed):
        state.commit(PIECES.index("b"))
    paths = [path for size in range(4) for path in itertools.product(range(1, VOCAB), repeat=size)]
    rows = state.restrict(paths, torch.zeros(len(paths), VOCAB))
    for path, row in zip(paths, rows, strict=True):
        text = "b" * committed + spell(path)
        expected = [text in texts, *(any(each.startswith(text + piece) for each in texts) for piece in PIECES[1:])]
        legal = any(each.startswith(text) for each in texts)
        assert not legal or (row == 0).tolist() == expected, text


def test_a_token_that_spells_nothing_is_never_allowed():
    model = WordLevel({"<eos>": 0, "a": 1, "": 2, "<0x61>": 3}, unk_token="<eos>")
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), eos_token="<eos>")
    state = grammar.regex("a+").new_state(made, 5, (0,))
    assert state.restrict([()], torch.zeros(1, 5))[0].isfinite().tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("vocab", [VOCAB, 31, 32, 64, 65])
def test_rows_behind_forbidden_tokens_stay_as_they_are_whatever_the_size_of_the_vocabulary(tokenizer, vocab):
    state = grammar.regex("ab*").new_state(tokenizer, vocab, (EOS,))
    rows = state.restrict([(), (2,), (1,)], torch.zeros(3, vocab))
    assert rows.isfinite().sum(1).tolist() == [2, vocab, 2]


def test_where_masks_take_long_drafts_get_none_and_the_text_goes_on(embedded, monkeypatch):
    wanted, options = grammar.json_schema(SCHEMA), {"max_new_tokens": 40, "temperature": 0.0}
    usual = embedded.with_policy("talon").generate("Write: ", grammar=wanted, **options)
    monkeypatch.setattr("drafttree.constraints.grammar.time", TellingTime(step=0.001))
    slow = embedded.with_policy("talon").generate("Write: ", grammar=wanted, **options)
    assert slow.tokens == usual.tokens
    assert slow.metrics.tau < usual.metrics.tau


def test_a_text_whose_own_masks_take_long_ends_with_an_error(embedded, monkeypatch):
    monkeypatch.setattr("drafttree.constraints.grammar.time", TellingTime(step=0.02))
    with pytest.raises(ConfigError, match=r"takes too much to follow \(more than 1.1 ms for a token\)"):
        embedded.generate("Write: ", grammar=grammar.json_schema(SCHEMA), max_new_tokens=40)


@pytest.fixture
def eager_collections():
    """Garbage is collected whenever anything is made; what is in the list is called."""
    usual, calls = gc.get_threshold(), []
    callbacks = [*gc.callbacks]
    gc.callbacks.append(lambda *_: [call() for call in calls])
    gc.set_threshold(1, 1, 1)
    yield calls
    gc.set_threshold(*usual)
    gc.callbacks[:] = callbacks


def test_garbage_collections_are_not_counted_as_time_of_masks(embedded, eager_collections, monkeypatch):
    wanted, options = grammar.json_schema(SCHEMA), {"max_new_tokens": 40, "temperature": 0.0}
    usual = embedded.generate("Write: ", grammar=wanted, **options)
    clock = TellingTime()
    monkeypatch.setattr("drafttree.constraints.grammar.time", clock)
    eager_collections.append(lambda: clock.go_on(1.0))
    slow = embedded.generate("Write: ", grammar=wanted, **options)
    assert clock.now > 100
    assert (slow.tokens, slow.metrics.tau) == (usual.tokens, usual.metrics.tau)


@pytest.mark.parametrize("reading", [2, 12])
def test_a_pause_of_the_machine_ends_no_text(embedded, reading, monkeypatch):
    wanted, options = grammar.json_schema(SCHEMA), {"max_new_tokens": 40, "temperature": 0.0}
    usual = embedded.generate("Write: ", grammar=wanted, **options)
    clock = TellingTime(pause_at=reading)
    monkeypatch.setattr("drafttree.constraints.grammar.time", clock)
    assert embedded.generate("Write: ", grammar=wanted, **options).tokens == usual.tokens
    assert clock.now == 60


class TellingTime:
    """A clock that goes on by a step whenever it is read, and by a minute at one reading."""

    def __init__(self, step: float = 0.0, pause_at: int = 0) -> None:
        self.step, self.pause_at, self.now, self.readings = step, pause_at, 0.0, 0

    def go_on(self, seconds: float) -> None:
        self.now += seconds

    def thread_time(self) -> float:
        self.readings += 1
        self.go_on(60 if self.readings == self.pause_at else self.step)
        return self.now


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda: grammar.regex("a{1000000}"),
        lambda: grammar.json_schema({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    ],
    ids=["pattern", "schema"],
)
def test_a_text_of_which_all_is_forced_goes_on(embedded, make):
    forced = embedded.with_drafter(None)
    texts = [each.generate("Data: ", grammar=make(), max_new_tokens=40) for each in (forced, embedded.plain())]
    assert texts[0].tokens == texts[1].tokens
    assert len(texts[0].tokens) == 40


WIDE = "[abc]{3,60}a[abc]{7}"
"""A pattern whose automata grow with whatever is looked at."""
WIDE_PATHS = [path for size in range(4) for path in itertools.product(range(1, VOCAB), repeat=size)]


def wide_masks(tokenizer, *, share: bool) -> torch.Tensor:
    state = grammar.regex(WIDE).new_state(tokenizer, VOCAB, (EOS,))
    if not share:
        state.share_nothing()
    return state.restrict(WIDE_PATHS, torch.zeros(len(WIDE_PATHS), VOCAB))


@pytest.fixture
def small_automata(monkeypatch):
    """Limits automata to so many states, and forgets those that were made with others."""

    def limit(states: int) -> None:
        monkeypatch.setitem(lark.LIMITS, "max_lexer_states", states)
        grammar._short_ones.cache_clear()

    yield limit
    grammar._short_ones.cache_clear()


def test_masks_that_share_nothing_do_not_depend_on_other_texts(tokenizer, small_automata):
    """As of texts that are written alone and whose draws depend on drafts: other texts must not change those."""
    small_automata(160)
    alone = wide_masks(tokenizer, share=False)
    other = grammar.regex(WIDE).new_state(tokenizer, VOCAB, (EOS,))
    for token in [1, 2, 3, 5] * 8:
        other.restrict([()], torch.zeros(1, VOCAB))
        other.commit(token)
    assert not torch.equal(wide_masks(tokenizer, share=True), alone)
    assert torch.equal(wide_masks(tokenizer, share=False), alone)


def nested(levels, inner):
    return functools.reduce(lambda schema, _: {"items": schema}, range(levels), inner)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda: grammar.json_schema(
            {
                "$ref": "#/$defs/0",
                "$defs": {"60": {"type": "null"}}
                | {str(at): nested(60, {"$ref": f"#/$defs/{at + 1}"}) for at in range(60)},
            }
        ),
        lambda: grammar.ebnf(
            "root ::= r0\n" + "\n".join(f"r{at} ::= r{at + 1}" for at in range(4_900)) + ' "a"\nr4900 ::= "x"'
        ),
    ],
    ids=["schema", "rules"],
)
def test_thousands_of_references_do_not_exhaust_the_stack(embedded, make):
    assert embedded.generate("x: ", grammar=make(), max_new_tokens=2).tokens


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            {"properties": {f"k{at}": {} for at in range(10_000)}},
            "'properties' of which more than 1500 are not required",
        ),
        ({"anyOf": [{"properties": {"k": {"const": at}}} for at in range(20_000)]}, "it has more than 20000 schemas"),
        ({"anyOf": [*({"const": at} for at in range(5_000)), {"type": "strng"}]}, "Invalid type: strng at #$"),
    ],
    ids=["optional", "schemas", "places"],
)
def test_schemas_that_are_too_large_are_refused_at_once(schema, words):
    begun = time.process_time()
    with pytest.raises(ConfigError, match=words):
        grammar.json_schema(schema)
    assert time.process_time() - begun < 4


def test_an_error_names_the_grammar_where_a_token_of_the_text_meets_its_limits(embedded):
    texts = [{"type": "const_string", "value": f"w{at}"} for at in range(10_000)]
    with pytest.raises(ConfigError, match=r"structural tag takes too much to follow .*10001 items"):
        embedded.generate("x: ", grammar=grammar.structural_tag({"type": "or", "elements": texts}), max_new_tokens=4)


@pytest.mark.parametrize(
    ("structure", "words"),
    [
        ({"type": [1]}, r"type \[1\] is not supported"),
        ({"type": "const_string", "value": "\ud800"}, "it has a lone surrogate"),
        ({"type": "tags_with_separator", "tags": [], "separator": ","}, "has no tags; give one"),
        (
            functools.reduce(lambda part, _: {"type": "optional", "content": part}, range(3_000), {"type": "any_text"}),
            "deep",
        ),
    ],
    ids=["type", "surrogate", "tags", "deep"],
)
def test_malformed_structural_tags_are_refused(structure, words):
    with pytest.raises(ConfigError, match="^invalid structural tag: .*" + words):
        grammar.structural_tag(structure)
