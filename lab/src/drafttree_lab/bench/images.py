"""Prompts with images: the time of reading them beside transformers, and the speed of plain decoding behind them."""

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttree import measure
from drafttree.core.errors import ConfigError, unknown
from drafttree.core.lazy import torch
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import parse_numbers
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import make_console, progress

if TYPE_CHECKING:
    from drafttree import Decoder
    from drafttree.measure.driver import Cell

TEXT_TOKENS = 24
"""Tokens of text on each side of the images."""
TRANSFORMERS, DRAFTTREE = "transformers", "drafttree"
BEHIND_IMAGES, BEHIND_TEXT = "behind images", "behind text"
READING = {"images": "", "tokens": ",d", TRANSFORMERS: ".2f", DRAFTTREE: ".2f", "transformers / drafttree": ""}
DECODING = {"images": "", "tokens": ",d", BEHIND_IMAGES: ".1f", BEHIND_TEXT: ".1f", "text / images": ""}


@dataclass(frozen=True)
class ImageShape:
    """The sizes of a model that reads images, with random weights.

    Attributes:
        config: makes its config.
        tokens: placeholder tokens of an image.
        inputs: makes the inputs of so many images, besides the tokens.
    """

    config: Callable[[], Any]
    tokens: int
    inputs: Callable[[int], dict[str, Any]]


def _smolvlm() -> Any:
    import transformers

    text = transformers.LlamaConfig(
        vocab_size=49280,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
    )
    vision = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 512,
        "patch_size": 16,
    }
    return transformers.SmolVLMConfig(text_config=text, vision_config=vision, image_token_id=49190, scale_factor=4)


