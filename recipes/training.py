"""Trains the embedded target and draft model together, deepening the target on the way."""

from pathlib import Path

import torch

import pair
import schedule
from distillation import Losses, joint_backward
from muon import Muon
from run import Run
from schedule import Plan
from windows import Windows

MICRO_BATCH = 4096
MUON_RATE = 0.02
ADAM_RATE = 3e-3
PARTS = ("target", "draft", "muon", "adam")


class Trainer(Run):
    """Both models, their optimizers, and their position in the text."""

    losses = Losses

    def __init__(self, windows: Windows, tokenizer_files: Path, out: Path, seed: int = 0):
        super().__init__(out)
        torch.manual_seed(seed)
        self.windows, self.tokenizer_files = windows, tokenizer_files
        self.target, self.draft = pair.target_model(layers=schedule.STAGES[0][1]), pair.draft_model()
        self._prepare()

    def update(self, now: Plan) -> Losses:
        """Do one optimizer step as planned. The depth never shrinks: an extended run stays as deep as it was."""
        if now.layers > len(self.target.model.layers):
            self._grow(now.layers)
        losses = Losses()
        for _ in range(now.tokens // MICRO_BATCH):
            inputs, labels = self.windows.take(MICRO_BATCH // now.length, now.length)
            losses += joint_backward(self.target, self.draft, inputs, labels, 1.0 / now.tokens)
        for optimizer, rate in ((self.muon, MUON_RATE), (self.adam, ADAM_RATE)):
            optimizer.param_groups[0]["lr"] = rate * now.rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += now.tokens
        return losses

    def export(self, name: str) -> None:
        """Write both models as they are now, in Hugging Face format."""
        pair.export(self.target, self.draft, self.tokenizer_files, self.out / name)
        print(f"exported {name} at step {self.step}, {self.tokens:,} tokens", flush=True)

    def facts(self) -> dict:
        return {"layers": len(self.target.model.layers)}

    def state(self) -> dict:
        modules = {part: getattr(self, part).state_dict() for part in PARTS}
        return {**modules, "windows": self.windows.positions, **self.facts()}

    def restore(self, state: dict) -> None:
        self.target = pair.target_model(state["layers"])
        self._prepare()
        for part in PARTS:
            getattr(self, part).load_state_dict(state[part])
        self.windows = Windows(self.windows.stream, state["windows"])

    def _grow(self, layers: int) -> None:
        """Deepen the target; the optimizers keep their state of the parameters that stay."""
        known = {**self.muon.state, **self.adam.state}
        pair.grow(self.target, layers)
        self._prepare()
        for optimizer in (self.muon, self.adam):
            for parameter in optimizer.param_groups[0]["params"]:
                if parameter in known:
                    optimizer.state[parameter] = known[parameter]
        print(f"grown to {layers} layers at step {self.step}, {self.tokens:,} tokens", flush=True)

    def _prepare(self) -> None:
        """Make optimizers of the present parameters (Muon for the blocks' matrices) and compile each block."""
        blocks = [block for model in (self.target, self.draft) for block in model.model.layers]
        matrices = [p for block in blocks for p in block.parameters() if p.ndim == 2]
        inside = set(matrices)
        rest = [p for model in (self.target, self.draft) for p in model.parameters() if p not in inside]
        self.muon = Muon(matrices, lr=MUON_RATE)
        self.adam = torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0)
        for block in blocks:
            block.compile(dynamic=False)
