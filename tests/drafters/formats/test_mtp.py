"""MTP layers on disk: how they are found and named, what is read of a checkpoint, and what is wrong with one."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, Qwen2Config, Qwen2ForCausalLM

import drafttree
from drafttree.drafters import HeadDrafter, PromptLookupDrafter
from drafttree.drafters.formats import checkpoints, mtp, recognise
from drafttree.errors import ModelError
from drafttree.loading import choose_drafter
from drafttree.loading.inspect import inspect
from helpers.checkpoints import MTP, in_fp8
from helpers.refusals import told
from helpers.trained import check_roots
from testing import tiny
from testing.tokenizers import words

every_kind = pytest.mark.parametrize("name", MTP)


def written(folder: Path, name: str = "llama", layers: int = 1) -> Path:
    replace(MTP[name], layers=layers).write_with_target(folder)
    words("a", "b").save_pretrained(folder)
    return folder


def changed(folder: Path, change) -> None:
    """Change the tensors of a checkpoint, a dictionary, in place."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def alone(folder: Path, out: Path) -> Path:
    """A folder with the MTP layers of a checkpoint alone."""
    tensors = load_file(folder / "model.safetensors")
    names = mtp.own_names(folder, AutoConfig.from_pretrained(folder))
    out.mkdir()
    save_file({name: tensors[name] for name in names}, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text((folder / "config.json").read_text())
    return out


def refusal(folder: Path) -> str:
    return told(ModelError, drafttree.load, folder, "mtp", device="cpu", dtype="float32")


@pytest.mark.few(1)
@every_kind
def test_a_folder_of_its_own_is_recognised_and_drafts_as_in_the_checkpoint(name, tmp_path):
    folder = written(tmp_path / "whole", name)
    assert recognise(folder) == "language-model"
    own = alone(folder, tmp_path / "own")
    assert recognise(own) == "mtp"
    decoder = drafttree.load(folder, own, "chain", device="cpu", dtype="float32")
    assert isinstance(decoder.drafter, HeadDrafter)
    other = decoder.with_drafter(drafttree.load(folder, "mtp", device="cpu", dtype="float32").drafter)
    given = {"max_new_tokens": 12, "ignore_eos": True}
    one, two = decoder.generate([3, 5, 9], **given), other.generate([3, 5, 9], **given)
    assert one.tokens == two.tokens
    assert [turn.accepted for turn in one.metrics.rounds] == [turn.accepted for turn in two.metrics.rounds]
    assert inspect(str(own)).kind == "mtp"
    assert inspect(str(own)).problems == ()
    assert inspect(str(folder)).details["MTP layers"] == 'as drafter "mtp"'


def test_layers_of_vllm_speculators_are_named_as_mimos_and_read_embeddings_first(tmp_path):
    own = {"parts": [name.removeprefix("model.") for name in MTP["mimo"].parts], "block": "mtp_layers.{}."}
    form = replace(MTP["mimo"], **own, states_first=False)
    folder, target = form.write(tmp_path, speculators_model_type="mtp"), form.target()
    clone = deepcopy(target)
    decoder = drafttree.load(target, folder, "chain", device="cpu", dtype="float32")
    assert len(check_roots(decoder, clone, form, form.tensors(), [3, 1, 4, 1, 5], 14)) > 2


def test_a_nextn_folder_whose_parts_stand_above_its_layer_is_recognised():
    parts = ["enorm", "hnorm", "eh_proj", "shared_head.norm"]
    names = [
        *(f"model.{part}.weight" for part in parts),
        "model.layers.0.mlp.up_proj.weight",
        "model.embed_tokens.weight",
    ]
    assert mtp.has_layers_only(names)
    assert mtp.find_mtp_tensors(names)["model.shared_head.norm.weight"] == (None, "post_norm.weight")
    assert "model.embed_tokens.weight" not in mtp.find_mtp_tensors(names)


@every_kind
def test_auto_takes_layers_of_families_that_were_compared(name, tmp_path):
    assert mtp.is_tried(MTP[name].config())


def test_auto_leaves_layers_of_other_families_to_those_who_ask(tmp_path, monkeypatch):
    folder = written(tmp_path)
    assert choose_drafter(folder).name == "mixed:mtp"
    monkeypatch.setattr(mtp, "TRIED", frozenset())
    assert choose_drafter(folder).name == "lookup"
    assert isinstance(drafttree.load(folder, "mtp", device="cpu").drafter, HeadDrafter)


def test_only_the_tensors_of_the_layers_are_read(tmp_path, monkeypatch):
    folder = written(tmp_path)
    read = []
    opened = checkpoints.safe_open

    class Noted:
        def __init__(self, *arguments):
            self._file = opened(*arguments)

        def __enter__(self):
            self._inner = self._file.__enter__()
            return self

        def __exit__(self, *error):
            return self._file.__exit__(*error)

        def keys(self):
            return self._inner.keys()

        def get_tensor(self, name):
            read.append(name)
            return self._inner.get_tensor(name)

    monkeypatch.setattr(checkpoints, "safe_open", Noted)
    drafttree.load(folder, "mtp", device="cpu", dtype="float32")
    assert read
    assert all(name.startswith("mtp.") for name in read)


def test_of_shards_only_those_with_layers_are_opened(tmp_path):
    folder = written(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    own = {name for name in tensors if name.startswith("mtp.")}
    shards = {"a.safetensors": own, "b.safetensors": tensors.keys() - own}
    for file, names in shards.items():
        save_file({name: tensors[name] for name in names}, folder / file, {"format": "pt"})
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {name: file for file, names in shards.items() for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "b.safetensors").write_bytes(b"no tensors")
    assert checkpoints.read_tensors(folder, own).keys() == own
    with pytest.raises(ModelError, match=r"b\.safetensors"):
        checkpoints.read_tensors(folder)


def test_a_promise_that_the_files_do_not_keep_is_told_with_the_field(tmp_path):
    folder = written(tmp_path, "deepseek_v3")
    changed(folder, lambda tensors: [tensors.pop(name) for name in [*tensors] if "layers.3." in name])
    message = refusal(folder)
    assert "config.json gives num_nextn_predict_layers as 1, but" in message
    assert "holds no MTP layers; take the original checkpoint" in message
    assert choose_drafter(folder).name == "lookup"


def test_a_lost_first_layer_is_told_without_a_promise(tmp_path):
    folder = written(tmp_path, "deepseek_v3", layers=2)
    config = json.loads((folder / "config.json").read_text())
    config.pop("num_nextn_predict_layers")
    (folder / "config.json").write_text(json.dumps(config))
    tensors, depth = load_file(folder / "model.safetensors"), config["num_hidden_layers"]
    first = f"model.layers.{depth}."
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(first)}
    assert len(kept) < len(tensors)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    assert "layers before 1 are missing" in refusal(folder)


def test_fewer_layers_than_promised_are_told_with_the_field(tmp_path):
    folder = written(tmp_path, "deepseek_v3")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 3}))
    assert "missing 2 of the 3 layers that num_nextn_predict_layers in config.json promises" in refusal(folder)