def _qwen2_vl() -> Any:
    import transformers

    text = {
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6},
    }
    vision = {"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "num_heads": 16, "mlp_ratio": 4, "patch_size": 14}
    return transformers.Qwen2VLConfig(
        text_config=text, vision_config=vision, image_token_id=151655, video_token_id=151656, tie_word_embeddings=True
    )


def _tiles(count: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(1, count, 3, 512, 512)}


def _patches(count: int) -> dict[str, Any]:
    """Images of 448 by 448 pixels, as patches of 14 by 14 for two frames."""
    return {
        "pixel_values": torch.randn(count * 1024, 3 * 2 * 14 * 14),
        "image_grid_thw": torch.tensor([[1, 32, 32]] * count),
    }


SHAPES = {
    "smolvlm-256m": ImageShape(_smolvlm, 64, _tiles),
    "qwen2-vl-2b": ImageShape(_qwen2_vl, 256, _patches),
}


@grouped
def bench(
    context: typer.Context,
    results: ResultOptions,
    shape: Annotated[str, typer.Option(help=f"Sizes of the model: {', '.join(SHAPES)}.")] = "smolvlm-256m",
    images: Annotated[str, typer.Option(help="Numbers of images, one prompt each.")] = "1,4",
    dtype: Annotated[str, typer.Option(help='"bfloat16" or "float32".')] = "bfloat16",
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each text.")] = 32,
    repeats: Annotated[int, typer.Option(min=2, help="Runs of each prompt.")] = 5,
) -> None:
    """Measure the reading of prompts with images beside transformers.

    Also measures plain decoding behind them. The model has true sizes and random weights. transformers has a copy to
    itself.
    """
    if shape not in SHAPES:
        raise unknown("shape", shape, SHAPES)
    if dtype not in ("bfloat16", "float32"):
        raise ConfigError(f'--dtype is {dtype!r}; give "bfloat16" or "float32"')
    counts = parse_numbers(images, "--images", 1)
    store = results.open_store(context)
    race = ImageRace.of(SHAPES[shape], dtype, max_new_tokens)
    prompts = [(str(count), race.prompt(count)) for count in counts]
    with progress(repeats * len(prompts) * len(race.ways)) as advance:
        cells = measure.race(
            race.ways, prompts, float, repeats=repeats, warm_up=prompts[0][1], store=store, progress=advance
        )
    sizes = {name: prompt["input_ids"].shape[1] for name, prompt in prompts}
    report = {"runs on": race.runs_on, "reading": reading_rows(cells, sizes), "decoding": decoding_rows(cells, sizes)}
    results.finish(store, report, lambda: _show(report))


@dataclass(frozen=True)
class ImageRace:
    """A model that transformers runs, and the same one behind drafttree.

    Attributes:
        module: the model of transformers.
        decoder: a decoder of a copy.
        shape: its sizes.
        max_new_tokens: tokens of each text.
    """

    module: Any
    decoder: "Decoder"
    shape: ImageShape
    max_new_tokens: int

    @classmethod
    def of(cls, shape: ImageShape, dtype: str, max_new_tokens: int) -> "ImageRace":
        """Make the model twice, with equal weights."""
        import transformers

        import drafttree

        modules = list[Any]()
        for _ in range(2):
            torch.manual_seed(0)
            module = transformers.AutoModelForImageTextToText.from_config(
                shape.config(), dtype=getattr(torch, dtype), attn_implementation="sdpa"
            )
            modules.append(module.eval())
        decoder = drafttree.load(modules[1], "none")
        return cls(modules[0], decoder, shape, max_new_tokens)

    @property
    def runs_on(self) -> str:
        """What runs the passes behind the prompt."""
        return str(getattr(self.decoder.target, "runs_on", ""))

    @property
    def ways(self) -> dict[str, Callable[[Any], float]]:
        """What is measured, in seconds of reading or for each token, by name."""
        return {
            TRANSFORMERS: self._read_by_transformers,
            DRAFTTREE: self._read,
            BEHIND_IMAGES: self._decode,
            BEHIND_TEXT: self._decode_text,
        }

    def prompt(self, count: int) -> dict[str, Any]:
        """The inputs of a prompt with so many images."""
        config: Any = self.module.config
        text = torch.arange(1000, 1000 + TEXT_TOKENS)
        placeholders = [torch.tensor([999] + [config.image_token_id] * self.shape.tokens)] * count
        tokens = torch.cat([text, *placeholders, text])[None]
        inputs = {"input_ids": tokens, **self.shape.inputs(count)}
        inputs["pixel_values"] = inputs["pixel_values"].to(self.module.dtype)
        if "mm_token_type_ids" in inspect.signature(self.module.forward).parameters:
            inputs["mm_token_type_ids"] = (tokens == config.image_token_id).long()
        return inputs

    def _read_by_transformers(self, inputs: Mapping[str, Any]) -> float:
        started = time.perf_counter()
        self.module.generate(**inputs, max_new_tokens=1, do_sample=False, pad_token_id=0)
        return time.perf_counter() - started

    def _read(self, inputs: Any) -> float:
        started = time.perf_counter()
        self.decoder.generate(inputs, max_new_tokens=1, ignore_eos=True)
        return time.perf_counter() - started

    def _decode(self, inputs: Any) -> float:
        result = self.decoder.generate(inputs, max_new_tokens=self.max_new_tokens, ignore_eos=True)
        return result.metrics.decoding_seconds / (len(result.tokens) - 1)

    def _decode_text(self, inputs: Any) -> float:
        """Decode behind a text of the same length."""
        return self._decode([*range(1000, 1000 + inputs["input_ids"].shape[1])])


def reading_rows(cells: Sequence["Cell"], sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """A row of times of reading for each number of images."""
    return _rows(cells, sizes, DRAFTTREE, TRANSFORMERS, "transformers / drafttree", 1.0)


def decoding_rows(cells: Sequence["Cell"], sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """A row of milliseconds a token for each number of images."""
    return _rows(cells, sizes, BEHIND_IMAGES, BEHIND_TEXT, "text / images", 1e3)


def _rows(
    cells: Sequence["Cell"], sizes: Mapping[str, int], way: str, base: str, ratio: str, unit: float
) -> list[dict[str, Any]]:
    """A row for each prompt: the medians of two ways, and how much faster the first one is."""
    from drafttree.measure.interval import Interval

    rows = list[dict[str, Any]]()
    for count, size in sizes.items():
        seconds = dict[str, list[float]]()
        for cell in cells:
            if cell.group == count:
                seconds.setdefault(cell.way, []).append(cell.result)
        runs = {name: [(1, run) for run in seconds[name]] for name in (way, base)}
        gain = Interval.of_speeds_by_jackknife(runs[way], runs[base])
        row = {"images": count, "tokens": size}
        row |= {name: unit * median(seconds[name]) for name in (way, base)}
        row[ratio] = f"{gain:.2f}"
        rows.append(row)
    return rows


def _show(report: Mapping[str, Any]) -> None:
    console = make_console()
    console.print(f"passes behind the prompt run on {report['runs on']}", soft_wrap=True)
    console.print(measure.to_table("seconds to the first token", report["reading"], READING))
    console.print(measure.to_table("plain decoding, ms a token", report["decoding"], DECODING))
