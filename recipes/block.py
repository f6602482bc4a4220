"""Train a block drafter of DSpark's kind for any Hugging Face model, in one resumable command:

    python recipes/block.py --target embedded --data shared/data --out build/block --heads 8 --layers 2

At random places of a window a block of `--heads` rows begins: its first row reads the token there, the others a mask
token, and all of them the target's hidden states before it. Every row learns the target's probabilities of the token
after its own place, given the tokens of the text, by its own logits and by the transition from the token before.
`--out/final` then holds it in DeepSpec's format, without the target's embedding and projection. Stop it with Ctrl-C or
SIGTERM: it saves first, and the same command goes on.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import DynamicCache, PreTrainedModel, Qwen3Config

from drafttree.drafters.block_layers import BlockConfig, BlockLayers
from drafttree.drafters.formats.block import public_config
from drafttree.drafters.heads import prefix_config
from drafttree.drafters.target_parts import embedding, final_logits, last_layer, logits_scaling, projection
from drafttree.drafters.transitions import TRANSITIONS
from drafttree.models import Segment
from eagle3 import final_norm_scale
from heads import (
    HeadObjective,
    HeadRun,
    Losses,
    bfloat16_state,
    command,
    natural,
    parser,
    positive,
    target_fields,
    write_config,
)
from unrolled import level_inputs

BORROWED = ("embed_tokens.weight", "lm_head.weight")


def main(arguments: Sequence[str] | None = None) -> None:
    command("block", block_parser().parse_args(arguments), BlockObjective, BlockRun)


def block_parser() -> argparse.ArgumentParser:
    """Return the parser of this recipe's options."""
    made = parser(__doc__, layers="decoder layers")
    made.set_defaults(heads=8, layers=2, decay=0.9)
    made.add_argument("--blocks", type=positive, default=32, help="blocks of every window in a step")
    made.add_argument("--states", type=positive, default=3, help="hidden states of the target that are read")
    made.add_argument("--mlp", type=positive, help="width of the MLPs; by default the target's")
    made.add_argument("--rank", type=natural, default=32, help="width of the transition; 0 leaves it out")
    made.add_argument("--transition", choices=[*TRANSITIONS], default="vanilla", help="kind of the transition")
    made.add_argument("--mask-token", type=int, help="token id that stands for those to be drafted (the end of text)")
    return made


class BlockObjective(HeadObjective):
    """The objective of a block drafter, whose rows predict a level each."""

    def __init__(self, target: PreTrainedModel, options: argparse.Namespace) -> None:
        if options.own_projection:
            raise ValueError("a block drafter shares the target's projection")
        heads = BlockLayers(_config(target, options))
        super().__init__(heads, options.heads, shared=False)
        depth = last_layer(target)
        last = max(depth - 3, 0)
        spread = torch.linspace(min(1, last), last, options.states).round().int().tolist()
        self.layer_ids = sorted(set(spread))
        if len(self.layer_ids) != options.states or depth < 2:
            raise ValueError(
                f"a target with {depth} layers has no {options.states} hidden states to read; try --states 1"
            )
        self.layers = tuple(number + 1 for number in self.layer_ids)
        heads.embed_tokens.weight = nn.Parameter(embedding(target).weight.detach(), requires_grad=False)
        heads.lm_head.weight = nn.Parameter(projection(target).weight.detach(), requires_grad=False)
        if (scale := final_norm_scale(target)) is not None:
            heads.norm.weight.data.copy_(scale)
        if heads.markov_head is not None:
            nn.init.zeros_(heads.markov_head.markov_w2.weight)
        self.config = public_config(heads.config, self.layer_ids) | target_fields(target)
        self.config["base_model_name_or_path"] = options.target

    def rows(self, states: tuple[Tensor, ...], inputs: Tensor, roots: Tensor) -> Tensor:
        """Compute the rows `[batch, blocks, levels, width]` of the blocks that begin at some places of every window.

        Args:
            states: the target's hidden states `[batch, length, hidden]`.
            inputs: `[batch, length]` token ids.
            roots: `[blocks]` the places.
        """
        heads, block = self.heads, self.levels
        batch, length = inputs.shape
        places = torch.arange(length, device=inputs.device)
        cache = UnrolledContext(heads.keys_and_values(heads.context(states), places[None]))
        tokens = inputs.new_full((batch, len(roots), block), heads.config.mask_token)
        tokens[:, :, 0] = inputs[:, roots]
        row_roots = np.repeat(roots.cpu().numpy(), block)
        row_positions = row_roots + np.tile(np.arange(block), len(roots))
        before, beside = np.arange(length) < row_roots[:, None], row_roots[:, None] == row_roots
        visible = np.concatenate((before, beside), 1)
        segment = Segment(cache, np.zeros_like(row_positions), row_positions, visible)
        block_inputs = level_inputs(segment, tokens.flatten(1), states[0].dtype)
        rows = heads.embed_tokens(block_inputs.tokens) * heads.config.input_scale
        rotary = heads.rotary(rows, block_inputs.positions)
        for layer in heads.layers:
            rows = layer(rows, position_embeddings=rotary, tree_plan=block_inputs.plan, cache=cache)
        return heads.norm(rows).unflatten(1, (len(roots), block))

    def write(self, folder: Path) -> None:
        tensors = {name: tensor for name, tensor in bfloat16_state(self.heads).items() if name not in BORROWED}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        write_config(folder, self.config)


