"""A tree pass gives at every node the logits transformers gives when it decodes that node's path token by token."""

import numpy as np
import pytest
import torch

from drafttree.models import Segment
from drafttree.models.base import prefill
from testing import tiny

TOLERANCE = 1e-4
SHAPES = {"chain": (1, 1, 1, 1, 1, 1), "bushy": (3, 5, 4), "ragged": (2, 4, 2, 3, 1)}

every_architecture = pytest.mark.parametrize("name", tiny.CONFIGS)


def read_prefix(name: str, prefix: list[int], chunk: int = 512):
    model, reference = tiny.wrap(tiny.build(name))
    cache = model.new_cache(48)
    prefill(model, cache, prefix, chunk=chunk)
    return model, reference, cache


@pytest.mark.few(8)
@every_architecture
@pytest.mark.parametrize(("shape", "prefix_length"), [("chain", 3), ("bushy", 0), ("bushy", 3), ("ragged", 11)])
def test_tree_logits_equal_incremental_decoding_along_every_path(name, shape, prefix_length):
    prefix, tree = tiny.random_tokens(prefix_length, 1), tiny.random_tree(SHAPES[shape], 2)
    model, reference, cache = read_prefix(name, prefix)
    assert tiny.worst_gap(tiny.score(model, cache, tree)[0], reference, prefix, tree) < TOLERANCE


@every_architecture
def test_the_comparison_notices_a_mask_that_shows_siblings(name):
    prefix, tree = tiny.random_tokens(4, 1), tiny.random_tree((2, 4, 3), 3)
    model, reference, cache = read_prefix(name, prefix)
    causal = np.tril(np.ones_like(tree.ancestors))
    logits = tiny.run(model, cache, tree.tokens, tree.depths + cache.length, causal).logits
    assert tiny.worst_gap(logits[0], reference, prefix, tree) > 100 * TOLERANCE


@pytest.mark.few(3)
@every_architecture
def test_later_rounds_see_exactly_the_accepted_paths(name):
    committed = tiny.random_tokens(7, 4)
    model, reference, cache = read_prefix(name, committed)
    for round_, widths in enumerate([(3, 4, 5), (2, 3, 3, 2), (2, 2, 2)]):
        tree = tiny.random_tree(widths, 10 + round_)
        assert tiny.worst_gap(tiny.score(model, cache, tree)[0], reference, committed, tree) < TOLERANCE
        path = tiny.leaf_paths(tree)[-1]
        cache.commit(path)
        committed = committed + tree.tokens[path].tolist()
        assert cache.length == len(committed)


@every_architecture
def test_prefill_in_chunks_equals_one_pass(name):
    prefix, tree = tiny.random_tokens(14, 5), tiny.random_tree((2, 3, 3), 6)
    whole, chunked = (read_prefix(name, prefix, chunk) for chunk in (512, 4))
    logits = [tiny.score(model, cache, tree) for model, _, cache in (whole, chunked)]
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)


def test_prefill_counts_its_passes():
    model, _ = tiny.wrap(tiny.build("llama"))
    passes = [prefill(model, model.new_cache(16), [1] * count, chunk=4)[0] for count in (0, 1, 4, 5, 9)]
    assert passes == [0, 1, 1, 2, 3]


@every_architecture
def test_hidden_layers_equal_transformers_hidden_states(name):
    prefix, tree = tiny.random_tokens(8, 7), tiny.random_tree((2, 3, 2), 8)
    model, reference, cache = read_prefix(name, prefix)
    layers = tuple(range(tiny.LAYERS + 1))
    out = tiny.run(model, cache, tree.tokens, tree.depths + cache.length, tree.ancestors, hidden_layers=layers)
    for path in tiny.leaf_paths(tree):
        tokens = torch.tensor([prefix + tree.tokens[path].tolist()])
        with torch.inference_mode():
            expected = reference(tokens, output_hidden_states=True).hidden_states
        for layer in layers:
            torch.testing.assert_close(
                out.hidden[layer][0, path], expected[layer][0, len(prefix) :], atol=TOLERANCE, rtol=1e-4
            )


