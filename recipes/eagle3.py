"""Train an EAGLE-3 head for any Hugging Face model, in one resumable command:

    python recipes/eagle3.py --target embedded --data shared/data --out build/eagle3 --heads 6
    python recipes/eagle3.py --target MODEL --prompts prompts.jsonl --quantize int8 --mlp 4096 --out build/eagle3

The second has the target write the texts, and trains without any pass of it (`writing.py`, `written.py`).
The head is unrolled over `--heads` levels as in drafting (`unrolled.py`): beyond the first, it reads its own outputs
instead of the target's hidden states, and attends to the rows its KV cache would hold then. Every level learns the
target's probabilities. `--out/final` then holds a head in SpecForge's format, without the target's embedding, and
without its vocabulary projection unless `--own-projection` trains another. `--draft-vocab` leaves rare tokens out.
`--export full` makes a head for SafeAILab's code, SGLang and vLLM too: they ask for a projection in the file, and
SafeAILab's for one layer whose attention heads fill the target's width. Stop it with Ctrl-C or SIGTERM: it saves first,
and the same command goes on.
"""

import argparse
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel

from drafttree.drafters.eagle import Eagle3Config, Eagle3Head
from drafttree.drafters.formats.eagle3 import save
from drafttree.drafters.formats.format import EMBEDDING, HEAD
from drafttree.drafters.heads import prefix_config
from drafttree.drafters.target_parts import embedding, projection
from drafttree.models.module.module_inputs import ModuleInputs
from heads import MAX_DRAFT_VOCAB, WRITTEN_DRAFT_VOCAB, HeadObjective, command, draft_ids, is_written, parser
from unrolled import unroll, unroll_rows
from written import Pack, begin


def main(arguments: Sequence[str] | None = None) -> None:
    command("eagle3", eagle3_parser().parse_args(arguments), Eagle3Objective, begin=begin)


def eagle3_parser() -> argparse.ArgumentParser:
    """Return the parser of this recipe's options."""
    made = parser(__doc__, layers="decoder layers of the head", writes=True)
    made.set_defaults(heads=6, decay=0.8)
    made.add_argument(
        "--draft-vocab",
        type=int,
        help=f"most frequent tokens to propose (all, or {MAX_DRAFT_VOCAB:,}; {WRITTEN_DRAFT_VOCAB:,} with --prompts)",
    )
    made.add_argument("--mlp", type=int, help="width of the head's MLP; by default the target's")
    made.add_argument(
        "--export", choices=("compact", "full"), default="compact", help="full: for other programs as well (see above)"
    )
    return made


