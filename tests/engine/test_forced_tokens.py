"""What a grammar forces is drafted without a drafter, and changes no text and no law."""

from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

import drafttree
from drafttree import Decoder, Engine
from drafttree.constraints import grammar
from drafttree.evaluation.scripted_random import outcomes
from drafttree.evaluation.toy_decoder import ToyDecoder
from drafttree.evaluation.toy_models import TabularModel
from drafttree.policies import Chain, Talon
from drafttree.verifiers import RRS, Block, GreedyMultiDraft, KSeq, PointMass, RRSw, Traversal
from testing.tokenizers import pieces

pytest.importorskip("llguidance")

PIECES, END = ("a", "b", "c", "ab", "</s>"), 4
WRITTEN = ("abcab", "abcc", "cabcab", "cabcc")
GRAMMAR = grammar.regex("c?abc(ab|c)")
TARGET = TabularModel(5, 1, seed=3)
DRAFT = TabularModel(5, 1, seed=4, near=TARGET)
EXACT = 1e-9
SCHEMA = {
    "type": "object",
    "properties": {"first_name": {"type": "string", "maxLength": 6}, "colour": {"enum": ["red", "green"]}},
    "required": ["first_name", "colour"],
}


def tokenizer() -> PreTrainedTokenizerFast:
    model = BPE({piece: index for index, piece in enumerate(PIECES)}, [("a", "b")])
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), eos_token="</s>")


class Unforced:
    """A grammar that does not say what it forces."""

    def __init__(self, made) -> None:
        self.made = made

    def new_state(self, *given):
        state = self.made.new_state(*given)
        return SimpleNamespace(restrict=state.restrict, commit=state.commit)


def constrained_law(length: int) -> dict[tuple[int, ...], float]:
    """The law of the target's texts that the grammar allows, in all of their spellings, written out."""
    law, going = {}, {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, weight in going.items():
            spelled = "".join(PIECES[token] for token in text)
            allowed = {
                token for token in range(END) if any(each.startswith(spelled + PIECES[token]) for each in WRITTEN)
            }
            probs = TARGET.law(text)
            allowed |= {END} if spelled in WRITTEN else set()
            whole = sum(probs[token] for token in allowed)
            longer |= {(*text, token): weight * probs[token] / whole for token in allowed}
        law |= {text: weight for text, weight in longer.items() if text[-1] == END}
        going = {text: weight for text, weight in longer.items() if text[-1] != END}
    return law | going


@pytest.mark.few(2)
@pytest.mark.parametrize("batch", [None, 1])
@pytest.mark.parametrize("policy", [Chain(depth=2), Talon(width=2, margin=0.5, budget=3)], ids=["chain", "tree"])
@pytest.mark.parametrize("verifier", [RRSw, RRS, Traversal, Block, KSeq, GreedyMultiDraft, PointMass])
def test_texts_keep_the_law_of_the_target_within_the_grammar(verifier, policy, batch):
    def run(script):
        toy = ToyDecoder(TARGET, DRAFT, policy, verifier, 2, eos=(END,), script=script)
        toy.tokenizer = tokenizer()
        options = {"max_new_tokens": 5, "grammar": GRAMMAR, "temperature": 1.0, "seed": 0}
        if batch is None:
            return toy.generate([0], **options)
        return toy.batch_loop(batch).write([toy.prepare([0], **options)])[0]

    found, forced = {}, 0
    for weight, text in outcomes(run):
        found[tuple(text.tokens)] = found.get(tuple(text.tokens), 0.0) + weight
        forced += sum(turn.accepted for turn in text.metrics.rounds if turn.levels and not turn.widths)
    wanted = constrained_law(5)
    assert sum(abs(found.get(each, 0) - wanted.get(each, 0)) for each in found.keys() | wanted.keys()) < EXACT
    assert forced


@pytest.fixture(scope="module")
def embedded() -> Decoder:
    return drafttree.load(dtype="float32", drafter="embedded-eagle3", policy="talon")


def forced_rounds(text) -> list:
    return [turn for turn in text.metrics.rounds if turn.levels and not turn.widths]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}], ids=str
)
@pytest.mark.parametrize("drafter", [None, "embedded-eagle3", "mixed:embedded-eagle3"])
def test_a_text_is_the_same_with_and_without_alone_and_in_company(embedded, drafter, options):
    options = {**options, "max_new_tokens": 48}
    decoder, made = embedded.with_drafter(drafter), grammar.json_schema(SCHEMA)
    asked = dict(enumerate(["The sea: ", "Once", "A ship: ", "Write: "]))
    plain = embedded.plain()
    expected = [plain.generate(prompt, seed=seed, grammar=made, **options).tokens for seed, prompt in asked.items()]
    alone = [decoder.generate(prompt, seed=seed, grammar=made, **options) for seed, prompt in asked.items()]
    assert [text.tokens for text in alone] == expected
    assert all(forced_rounds(text) for text in alone)
    with Engine(decoder, max_batch=4) as engine:
        handles = [engine.submit(prompt, seed=seed, grammar=made, **options) for seed, prompt in asked.items()]
        texts = [handle.result(60) for handle in handles]
    assert [text.tokens for text in texts] == expected
    assert all(forced_rounds(text) for text in texts)


