"""The files of a model or a drafter: where they lie is found once, and their config is read once."""

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
        source: the name or path that users gave, for messages.
        path: their folder, the GGUF file, or the hub name of a model that transformers downloads.
    """

    def __init__(self, source: str | Path, path: str | Path) -> None:
        self.source = source
        self.path = str(path)

    @classmethod
    def of_model(cls, source: str | Path) -> "ModelFiles":
        """The files of an embedded name, a folder, a GGUF file or a hub name, whose folder is not downloaded yet.

        Raises:
            ModelError: as of `drafttree.loading.folders.resolve` and `find_gguf`.
            ConfigError: as of `find_gguf`.
        """
        return cls(source, find_gguf(source) or resolve(source))

    @classmethod
    def of_drafter(cls, source: str | Path) -> "ModelFiles":
        """The files of an embedded name, a folder, a GGUF file or a hub name, on this machine.

        Raises:
            ModelError: there are none.
            ConfigError: as of `drafttree.loading.folders.find_gguf`.
        """
        path = find_gguf(source) or find_folder(source)
        return cls(path, path)

    @property
    def is_local(self) -> bool:
        """Whether they lie in a folder."""
        return os.path.isdir(self.path)

    @cached_property
    def gguf(self) -> GGUFFile | None:
        """The GGUF file, None where the files are those of transformers.

        Raises:
            ModelError: as of `GGUFFile`.
        """
        return GGUFFile(self.path) if self.path.endswith(SUFFIX) else None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The contents of config.json, or what a GGUF file says instead; empty for a folder without one.

        Raises:
            ModelError: the file in a folder holds no JSON object, or a GGUF file's model is not known.
            OSError: the hub has no such file.
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
        """What transformers makes of config.json.

        Raises:
            ValueError: it names no model that this version of transformers knows, or a value that such a model cannot
                have.
        """
        model_type = str(self.settings.get("model_type"))
        try:
            if not self.names_model or model_type == "mistral":  # which may stand for Ministral
                return AutoConfig.from_pretrained(self.path, trust_remote_code=False)
            return CONFIG_MAPPING[model_type].from_dict(deepcopy(self.settings), name_or_path=self.path)
        except StrictDataclassError as error:
            raise ValueError(f"config.json is no {model_type} model's: {error.__cause__ or error}") from error

    @cached_property
    def layout(self) -> Layout | None:
        """How quantised weights lie in the folder, None where there are none, or in a way that is not known.

        Raises:
            ModelError: config.json says of them what cannot be.
        """
        return None if self.gguf else layout_of(self.settings)

    @property
    def unquantized_config(self) -> PreTrainedConfig:
        """What transformers makes of config.json, as of a model whose weights are not quantised."""
        config = deepcopy(self.config)
        for name in ("quantization_config", "quantization"):
            if hasattr(config, name):
                delattr(config, name)
        return config

    @cached_property
    def kind(self) -> str:
        """The kind of drafter that they are; errors are those of `drafttree.loading.drafter_methods.kind_of`."""
        return LANGUAGE_MODEL if self.gguf else kind_of(Path(self.path), self.settings)


FoundModel = PreTrainedModel | ModelFiles
"""A loaded model, or the files of one."""
