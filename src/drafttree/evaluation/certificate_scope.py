"""Which parts of the package `drafttree certify --exact` enumerates, which it samples, and which it leaves out."""

from typing import NamedTuple


class Scope(NamedTuple):
    """Parts that are checked in one way, or not at all.

    Attributes:
        way: "enumerated", "sampled" or "left out".
        what: what the parts do.
        how: how they are checked, here or elsewhere.
        modules: their files, without the suffix.
    """

    way: str
    what: str
    how: str
    modules: tuple[str, ...]


ENUMERATED = "enumerated"
SAMPLED = "sampled"
LEFT_OUT = "left out"
SCOPES = (
    Scope(
        ENUMERATED,
        "rounds: trees, passes, verdicts, commits, ends of texts",
        "every draw and decision of whole texts, alone and in engines",
        (
            "engine/round_loop",
            "engine/drafting/tree_drafter",
            "engine/drafting/tree_growth",
            "engine/request",
            "engine/task",
            "engine/written_text",
            "engine/drafting/text_drafting",
            "engine/decoder",
            "engine/generation",
            "engine/generation_options",
            "engine/compatibility",
            "text/detokenizer",
            "text/stop_scope",
            "engine/metrics",
            "text/prompt",
            "text/chat",
        ),
    ),
    Scope(
        ENUMERATED,
        "engines: seeds, admission, budgets, publishing",
        "two and three texts at once and one behind the other; rounds are stepped, so threads are left out",
        (
            "engine/batching/engine",
            "engine/batching/handle",
            "engine/batching/loop",
            "engine/batching/scheduler",
            "engine/batching/seat",
            "engine/memory",
            "engine/target_lock",
        ),
    ),
    Scope(
        ENUMERATED,
        "what earlier rounds and texts decide: pauses, cut trees, kept rows, tests of heads",
        "texts by given costs, with pauses, behind kept rows and behind a text of the same seed",
        (
            "engine/drafting/acceptance",
            "engine/drafting/controller",
            "engine/drafting/prices",
            "engine/drafting/value",
            "engine/drafting/learned_state",
            "engine/drafting/acceptance_watch",
            "engine/prefixes",
        ),
    ),
    Scope(
        ENUMERATED,
        "verifiers that draw",
        "every tree of small models, and of 16 nodes",
        (
            "verifiers/base",
            "verifiers/rejection",
            "verifiers/point_mass",
            "verifiers/traversal",
            "verifiers/block",
            "verifiers/k_seq",
            "verifiers/multi_draft",
            "verifiers/typical",
        ),
    ),
    Scope(
        ENUMERATED,
        "logits processors and truncation",
        "one processor that looks at the path; top_k, top_p and min_p, each alone",
        ("constraints/processors", "constraints/options", "constraints/refusals"),
    ),
    Scope(
        SAMPLED,
        "verifiers whose draws are a function of seed and position",
        "texts of ten seeds in every trial are plain decoding's",
        ("verifiers/coupled", "verifiers/greedy"),
    ),
    Scope(
        SAMPLED,
        "random numbers",
        "25 streams of 3,000 seeds, against uniform numbers and each other",
        ("core/randomness",),
    ),
    Scope(
        SAMPLED,
        "weights that are packed",
        "texts of one small model behind six edits, as transformers writes them",
        ("models/native/packed_model", "models/module/fingerprint", "models/module/contents"),
    ),
    Scope(
        LEFT_OUT,
        "grammars: JSON schemas, regular expressions, EBNF, tool calls",
        "tests/constraints compares what they allow with other implementations; they go through the processors' code",
        (
            "constraints/characters",
            "constraints/ebnf",
            "constraints/formats",
            "constraints/grammar",
            "constraints/json_numbers",
            "constraints/json_reader",
            "constraints/json_rules",
            "constraints/json_schema",
            "constraints/json_values",
            "constraints/lark",
            "constraints/marked_arguments",
            "constraints/patterns",
            "constraints/schema_comparison",
            "constraints/structures",
        ),
    ),
    Scope(
        LEFT_OUT,
        "images in prompts",
        "tests/engine/test_image_prompts.py compares texts with transformers'",
        ("engine/image_prompt",),
    ),
    Scope(
        LEFT_OUT,
        "costs by a clock, and files of them",
        "costs are given, and frozen in texts that draw alone; tests/engine/drafting",
        ("engine/drafting/measure", "engine/drafting/disk_cache", "engine/model_digest"),
    ),
    Scope(
        LEFT_OUT,
        "CUDA graphs of passes",
        "make gpu-tests compares texts on a GPU",
        ("engine/pass_recording",),
    ),
    Scope(
        LEFT_OUT,
        "prompts: control tokens, lengths; drafters' vocabularies",
        "they come before the text, or draw nothing; tests/text",
        ("text/control_tokens", "text/prompt_length", "text/vocabulary_map"),
    ),
)
"""All files of `engine/`, `text/`, `constraints/` and `verifiers/`, each once.

Drafters draw nothing: `tree_growth` does.
"""


def left_out() -> str:
    """What is left out, in one line."""
    return "; ".join(scope.what for scope in SCOPES if scope.way == LEFT_OUT)
