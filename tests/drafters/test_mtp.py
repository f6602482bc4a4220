"""MTP layers: logits equal those of transformers' own layers along every path, and the text is the target's."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, Cache, cache_utils, modeling_layers

import drafttree
from drafttree.drafters import Frontier, HeadDrafter, MixedDrafter
from drafttree.drafters.ranked_logits import RankedLogits
from drafttree.models import TargetModel
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.recorded.recorded_passes import RecordedBackend
from drafttree.verifiers import Coupled
from helpers.checkpoints import MTP
from helpers.replays import Operations
from testing import tiny
from testing.tokenizers import words

TEXT = [5, 17, 3, 88, 41, 7]
WIDTHS = (2, 3, 2, 2)


def loaded(folder, name="llama", layers=1, form=None, **options):
    """A decoder of a written checkpoint, its target as it was written, and the logits of its layers after a path."""
    form = form or replace(MTP[name], layers=layers)
    target, tensors = form.write_with_target(folder), form.tensors()

    def expected(text, path):
        return form.logits(tensors, target, [states_of(target, text)[0, :-1]], text, path)

    options = {"drafter": "mtp", "policy": "chain", "dtype": "float32", "device": "cpu", **options}
    return drafttree.load(folder, tokenizer=words("a", "b"), **options), target, expected


@torch.no_grad()
def states_of(target, text):
    """The target's states after its final norm `[1, tokens, hidden]`."""
    return target(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states[-1]


def begun(drafter: HeadDrafter, states, text, parts=(100,)):
    """A session that has read a text but for its last token, in parts of these sizes."""
    session, start = drafter.start(text, 64), 0
    for size in parts:
        given = states[:, start : min(start + size, len(text) - 1)]
        session.prefill((given,), given.shape[1])
        start += given.shape[1]
    return session


def grown(session, widths, seed=0):
    """Logits of a random tree, with the path to each node: those of the root, then level by level."""
    generator = torch.Generator().manual_seed(seed)
    found, frontier = [([], session.draft_root()[0, 0])], [[]]
    for width in widths:
        origins = torch.randint(len(frontier), (width,), generator=generator).sort().values
        tokens = torch.randint(tiny.VOCAB, (width,), generator=generator)
        frontier = [[*frontier[parent], token] for parent, token in zip(origins.tolist(), tokens.tolist(), strict=True)]
        found += zip(frontier, session.draft_level(tokens[None], origins[None])[0], strict=True)
    return found


def assert_near(logits, expected):
    gap = float((logits - expected).abs().max())
    assert gap < 2e-4 * max(1.0, float(expected.abs().max()))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "mimo_v2_flash"])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("parts", [(100,), (2, 1, 2), (1, 4)])
def test_several_layers_draft_a_level_each_and_the_last_one_all_deeper_ones(name, count, parts, tmp_path):
    decoder, target, expected = loaded(tmp_path, name, count)
    text = TEXT
    with torch.inference_mode():
        session = begun(decoder.drafter, states_of(target, text), text, parts)
        for seed, accepted in enumerate(([9, 30], [4], [8, 8, 1, 60, 2])):
            for path, logits in grown(session, WIDTHS, seed):
                assert_near(logits, expected(text, path))
            session.commit(accepted, (states_of(target, [*text, *accepted])[:, len(text) - 1 : -1],))
            text = [*text, *accepted]


class Counted:
    """A layer that notes how many rows each pass forwards."""

    def __init__(self, layer, name, passes) -> None:
        self.layer, self.name, self.passes = layer, name, passes

    def __getattr__(self, name):
        return getattr(self.layer, name)

    def __call__(self, segments, states):
        assert sum(segment.nodes for segment in segments) == states.shape[1]
        self.passes.append((self.name, states.shape[1]))
        return self.layer(segments, states)


def test_each_layer_reads_a_committed_token_once_and_all_of_a_tree_on_its_own_level(tmp_path):
    decoder, target, _ = loaded(tmp_path, layers=3)
    passes = []
    decoder.drafter.heads = tuple(
        Counted(layer, name, passes) for name, layer in zip("abc", decoder.drafter.heads, strict=True)
    )
    with torch.inference_mode():
        session = begun(decoder.drafter, states_of(target, TEXT), TEXT)
        assert passes == [("a", 4), ("b", 3), ("c", 2)]  # a token less each; the last goes with the root
        del passes[:]
        grown(session, WIDTHS)
        reading = [("a", 1), ("b", 1), ("c", 1)]
        assert passes == [*reading, ("b", 2), ("c", 2 + 3), ("c", 2), ("c", 2)]
        session.commit([8, 8, 1], (states_of(target, [*TEXT, 8, 8, 1])[:, len(TEXT) - 1 : -1],))
        del passes[:]
        grown(session, (4,))
        assert passes == [("a", 3), ("b", 3), ("c", 3), ("b", 4)]
    assert session.passes == 5 + 2


@pytest.mark.parametrize("layers", [1, 2])
def test_later_texts_take_over_the_rows_of_a_single_layer_only(layers, tmp_path):
    decoder, target, _ = loaded(tmp_path, layers=layers)
    with torch.inference_mode():
        session = begun(decoder.drafter, states_of(target, TEXT), TEXT)
        session.read_rest()
        snapshot = session.snapshot(3)
        assert (snapshot is None) == (layers == 2)
        assert decoder.drafter.start(TEXT, 64).restore(snapshot, 3) == (3 if layers == 1 else 0)
    assert session.passes == 0


