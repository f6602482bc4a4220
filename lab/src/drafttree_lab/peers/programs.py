"""Other programs that drafttree is compared with, on the same weights."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafttree.core.errors import ConfigError, unknown

if TYPE_CHECKING:
    from drafttree.engine.decoder import Decoder
    from drafttree_lab.options import TargetOptions

TRANSFORMERS, LLAMA_CPP, OPENVINO = PEERS = ("transformers", "llama.cpp", "openvino")
PACKAGES = {
    TRANSFORMERS: {"transformers": "transformers"},
    LLAMA_CPP: {"llama_cpp": "llama-cpp-python", "gguf": "gguf"},
    OPENVINO: {"openvino_genai": "openvino-genai", "gguf": "gguf"},
}
"""The packages that each program needs, by module name."""
FILES = {
    LLAMA_CPP: {"float32": "f32", "bfloat16": "bf16", "int8": "q8_0"},
    OPENVINO: {"float32": "f16", "bfloat16": "f16", "int8": "q8_0"},
}
"""The type of GGUF file by dtype; OpenVINO GenAI computes in f32 and bf16, but does not read such files."""


def check_installed(peers: Sequence[str]) -> None:
    """Refuse peers that cannot be run here.

    Raises:
        ConfigError: a peer is unknown, or a package that it needs is not installed.
    """
    for peer in peers:
        if peer not in PACKAGES:
            raise unknown("peer", peer, PACKAGES)
        for module, package in PACKAGES[peer].items():
            if find_spec(module) is None:
                raise ConfigError(
                    f'{peer} needs {package}, which is not installed: pip install "drafttree-lab[peers]" '
                    f'(from a clone: pip install "./lab[peers]"), or leave {peer} out of --peers'
                )


def versions(peers: Sequence[str]) -> dict[str, str]:
    """The version of the program of each peer."""
    return {peer: version(next(iter(PACKAGES[peer].values()))) for peer in peers}


def open_program(
    peer: str, decoder: "Decoder", models: "TargetOptions", folder: Path, context: int, streams: int = 1
) -> Any:
    """A peer, `LlamaCpp` or `OpenVino`, with the weights of a decoder.

    Weights are written to a GGUF file, unless llama.cpp can read the target's own.

    Args:
        peer: "llama.cpp" or "openvino".
        decoder: the decoder, on the CPU.
        models: options that its target was loaded with. A quantised target is loaded again, and the peer quantises it.
        folder: folder for the GGUF file.
        context: maximum length of a text in tokens.
        streams: maximum number of texts at once.

    Raises:
        ConfigError: the target cannot be written, is not on the CPU, or is of another dtype.
    """
    import torch

    from drafttree.loading.gguf.reader import SUFFIX
    from drafttree.measure.reference import transformers_model
    from drafttree_lab.peers.gguf_file import write_gguf

    target = transformers_model(decoder)
    dtype = models.quantize or str(target.dtype).removeprefix("torch.")
    if target.device.type != "cpu":
        raise ConfigError(f"{peer} is measured on the CPU; add --device cpu")
    if dtype not in FILES[peer]:
        raise unknown(f"dtype of {peer}", dtype, FILES[peer])
    path = folder / f"{FILES[peer][dtype]}.gguf"
    if peer == LLAMA_CPP and models.target.endswith(SUFFIX):
        path = Path(models.target)
    elif not path.exists():
        original = replace(models, quantize=None, dtype="float32").load() if models.quantize else decoder
        write_gguf(transformers_model(original).module, original.tokenizer, path, FILES[peer][dtype])
    common_options: dict[str, Any] = {"threads": torch.get_num_threads(), "eos": decoder.eos}
    if peer == OPENVINO:
        from drafttree_lab.peers.openvino import OpenVino

        return OpenVino(path, dtype=dtype, **common_options)
    from drafttree_lab.peers.llama_cpp import LlamaCpp

    return LlamaCpp(path, exact_cache=dtype == "float32", context=context, streams=streams, **common_options)
