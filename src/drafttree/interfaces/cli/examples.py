"""Examples of the main commands, which their help shows. All of them run without a network."""

EXAMPLES = {
    "generate": (
        'drafttree generate "The old man looked at the sea"',
        'drafttree generate "Once upon a time" --temperature 0.7 --seed 1',
        'drafttree generate "The old man looked at the sea" --max-new-tokens 64 --compare',
    ),
    "chat": (
        "drafttree chat",
        "drafttree chat --temperature 0.7 --max-new-tokens 100",
        'drafttree chat --system "Answer in one sentence." --drafter lookup',
    ),
    "batch": (
        "drafttree batch prompts.jsonl texts.jsonl",
        "drafttree batch prompts.jsonl samples.jsonl --temperature 0.7 --seed 1",
        "drafttree batch prompts.jsonl short.jsonl --max-new-tokens 20 --max-batch 4 --json",
    ),
    "serve": (
        "drafttree serve",
        "drafttree serve --target embedded --drafter lookup --port 8001",
        "drafttree serve --max-batch 4 --max-model-len 1024 --timeout 60",
    ),
    "tune": (
        "drafttree tune --minutes 2",
        "drafttree tune --prompts prompts.jsonl --save tuned.json",
        "drafttree tune --drafter lookup --drafter embedded-draft --temperature 0.7",
    ),
}
"""By command: three lines for a shell. `prompts.jsonl` is a file of prompts."""
