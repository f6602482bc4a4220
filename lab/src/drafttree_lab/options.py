"""Groups of options that benchmarks share."""

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttree.interfaces.cli.options import (
    Device,
    Dtype,
    Files,
    Inflate,
    Length,
    Limit,
    Quantize,
    Seed,
    Target,
    Temperature,
    name_files,
)
from drafttree.measure.prompt_form import PromptForm
from drafttree.measure.prompts import Example, spread_examples
from drafttree.measure.shapes import find_shape

if TYPE_CHECKING:
    from drafttree.engine.decoder import Decoder

NO_TASK = "other"
"""The task of prompts without a category."""


@dataclass(frozen=True)
class PromptOptions:
    """Which prompts are asked, by default the shipped openings, and in which form."""

    chat: Annotated[
        bool, typer.Option("--chat", help="Apply the chat template to the prompts, all turns included.")
    ] = False
    category: Annotated[
        str | None, typer.Option(help="Take only prompts whose category starts with this (.jsonl).")
    ] = None
    turns: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of turns per conversation. Default: 1; all with --chat."),
    ] = None
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens per turn. Longer turns are cut.")
    ] = None
    prompts: Files = None
    limit: Limit = None

    @property
    def prompt_form(self) -> PromptForm:
        return PromptForm(self.chat, self.category, self.turns, self.prompt_tokens)

    def token_ids(self, decoder: "Decoder", new_tokens: int) -> list[list[int]]:
        """The token ids of the prompts, with room for so many new tokens."""
        from drafttree.interfaces.cli.decoders import read_token_ids

        return read_token_ids(decoder, self.prompts, self.limit, new_tokens, self.prompt_form)

    def mixed_token_ids(self, decoder: "Decoder", new_tokens: int) -> list[list[int]]:
        """The token ids of the prompts, by default of all shipped prompts, the kinds alternating."""
        if self.prompts:
            return self.token_ids(decoder, new_tokens)

        from drafttree.measure.prompt_sets import shipped_sets

        turns = zip_longest(*shipped_sets(**self.prompt_form.selection), self._shipped(None))
        mixed_examples = [example for turn in turns for example in turn if example]
        return self._encode(decoder, mixed_examples[: self.limit], new_tokens)

    def token_ids_by_file(self, decoder: "Decoder", new_tokens: int) -> dict[str, list[list[int]]]:
        """By file name, the token ids of prompts that are evenly spaced over the file."""
        files = {name: self._spread([path]) for name, path in name_files(self.prompts)}
        sets = files or {"openings": self._shipped(self.limit)}
        return {name: self._encode(decoder, examples, new_tokens) for name, examples in sets.items()}

    def token_ids_by_task(self, decoder: "Decoder", new_tokens: int) -> list[tuple[str, list[int]]]:
        """The token ids of prompts evenly spaced over the files, each with its task, the first part of its category."""
        examples = self._spread(self.prompts) if self.prompts else self._shipped(self.limit)
        return [
            ((example.category or NO_TASK).partition("/")[0], ids)
            for example in examples
            for ids in self._encode(decoder, [example], new_tokens)
        ]

    def _shipped(self, limit: int | None) -> list[Example]:
        from drafttree.interfaces.cli.decoders import shipped_examples

        return shipped_examples(limit, self.prompt_form)

    def _encode(self, decoder: "Decoder", examples: list[Example], new_tokens: int) -> list[list[int]]:
        from drafttree.measure.prompt_encoding import encode_prompts

        return encode_prompts(decoder, examples, self.prompt_form, new_tokens)

    def _spread(self, paths: Any) -> list[Example]:
        return spread_examples(paths, self.limit, **self.prompt_form.selection)


@dataclass(frozen=True)
class TargetOptions:
    """The target, and how it is held."""

    target: Target = "embedded"
    dtype: Dtype = "auto"
    device: Device = "auto"
    inflated: Inflate = None
    quantize: Quantize = None

    def load(self, drafter: str = "none", **drafter_options: str | None) -> "Decoder":
        """A decoder of the target.

        Args:
            drafter: as for `drafttree.load`.
            **drafter_options: `quantize_drafter`, as for `drafttree.load`.
        """
        if self.inflated:
            find_shape(self.inflated)

        from drafttree.interfaces.cli.decoders import hide_bars, load_named
        from drafttree.measure.inflation import load_inflated

        hide_bars()
        load_options = {**drafter_options, "quantize": self.quantize}
        if self.inflated:
            return load_inflated(self.target, drafter, self.inflated, self.dtype, self.device, **load_options)
        return load_named(self.target, drafter, dtype=self.dtype, device=self.device, **load_options)


@dataclass(frozen=True)
class DrawOptions:
    """How long the texts are, and how they are drawn."""

    max_new_tokens: Length = 128
    temperature: Temperature = 0.0
    seed: Seed = 0
