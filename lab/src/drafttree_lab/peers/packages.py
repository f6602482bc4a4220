"""The peers by name, and whether they are installed."""

from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec

from drafttree.core.errors import ConfigError, unknown

TRANSFORMERS, LLAMA_CPP, OPENVINO = PEERS = ("transformers", "llama.cpp", "openvino")
PACKAGES = {
    TRANSFORMERS: {"transformers": "transformers"},
    LLAMA_CPP: {"llama_cpp": "llama-cpp-python", "gguf": "gguf"},
    OPENVINO: {"openvino_genai": "openvino-genai", "gguf": "gguf"},
}
"""What each needs: packages by the names of their modules."""


def check_installed(peers: Sequence[str]) -> None:
    """Refuse peers that cannot be run here.

    Raises:
        ConfigError: one is unknown, or a package of it is not installed.
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
