"""Methods: their canonical specifications, what is refused, and the decoders made of them."""

import pytest

import drafttree
from drafttree.drafters import PromptLookupDrafter
from drafttree.errors import ConfigError
from drafttree.measure.method import Method, parse_methods
from drafttree.measure.method_decoders import make_decoders
from drafttree.policies import Chain, Talon
from drafttree.verifiers import RRSw, Traversal


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(dtype="float32", drafter="none")


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        (" lookup | talon:width=4,budget=8 | rrsw ", "lookup|talon:budget=8,width=4|rrsw"),
        ("lookup", "lookup|auto"),
        ("lookup|chain:depth=4", "lookup|chain:depth=4"),
        ("lookup||rrsw", "lookup|dynatree|rrsw"),
        ("lookup|chain|auto", "lookup|chain"),
        ("mixed:embedded-draft|chain", "mixed:embedded-draft|chain"),
        ("none", "none"),
    ],
)
def test_a_specification_has_one_canonical_form_that_is_read_back(given, canonical):
    method = Method.parse(given)
    assert method.spec == canonical
    assert Method.parse(canonical) == method


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("|chain", "is not of the form DRAFTER|POLICY|VERIFIER"),
        ("lookup|chain|rrsw|x", "is not of the form DRAFTER|POLICY|VERIFIER"),
        ("none|chain", "drafts nothing, so it has no policy and no verifier; write 'none'"),
        ("auto|chain", "'auto' is not a drafter"),
        ("lookup|chian", "did you mean 'chain'"),
        ("lookup|chain:depth=0", "depth"),
        ("lookup|chain|rsw", "did you mean 'rrs"),
    ],
)
def test_a_bad_specification_is_refused_by_name(spec, said):
    with pytest.raises(ConfigError) as refused:
        Method.parse(spec)
    assert said in str(refused.value)


def test_a_list_holds_every_method_once_whoever_spells_it():
    found = parse_methods(["lookup|chain; suffix|talon:width=4,budget=8;", Method("lookup", Chain()), "none"])
    assert [*found] == ["lookup|chain", "suffix|talon:budget=8,width=4", "none"]


def test_an_empty_list_is_refused():
    with pytest.raises(ConfigError, match="no method in ' ; '"):
        parse_methods([" ; "])


def test_decoders_share_drafters_and_have_the_policies_and_verifiers_of_their_methods(decoder):
    methods = parse_methods(["lookup|chain;lookup|talon|traversal;none"])
    made = make_decoders(decoder.with_policy(Chain()).with_verifier(RRSw), methods.values())
    chain, talon, plain = made.values()
    assert isinstance(chain.drafter, PromptLookupDrafter)
    assert chain.drafter is talon.drafter
    assert (chain.policy, chain.verifier) == (Chain(), RRSw)
    assert (talon.policy, talon.verifier) == (Talon(), Traversal)
    assert plain.drafter is None


def test_a_drafter_may_be_given_by_its_name(decoder):
    own = PromptLookupDrafter(decoder.target.vocab_size)
    (made,) = make_decoders(decoder, [Method("mine", Chain())], {"mine": own}).values()
    assert made.drafter is own


def test_a_pair_that_is_not_lossless_is_refused_when_its_decoder_is_made(decoder):
    with pytest.raises(ConfigError, match="Eagle with RRSw is not lossless"):
        make_decoders(decoder, [Method.parse("lookup|eagle|rrsw")])


def test_an_unknown_drafter_is_refused_when_its_decoder_is_made(decoder):
    with pytest.raises(drafttree.errors.DraftTreeError, match="lookupp"):
        make_decoders(decoder, [Method.parse("lookupp|chain")])
