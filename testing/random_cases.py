"""Random cases for hypothesis: a target, a drafter, a policy, a verifier, a prompt and options, each by its name."""

import functools
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from pydantic.fields import FieldInfo
from transformers import WatermarkingConfig

import drafttree
from drafttree import Decoder
from drafttree.drafters import LOOKUPS, Drafter, LanguageModelDrafter, MixedDrafter, SuffixDrafter
from drafttree.engine.compatibility import incompatibility
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.loading import find_drafter
from drafttree.models import TargetModel
from drafttree.policies import POLICIES
from drafttree.verifiers import VERIFIERS
from testing import families, tiny

EMBEDDED = ["embedded-draft", "embedded-eagle3", "embedded-hydra", "embedded-medusa", "mixed:embedded-eagle3"]
DTYPES = {"embedded": "float32", "embedded exact": "bfloat16"}
TINY = ["llama", "gpt_neox", "gpt2", "gemma3", "mistral_sliding", "qwen2_moe_sliding"]
LONGEST = 24
MOST_TOKENS = 40
"""Prompts of tiny models are up to this long: their context is 64, so some texts end at it and some do not fit."""
TEXTS = [
    "The old man looked",
    "It was the best of times",
    " ",
    "\n\n",
    "na\u00efve \U0001f642",
    "e\u0301\u200d\u0000",
    "ab" * 60,
    "",
]
COMMON_TOKENS = 400
"""Ids below are bytes and the first merges of the embedded tokenizer, which most texts have; tiny models have fewer."""
RANGES = {"budget": (1, 40), "base_depth": (1, 5), "max_depth": (5, 8), "low": (0, 0.4), "high": (0.4, 1)}
"""Of parameters of policies; those of DynaTree's such that no two contradict each other."""
GRAMMARS = {
    "words": lambda: drafttree.grammar.regex("( [a-z]{1,6}){2,5}[.]?"),
    "digits": lambda: drafttree.grammar.regex("[0-9]{3}(-[0-9]+)*"),
    "schema": lambda: drafttree.grammar.json_schema(
        {"type": "object", "properties": {"a": {"enum": ["x", "\u00e9"]}, "b": {"type": "boolean"}}, "required": ["a"]}
    ),
}


@dataclass(frozen=True)
class Case:
    """One text to generate; what is drawn is names and numbers, so that a failing case can be read and typed in.

    Attributes:
        target: "embedded", "embedded exact" or a family of tiny random models.
        drafter: its name.
        policy: a name and parameters.
        verifier: its name, None for the automatic one.
        prompt: text, token ids or a conversation.
        options: of `generate`.
    """

    target: str
    drafter: str
    policy: tuple[str, Mapping[str, Any]]
    verifier: str | None
    prompt: str | list[int] | list[dict[str, str]]
    options: Mapping[str, Any]

    def decoder(self) -> Decoder:
        """The decoder of these parts."""
        base = target(self.target).with_drafter(drafter(self.target, self.drafter))
        name, parameters = self.policy
        verifier = VERIFIERS[self.verifier] if self.verifier else None
        return base.with_policy(POLICIES[name](**parameters)).with_verifier(verifier).with_costs(TOY_COSTS)

    def arguments(self) -> dict[str, Any]:
        """The options as `generate` takes them."""
        made = dict(self.options)
        if "grammar" in made:
            made["grammar"] = GRAMMARS[made["grammar"]]()
        if "watermarking_config" in made:
            made["watermarking_config"] = WatermarkingConfig(seeding_scheme=made["watermarking_config"])
        if (step := made.get("prefix_allowed_tokens_fn")) is not None:
            made["prefix_allowed_tokens_fn"] = lambda row, ids: [(int(ids[-1]) * step + n) % 97 for n in range(40)]
        return made


@functools.cache
def target(name: str) -> Decoder:
    """A decoder of a target without a drafter, in float32 or, where the name says so, with exact texts in bfloat16."""
    if name in DTYPES:
        exact = DTYPES[name] != "float32"
        return drafttree.load("embedded", "none", "chain", dtype=DTYPES[name], device="cpu", exact_text=exact)
    return Decoder(TargetModel(_module(name)), eos=(5,))


@functools.cache
def drafter(name: str, kind: str) -> Drafter | None:
    """A drafter for a target: what `drafttree.load` takes, or "near", the target with noise on its weights."""
    model, tokenizer = target(name).target, target(name).tokenizer
    if kind != "near" and kind != "mixed:near":
        return find_drafter(kind, model, tokenizer)
    module = _module(name)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.03 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    near = LanguageModelDrafter(TargetModel(module))
    return near if kind == "near" else MixedDrafter(SuffixDrafter(model.vocab_size, model.device), near)


def _module(name: str):
    return deepcopy(_built(name))


