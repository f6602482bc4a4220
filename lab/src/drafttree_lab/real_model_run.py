"""One model in one precision, run by drafttree and by other programs."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafttree import measure
from drafttree.core.errors import DraftTreeError
from drafttree.measure.method import PLAIN, Method
from drafttree.measure.prompt_form import PromptForm
from drafttree.measure.prompts import Example

if TYPE_CHECKING:
    from drafttree.engine.decoder import Decoder
    from drafttree.measure.driver import Way
    from drafttree.models import TargetModel

LOOKUP, DRAFT_MODEL, MIXED = "lookup", "draft model", "lookup and draft model"
POLICIES = ("auto", "chain:depth=3", "talon:budget=16,width=4", "dynatree")
TRANSFORMERS, PROMPT_LOOKUP, ASSISTED = OF_TRANSFORMERS = (
    "transformers",
    "transformers, prompt lookup",
    "transformers, assisted by the draft model",
)
LLAMA_CPP = "llama.cpp, on the file as it is"
NO_LLAMA_CPP = 'not run: llama-cpp-python is not installed (pip install "./lab[peers]")'
WARM_UP = 8
"""Number of uncounted tokens that every way writes first, so that costs are measured and memory is mapped."""
ROOM = 1024
"""Maximum length of a prompt in tokens; longer prompts are cut at the end."""
logger = logging.getLogger("drafttree")


@dataclass(frozen=True)
class Failure:
    """A text that was not written.

    Attributes:
        failure: the reason.
    """

    failure: str


AS_STORED = "as stored"
"""The precision of weights that stay in the blocks of their file."""


@dataclass(frozen=True)
class RealModel:
    """A model in one precision.

    Attributes:
        target: GGUF file of the model.
        draft_model: GGUF file of a smaller model with the same vocabulary; None without one.
        precision: "float32" or "bfloat16" for unpacked weights, "int8", or `AS_STORED`.
        new_tokens: new tokens of a text.
    """

    target: Path
    draft_model: Path | None
    precision: str
    new_tokens: int

    @property
    def name(self) -> str:
        return f"{self.target.stem}, {self.precision}"

    @property
    def dtype(self) -> str:
        """The dtype of everything but quantised weights."""
        return "float32" if self.precision == "float32" else "bfloat16"

    @property
    def quantize(self) -> str | None:
        """The option `quantize` of `drafttree.load` for the target."""
        return {AS_STORED: None, "int8": "int8"}.get(self.precision, "none")

    @property
    def methods(self) -> dict[str, str]:
        """By its name in tables, the specification of each method; plain decoding is not among them."""
        methods = {f"{LOOKUP}, {policy}": f"lookup|{policy}" for policy in POLICIES[:2]}
        if self.draft_model:
            methods |= {f"{DRAFT_MODEL}, {policy}": f"{self.draft_model}|{policy}" for policy in POLICIES}
            mixed_policies = (POLICIES[0], POLICIES[2])
            methods |= {f"{MIXED}, {policy}": f"mixed:{self.draft_model}|{policy}" for policy in mixed_policies}
        return methods

    @property
    def ways(self) -> list[str]:
        """Names of the ways to write texts, plain decoding first; in float32 only those whose texts are compared."""
        drafttree_ways = [PLAIN, *self.methods]
        if self.precision == "float32":
            return [*drafttree_ways, TRANSFORMERS]
        if self.precision == "bfloat16":
            drafttree_ways += OF_TRANSFORMERS if self.draft_model else OF_TRANSFORMERS[:-1]
        return [*drafttree_ways, *([LLAMA_CPP] if find_spec("llama_cpp") else [])]

    def open(self) -> "OpenModel":
        """The opened model; its parts are loaded when a text first needs them."""
        return OpenModel(self)


class OpenModel:
    """The programs that write texts with a model; each is loaded for its first text."""

    def __init__(self, model: RealModel) -> None:
        self._model = model
        self._failures: dict[str, Failure] = {}
        self._warm: set[str] = set()
        self._drafters: dict[Any, Any] = {}

    def write(self, way: str, prompt: Example) -> Any:
        """The text of a way: a `Generation` or `ReferenceRun`; a `Failure` if the way does not work here."""
        if failure := self._failures.get(way):
            return failure
        try:
            ids = self.encode(prompt)
            writer = self._writer(way)
            if way not in self._warm:
                writer(ids, WARM_UP)
                self._warm.add(way)
            return writer(ids, self._model.new_tokens)
        except Exception as error:  # the table shows the failure, and the other ways still run
            if not isinstance(error, DraftTreeError):
                logger.warning("%s: %s has failed", self._model.name, way, exc_info=True)
            reason = " ".join(str(error).split())
            message = reason if isinstance(error, DraftTreeError) else f"{type(error).__name__}: {reason}"
            self._failures[way] = Failure(message)
            return self._failures[way]

    def encode(self, prompt: Example) -> list[int]:
        """The token ids of a prompt, with the chat template if the model has one."""
        from drafttree.measure.prompt_encoding import encode_turns

        decoder = self.decoder
        chat = bool(getattr(decoder.tokenizer, "chat_template", None))
        return encode_turns(decoder, prompt, PromptForm(chat=chat, turns=1), self._model.new_tokens)[0][:ROOM]

    def find_difference(self, prompt: Example, expected: list[int], got: list[int]) -> Any:
        """The first difference of a text from plain decoding's, as from `measure.find_difference`."""
        return measure.find_difference(self.decoder, self.encode(prompt), expected, got, temperature=0.0)

    def _writer(self, way: str) -> "Callable[[list[int], int], Any]":
        if way == LLAMA_CPP:
            return self.llama_cpp.generate
        if way in OF_TRANSFORMERS:
            return partial(self._write_by_transformers, way)
        decoder = self.decoder.plain() if way == PLAIN else self._decoder_of(self._model.methods[way])
        return lambda ids, tokens: decoder.generate(ids, max_new_tokens=tokens, temperature=0.0)

    def _write_by_transformers(self, way: str, ids: list[int], tokens: int) -> Any:
        assistance: dict[str, Any] = {}
        if way == PROMPT_LOOKUP:
            assistance["prompt_lookup_num_tokens"] = 10
        if way == ASSISTED:
            assistance["assistant_model"] = self.assistant.module
        reference = self.reference
        return measure.transformers_generate(
            reference, ids, max_new_tokens=tokens, temperature=0.0, assistance=assistance
        )

    @cached_property
    def decoder(self) -> "Decoder":
        """Plain decoding by drafttree."""
        from drafttree.loading.load import load

        model = self._model
        return load(model.target, "none", dtype=model.dtype, device="cpu", quantize=model.quantize)

    def _decoder_of(self, spec: str) -> "Decoder":
        from drafttree.measure.method_decoders import make_decoders

        method = Method.parse(spec)
        if method.drafter not in self._drafters:
            self._drafters[method.drafter] = self.decoder.with_drafter(method.drafter).drafter
        return make_decoders(self.decoder, [method], self._drafters)[method.spec]

    @cached_property
    def reference(self) -> "Decoder":
        """The target in transformers, loaded apart from drafttree's, whose weights are packed."""
        return self.decoder.with_target(self._transformers_model(self._model.target))

    @cached_property
    def assistant(self) -> "TargetModel":
        """The draft model in transformers."""
        assert self._model.draft_model
        return self._transformers_model(self._model.draft_model)

    def _transformers_model(self, path: Path) -> "TargetModel":
        import torch

        from drafttree.loading.pretrained import load_model
        from drafttree.models import TargetModel

        return TargetModel(load_model(path, getattr(torch, self._model.dtype), torch.device("cpu")))

    @cached_property
    def llama_cpp(self) -> Any:
        """llama.cpp on the file, with keys and values in float16, its default."""
        import torch

        from drafttree_lab.peers.llama_cpp import LlamaCpp

        return LlamaCpp(
            self._model.target,
            exact_cache=False,
            threads=torch.get_num_threads(),
            eos=self.decoder.eos,
            context=ROOM + max(self._model.new_tokens, WARM_UP),
        )


class Writers:
    """The ways of several models for `race`; only one model is in memory at a time."""

    def __init__(self) -> None:
        self._open: tuple[RealModel, OpenModel] | None = None

    def opened(self, model: RealModel) -> OpenModel:
        """Open a model, after closing the previous one."""
        if self._open is None or self._open[0] != model:
            self._close()
            self._open = model, model.open()
        return self._open[1]

    def ways(self, models: list[RealModel]) -> Iterator[tuple[str, "Way"]]:
        """The ways of all models, named "model: way"."""
        for model in models:
            for way in model.ways:
                yield f"{model.name}: {way}", partial(self._write, model, way)

    def _write(self, model: RealModel, way: str, prompt: Example) -> Any:
        return self.opened(model).write(way, prompt)

    def _close(self) -> None:
        import gc

        from drafttree.core.machine_memory import release_unused_memory

        self._open = None
        gc.collect()
        release_unused_memory()
