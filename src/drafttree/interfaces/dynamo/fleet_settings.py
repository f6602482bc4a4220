"""Settings of a worker: its limits, and how it joins its fleet."""

from dataclasses import dataclass

from drafttree.core.counts import MAX_TOKEN_GAP
from drafttree.loading import zoo


@dataclass(frozen=True)
class FleetSettings:
    """The limits of a worker, and what it reports to its fleet.

    Attributes:
        model: the loaded model: an embedded name, a folder or a hub name.
        name: the model's name in clients' requests.
        discovery: how frontend and workers find each other: "file", "etcd" or "kubernetes".
        namespace: the namespace of the fleet.
        max_batch: the most texts at once.
        max_kv_tokens: the most rows of all KV caches; None for as many as fit into memory.
        prefix_tokens: as for `Engine`.
        max_token_gap: as for `Engine`.
        max_model_len: as for `drafttree.load`.
    """

    model: str
    name: str
    discovery: str
    namespace: str
    max_batch: int
    max_kv_tokens: int | None
    prefix_tokens: int | None = None
    max_token_gap: float = MAX_TOKEN_GAP
    max_model_len: int | None = None

    @property
    def files(self) -> str:
        """The folder or hub name from which the frontend reads the tokenizer and the chat template."""
        return str(zoo.folder(self.model)) if self.model in zoo.MODELS else self.model
