"""Policies, verifiers and drafters of a user's own: by dotted names, entry points, classes and objects."""

import re
import sys
from functools import partial
from itertools import chain

import pytest
import torch
from safetensors.torch import save_file

import drafttree
from drafttree import hf
from drafttree.drafters import LanguageModelDrafter, MixedDrafter, PromptLookupDrafter
from drafttree.drafters.formats import hub
from drafttree.errors import ConfigError, ModelError
from drafttree.evaluation.pair_trials import FORMS
from drafttree.loading import (
    POLICY_CLASSES,
    VERIFIER_CLASSES,
    find_verifier,
    folders,
    make_policy,
    methods,
    parse_policies,
    parse_verifiers,
    policy_spec,
)
from drafttree.loading.inspect import inspect
from drafttree.policies import POLICIES, Chain, DynaTree, Talon, Template
from drafttree.verifiers import VERIFIERS, RRSw
from helpers import refusals
from testing import tiny
from testing.command_line import run

MODULE = r'''
from drafttree.drafters import PromptLookupDrafter
from drafttree.drafters.formats import Checkpoint, HeadFormat, any_name
from drafttree.policies import TreePolicy
from drafttree.verifiers import PointMass, Verifier
from drafttree.verifiers.base import SamplingVerifier


class Short(TreePolicy):
    """A chain of two."""

    depth: int = 2

    def levels(self):
        return self.depth

    def keep(self, layer):
        return layer.rank < 1


class Walk(PointMass):
    """PointMass by another name."""


class Keepless(TreePolicy):
    pass


class Verifyless(Verifier):
    pass


class Judgeless(SamplingVerifier):
    pass


class Lookup(PromptLookupDrafter):
    pass


class Fitted(PromptLookupDrafter):
    @classmethod
    def for_target(cls, target, tokenizer, max_ngram=3, word="", flag=None):
        made = cls(target.vocab_size, target.device, max_ngram)
        made.told = (tokenizer, word, flag)
        return made


class Startless:
    vocab_size = 9


class Raising:
    def __init__(self, vocab_size, device, table="a.json"):
        raise FileNotFoundError(f"no table\nat {table}")

    start = None


class Partless:
    def __init__(self, vocab_size, device):
        self.vocab_size = vocab_size

    def start(self, prompt, capacity):
        raise AssertionError


def parse(tensors, config, target):
    return Checkpoint(None, dict(tensors), {"hidden size": 32}, (), {"echoes": len(tensors)})


def build(found, target):
    return Lookup(len(found.tensors["echo.weight"]), target.device)


ECHO = HeadFormat("echo", "Echo", any_name(r"echo\."), parse, build)
AGAIN = HeadFormat("medusa", "Medusa", ECHO.holds, parse, build)
'''
ENTRY_POINTS = """
[drafttree.policies]
short = mymethods:Short
broken = no_such_package.policies:Wide
talon = mymethods:Short
nothing = mymethods:Keepless

[drafttree.verifiers]
walk = mymethods:Walk

[drafttree.drafters]
mine = mymethods:Lookup
echo = mymethods:ECHO
again = mymethods:AGAIN
gone = mymethods:Gone
lookup = mymethods:Lookup
mtp = mymethods:Lookup
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's own."""
    (tmp_path / "mymethods.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mymethods", raising=False)
    methods._warn_once.cache_clear()
    return tmp_path


@pytest.fixture
def installed(module):
    """An installed package that offers what the module has."""
    info = module / "mymethods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mymethods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return module


told = partial(refusals.told, ConfigError)


def load(drafter, **options):
    return drafttree.load(tiny.build("llama"), drafter, device="cpu", **options)


