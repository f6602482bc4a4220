"""What the recipes for heads share: the frozen target, its text, the lesson of one step, and the command around it.

Heads learn the target's own probabilities, not the text: head k reads the hidden state at position t and is asked for
the target's distribution at t + 1 + k, which the same target pass has computed. Nothing of size tokens x vocabulary
is kept: the vocabulary is worked through some hundred positions and one head at a time.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel
from transformers.utils import logging

import corpus
import tokens
from disk import replaced
from drafttree.core.errors import DraftTreeError
from drafttree.drafters.heads import embedding, last_layer, projection
from drafttree.loading import find_device, find_dtype, load_model, load_tokenizer
from features import HiddenStates, RepeatedWindows
from muon import Muon
from run import Run
from schedule import Plan, next_moment
from settings import Settings
from windows import Windows

CHUNK = 512
ADAM_RATE = 1e-3
PARTS = ("heads", "muon", "adam")


@dataclass
class Losses:
    """Sums over positions, `[levels]` each: cross-entropies, and first choices that are the target's."""

    nats: Tensor
    agreeing: Tensor
    positions: int = 0

    def __iadd__(self, other: "Losses") -> "Losses":
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def means(self) -> dict[str, list[float]]:
        """Nats per token, and the share of positions where head and target agree, for every head."""
        sums = {"loss": self.nats, "agreement": self.agreeing}
        return {name: [round(part / self.positions, 3) for part in total.tolist()] for name, total in sums.items()}


