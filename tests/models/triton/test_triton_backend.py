"""Whole passes on kernels in Triton: the module's logits, and the same bits for a token in any pass."""

import pytest

pytest.importorskip("triton")

import helpers.triton_interpreter  # noqa: F401, I001

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

import drafttree
from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.drafters.formats import eagle3
from drafttree.drafters.head_backend import HeadBackend, choose_head_backend
from drafttree.loading import make_policy
from drafttree.loading.inspect import inspect
from drafttree.models import LossyWindow, Output, Segment, TargetModel, host_copies
from drafttree.models.backend_choice import Wants, choose_backend
from drafttree.models.base import Backend, append
from drafttree.models.cache import kv_cache
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.quantization.quantize import quantize_int8
from drafttree.models.recorded import packed_inputs
from drafttree.models.recorded.recorded_passes import RecordedBackend
from drafttree.models.segment import BEFORE_NORM
from drafttree.models.triton import tree_inputs, triton_support
from drafttree.models.triton.triton_backend import TritonBackend
from drafttree.models.triton.triton_support import why_not_triton
from drafttree.models.wrapped_backends import WindowedBackend
from helpers import checkpoints
from helpers.replays import Replays
from helpers.triton_launches import Launches, launches_of
from testing import command_line, tiny
from testing.fused_families import CONFIGS
from testing.tokenizers import words

EXPERTS = {"gemma4_experts", "qwen3_moe"}
FAMILIES = [name for name in CONFIGS if name not in EXPERTS]
DTYPES = (torch.float32, torch.bfloat16)
PREFIX = tiny.random_tokens(9, 1)
TREE = tiny.random_tree((2, 3, 2), 2)
every_family = pytest.mark.parametrize("name", FAMILIES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")


@pytest.fixture(autouse=True)
def _prefers_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """With this, and with the interpreter, passes run on the kernels wherever they would on CUDA."""
    monkeypatch.setenv("DRAFTTREE_TRITON", "1")


def build(name: str, dtype: torch.dtype = torch.float32, layers: int | None = None) -> PreTrainedModel:
    config = CONFIGS[name]()
    if layers and "layer_types" not in config.to_diff_dict():
        config.num_hidden_layers = layers
    return tiny.from_config(config).to(dtype)


@pytest.mark.few(6)
@every_dtype
@every_family
def test_every_family_is_trusted(name, dtype):
    """`choose_backend` compares logits in trees with the module's own, also at late positions."""
    backend = choose_backend(build(name, dtype))
    assert isinstance(backend, TritonBackend), backend.fallback_reason
    assert backend.exact_text


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["llama", "gpt_neox", "llama_biased", "llama_tied", "gemma4_shared_keys"])
@every_dtype
def test_weights_of_eight_bits_are_trusted(name, dtype):
    """The kernels read the integers; the module multiplies by the same weights as floats."""
    module = build(name, dtype, layers=2)
    quantize_int8(module, head=True)
    backend = choose_backend(module)
    assert isinstance(backend, TritonBackend), backend.fallback_reason
    assert any(parameter.dtype == torch.int8 for parameter in module.parameters())


def test_texts_of_weights_of_eight_bits(tmp_path):
    """A model that is loaded with `quantize="int8"` runs on the kernels, drafted and plain texts alike."""
    build("llama", torch.bfloat16, layers=1).save_pretrained(tmp_path)
    options: Any = {"quantize": "int8", "device": "cpu", "tokenizer": words("a", "b")}
    prompts = [[5, 17, 5, 17, 5], [3, 88, 41, 7]]
    plain = drafttree.load(tmp_path, drafter="none", **options)
    drafted = drafttree.load(tmp_path, drafter="lookup", **options)
    for decoder in (plain, drafted):
        assert decoder.target.runs_on == "TritonBackend"
        assert decoder.target.precision == "bfloat16 with int8 weights"
    alone = [plain.generate(prompt, max_new_tokens=8).tokens for prompt in prompts]
    assert [text.tokens for text in drafted.generate(prompts, max_new_tokens=8)] == alone


