"""The bench of peers: every way by turns, one baseline, texts compared with plain decoding's, and it goes on."""

import pytest

from drafttree.errors import ConfigError
from drafttree.measure.method import parse_methods
from drafttree.measure.reference import ReferenceRun
from drafttree.measure.run_store import RunStore
from drafttree_lab.experiment.methods import MethodRow, PeerRow
from drafttree_lab.load.http_load import LoadRun, ServedText
from drafttree_lab.peers import bench
from testing.command_line import PROMPT
from testing.interrupts import COMMAND, interrupt_after

METHODS = [*parse_methods(["lookup|chain:depth=2"]).values()]
NAMES = ["plain", "lookup|chain:depth=2"]


class ForgedPeer:
    """A peer that writes plain decoding's text but for its fourth token, in a second."""

    def __init__(self, decoder):
        self._decoder = decoder

    def generate(self, prompt, max_new_tokens):
        tokens = self._decoder.generate(list(prompt), max_new_tokens=max_new_tokens, temperature=0.0).tokens
        return ReferenceRun([*tokens[:3], tokens[3] + 1, *tokens[4:]], 1.0)

    def time_passes(self, sizes, context, repeats):
        return {size: 0.001 * size for size in sizes}

    def generate_together(self, prompts, max_new_tokens):
        texts = [ServedText() for _ in prompts]
        for text in texts:
            text.add("", 1, 0.25)
            text.add("", max_new_tokens, 0.5)
        return LoadRun(texts, 1.0)


@pytest.fixture
def plain(embedded):
    return embedded.plain()


@pytest.fixture
def prompts(plain):
    return [plain.new_request(text).tokens for text in (PROMPT, "Once upon a time")]


def measure(decoder, prompts, dtypes=("float32",), peers=(), **options):
    settings = {"drafters": {}, "files": {}, "max_new_tokens": 6} | options
    return bench.bench_peers(dict.fromkeys(dtypes, decoder), METHODS, prompts, peers=peers, **settings)


@pytest.fixture
def forged(monkeypatch, plain):
    """A forged peer in place of llama.cpp."""
    monkeypatch.setattr(bench, "_open", lambda *_: ForgedPeer(plain))
    monkeypatch.setattr(bench, "LlamaCpp", ForgedPeer)
    monkeypatch.setattr(bench, "versions", lambda peers: dict.fromkeys(peers, "1"))


def test_transformers_in_the_first_dtype_is_the_baseline(plain, prompts):
    result = measure(plain, prompts, dtypes=("float32", "int8"), peers=["transformers"], repeats=2)
    assert [(row.dtype, row.name) for row in result.rows] == [
        *(("float32", name) for name in [*NAMES, "transformers"]),
        *(("int8", name) for name in NAMES),
    ]
    assert result.baseline == "float32, transformers"
    ratios = {(row.dtype, row.name): row.over_baseline for row in result.rows}
    assert ratios["float32", "transformers"].mean == 1
    assert ratios["int8", "plain"].low is not None
    assert [type(row.speed) for row in result.rows[:3]] == [MethodRow, MethodRow, PeerRow]
    assert all(row.same_text.equal == 2 and row.same_text.share == 1 for row in result.rows)
    assert (result.prompts, result.passes) == (2, [])


def test_plain_decoding_is_the_baseline_without_transformers(plain, prompts):
    assert measure(plain, prompts).baseline == "float32, plain"


@pytest.mark.usefixtures("forged")
def test_texts_that_differ_are_counted(plain, prompts):
    result = measure(plain, prompts, peers=["llama.cpp"])
    row = next(row for row in result.rows if row.name == "llama.cpp")
    same = row.same_text
    assert (same.texts, same.equal, same.tokens, same.equal_tokens, same.ties) == (2, 0, 12, 6, 0)
    assert same.gap > 0
    assert row.summary()["same_text"]["equal_tokens"] == 6
    assert row.speed.tokens_per_second == 6


@pytest.mark.usefixtures("forged")
def test_passes_are_timed_by_rows(plain, prompts):
    result = measure(plain, prompts, peers=["llama.cpp"], passes=(1, 3), repeats=2)
    assert [(row.dtype, row.program) for row in result.passes] == [("float32", "drafttree"), ("float32", "llama.cpp")]
    assert result.passes[0].seconds.keys() == {1, 3}
    assert result.passes[1].seconds == {1: 0.001, 3: 0.003}


@pytest.mark.usefixtures("forged")
def test_many_texts_are_timed_at_once(plain, prompts):
    result = measure(plain, prompts, peers=["llama.cpp"], streams=(1, 3))
    names = [f"float32, {name}" for name in [*NAMES, "llama.cpp"]]
    assert [(row.streams, row.name) for row in result.streams] == [(size, name) for size in (1, 3) for name in names]
    served = {(row.name, row.streams): row.served for row in result.streams}
    assert served["float32, llama.cpp", 3].tokens_per_second == pytest.approx(18)
    assert served["float32, llama.cpp", 3].first_token[50] == 0.25
    own = served["float32, plain", 3]
    assert 0 < own.next_token[50] <= own.next_token[99]
    assert own.first_token[50] > 0


@pytest.mark.usefixtures("forged")
def test_an_interrupted_bench_goes_on(tmp_path, plain, prompts):
    options = {"peers": ["transformers", "llama.cpp"], "passes": (1,), "streams": (1,)}
    store = RunStore(tmp_path, COMMAND, partial=True)
    first = measure(plain, prompts, progress=interrupt_after(6), store=store, **options)
    assert (store.interrupted, first.prompts, first.passes, first.streams) == (True, 1, [], [])
    store = RunStore(tmp_path, COMMAND, partial=True)
    interrupted = measure(plain, prompts, progress=interrupt_after(9), store=store, **options)
    assert (store.interrupted, interrupted.prompts, len(interrupted.passes)) == (True, 2, 1)
    seen = []
    whole = measure(plain, prompts, progress=seen.append, store=RunStore(tmp_path, COMMAND), **options)
    assert (len(seen), len(whole.passes), len(whole.streams)) == (16, 2, 3)
    assert [row.summary() for row in whole.rows] == [row.summary() for row in interrupted.rows]


@pytest.mark.parametrize(("given", "lacking"), [({"dtypes": ()}, "dtype"), ({"prompts": []}, "prompt")])
def test_nothing_to_measure_is_said(plain, prompts, given, lacking):
    with pytest.raises(ConfigError, match=f"there is no {lacking} to measure"):
        measure(plain, **{"prompts": prompts} | given)
