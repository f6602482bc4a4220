"""Train an EAGLE-3 head for any Hugging Face model, in one resumable command:

    python recipes/eagle3.py --target embedded --data shared/data --out build/eagle3 --heads 6

The head is unrolled over `--heads` levels as in drafting ("training-time test", Li et al. 2025, section 3.2): beyond
the first, it reads its own outputs instead of the target's hidden states, and attends to what it would find in its
cache then. Every level learns the target's probabilities. `--out/final` then holds a head in SpecForge's format,
without the target's embedding, and without its vocabulary projection unless `--own-projection` trains another.
`--draft-vocab` leaves rare tokens out. Stop it with Ctrl-C or SIGTERM: it saves first, and the same command goes on.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from drafttree.drafters.eagle3 import Eagle3Config, Eagle3Head
from drafttree.drafters.formats.eagle3 import EMBEDDING, HEAD, save
from drafttree.drafters.heads import embedding, projection
from drafttree.drafters.hydra import prefix_config
from heads import HeadRun, Lesson, command, parser
from tokens import read_stream

MOST_TOKENS = 32_000


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__, layers="decoder layers of the head")
    options.set_defaults(heads=6, decay=0.8)
    options.add_argument("--draft-vocab", type=int, help=f"most frequent tokens to propose (all, or {MOST_TOKENS:,})")
    options.add_argument("--mlp", type=int, help="width of the head's MLP; by default the target's")
    command("eagle3", options.parse_args(arguments), Eagle3Lesson, Eagle3Run)


class UnrolledRows(DynamicCache):
    """Keys and values of all levels so far, through which gradients flow; for the plan of a pass, all are drafted."""

    length, positions = 0, None

    def grow(self, positions: Tensor) -> None:
        """Rows are counted as they come."""


class Eagle3Lesson(Lesson):
    """The head unrolled along the text; it begins with the target's final norm, which its projection was made for."""

    def __init__(self, target: PreTrainedModel, options: argparse.Namespace) -> None:
        depth = target.config.get_text_config().num_hidden_layers
        if depth < 3:
            raise ValueError(f"{options.target} has {depth} layers; an EAGLE-3 head reads the states of at least 3")
        ids = _frequent(options, len(projection(target).weight))
        head = Eagle3Head(_config(target, options, len(ids)))
        super().__init__(head, options.heads, shared=False)
        self.layers, self.vocab = (2, depth // 2, depth - 3), len(ids)
        self.depth, self.own = depth, options.own_projection
        head.target_ids = None if self.vocab == head.config.vocab else ids
        self._borrow(target, ids)

    def _borrow(self, target: PreTrainedModel, ids: Tensor) -> None:
        """Take the target's embedding, final norm and projection; the last two are copies where they are trained."""
        weight = projection(target).weight.detach()
        weight = weight if self.heads.target_ids is None else weight[ids.to(weight.device)]
        self.heads.embed_tokens.weight = nn.Parameter(embedding(target).weight.detach(), requires_grad=False)
        self.heads.lm_head.weight = nn.Parameter(weight.clone().float() if self.own else weight, requires_grad=self.own)
        last = getattr(target.get_decoder(), "norm", None)
        if isinstance(last, LlamaRMSNorm):
            self.heads.norm.weight.data.copy_(last.weight)

    def context(self, hidden: Tensor, states: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
        """The head's outputs `[batch, rows, levels, hidden]` after the final norm.

        Row i of a level reads the token `level + 1` places after the state it started from. It attends to the first
        level's rows up to i, which a cache would hold, and to its own row of every level since: its ancestors.
        """
        rows = inputs.shape[1] - self.levels
        state = self.heads.fuse(tuple(state[:, :rows] for state in states))
        cache, outputs = UnrolledRows(), []
        places = torch.arange(rows, device=inputs.device)[None]
        itself = torch.eye(rows, dtype=torch.bool, device=inputs.device)[None]
        visible = itself.new_ones(1, rows, rows).tril()
        for level in range(self.levels):
            tokens = inputs[:, level + 1 : level + 1 + rows]
            state = self.heads(cache, tokens, state, places + level, visible)
            outputs.append(self.heads.norm(state))
            visible = torch.cat((visible, itself), 2)
        return torch.stack(outputs, 2)

    def guess(self, level: int, context: Tensor, following: list[Tensor]) -> Tensor:
        return self.heads.lm_head(context[:, level])

    def answers(self, logits: Tensor) -> Tensor:
        """Over the draft vocabulary; nothing where the target's first choice lies outside it."""
        ids = self.heads.target_ids
        if ids is None:
            return logits.softmax(-1)
        known = torch.isin(logits.argmax(-1), ids)
        return logits[:, ids].softmax(-1) * known[:, None]

    def write(self, folder: Path) -> None:
        save(self.heads, folder, self.depth, own_lm_head=self.own, dtype=torch.bfloat16)


class Eagle3Run(HeadRun):
    """A run whose checkpoints leave out what is the target's."""

    def state(self) -> dict:
        state = super().state()
        return state | {"heads": {name: part for name, part in state["heads"].items() if name not in self._borrowed()}}

    def restore(self, state: dict) -> None:
        super().restore(state | {"heads": state["heads"] | self._borrowed()})

    def _borrowed(self) -> dict[str, Tensor]:
        state = self.heads.state_dict()
        return {name: state[name] for name in (EMBEDDING, HEAD) if name == EMBEDDING or not self.lesson.own}


def _config(target: PreTrainedModel, options: argparse.Namespace, draft_vocab: int) -> Eagle3Config:
    """A head of the target's width, with its number of attention heads."""
    sizes, (vocab, hidden) = prefix_config(target.config), projection(target).weight.shape
    layer = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=options.mlp or sizes.intermediate_size,
        num_hidden_layers=options.layers,
        num_attention_heads=sizes.num_attention_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        head_dim=sizes.head_dim,
        rms_norm_eps=1e-5,
        max_position_embeddings=sizes.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    return Eagle3Config(layer, vocab, draft_vocab, hidden)


def _frequent(options: argparse.Namespace, vocab: int) -> Tensor:
    """The ids of the most frequent tokens of the text, rising.

    Raises:
        ValueError: there are not so many.
    """
    wanted = options.draft_vocab or min(vocab, MOST_TOKENS)
    if not 0 < wanted <= vocab:
        raise ValueError(f"--draft-vocab {wanted} must lie between 1 and the target's vocabulary of {vocab}")
    counts = np.bincount(read_stream(options.out / "tokens.npy"), minlength=vocab)
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:wanted]))


if __name__ == "__main__":
    main()
