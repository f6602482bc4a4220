"""Writes many texts at once: a list of prompts, requests that come one by one, and streams of an event loop."""

import asyncio

import drafttree

PROMPTS = ["Once upon a time", "The old man looked at the sea", "She opened the letter and"]

decoder = drafttree.load(dtype="float32")
for text in decoder.generate(PROMPTS, max_new_tokens=16):
    print(repr(text.text))

with drafttree.Engine(decoder, max_batch=8) as engine:
    handles = [engine.submit(prompt, max_new_tokens=16, temperature=0.8, seed=1) for prompt in PROMPTS]
    for handle in handles:
        print(repr(handle.result().text))
    print(f"{engine.metrics.tokens} tokens in {len(engine.metrics.rounds)} rounds")


async def stream(prompt: str) -> str:
    """The text of a prompt, written together with the others that are streamed meanwhile."""
    return "".join([chunk.text async for chunk in decoder.astream(prompt, max_new_tokens=16)])


async def main() -> None:
    """Stream all prompts at the same time."""
    print(await asyncio.gather(*map(stream, PROMPTS)))


asyncio.run(main())
