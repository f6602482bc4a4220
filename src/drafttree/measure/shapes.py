"""Shapes by name, to which `drafttree.measure.inflation` can inflate a target."""

from dataclasses import dataclass

from drafttree.core.errors import unknown


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama model; the vocabulary is the small model's."""

    hidden: int
    layers: int
    intermediate: int
    heads: int
    key_value_heads: int
    head_dim: int = 64

    @property
    def weights(self) -> int:
        """Number of weights of the layers, without embeddings and head."""
        attention = 2 * self.head_dim * (self.heads + self.key_value_heads)
        return self.layers * self.hidden * (attention + 3 * self.intermediate)


SHAPES = {
    "100m": Shape(hidden=1024, layers=12, intermediate=1536, heads=16, key_value_heads=8),
    "300m": Shape(hidden=1024, layers=24, intermediate=2944, heads=16, key_value_heads=8),
    "pythia-2.8b": Shape(hidden=2560, layers=32, intermediate=6816, heads=40, key_value_heads=40),
    "llama-8b": Shape(hidden=4096, layers=32, intermediate=14336, heads=32, key_value_heads=8, head_dim=128),
}


def find_shape(name: str) -> Shape:
    """Return the shape of this name.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in SHAPES:
        raise unknown("shape", name, SHAPES)
    return SHAPES[name]
