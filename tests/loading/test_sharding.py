"""Refusals of tensor parallelism that need no second process."""

import pytest
import torch
from transformers import GPT2Config, LlamaConfig

import drafttree
from drafttree.errors import ConfigError, ModelError
from drafttree.loading.target_options import check_sharding, check_shares

HERE = torch.accelerator.current_accelerator() or torch.device("cpu")


@pytest.mark.parametrize("size", [0, -1, 2.0, "2", True, None, torch.tensor([1, 2])])
def test_a_size_that_is_no_number_of_processes_is_refused(size):
    with pytest.raises(ConfigError, match=r"tensor_parallel_size is .*; give a number of processes"):
        drafttree.load(tensor_parallel_size=size)


def test_a_size_without_its_processes_is_refused_with_the_command_that_starts_them(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ConfigError, match=r"tensor_parallel_size is 2, and 1 .* torchrun --nproc-per-node 2 "):
        drafttree.load(tensor_parallel_size=2)


def test_another_number_of_processes_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match="tensor_parallel_size is 2, and 4 of torchrun's processes run"):
        check_sharding(2, {})


def test_options_that_no_sharded_target_serves_are_refused_by_name(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        ConfigError, match="a tuned policy is not available for a target that is sharded over 2 processes"
    ):
        check_sharding(2, {"exact_text": False, "quantize": None, "a tuned policy": object()})


def test_heads_that_cannot_be_shared_out_are_refused():
    config = LlamaConfig(num_attention_heads=8, num_key_value_heads=2)
    with pytest.raises(ModelError, match="'it' has 2 heads of keys and values, which 4 processes cannot share"):
        check_shares("it", config, 4, HERE)


def test_an_architecture_without_a_plan_is_refused():
    with pytest.raises(ModelError, match="'it' cannot be sharded: transformers has no plan by which gpt2 is sharded"):
        check_shares("it", GPT2Config(), 2, HERE)


def test_a_device_where_the_shares_would_not_lie_is_refused():
    with pytest.raises(ConfigError, match="the device is meta, but transformers shards a model over "):
        check_shares("it", LlamaConfig(), 2, torch.device("meta"))
