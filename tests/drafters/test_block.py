"""Block drafters: one pass a round, the text unchanged, and what does not fit is told."""

import pytest
import torch

import drafttree
from drafttree import Decoder
from drafttree.drafters import BlockDrafter
from drafttree.drafters.formats import block as format_of_blocks
from drafttree.drafters.formats import recognise
from drafttree.errors import ModelError
from drafttree.policies import Auto, Chain, Talon
from helpers import checkpoints
from helpers.checkpoints import BLOCK, FORMATS, MASK, names
from helpers.refusals import told

TEXT = [5, 17, 3, 2, 11, 7]


def loaded(name, folder, **options) -> Decoder:
    options = {"policy": "chain", "dtype": "float32", "device": "cpu", **options}
    return drafttree.load(checkpoints.target(), FORMATS[name].write(folder), **options)


def test_a_round_is_one_pass_and_drafts_that_know_no_path_say_so(tmp_path):
    for name in names("block"):
        decoder = loaded(name, tmp_path)
        assert decoder.drafter.flat == ("transition" not in FORMATS[name].facts), name
        rounds = decoder.generate(TEXT, max_new_tokens=8, ignore_eos=True).metrics.rounds
        assert all(turn.draft_passes == min(turn.levels, 1) for turn in rounds), name


def test_a_loaded_assistant_of_transformers_drafts_as_its_folder_does(tmp_path):
    transformers = pytest.importorskip("transformers.models.muse_glimmer_assistant")
    decoder = loaded("DFlash, transformers", tmp_path)
    config = transformers.MuseGlimmerAssistantConfig(**FORMATS["DFlash, transformers"].fields())
    model = transformers.MuseGlimmerAssistantModel.from_pretrained(tmp_path, config=config).eval()
    other = drafttree.load(decoder.target.module, model, "chain", dtype="float32", device="cpu").drafter
    assert isinstance(other, BlockDrafter)
    states, session = torch.randn(2, 1, 5, checkpoints.HIDDEN), other.start(TEXT, 32)
    session.prefill(tuple(states), 5)
    noise = decoder.target.module.get_input_embeddings()(torch.tensor([[TEXT[-1], *[MASK] * (BLOCK - 1)]]))
    with torch.inference_mode():
        out = model(
            noise_embeds=noise, context_hidden_states=torch.cat([*states], -1), position_ids=torch.arange(10)[None]
        ).last_hidden_state
        own = decoder.target.module.lm_head(out[0, 1:])
    found = [session.draft_root()[0, 0]] + [
        session.draft_level(torch.tensor([[1]]), torch.tensor([[0]]))[0, 0] for _ in range(3)
    ]
    torch.testing.assert_close(torch.stack(found), own, atol=1e-4, rtol=0)


def test_what_is_wrong_is_told_by_name(tmp_path):
    def refusal(name="DSpark", tensors=None, target=None, **fields):
        folder = FORMATS[name].write(tmp_path, tensors, **fields)
        return told(ModelError, drafttree.load, target or checkpoints.target(), folder, device="cpu")

    assert "mask_token_id as 99; it must be one of 23 token ids" in refusal(mask_token_id=99)
    assert "mask_token_id as None" in refusal(mask_token_id=None)
    assert "gives no block_size" in refusal(block_size=None)
    assert "markov_head_type as 'deep'" in refusal(markov_head_type="deep")
    assert "block_size as 1; the first row drafts nothing" in refusal("DFlash", block_size=1)
    assert "missing layers.2.input_layernorm.weight" in refusal(num_hidden_layers=3)
    assert "target_layer_ids as [-3, 1]; they are counted from 0" in refusal(target_layer_ids=[-3, 1])
    assert "the output of the target's last layer" in refusal(target_layer_ids=[1, 3])
    options = {"dflash_config": FORMATS["DFlash2"].fields()["dflash_config"] | {"selector_top_k": 600}}
    assert "selector_top_k as 600; the vocabulary has 23" in refusal("DFlash2", **options)
    assert "gives no target_layer_ids" in refusal(target_layer_ids=None, num_target_layers=None)
    lost = {key: each for key, each in FORMATS["DSpark"].tensors().items() if key != "markov_head.markov_w2.weight"}
    assert "missing markov_head.markov_w2.weight" in refusal(tensors=lost)
    assert "number of layers of 4, this target's is 6" in refusal(target=checkpoints.target(depth=6))
    for field, value in {"is_neox_style": False, "rope_is_neox_style": False, "use_gemma_norm": True}.items():
        assert f"gives {field} as {value}, which drafttree does not support" in refusal("DFlash", **{field: value})


