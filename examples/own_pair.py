"""Save a target and a draft model in one folder, and generate with them from there.

    python examples/own_pair.py my-pair
    python examples/own_pair.py my-pair --target Qwen/Qwen2.5-1.5B --draft Qwen/Qwen2.5-0.5B

By default the models are the embedded ones, so that it runs offline. Any two models that share a tokenizer will do,
those you trained yourself included.
"""

import argparse
from pathlib import Path

import drafttree
from drafttree.loading import load_tokenizer

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("folder", type=Path)
parser.add_argument("--target", default="embedded")
parser.add_argument("--draft", default="embedded-draft")
options = parser.parse_args()

for part, name in (("target", options.target), ("draft", options.draft)):
    drafttree.load(name, drafter="none").target.module.save_pretrained(options.folder / part)
    load_tokenizer(name).save_pretrained(options.folder / part)

decoder = drafttree.load(options.folder / "target", options.folder / "draft", policy="dynatree", dtype="float32")
prompt = "The captain looked at the map and said"
result = decoder.generate(prompt, max_new_tokens=60)
plain = decoder.plain().generate(prompt, max_new_tokens=60)

print(prompt + result.text)
print(f"{result.metrics.mean_accepted_tokens:.2f} tokens per target pass")
print("the same text as without speculation:", result.tokens == plain.tokens)
