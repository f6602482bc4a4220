"""The peers that are installed write transformers' own greedy texts from the embedded target's GGUF files."""

import json

import pytest

from drafttree.errors import ModelError
from drafttree.measure.reference import find_difference, transformers_generate, transformers_model
from drafttree_lab.peers import llama_cpp as llama_cpp_peer
from drafttree_lab.peers.gguf_file import write_gguf
from drafttree_lab.peers.llama_cpp import LlamaCpp
from drafttree_lab.peers.openvino import OpenVino
from testing.command_line import PROMPT, run

OPTIONS = {"max_new_tokens": 24, "temperature": 0.0}


@pytest.fixture(scope="module")
def llama_cpp():
    for module in ("gguf", "llama_cpp"):
        pytest.importorskip(module, reason=f"{module} is not installed; the lab's extra [peers] brings it")


@pytest.fixture(scope="module")
def openvino():
    for module in ("gguf", "openvino_genai"):
        pytest.importorskip(module, reason=f"{module} is not installed; the lab's extra [peers] brings it")


@pytest.fixture
def file(embedded, tmp_path):
    def write(kind):
        path = tmp_path / f"{kind}.gguf"
        write_gguf(transformers_model(embedded).module, embedded.tokenizer, path, kind)
        return path

    return write


@pytest.fixture
def opened(file):
    """Opens llama.cpp."""

    def open_(kind, **options):
        return LlamaCpp(file(kind), **{"exact_cache": True, "threads": 1, "eos": (), "context": 128} | options)

    return open_


@pytest.mark.usefixtures("llama_cpp")
def test_llama_cpp_writes_the_reference(embedded, opened):
    ids = embedded.new_request(PROMPT).tokens
    expected = transformers_generate(embedded, ids, **OPTIONS).tokens
    program = opened("f32")
    runs = [program.generate(ids, 24) for _ in range(2)]
    assert [run.tokens for run in runs] == [expected] * 2
    assert runs[0].seconds > 0


@pytest.mark.usefixtures("llama_cpp")
def test_llama_cpp_ends_with_the_tokens_that_end_a_text(embedded, opened):
    ids = embedded.new_request(PROMPT).tokens
    text = opened("f32").generate(ids, 8).tokens
    assert opened("f32", eos=[text[3]]).generate(ids, 8).tokens == text[: text.index(text[3]) + 1]


@pytest.mark.usefixtures("llama_cpp")
@pytest.mark.parametrize("kind", ["bf16", "q8_0"])
def test_llama_cpp_reads_the_other_kinds(embedded, opened, kind):
    ids = embedded.new_request(PROMPT).tokens
    text = opened(kind, exact_cache=False).generate(ids, 24).tokens
    assert len(text) == 24
    expected = transformers_generate(embedded, ids, **OPTIONS).tokens
    if difference := find_difference(embedded, ids, expected, text, **OPTIONS):
        assert difference.gap < 0.2


@pytest.mark.usefixtures("llama_cpp")
def test_llama_cpp_times_passes(opened):
    times = opened("f32").time_passes((1, 4), 16, 2)
    assert set(times) == {1, 4}
    assert min(times.values()) > 0


@pytest.mark.usefixtures("llama_cpp")
def test_llama_cpp_writes_texts_together_as_alone(embedded, opened, monkeypatch):
    monkeypatch.setattr(llama_cpp_peer, "BATCH", 4)  # prompts are read in parts beside texts that are being written
    prompts = [embedded.new_request(text).tokens for text in (PROMPT, "Once upon a time", "A B A B A B")]
    program, sampled = opened("f32", streams=3), []
    sample = program._library.llama_sampler_sample
    monkeypatch.setattr(
        program._library, "llama_sampler_sample", lambda *rest: sampled.append(sample(*rest)) or sampled[-1]
    )
    texts, times = program.generate_together(prompts, 8)
    assert [len(text) for text in texts] == [8] * 3
    assert all(len(own) == 8 and own == sorted(own) and own[0] > 0 for own in times)
    together, sampled = sorted(sampled), []
    alone = [token for prompt in prompts for token in program.generate(prompt, 8).tokens]
    assert together == sorted(alone)


@pytest.mark.usefixtures("llama_cpp")
def test_llama_cpp_has_the_tokens_of_the_file(embedded, opened):
    assert opened("f32").encode(PROMPT) == embedded.new_request(PROMPT).tokens


@pytest.mark.usefixtures("llama_cpp")
def test_loading_is_measured_beside_llama_cpp(file):
    rows = json.loads(run("bench", "loading", file("f32"), "--peers", "llama.cpp", "--json").stdout)["rows"]
    assert [row["model"] for row in rows] == ["f32.gguf auto", "f32.gguf llama.cpp"]
    assert all(0 < row["loaded"] < row["first_token"] for row in rows)


@pytest.mark.usefixtures("llama_cpp")
def test_llama_cpp_says_what_it_cannot_do(tmp_path, opened):
    path = tmp_path / "nothing.gguf"
    path.write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"does not read .*nothing\.gguf"):
        LlamaCpp(path, exact_cache=True, threads=1, eos=(), context=16)
    with pytest.raises(ModelError, match=r"llama\.cpp did not decode"):
        opened("f32", context=256).generate([1] * 250, 20)


@pytest.mark.usefixtures("openvino")
def test_openvino_writes_the_reference(embedded, file):
    ids = embedded.new_request(PROMPT).tokens
    expected = transformers_generate(embedded, ids, **OPTIONS).tokens
    program = OpenVino(file("f16"), dtype="float32", threads=1, eos=())
    assert program.generate(ids, 24).tokens == expected
    ending = OpenVino(file("f16"), dtype="float32", threads=1, eos=[expected[3]])
    assert ending.generate(ids, 24).tokens == expected[: expected.index(expected[3]) + 1]


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", "f16"), ("int8", "q8_0")])
def test_openvino_reads_the_other_kinds(embedded, file, dtype, kind):
    ids = embedded.new_request(PROMPT).tokens
    assert len(OpenVino(file(kind), dtype=dtype, threads=1, eos=()).generate(ids, 24).tokens) == 24