@pytest.mark.few(2)
@every_family
@torch.inference_mode()
def test_hidden_layers_are_those_of_fused_layers(name):
    module = build(name)
    layers = (0, 1, tiny.LAYERS, BEFORE_NORM)
    outputs = []
    for backend in (TritonBackend(module), FusedBackend(module)):
        outputs += backend.forward([tree_behind(backend, PREFIX)], hidden_layers=layers)
    for found, wanted in zip(outputs[0].hidden, outputs[1].hidden, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_texts_that_began_on_another_backend_go_on():
    module = build("llama", layers=2)
    backend, former, fused = TritonBackend(module), TritonBackend(module), FusedBackend(module)
    alone = flat(backend.forward([tree_behind(backend, PREFIX)], hidden_layers=(1,)))
    for runner in (backend, RecordedBackend(backend, Launches())):
        segments = [tree_behind(each, PREFIX) for each in (former, runner, fused, former, runner)]
        outputs = runner.forward(segments, hidden_layers=(1,))
        for index in (0, 1, 3, 4):
            assert same(flat(outputs[index : index + 1]), alone)
        torch.testing.assert_close(outputs[2].logits[0], alone[0], atol=1e-5, rtol=1e-5)


def tree_behind(backend: Backend, prefix: list[int], tree: tiny.ArrayTree = TREE, parts: int = 1) -> Segment:
    """A tree behind a prefix that was read in parts."""
    cache = backend.new_cache(32)
    for part in np.array_split(prefix, parts):
        if len(part):
            append(backend, cache, part.tolist())
    return Segment(cache, tree.tokens, tree.depths + len(prefix), tree.ancestors)


def by_level(backend: Backend, segment: Segment) -> Iterator[Output]:
    """The outputs of a tree's levels, each computed by a pass."""
    depths = segment.positions - segment.positions[0]
    for depth in range(depths.max() + 1):
        (nodes,) = (depths == depth).nonzero()
        level = slice(nodes[0], nodes[-1] + 1)
        visible = segment.visible[level, : level.stop]
        level_segment = Segment(segment.cache, segment.tokens[level], segment.positions[level], visible)
        yield backend.forward([level_segment], hidden_layers=(1,))[0]


def flat(outputs: list[Output]) -> tuple[Tensor, Tensor]:
    """Logits and hidden states `[nodes, ...]` of all outputs."""
    return (
        torch.cat([output.logits[0] for output in outputs]),
        torch.cat([output.hidden[0][0] for output in outputs]),
    )


def same(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> bool:
    return torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])


@pytest.mark.few(2)
@every_dtype
@every_family
@torch.inference_mode()
def test_a_token_has_the_same_bits_in_every_pass(name, dtype):
    backend = TritonBackend(build(name, dtype, layers=2))
    alone = flat(backend.forward([tree_behind(backend, PREFIX)], hidden_layers=(1,)))

    others = [tree_behind(backend, tiny.random_tokens(count, count), tiny.random_tree((3,), 5)) for count in (0, 14)]
    company = [others[0], tree_behind(backend, PREFIX, parts=3), others[1]]
    assert same(flat(backend.forward(company, hidden_layers=(1,))[1:2]), alone)

    assert same(flat([*by_level(backend, tree_behind(backend, PREFIX, parts=2))]), alone)

    path = tiny.leaf_paths(TREE)[-1]
    cache = tree_behind(backend, PREFIX).cache
    steps = [append(backend, cache, [token], hidden_layers=(1,)) for token in TREE.tokens[path].tolist()]
    assert same(flat(steps), (alone[0][path], alone[1][path]))

    recorded_backend = RecordedBackend(backend, Replays())
    for prefix in (tiny.random_tokens(12, 3), PREFIX):  # the second is replayed
        segment = tree_behind(recorded_backend, prefix)
        outputs = recorded_backend.forward([segment], hidden_layers=(1,))
    assert same(flat(outputs), alone)


def decoders(name: str, dtype: torch.dtype) -> tuple[Decoder, Decoder]:
    """Plain decoding, and decoding with drafts of a model that is often right and often wrong."""
    target = TargetModel(build(name, dtype, layers=2), TritonBackend)
    draft_module = build(name, dtype, layers=2)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in draft_module.parameters():
            parameter += (0.02 * torch.randn(parameter.shape, generator=generator)).to(dtype)
    draft = TargetModel(draft_module, FusedBackend)
    return Decoder(target), Decoder(target, LanguageModelDrafter(draft), make_policy("talon:budget=8"))


