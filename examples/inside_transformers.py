"""Speculate from inside transformers' own `generate`, with its options and its streamer."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

import drafttree
from drafttree.loading import zoo

name = zoo.folder("embedded")  # or any model of transformers
model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(name)
inputs = tokenizer("It was the best of times", return_tensors="pt")
options = {"max_new_tokens": 40, "do_sample": False, "repetition_penalty": 1.2}

own = model.generate(**inputs, **options)
speculate = drafttree.hf.generate(drafter="embedded-draft", policy="talon:budget=16,width=4")
ours = model.generate(**inputs, **options, custom_generate=speculate, streamer=TextStreamer(tokenizer))

print("the text of generate itself:", torch.equal(own, ours))
