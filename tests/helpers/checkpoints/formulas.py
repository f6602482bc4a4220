"""What drafters compute, as their authors' papers and code have it: in float64, a whole text at once, path by path.

A formula takes the target's hidden states `[tokens, hidden]` of all committed tokens but the last, which is the root,
and a drafted path below it. It gives the logits `[draft vocabulary]` of the token after the path.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu


class Parts:
    """Parts of decoder layers, each found by the name its tensors begin with.

    Args:
        tensors: by name.
        width: of an attention head.
        theta: base of the rotary angles.
        eps: of the norms.
    """

    def __init__(self, tensors: Mapping[str, Tensor], width: int, theta: float, eps: float) -> None:
        self.w = {name: tensor.detach().double() for name, tensor in tensors.items()}
        self.width, self.theta, self.eps = width, theta, eps

    def embed(self, tokens: Sequence[int], name: str = "embed_tokens") -> Tensor:
        return self.w[f"{name}.weight"][[*tokens]]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0)

    def norm(self, name: str, x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.w[f"{name}.weight"]

    def mlp(self, name: str, x: Tensor) -> Tensor:
        return self.linear(
            f"{name}down_proj", silu(self.linear(f"{name}gate_proj", x)) * self.linear(f"{name}up_proj", x)
        )

    def attention(
        self, name: str, x: Tensor, before: Tensor | None = None, causal=True, window=None, values=1.0
    ) -> Tensor:
        """Attention of rows to themselves and to the rows before them."""
        rows = x if before is None else torch.cat((before, x))
        q, k, v = (
            self.linear(f"{name}{part}_proj", each).unflatten(-1, (-1, self.width))
            for part, each in (("q", x), ("k", rows), ("v", rows))
        )
        if f"{name}q_norm.weight" in self.w:
            q, k = self.norm(f"{name}q_norm", q), self.norm(f"{name}k_norm", k)
        places = torch.arange(len(rows), dtype=torch.float64)
        own = places[len(rows) - len(x) :]
        k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (self.rotate(k, places), v * values))
        scores = torch.einsum("qhd,khd->hqk", self.rotate(q, own), k) / self.width**0.5
        away = own[:, None] - places
        hidden = (away < 0) & causal | (away.abs() >= (window or torch.inf))
        scores = scores.masked_fill(hidden, -torch.inf)
        if (sinks := self.w.get(f"{name}attention_sink_bias")) is not None:
            scores = torch.cat((scores, sinks[:, None, None].expand(-1, len(x), 1)), -1)
        mixed = scores.softmax(-1)[..., : len(rows)]
        return self.linear(f"{name}o_proj", torch.einsum("hqk,khd->qhd", mixed, v).flatten(1))

    def rotate(self, x: Tensor, places: Tensor) -> Tensor:
        half = self.width // 2
        angles = places[:, None, None] * self.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)

    def layer(self, name: str, x: Tensor, window: int | None = None) -> Tensor:
        """A layer of Llama or Qwen3."""
        x = x + self.attention(f"{name}self_attn.", self.norm(f"{name}input_layernorm", x), window=window)
        return x + self.mlp(f"{name}mlp.", self.norm(f"{name}post_attention_layernorm", x))


def eagle(parts: Parts, states: Sequence[Tensor], tokens: Sequence[int], path: Sequence[int], *, layers=1) -> Tensor:
    """EAGLE, section 3.1, with the layer of SafeAILab's `cnets1.py`, whose first has no norm before its attention."""

    def run(features: Tensor, embedded: Tensor) -> Tensor:
        x = parts.linear("fc", torch.cat((embedded, features), -1))
        x = x + parts.attention("layers.0.self_attn.", x)
        x = x + parts.mlp("layers.0.mlp.", parts.norm("layers.0.post_attention_layernorm", x))
        for layer in range(1, layers):
            x = parts.layer(f"layers.{layer}.", x)
        return x[-1]

    return parts.linear("lm_head", _recycled(parts, run, states[0].double(), [*tokens[1:], *path], lambda out: out))