@pytest.mark.usefixtures("module")
def test_policies_and_verifiers_have_dotted_names():
    assert policy_spec(make_policy("mymethods.Short:budget=9")) == "mymethods.Short:budget=9"
    assert make_policy("mymethods.Short: depth = 3").depth == 3
    assert list(parse_verifiers(["mymethods.Walk,rrsw"])) == ["mymethods.Walk", "rrsw"]
    decoder = load("lookup", policy="mymethods.Short", verifier="mymethods.Walk")
    assert [type(decoder.policy).__name__, decoder.verifier.__name__] == ["Short", "Walk"]
    specs = parse_policies(["chain,mymethods.Short:depth=3,budget=9;talon"])
    assert list(specs) == ["chain", "mymethods.Short:budget=9,depth=3", "talon"]


@pytest.mark.usefixtures("installed")
def test_entry_points_have_their_names():
    assert type(make_policy("short:depth=4")).__name__ == "Short"
    assert find_verifier("walk").__name__ == "Walk"
    assert type(load("mine:max_ngram=2").drafter).__name__ == "Lookup"
    assert "did you mean 'short'" in told(make_policy, "shrt")


@pytest.mark.usefixtures("installed")
def test_entry_points_are_listed_and_the_bad_ones_named_once_and_skipped(caplog):
    assert list(POLICY_CLASSES.all()) == [*POLICIES, "short"]
    assert list(VERIFIER_CLASSES.all()) == [*VERIFIERS, "walk"]
    assert list(parse_policies(["all"])) == [*POLICIES, "mymethods.Short"]
    assert list(parse_verifiers(["all"])) == [*VERIFIERS, "mymethods.Walk"]
    broken, taken, keepless = (record.getMessage() for record in caplog.records)
    assert "entry point 'broken' of drafttree.policies is skipped: cannot import policy 'broken'" in broken
    assert "No module named 'no_such_package'" in broken
    assert "policy 'talon' is drafttree's own; give mymethods:Short another name" in taken
    assert "'nothing' is not a policy: it lacks the method keep" in keepless
    assert make_policy("talon") == Talon()


@pytest.mark.usefixtures("installed")
def test_a_broken_entry_point_asked_for_by_name_is_an_error():
    assert "cannot import policy 'broken' from no_such_package.policies:Wide" in told(make_policy, "broken")
    assert "cannot import drafter 'gone' from mymethods:Gone (AttributeError" in told(load, "gone")


@pytest.mark.usefixtures("installed")
def test_the_command_line_lists_entry_points_and_names_the_bad_ones(caplog):
    assert "short  mymethods\nA chain of two." in run("policies").stdout
    assert caplog.text.count("entry point 'broken' of drafttree.policies is skipped") == 1


@pytest.mark.parametrize(
    ("call", "name", "reason"),
    [
        (make_policy, "mymethods.Keepless", "it lacks the method keep"),
        (make_policy, "mymethods.Lookup", "it is not a subclass of drafttree.policies.TreePolicy"),
        (make_policy, "mymethods.Wide", "cannot import policy 'mymethods.Wide' (AttributeError"),
        (make_policy, "no_such_module.Wide", "No module named 'no_such_module'"),
        (make_policy, "mymethods.Short:dept=3", "did you mean 'depth'"),
        (find_verifier, "mymethods.Verifyless", "it lacks the method verify"),
        (find_verifier, "mymethods.Judgeless", "it lacks the method judge"),
        (find_verifier, "mymethods.Short", "it is not a subclass of drafttree.verifiers.Verifier"),
        (load, "mymethods.Startless", "'mymethods.Startless' is not a drafter: it lacks the method start"),
        (load, "mymethods.parse", "it is of type function, not a class"),
        (load, "mymethods.ECHO", "it is a format of files; give a folder"),
        (load, "mymethods.Partless", "of type Partless and lacks context, levels, hidden_layers, nbytes"),
        (load, "mymethods.Lookup:max_ngram=0", "max_ngram is 0"),
        (load, "mymethods.Raising:table=b", "drafter Raising cannot be made (FileNotFoundError: no table at b)"),
        (load, "mymethods.Lookup:ngrams=4", "unexpected keyword argument 'ngrams'; its parameters: max_ngram"),
        (load, "mymethods.Lookup:max_ngram", "is not of the form parameter=value"),
    ],
)
@pytest.mark.usefixtures("module")
def test_what_is_no_method_is_refused_by_what_it_lacks(call, name, reason):
    assert reason in told(call, name)


