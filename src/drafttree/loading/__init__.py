"""Builds a decoder from names, files and loaded models.

The functions `load` and `inspect` are in the modules of the same names; this package exports what other folders use of
the rest.
"""

from typing import TYPE_CHECKING

from drafttree.core.lazy import lazy_door

if TYPE_CHECKING:
    from drafttree.loading.drafters import (
        AutoDrafter,
        DrafterSource,
        MixedParts,
        choose_drafter,
        find_drafter,
        parse_drafter,
    )
    from drafttree.loading.folders import find_folder, find_gguf, local_folder
    from drafttree.loading.methods import POLICY_CLASSES, VERIFIER_CLASSES
    from drafttree.loading.model_drafters import FilesDrafter, GivenModel, OwnLayers, load_head, made_for
    from drafttree.loading.placement import find_device, find_dtype
    from drafttree.loading.pretrained import ModelSource, load_model, load_tokenizer, tokenizer_beside, unwrap
    from drafttree.loading.specs import (
        PolicyLike,
        VerifierLike,
        find_verifier,
        make_policy,
        parse_policies,
        parse_verifiers,
        policy_spec,
    )
    from drafttree.loading.targets import LoadedTarget
    from drafttree.loading.tuned import TunedPolicy, check_save, find_policy, read_tuned
    from drafttree.loading.vocabularies import check_tokenizers

__all__ = [
    "POLICY_CLASSES",
    "VERIFIER_CLASSES",
    "AutoDrafter",
    "DrafterSource",
    "FilesDrafter",
    "GivenModel",
    "LoadedTarget",
    "MixedParts",
    "ModelSource",
    "OwnLayers",
    "PolicyLike",
    "TunedPolicy",
    "VerifierLike",
    "check_save",
    "check_tokenizers",
    "choose_drafter",
    "find_device",
    "find_drafter",
    "find_dtype",
    "find_folder",
    "find_gguf",
    "find_policy",
    "find_verifier",
    "load_head",
    "load_model",
    "load_tokenizer",
    "local_folder",
    "made_for",
    "make_policy",
    "parse_drafter",
    "parse_policies",
    "parse_verifiers",
    "policy_spec",
    "read_tuned",
    "tokenizer_beside",
    "unwrap",
]

_NAMES = (
    *("specs", "methods", "tuned", "placement", "folders", "pretrained", "vocabularies", "targets"),
    *("model_drafters", "drafters"),
)
_MODULES = [f"drafttree.loading.{name}" for name in _NAMES]
__getattr__ = lazy_door(__name__, __all__, _MODULES)
