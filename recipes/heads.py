"""Shared code of the recipes for heads: the frozen target, its training text, one training step, and the command line.

Heads learn the target's probabilities, not the text: head k reads the hidden state at position t and learns the
target's distribution at position t + 1 + k, which the same target pass computes. Logits are computed for a few hundred
positions and one head at a time, so no tensor of size tokens x vocabulary is kept.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel
from transformers.utils import logging

import corpus
import tokens
from disk import atomic_folder
from drafttree.core.errors import DraftTreeError
from drafttree.drafters.target_parts import embedding, final_logits, last_layer, projection
from drafttree.loading import find_device, find_dtype, load_model, load_tokenizer
from features import HiddenStates, RepeatedWindows
from muon import Muon
from run import Run
from schedule import Plan, next_moment
from settings import Settings
from windows import Windows

CHUNK = 512
MUON_RATE, ADAM_RATE = 0.02, 1e-3
MAX_DRAFT_VOCAB, WRITTEN_DRAFT_VOCAB = 32_000, 16_000
"""Default sizes of the draft vocabulary: of a text that is given, and of texts that the target has written."""


@dataclass
class Losses:
    """Sums over positions, `[levels]` each: cross-entropies in nats, and agreements with the target's top token."""

    nats: Tensor
    agreeing: Tensor
    positions: int = 0

    def __iadd__(self, other: "Losses") -> "Losses":
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def means(self) -> dict[str, list[float]]:
        """Cross-entropy in nats per token and share of agreeing positions, for every head."""
        sums = {"loss": self.nats, "agreement": self.agreeing}
        return {name: [round(part / self.positions, 3) for part in total.tolist()] for name, total in sums.items()}


