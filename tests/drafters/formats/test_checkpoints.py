"""Reading drafter files and telling them apart: what comes back is tensors or one line that says what is wrong."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from drafttree.drafters.formats import download, read_config, read_tensors, recognise
from drafttree.drafters.formats.checkpoints import tensor_names
from drafttree.errors import ModelError
from drafttree.loading import zoo

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([True, False]), "c": torch.ones(2, dtype=torch.half)}


class Runs:
    """What a pickle must not do when it is read."""

    def __reduce__(self):
        return os.mkdir, ("/tmp/drafttree-has-run-a-pickle",)


def told(call, *arguments) -> str:
    with pytest.raises(ModelError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def same(tensors) -> bool:
    return tensors.keys() == TENSORS.keys() and all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


WRITERS = {
    "model.safetensors": lambda path: save_file(TENSORS, path),
    "pytorch_model.bin": lambda path: torch.save(TENSORS, path),
    "medusa_lm_head.pt": lambda path: torch.save(TENSORS, path, _use_new_zipfile_serialization=False),
    "hydra_lm_head.pt": lambda path: torch.save(TENSORS, path),
    "eagle.safetensors": lambda path: save_file(TENSORS, path),
    "anything.bin": lambda path: torch.save(TENSORS, path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_is_read(name, tmp_path):
    WRITERS[name](tmp_path / name)
    torch.save({"step": 3}, tmp_path / "optimizer.bin")
    assert same(read_tensors(tmp_path))
    assert tensor_names(tmp_path) == TENSORS.keys()


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.97])
def test_truncated_files(name, share, tmp_path):
    path = tmp_path / name
    WRITERS[name](path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    for read in (read_tensors, tensor_names):
        message = told(read, tmp_path)
        assert str(path) in message
        assert "download or copy it again" in message


def test_a_file_that_is_too_large_to_be_mapped_is_not_called_damaged(tmp_path):
    size, path = 2**42, tmp_path / "model.safetensors"
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + size)  # sparse: it takes no room on the disk
    message = told(tensor_names, tmp_path)
    assert f"{path} cannot be mapped" in message
    assert "larger than the memory" in message


def shards(folder: Path, kind: str) -> None:
    first, second = {"a": TENSORS["a"]}, {name: TENSORS[name] for name in "bc"}
    save = save_file if kind == "model.safetensors" else torch.save
    save(first, folder / f"1-{kind}")
    save(second, folder / f"2-{kind}")
    index = {"weight_map": {"a": f"1-{kind}", "b": f"2-{kind}", "c": f"2-{kind}"}}
    (folder / f"{kind}.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_shards(kind, tmp_path):
    shards(tmp_path, kind)
    assert same(read_tensors(tmp_path))
    (tmp_path / f"2-{kind}").unlink()
    assert f"lacks 2-{kind}" in told(read_tensors, tmp_path)


def test_indices_that_promise_too_much(tmp_path):
    shards(tmp_path, "model.safetensors")
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"] |= {"d": "1-model.safetensors"}
    path.write_text(json.dumps(index))
    assert "lists d, which no file holds" in told(read_tensors, tmp_path)
    for text in ("{", "[]", "{}", '{"weight_map": {"a": "../elsewhere.safetensors"}}'):
        path.write_text(text)
        assert str(path) in told(read_tensors, tmp_path)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: torch.save({"a": Runs()}, path),
        lambda path: path.write_bytes(pickle.dumps({"a": Runs()}, protocol=2)),
        lambda path: torch.save({"a": torch.ones(2), "b": {"c": torch.ones(2)}}, path),
        lambda path: torch.save({"a": torch.ones(2), "step": 3}, path),
        lambda path: torch.save({0: torch.ones(2)}, path),
        lambda path: torch.save([torch.ones(2)], path),
        lambda path: torch.save(torch.nn.Linear(2, 2), path),
    ],
)
def test_pickles_with_anything_but_tensors_are_refused_and_not_run(write, tmp_path):
    path = tmp_path / "medusa_lm_head.pt"
    write(path)
    message = told(read_tensors, tmp_path)
    assert f"{path} holds more than tensors" in message
    assert "safetensors" in message
    assert not Path("/tmp/drafttree-has-run-a-pickle").exists()


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("a sparse tensor", lambda: torch.eye(3).to_sparse()),
        ("a sparse tensor", lambda: torch.eye(3).to_sparse_csr()),
        ("a nested tensor", lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
        ("a quantised tensor", lambda: torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8)),
        ("a tensor without values", lambda: torch.empty(3, device="meta")),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_that_are_not_dense_are_named(kind, make, tmp_path):
    torch.save(TENSORS | {"d": make()}, tmp_path / "pytorch_model.bin")
    assert f"holds 'd' as {kind}" in told(read_tensors, tmp_path)


@pytest.mark.parametrize(
    ("model", "head"),
    [
        ("model.safetensors", "medusa_lm_head.pt"),
        ("pytorch_model.bin", "hydra_lm_head.safetensors"),
        ("model.safetensors.index.json", "medusa_lm_head.safetensors"),
        ("hydra_lm_head.pt", "medusa_lm_head.pt"),
    ],
)
def test_a_head_beside_other_weights_is_refused(model, head, tmp_path):
    for name in (model, head):
        (tmp_path / name).touch()
    assert f"holds {model} and {head}; give a folder with the head alone" in told(recognise, tmp_path)


def test_the_same_weights_in_two_formats_are_one(tmp_path):
    for end in ("safetensors", "pt"):
        (save_file if end == "safetensors" else torch.save)(
            {"0.0.linear.weight": torch.ones(1)}, tmp_path / f"medusa_lm_head.{end}"
        )
    assert recognise(tmp_path) == "medusa"


def test_folders_without_weights_or_with_too_many(tmp_path):
    assert "does not exist" in told(read_tensors, tmp_path / "nowhere")
    assert "holds no weights; expected one of model.safetensors" in told(read_tensors, tmp_path)
    for name in ("x.pt", "y.pt"):
        torch.save(TENSORS, tmp_path / name)
    assert "x.pt, y.pt and no index" in told(read_tensors, tmp_path)


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_bad_configuration(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    assert str(tmp_path / "config.json") in told(read_config, tmp_path)


def heads(folder: Path, names: list[str], config: dict | None = None) -> Path:
    save_file({name: torch.zeros(1) for name in names}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("medusa", ["0.0.linear.weight", "0.0.linear.bias", "0.1.weight"]),
        ("medusa", ["model.embed_tokens.weight", "medusa_head.0.0.linear.weight"]),
        ("hydra", ["input_embed_fn.weight", "hydra_mlp.0.0.linear.weight", "hydra_lm_head.0.weight"]),
        ("hydra", ["prefix_embeding_layer.norm.weight", "hydra_mlp.0.1.linear.weight"]),
        ("eagle3", ["fc.weight", "midlayer.hidden_norm.weight"]),
        ("eagle3", ["fc.weight", "layers.0.hidden_norm.weight"]),
        ("eagle3", ["d2t", "norm.weight"]),
        ("eagle", ["fc.weight", "fc.bias", "layers.0.mlp.down_proj.weight", "embed_tokens.weight"]),
        ("eagle", ["fusion_fc.weight", "transformer.mlp.down_proj.weight"]),
        ("language-model", ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"]),
    ],
)
def test_names_decide_what_it_is(kind, names, tmp_path):
    assert recognise(heads(tmp_path, names, {"model_type": "llama"})) == kind


@pytest.mark.parametrize("kind", ["gemma4_assistant", "gemma4_unified_assistant"])
def test_the_configuration_tells_an_assistant(kind, tmp_path):
    names = ["pre_projection.weight", "model.layers.0.mlp.up_proj.weight"]
    assert recognise(heads(tmp_path, names, {"model_type": kind})) == "assistant"


@pytest.mark.parametrize("name", zoo.NAMES)
def test_embedded_models_and_heads_are_recognised(name):
    assert recognise(zoo.folder(name)) == ("language-model" if name in zoo.MODELS else zoo.HEADS[name])


def test_what_is_none_of_them_is_told(tmp_path):
    assert "not a drafter that drafttree knows" in told(
        recognise, heads(tmp_path, ["x", "y"], {"model_type": "strange"})
    )


@pytest.mark.parametrize(
    ("title", "names", "config"),
    [
        ("a P-EAGLE head", ["fc.weight", "layers.0.hidden_norm.weight", "mask_hidden"], {"model_type": "llama"}),
        ("a P-EAGLE head", ["fc.weight", "layers.0.hidden_norm.weight"], {"speculators_model_type": "peagle"}),
        ("Gemma 4", ["fc.weight", "layers.0.hidden_norm.weight"], {"architectures": ["Gemma4Eagle3Model"]}),
        ("an assistant of an unknown kind", ["model.norm.weight"], {"model_type": "strange_assistant"}),
        ("an assistant of an unknown kind", ["pre_projection.weight", "model.norm.weight"], {"model_type": "llama"}),
    ],
)
def test_drafters_that_are_not_run_are_called_by_their_names(title, names, config, tmp_path):
    message = told(recognise, heads(tmp_path, names, config))
    assert title in message
    assert "use another head made for the target, a smaller language model, or lookup" in message


def test_a_model_with_layers_for_several_tokens_is_a_language_model(tmp_path):
    names = ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "mtp.fc.weight"]
    assert recognise(heads(tmp_path, names, {"model_type": "qwen3"})) == "language-model"


def test_downloads_take_pickles_only_where_there_is_nothing_better(tmp_path, monkeypatch):
    asked = []

    def snapshot(name, allow_patterns, ignore_patterns, local_files_only):
        asked.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("drafttree.drafters.formats.hub.snapshot_download", snapshot)
    assert download("some/head") == tmp_path
    assert ["*.bin" in patterns for patterns in asked] == [False, True]
    save_file(TENSORS, tmp_path / "model.safetensors")
    download("some/head")
    assert ["*.bin" in patterns for patterns in asked] == [False, True, False]


def test_downloads_without_a_network_say_so(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "cannot download 'nobody/no-such-head'" in told(download, "nobody/no-such-head")
