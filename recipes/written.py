"""Trains a head on texts that its target has written, from hidden states on disk: no step needs the target.

A pass reads some texts behind each other. The first level has a row for every token, so that each sees its whole text.
It learns at those before which the target wrote a token, and every later level at a random share of the rows of the
level before. The outputs of all levels meet the draft vocabulary's projection together, in one backward pass.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from disk import atomic_file
from drafttree.drafters.target_parts import projection
from drafttree.loading import find_device, find_dtype, load_model, load_tokenizer
from drafttree.loading.model_files import ModelFiles
from heads import HeadObjective, HeadRun, HeadTraining, Make, adam_of, begin_on_text, draft_ids, is_written
from schedule import Plan
from settings import Settings
from writing import WrittenText, WrittenTexts, describe, write_texts

CHUNK = 512
"""Rows whose logits are computed together."""
PASS_TOKENS = 512
"""A pass reads texts until they have as many tokens."""
RATE = 1e-3
"""Learning rate of AdamW. Muon would orthogonalise as long as a step of a few thousand tokens takes."""
KEPT_SHARE = 0.5
"""The share of a level's rows that the next level keeps."""


@dataclass
class LevelLosses:
    """Sums over the rows of each level, `[levels]` each.

    Attributes:
        nats: cross-entropies in nats.
        hits: rows where head and target have the same best token.
        rows: numbers of rows.
        positions: tokens of the texts, prompts included.
    """

    nats: Tensor
    hits: Tensor
    rows: Tensor
    positions: int = 0

    @classmethod
    def of(cls, level_of: Tensor, nats: Tensor, hits: Tensor, levels: int) -> "LevelLosses":
        """Sum what rows have, by the level of each row."""
        values = torch.stack((nats, hits.float(), torch.ones_like(nats))).cpu()
        return cls(*torch.zeros(3, levels).index_add_(1, level_of, values))

    def __iadd__(self, other: "LevelLosses") -> "LevelLosses":
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def means(self) -> dict[str, list[float]]:
        """Cross-entropy in nats per row and share of hits, for every level."""
        sums = {"loss": self.nats, "hits": self.hits}
        return {name: [round(value, 3) for value in (total / self.rows).tolist()] for name, total in sums.items()}


class TextOrder:
    """The order in which texts are read: another one in every epoch, which has the texts that are there as it begins.

    So a run may read texts that another process is still writing.

    Args:
        texts: the texts.
        names: the files of the epoch.
        epoch: its number.
        taken: how many of them were taken.
    """

    def __init__(self, texts: WrittenTexts, names: Sequence[str] = (), epoch: int = -1, taken: int = 0) -> None:
        self._texts, self.names, self.epoch, self.taken = texts, [*names], epoch, taken

    def next(self) -> WrittenText:
        """The next text."""
        if self.taken == len(self.names):
            self.epoch, self.taken = self.epoch + 1, 0
            names = [path.name for path in self._texts.paths()]
            self.names = [names[index] for index in np.random.default_rng(self.epoch).permutation(len(names))]
        self.taken += 1
        return self._texts.read(self._texts.folder / self.names[self.taken - 1])

    @property
    def state(self) -> dict:
        """The arguments with which another order goes on from here."""
        return {"names": self.names, "epoch": self.epoch, "taken": self.taken}


