"""Computes the target's hidden states on batches of windows, and caches them on disk for later epochs."""

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from transformers import PreTrainedModel

from disk import DiskFull, atomic_file
from windows import Windows


class RepeatedWindows(Windows):
    """Windows whose batches are the same in every epoch, in a different order each time.

    The first epoch is that of `Windows`, so a run that drops its cache before the first epoch ends continues as if it
    never had one. In later epochs a position counts the same batches in another order.

    Attributes:
        number: number of the batch last taken.
        batches: batches per epoch, once one has been taken.
    """

    number, batches = 0, 0

    def _chosen(self, epoch: int, cursor: int, count: int, length: int) -> np.ndarray:
        self.batches = len(self._starts(epoch, length)) // count
        order = np.random.default_rng(epoch).permutation(self.batches) if epoch else np.arange(self.batches)
        self.number = int(order[cursor // count])
        return super()._chosen(epoch, self.number * count, count, length)

    def _starts(self, epoch: int, length: int) -> np.ndarray:
        return super()._starts(0, length)


class HiddenStates:
    """Computes a frozen target's hidden states, or reads them from a cache folder.

    Args:
        target: the model.
        layers: layers whose hidden states are wanted besides the last, counted as in transformers' `hidden_states`.
        folder: the cache folder, None to compute them every time.
    """

    def __init__(self, target: PreTrainedModel, layers: tuple[int, ...], folder: Path | None):
        self.target, self.layers, self.folder = target, layers, folder
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    @torch.no_grad()
    def compute(self, inputs: Tensor, windows: Windows) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the last hidden state, after the final norm, and those of `layers`, `[batch, length, hidden]` each.

        Args:
            inputs: `[batch, length]` token ids of the batch taken last from `windows`.
            windows: knows the number of that batch.

        Raises:
            DiskFull: there is no room left to cache them.
        """
        if not self.folder or not isinstance(windows, RepeatedWindows):
            return self._forward(inputs)
        path = self.folder / f"batch-{windows.number:06d}.safetensors"
        if (cached := self._read_cache(path)) is not None:
            last, *states = cached.to(self.target.device, self.target.dtype).unbind()
            return last, tuple(states)
        last, states = self._forward(inputs)
        self._write_cache(torch.stack((last, *states)), path, windows.batches)
        return last, states

    def _forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        decoder, wanted = self.target.get_decoder(), bool(self.layers)
        out = decoder(input_ids=inputs, use_cache=False, output_hidden_states=wanted)
        return out.last_hidden_state, tuple(out.hidden_states[layer] for layer in self.layers)

    def _read_cache(self, path: Path) -> Tensor | None:
        """Read cached hidden states; None if the file is missing or damaged."""
        try:
            return load(path.read_bytes())["states"]
        except (FileNotFoundError, SafetensorError, KeyError):
            return None

    def _write_cache(self, states: Tensor, path: Path, batches: int) -> None:
        """Write hidden states in bfloat16."""
        half = states.to("cpu", torch.bfloat16).contiguous()
        try:
            with atomic_file(path) as file:
                file.write(save({"states": half}))
        except DiskFull as error:
            kept = len(list(self.folder.glob("batch-*.safetensors")))
            raise DiskFull(
                f"{error}. {kept} of {batches} batches of the target's hidden states are kept, the others need "
                f"{(batches - kept) * half.nbytes / 1e6:,.1f} MB; if there is no such room, delete {self.folder} and "
                "leave out --cache"
            ) from error
