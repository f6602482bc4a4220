"""The EAGLE-1 and EAGLE-2 drafter: logits equal the formulas over rounds, alone and together, the text unchanged."""

from typing import Any

import numpy as np
import pytest
import torch

import drafttree
from drafttree import Decoder, Engine
from drafttree.drafters import EagleDrafter
from drafttree.drafters.formats import read_config, read_tensors, recognise
from drafttree.drafters.formats.eagle import load, parse
from drafttree.drafters.session import Frontier
from drafttree.errors import ModelError
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.loading.inspect import inspect
from drafttree.models import TargetModel, lay_out_for_cpu
from drafttree.policies import POLICIES, Talon
from helpers import eagle3_files
from helpers import eagle_files as files
from helpers.refusals import told
from testing import tiny

TOLERANCE = 1e-4
"""Of the largest logit. Weights are float64; norms of transformers compute in float32, and every level builds on it."""
every_kind = pytest.mark.parametrize("name", files.KINDS)


def both(folder) -> tuple:
    return read_tensors(folder), read_config(folder)


def loaded(name: str, folder, target) -> EagleDrafter:
    kind = files.KINDS[name]
    return load(*both(files.write(folder, kind, files.weights(kind))), target)


class Text:
    """A session in float64 whose logits are compared with the formulas; the target's states are random."""

    def __init__(self, drafter: EagleDrafter, formulas: files.Formulas, prompt: int, seed: int) -> None:
        self.formulas, self.generator = formulas, torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(files.VOCAB, (prompt,), generator=self.generator).tolist()
        self.draft: Any = drafter.start(self.tokens, 16)
        self.states = self.draw(prompt - 1)
        self.draft.prefill((self.states,), prompt - 1)
        self.paths: list[list[int]] = [[]]

    def draw(self, count: int) -> torch.Tensor:
        return torch.randn(1, count, eagle3_files.TARGET_HIDDEN, generator=self.generator, dtype=torch.float64)

    def check(self, logits: torch.Tensor) -> None:
        for row, path in zip(logits, self.paths, strict=True):
            expected = self.formulas.logits([self.states[0].numpy()], self.tokens[1:], path)
            np.testing.assert_allclose(row.numpy(), expected, atol=TOLERANCE * np.abs(expected).max(), rtol=0)

    def descend(self, frontier: Frontier) -> None:
        self.paths = [[*self.paths[origin], token] for token, origin in zip(*frontier, strict=True)]

    def commit(self, tokens: list[int]) -> None:
        new, self.paths = self.draw(len(tokens)), [[]]
        self.draft.commit(tokens, (new,))
        self.tokens, self.states = self.tokens + tokens, torch.cat((self.states, new), 1)


FRONTIERS = (Frontier([1, 2, 3], [0, 0, 0]), Frontier([4, 5, 4, 6], [0, 0, 1, 2]), Frontier([7, 8], [3, 0]))


@every_kind
def test_logits_equal_the_formulas_over_rounds_alone_and_together(name, tmp_path):
    kind, target = files.KINDS[name], eagle3_files.target().double()
    drafter = loaded(name, tmp_path, target)
    embedding, output = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    formulas = files.Formulas(kind, files.weights(kind), embedding, output)
    texts = [Text(drafter, formulas, prompt, seed=prompt) for prompt in (5, 2, 9)]
    sessions = [text.draft for text in texts]
    for committed in ([9], [1, 5, 9], [22, 2]):
        for text, row in zip(texts, drafter.root(sessions), strict=True):
            text.check(row[None])
        for frontier in FRONTIERS:
            together = drafter.expand(sessions, [frontier] * len(texts)).split(len(frontier.tokens))
            for text, logits in zip(texts, together, strict=True):
                text.descend(frontier)
                text.check(logits)
        for text in texts:
            text.commit(committed)


def decoder_of(name: str, folder) -> Decoder:
    target = TargetModel(eagle3_files.target())
    return Decoder(target, loaded(name, folder, target.module))


