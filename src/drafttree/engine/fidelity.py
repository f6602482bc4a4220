"""Whether a decoder's texts have the law of the target's own texts, and why not."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from drafttree.models import LossyWindow, Model
from drafttree.verifiers import VERIFIERS, Verifier


@dataclass(frozen=True)
class Fidelity:
    """How a decoder's texts relate to those of its target; this is decided here alone.

    Attributes:
        lossy: why the texts do not have the law of the target's own, None where they have it. A window over the KV
            cache counts even for a text that is shorter than it.
        quantization: how the target's weights are quantised, None where they are not. A quantised target is another
            model than the one it was made of, and lossless texts are those of the quantised one.
    """

    lossy: str | None = None
    quantization: str | None = None

    @classmethod
    def of(cls, target: Model, verifier: type[Verifier] | None) -> "Fidelity":
        """That of a target's texts with a verifier, None for the default ones, which are lossless."""
        reasons = "; and ".join(_reasons(getattr(target, "lossy_window", None), verifier))
        return cls(reasons or None, getattr(target, "quantization", None))

    @property
    def lossless(self) -> bool:
        """Whether the texts have the law of the target's own."""
        return self.lossy is None

    @property
    def words(self) -> str:
        """The same for people, as a part of a sentence."""
        if self.lossy:
            return f"NOT lossless: {self.lossy}"
        return f"lossless with respect to the {self.quantization} target" if self.quantization else "lossless"

    def to_json(self) -> dict[str, bool | str]:
        """`lossless`; `lossy` and `quantization` only where there is something to say."""
        said = {name: value for name, value in asdict(self).items() if value is not None}
        return {"lossless": self.lossless, **said}


def _reasons(window: LossyWindow | None, verifier: type[Verifier] | None) -> Iterator[str]:
    if verifier and not verifier.lossless:
        name = next((name for name, known in VERIFIERS.items() if known is verifier), verifier.__name__)
        yield f"the verifier {name} does not follow the target's distribution"
    if window:
        first = f" and the first {window.sinks}" if window.sinks else ""
        yield f"lossy_window lets the target attend to the last {window.size} tokens{first} only"
