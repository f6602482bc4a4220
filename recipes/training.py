"""The training loop: one step of both models at a time, growth, checkpoints, snapshots, a line of progress."""

import signal
import time
from pathlib import Path

import torch

import pair
import schedule
from distillation import Losses, joint_backward
from muon import Muon
from schedule import Plan
from windows import Windows

MICRO_BATCH = 4096
MUON_RATE = 0.02
ADAM_RATE = 3e-3


class Every:
    """True once per interval, from the first interval's end on."""

    def __init__(self, seconds: float, first: float | None = None):
        self.seconds, self.next = seconds, time.time() + (seconds if first is None else first)

    def due(self) -> bool:
        if time.time() < self.next:
            return False
        self.next = time.time() + self.seconds
        return True


class Trainer:
    """Both models, their optimizers, and where in the text they are."""

    def __init__(self, windows: Windows, tokenizer_files: Path, out: Path, seed: int = 0):
        torch.manual_seed(seed)
        self.windows, self.tokenizer_files, self.out = windows, tokenizer_files, out
        self.checkpoint = out / "checkpoint.pt"
        self.target, self.draft = pair.target_model(layers=schedule.STAGES[0][1]), pair.draft_model()
        self.step = self.tokens = 0
        self.progress = 0.0
        self.history: list[dict] = []
        self.stopping = False
        self._prepare()

    def run(self, budget) -> bool:
        """Train until the budget is spent (True), or until told to stop (False)."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self, "stopping", True))
        shown, saved, exported = Every(20), Every(240), Every(600, first=150)
        losses, since, began = Losses(), time.time(), (time.time(), self.progress)
        while not self.stopping and self.progress < 1.0:
            now = schedule.plan(self.progress)
            losses += self.update(now)
            self.progress = min(1.0, budget.progress(self.tokens))
            if shown.due():
                self._show(now, losses, time.time() - since, began)
                losses, since = Losses(), time.time()
            if saved.due():
                self.save()
            if exported.due():
                self.export("snapshot")
        self.save()
        return self.progress >= 1.0

    def update(self, now: Plan) -> Losses:
        """One optimizer step as planned. Depth only ever grows: an extended run stays as deep as it was."""
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
        """Both models as they are now, in the Hugging Face format."""
        pair.export(self.target, self.draft, self.tokenizer_files, self.out / name)
        print(f"exported {name} at step {self.step}, {self.tokens / 1e6:.2f}M tokens", flush=True)

    def save(self) -> None:
        """Everything a restart needs, replaced atomically."""
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(self._state(), partial)
        partial.replace(self.checkpoint)

    def load(self) -> None:
        """Become the run that was saved."""
        state = torch.load(self.checkpoint, weights_only=True)
        self.target = pair.target_model(state["layers"])
        self._prepare()
        for part in ("target", "draft", "muon", "adam"):
            getattr(self, part).load_state_dict(state[part])
        for part in ("step", "tokens", "progress", "history"):
            setattr(self, part, state[part])
        self.windows = Windows(self.windows.stream, state["windows"])

    def _state(self) -> dict:
        modules = {part: getattr(self, part).state_dict() for part in ("target", "draft", "muon", "adam")}
        plain = {part: getattr(self, part) for part in ("step", "tokens", "progress", "history")}
        return {**modules, **plain, "windows": self.windows.positions, "layers": len(self.target.model.layers)}

    def _grow(self, layers: int) -> None:
        """Deepen the target; the optimizers keep what they know about the parameters that stay."""
        known = {**self.muon.state, **self.adam.state}
        pair.grow(self.target, layers)
        self._prepare()
        for optimizer in (self.muon, self.adam):
            for parameter in optimizer.param_groups[0]["params"]:
                if parameter in known:
                    optimizer.state[parameter] = known[parameter]
        print(f"grown to {layers} layers at step {self.step}, {self.tokens / 1e6:.2f}M tokens", flush=True)

    def _prepare(self) -> None:
        """Optimizers over the present parameters (Muon for the blocks' matrices), and each block compiled."""
        blocks = [block for model in (self.target, self.draft) for block in model.model.layers]
        matrices = [p for block in blocks for p in block.parameters() if p.ndim == 2]
        inside = set(matrices)
        rest = [p for model in (self.target, self.draft) for p in model.parameters() if p not in inside]
        self.muon = Muon(matrices, lr=MUON_RATE)
        self.adam = torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0)
        for block in blocks:
            block.compile(dynamic=False)

    def _show(self, now: Plan, losses: Losses, seconds: float, began: tuple[float, float]) -> None:
        """One line of progress, kept as history for the model card."""
        row = {
            "step": self.step,
            "tokens": self.tokens,
            "progress": round(self.progress, 4),
            "layers": len(self.target.model.layers),
            "rate": round(now.rate, 3),
            "speed": round(losses.positions / seconds),
            **losses.means(),
        }
        self.history.append(row)
        left = (time.time() - began[0]) * (1.0 - self.progress) / max(self.progress - began[1], 1e-9)
        words = (f"{name} {value}" for name, value in row.items())
        print(time.strftime("%H:%M:%S"), *words, f"minutes left {left / 60:.0f}", flush=True)
