"""Examples of the main commands, which their help shows. All of them run without a network."""

EXAMPLES = {
    "demo": (
        "drafttree demo",
        'drafttree demo "Once upon a time" --max-new-tokens 64',
        "drafttree demo --drafter lookup --temperature 0",
    ),
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
    "worker": (
        "drafttree worker",
        "drafttree worker --target embedded --drafter lookup --max-batch 4",
        "drafttree worker --served-model-name small --max-model-len 1024",
    ),
    "trace": (
        'drafttree trace "The old man looked at the sea"',
        'drafttree trace "The old man looked at the sea" --policy talon:budget=20 -o trace.html',
        'drafttree trace "Once upon a time" --temperature 0.7 --seed 1 --max-new-tokens 40',
    ),
    "certify": (
        "drafttree certify --prompts prompts.jsonl --policy auto",
        "drafttree certify --exact --quick --policy chain --verifier rrsw",
        "drafttree certify --live --policy dynatree --verifier rrsw --tokens 2000",
    ),
    "tune": (
        "drafttree tune --minutes 2",
        "drafttree tune --prompts prompts.jsonl --save tuned.json",
        "drafttree tune --drafter lookup --drafter embedded-draft --temperature 0.7",
    ),
}
"""By command: three lines for a shell. `prompts.jsonl` is a file of prompts."""
UNTIMED = {"certify"}
"""Commands with examples whose speed does not matter, so that their help does not name the page on speed."""
