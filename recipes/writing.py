"""Lets a target write the texts on which its head is trained, and caches its hidden states on disk in the same passes.

A text is one file, so writing goes on wherever it was stopped. Each holds the tokens of a prompt and of the target's
reply, and what a head reads and learns from at all of them but the last: the hidden states of some layers, in bfloat16.
"""

import argparse
import hashlib
import json
import math
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

import drafttree
from disk import atomic_file
from drafttree import Decoder
from drafttree.models import Output, Segment, TreeCache
from drafttree.text.prompt import encode
from prompts import training_prompts
from run import Interval

AT_ONCE = 32
"""Texts that the target writes at the same time."""
LONGEST_REPLY = 256
"""Tokens of the longest reply."""
TEMPERATURE = 0.7
"""Of half of the texts, if the target's generation config has none; the others are greedy."""
WRITING_SHARE = 0.4
"""Share of the time until a deadline after which writing ends, however much is written."""
ROOM_BESIDE = 2_000_000_000
"""Bytes that checkpoints and exports need beside the texts."""


@dataclass(frozen=True)
class WrittenText:
    """A prompt and the target's reply.

    Attributes:
        tokens: int64 `[tokens]` of both.
        prompt: number of tokens of the prompt.
        states: bfloat16 `[layers, tokens - 1, hidden]` of the stored layers, the last of which is after the final norm.
    """

    tokens: Tensor
    prompt: int
    states: Tensor


class WrittenTexts:
    """The texts of a folder, and a description of the target that wrote them.

    Args:
        folder: the folder.
        description: what identifies the target, its tokenizer and the stored layers.

    Raises:
        ValueError: the folder holds texts of another target, tokenizer or other layers.
    """

    def __init__(self, folder: Path, description: dict[str, Any]) -> None:
        self.folder = folder
        path = folder / "target.json"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as file:
                file.write(json.dumps(description, indent=2).encode())
        try:
            known = json.loads(path.read_text())
        except ValueError:
            raise ValueError(f"{path} is damaged; delete {folder}, and the texts are written again") from None
        for name, value in description.items():
            if known.get(name) != value:
                raise ValueError(
                    f"the texts in {folder} were written with another {name}: {known.get(name)}, not {value}; use "
                    "another --out or the target that wrote them"
                )

    def path(self, number: int) -> Path:
        """The file of the text that answers a prompt, by the prompt's number."""
        return self.folder / f"text-{number:06d}.safetensors"

    def paths(self) -> list[Path]:
        """The files of all texts, in the order of their prompts."""
        return sorted(self.folder.glob("text-*.safetensors"))

    def sizes(self) -> list[int]:
        """The number of tokens of every text, in the order of `paths`. Damaged files are deleted."""
        found = []
        for path in self.paths():
            try:
                with safe_open(path, "pt") as file:
                    found.append(file.get_slice("tokens").get_shape()[0])
            except SafetensorError:
                print(f"{path} is damaged and deleted; its text is written again", flush=True)
                path.unlink()
        return found

    def read(self, path: Path) -> WrittenText:
        """Read a text."""
        stored = load(path.read_bytes())
        return WrittenText(stored["tokens"].long(), int(stored["prompt"]), stored["states"])

    def reply(self, path: Path) -> np.ndarray:
        """Read the tokens of a text's reply, without its states."""
        with safe_open(path, "np") as file:
            return file.get_tensor("tokens")[int(file.get_tensor("prompt")) :]

    def keep(self, number: int, text: WrittenText) -> None:
        """Write a text.

        Raises:
            DiskFull: the disk is full.
        """
        tensors = {"tokens": text.tokens.int(), "prompt": torch.tensor(text.prompt), "states": text.states}
        with atomic_file(self.path(number)) as file:
            file.write(save(tensors))


def describe(target: str, tokenizer: Any, hidden: int, layers: Sequence[int]) -> dict[str, Any]:
    """What identifies a target's texts: the target, its tokenizer, its width and the stored layers."""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items())).encode()
    return {
        "target": Path(target).name,
        "tokenizer": hashlib.sha256(vocabulary).hexdigest()[:16],
        "hidden size": hidden,
        "layers": [*layers],
    }