def eagle3(
    parts: Parts,
    states: Sequence[Tensor],
    tokens: Sequence[int],
    path: Sequence[int],
    *,
    windows: tuple[int | None, ...] = (None,),
    residual_normed: bool = False,
    output_normed: bool = False,
    logits_normed: bool = True,
) -> Tensor:
    """EAGLE-3, section 3.1, with the layer of SafeAILab's `cnets.py` and the options of those who train it."""
    read = [
        parts.norm(f"fc_norm.{index}", each.double()) if f"fc_norm.{index}.weight" in parts.w else each.double()
        for index, each in enumerate(states)
    ]
    joined = torch.cat(read, -1)
    joined = parts.norm("input_norm", joined) if "input_norm.weight" in parts.w else joined

    def run(features: Tensor, embedded: Tensor) -> Tensor:
        normed = parts.norm("layers.0.hidden_norm", features)
        both = torch.cat((parts.norm("layers.0.input_layernorm", embedded), normed), -1)
        x = normed if residual_normed else features
        x = x + parts.attention("layers.0.self_attn.", both, window=windows[0])
        x = x + parts.mlp("layers.0.mlp.", parts.norm("layers.0.post_attention_layernorm", x))
        for layer, window in enumerate(windows[1:], 1):
            x = parts.layer(f"layers.{layer}.", x, window)
        return x[-1]

    def after(out: Tensor) -> Tensor:
        return parts.norm("norm", out) if output_normed else out

    out = _recycled(parts, run, parts.linear("fc", joined), [*tokens[1:], *path], after)
    return parts.linear("lm_head", parts.norm("norm", out) if logits_normed else out)


def _recycled(parts: Parts, run: Callable, features: Tensor, tokens: Sequence[int], after: Callable) -> Tensor:
    """The last output of a head that reads its own output where the target has not been yet."""
    while len(features) < len(tokens):
        out = run(features, parts.embed(tokens[: len(features)]))
        features = torch.cat((features, after(out)[None]))
    return run(features, parts.embed(tokens))


def medusa(parts: Parts, states: Sequence[Tensor], tokens: Sequence[int], path: Sequence[int]) -> Tensor:
    """Medusa, section 2.1: head k gives U z, where z = h and then, block after block, z + SiLU(W z + b)."""
    z, head, block = states[0][-1].double(), len(path), 0
    while f"{head}.{block}.linear.weight" in parts.w:
        z, block = z + silu(parts.linear(f"{head}.{block}.linear", z)), block + 1
    return parts.linear(f"{head}.{block}" if f"{head}.{block}.weight" in parts.w else "lm_head", z)


def hydra(parts: Parts, states: Sequence[Tensor], tokens: Sequence[int], path: Sequence[int]) -> Tensor:
    """Hydra, sections 3 and 4: head k reads the context and k + 1 embeddings; Hydra++ has a layer for the context."""
    context, prefix = states[0].double(), "prefix_embeding_layer."
    if f"{prefix}norm.weight" in parts.w:
        context = parts.norm(f"{prefix}norm", parts.layer(f"{prefix}layers.0.", context))
    name = "input_embed_fn" if "input_embed_fn.weight" in parts.w else "embed_tokens"
    head = f"hydra_mlp.{len(path)}."
    x = torch.cat((context[-1], *parts.embed([tokens[-1], *path], name)))
    places = {int(each.split(".")[2]) for each in parts.w if each.startswith(head)}
    for block in (f"{head}{place}." for place in sorted(places)):
        x = x[: parts.w[f"{block}linear.weight"].shape[1]]
        own = parts.linear(f"{block}res_connection", x) if f"{block}res_connection.weight" in parts.w else x
        x = own + silu(parts.linear(f"{block}linear", x))
    ends = (f"hydra_lm_head.{len(path)}.1", f"hydra_lm_head.{len(path)}", "lm_head")
    return parts.linear(next(end for end in ends if f"{end}.weight" in parts.w), x)


