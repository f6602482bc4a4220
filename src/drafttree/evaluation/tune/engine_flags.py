"""Flags of other engines, nearest to what a tuning recommends, and what those engines cannot do of it.

Engines rename their flags: these are of SGLang 0.5, vLLM 0.17 and TensorRT-LLM 1.3 (PyTorch backend), by their
documentation; none of them was run.
"""

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from drafttree.core.errors import ConfigError
from drafttree.drafters import (
    Drafter,
    HeadDrafter,
    LanguageModelDrafter,
    LookupDrafter,
    MedusaDrafter,
    MixedDrafter,
    SuffixDrafter,
)
from drafttree.engine.metrics import Metrics
from drafttree.evaluation.tune.tuning import Tuning
from drafttree.loading import zoo
from drafttree.loading.drafters import MIXED

NO_PAUSES = "it drafts in every round; auto stops drafting where that is slower than plain decoding"
NO_COSTS = "its drafts follow neither measured costs nor counted acceptance; their size is the median round's here"
NO_DRAFT_TEMPERATURE = "it has no draft temperature; the drafter's logits are taken as they are"
OTHER_VERIFIER = "its verification is its own; above temperature 0 a seed gives another text, and trees do not keep it"


@dataclass(frozen=True)
class EngineFlags:
    """A recommendation in the words of another engine.

    Attributes:
        engine: the name of the engine.
        text: flags of a command line or lines of a configuration file; empty where the engine has nothing like it.
        notes: what it cannot do of the recommendation, a clause each.
    """

    engine: str
    text: str
    notes: list[str]


@dataclass(frozen=True)
class TreeShape:
    """A tree of one shape, for engines whose every round has the same.

    Attributes:
        levels: the number of levels that are drafted.
        width: the number of nodes that are expanded on a level.
        nodes: the number of nodes, the root included.
    """

    levels: int
    width: int
    nodes: int

    @classmethod
    def of(cls, metrics: Metrics) -> "TreeShape":
        """The median of the rounds that drafted."""
        rounds = [each for each in metrics.rounds if each.levels]
        levels = math.ceil(statistics.median(each.levels for each in rounds))
        if all(each.nodes == each.levels + 1 for each in rounds):
            return cls(levels, 1, levels + 1)
        nodes = max(round(statistics.median(each.nodes for each in rounds)), levels + 2)
        width = max(round(statistics.median(statistics.fmean(each.widths[1:] or (1,)) for each in rounds)), 2)
        while 1 + width + width**2 * (levels - 1) < nodes:  # so many nodes must come out of so many levels
            width += 1
        return cls(levels, width, nodes)


def engine_flags(engine: str, tuning: Tuning) -> EngineFlags:
    """The flags of an engine nearest to a recommendation.

    Raises:
        ConfigError: there is no such engine.
    """
    check_engine(engine)
    best, decoder = tuning.best, tuning.decoder
    drafted = any(each.levels for each in tuning.metrics.rounds)
    if not (tuning.speculates and drafted and best and decoder and decoder.drafter):
        return EngineFlags(engine, "", ["there are no flags: the recommendation is not to speculate"])
    drafter, notes = decoder.drafter, []
    if isinstance(drafter, MixedDrafter):
        drafter, notes = drafter.model, [f"it does not mix lookup with a model; {best.drafter} becomes its model alone"]
    name = best.drafter.removeprefix(MIXED)
    where = str(zoo.folder(name)) if name in zoo.NAMES else name
    text = ENGINES[engine](_kind(drafter), where, shape := TreeShape.of(tuning.metrics))
    if not text:
        return EngineFlags(engine, "", [f"it has nothing like the drafter {best.drafter}; no flags are given"])
    if shape.width > 1 and not _has_trees(engine, _kind(drafter)):
        notes.append(f"it drafts chains only; the tree of {shape.nodes} nodes becomes a chain of {shape.levels}")
    notes += [NO_PAUSES] if best.policy.startswith("auto") else []
    notes += [NO_DRAFT_TEMPERATURE] if best.draft_temperature != 1 else []
    notes += [NO_COSTS] if shape.width > 1 or best.policy.startswith("auto") else []
    return EngineFlags(engine, text, [*notes, OTHER_VERIFIER])


def check_engine(engine: str) -> None:
    """Refuse an engine that no flags are known for.

    Raises:
        ConfigError: it is one.
    """
    if engine not in ENGINES:
        raise ConfigError(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")


def _kind(drafter: Drafter) -> str:
    if isinstance(drafter, HeadDrafter):
        return drafter.kind
    kinds = {
        MedusaDrafter: "medusa",
        LanguageModelDrafter: "model",
        SuffixDrafter: "suffix",
        LookupDrafter: "lookup",
    }
    return next((kind for each, kind in kinds.items() if isinstance(drafter, each)), "other")


def _has_trees(engine: str, kind: str) -> bool:
    return (engine != "vllm" and kind == "eagle3") or (engine == "sglang" and kind == "model")


def _sglang(kind: str, where: str, shape: TreeShape) -> str:
    if kind in {"lookup", "suffix"}:
        return f"--speculative-algorithm NGRAM --speculative-num-draft-tokens {shape.levels + 1}"
    algorithm = {"eagle3": "EAGLE3", "model": "STANDALONE"}.get(kind)
    return (
        algorithm
        and (
            f"--speculative-algorithm {algorithm} --speculative-draft-model-path {where} "
            f"--speculative-num-steps {shape.levels} --speculative-eagle-topk {shape.width} "
            f"--speculative-num-draft-tokens {shape.nodes}"
        )
    ) or ""


def _vllm(kind: str, where: str, shape: TreeShape) -> str:
    method = {"eagle3": "eagle3", "medusa": "medusa", "model": "draft_model", "lookup": "ngram", "suffix": "suffix"}
    if kind not in method:
        return ""
    config: dict[str, object] = {"method": method[kind]}
    if kind not in {"lookup", "suffix"}:
        config["model"] = where
    return f"--speculative-config '{json.dumps(config | {'num_speculative_tokens': shape.levels})}'"


def _tensorrt_llm(kind: str, where: str, shape: TreeShape) -> str:
    decoding = {"eagle3": "Eagle3", "model": "Draft_Target", "lookup": "NGram", "suffix": "NGram"}.get(kind)
    if not decoding:
        return ""
    lines = ["speculative_config:", f"decoding_type: {decoding}", f"max_draft_len: {shape.levels}"]
    if decoding != "NGram":
        lines.append(f"speculative_model: {json.dumps(where)}")
    if decoding == "Eagle3" and shape.width > 1:
        lines += ["use_dynamic_tree: true", f"dynamic_tree_max_topK: {shape.width}"]
        lines.append(f"max_total_draft_tokens: {shape.nodes - 1}")
    return "\n  ".join(lines)


ENGINES: dict[str, Callable[[str, str, TreeShape], str]] = {
    "sglang": _sglang,
    "vllm": _vllm,
    "tensorrt-llm": _tensorrt_llm,
}
"""Other engines by name: each makes its flags of a kind of drafter, where it lies, and the shape of a tree."""