@pytest.mark.few(2)
@every_dtype
@pytest.mark.parametrize("name", ["llama", "gemma3", "gemma4_shared_keys", "gpt_neox", "phi3_longrope"])
def test_texts_are_those_of_plain_decoding(name, dtype):
    plain, speculative = decoders(name, dtype)
    prompts = [tiny.random_tokens(length, length) for length in (3, 11)]
    options: list[dict[str, Any]] = [{}, {"temperature": 1.0, "seed": 5}]
    for each in options:
        alone = [plain.generate(prompt, max_new_tokens=10, **each) for prompt in prompts]
        drafted = [speculative.generate(prompt, max_new_tokens=10, **each) for prompt in prompts]
        together = speculative.generate(prompts, max_new_tokens=10, **each)
        assert [text.tokens for text in drafted] == [text.tokens for text in alone]
        assert [text.tokens for text in together] == [text.tokens for text in alone]
        assert any(text.metrics.rounds[0].nodes > 1 for text in drafted)


@torch.inference_mode()
def test_draft_heads():
    """`choose_head_backend` compares drafts with the head's own; levels of a tree have the bits of a single pass."""
    head = eagle3.FORMAT.load(
        checkpoints.FORMATS["SafeAILab"].tensors(), checkpoints.FORMATS["SafeAILab"].fields(), checkpoints.target()
    ).modules[0]
    backend: Any = choose_head_backend(head)
    assert isinstance(backend.backend, TritonBackend)
    states = torch.randn(1, TREE.size, head.fc.out_features, generator=torch.Generator().manual_seed(0))
    tree = TREE.tokens % head.config.vocab

    def forward(runner: HeadBackend) -> tuple[Tensor, Tensor]:
        segment = Segment(runner.new_cache(16), tree, TREE.depths, TREE.ancestors)
        other = Segment(runner.new_cache(16), tree, TREE.depths, TREE.ancestors)
        logits, outputs = runner([other, segment], torch.cat([states.flip(1), states], 1))
        return logits[TREE.size :], outputs[0, TREE.size :]

    wanted = forward(backend)
    for found, fused in zip(wanted, forward(HeadBackend(head, FusedBackend(head))), strict=True):
        torch.testing.assert_close(found, fused, atol=1e-4, rtol=1e-4)
    recorded = HeadBackend(head, RecordedBackend(backend.backend, Launches()))
    forward(recorded)
    assert same(forward(recorded), wanted)
    levels = []
    cache = backend.new_cache(16)
    for depth in range(TREE.levels + 1):
        (nodes,) = (TREE.depths == depth).nonzero()
        level = slice(nodes[0], nodes[-1] + 1)
        visible = TREE.ancestors[level, : level.stop]
        levels.append(backend([Segment(cache, tree[level], TREE.depths[level], visible)], states[:, level]))
    assert torch.equal(torch.cat([logits for logits, _ in levels]), wanted[0])


@pytest.mark.slow
def test_multi_token_prediction(tmp_path):
    """The target and its MTP layer run on the kernels."""
    checkpoints.MTP["llama"].write_with_target(tmp_path)
    options: Any = {"policy": "talon", "dtype": "float32", "device": "cpu", "tokenizer": words("a", "b")}
    decoder = drafttree.load(tmp_path, drafter="mtp", **options)
    assert isinstance(decoder.target.backend, TritonBackend)
    (head,) = decoder.drafter.heads
    assert isinstance(head.model.backend, TritonBackend)
    plain = drafttree.load(tmp_path, drafter="none", **options)
    prompt = [5, 17, 3, 88, 41, 7]
    assert decoder.generate(prompt, max_new_tokens=12).tokens == plain.generate(prompt, max_new_tokens=12).tokens


@torch.inference_mode()
def test_a_fork_goes_on_as_its_text():
    backend = TritonBackend(build("llama", torch.bfloat16))
    segment = tree_behind(backend, PREFIX)
    fork = backend.new_cache(4)
    assert fork.copy_from(segment.cache, 7) == 7
    append(backend, fork, PREFIX[7:])
    outputs = backend.forward([segment._replace(cache=fork), segment], hidden_layers=(1,))
    assert same(flat(outputs[:1]), flat(outputs[1:]))


