"""Block drafters: logits equal the authors' formulas in every format, one pass a round, the text unchanged."""

import pytest
import torch

import drafttree
from drafttree.drafters import BlockDrafter
from drafttree.drafters.formats import block as format_of_blocks
from drafttree.drafters.formats import read_config, recognise
from drafttree.drafters.session import Frontier
from drafttree.errors import ModelError
from drafttree.loading.inspect import inspect
from drafttree.policies import POLICIES, Auto, Chain, Talon
from helpers import block_files as files
from helpers.refusals import told

TEXT = [5, 17, 3, 2, 11, 7]
WIDTHS = (2, 3, 2)
every_format = pytest.mark.parametrize("name", files.KINDS)


def loaded(name, folder, **options):
    """A decoder, the target's module, and the tensors with those that are the target's."""
    kind, target = files.KINDS[name], files.target(depth=files.DEPTH)
    tensors = files.weights(kind)
    files.write(folder, kind, tensors)
    options = {"policy": "chain", "dtype": "float32", "device": "cpu", **options}
    decoder = drafttree.load(target, folder, **options)
    assert isinstance(decoder.drafter, BlockDrafter)
    shared = {
        "embed_tokens.weight": target.get_input_embeddings().weight.detach(),
        "lm_head.weight": target.lm_head.weight,
    }
    return decoder, decoder.drafter, shared | tensors


def random_states(kind, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, count, files.HIDDEN, generator=generator) for _ in kind.states)


def expected(name, tensors, states, path):
    """The logits after the last token of a path, over the target's vocabulary."""
    kind = files.KINDS[name]
    logits = files.path_logits(kind, tensors, [state[0] for state in states], path)[len(path) - 1]
    if "d2t" not in tensors:
        return logits
    full = torch.full((files.VOCAB,), -torch.inf, dtype=torch.float64)
    full[tensors["d2t"] + torch.arange(len(tensors["d2t"]))] = logits
    return full


def assert_near(logits, own):
    known = own.isfinite()
    assert torch.equal(known, logits.isfinite())
    gap = float((logits.double() - own)[known].abs().max())
    assert gap < 1e-4


def grown(session, widths, root, seed=0):
    """Logits of a random tree, with the path to each node, which begins with the root."""
    generator = torch.Generator().manual_seed(seed)
    found, frontier = [([root], session.root()[0, 0])], [[root]]
    for width in widths:
        origins = torch.randint(len(frontier), (width,), generator=generator).sort().values
        tokens = torch.randint(files.VOCAB, (width,), generator=generator)
        frontier = [[*frontier[parent], token] for parent, token in zip(origins.tolist(), tokens.tolist(), strict=True)]
        found += zip(frontier, session.expand(tokens[None], origins[None])[0], strict=True)
    return found


@every_format
@pytest.mark.parametrize("parts", [(5,), (2, 3)])
def test_the_logits_of_every_node_and_round_are_those_of_the_authors_formulas(name, parts, tmp_path):
    _, drafter, tensors = loaded(name, tmp_path)
    kind, states = files.KINDS[name], random_states(files.KINDS[name], 12)
    assert drafter.levels == kind.levels
    assert drafter.flat == (kind.transition is None)
    session, start = drafter.start(TEXT, 32), 0
    for size in parts:
        session.prefill(tuple(state[:, start : start + size] for state in states), size)
        start += size
    root = TEXT[-1]
    for seed, accepted in enumerate(([9, 20], [4], [8, 8, 1])):
        for path, logits in grown(session, WIDTHS, root, seed):
            assert_near(logits, expected(name, tensors, [state[:, :start] for state in states], path))
        session.commit(accepted, tuple(state[:, start : start + len(accepted)] for state in states))
        start, root = start + len(accepted), accepted[-1]
    assert session.passes == 3