class Lesson(nn.Module):
    """A kind of head in training; a recipe says what its heads read.

    Args:
        heads: the heads, one a level, with float32 parameters; frozen ones are the target's.
        levels: how many.
        shared: whether they end before the target's own projection.

    Attributes:
        layers: the target's hidden states read besides the last, counted as transformers' `hidden_states`.
        vocab: rows of projections of their own, None for the target's vocabulary.
    """

    layers: tuple[int, ...] = ()
    vocab: int | None = None

    def __init__(self, heads: nn.Module, levels: int, shared: bool):
        super().__init__()
        self.heads, self.levels, self.shared = heads, levels, shared

    def context(self, hidden: Tensor, states: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
        """What all heads read at every position, `[batch, rows, ...]`.

        Args:
            hidden: `[batch, length, hidden]` the target's last hidden state.
            states: those of `layers`, of the same shape.
            inputs: `[batch, length]` token ids.
        """
        return hidden

    def answers(self, logits: Tensor) -> Tensor:
        """The probabilities to learn from the target's logits `[rows, vocab]`; rows of zeros teach nothing."""
        return logits.softmax(-1)

    def guess(self, level: int, context: Tensor, following: list[Tensor]) -> Tensor:
        """What a head says, `[rows, vocab]`, or `[rows, hidden]` before a shared projection.

        Args:
            level: of the head, 0 for the first.
            context: `[rows, ...]`.
            following: the embeddings `[rows, hidden]` of the next tokens, `level + 1` of them.
        """
        raise NotImplementedError

    def write(self, folder: Path) -> None:
        """The heads in their public format."""
        raise NotImplementedError


class HeadRun(Run):
    """Heads of any kind, their optimizers, and where in the text they are.

    Attributes:
        learnt: the positions up to which the text has been learnt; a step that fails has taken its windows already.
    """

    def __init__(self, target: PreTrainedModel, lesson: Lesson, windows: Windows, options: argparse.Namespace):
        super().__init__(options.out)
        self.target, self.lesson, self.windows = target, lesson, windows
        self.heads, self.options = lesson.heads, options
        self.learnt: dict[int, tuple[int, int]] = {}
        folder = options.out / "features" if options.cache else None
        self.features = HiddenStates(target, lesson.layers, folder)
        learning = [p for p in self.heads.parameters() if p.requires_grad]
        inner = [p for p in learning if p.ndim == 2 and len(p) not in (len(projection(target).weight), lesson.vocab)]
        known = set(inner)
        self.muon = Muon(inner, lr=options.rate, weight_decay=0.0)
        rest = [p for p in learning if p not in known]
        self.adam = torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0)

    def losses(self) -> Losses:
        none = torch.zeros(self.lesson.levels, device=self.target.device)
        return Losses(none, none)

    def update(self, now: Plan) -> Losses:
        """One optimizer step; of the plan only the learning rate is taken."""
        inputs, _ = self.windows.take(self.options.batch // self.options.length, self.options.length)
        losses = self._teach(inputs.to(self.target.device))
        for optimizer, rate in ((self.muon, self.options.rate), (self.adam, ADAM_RATE)):
            optimizer.param_groups[0]["lr"] = rate * now.rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += inputs.numel()
        self.learnt = dict(self.windows.positions)
        return losses

    def export(self, name: str) -> None:
        with replaced(self.out / name) as folder:
            self.lesson.write(folder)
        print(f"exported {name} at step {self.step}, {self.tokens:,} tokens", flush=True)

    def state(self) -> dict:
        modules = {part: getattr(self, part).state_dict() for part in PARTS}
        return {**modules, "windows": self.learnt}

    def restore(self, state: dict) -> None:
        for part in PARTS:
            getattr(self, part).load_state_dict(state[part])
        self.learnt = state["windows"]
        self.windows = type(self.windows)(self.windows.stream, self.learnt)

    def _teach(self, inputs: Tensor) -> Losses:
        """Forward and backward on windows `[batch, length]`; gradients accumulate in the heads."""
        hidden, states = self.features.of(inputs, self.windows)
        embedded = embedding(self.target)(inputs)
        with self._autocast():
            context = self.lesson.context(hidden, states, inputs)
        gradient = torch.zeros_like(context) if context.requires_grad else None
        rows, losses = inputs.shape[1] - self.lesson.levels, self.losses()
        for text in range(len(inputs)):
            for start in range(0, rows, CHUNK):
                part = slice(start, min(start + CHUNK, rows))
                leaf = context[text, part].detach().requires_grad_(gradient is not None)
                losses += self._teach_rows(leaf, hidden[text], embedded[text], part, 1.0 / (len(inputs) * rows))
                if gradient is not None:
                    gradient[text, part] = leaf.grad
        if gradient is not None:
            context.backward(gradient)
        return losses

    def _teach_rows(self, context: Tensor, hidden: Tensor, embedded: Tensor, part: slice, scale: float) -> Losses:
        """Every head at some positions of one text.

        Args:
            context: `[rows, ...]` at these positions.
            hidden: `[length, hidden]` of the text.
            embedded: `[length, hidden]` of its tokens.
            part: the positions.
            scale: weight of a position in the gradient.
        """
        rows, sums = len(context), []
        with torch.no_grad():
            logits = projection(self.target)(hidden[part.start + 1 : part.stop + self.lesson.levels])
            answers = self.lesson.answers(logits.float())
        for level in range(self.lesson.levels):
            following = [embedded[part.start + ahead : part.stop + ahead] for ahead in range(1, level + 2)]
            with self._autocast():
                said = self.lesson.guess(level, context, following)
                logits = projection(self.target)(said) if self.lesson.shared else said
            answer = answers[level : level + rows]
            loss = cross_entropy(logits.float(), answer, reduction="sum")
            (loss * scale * self.options.decay**level).backward()
            sums.append(torch.stack((loss.detach(), (logits.argmax(-1) == answer.argmax(-1)).sum())))
        return Losses(*torch.stack(sums, 1), rows)

    def _autocast(self) -> torch.autocast:
        """Heads are float32 and computed in the target's dtype."""
        kind = self.target.dtype
        return torch.autocast(self.target.device.type, kind, enabled=kind != torch.float32)


Make = Callable[[PreTrainedModel, argparse.Namespace], Lesson]


def trained(lesson: nn.Module) -> dict[str, Tensor]:
    """Tensors to store, by name, in bfloat16."""
    return {name: tensor.detach().to("cpu", torch.bfloat16) for name, tensor in lesson.state_dict().items()}


def made_for(target: PreTrainedModel) -> dict[str, int]:
    """What the `config.json` of heads says of their target, so that they are not loaded for another."""
    vocab, hidden = projection(target).weight.shape
    return {"vocab_size": vocab, "hidden_size": hidden, "base_num_hidden_layers": last_layer(target)}


def describe(folder: Path, config: dict) -> None:
    """Write a checkpoint's `config.json`."""
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def parser(description: str, layers: str = "residual blocks of each head") -> argparse.ArgumentParser:
    """The options every recipe for heads has; `layers` says what is counted by that option."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--target", required=True, help='"embedded", a folder or a hub name')
    made.add_argument("--data", type=Path, required=True, help="a folder or file of text (.txt, .jsonl, also .gz)")
    made.add_argument("--out", type=Path, required=True, help="folder for everything that is made")
    made.add_argument("--heads", type=_positive, default=4, help="how many tokens ahead to draft")
    made.add_argument("--layers", type=_positive, default=1, help=layers)
    made.add_argument("--own-projection", action="store_true", help="train vocabulary projections too, and store them")
    budget = made.add_mutually_exclusive_group()
    budget.add_argument("--tokens", type=_positive, default=20_000_000, help="tokens to train on in all")
    budget.add_argument("--deadline", type=next_moment, metavar="HH:MM", help="train until this time of day instead")
    made.add_argument("--length", type=_positive, default=256, help="tokens of a window")
    made.add_argument("--batch", type=_positive, default=4096, help="tokens of an optimizer step")
    made.add_argument("--rate", type=float, default=0.02, help="learning rate of the blocks' matrices")
    made.add_argument("--decay", type=float, default=1.0, help="weight of each head's loss relative to the one before")
    made.add_argument("--cache", action="store_true", help="keep the target's hidden states on disk for later epochs")
    made.add_argument("--dtype", default="auto", help="of the target: float32, bfloat16, float16 or auto")
    made.add_argument("--device", default="auto", help="cpu, cuda, ... or auto")
    made.add_argument("--threads", type=_positive, default=os.cpu_count())
    return made


def command(name: str, options: argparse.Namespace, make: Make, run: type[HeadRun] = HeadRun) -> None:
    """Train, or go on training, and export to `out/final`; errors end the command with one line.

    Args:
        name: of the recipe.
        options: as `parser` reads them.
        make: the lesson for a target.
        run: the kind of run.
    """
    try:
        _train(name, options, make, run)
    except (DraftTreeError, ValueError, OSError) as error:
        sys.exit(f"{name}: {error}")


def _train(name: str, options: argparse.Namespace, make: Make, kind: type[HeadRun]) -> None:
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    logging.disable_progress_bar()
    settings = Settings(name, options)
    if (options.out / "final").exists():
        print(f"{options.out / 'final'} is there already")
        return
    device = find_device(options.device)
    target = load_model(options.target, find_dtype(options.dtype, device), device).requires_grad_(False)
    stream = _stream(options, settings, len(projection(target).weight))
    windows = (RepeatedWindows if options.cache else Windows)(stream)
    run = kind(target, make(target, options).to(device), windows, options)
    settings.keep()
    if run.checkpoint.exists():
        run.load()
        print(f"resumed at step {run.step}, progress {run.progress:.3f}", flush=True)
    run.spend(options)
    run.export("final")


def _stream(options: argparse.Namespace, settings: Settings, vocab: int) -> np.ndarray:
    """The tokens of the text, read from disk once a run is begun with them.

    Raises:
        ValueError: there is no text, too little for one step, or it holds tokens the target does not have.
    """
    if not options.heads < options.length <= options.batch:
        raise ValueError(
            f"--length {options.length} must lie between --heads {options.heads} and --batch {options.batch}"
        )
    path = options.out / "tokens.npy"
    if not (settings.begun and path.exists()):
        texts, tokenizer = corpus.texts(options.data), load_tokenizer(options.target)
        path.parent.mkdir(parents=True, exist_ok=True)
        print(f"{len(tokens.token_cache(texts, tokenizer, path)):,} tokens of text", flush=True)
    stream, needed = tokens.read_stream(path), options.batch + 2 * options.length
    if len(stream) < needed:
        raise ValueError(
            f"{options.data} holds {len(stream)} tokens, a step needs {needed}; give more text or a smaller --batch"
        )
    if stream.max() >= vocab:
        raise ValueError(f"the tokenizer of {options.target} makes token {stream.max()}, its vocabulary has {vocab}")
    return stream


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value
