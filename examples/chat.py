"""A conversation: messages in, the answer out, and the next question with the whole conversation as context.

    python examples/chat.py "Where is the ship?" "And who is on it?"

The embedded model has a chat template and nothing to say; name a chat model for real answers:
`drafttree.load("Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct")`, or `drafttree chat` in a terminal.
"""

import sys

import drafttree

decoder = drafttree.load()
messages = []
for question in sys.argv[1:] or ["Where is the ship?", "And who is on it?"]:
    messages.append({"role": "user", "content": question})
    answer = decoder.generate(messages, max_new_tokens=30, stop="\n")
    messages.append({"role": "assistant", "content": answer.text.strip()})
    print(f"> {question}\n{answer.text.strip()}")