class HeadObjective(nn.Module):
    """The training objective of one kind of head; each recipe defines what its heads read.

    Args:
        heads: the heads, one per level, with float32 parameters; frozen parameters are the target's.
        levels: number of heads.
        shared: use the target's output projection; the heads have none of their own.

    Attributes:
        layers: layers whose hidden states are read besides the last, counted as in transformers' `hidden_states`.
        vocab: rows of the heads' own projections, None for the target's vocabulary.
    """

    layers: tuple[int, ...] = ()
    vocab: int | None = None

    def __init__(self, heads: nn.Module, levels: int, shared: bool):
        super().__init__()
        self.heads, self.levels, self.shared = heads, levels, shared

    def context(self, hidden: Tensor, states: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
        """Compute what all heads read at every position, `[batch, rows, ...]`.

        Args:
            hidden: `[batch, length, hidden]` the target's last hidden state.
            states: the hidden states of `layers`, of the same shape.
            inputs: `[batch, length]` token ids.
        """
        return hidden

    def pack_outputs(self, pack: Any, levels: Sequence[np.ndarray]) -> list[Tensor]:
        """Compute the outputs `[rows, hidden]` of every level that meet the projection, at the rows it learns at.

        Args:
            pack: a `written.Pack` of texts that the target has written.
            levels: the rows of each level.
        """
        raise NotImplementedError

    def target_probs(self, logits: Tensor) -> Tensor:
        """Return the probabilities to learn, from the target's logits `[rows, vocab]`; rows of zeros have no loss."""
        return logits.softmax(-1)

    def draft_output(self, level: int, context: Tensor, embeddings: list[Tensor]) -> Tensor:
        """Compute a head's logits `[rows, vocab]`, or `[rows, hidden]` if the projection is shared.

        Args:
            level: index of the head, 0 for the first.
            context: `[rows, ...]` result of `context`.
            embeddings: embeddings `[rows, hidden]` of each of the next `level + 1` tokens.
        """
        raise NotImplementedError

    def shared_tensors(self) -> dict[str, Tensor]:
        """Return tensors of the heads that are the target's, by name; checkpoints leave them out."""
        return {}

    def write(self, folder: Path) -> None:
        """Write the heads in their public format."""
        raise NotImplementedError


class HeadTraining(Run):
    """Training of one kind of head.

    Args:
        objective: the objective, whose heads are trained.
        options: those of the recipe.
        optimizers: by name, the optimizers and their learning rates.
    """

    def __init__(
        self,
        objective: HeadObjective,
        options: argparse.Namespace,
        optimizers: Mapping[str, tuple[torch.optim.Optimizer, float]],
    ):
        super().__init__(options.out)
        self.objective, self.heads, self.options = objective, objective.heads, options
        self.optimizers = optimizers

    def learn(self, now: Plan, tokens: int) -> None:
        """Do one optimizer step with the gradients of a number of tokens; of the plan it uses the learning rate."""
        for optimizer, rate in self.optimizers.values():
            optimizer.param_groups[0]["lr"] = rate * now.rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += tokens

    def export(self, name: str) -> None:
        with atomic_folder(self.out / name) as folder:
            self.objective.write(folder)
        print(f"exported {name} at step {self.step}, {self.tokens:,} tokens", flush=True)

    def state(self) -> dict:
        """The state without the tensors that are the target's."""
        shared = self.objective.shared_tensors()
        own = {name: tensor for name, tensor in self.heads.state_dict().items() if name not in shared}
        return {"heads": own} | {name: optimizer.state_dict() for name, (optimizer, _) in self.optimizers.items()}

    def restore(self, state: dict) -> None:
        self.heads.load_state_dict(state["heads"] | self.objective.shared_tensors())
        for name, (optimizer, _) in self.optimizers.items():
            optimizer.load_state_dict(state[name])


class HeadRun(HeadTraining):
    """Training on the windows of a text that is given.

    Attributes:
        trained_positions: window positions after the last complete step; a failed step has advanced `windows` already.
    """

    def __init__(
        self, target: PreTrainedModel, objective: HeadObjective, windows: Windows, options: argparse.Namespace
    ):
        outputs = (len(projection(target).weight), objective.vocab)
        learning = [p for p in objective.heads.parameters() if p.requires_grad]
        inner = [p for p in learning if p.ndim == 2 and len(p) not in outputs]
        known, rate = set(inner), options.rate or MUON_RATE
        rest = [p for p in learning if p not in known]
        muon = Muon(inner, lr=rate, weight_decay=0.0), rate
        super().__init__(objective, options, {"muon": muon, "adam": (adam_of(rest, ADAM_RATE), ADAM_RATE)})
        self.target, self.windows = target, windows
        self.trained_positions: dict[int, tuple[int, int]] = {}
        folder = options.out / "features" if options.cache else None
        self.hidden_states = HiddenStates(target, objective.layers, folder)

    def losses(self) -> Losses:
        zeros = torch.zeros(self.objective.levels, device=self.target.device)
        return Losses(zeros, zeros)

    def update(self, now: Plan) -> Losses:
        """Do one optimizer step; of the plan it uses the learning rate alone."""
        inputs, _ = self.windows.take(self.options.batch // self.options.length, self.options.length)
        losses = self._forward_backward(inputs.to(self.target.device))
        self.learn(now, inputs.numel())
        self.trained_positions = dict(self.windows.positions)
        return losses

    def state(self) -> dict:
        return super().state() | {"windows": self.trained_positions}

    def restore(self, state: dict) -> None:
        super().restore(state)
        self.trained_positions = state["windows"]
        self.windows = type(self.windows)(self.windows.stream, self.trained_positions)

    def _forward_backward(self, inputs: Tensor) -> Losses:
        """Run forward and backward on windows `[batch, length]`; gradients accumulate in the heads."""
        hidden, states = self.hidden_states.compute(inputs, self.windows)
        embedded = embedding(self.target)(inputs)
        with self._autocast():
            context = self.objective.context(hidden, states, inputs)
        gradient = torch.zeros_like(context) if context.requires_grad else None
        rows, losses = inputs.shape[1] - self.objective.levels, self.losses()
        for text in range(len(inputs)):
            for start in range(0, rows, CHUNK):
                part = slice(start, min(start + CHUNK, rows))
                leaf = context[text, part].detach().requires_grad_(gradient is not None)
                losses += self._forward_backward_rows(
                    leaf, hidden[text], embedded[text], part, 1.0 / (len(inputs) * rows)
                )
                if gradient is not None:
                    gradient[text, part] = leaf.grad
        if gradient is not None:
            context.backward(gradient)
        return losses

    def _forward_backward_rows(
        self, context: Tensor, hidden: Tensor, embedded: Tensor, part: slice, scale: float
    ) -> Losses:
        """Run forward and backward of every head at some positions of one text.

        Args:
            context: `[rows, ...]` at these positions.
            hidden: `[length, hidden]` the target's last hidden states of the text.
            embedded: `[length, hidden]` embeddings of its tokens.
            part: the positions.
            scale: weight of a position in the gradient.
        """
        rows, sums = len(context), []
        with torch.no_grad():
            logits = final_logits(self.target, hidden[part.start + 1 : part.stop + self.objective.levels])
            target_probs = self.objective.target_probs(logits.float())
        for level in range(self.objective.levels):
            embeddings = [embedded[part.start + ahead : part.stop + ahead] for ahead in range(1, level + 2)]
            with self._autocast():
                output = self.objective.draft_output(level, context, embeddings)
                logits = final_logits(self.target, output) if self.objective.shared else output
            probs = target_probs[level : level + rows]
            loss = cross_entropy(logits.float(), probs, reduction="sum")
            (loss * scale * self.options.decay**level).backward()
            sums.append(torch.stack((loss.detach(), (logits.argmax(-1) == probs.argmax(-1)).sum())))
        return Losses(*torch.stack(sums, 1), rows)

    def _autocast(self) -> torch.autocast:
        """Compute the float32 heads in the target's dtype."""
        kind = self.target.dtype
        return torch.autocast(self.target.device.type, kind, enabled=kind != torch.float32)


def adam_of(parameters: Sequence[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """Return AdamW without weight decay."""
    return torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)


Make = Callable[[PreTrainedModel, argparse.Namespace], HeadObjective]


def bfloat16_state(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's tensors by name, in bfloat16 and on the CPU."""
    return {name: tensor.detach().to("cpu", torch.bfloat16) for name, tensor in module.state_dict().items()}


def target_fields(target: PreTrainedModel) -> dict[str, int]:
    """Return the fields of a head's `config.json` that identify its target, so that it is not loaded for another."""
    vocab, hidden = projection(target).weight.shape
    return {"vocab_size": vocab, "hidden_size": hidden, "base_num_hidden_layers": last_layer(target)}


def write_config(folder: Path, config: dict) -> None:
    """Write a checkpoint's `config.json`."""
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def parser(
    description: str, layers: str = "residual blocks of each head", *, writes: bool = False
) -> argparse.ArgumentParser:
    """Return a parser with the options that all recipes for heads share.

    Args:
        description: the description.
        layers: help of `--layers`.
        writes: whether the target may write the texts.
    """
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--target", required=True, help='"embedded", a folder or a hub name')
    source = made.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="a folder or file of text (.txt, .jsonl, also .gz)")
    if writes:
        _add_writing(made, source)
    made.add_argument("--out", type=Path, required=True, help="folder for everything that is made")
    made.add_argument("--heads", type=positive, default=4, help="how many tokens ahead to draft")
    made.add_argument("--layers", type=positive, default=1, help=layers)
    made.add_argument("--own-projection", action="store_true", help="train vocabulary projections too, and store them")
    budget = made.add_mutually_exclusive_group()
    budget.add_argument("--tokens", type=positive, default=20_000_000, help="tokens to train on in all")
    budget.add_argument("--deadline", type=next_moment, metavar="HH:MM", help="train until this time of day instead")
    made.add_argument("--length", type=positive, default=256, help="tokens of a window")
    made.add_argument("--batch", type=positive, default=4096, help="tokens of an optimizer step")
    made.add_argument("--rate", type=float, help="learning rate of the blocks' matrices, or of all with --prompts")
    made.add_argument("--decay", type=float, default=1.0, help="weight of each head's loss relative to the one before")
    made.add_argument("--cache", action="store_true", help="keep the target's hidden states on disk for later epochs")
    made.add_argument("--dtype", default="auto", help="of the target: float32, bfloat16, float16 or auto")
    made.add_argument("--device", default="auto", help="cpu, cuda, ... or auto")
    made.add_argument("--threads", type=positive, default=os.cpu_count())
    return made


def _add_writing(made: argparse.ArgumentParser, source: argparse._MutuallyExclusiveGroup) -> None:
    """Add the options of recipes whose target may write the texts."""
    source.add_argument("--prompts", type=Path, nargs="+", help="files of prompts (.jsonl, also .gz) that it answers")
    source.add_argument("--texts", type=Path, help="folder of the texts of another run with this target")
    made.add_argument("--held-out", type=Path, nargs="+", default=[], help="files of prompts not to train on")
    made.add_argument("--write", type=positive, default=500_000, help="tokens of prompts and replies")
    made.add_argument("--quantize", choices=("int8", "int4"), help="round the target's weights while it writes")


Begin = Callable[[argparse.Namespace, Settings, Make, type[HeadRun]], HeadTraining]


def command(
    name: str,
    options: argparse.Namespace,
    make: Make,
    run: type[HeadRun] = HeadRun,
    begin: Begin | None = None,
) -> None:
    """Train or resume, and export to `out/final`; errors end the command with one line.

    Args:
        name: name of the recipe.
        options: parsed options of `parser`.
        make: makes the objective for a target.
        run: class of the run on a text that is given.
        begin: makes the run; by default `begin_on_text`.
    """
    try:
        _train(name, options, make, run, begin or begin_on_text)
    except (DraftTreeError, ValueError, OSError) as error:
        sys.exit(f"{name}: {error}")


def _train(name: str, options: argparse.Namespace, make: Make, kind: type[HeadRun], begin: Begin) -> None:
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    logging.disable_progress_bar()
    settings = Settings(name, options)
    if (options.out / "final").exists():
        print(f"{options.out / 'final'} is there already")
        return
    run = begin(options, settings, make, kind)
    settings.save()
    if run.checkpoint.exists():
        run.load()
        print(f"resumed at step {run.step}, progress {run.progress:.3f}", flush=True)
    run.spend(options)
    run.export("final")


def begin_on_text(options: argparse.Namespace, settings: Settings, make: Make, kind: type[HeadRun]) -> HeadRun:
    """Return the run that trains on the windows of a text that is given."""
    device = find_device(options.device)
    target = load_model(options.target, find_dtype(options.dtype, device), device).requires_grad_(False)
    stream = _stream(options, settings, len(projection(target).weight))
    windows = (RepeatedWindows if options.cache else Windows)(stream)
    return kind(target, make(target, options).to(device), windows, options)


def is_written(options: argparse.Namespace) -> bool:
    """Whether the head is trained on texts that the target writes."""
    return bool(options.prompts or options.texts)


def draft_ids(options: argparse.Namespace, vocab: int) -> Tensor:
    """Return the ids of the most frequent tokens of the text, in rising order.

    Raises:
        ValueError: `--draft-vocab` is not between 1 and the target's vocabulary.
    """
    wanted = options.draft_vocab or min(vocab, WRITTEN_DRAFT_VOCAB if is_written(options) else MAX_DRAFT_VOCAB)
    if not 0 < wanted <= vocab:
        raise ValueError(f"--draft-vocab {wanted} must lie between 1 and the target's vocabulary of {vocab}")
    counts = np.bincount(tokens.read_stream(options.out / "tokens.npy"), minlength=vocab)
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:wanted]))


def _stream(options: argparse.Namespace, settings: Settings, vocab: int) -> np.ndarray:
    """Return the token ids of the training text; a resumed run reads those it has stored.

    Raises:
        ValueError: there is no text, too little for one step, or it has token ids beyond the target's vocabulary.
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


def positive(text: str) -> int:
    """Read an option that is at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def natural(text: str) -> int:
    """Read an option that is at least 0."""
    return positive(text) if text.strip() != "0" else 0