class Pack:
    """Texts behind each other, as the rows of one pass: one for every token of a text but its last.

    Args:
        texts: the texts.
        like: a tensor of the device and dtype of the states.

    Attributes:
        states: `[layers, rows, hidden]` the target's at every row.
        following: int64 `[rows]` the token after that of each row.
        positions: `[rows]` of each row in its text.
        text: `[rows]` number of each row's text.
    """

    def __init__(self, texts: Sequence[WrittenText], like: Tensor) -> None:
        sizes = [len(text.tokens) - 1 for text in texts]
        self.states = torch.cat([text.states for text in texts], 1).to(like)
        self.following = torch.cat([text.tokens[1:] for text in texts])
        self.positions = np.concatenate([np.arange(size) for size in sizes])
        self.text = np.repeat(np.arange(len(texts)), sizes)
        self._left = np.repeat(sizes, sizes) - 1 - self.positions
        self._prompts = np.repeat([text.prompt for text in texts], sizes)

    @property
    def visible(self) -> np.ndarray:
        """Bool `[rows, rows]`: each row sees itself and those before it in its text."""
        rows = np.arange(len(self.text))
        return (self.text[:, None] == self.text) & (rows[:, None] >= rows)

    def levels(self, count: int, generator: np.random.Generator) -> list[np.ndarray]:
        """The rows at which each level learns, in rising order; those of level k learn what row + 1 + k says."""
        rows = np.flatnonzero((self.positions >= self._prompts - 1) & (self._left >= 1))
        found = [rows]
        for level in range(1, count):
            rows = generator.choice(rows, int(np.ceil(KEPT_SHARE * len(rows))), replace=False)
            rows = np.sort(rows[self._left[rows] >= 1 + level])
            found.append(rows)
        return found


class WrittenRun(HeadTraining):
    """Training on texts that the target has written.

    Args:
        objective: the objective, which computes `pack_outputs`.
        weight: `[draft vocabulary, hidden]` the target's projection.
        ids: `[draft vocabulary]` the target's ids, in rising order.
        texts: the texts.
        options: those of the recipe.
    """

    def __init__(
        self, objective: HeadObjective, weight: Tensor, ids: Tensor, texts: WrittenTexts, options: argparse.Namespace
    ):
        self.kind = weight.dtype
        rate, learning = options.rate or RATE, [p for p in objective.heads.parameters() if p.requires_grad]
        super().__init__(objective, options, {"adam": (adam_of(learning, rate), rate)})
        self.weight, self.ids, self.texts = weight, ids, texts
        self.order = TextOrder(texts)
        self.trained = self.order.state

    def facts(self) -> dict:
        return {"texts": len(self.order.names), "epoch": self.order.epoch}

    def losses(self) -> LevelLosses:
        return LevelLosses(*torch.zeros(3, self.objective.levels))

    def update(self, now: Plan) -> LevelLosses:
        """Do one optimizer step; of the plan it uses the learning rate alone."""
        generator, levels = np.random.default_rng((1, self.step)), self.objective.levels
        packs = self._packs()
        chosen = [pack.levels(levels, generator) for pack in packs]
        counts = [sum(len(rows[level]) for rows in chosen) for level in range(levels)]
        weights = [self.options.decay**level / max(count, 1) for level, count in enumerate(counts)]
        losses = self.losses()
        for pack, rows in zip(packs, chosen, strict=True):
            losses += self.forward_backward(pack, rows, weights)
        self.learn(now, losses.positions)
        self.trained = self.order.state
        return losses

    def forward_backward(self, pack: Pack, rows: Sequence[np.ndarray], weights: Sequence[float]) -> LevelLosses:
        """Run forward and backward of all levels; gradients accumulate in the heads.

        Args:
            pack: the texts.
            rows: the rows of each level.
            weights: the weight of a row of each level.
        """
        with torch.autocast(self.weight.device.type, self.kind, enabled=self.kind != torch.float32):
            outputs = torch.cat(self.objective.pack_outputs(pack, rows))
        learned = torch.from_numpy(np.concatenate([chosen + 1 + level for level, chosen in enumerate(rows)]))
        level_of = torch.from_numpy(np.repeat(np.arange(len(rows)), [*map(len, rows)]))
        row_weights = torch.tensor(weights)[level_of].to(outputs.device)
        gradient, losses = torch.empty_like(outputs), self.losses()
        for start in range(0, len(outputs), CHUNK):
            part = slice(start, start + CHUNK)
            probs = self._target_probs(pack, learned[part])
            nats, hits, gradient[part] = _loss_gradient(outputs[part], self.weight, probs, row_weights[part])
            losses += LevelLosses.of(level_of[part], nats, hits, self.objective.levels)
        outputs.backward(gradient)
        losses.positions = len(pack.following)
        return losses

    def _target_probs(self, pack: Pack, rows: Tensor) -> Tensor:
        """The target's probabilities `[rows, draft vocabulary]`, zeros where it wrote a token that is not in it."""
        logits = pack.states[-1][rows] @ self.weight.T
        known = torch.isin(pack.following[rows], self.ids).to(self.weight.device)
        return logits.float().softmax(-1) * known[:, None]

    def _packs(self) -> list[Pack]:
        """The texts of one step."""
        packs, texts, tokens = list[Pack](), list[WrittenText](), 0
        while tokens < self.options.batch:
            texts.append(self.order.next())
            tokens += len(texts[-1].tokens) - 1
            if sum(len(text.tokens) for text in texts) >= PASS_TOKENS or tokens >= self.options.batch:
                packs.append(Pack(texts, self.weight))
                texts = []
        return packs

    def state(self) -> dict:
        return super().state() | {"order": self.trained}

    def restore(self, state: dict) -> None:
        super().restore(state)
        self.trained = state["order"]
        self.order = TextOrder(self.texts, **self.trained)