class Eagle3Objective(HeadObjective):
    """The objective of an EAGLE-3 head unrolled along the text; its final norm starts as the target's."""

    def __init__(self, target: PreTrainedModel, options: argparse.Namespace) -> None:
        depth = target.config.get_text_config().num_hidden_layers
        if depth < 3:
            raise ValueError(f"{options.target} has {depth} layers; an EAGLE-3 head reads the states of at least 3")
        ids = draft_ids(options, len(projection(target).weight))
        head = Eagle3Head(_config(target, options, len(ids)))
        super().__init__(head, options.heads, shared=False)
        self.layers, self.vocab = (2, depth // 2, depth - 3), len(ids)
        self.depth, self.own = depth, options.own_projection
        self.stores_projection = self.own or options.export == "full"
        self.begins_as_copy = is_written(options)
        head.target_ids = None if self.vocab == head.config.vocab else ids
        self._share_with_target(target, ids)

    def _share_with_target(self, target: PreTrainedModel, ids: Tensor) -> None:
        """Share the target's embedding and projection, and copy its final norm and a projection to be trained."""
        weight = projection(target).weight.detach()
        weight = weight if self.heads.target_ids is None else weight[ids.to(weight.device)]
        self.heads.embed_tokens.weight = nn.Parameter(embedding(target).weight.detach(), requires_grad=False)
        self.heads.lm_head.weight = nn.Parameter(weight.clone().float() if self.own else weight, requires_grad=self.own)
        if self.begins_as_copy:  # of the last state, which is in the space that the projection reads
            weight = self.heads.fc.weight.data
            weight.mul_(0.1)[:, -len(weight) :] += torch.eye(len(weight))
        scale = final_norm_scale(target)
        if scale is not None:
            self.heads.norm.weight.data.copy_(scale)

    def context(self, hidden: Tensor, states: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
        """Compute the head's outputs `[batch, rows, levels, hidden]` after the final norm; see `unrolled.unroll`."""
        rows = inputs.shape[1] - self.levels
        state = self.heads.fuse(tuple(state[:, :rows] for state in states))
        return self.heads.norm(unroll(self._run, state, inputs, self.levels))

    def pack_outputs(self, pack: Pack, levels: Sequence[np.ndarray]) -> list[Tensor]:
        *states, _ = pack.states
        state = self.heads.fuse(tuple(state[None] for state in states))
        rows = [np.arange(len(pack.positions)), *levels[1:]]
        following = pack.following[None].to(state.device)
        first, *later = unroll_rows(self._run, state, following, pack.positions, pack.visible, rows)
        first = first[:, torch.from_numpy(levels[0]).to(first.device)]
        return [self.heads.norm(output)[0] for output in (first, *later)]

    def _run(self, level: ModuleInputs, state: Tensor) -> Tensor:
        return self.heads.next_hidden(self.heads.run_layers(level, state))

    def draft_output(self, level: int, context: Tensor, embeddings: list[Tensor]) -> Tensor:
        return self.heads.lm_head(context[:, level])

    def target_probs(self, logits: Tensor) -> Tensor:
        """Restrict to the draft vocabulary; rows whose most probable token lies outside it become zeros."""
        ids = self.heads.target_ids
        if ids is None:
            return logits.softmax(-1)
        known = torch.isin(logits.argmax(-1), ids)
        return logits[:, ids].softmax(-1) * known[:, None]

    def shared_tensors(self) -> dict[str, Tensor]:
        state = self.heads.state_dict()
        return {name: state[name] for name in (EMBEDDING, HEAD) if name == EMBEDDING or not self.own}

    def write(self, folder: Path) -> None:
        save(self.heads, folder, self.depth, own_lm_head=self.stores_projection, dtype=torch.bfloat16)


def final_norm_scale(target: PreTrainedModel) -> Tensor | None:
    """Return the scale `[hidden]` of the target's final norm, None if it has none.

    The final norm is the last part of the decoder with one weight per channel. Families store the scale as it is, less
    one (Gemma) or beside a bias, so it is measured: the norm of a vector of plus and minus 2^20 is the scale with these
    signs, plus the bias, since its mean is zero and epsilon vanishes beside its square.
    """
    width = projection(target).weight.shape[1]
    parts = [part for part in target.get_decoder().children() if _has_channel_weight(part, width)]
    if not parts:
        return None
    norm, probe = deepcopy(parts[-1]).float().cpu(), torch.full((1, width), 2.0**20)
    probe[:, 1::2] *= -1
    with torch.no_grad():
        return ((norm(probe) - norm(-probe)) / 2 * probe.sign())[0]


def _has_channel_weight(part: nn.Module, width: int) -> bool:
    weight = getattr(part, "weight", None)
    return isinstance(weight, Tensor) and weight.shape == (width,)


def _config(target: PreTrainedModel, options: argparse.Namespace, draft_vocab: int) -> Eagle3Config:
    """Return the config of a head with the target's width and number of attention heads.

    Raises:
        ValueError: with `--export full`, other programs could not load it.
    """
    sizes, (vocab, hidden) = prefix_config(target.config), projection(target).weight.shape
    full, attention_heads = options.export == "full", sizes.num_attention_heads
    if full and (options.layers > 1 or hidden % (2 * attention_heads)):
        raise ValueError(
            f"--export full makes heads of one layer whose attention heads, of even width, fill the target's {hidden}; "
            f"--layers is {options.layers}, and the target has {attention_heads} attention heads"
        )
    layer = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=options.mlp or sizes.intermediate_size,
        num_hidden_layers=options.layers,
        num_attention_heads=attention_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        head_dim=hidden // attention_heads if full else sizes.head_dim,
        rms_norm_eps=1e-5,
        max_position_embeddings=sizes.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    return Eagle3Config(layer, vocab, draft_vocab, hidden)


if __name__ == "__main__":
    main()
