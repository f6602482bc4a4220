"""`drafttree worker`: one of many that NVIDIA Dynamo's frontend serves as one model."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from drafttree.core.counts import MAX_BATCH
from drafttree.core.errors import ConfigError
from drafttree.interfaces.cli.options import (
    Device,
    Drafter,
    Dtype,
    ExactText,
    LossyWindow,
    MaxBatch,
    PolicySpec,
    Quantize,
    QuantizeDrafter,
    Sinks,
    VerifierName,
)
from drafttree.loading import find_policy, find_verifier
from drafttree.loading.specs import DEFAULT_POLICY


class Discovery(StrEnum):
    """How frontend and workers find each other."""

    FILE = "file"
    ETCD = "etcd"
    KUBERNETES = "kubernetes"


def worker(
    model: Annotated[str, typer.Argument(help='The model: "embedded", a folder or a hub name.')] = "embedded",
    discovery: Annotated[
        Discovery, typer.Option(help="How frontend and workers find each other; file is for one machine.")
    ] = Discovery.FILE,
    served_model_name: Annotated[
        str | None, typer.Option(help="By which requests name the model; by default MODEL.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="Of the fleet.")] = "dynamo",
    drafter: Drafter = "auto",
    policy: PolicySpec = DEFAULT_POLICY,
    verifier: VerifierName = "auto",
    dtype: Dtype = "auto",
    device: Device = "auto",
    exact_text: ExactText = False,
    lossy_window: LossyWindow = None,
    sinks: Sinks = 4,
    quantize: Quantize = None,
    quantize_drafter: QuantizeDrafter = None,
    max_batch: MaxBatch = MAX_BATCH,
    max_kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="Rows of all KV caches; by default half of the memory.")
    ] = None,
) -> None:
    """Write texts for NVIDIA Dynamo's frontend, beside other workers of the same model; see docs/fleet.md.

    If a worker dies, another one goes on with its texts, and they are the same: a text is a function of its prompt and
    its seed.
    """
    for find, spec in ((find_policy, policy), (find_verifier, verifier)):
        find(spec)

    from drafttree.interfaces.dynamo.fleet_settings import FleetSettings
    from drafttree.interfaces.dynamo.supervisor import supervise

    _check_extra()
    settings = FleetSettings(model, served_model_name or model, discovery.value, namespace, max_batch, max_kv_tokens)
    kinds = {"quantize": quantize, "quantize_drafter": quantize_drafter, "exact_text": exact_text}
    kinds |= {"lossy_window": lossy_window, "sinks": sinks, "dtype": dtype, "device": device}
    serves = partial(_serve, (model, drafter, policy, verifier), kinds, settings)
    if discovery is not Discovery.FILE:
        serves(lambda _: None)
        return
    raise typer.Exit(supervise(serves))


def _check_extra() -> None:
    """Raise a ConfigError where the extra is missing."""
    if find_spec("dynamo") is None:
        raise ConfigError("a worker needs NVIDIA Dynamo, which is not installed: pip install drafttree[dynamo]")


def _serve(
    parts: tuple[str, str, str, str], kinds: dict[str, Any], settings: Any, registered: Callable[[int], None]
) -> None:
    """Load a decoder and serve it; parts are the names of target, drafter, policy and verifier."""
    from drafttree.interfaces.cli.decoders import load_named
    from drafttree.interfaces.dynamo.serving import serve

    target, drafter, policy, verifier = parts
    decoder = load_named(target, drafter, find_policy(policy), find_verifier(verifier), **kinds)
    serve(decoder, settings, registered)