def _loss_gradient(outputs: Tensor, weight: Tensor, probs: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return cross-entropies, hits and the weighted gradient at a head's outputs.

    It is written out, since autograd would keep several tensors of rows times vocabulary.

    Args:
        outputs: `[rows, hidden]`.
        weight: `[vocabulary, hidden]` the projection.
        probs: `[rows, vocabulary]` to learn; rows of zeros have no loss.
        weights: `[rows]`.
    """
    with torch.no_grad():
        logprobs = (outputs.to(weight.dtype) @ weight.T).float().log_softmax(-1)
        nats, mass = -torch.einsum("rv,rv->r", probs, logprobs), probs.sum(-1)
        hits = (logprobs.argmax(-1) == probs.argmax(-1)) & (mass > 0)
        errors = logprobs.exp_().mul_(mass[:, None]).sub_(probs).mul_(weights[:, None])
        return nats, hits, (errors.to(weight.dtype) @ weight).to(outputs.dtype)


def begin(options: argparse.Namespace, settings: Settings, make: Make, kind: type[HeadRun]) -> HeadTraining:
    """Return the run on what the options name: a text that is given, or texts that the target writes."""
    if is_written(options):
        return begin_on_written(options, settings, make)
    return begin_on_text(options, settings, make, kind)


def begin_on_written(options: argparse.Namespace, settings: Settings, make: Make) -> WrittenRun:
    """Let the target write the texts, unless they are written, and return the run that trains on them.

    Raises:
        ValueError: the target cannot write, its texts are not its own, or an option has no effect.
        DiskFull: the disk is full, or will be.
    """
    if options.cache or options.own_projection:
        raise ValueError("--cache and --own-projection are for --data; leave them out")
    config = ModelFiles.of_model(options.target).config.get_text_config()
    tokenizer, depth = load_tokenizer(options.target), config.num_hidden_layers
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(f"the tokenizer of {options.target} has no chat template; give --data instead of --prompts")
    layers = (2, depth // 2, depth - 3, depth)
    texts = WrittenTexts(
        options.texts or options.out / "texts", describe(options.target, tokenizer, config.hidden_size, layers)
    )
    options.out.mkdir(parents=True, exist_ok=True)
    stream = options.out / "tokens.npy"
    settings.save()  # before the texts, whose numbers are those of the prompts in these files
    if not stream.exists():
        if options.prompts:
            write_texts(texts, options, config, layers)
        _keep_stream(texts, stream)
    device = find_device(options.device)
    target = load_model(options.target, find_dtype(options.dtype, device), device).requires_grad_(False)
    objective = make(target, options).to(device)
    ids = draft_ids(options, len(projection(target).weight))
    return WrittenRun(objective, projection(target).weight.detach()[ids.to(device)], ids, texts, options)


def _keep_stream(texts: WrittenTexts, path: Path) -> None:
    """Write the tokens of all replies to a file, whose counts choose the draft vocabulary."""
    replies = [texts.reply(text).astype(np.uint32) for text in texts.paths()]
    if not replies:
        raise ValueError(f"{texts.folder} holds no text; give --prompts")
    with atomic_file(path) as file:
        np.save(file, np.concatenate(replies))