def test_a_checkpoint_without_layers_says_what_else_drafts(tmp_path):
    tiny.build("llama").save_pretrained(tmp_path)
    words("a", "b").save_pretrained(tmp_path)
    assert "holds no MTP layers; draft with a head, a smaller language model, or lookup" in refusal(tmp_path)
    own = tiny.build("llama")
    own.config._name_or_path = own.name_or_path = ""
    message = told(ModelError, drafttree.load, own, "mtp", tokenizer=words("a"), device="cpu")
    assert "this loaded model does not say where its files are" in message


def test_layers_by_unknown_names_are_named(tmp_path):
    folder = written(tmp_path, "deepseek_v3")
    tensors = load_file(folder / "model.safetensors")
    own = mtp.own_names(folder, AutoConfig.from_pretrained(folder))
    renamed = {name.replace("model.layers.", "mtp_stage.") if name in own else name: tensors[name] for name in tensors}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    message = refusal(folder)
    assert "holds mtp_stage.3.eh_proj.weight, mtp_stage.3.enorm.weight, mtp_stage.3.hnorm.weight" in message
    assert f" and {len(own) - 4} more, which are not MTP layers that drafttree knows; draft with a head" in message


def test_layers_alone_are_no_target(tmp_path):
    own = MTP["ernie4_5_moe"].write(tmp_path)
    assert (
        "is a drafter (mtp), not a model; give it as the drafter, and the model it is made for as the target"
        in refusal(own)
    )