@every_dtype
@torch.inference_mode()
def test_lossy_windows(dtype):
    """The text is far longer than its window, so rows are dropped; plain decoding and trees see the same ones."""
    module = build("llama", dtype, layers=1)
    window = LossyWindow(6, 2)
    backend = choose_backend(module, Wants(lossy_window=window))
    assert isinstance(backend, WindowedBackend)
    assert isinstance(backend._inner_backend, TritonBackend)
    prefix = tiny.random_tokens(21, 4)
    segment = tree_behind(backend, prefix, parts=3)
    assert segment.cache.windowed.dropped
    alone = backend.forward([segment])[0].logits[0]
    fused = WindowedBackend(FusedBackend(module), window)
    wanted = fused.forward([tree_behind(fused, prefix, parts=3)])[0].logits[0]
    torch.testing.assert_close(alone, wanted, atol=1e-5 if dtype == torch.float32 else 0.15, rtol=1e-5)
    path = tiny.leaf_paths(TREE)[-1]
    cache = tree_behind(backend, prefix, parts=2).cache
    steps = torch.cat([append(backend, cache, [token]).logits[0] for token in TREE.tokens[path].tolist()])
    assert torch.equal(steps, alone[path])
    recorded_backend = WindowedBackend(RecordedBackend(backend._inner_backend, Launches()), window)
    recorded = recorded_backend.forward([tree_behind(recorded_backend, prefix, parts=3)])[0].logits[0]
    assert torch.equal(recorded, alone)


@pytest.mark.few(1)
@every_dtype
@pytest.mark.parametrize("name", ["llama", "gemma4_shared_keys", "gemma3", "phi3_longrope"])
@torch.inference_mode()
def test_recorded_launches_give_the_same_bits(name, dtype):
    """What is recorded knows nothing of the host: other texts, lengths and trees run in the same launches."""
    backend = TritonBackend(build(name, dtype, layers=1))
    recorder = Launches()
    recorded_backend = RecordedBackend(backend, recorder)
    recorded_backend.reserve(8192)  # so that no cache moves
    trees = [tiny.random_tree(widths, seed) for seed, widths in enumerate([(1, 3), (2, 2, 1), ()])]
    for lengths in ((9, 4, 0), (2, 17, 12)):
        wanted, found = (
            each.forward(
                [
                    tree_behind(each, tiny.random_tokens(length, length), tree)
                    for length, tree in zip(lengths, trees, strict=True)
                ],
                hidden_layers=(1,),
            )
            for each in (backend, recorded_backend)
        )
        assert same(flat(found), flat(wanted))
    keys = {sizes for sizes, _ in backend.inputs.pool.passes}
    assert {sizes.trees.nodes for sizes in keys} <= set(tree_inputs.NODES)
    assert recorder.recorded == len(backend.inputs.pool.passes) <= 6


@torch.inference_mode()
def test_dirty_rows_and_padding_change_nothing():
    backend = TritonBackend(build("llama", torch.bfloat16, layers=1))
    recorded_backend = RecordedBackend(backend, Launches())
    first = tree_behind(recorded_backend, PREFIX)
    wanted = flat(recorded_backend.forward([first], hidden_layers=(1,)))
    for buffer in backend.inputs.pool.buffers:
        buffer.fill_(torch.nan)
    again = tree_behind(recorded_backend, PREFIX)
    for buffer in backend.inputs.pool.buffers:
        rows = slice(again.cache.pooled.start + again.cache.length, None)
        buffer[..., rows, :] = torch.nan
    assert same(flat(recorded_backend.forward([again], hidden_layers=(1,))), wanted)


@torch.inference_mode()
def test_large_passes_are_not_recorded(monkeypatch):
    monkeypatch.setattr(tree_inputs, "NODES", (1, 8))
    backend = TritonBackend(build("llama", layers=1))
    recorder = Launches()
    recorded_backend = RecordedBackend(backend, recorder)
    prefix = tiny.random_tokens(12, 3)
    found = append(recorded_backend, recorded_backend.new_cache(16), prefix).logits
    assert recorder.recorded == 0
    assert torch.equal(found, append(backend, backend.new_cache(16), prefix).logits)


@torch.inference_mode()
def test_texts_may_move_the_rows_of_all():
    backend = TritonBackend(build("llama", torch.bfloat16, layers=1))
    segments = [tree_behind(backend, PREFIX)]
    alone = flat(backend.forward([tree_behind(backend, PREFIX)], hidden_layers=(1,)))
    first_buffer = backend.inputs.pool.buffers[0]
    segments += [tree_behind(backend, [], tiny.random_tree((), seed)) for seed in range(4)]
    found = flat(backend.forward(segments, hidden_layers=(1,))[:1])
    assert backend.inputs.pool.buffers[0] is not first_buffer
    assert same(found, alone)


