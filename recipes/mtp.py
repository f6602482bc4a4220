"""Train an MTP layer for any Hugging Face model, in one resumable command:

    python recipes/mtp.py --target embedded --data shared/data --out build/mtp --heads 6

The layer is a decoder layer of the target's class that begins as the target's last one. It is unrolled over `--heads`
levels as in drafting, like an EAGLE-3 head (`recipes/eagle3.py`): the first level reads the target's last hidden state
at the token before, later ones the layer's own outputs, and every level learns the target's probabilities.
`--out/final` then holds it under Qwen's names (`mtp.*`), without the target's embedding and head. Stop it with Ctrl-C
or SIGTERM: it saves first, and the same command goes on.
"""

import argparse
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.drafters.formats.mtp import block_types, layer_config, names_in
from drafttree.drafters.target_parts import embedding, projection
from drafttree.models.attention.tree_attention import NAME
from drafttree.models.module.module_inputs import ModuleInputs, as_cache
from heads import HeadObjective, command, parser, target_fields, write_config
from unrolled import unroll

PUBLISHED = {"enorm": "mtp.pre_fc_norm_embedding", "hnorm": "mtp.pre_fc_norm_hidden", "eh_proj": "mtp.fc"}


def main(arguments: Sequence[str] | None = None) -> None:
    made = parser(__doc__, layers="1: an MTP layer is one decoder layer")
    made.set_defaults(heads=6, decay=0.8)
    command("mtp", made.parse_args(arguments), MtpObjective)


class MtpObjective(HeadObjective):
    """The objective of one MTP layer, unrolled along the text.

    Raises:
        ValueError: another number of layers, or a projection of its own, is asked for.
    """

    def __init__(self, target: PreTrainedModel, options: argparse.Namespace) -> None:
        if options.layers > 1 or options.own_projection:
            raise ValueError("an MTP layer is one decoder layer with the target's projection")
        module = _module(target)
        width, norm = projection(target).weight.shape[1], module.get_submodule(names_in(module)[1].rpartition(".")[0])
        parts = {"enorm": deepcopy(norm), "hnorm": deepcopy(norm), "eh_proj": nn.Linear(2 * width, width, bias=False)}
        super().__init__(nn.ModuleDict({"module": module, **parts}).float(), options.heads, shared=True)
        self.embed = embedding(target)
        self.config = {"model_type": "mtp", "base_model_name_or_path": options.target, **target_fields(target)}

    def context(self, hidden: Tensor, states: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
        """Compute the layer's outputs `[batch, rows, levels, hidden]`; see `unrolled.unroll`."""
        return unroll(self._run, hidden[:, : inputs.shape[1] - self.levels], inputs, self.levels)

    def _run(self, inputs: ModuleInputs, state: Tensor) -> Tensor:
        tokens, positions, cache, plan = inputs
        pair = self.heads["enorm"](self.embed(tokens)), self.heads["hnorm"](state)
        read, decoder = self.heads["eh_proj"](torch.cat(pair, -1)), self.heads["module"].get_decoder()
        given = {"position_ids": positions, "tree_plan": plan, **as_cache(decoder, cache)}
        return decoder(inputs_embeds=read, use_cache=True, **given).last_hidden_state

    def draft_output(self, level: int, context: Tensor, embeddings: list[Tensor]) -> Tensor:
        return context[:, level]

    def write(self, folder: Path) -> None:
        module = deepcopy(self.heads["module"])
        layers, norm = names_in(module)
        with TemporaryDirectory() as saved:  # under the family's own names, which differ where there are experts
            module.to("cpu", torch.bfloat16).save_pretrained(saved)
            tensors = load_file(Path(saved) / "model.safetensors")
        named = {
            name.replace(layers, "mtp.layers.").replace(norm, "mtp.norm.weight"): tensors[name] for name in tensors
        }
        named = {name: tensor for name, tensor in named.items() if name.startswith("mtp.")}
        for part, name in PUBLISHED.items():
            named[f"{name}.weight"] = self.heads[part].weight.detach().to("cpu", torch.bfloat16)
        save_file(named, folder / "model.safetensors", {"format": "pt"})
        write_config(folder, self.config)


@torch.no_grad()
def _module(target: PreTrainedModel) -> PreTrainedModel:
    """A language model of one layer that begins as the target's last layer and final norm."""
    family = target.config.get_text_config()
    try:
        layers, norm = names_in(target)
    except LookupError as error:
        raise ValueError(f"{error}, as an MTP layer needs them") from None
    if block_types(family) or f"{norm.rpartition('.')[0]}.bias" in target.state_dict():
        kind = "several layers for one MTP layer" if block_types(family) else "norms with a bias"
        raise ValueError(f"{family.model_type} has {kind}, which this recipe does not write; train another head")
    last: Any = target.get_submodule(f"{layers}{family.num_hidden_layers - 1}")
    config = layer_config(family, [name for name, _ in last.named_parameters()], 0)
    config._attn_implementation = NAME
    module = type(target)(config)
    module.get_submodule(f"{layers}0").load_state_dict(last.state_dict(), strict=False)
    module.get_submodule(norm.rpartition(".")[0]).load_state_dict({"weight": target.get_parameter(norm)}, strict=False)
    for borrowed in (module.get_input_embeddings(), module.get_output_embeddings()):
        borrowed.requires_grad_(False)
    return module.eval()


if __name__ == "__main__":
    main()