@pytest.mark.usefixtures("module")
def test_a_drafter_class_is_made_for_the_target():
    fitted = load("mymethods.Fitted:max_ngram=5,word=a1,flag=True").drafter
    assert (fitted.vocab_size, fitted.max_ngram, fitted.told) == (tiny.VOCAB, 5, (None, "a1", True))
    mixed = load("mixed:mymethods.Lookup:max_ngram=2").drafter
    assert isinstance(mixed, MixedDrafter)
    assert mixed.model.max_ngram == 2
    assert load("lookup:max_ngram=4").drafter.max_ngram == 4
    assert load(PromptLookupDrafter).drafter.vocab_size == tiny.VOCAB


def test_drafters_may_be_objects():
    drafter = PromptLookupDrafter(tiny.VOCAB)
    assert load(drafter).drafter is drafter
    decoder, prompt = load(drafter, policy="talon"), tiny.random_tokens(5, 2) * 3
    assert (
        decoder.generate(prompt, max_new_tokens=8).tokens == decoder.plain().generate(prompt, max_new_tokens=8).tokens
    )
    for wrong, lacks in ((object(), "vocab_size"), (False, "vocab_size"), (Talon(), "start")):
        assert f"the drafter is of type {type(wrong).__name__} and lacks" in told(load, wrong)
        assert lacks in told(load, wrong)
    assert "'Talon' is not a drafter: it lacks the method start" in told(load, Talon)
    assert "LanguageModelDrafter cannot be made by its class" in told(load, LanguageModelDrafter)
    assert "pass an object of the class" in told(load, LanguageModelDrafter)


@pytest.mark.usefixtures("module")
def test_transformers_generate_takes_methods_by_name_too():
    model, prompt = tiny.build("llama"), torch.tensor([tiny.random_tokens(5, 2) * 3])
    stock = model.generate(prompt, max_new_tokens=8)
    for drafter in ("mymethods.Lookup:max_ngram=4", "mymethods.Fitted", PromptLookupDrafter):
        speculate = hf.generate(drafter, "mymethods.Short", VERIFIERS["greedy"])
        assert torch.equal(model.generate(prompt, max_new_tokens=8, custom_generate=speculate), stock)
    assert "lacks vocab_size" in told(hf.generate, object())


def test_a_format_of_heads_may_be_an_entry_point(installed, caplog):
    save_file({"echo.weight": torch.zeros(tiny.VOCAB, 2)}, installed / "model.safetensors")
    found = inspect(str(installed))
    assert (found.kind, found.fits["hidden size"], found.details) == ("echo", 32, {"echoes": 1})
    drafter = load(installed).drafter
    assert (type(drafter).__name__, drafter.vocab_size) == ("Lookup", tiny.VOCAB)
    assert caplog.text == ""


def test_entry_points_that_cannot_be_used_are_named_where_a_folder_is_of_no_known_format(installed, caplog):
    save_file({"other.weight": torch.zeros(tiny.VOCAB, 2)}, installed / "model.safetensors")
    with pytest.raises(ModelError, match="is not a drafter that drafttree knows"):
        inspect(str(installed))
    assert "head format 'medusa' is drafttree's own; give the format 'again' another kind" in caplog.text
    assert "entry point 'gone' of drafttree.drafters is skipped" in caplog.text


@pytest.mark.usefixtures("installed")
def test_a_broken_entry_point_says_nothing_where_it_is_not_used(caplog):
    decoder = drafttree.load("embedded", "embedded-eagle3", "chain", "greedy")
    assert decoder.with_drafter("mine").with_policy("short").with_verifier("walk").drafter
    assert inspect("embedded-medusa").problems == ()
    assert caplog.text == ""


