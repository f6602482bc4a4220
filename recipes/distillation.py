"""The joint loss of the embedded pair: the target learns the text, the draft model learns the target.

Probabilities and gradients of both output projections are computed for a few hundred positions at a time, so no tensor
of size tokens x vocabulary is kept. The draft model's labels are the target's present probabilities, which its training
step computes anyway, so distillation costs no extra target pass.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

CHUNK = 256


@dataclass
class Losses:
    """Sums over positions; `agreeing` of `compared` positions have the same top token in both models."""

    text: float = 0.0
    distillation: float = 0.0
    positions: int = 0
    agreeing: int = 0
    compared: int = 0

    def __iadd__(self, other: "Losses") -> "Losses":
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def means(self) -> dict[str, float]:
        """Return both losses in nats per token, and the share of positions with the same top token."""
        return {
            "text": round(self.text / self.positions, 4),
            "distillation": round(self.distillation / self.positions, 4),
            "agreement": round(self.agreeing / self.compared, 3),
        }


def joint_backward(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, inputs: Tensor, labels: Tensor, scale: float
) -> Losses:
    """Run forward and backward of both models on one micro-batch; gradients accumulate, weighted by `scale`."""
    models = (target, draft)
    hidden = [model.model(input_ids=inputs, use_cache=False).last_hidden_state for model in models]
    heads = [model.lm_head.weight for model in models]
    losses, gradients = _through_heads(hidden, heads, labels.flatten(), scale)
    torch.autograd.backward(hidden, gradients)
    return losses


@torch.no_grad()
def _through_heads(
    hidden: list[Tensor], heads: list[Tensor], labels: Tensor, scale: float
) -> tuple[Losses, list[Tensor]]:
    """Return the losses and their gradients at both hidden states; gradients of the heads accumulate in place."""
    flat = [h.detach().flatten(0, 1) for h in hidden]
    gradients = [torch.empty_like(h) for h in flat]
    for head in heads:
        head.grad = torch.zeros_like(head) if head.grad is None else head.grad
    losses = Losses()
    for start in range(0, len(labels), CHUNK):
        part = slice(start, start + CHUNK)
        logits = [h[part] @ head.T for h, head in zip(flat, heads, strict=True)]
        if start == 0:
            losses += _agreement(*logits)
        piece, errors = _losses_and_gradients(*logits, labels[part])
        losses += piece
        for h, head, error, gradient in zip(flat, heads, errors, gradients, strict=True):
            head.grad.addmm_(error.T, h[part], alpha=scale)
            torch.mm(error, head, out=gradient[part]).mul_(scale)
    return losses, [g.view_as(h) for g, h in zip(gradients, hidden, strict=True)]


def _losses_and_gradients(logits: Tensor, draft_logits: Tensor, labels: Tensor) -> tuple[Losses, list[Tensor]]:
    """Return both losses and their gradients at the logits, which are probabilities minus labels."""
    rows = torch.arange(len(labels))
    probabilities = logits.softmax(-1)
    text = -probabilities[rows, labels].clamp(min=1e-30).log().sum()
    expected = torch.dot(probabilities.flatten(), draft_logits.flatten())
    distillation = draft_logits.logsumexp(-1).sum() - expected
    draft_error = draft_logits.softmax(-1).sub_(probabilities)
    probabilities[rows, labels] -= 1.0
    return Losses(text.item(), distillation.item(), len(labels)), [probabilities, draft_error]


def _agreement(logits: Tensor, draft_logits: Tensor) -> Losses:
    return Losses(agreeing=int((logits.argmax(-1) == draft_logits.argmax(-1)).sum()), compared=len(logits))