MOST_LAUNCHES = {
    "llama": 11,
    "qwen2": 11,
    "qwen3": 12,
    "phi3": 11,
    "granite": 11,
    "mistral": 11,
    "smollm3": 11,
    "gemma3": 12,
    "olmo2": 13,
    "gpt_neox": 12,
    "gpt_neox_in_turn": 11,
}
"""Launches of a layer whose products are all split: norms of heads take one (OLMo two), another norm of the residual
stream one."""


@pytest.mark.parametrize("name", MOST_LAUNCHES)
@torch.inference_mode()
def test_a_layer_takes_few_launches(name):
    counts = []
    for layers in (1, 3):
        config = CONFIGS[name]()
        config.hidden_size, config.intermediate_size, config.num_hidden_layers = 1024, 1024, layers
        if config.to_dict().get("layer_types"):
            config.layer_types = config.layer_types[:1] * layers
        backend = TritonBackend(tiny.from_config(config).to(torch.bfloat16))
        segment = Segment.of_text(backend.new_cache(8), [1, 2])
        counts.append(len(launches_of(lambda segment=segment, backend=backend: backend.forward([segment]))))
    assert (counts[1] - counts[0]) / 2 == MOST_LAUNCHES[name]
    assert counts[0] - MOST_LAUNCHES[name] <= 3  # the first norm, and the head


@torch.inference_mode()
def test_a_pass_takes_one_copy_from_the_host(monkeypatch):
    copies = []

    def noted(arrays: Any, memory: Tensor) -> None:
        copies.append(len(arrays))
        host_copies.send_to(arrays, memory)

    monkeypatch.setattr(packed_inputs, "send_to", noted)
    monkeypatch.setattr(kv_cache, "send", lambda *_: pytest.fail("a second copy"))
    backend = TritonBackend(build("gemma4_shared_keys", torch.bfloat16))
    recorded_backend = RecordedBackend(backend, Replays())
    for runner in (backend, recorded_backend):
        segments = [tree_behind(runner, [], tiny.random_tree((2,), seed)) for seed in range(3)]
        copies.clear()
        launches_of(lambda runner=runner, segments=segments: runner.forward(segments))
        assert copies == [4]


