"""Modules whose weights are quantised, offloaded or not all there run as they are, or are refused in a line."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import cpu_offload, dispatch_model
from torch import nn
from transformers import (
    AutoModel,
    GraniteMoeHybridConfig,
    LlamaConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForTokenClassification,
)

import drafttree
from drafttree.drafters import LanguageModelDrafter
from drafttree.errors import ModelError
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.base import prefill
from drafttree.models.module.module_backend import ModuleBackend
from drafttree.models.module.module_checks import check_module
from helpers.refusals import told
from testing import tiny

PROMPT = tiny.random_tokens(6, 1) * 2
ON_CPU = ("model.embed_tokens", "model.rotary_emb", "model.layers.0", "model.layers.2", "model.norm", "lm_head")


def stock(module: PreTrainedModel) -> list[int]:
    ids = torch.tensor([PROMPT])
    text = module.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
    return text[0, len(PROMPT) :].tolist()


def quantised(module: PreTrainedModel) -> PreTrainedModel:
    """Its linear layers by torchao, weights in eight bits."""
    torchao = pytest.importorskip("torchao.quantization", reason="its import prints warnings, so it is not required")
    torchao.quantize_(module, torchao.Int8WeightOnlyConfig())
    return module


def in_two_parts(module: PreTrainedModel) -> PreTrainedModel:
    """The output layer in a low-rank form."""
    width = module.config.hidden_size
    module.lm_head = nn.Sequential(nn.Linear(width, 8), nn.Linear(8, tiny.VOCAB))
    return module


def without_projection(module: PreTrainedModel) -> PreTrainedModel:
    module.model.layers[1].self_attn.o_proj = nn.Identity()
    return module


def untied(module: PreTrainedModel) -> PreTrainedModel:
    module.lm_head.weight = nn.Parameter(torch.randn_like(module.lm_head.weight))
    return module


def granite() -> PreTrainedModel:
    """A model of a family that may have recurrent layers, with none."""
    recurrent = {"mamba_n_heads": 8, "mamba_d_state": 8, "mamba_d_head": 8}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 16}
    config = GraniteMoeHybridConfig(**tiny.GROUPED, **recurrent, **experts, layer_types=["attention"] * tiny.LAYERS)
    return tiny.from_config(config)


SERVED = {
    "a hybrid that only attends": lambda _: granite(),
    "torchao": quantised,
    "offloaded": lambda module: cpu_offload(module, execution_device=torch.device("cpu")),
    "in part on disk": lambda module, folder: dispatch_model(
        module,
        dict.fromkeys(ON_CPU, "cpu") | {"model.layers.1": "disk"},
        main_device="cpu",
        offload_dir=folder,
        force_hooks=True,
    ),
    "a head in two parts": in_two_parts,
    "a layer without a projection": without_projection,
    "untied weights": untied,
    "in training mode": lambda module: module.train(),
    "a layer with normed weights": lambda module: (
        nn.utils.parametrizations.weight_norm(module.model.layers[1].mlp.up_proj) and module
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("case", SERVED)
def test_unusual_modules_write_their_own_text(case, tmp_path):
    module = tiny.from_config(LlamaConfig(**tiny.GROUPED, tie_word_embeddings=case == "untied weights"))
    change = SERVED[case]
    module = change(module, tmp_path) if "disk" in case else change(module)
    expected = stock(module.eval())
    draft = LanguageModelDrafter(TargetModel(tiny.build("llama", 3)))
    for policy in ("chain", "dynatree"):
        decoder = drafttree.load(module, draft, policy)
        for each in (decoder, decoder.plain()):
            assert each.generate(PROMPT, max_new_tokens=16).tokens == expected


def test_quantised_weights_in_bfloat16_give_the_modules_logits():
    module, tree, prefix = quantised(tiny.build("llama").bfloat16()), tiny.random_tree((3, 4, 2), 2), PROMPT
    model = TargetModel(module, choose_backend)
    assert type(model.backend) is ModuleBackend
    cache = model.new_cache(24)
    prefill(model, cache, prefix)
    logits = tiny.score(model, cache, tree)[0]
    model.release()
    assert tiny.worst_gap(logits, module, prefix, tree) <= 4 * torch.finfo(module.dtype).eps * float(logits.abs().max())


def medusa_head(folder: Path) -> Path:
    width = tiny.SIZES["hidden_size"]
    shapes = {"0.0.linear.weight": (width, width), "0.0.linear.bias": (width,), "0.1.weight": (tiny.VOCAB, width)}
    torch.save({name: torch.ones(shape) for name, shape in shapes.items()}, folder / "medusa_lm_head.pt")
    return folder


def test_a_quantised_target_may_have_a_head(tmp_path):
    module = quantised(tiny.build("llama"))
    expected = stock(module)
    assert drafttree.load(module, medusa_head(tmp_path)).generate(PROMPT, max_new_tokens=16).tokens == expected


def test_an_offloaded_target_lends_nothing_to_a_head(tmp_path):
    module = cpu_offload(tiny.build("llama"), execution_device=torch.device("cpu"))
    message = told(ModelError, drafttree.load, module, medusa_head(tmp_path))
    assert "it reads the target's weights, but accelerate has offloaded them; use a language model" in message


def dynamically_quantised(module: PreTrainedModel) -> PreTrainedModel:
    return torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)


def loaded_in_part(module: PreTrainedModel) -> PreTrainedModel:
    module.model.layers[1].mlp.to("meta")
    return module


def of_two_dtypes(module: PreTrainedModel) -> PreTrainedModel:
    module.model.layers[1].mlp.bfloat16()
    return module


class Int8WithOutliers(nn.Linear):
    """Stands for bitsandbytes' `Linear8bitLt`: columns with an outlier in any row are not rounded, all others are."""

    __module__ = "bitsandbytes.nn.modules"

    def __init__(self, linear: nn.Linear, threshold: float) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None)
        self.load_state_dict(linear.state_dict())
        self.state = SimpleNamespace(threshold=threshold)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outliers = (x.abs() > self.state.threshold).flatten(0, -2).any(0) & (self.state.threshold > 0)
        rest = x.masked_fill(outliers, 0)
        scale = rest.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
        return super().forward(torch.where(outliers, x, (rest / scale).round() * scale))


