"""Whether the texts of a decoder follow the target's distribution, and why not."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from drafttree.models import LossyWindow, Model
from drafttree.verifiers import VERIFIERS, Verifier


@dataclass(frozen=True)
class Fidelity:
    """Whether the texts of a decoder follow the target's distribution.

    Attributes:
        lossy: why they do not; None if they do. A window over the KV cache counts even for shorter texts.
        quantization: how the target's weights are quantised; None if they are not. Lossless texts of a quantised target
            follow the distribution of the quantised model.
    """

    lossy: str | None = None
    quantization: str | None = None

    @classmethod
    def of(cls, target: Model, verifier: type[Verifier] | None) -> "Fidelity":
        """The fidelity of a target's texts with a verifier; None stands for the default ones."""
        reasons = "; and ".join(_reasons(getattr(target, "lossy_window", None), verifier))
        return cls(reasons or None, getattr(target, "quantization", None))

    @property
    def lossless(self) -> bool:
        """Whether the texts follow the target's distribution."""
        return self.lossy is None

    @property
    def words(self) -> str:
        """A phrase for people."""
        if self.lossy:
            return f"NOT lossless: {self.lossy}"
        return f"lossless with respect to the {self.quantization} target" if self.quantization else "lossless"

    def to_json(self) -> dict[str, bool | str]:
        """A dictionary with `lossless`, and with `lossy` and `quantization` where they are set."""
        said = {name: value for name, value in asdict(self).items() if value is not None}
        return {"lossless": self.lossless, **said}


def _reasons(window: LossyWindow | None, verifier: type[Verifier] | None) -> Iterator[str]:
    if verifier and not verifier.lossless:
        name = next((name for name, known in VERIFIERS.items() if known is verifier), verifier.__name__)
        yield f"the verifier {name} does not follow the target's distribution"
    if window:
        first = f" and the first {window.sinks}" if window.sinks else ""
        yield f"lossy_window lets the target attend to the last {window.size} tokens{first} only"
