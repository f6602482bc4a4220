"""Print a text while it is written, after a prompt of your own if one is given; what was drafted is in brackets."""

import sys

import drafttree

decoder = drafttree.load(drafter="embedded-eagle3", policy="talon:budget=16,width=4")
prompt = sys.argv[1] if len(sys.argv) > 1 else "The old man looked at the sea"
print(prompt, end="")

inside = False
for chunk in decoder.stream(prompt, max_new_tokens=60, temperature=0.8, seed=4):
    for character, drafted in zip(chunk.text, chunk.drafted_text, strict=True):
        if drafted != inside:
            print("[" if drafted else "]", end="")
        inside = drafted
        print(character, end="", flush=True)
print("]" if inside else "")
