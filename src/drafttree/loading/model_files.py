"""The files of a model or a drafter, which are located once and whose config is read once."""

import os
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel

from drafttree.drafters.formats import LANGUAGE_MODEL, read_config
from drafttree.loading.drafter_methods import kind_of
from drafttree.loading.folders import find_folder, find_gguf, resolve
from drafttree.loading.gguf.architectures import settings_of
from drafttree.loading.gguf.reader import SUFFIX, GGUFFile
from drafttree.loading.gguf.tokenizers import token_ids
from drafttree.loading.quantized.layouts import Layout, layout_of


class ModelFiles:
    """The files of a model or a drafter.

    Args:
        source: the name or path that the user gave, for messages.
        path: the folder, the GGUF file, or the hub name of a model that transformers downloads.
    """

    def __init__(self, source: str | Path, path: str | Path) -> None:
        self.source = source
        self.path = str(path)

    @classmethod
    def of_model(cls, source: str | Path) -> "ModelFiles":
        """The files of an embedded name, a folder, a GGUF file or a hub name; a hub name is not downloaded yet.

        Raises:
            ModelError: the source does not exist (see `drafttree.loading.folders.resolve` and `find_gguf`).
            ConfigError: the packages that read GGUF files are missing.
        """
        return cls(source, find_gguf(source) or resolve(source))

    @classmethod
    def of_drafter(cls, source: str | Path) -> "ModelFiles":
        """The files of an embedded name, a folder, a GGUF file or a hub name, which is downloaded.

        Raises:
            ModelError: the source does not exist, or cannot be downloaded.
            ConfigError: the packages that read GGUF files are missing.
        """
        path = find_gguf(source) or find_folder(source)
        return cls(path, path)

    @property
    def is_local(self) -> bool:
        """Whether the files are in a folder on this machine."""
        return os.path.isdir(self.path)

    @cached_property
    def gguf(self) -> GGUFFile | None:
        """The GGUF file; None if the files are in transformers' format.

        Raises:
            ModelError: the file cannot be used (see `GGUFFile`).
        """
        return GGUFFile(self.path) if self.path.endswith(SUFFIX) else None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The contents of config.json, or the same fields from a GGUF file; empty for a folder without one.

        Raises:
            ModelError: config.json holds no JSON object, or the model of a GGUF file is unknown.
            OSError: the hub has no config.json for the name.
        """
        if self.gguf:
            return settings_of(self.gguf) | token_ids(self.gguf)
        try:
            contents = PreTrainedConfig.get_config_dict(self.path)[0]
        except Exception:
            if not self.is_local:
                raise
            contents = None
        return contents if isinstance(contents, dict) else read_config(Path(self.path))

    @property
    def names_model(self) -> bool:
        """Whether config.json names a model that this version of transformers knows."""
        return self.settings.get("model_type") in CONFIG_MAPPING

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The transformers config of config.json.

        Raises:
            ValueError: config.json names a model that this version of transformers does not know, or has a value that
                such a model cannot have.
        """
        model_type = str(self.settings.get("model_type"))
        try:
            if not self.names_model or model_type == "mistral":  # AutoConfig may make it Ministral
                return AutoConfig.from_pretrained(self.path, trust_remote_code=False)
            return CONFIG_MAPPING[model_type].from_dict(deepcopy(self.settings), name_or_path=self.path)
        except StrictDataclassError as error:
            raise ValueError(f"config.json is no {model_type} model's: {error.__cause__ or error}") from error

    @cached_property
    def layout(self) -> Layout | None:
        """How the folder lays out quantised weights; None if it has none, or in an unknown layout.

        Raises:
            ModelError: config.json describes the quantisation with an impossible value.
        """
        return None if self.gguf else layout_of(self.settings)

    @property
    def unquantized_config(self) -> PreTrainedConfig:
        """A copy of `config` without its quantisation."""
        config = deepcopy(self.config)
        for name in ("quantization_config", "quantization"):
            if hasattr(config, name):
                delattr(config, name)
        return config

    @cached_property
    def kind(self) -> str:
        """The kind of drafter in the files; errors are those of `drafttree.loading.drafter_methods.kind_of`."""
        return LANGUAGE_MODEL if self.gguf else kind_of(Path(self.path), self.settings)


FoundModel = PreTrainedModel | ModelFiles
"""A loaded model, or the files to load one from."""