def test_plain_decoding_takes_fewer_rounds_and_no_draft_pass(embedded):
    made, plain = grammar.regex("the sea and the ship and the sea"), embedded.with_drafter(None)
    text = plain.generate("Once upon a time ", grammar=made, temperature=0, max_new_tokens=32)
    unforced = plain.generate("Once upon a time ", grammar=Unforced(made), temperature=0, max_new_tokens=32)
    assert text.tokens == unforced.tokens
    assert len(text.metrics.rounds) < len(unforced.metrics.rounds) == len(unforced.tokens)
    assert not any(turn.draft_passes for turn in text.metrics.rounds)
    assert sum(turn.accepted for turn in forced_rounds(text)) == sum(text.drafted)


def test_a_drafter_that_is_given_to_a_plain_decoder_drafts(embedded):
    text = (
        embedded.plain()
        .with_drafter("lookup")
        .generate("the sea, the sea, the sea, the", temperature=0, max_new_tokens=16)
    )
    assert any(turn.nodes > 1 for turn in text.metrics.rounds)


def test_nothing_is_forced_where_nothing_is_to_be_drafted(embedded):
    options = {"grammar": grammar.json_schema(SCHEMA), "max_new_tokens": 24}
    for text in embedded.generate("Once", speculate=False, **options), embedded.plain().generate("Once", **options):
        assert {turn.nodes for turn in text.metrics.rounds} == {1}


def test_trees_keep_to_the_budget_of_the_policy_and_to_the_length_of_the_text(embedded):
    decoder, made = embedded.with_policy("chain:budget=3"), grammar.regex("the sea and the ship and the sea")
    text = decoder.generate("Once", grammar=made, max_new_tokens=5)
    assert len(text.tokens) == 5
    assert 1 < max(turn.nodes for turn in text.metrics.rounds) <= 3


def test_a_drafter_drafts_where_more_of_its_tokens_are_accepted(embedded):
    """It knows how the target spells; what is forced is a token or two at a time."""
    made = grammar.regex("(the (sea|ship) )+")
    text = embedded.generate("Once", grammar=made, temperature=0, max_new_tokens=64)
    drafted = [turn for turn in text.metrics.rounds if turn.widths]
    assert drafted


def test_tokenizers_that_put_a_space_before_a_text_put_none_where_it_goes_on():
    learned = 'the "name": "Ann", and "colour": "red" of a ship ' * 20
    made = pieces(learned, 400)
    state = grammar.regex('"name": "[a-z]+"').new_state(made, len(made), (2,))
    spelled = grammar.token_bytes(made, len(made))
    assert b"".join(spelled[token] for token in state.forced(8)) == b'"name":'