COMPILE = """
import sys
import torch
from drafttree.models import Segment
from drafttree.models.triton.triton_backend import TritonBackend
from helpers.triton_compiler import MOST_SHARED_MEMORY, launches_of
from testing import command_line, tiny
from testing.fused_families import CONFIGS

capability, dtype, name = int(sys.argv[1]), getattr(torch, sys.argv[2]), sys.argv[3]
backend = TritonBackend(tiny.from_config(CONFIGS[name]()).to(dtype))
with torch.inference_mode():
    segments = [Segment.of_text(backend.new_cache(8), tokens) for tokens in ([1, 2], [1])]
    kernels = launches_of(capability, lambda: backend.forward(segments))
assert all(kernel.shared <= MOST_SHARED_MEMORY[capability] for kernel in kernels)
print(len(kernels))
"""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("capability", "dtype", "name"),
    [
        (90, "bfloat16", "qwen3"),
        (80, "float16", "olmo3"),
        (89, "bfloat16", "gemma4_shared_keys"),
        (90, "float32", "gpt_neox"),
    ],
)
def test_a_whole_pass_compiles_for_gpus(tmp_path, capability, dtype, name):
    root = Path(__file__).parents[3]
    places = [str(root), str(root / "src"), str(root / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(places)}
    environment.pop("TRITON_INTERPRET", None)
    arguments = [sys.executable, "-c", COMPILE, str(capability), dtype, name]
    result = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[:4000]
    assert int(result.stdout) > 3 * 8


def chosen_without_kernels(module: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """The backend of a module without the variable; it knows nothing of kernels in Triton."""
    with monkeypatch.context() as patch:
        patch.delenv("DRAFTTREE_TRITON")
        backend = choose_backend(module)
    assert "Triton" not in f"{backend.name} {backend.fallback_reason}"
    return backend


def tree_logits_of(backend: Backend) -> Tensor:
    return backend.forward([tree_behind(backend, PREFIX)])[0].logits


@pytest.mark.parametrize("name", sorted(EXPERTS))
def test_mixtures_of_experts_run_as_without_the_variable(name, monkeypatch, caplog):
    """One line of the log says what runs them and why."""
    wanted = chosen_without_kernels(build(name), monkeypatch).name
    caplog.set_level(logging.INFO, "drafttree")
    target = TargetModel(build(name), choose_backend)
    reason = "no TritonBackend: it has experts, for which there are no kernels"
    assert target.runs_on == f"{wanted} ({reason})"
    (line,) = [record.message for record in caplog.records if "Triton" in record.message]
    assert line == f"{type(target.module).__name__} runs on {wanted}: {reason}"


def test_on_a_cpu_the_interpreter_must_be_asked_for(monkeypatch):
    wanted = chosen_without_kernels(build("llama", torch.bfloat16), monkeypatch)
    monkeypatch.delenv("TRITON_INTERPRET")
    backend = choose_backend(build("llama", torch.bfloat16))
    assert type(backend) is type(wanted)
    assert backend.fallback_reason == "no TritonBackend: its kernels do not run on cpu"


def test_reasons(monkeypatch):
    assert why_not_triton(build("llama").double()) == "its kernels do not know float64"
    assert why_not_triton(tiny.build("gpt2")) == "layers of the family gpt2 are not known"
    with monkeypatch.context() as patch:
        patch.setattr(triton_support, "find_spec", lambda _: None)
        assert why_not_triton(build("llama")) == "Triton is not installed (pip install drafttree[cuda])"
        patch.delenv("TRITON_INTERPRET")
        assert why_not_triton(build("llama")) == "its kernels do not run on cpu"


def test_a_kernel_that_does_not_compile_is_told(monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("PTX is not known to this GPU\nmore")

    wanted = chosen_without_kernels(build("llama"), monkeypatch)
    monkeypatch.setattr(TritonBackend, "run_layers", fail)
    backend = choose_backend(build("llama"))
    assert type(backend) is type(wanted)
    assert torch.equal(tree_logits_of(backend), tree_logits_of(wanted))
    reason = "no TritonBackend: a kernel does not run (RuntimeError: PTX is not known to this GPU)"
    assert backend.fallback_reason == reason


def test_layers_that_differ_are_not_trusted(monkeypatch):
    from drafttree.models.triton import triton_layer

    wanted = chosen_without_kernels(build("llama"), monkeypatch)
    monkeypatch.setattr(triton_layer, "activate_linear", lambda x, weight, *_, gated: x.new_zeros(len(x), 48))
    backend = choose_backend(build("llama"))
    assert type(backend) is type(wanted)
    assert torch.equal(tree_logits_of(backend), tree_logits_of(wanted))
    assert "no TritonBackend: its logits differ by" in str(backend.fallback_reason)


def test_exact_text_is_taken_as_it_is():
    backend = choose_backend(build("qwen2", torch.bfloat16), Wants(exact_text=True))
    assert isinstance(backend, TritonBackend)


def test_names_tell_what_is_recorded():
    backend = TritonBackend(build("llama", layers=1))
    recorded_backend = RecordedBackend(backend, Launches())
    assert recorded_backend.name == "RecordedBackend of TritonBackend"
    assert WindowedBackend(recorded_backend, LossyWindow(6, 2)).name == f"WindowedBackend of {recorded_backend.name}"
    target = TargetModel(build("llama", layers=1), lambda _: recorded_backend)
    assert repr(target).endswith(", cpu, RecordedBackend of TritonBackend)")


def test_inspect_tells_whether_kernels_run(tmp_path, monkeypatch):
    module = build("llama", layers=1)
    module.save_pretrained(tmp_path)
    assert {inspect(source).details["Triton passes"] for source in (module, str(tmp_path))} == {"yes"}
    assert "Triton passes" in command_line.run("inspect", tmp_path).output
    monkeypatch.delenv("TRITON_INTERPRET")
    refusal = "no: its kernels do not run on cpu"
    assert {inspect(source).details["Triton passes"] for source in (module, str(tmp_path))} == {refusal}
    monkeypatch.delenv("DRAFTTREE_TRITON")
    assert not any("Triton passes" in inspect(source).details for source in (module, str(tmp_path)))