@every_format
def test_sessions_that_share_a_pass_draft_what_they_draft_alone(name, tmp_path):
    _, drafter, _ = loaded(name, tmp_path)
    texts = [TEXT, [3, 9, 20, 4, 1, 2, 3, 4, 6], [8]]
    frontiers = [Frontier([5, 6], [0, 0]), Frontier([7], [0]), Frontier([1, 2, 3], [0, 0, 0])]
    together, alone = ([drafter.start(text, 32) for text in texts] for _ in range(2))
    for seed, text in enumerate(texts):
        states = random_states(files.KINDS[name], len(text) - 1, seed)
        for session in (together[seed], alone[seed]):
            session.prefill(states, len(text) - 1)
    assert_near(drafter.root(together), torch.cat([session.root()[0] for session in alone]).double())
    nodes = [(torch.tensor([each.tokens]), torch.tensor([each.origins])) for each in frontiers]
    own = torch.cat([session.expand(*each)[0] for session, each in zip(alone, nodes, strict=True)])
    assert_near(drafter.expand(together, frontiers), own.double())


@pytest.mark.parametrize("name", ["DFlash", "DSpark, recurrent", "speculators, DSpark"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_text_is_that_of_plain_decoding_with_every_policy(name, policy, tmp_path):
    decoder, _, _ = loaded(name, tmp_path, policy=policy)
    for options in ({}, {"temperature": 0.9, "seed": 3}):
        given = {"max_new_tokens": 20, "ignore_eos": True, **options}
        assert decoder.generate(TEXT, **given).tokens == decoder.plain().generate(TEXT, **given).tokens


def test_lists_prefixes_and_prompts_of_one_token_change_no_text(tmp_path):
    decoder, _, _ = loaded("DSpark", tmp_path, policy="talon:budget=10,width=3")
    given = {"max_new_tokens": 16, "ignore_eos": True}
    texts = [TEXT, [3, 9, 20, 4, 1, 2, 3, 4, 6], [8], [8, 11]]
    plain = [decoder.plain().generate(text, **given).tokens for text in texts]
    assert [found.tokens for found in decoder.generate(texts, **given)] == plain
    for text in (TEXT[:3], TEXT, [*TEXT, 9, 9, 1]):
        found = decoder.generate(text, reuse_prefix=True, **given)
        assert found.tokens == decoder.plain().generate(text, **given).tokens


def test_a_loaded_assistant_of_transformers_drafts_as_its_folder_does(tmp_path):
    transformers = pytest.importorskip("transformers.models.muse_glimmer_assistant")
    decoder, _, _ = loaded("transformers", tmp_path)
    config = transformers.MuseGlimmerAssistantConfig(**files.KINDS["transformers"].config)
    model = transformers.MuseGlimmerAssistantModel.from_pretrained(tmp_path, config=config).eval()
    other = drafttree.load(decoder.target.module, model, "chain", dtype="float32", device="cpu").drafter
    assert isinstance(other, BlockDrafter)
    states, session = random_states(files.KINDS["transformers"], 5), other.start(TEXT, 32)
    session.prefill(states, 5)
    noise = decoder.target.module.get_input_embeddings()(torch.tensor([[TEXT[-1], *[files.MASK] * (files.BLOCK - 1)]]))
    with torch.inference_mode():
        out = model(
            noise_embeds=noise, context_hidden_states=torch.cat(states, -1), position_ids=torch.arange(10)[None]
        ).last_hidden_state
        own = decoder.target.module.lm_head(out[0, 1:])
    found = [session.root()[0, 0]] + [session.expand(torch.tensor([[1]]), torch.tensor([[0]]))[0, 0] for _ in range(3)]
    assert_near(torch.stack(found), own.double())


@every_format
def test_files_are_recognised_and_described(name, tmp_path):
    kind = files.KINDS[name]
    files.write(tmp_path, kind, files.weights(kind))
    assert recognise(tmp_path) == "block"
    found = inspect(str(tmp_path))
    assert found.problems == ()
    assert found.details["drafted levels"] == kind.levels
    assert ("path" in str(found.details["transition"])) == (kind.transition is None)


def refusal(folder, kind, tensors, target=None, **fields):
    files.write(folder, kind, tensors)
    config = kind.config | fields
    (folder / "config.json").write_text(files.json.dumps(config))
    return told(ModelError, drafttree.load, target or files.target(depth=files.DEPTH), folder, device="cpu")


def test_what_is_wrong_is_told_by_name(tmp_path):
    kind = files.KINDS["DSpark"]
    tensors = files.weights(kind)
    assert "mask_token_id as 99; it must be one of 23 token ids" in refusal(tmp_path, kind, tensors, mask_token_id=99)
    assert "mask_token_id as None" in refusal(tmp_path, kind, tensors, mask_token_id=None)
    assert "gives no block_size" in refusal(tmp_path, kind, tensors, block_size=None)
    assert "markov_head_type as 'deep'" in refusal(tmp_path, kind, tensors, markov_head_type="deep")
    assert "block_size as 1; the first row drafts nothing" in refusal(
        tmp_path, files.KINDS["DFlash"], files.weights(files.KINDS["DFlash"]), block_size=1
    )
    assert "missing layers.2.input_layernorm.weight" in refusal(tmp_path, kind, tensors, num_hidden_layers=3)
    assert "target_layer_ids as [-3, 1]; they are counted from 0" in refusal(
        tmp_path, kind, tensors, target_layer_ids=[-3, 1]
    )
    assert "the output of the target's last layer" in refusal(tmp_path, kind, tensors, target_layer_ids=[1, 5])
    selected = files.KINDS["DFlash2"]
    options = {"dflash_config": selected.config["dflash_config"] | {"selector_top_k": 600}}
    assert "selector_top_k as 600; the vocabulary has 23" in refusal(
        tmp_path, selected, files.weights(selected), **options
    )
    assert "gives no target_layer_ids" in refusal(
        tmp_path, kind, tensors, target_layer_ids=None, num_target_layers=None
    )
    lost = {key: each for key, each in tensors.items() if key != "markov_head.markov_w2.weight"}
    assert "missing markov_head.markov_w2.weight" in refusal(tmp_path, kind, lost)
    assert "number of layers of 6, this target's is 4" in refusal(tmp_path, kind, tensors, files.target(depth=4))
    assert "with a vocabulary of 23, this target's is 31" in refusal(
        tmp_path, kind, tensors, files.target(vocab=31, depth=files.DEPTH)
    )


@pytest.mark.parametrize(
    ("title", "tensor", "fields"),
    [
        ("a Domino drafter", "prefix_gru.weight_ih_l0", {}),
        ("a DFlare drafter", "other.weight", {"architectures": ["DFlareDraftModel"]}),
        ("a head with layers of Gemma 4", "other.weight", {"architectures": ["Gemma4DSparkModel"]}),
    ],
)
def test_their_kin_are_refused_each_by_its_name(title, tensor, fields, tmp_path):
    kind = files.KINDS["DFlash"]
    files.write(tmp_path, kind, files.weights(kind) | {tensor: torch.zeros(2)})
    (tmp_path / "config.json").write_text(files.json.dumps(read_config(tmp_path) | fields))
    assert title in told(ModelError, recognise, tmp_path)


def test_what_is_written_is_read_back(tmp_path):
    kind = files.KINDS["DSpark"]
    found = format_of_blocks.parse(files.weights(kind), kind.config)
    config = format_of_blocks.public_config(found.heads.config, [layer - 1 for layer in found.layers])
    again = format_of_blocks.parse(files.weights(kind), config)
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
    assert loaded(name, tmp_path, policy=None, verifier=verifier)[0].policy == expected
    named = loaded(name, tmp_path, policy="talon", verifier="auto")[0]
    assert isinstance(named.policy, Talon)