def test_hidden_layers_come_in_the_order_asked_for():
    model, _, cache = read_prefix("llama", [1, 2, 3])
    tree = tiny.random_tree((2, 2), 9)
    arguments = (tree.tokens, tree.depths + cache.length, tree.ancestors)
    last, first = tiny.run(model, cache, *arguments, hidden_layers=(tiny.LAYERS, 0)).hidden
    assert torch.equal(first, model.module.get_input_embeddings()(torch.from_numpy(tree.tokens)[None]))
    assert not torch.equal(first, last)


@every_architecture
def test_level_by_level_passes_equal_one_pass(name):
    prefix, tree = tiny.random_tokens(6, 11), tiny.random_tree((3, 4, 2, 3), 12)
    model, _, cache = read_prefix(name, prefix)
    at_once = tiny.score(model, cache, tree)
    cache.commit([])
    positions = tree.depths + cache.length
    levels = [(tree.depths == depth).nonzero()[0] for depth in range(tree.levels + 1)]
    passes = []
    for level in levels:
        visible = tree.ancestors[level, : level[-1] + 1]
        passes.append(tiny.run(model, cache, tree.tokens[level], positions[level], visible).logits)
    torch.testing.assert_close(torch.cat(passes, 1), at_once, atol=1e-5, rtol=1e-5)


@pytest.mark.few(3)
@every_architecture
def test_two_texts_of_different_lengths_share_a_pass(name):
    prefixes = [tiny.random_tokens(count, count) for count in (9, 4)]
    trees = [tiny.random_tree((3, 4, 3), seed) for seed in (22, 23)]
    model, reference = tiny.wrap(tiny.build(name))
    caches = [model.new_cache(32) for _ in prefixes]
    for cache, prefix in zip(caches, prefixes, strict=True):
        prefill(model, cache, prefix)
    own = zip(caches, trees, strict=True)
    outputs = model.forward(
        [Segment(cache, tree.tokens, tree.depths + cache.length, tree.ancestors) for cache, tree in own]
    )
    for output, prefix, tree in zip(outputs, prefixes, trees, strict=True):
        assert tiny.worst_gap(output.logits[0], reference, prefix, tree) < TOLERANCE


def test_the_last_node_alone_is_scored():
    model, _, cache = read_prefix("llama", [1, 2, 3])
    tree = tiny.random_tree((2, 3), 13)
    whole = tiny.score(model, cache, tree)
    cache.commit([])
    positions = tree.depths + cache.length
    last = tiny.run(model, cache, tree.tokens, positions, tree.ancestors, wanted=slice(-1, None)).logits
    assert last.shape == (1, 1, tiny.VOCAB)
    torch.testing.assert_close(last, whole[:, -1:], atol=1e-5, rtol=1e-5)


def test_wrapping_reads_vocabulary_context_and_dtype_off_the_module():
    model, _ = tiny.wrap(tiny.build("gpt2"))
    assert (model.vocab_size, model.context, model.dtype) == (tiny.VOCAB, 64, torch.float32)


@pytest.mark.few(4)
@every_architecture
def test_the_modules_own_generate_works_while_it_is_held_and_after(name):
    module = tiny.build(name)
    prompt = torch.tensor([tiny.random_tokens(7, 14)])

    def generate():
        return module.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, pad_token_id=0
        )

    before, implementation = generate(), module.config._attn_implementation
    model, _ = tiny.wrap(module)
    cache = model.new_cache(16)
    prefill(model, cache, prompt[0].tolist())
    assert module.config._attn_implementation == implementation
    assert torch.equal(generate(), before)
    model.release()
    assert torch.equal(generate(), before)


@every_architecture
@pytest.mark.parametrize("scored", [slice(-1, None), slice(None)])
def test_hidden_layers_are_transformers_hidden_states(name, scored):
    model, reference = tiny.wrap(tiny.build(name))
    tokens = tiny.random_tokens(6, 8)
    ids, wanted = torch.tensor([tokens]), (tiny.LAYERS, 0, 2, 0)
    causal = np.tri(6, dtype=bool)
    options = {"wanted": scored, "hidden_layers": wanted}
    found = tiny.run(model, model.new_cache(8), np.array(tokens), np.arange(6), causal, **options).hidden
    with torch.inference_mode():
        expected = reference(ids, output_hidden_states=True).hidden_states
    assert len(found) == len(wanted)
    for state, layer in zip(found, wanted, strict=True):
        torch.testing.assert_close(state, expected[layer], atol=TOLERANCE, rtol=TOLERANCE)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.module.modules())