class RunningText:
    """A text that is being written.

    Args:
        number: number of its prompt.
        prompt: token ids of the prompt.
        cache: the target's KV cache of the text, empty.
        temperature: of its draws, 0 for a greedy text. They depend on nothing but the text and its number.
    """

    def __init__(self, number: int, prompt: list[int], cache: TreeCache, temperature: float) -> None:
        self.number, self.cache, self.temperature = number, cache, temperature
        self._prompt, self._tokens, self._unread = len(prompt), [*prompt], prompt
        self._states = list[Tensor]()
        self._generator = torch.Generator().manual_seed(number)

    def segment(self) -> Segment:
        """The tokens that the target has not read; the logits of the last are wanted."""
        return Segment.of_text(self.cache, self._unread)

    def add(self, output: Output) -> int:
        """Record the states of these tokens, and return the next token."""
        self.cache.commit(range(len(self._unread)))
        self._states.append(torch.stack([state[0] for state in output.hidden]).to("cpu", torch.bfloat16))
        logits = output.logits[0, -1].float().cpu()
        if self.temperature:
            probs = (logits / self.temperature).softmax(-1)
            token = int(torch.multinomial(probs, 1, generator=self._generator))
        else:
            token = int(logits.argmax())
        self._tokens.append(token)
        self._unread = [token]
        return token

    @property
    def reply(self) -> int:
        """Number of tokens of the reply."""
        return len(self._tokens) - self._prompt

    def written(self) -> WrittenText:
        """The text so far."""
        return WrittenText(torch.tensor(self._tokens), self._prompt, torch.cat(self._states, 1))


def write_texts(texts: WrittenTexts, options: argparse.Namespace, config: Any, layers: tuple[int, ...]) -> None:
    """Let the target answer prompts until the wanted number of tokens is written, or time for it is over.

    Args:
        texts: where they are kept.
        options: those of the recipe.
        config: the target's.
        layers: the layers to store.

    Raises:
        ValueError: there are no prompts, or the disk has no room for the texts.
        DiskFull: the disk is full.
    """
    written = sum(texts.sizes())
    if written >= options.write:
        return
    prompts = training_prompts(options.prompts, options.held_out)
    check_room(texts.folder, options.write - written, 2 * len(layers) * config.hidden_size)
    decoder = drafttree.load(
        options.target, None, dtype=options.dtype, device=options.device, quantize=options.quantize
    )
    began, shown, new = time.time(), Interval(20), 0
    end = began + (options.deadline.timestamp() - began) * WRITING_SHARE if options.deadline else math.inf
    for number, text in _answers(decoder, prompts, texts, layers):
        texts.keep(number, text)
        new += len(text.tokens)
        if shown.due():
            speed = new / (time.time() - began)
            left = min((options.write - written - new) / speed, end - time.time()) / 60
            line = f"written {written + new:,} tokens, {speed:.1f} tokens/s, minutes left {left:.0f}"
            print(time.strftime("%H:%M:%S"), line, flush=True)
        if written + new >= options.write or time.time() > end:
            break
    else:
        print(f"all {len(prompts):,} prompts are answered; give more for longer training", flush=True)
    print(f"written {written + new:,} tokens", flush=True)


@torch.inference_mode()
def _answers(
    decoder: Decoder, prompts: Sequence[str], texts: WrittenTexts, layers: tuple[int, ...]
) -> Iterator[tuple[int, WrittenText]]:
    """Yield the number of each prompt that has no text yet, and the target's text, as they end."""
    waiting = iter([number for number in range(len(prompts)) if not texts.path(number).exists()])
    running = list[RunningText]()
    while True:
        for number in islice(waiting, AT_ONCE - len(running)):
            running.append(_begin(decoder, number, prompts[number]))
        if not running:
            return
        outputs = decoder.target.forward([text.segment() for text in running], hidden_layers=layers)
        ended = [
            text.add(output) in decoder.eos or text.reply == LONGEST_REPLY
            for text, output in zip(running, outputs, strict=True)
        ]
        yield from ((text.number, text.written()) for text, is_over in zip(running, ended, strict=True) if is_over)
        running = [text for text, is_over in zip(running, ended, strict=True) if not is_over]


def _begin(decoder: Decoder, number: int, prompt: str) -> RunningText:
    """Begin a text: half of them greedy, half at the target's own temperature."""
    target = decoder.target
    tokens = encode([{"role": "user", "content": prompt}], decoder.tokenizer, target.vocab_size, target.context)
    warm = decoder.defaults.get("temperature") or TEMPERATURE
    cache = target.new_cache(len(tokens) + LONGEST_REPLY)
    return RunningText(number, tokens, cache, random.Random(number).choice((0.0, warm)))


def check_room(folder: Path, tokens: int, token_bytes: int) -> None:
    """Check that the disk has room for tokens that are to be written.

    Raises:
        ValueError: it has not.
    """
    free, needed = shutil.disk_usage(folder).free, tokens * token_bytes + ROOM_BESIDE
    if free < needed:
        fits = max(free - ROOM_BESIDE, 0) // token_bytes
        raise ValueError(
            f"the hidden states of {tokens:,} tokens need {needed / 1e9:,.1f} GB, {token_bytes / 1000:.1f} kB each and "
            f"{ROOM_BESIDE / 1e9:.0f} GB for checkpoints, but {folder} has {free / 1e9:,.1f} GB; make room, or write "
            f"{fits:,} tokens more at most (--write)"
        )