def test_an_embedding_of_the_mask_token_may_lie_in_a_file_of_its_own(tmp_path):
    tensors, target = FORMATS["DFlash, MiMo's"].tensors(), checkpoints.target()
    mask = tensors.pop("mask_embedding")

    def root(folder) -> torch.Tensor:
        session = drafttree.load(target, folder, "chain", dtype="float32", device="cpu").drafter.start(TEXT, 32)
        session.prefill(tuple(torch.randn(2, 1, 5, checkpoints.HIDDEN, generator=torch.manual_seed(0))), 5)
        return session.draft_root()

    expected = root(FORMATS["DFlash, MiMo's"].write(tmp_path / "one"))
    folder = FORMATS["DFlash, MiMo's"].write(tmp_path / "two", tensors)
    side = folder / "mask_embedding.pt"
    for saved in (mask, {"embedding": mask[None], "mask_token_id": MASK, "per_position": False}):
        torch.save(saved, side)
        torch.testing.assert_close(root(folder), expected, atol=0, rtol=0)
    torch.save({"embedding": mask, "mask_token_id": 7}, side)
    assert f"{side} is for the mask token 7; config.json gives {MASK}" in told(ModelError, root, folder)
    torch.save({"embedding": mask.expand(5, -1), "mask_token_id": MASK, "per_position": True}, side)
    assert f"{side} holds an embedding for every place of a block, which drafttree does not" in told(
        ModelError, root, folder
    )
    torch.save({"other": mask}, side)
    assert f"{side} holds no embedding" in told(ModelError, root, folder)


@pytest.mark.parametrize(
    ("title", "tensor", "fields"),
    [
        ("a Domino drafter", "prefix_gru.weight_ih_l0", {}),
        ("a DFlare drafter", "other.weight", {"architectures": ["DFlareDraftModel"]}),
        ("a head with layers of Gemma 4", "other.weight", {"architectures": ["Gemma4DSparkModel"]}),
    ],
)
def test_their_kin_are_refused_each_by_its_name(title, tensor, fields, tmp_path):
    FORMATS["DFlash"].write(tmp_path, FORMATS["DFlash"].tensors() | {tensor: torch.zeros(2)}, **fields)
    assert title in told(ModelError, recognise, tmp_path)


def test_what_is_written_is_read_back(tmp_path):
    tensors = FORMATS["DSpark"].tensors()
    found = format_of_blocks.parse(tensors, FORMATS["DSpark"].fields())
    config = format_of_blocks.public_config(found.heads.config, [layer - 1 for layer in found.layers])
    again = format_of_blocks.parse(tensors, config)
    assert again.heads.config == found.heads.config
    assert again.layers == found.layers


@pytest.mark.parametrize(
    ("name", "verifier", "expected"),
    [
        ("DFlash", "auto", Auto(flat=True)),
        ("DFlash", "traversal", Chain(depth=4)),
        ("DSpark", "auto", Auto()),
    ],
)
def test_the_policy_nobody_names_is_a_chain_with_one_sibling_where_drafts_know_no_path(
    name, verifier, expected, tmp_path
):
    assert loaded(name, tmp_path, policy=None, verifier=verifier).policy == expected
    named = loaded(name, tmp_path, policy="talon", verifier="auto")
    assert isinstance(named.policy, Talon)