@pytest.mark.parametrize("layers", [1, 2])
def test_a_prompt_of_one_token_is_drafted_from_and_then_the_text_goes_on(layers, tmp_path):
    decoder, target, expected = loaded(tmp_path, layers=layers)
    with torch.inference_mode():
        session = begun(decoder.drafter, states_of(target, [7]), [7])
        assert all(logits.isfinite().all() for _, logits in grown(session, (2, 2)))
        text = [7, 12, 40]
        session.commit([12, 40], (states_of(target, text)[:, :-1],))
        for path, logits in grown(session, (2, 2)):
            assert_near(logits, expected(text, path))


@pytest.mark.few(2)
@pytest.mark.skipif(not hasattr(modeling_layers, "MtpModel"), reason="transformers drafts no MTP yet")
@pytest.mark.parametrize(("name", "layers"), [("deepseek_v3", 1), ("deepseek_v3", 2), ("glm4_moe", 1), ("mellum", 1)])
def test_a_chain_has_the_logits_of_transformers_mtp_model(name, layers, tmp_path):
    config = MTP[name].config()
    config.num_nextn_predict_layers = config.num_mtp_layers = layers
    decoder, _, _ = loaded(tmp_path, form=replace(MTP[name], config=lambda: deepcopy(config), layers=layers))
    target = AutoModelForCausalLM.from_pretrained(tmp_path)
    target._keys_to_ignore_on_load_unexpected = [
        r"^mtp\.",
        *(rf"model\.layers\.{3 + index}.*" for index in range(layers)),
    ]
    states, root = states_of(target, TEXT), torch.tensor([TEXT])
    model = modeling_layers.MtpModel.from_pretrained(target)
    cache = cache_utils.MtpCache(config=target.config.get_mtp_config())
    cache.activate_past_recording()
    positions = torch.arange(1, len(TEXT))[None]
    with torch.inference_mode():
        chain, expected, _ = model(root[:, 1:], states[:, :-1], None, positions, cache)
        session = begun(decoder.drafter, states, TEXT)
        found = [session.draft_root()[0, 0]]
        found += [session.draft_level(token[None, None], torch.tensor([[0]]))[0, 0] for token in chain[0, :-1]]
    for logits, own in zip(found, expected[0], strict=True):
        assert_near(logits, own)


@pytest.mark.parametrize("layers", [1, 2])
def test_recorded_passes_have_the_same_logits_and_rank_them(layers, tmp_path):
    decoder, target, expected = loaded(tmp_path, layers=layers)
    drafter = decoder.drafter
    recorder = Operations()
    for head in drafter.heads:
        backend = RecordedBackend(FusedBackend(head.model.module), recorder)
        head.model = TargetModel(head.model.module, lambda _, backend=backend: backend)
    recorded_counts = []
    for text in (TEXT[::-1], TEXT):  # the passes of the second text are replayed
        session = begun(drafter, states_of(target, text), text)
        with torch.inference_mode():
            assert isinstance(drafter.draft_root([session]), RankedLogits)
        del session  # so that its KV cache serves the next one
        for path, logits in grown(begun(drafter, states_of(target, text), text), (2, 2)):
            assert_near(logits, expected(text, path))
        recorded_counts.append(recorder.recorded)
    assert 0 < recorded_counts[0] == recorded_counts[1]


@pytest.mark.few(2)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "qwen3_next"])
def test_sessions_that_share_passes_draft_what_they_draft_alone(name, layers, tmp_path):
    decoder, target, _ = loaded(tmp_path, name, layers)
    texts = [TEXT, [3, 9, 20, 44, 1, 2, 3, 4, 61], [8, 11]]
    draft = decoder.drafter
    with torch.inference_mode():
        alone, together = ([begun(draft, states_of(target, text), text) for text in texts] for _ in range(2))
        own = [session.draft_root()[0, 0] for session in alone]
        assert_near(draft.draft_root(together), torch.stack(own))
        frontiers = [Frontier([5, 6], [0, 0]), Frontier([7], [0]), Frontier([1, 2, 3], [0, 0, 0])]
        for _ in range(4):
            nodes = [(torch.tensor([each.tokens]), torch.tensor([each.origins])) for each in frontiers]
            own = [session.draft_level(*given)[0] for session, given in zip(alone, nodes, strict=True)]
            assert_near(draft.draft_level(together, frontiers), torch.cat(own))
            frontiers = [Frontier(each.tokens[::-1], [*range(len(each.tokens))]) for each in frontiers]


@pytest.mark.few(1)
@pytest.mark.skipif(not hasattr(Cache, "get_conv_state"), reason="an older transformers")
@pytest.mark.parametrize("policy", ["chain", "talon:budget=12,width=3", "dynatree", "auto"])
@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_next"])
def test_hybrids_with_mtp_layers_write_what_generate_writes(name, policy, tmp_path):
    decoder, target, _ = loaded(tmp_path, name, policy=policy)
    ids = torch.tensor([TEXT])
    expected = target.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
    found = decoder.generate(TEXT, max_new_tokens=24, ignore_eos=True)
    assert found.tokens == expected[0, len(TEXT) :].tolist()
    assert policy == "auto" or sum(turn.draft_passes for turn in found.metrics.rounds) > 0


def test_mixed_and_auto_take_the_layers_of_the_checkpoint(tmp_path):
    decoder, _, _ = loaded(tmp_path, drafter="mixed:mtp")
    assert isinstance(decoder.drafter, MixedDrafter)
    assert isinstance(decoder.drafter.model, HeadDrafter)
    found = drafttree.load(tmp_path, tokenizer=words("a", "b"), device="cpu").drafter
    assert isinstance(found, MixedDrafter)
    assert isinstance(found.model, HeadDrafter)
    own = drafttree.load(
        decoder.target.module, "mtp", verifier=Coupled, tokenizer=words("a", "b"), device="cpu"
    ).drafter
    assert isinstance(own, HeadDrafter)