@pytest.mark.usefixtures("installed")
def test_installed_drafters_are_listed_and_the_bad_ones_named(caplog):
    listing = run("drafters").stdout
    assert re.search("installed +mine +A drafter. From mymethods.", listing)
    assert "Echo heads, in the format 'echo'." in listing
    for name in ("gone", "again", "lookup", "mtp"):
        assert f"entry point {name!r} of drafttree.drafters is skipped" in caplog.text


@pytest.mark.usefixtures("installed")
def test_classes_are_inspected_without_asking_the_hub(monkeypatch):
    monkeypatch.setattr(hub, "hub_answers", lambda: pytest.fail("the hub was asked"))
    monkeypatch.setattr(folders, "hub_answers", hub.hub_answers)
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: pytest.fail("the hub was asked"))
    for name, said in [
        ("mine", "max_ngram: int = 8"),
        ("mymethods.Fitted", "max_ngram=3, word='', flag=None"),
        ("lookup", "max_ngram: int = 8"),
        ("suffix", "none"),
    ]:
        assert inspect(name).details["parameters"] == said
        assert said in run("inspect", name).stdout
    assert inspect("mine").details["class"] == "mymethods.Lookup"
    assert "cannot import drafter 'gone' from mymethods:Gone" in told(inspect, "gone")
    assert "it is a format of files; give a folder" in told(inspect, "echo")
    for name, kind in (("talon", "policy"), ("short", "policy"), ("walk", "verifier")):
        assert f"{name!r} is a {kind}; inspect takes drafters" in refusals.told(ModelError, inspect, name)
    for name in ("auto", "none", "mtp", "mixed:lookup"):
        assert f"{name!r} is not a drafter by itself; inspect a folder" in refusals.told(ModelError, inspect, name)


@pytest.mark.usefixtures("installed")
def test_an_entry_point_named_as_one_of_drafttrees_own_is_refused_by_name(caplog):
    assert make_policy("talon") == Talon()
    assert "entry point 'talon' of drafttree.policies is skipped: policy 'talon' is drafttree's own" in caplog.text
    assert isinstance(load("lookup").drafter, PromptLookupDrafter)
    assert "entry point 'lookup' of drafttree.drafters is skipped: drafter 'lookup' is drafttree's own" in caplog.text
    with pytest.raises(ModelError, match="'mtp' drafts with layers from the target's files"):
        load("mtp")
    assert "entry point 'mtp' of drafttree.drafters is skipped: drafter 'mtp' is drafttree's own" in caplog.text


@pytest.mark.parametrize("spec", [*POLICIES, *chain(*FORMS.values())])
def test_a_canonical_specification_is_read_back(spec):
    policy = make_policy(spec)
    again = make_policy(policy_spec(policy))
    assert (type(again), again.model_dump()) == (type(policy), policy.model_dump())
    assert policy_spec(make_policy(policy_spec(policy))) == policy_spec(policy)


def test_a_canonical_specification_has_what_differs_from_the_defaults():
    assert policy_spec(Talon()) == policy_spec(make_policy("talon:budget=60,depth=none")) == "talon"
    assert policy_spec(make_policy("talon:width=4,budget=16")) == "talon:budget=16,width=4"
    assert policy_spec(DynaTree(breadth=False, base_depth=4)) == "dynatree:base_depth=4.0,breadth=false"
    assert policy_spec(Template(paths=((0,), (1,), (0, 1)))) == "template:paths=0+1+0.1"


def test_classes_and_objects_stand_for_themselves():
    assert make_policy(Talon) == Talon()
    assert list(parse_policies([Chain(depth=2), Talon, "eagle"])) == ["chain:depth=2", "talon", "eagle"]
    assert parse_verifiers([RRSw, "greedy"]) == {"rrsw": RRSw, "greedy": VERIFIERS["greedy"]}
    assert "it is not a subclass of drafttree.policies.TreePolicy" in told(make_policy, RRSw)
    assert "it is not a subclass of drafttree.verifiers.Verifier" in told(parse_verifiers, [Talon()])
    assert "unknown verifier 'auto'" in told(parse_verifiers, ["auto"])
