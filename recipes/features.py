"""The target's hidden states on batches of windows: computed when they are needed, or kept on disk for later epochs."""

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from transformers import PreTrainedModel

from disk import DiskFull, written
from windows import Windows


class RepeatedWindows(Windows):
    """Windows whose batches are the same in every epoch, in another order each time.

    The first epoch is that of `Windows`, so a run that has not cached the whole text yet goes on without a cache as if
    it never had one. In later epochs the position means the same, the order is another.

    Attributes:
        number: of the batch last taken.
        batches: there are in an epoch, once one has been taken.
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
    """What a frozen target computes of a batch.

    Args:
        target: the model.
        layers: hidden states wanted besides the last, counted as transformers' `hidden_states`.
        folder: where they are kept, None to compute them every time.
    """

    def __init__(self, target: PreTrainedModel, layers: tuple[int, ...], folder: Path | None):
        self.target, self.layers, self.folder = target, layers, folder
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    @torch.no_grad()
    def of(self, inputs: Tensor, windows: Windows) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The last hidden state, after the final norm, and those of `layers`, `[batch, length, hidden]` each.

        Args:
            inputs: `[batch, length]` the batch `windows` gave last.
            windows: say which batch of the epoch it was.

        Raises:
            DiskFull: there is no room left to keep them.
        """
        if not self.folder or not isinstance(windows, RepeatedWindows):
            return self._compute(inputs)
        path = self.folder / f"batch-{windows.number:06d}.safetensors"
        if (kept := self._kept(path)) is not None:
            last, *states = kept.to(self.target.device, self.target.dtype).unbind()
            return last, tuple(states)
        last, states = self._compute(inputs)
        self._keep(torch.stack((last, *states)), path, windows.batches)
        return last, states

    def _compute(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        decoder, wanted = self.target.get_decoder(), bool(self.layers)
        out = decoder(input_ids=inputs, use_cache=False, output_hidden_states=wanted)
        return out.last_hidden_state, tuple(out.hidden_states[layer] for layer in self.layers)

    def _kept(self, path: Path) -> Tensor | None:
        """What was written there, None where nothing is or it is damaged."""
        try:
            return load(path.read_bytes())["states"]
        except (FileNotFoundError, SafetensorError, KeyError):
            return None

    def _keep(self, states: Tensor, path: Path, batches: int) -> None:
        """Write in half precision."""
        half = states.to("cpu", torch.bfloat16).contiguous()
        try:
            with written(path) as file:
                file.write(save({"states": half}))
        except DiskFull as error:
            kept = len(list(self.folder.glob("batch-*.safetensors")))
            raise DiskFull(
                f"{error}. {kept} of {batches} batches of the target's hidden states are kept, the others need "
                f"{(batches - kept) * half.nbytes / 1e6:,.1f} MB; if there is no such room, delete {self.folder} and "
                "leave out --cache"
            ) from error
