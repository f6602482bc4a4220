"""What quantised weights cost in quality: the perplexity of texts, and the tokens a target would choose anew."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from drafttree.engine.decoder import Decoder
from drafttree.models import Segment
from drafttree_lab.experiment.cells import check_given


@dataclass(frozen=True)
class QualityRow:
    """One kind of weights on all texts.

    Attributes:
        kind: its name.
        perplexity: of the texts' tokens after the first of each.
        same_token: share of the places at which the best token is that of the first kind.
        tokens: places in all.
        weight_bytes: the bytes of all weights.
    """

    kind: str
    perplexity: float
    same_token: float
    tokens: int
    weight_bytes: int

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return asdict(self)


@torch.inference_mode()
def bench_quality(
    decoders: Mapping[str, Decoder],
    texts: Sequence[Sequence[int]],
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> list[QualityRow]:
    """Score texts by targets that differ in their weights.

    Args:
        decoders: for their targets, by the kind of the weights; the others are compared with the first.
        texts: token ids that fit into the context of all targets.
        progress: called after every text with the kind.

    Raises:
        ConfigError: there is no text with a token to score.
    """
    scored = [list(text) for text in texts if len(text) > 1]
    check_given(text=scored)
    losses: dict[str, list[Tensor]] = {kind: [] for kind in decoders}
    chosen: dict[str, list[Tensor]] = {kind: [] for kind in decoders}
    for text in scored:
        for kind, decoder in decoders.items():
            logits = _logits(decoder, text)
            due = torch.tensor(text[1:], device=logits.device)
            losses[kind].append(torch.nn.functional.cross_entropy(logits[:-1], due, reduction="none"))
            chosen[kind].append(logits[:-1].argmax(-1))
            progress(kind)
    first = torch.cat(chosen[next(iter(decoders))])
    return [
        QualityRow(
            kind=kind,
            perplexity=math.exp(torch.cat(losses[kind]).mean().item()),
            same_token=(torch.cat(chosen[kind]) == first).double().mean().item(),
            tokens=len(first),
            weight_bytes=decoder.target.nbytes,
        )
        for kind, decoder in decoders.items()
    ]


def _logits(decoder: Decoder, text: list[int]) -> Tensor:
    """`[tokens, vocab]` after every token of a text, float32."""
    segment = Segment.of_text(decoder.target.new_cache(len(text)), text, decoder.target.device)
    return decoder.target.forward([segment._replace(wanted=slice(None))])[0].logits[0].float()
