"""Train an EAGLE-3 head for any Hugging Face model, in one resumable command:

    python recipes/eagle3.py --target embedded --data shared/data --out build/eagle3 --heads 6

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
from heads import HeadObjective, HeadRun, command, parser
from tokens import read_stream
from unrolled import unroll

MAX_DRAFT_VOCAB = 32_000


def main(arguments: Sequence[str] | None = None) -> None:
    command("eagle3", eagle3_parser().parse_args(arguments), Eagle3Objective, Eagle3Run)


def eagle3_parser() -> argparse.ArgumentParser:
    """Return the parser of this recipe's options."""
    made = parser(__doc__, layers="decoder layers of the head")
    made.set_defaults(heads=6, decay=0.8)
    made.add_argument("--draft-vocab", type=int, help=f"most frequent tokens to propose (all, or {MAX_DRAFT_VOCAB:,})")
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
        ids = _most_frequent_ids(options, len(projection(target).weight))
        head = Eagle3Head(_config(target, options, len(ids)))
        super().__init__(head, options.heads, shared=False)
        self.layers, self.vocab = (2, depth // 2, depth - 3), len(ids)
        self.depth, self.own = depth, options.own_projection
        self.stores_projection = self.own or options.export == "full"
        head.target_ids = None if self.vocab == head.config.vocab else ids
        self._share_with_target(target, ids)

    def _share_with_target(self, target: PreTrainedModel, ids: Tensor) -> None:
        """Share the target's embedding and projection, and copy its final norm and a projection to be trained."""
        weight = projection(target).weight.detach()
        weight = weight if self.heads.target_ids is None else weight[ids.to(weight.device)]
        self.heads.embed_tokens.weight = nn.Parameter(embedding(target).weight.detach(), requires_grad=False)
        self.heads.lm_head.weight = nn.Parameter(weight.clone().float() if self.own else weight, requires_grad=self.own)
        scale = final_norm_scale(target)
        if scale is not None:
            self.heads.norm.weight.data.copy_(scale)

    def context(self, hidden: Tensor, states: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
        """Compute the head's outputs `[batch, rows, levels, hidden]` after the final norm; see `unrolled.unroll`."""
        rows = inputs.shape[1] - self.levels
        state = self.heads.fuse(tuple(state[:, :rows] for state in states))
        return self.heads.norm(unroll(self._run, state, inputs, self.levels))

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

    def write(self, folder: Path) -> None:
        save(self.heads, folder, self.depth, own_lm_head=self.stores_projection, dtype=torch.bfloat16)


class Eagle3Run(HeadRun):
    """A run whose checkpoints leave out the tensors shared with the target."""

    def state(self) -> dict:
        state = super().state()
        return state | {
            "heads": {name: part for name, part in state["heads"].items() if name not in self._shared_tensors()}
        }

    def restore(self, state: dict) -> None:
        super().restore(state | {"heads": state["heads"] | self._shared_tensors()})

    def _shared_tensors(self) -> dict[str, Tensor]:
        state = self.heads.state_dict()
        return {name: state[name] for name in (EMBEDDING, HEAD) if name == EMBEDDING or not self.objective.own}


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


def _most_frequent_ids(options: argparse.Namespace, vocab: int) -> Tensor:
    """Return the ids of the most frequent tokens of the text, in rising order.

    Raises:
        ValueError: `--draft-vocab` is not between 1 and the target's vocabulary.
    """
    wanted = options.draft_vocab or min(vocab, MAX_DRAFT_VOCAB)
    if not 0 < wanted <= vocab:
        raise ValueError(f"--draft-vocab {wanted} must lie between 1 and the target's vocabulary of {vocab}")
    counts = np.bincount(read_stream(options.out / "tokens.npy"), minlength=vocab)
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:wanted]))


if __name__ == "__main__":
    main()