def test_a_target_with_code_of_its_own_has_its_layers_built_by_that_code(tmp_path):
    class MiMoConfig(Qwen2Config):
        model_type = "mimo"

    class MiMo(Qwen2ForCausalLM):
        config_class = MiMoConfig

    folder = written(tmp_path, "mimo")
    target = MiMo.from_pretrained(folder, config=MiMoConfig.from_pretrained(folder), dtype=torch.float32)
    decoder = drafttree.load(target, tokenizer=words("a", "b"), device="cpu")
    assert decoder.drafter.name == "mixed:mtp"
    assert isinstance(decoder.drafter.model.heads[0].model.module, MiMo)


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ("mtp.fc.weight", "missing eh_proj.weight of layer 0"),
        ("mtp.norm.weight", "missing post_norm.weight of layer 0"),
        ("mtp.layers.0.mlp.up_proj.weight", "in MTP layer 0 missing mlp.up_proj.weight"),
        ("model.mtp_hidden_norm.0.weight", "missing hnorm.weight of layer 0"),
        ("model.mtp_linear_proj.0.weight", "the tensors of the MTP head are wrong: missing eh_proj.weight of layer 0"),
        ("model.layers.3.enorm.weight", "missing enorm.weight of layer 0"),
        ("model.layers.3.mlp.gate.e_score_correction_bias", "missing mlp.gate.e_score_correction_bias"),
        ("model.layers.3.mlp.experts.2.gate_proj.weight", "missing model.layers.3.mlp.experts.2.gate_proj.weight"),
        ("model.mtp_layers.0.final_layernorm.weight", "missing post_norm.weight of layer 0"),
    ],
)
def test_half_a_layer_is_told_part_by_part(lost, named, tmp_path):
    family = next(name for name in ("llama", "ernie4_5_moe", "mimo", "deepseek_v3") if lost in MTP[name].tensors())
    folder = written(tmp_path / "whole", family)
    changed(folder, lambda tensors: tensors.pop(lost))
    assert refusal(folder).endswith(named)
    own = alone(folder, tmp_path / "own")
    assert told(ModelError, drafttree.load, folder, own, device="cpu", dtype="float32").endswith(named)


def test_strange_parts_are_told(tmp_path):
    folder = written(tmp_path)
    changed(folder, lambda tensors: tensors.update({"mtp.layers.0.gate.weight": torch.ones(2)}))
    assert "unexpected gate.weight" in refusal(folder)


def test_a_family_without_such_a_decoder_layer_is_told_by_name(tmp_path):
    folder = written(tmp_path)
    changed(
        folder,
        lambda tensors: tensors.update({"mtp.layers.0.mlp.experts.0.up_proj.weight": torch.ones(4, 32)}),
    )
    assert "MTP layer of llama are wrong: in MTP layer 0 unexpected mlp.experts.0.up_proj.weight" in refusal(folder)


def test_auto_takes_lookup_where_the_layers_cannot_be_run(tmp_path, caplog):
    folder = written(tmp_path)
    changed(folder, lambda tensors: tensors.update({"mtp.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(2)}))
    decoder = drafttree.load(folder, device="cpu", dtype="float32")
    assert isinstance(decoder.drafter, PromptLookupDrafter)
    assert "drafter: lookup (cannot load drafter 'mtp'" in caplog.text


def test_layers_in_fp8_beside_a_target_that_is_not_are_read(tmp_path):
    folder = written(tmp_path)
    changed(folder, lambda tensors: tensors.update(in_fp8(MTP["llama"].tensors(), "rows")[0]))
    assert load_file(folder / "model.safetensors")["mtp.layers.0.mlp.up_proj.weight"].dtype == torch.float8_e4m3fn
    assert isinstance(drafttree.load(folder, "mtp", device="cpu", dtype="bfloat16").drafter, HeadDrafter)


def test_further_layers_of_a_target_are_no_mtp_layers(tmp_path):
    folder = written(tmp_path)
    changed(folder, lambda tensors: [tensors.pop(name) for name in [*tensors] if name.startswith("mtp.")])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    assert choose_drafter(folder).name == "lookup"


def test_a_model_without_a_name_has_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(written(tmp_path))
    target = tiny.build("llama")
    target.config._name_or_path = target.name_or_path = ""
    assert choose_drafter(target).name == "lookup"
