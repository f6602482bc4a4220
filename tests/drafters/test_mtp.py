"""MTP layers: logits equal those of transformers' own layers along every path, and the text is the target's."""

import pytest
import torch

import drafttree
from drafttree.drafters import MtpDrafter
from helpers import mtp_files as files
from helpers import tiny
from helpers.tokenizers import words

TEXT = [5, 17, 3, 88, 41, 7]
WIDTHS = (2, 3, 2, 2)

every_kind = pytest.mark.parametrize("name", files.KINDS)


def loaded(folder, kind, layers=1):
    target, made = files.write(folder, kind, layers)
    decoder = drafttree.load(folder, "mtp", "chain", dtype="float32", device="cpu", tokenizer=words("a", "b"))
    return decoder, target, made


@torch.no_grad()
def states_of(target, text):
    """The target's states after its final norm `[1, tokens, hidden]`."""
    return target(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states[-1]


def begun(drafter: MtpDrafter, states, text):
    session = drafter.start(text, 64)
    session.prefill((states[:, :-1],), len(text) - 1)
    return session


def grown(session, widths, seed=0):
    """Logits of random trees, with the path to each node: those of the root, then level by level."""
    generator = torch.Generator().manual_seed(seed)
    found = [([], session.root()[0, 0])]
    frontier = [[]]
    for width in widths:
        origins = torch.randint(len(frontier), (width,), generator=generator).sort().values
        tokens = torch.randint(tiny.VOCAB, (width,), generator=generator)
        frontier = [[*frontier[parent], token] for parent, token in zip(origins.tolist(), tokens.tolist(), strict=True)]
        logits = session.expand(tokens[None], origins[None])[0]
        found += zip(frontier, logits, strict=True)
    return found


@every_kind
def test_the_logits_of_every_node_are_those_of_transformers_own_layers_along_its_path(name, tmp_path):
    decoder, target, layers = loaded(tmp_path, files.KINDS[name]())
    assert isinstance(decoder.drafter, MtpDrafter)
    states = states_of(target, TEXT)
    with torch.inference_mode():
        for path, logits in grown(begun(decoder.drafter, states, TEXT), WIDTHS):
            expected = files.path_logits(target, layers, TEXT, path, states[0])[-1]
            assert (logits - expected).abs().max() < 2e-4 * max(1, expected.abs().max()), path
