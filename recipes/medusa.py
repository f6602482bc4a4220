"""Train Medusa heads for any Hugging Face model, in one resumable command:

    python recipes/medusa.py --target embedded --data shared/data --out build/medusa --tokens 20000000

The target stays frozen; its hidden states and probabilities come from one pass per step. `--out/final` then holds
`medusa_lm_head.safetensors` and `config.json`. Heads end before the target's own vocabulary projection, which is not
stored again, unless `--own-projection` trains one per head, which makes the full public format. Stop it with Ctrl-C
or SIGTERM: it saves first, and the same command goes on from there.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from drafttree.drafters.heads import MedusaHeads
from drafttree.drafters.target_parts import projection
from heads import HeadObjective, bfloat16_state, command, parser, target_fields, write_config
from written import Pack, begin


def main(arguments: Sequence[str] | None = None) -> None:
    command("medusa", medusa_parser().parse_args(arguments), MedusaObjective, begin=begin)


def medusa_parser() -> argparse.ArgumentParser:
    """Return the parser of this recipe's options."""
    made = parser(__doc__, writes=True)
    made.set_defaults(decay=0.8, draft_vocab=None)
    return made


class MedusaObjective(HeadObjective):
    """The objective of Medusa heads. Blocks start as the identity, so all heads start with the target's logits."""

    def __init__(self, target: PreTrainedModel, options: argparse.Namespace) -> None:
        vocab, hidden = projection(target).weight.shape
        shared = not options.own_projection
        super().__init__(
            MedusaHeads(options.heads, options.layers, hidden, vocab, shares_output=shared), options.heads, shared
        )
        self.config = {
            "medusa_num_heads": options.heads,
            "medusa_num_layers": options.layers,
            "base_model_name_or_path": options.target,
            **target_fields(target),
            "shared_lm_head": shared,
        }
        self._initialise(projection(target).weight)

    @torch.no_grad()
    def _initialise(self, weight: Tensor) -> None:
        for head in self.heads:
            for block in head if self.shared else head[:-1]:
                block.linear.weight.zero_()
                block.linear.bias.zero_()
            if not self.shared:
                head[-1].weight.copy_(weight)

    def pack_outputs(self, pack: Pack, levels: Sequence[np.ndarray]) -> list[Tensor]:
        rows = (pack.states[-1][torch.from_numpy(level).to(pack.states.device)] for level in levels)
        return [head(states) for head, states in zip(self.heads, rows, strict=True)]

    def draft_output(self, level: int, context: Tensor, embeddings: list[Tensor]) -> Tensor:
        return self.heads[level](context)

    def write(self, folder: Path) -> None:
        save_file(bfloat16_state(self.heads), folder / "medusa_lm_head.safetensors")
        write_config(folder, self.config)


if __name__ == "__main__":
    main()
