"""Train Hydra heads for any Hugging Face model, in one resumable command:

    python recipes/hydra.py --target embedded --data shared/data --out build/hydra --prefix --layers 4

As `medusa.py`, but every head also reads the drafted tokens above its own, and with `--prefix` (Hydra++) all hidden
states pass through one attention layer first. `--out/final` then holds `hydra_lm_head.pt` and `config.json`. The
target's embedding and vocabulary projection are not stored again, unless `--own-projection` trains one per head,
which makes the full public format.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from disk import atomic_file
from drafttree.drafters.formats.heads import MLP, OWN_EMBEDDING, PREFIX_MLP
from drafttree.drafters.heads import HydraHeads, ResBlock, prefix_config
from drafttree.drafters.target_parts import embedding, projection
from heads import HeadObjective, bfloat16_state, command, parser, target_fields, write_config


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__)
    options.add_argument("--prefix", action="store_true", help="Hydra++: read the hidden states through attention")
    command("hydra", options.parse_args(arguments), HydraObjective)


class HydraObjective(HeadObjective):
    """The objective of Hydra heads. Blocks first pass the context on, so all heads start with the target's logits."""

    def __init__(self, target: PreTrainedModel, options: argparse.Namespace) -> None:
        vocab, hidden = projection(target).weight.shape
        shared = not options.own_projection
        layer = prefix_config(target.config) if options.prefix else None
        heads = HydraHeads(options.heads, options.layers, hidden, vocab, layer, shares_output=shared)
        super().__init__(heads, options.heads, shared)
        self.config = {
            "hydra_num_heads": options.heads,
            "hydra_num_layers": options.layers,
            "hydra_head_arch": PREFIX_MLP if options.prefix else MLP,
            "grounded_heads": True,
            "hidden_state_offset": 0,
            "base_model_name_or_path": options.target,
            **target_fields(target),
            "shared_lm_head": shared,
        }
        self._stored = {} if shared else {OWN_EMBEDDING: embedding(target).weight}
        self._initialise(projection(target).weight)

    @torch.no_grad()
    def _initialise(self, weight: Tensor) -> None:
        for block in (module for module in self.heads.modules() if isinstance(module, ResBlock)):
            block.linear.weight.zero_()
            block.linear.bias.zero_()
            if isinstance(block.res_connection, torch.nn.Linear):
                torch.nn.init.eye_(block.res_connection.weight)
                block.res_connection.bias.zero_()
        for output in (module for module in self.heads.hydra_lm_head.modules() if isinstance(module, torch.nn.Linear)):
            output.weight.copy_(weight)
            output.bias.zero_()

    def context(self, hidden: Tensor, states: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
        return self.heads.context(hidden)

    def draft_output(self, level: int, context: Tensor, embeddings: list[Tensor]) -> Tensor:
        return self.heads(level, torch.cat((context, *embeddings), -1))

    def write(self, folder: Path) -> None:
        stored = {name: tensor.to("cpu", torch.bfloat16) for name, tensor in self._stored.items()}
        with atomic_file(folder / "hydra_lm_head.pt") as file:
            torch.save(bfloat16_state(self.heads) | stored, file)
        write_config(folder, self.config)


if __name__ == "__main__":
    main()