def block(
    parts: Parts,
    states: Sequence[Tensor],
    tokens: Sequence[int],
    path: Sequence[int],
    *,
    size: int,
    mask: int,
    first: int = 1,
    causal: tuple[bool, ...] = (False, False),
    windows: tuple[int | None, ...] = (None, None),
    scales: tuple[float, float] = (1.0, 1.0),
    values: float = 1.0,
    transition: Callable | None = None,
) -> Tensor:
    """DFlash and its kin: one pass over the root and masks, of which the first rows may predict nothing.

    `scales` are those of the embeddings and the logits, `values` that of what is attended to.
    """
    context = parts.norm("hidden_norm", parts.linear("fc", torch.cat([*states], -1).double()))
    given = [tokens[-1], *[mask] * (size - 1)]
    x = parts.embed(given)
    x[torch.tensor(given) == mask] = parts.w.get("mask_embedding", parts.embed([mask])[0])
    x = x * scales[0]
    for index in range(len(causal)):
        name = f"layers.{index}."
        attended = parts.norm(f"{name}input_layernorm", x)
        x = x + _between(
            parts,
            f"{name}attention_conv.",
            attended,
            lambda rows, name=name, at=index: parts.attention(
                f"{name}self_attn.", rows, context, causal=causal[at], window=windows[at], values=values
            ),
        )
        normed = parts.norm(f"{name}post_attention_layernorm", x)
        x = x + _between(parts, f"{name}mlp_conv.", normed, lambda rows, name=name: parts.mlp(f"{name}mlp.", rows))
    rows = parts.norm("norm", x)[first:]
    logits = parts.linear("lm_head", rows) * scales[1]
    return transition(parts, logits, rows, [tokens[-1], *path]) if transition else logits[len(path)]


def _between(parts: Parts, name: str, rows: Tensor, inner: Callable[[Tensor], Tensor]) -> Tensor:
    """A part of DFlash2's layers between two causal convolutions whose kernels the part's input decides.

    Kernels `[side, tap, channel]` are stored; what is added to them `[row, side, tap, group]` is the same for the
    channels of a group.
    """
    if f"{name}base_kernel" not in parts.w:
        return inner(rows)
    base = parts.w[f"{name}base_kernel"]
    added = parts.linear(f"{name}kernel_projection", rows).view(len(rows), *base.shape[:2], -1)
    kernels = base + added.repeat_interleave(base.shape[2] // added.shape[3], 3)

    def convolved(given: Tensor, side: int) -> Tensor:
        return torch.stack(
            [
                sum(kernels[at, side, back] * given[at - back] for back in range(min(base.shape[1], at + 1)))
                for at in range(len(given))
            ]
        )

    return convolved(inner(convolved(rows, 0)), 1)


def vanilla(parts: Parts, logits: Tensor, rows: Tensor, path: Sequence[int]) -> Tensor:
    """DSpark: a bigram of low rank."""
    return logits[len(path) - 1] + parts.linear("markov_head.markov_w2", _above(parts, path[-1]))


def gated(parts: Parts, logits: Tensor, rows: Tensor, path: Sequence[int]) -> Tensor:
    """DSpark's bigram, how much of it counts being decided by the row and the token above it."""
    above = _above(parts, path[-1])
    gate = parts.linear("markov_head.gate_proj", torch.cat((rows[len(path) - 1], above))).sigmoid()
    return logits[len(path) - 1] + parts.linear("markov_head.markov_w2", gate * above)


def rnn(parts: Parts, logits: Tensor, rows: Tensor, path: Sequence[int]) -> Tensor:
    """DSpark with a gated memory of the whole path."""
    memory = output = torch.zeros_like(_above(parts, path[-1]))
    for row, token in zip(rows, path, strict=False):
        joint = parts.linear("markov_head.joint_proj", torch.cat((memory, _above(parts, token), row)))
        gate, candidate, output = joint.chunk(3)
        memory = gate.sigmoid() * memory + (1 - gate.sigmoid()) * candidate.tanh()
    return logits[len(path) - 1] + parts.linear("markov_head.markov_w2", output.tanh())


def _above(parts: Parts, token: int) -> Tensor:
    return parts.w["markov_head.markov_w1.weight"][token]


def selector(parts: Parts, logits: Tensor, rows: Tensor, path: Sequence[int], candidates: int = 6) -> Tensor:
    """DFlash2: only the best tokens of a row are candidates, and the token above decides among them too."""
    own, row = logits[len(path) - 1], rows[len(path) - 1]
    best = own.topk(candidates).indices
    above, below = (parts.w[f"candidate_selector.{name}_codebook"] for name in ("predecessor", "successor"))
    scores = own[best] + below[best] @ (above[path[-1]] * parts.linear("candidate_selector.hidden_projection", row))
    return torch.full_like(own, -torch.inf).index_copy(0, best, scores)