def in_int8(module: PreTrainedModel, threshold: float) -> PreTrainedModel:
    for layer in module.model.layers:
        layer.mlp.down_proj = Int8WithOutliers(layer.mlp.down_proj, threshold).to(module.dtype)
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_int8_layers_that_keep_outliers_are_refused_in_every_dtype(dtype):
    message = told(ModelError, drafttree.load, in_int8(tiny.build("llama").to(dtype), 6.0), "lookup")
    assert "a column otherwise if any token of a pass has an outlier in it" in message
    assert "llm_int8_threshold=0" in message


def test_int8_layers_without_outliers_write_plain_decodings_text():
    module = in_int8(tiny.build("llama"), 0.0)
    expected = stock(module)
    assert drafttree.load(module, "lookup").generate(PROMPT, max_new_tokens=16).tokens == expected


REFUSED = {
    "no values": (lambda module: module.to("meta"), "model.embed_tokens.weight has no values"),
    "in part": (loaded_in_part, "loaded in part: model.layers.1.mlp.gate_proj.weight has no values"),
    "no head": (lambda module: AutoModel.from_config(module.config), "LlamaModel has no language-model head"),
    "another head": (
        lambda _: Qwen2ForTokenClassification(Qwen2Config(**tiny.GROUPED)),
        "Qwen2ForTokenClassification has no language-model head; load it with AutoModelForCausalLM",
    ),
    "dynamic": (dynamically_quantised, "dynamically quantised layers, which round all tokens of a pass together"),
    "two dtypes": (
        of_two_dtypes,
        "LlamaForCausalLM cannot compute its own logits (rows of torch.float32 are",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_modules_that_cannot_be_served_are_told(case):
    change, message = REFUSED[case]
    module = change(tiny.build("llama"))
    before = module.config._attn_implementation
    assert message in told(ModelError, drafttree.load, module, "lookup")
    assert module.config._attn_implementation == before


def test_weights_on_several_devices_are_told(monkeypatch):
    module = tiny.build("llama")
    places = {name: SimpleNamespace(is_meta=False, device=name) for name in ("cuda:0", "cuda:1")}
    monkeypatch.setattr(module, "named_parameters", places.items)
    assert "is on several devices (cpu, cuda:0, cuda:1)" in told(ModelError, check_module, module)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
def test_layers_that_were_taken_out_are_told_and_swapped_ones_are_served(name):
    module = tiny.build(name)
    TargetModel(module, choose_backend)
    del module.model.layers[0]
    with pytest.raises(
        ModelError, match=r"has 2 layers, but the layer_idx of their attention is \[1, 2\]; if layers were removed"
    ):
        TargetModel(module, choose_backend)
    for place, block in enumerate(module.model.layers):
        block.self_attn.layer_idx = place
    TargetModel(module, choose_backend)