@functools.cache
def _built(name: str):
    return tiny.build(name) if name in tiny.CONFIGS else tiny.from_config(families.config(name))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Cases, half of them of the embedded models, the others of tiny random ones."""
    name = draw(st.sampled_from([*DTYPES]) | st.sampled_from([*TINY, *families.hybrids()[:2]]))
    embedded = name in DTYPES
    kinds = EMBEDDED if embedded else ["near", "mixed:near"]
    tokens = st.integers(0, COMMON_TOKENS if embedded else tiny.VOCAB - 1)
    ids = st.lists(tokens, min_size=1, max_size=MOST_TOKENS)
    texts = st.sampled_from(TEXTS) | st.text(min_size=1, max_size=30)
    turns = st.lists(texts, min_size=1, max_size=3).map(_conversation)
    greedy = draw(st.booleans())
    policy = draw(st.sampled_from(sorted(POLICIES)).flatmap(policies))
    return Case(
        target=name,
        drafter=draw(st.sampled_from([*kinds, *kinds, *LOOKUPS, "none"])),
        policy=policy,
        verifier=draw(st.sampled_from([None, "greedy"] if greedy else _verifiers(*policy))),
        prompt=draw(texts | ids | turns if embedded else ids),
        options=draw(options(tokens, greedy, text=embedded)),
    )


def _conversation(contents: list[str]) -> list[dict[str, str]]:
    roles = ["user", "assistant"] * len(contents)
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    return messages[: len(messages) - (len(messages) + 1) % 2]  # the last is the user's


def _verifiers(name: str, parameters: Mapping[str, Any]) -> list[str | None]:
    """The verifiers of sampled texts that serve a policy, and the automatic one."""
    policy = POLICIES[name](**parameters)
    found = [each for each in VERIFIERS if each != "greedy" and not incompatibility(policy, VERIFIERS[each])]
    return [None, *found]


def policies(name: str) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """A policy with some of its parameters changed."""
    drawn = {field: _values(field, info) for field, info in POLICIES[name].model_fields.items()}
    fields = {field: values for field, values in drawn.items() if values is not None}
    return st.tuples(st.just(name), st.fixed_dictionaries({}, optional=fields))


def _values(field: str, info: FieldInfo) -> st.SearchStrategy | None:
    """Small values of a policy's parameter, from its type and its bounds."""
    bounds = {side: getattr(limit, side) for limit in info.metadata for side in ("ge", "le") if hasattr(limit, side)}
    least, most = RANGES.get(field, (bounds.get("ge", 0), min(bounds.get("le", 8), 8)))
    if info.annotation is bool:
        return st.booleans()
    if info.annotation is float:
        return st.floats(least, most).map(lambda value: round(value, 3))
    if info.annotation in (int, int | None):
        return st.integers(least, most)
    if field == "tree":
        return st.sampled_from(["eagle-sparse", "medusa-63", "binary-1", "binary-3"])
    return st.none() | st.just("0+1+0.0+0.0.0+1.0") if field == "paths" else None


def options(tokens: st.SearchStrategy[int], greedy: bool, *, text: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Options of `generate`: always a length and a seed, and up to four others."""
    several = st.lists(tokens, min_size=1, max_size=4)
    sampled = {
        "top_k": st.integers(1, 30),
        "top_p": st.sampled_from([0.05, 0.5, 0.9, 0.99]),
        "min_p": st.sampled_from([0.01, 0.2, 1.0]),
        "typical_p": st.sampled_from([0.3, 0.9]),
        "epsilon_cutoff": st.sampled_from([0.001, 0.1]),
        "eta_cutoff": st.sampled_from([0.001, 0.1]),
        "top_h": st.sampled_from([0.3, 0.9]),
    }
    texts = {
        "stop": st.sampled_from(["e", " the", ["\n", "."], ["na\u00efve", "\ufffd"]]),
        "grammar": st.sampled_from(sorted(GRAMMARS)),
    }
    others = {
        "repetition_penalty": st.sampled_from([0.8, 1.1, 1.8]),
        "no_repeat_ngram_size": st.integers(1, 3),
        "sequence_bias": st.lists(st.tuples(several, st.sampled_from([-4.0, 4.0])).map(list), min_size=1, max_size=3),
        "bad_words_ids": st.lists(several, min_size=1, max_size=3),
        "suppress_tokens": several,
        "begin_suppress_tokens": several,
        "min_length": st.integers(0, 50),
        "min_new_tokens": st.integers(0, LONGEST),
        "forced_eos_token_id": tokens,
        "exponential_decay_length_penalty": st.tuples(st.integers(0, 20), st.sampled_from([1.01, 2.0])),
        "prefix_allowed_tokens_fn": st.integers(1, 7),
        "remove_invalid_values": st.booleans(),
        "renormalize_logits": st.booleans(),
        "watermarking_config": st.sampled_from(["lefthash", "selfhash"]),
        "eos_token_id": several,
        "ignore_eos": st.booleans(),
        "max_length": st.integers(1, 80),
        "draft_temperature": st.sampled_from([0.05, 0.5, 3.0]),
        "logprobs": st.sampled_from([True, 0, 3]),
        "reuse_prefix": st.booleans(),
    }
    known = others | (texts if text else {}) | ({} if greedy else sampled)
    temperatures = st.just(0) if greedy else st.sampled_from([0.01, 0.3, 0.7, 1, 1, 1.5, 5.0])
    always = {
        "max_new_tokens": st.integers(1, LONGEST),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "temperature": temperatures,
    }
    names = st.lists(st.sampled_from(sorted(known)), max_size=4, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries(always | {name: known[name] for name in chosen}))