class UnrolledContext(DynamicCache):
    """The context's keys and values of every layer, before each layer's rows; for `TreePlan` all are drafted."""

    length, next_position, drafted, windowed, exact_text = 0, 0, 0, None, False

    def __init__(self, context: list[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        for index, (keys, values) in enumerate(context):
            self.update(keys, values, index)


class BlockRun(HeadRun):
    """A run that trains on some blocks of every window."""

    def state(self) -> dict:
        state = super().state()
        return state | {"heads": {name: part for name, part in state["heads"].items() if name not in BORROWED}}

    def restore(self, state: dict) -> None:
        own = self.heads.state_dict()
        super().restore(state | {"heads": state["heads"] | {name: own[name] for name in BORROWED}})

    def _forward_backward(self, inputs: Tensor) -> Losses:
        """Run forward and backward on blocks of windows `[batch, length]`; the step decides where they begin."""
        hidden, states = self.hidden_states.compute(inputs, self.windows)
        levels, generator = self.objective.levels, torch.Generator().manual_seed(self.step)
        count = min(self.options.blocks, inputs.shape[1] - levels)
        roots = torch.randperm(inputs.shape[1] - levels, generator=generator)[:count].sort().values.to(inputs.device)
        with self._autocast():
            rows = self.objective.rows(states, inputs, roots)
        gradient, losses = torch.zeros_like(rows), self.losses()
        for text in range(len(inputs)):
            leaf = rows[text].detach().requires_grad_()
            losses += self._losses(leaf, hidden[text], inputs[text], roots, 1.0 / (len(inputs) * count))
            gradient[text] = leaf.grad
        rows.backward(gradient)
        return losses

    def _losses(self, rows: Tensor, hidden: Tensor, tokens: Tensor, roots: Tensor, scale: float) -> Losses:
        """Run forward and backward from the rows `[blocks, levels, width]` of one text.

        Level k of a block learns the distribution after the token k places behind the root, given that very token.
        """
        heads, sums, total = self.heads, [], 0.0
        memory = rows.new_zeros(len(roots), heads.config.rank)
        for level in range(self.objective.levels):
            with torch.no_grad():
                probs = final_logits(self.target, hidden[roots + level]).float().softmax(-1)
            with self._autocast():
                logits = heads.logits(rows[:, level])
                if heads.markov_head is not None:
                    logits, memory = heads.markov_head(logits, tokens[roots + level], rows[:, level], memory)
            loss = cross_entropy(logits.float(), probs, reduction="sum")
            total = total + loss * scale * self.options.decay**level
            sums.append(torch.stack((loss.detach(), (logits.argmax(-1) == probs.argmax(-1)).sum())))
        total.backward()
        return Losses(*torch.stack(sums, 1), len(roots))


def _config(target: PreTrainedModel, options: argparse.Namespace) -> BlockConfig:
    """Return the config of a drafter of the target's width and number of attention heads."""
    sizes, (vocab, hidden) = prefix_config(target.config), projection(target).weight.shape
    eos = target.generation_config.eos_token_id
    mask = options.mask_token if options.mask_token is not None else (eos[0] if isinstance(eos, list) else eos)
    if mask is None:
        raise ValueError("the target has no end of text to stand for drafted tokens; name a token id with --mask-token")
    if not 0 <= mask < vocab:
        raise ValueError(f"--mask-token {mask} must be one of the target's {vocab} token ids")
    layer = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=options.mlp or sizes.intermediate_size,
        num_hidden_layers=options.layers,
        num_attention_heads=sizes.num_attention_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        head_dim=sizes.head_dim,
        rms_norm_eps=1e-6,
        max_position_embeddings=sizes.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    scale, bound = logits_scaling(target)
    return BlockConfig(
        layer=layer,
        vocab=vocab,
        draft_vocab=vocab,
        target_hidden=hidden,
        states=options.states,
        block=options.heads,
        mask_token=mask,
        levels=options.heads,
        from_root=True,
        causal=(False,) * options.layers,
        transition=options.transition if options.rank else None,
        rank=options.rank,
        input_scale=float(getattr(embedding(target), "embed_scale", 1.0)),
        output_scale=scale,
        softcap=bound,
    )


if __name__ == "__main__":
    main()