@every_kind
def test_in_the_loop_it_gets_the_states_that_the_output_layer_reads(name, tmp_path):
    kind, clone = files.KINDS[name], eagle3_files.target()
    decoder = decoder_of(name, tmp_path).with_policy(Talon(width=8, budget=24, margin=0.01))
    embedding, output = clone.get_input_embeddings().weight, clone.get_output_embeddings().weight
    formulas = files.Formulas(kind, files.weights(kind), embedding, output)
    drafter: Any = decoder.drafter
    request = decoder.new_request([3, 1, 4, 1, 5], max_new_tokens=14)
    roots, root = [], drafter.root
    drafter.root = lambda sessions: roots.append((list(request.tokens), root(sessions))) or roots[-1][1]
    while not request.finish_reason:
        decoder.step(request)
    assert roots
    for tokens, logits in roots:
        with torch.inference_mode():
            states = clone.model(torch.tensor([tokens[:-1]])).last_hidden_state
        expected = formulas.logits([states[0].double().numpy()], tokens[1:], [])
        np.testing.assert_allclose(logits[0].double().numpy(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("policy", ["chain", "talon", "dynatree", "auto"])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}])
def test_the_text_is_that_of_plain_decoding(policy, options, tmp_path):
    decoder = decoder_of("EAGLE-1", tmp_path).with_policy(POLICIES[policy]()).with_costs(TOY_COSTS)
    drafted = 0
    for prompt in ([3, 1, 4], [2]):
        generation = decoder.generate(prompt, max_new_tokens=16, **options)
        assert generation.tokens == decoder.plain().generate(prompt, max_new_tokens=16, **options).tokens
        drafted += sum(turn.levels for turn in generation.metrics.rounds)
    assert drafted


def test_texts_in_an_engine_are_those_written_alone(tmp_path):
    decoder = decoder_of("EAGLE-1", tmp_path).with_policy(Talon(width=4, budget=12))
    prompts = [[3, 1, 4], [2], [7, 7, 1, 0, 5, 9]]
    alone = [decoder.generate(prompt, max_new_tokens=12).tokens for prompt in prompts]
    with Engine(decoder) as engine:
        handles = [engine.submit(prompt, max_new_tokens=12) for prompt in prompts]
        assert [handle.result().tokens for handle in handles] == alone


@every_kind
def test_files_are_recognised_and_described(name, tmp_path):
    kind = files.KINDS[name]
    folder = files.write(tmp_path, kind, files.weights(kind))
    assert recognise(folder) == "eagle"
    found = inspect(str(folder))
    assert found.problems == ()
    assert found.fits["hidden size"] == eagle3_files.TARGET_HIDDEN
    assert found.fits["vocabulary"] == files.VOCAB
    assert found.details["embedding"] == ("own" if kind.own_embedding else "the target's")
    assert found.details["decoder layers"] == kind.layers


def test_a_folder_is_loaded_for_its_target(tmp_path):
    kind = files.KINDS["EAGLE-1"]
    folder = files.write(tmp_path, kind, files.weights(kind))
    target = eagle3_files.target()
    lay_out_for_cpu(target)
    decoder = drafttree.load(target, str(folder), policy="talon")
    assert isinstance(decoder.drafter, EagleDrafter)
    assert decoder.drafter.hidden_layers == (eagle3_files.DEPTH,)
    own = sum(tensor.nbytes for tensor in files.weights(kind).values())
    assert decoder.drafter.nbytes == own
    assert len(decoder.generate([3, 1, 4], max_new_tokens=6).tokens) == 6


def test_what_does_not_fit_is_told(tmp_path):
    kind = files.KINDS["EAGLE-1"]
    tensors, config = files.weights(kind), files.configuration(kind)
    other = tiny.build("llama")
    assert "made for a target with a vocabulary of 23, this target's is 97" in told(
        ModelError, load, tensors, config, other
    )
    del tensors["layers.0.mlp.up_proj.weight"], tensors["fc.bias"]
    (problem,) = parse({**tensors, "norm.weight": torch.ones(32)}, config).problems[:1]
    assert problem == "missing fc.bias, layers.0.mlp.up_proj.weight"
    assert "unexpected norm.weight" in parse({**tensors, "norm.weight": torch.ones(32)}, config).problems
    assert "config.json is missing or empty" in told(ModelError, parse, tensors, {})
    assert "gives layernorms as true" in told(ModelError, parse, tensors, {**config, "layernorms": True})
