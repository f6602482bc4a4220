"""`drafttree quantize`: round a model to four bits once, and keep the result."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drafttree.core.errors import ConfigError
from drafttree.core.lazy import torch
from drafttree.interfaces.cli.options import AsJson, Dtype
from drafttree.interfaces.console import make_console, print_json, progress

if TYPE_CHECKING:
    from drafttree.loading.int4.folder import Int4Folder
    from drafttree.loading.int4.quantize import Seconds
    from drafttree.loading.int4.rounding import RoundedLayer
    from drafttree.loading.model_files import ModelFiles


def quantize(
    target: Annotated[str, typer.Argument(metavar="NAME", help="Folder, hub name or embedded name.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder to write to.", show_default="the cache folder")
    ] = None,
    dtype: Dtype = "auto",
    json_: AsJson = False,
) -> None:
    """Round a model to four bits once, for --quantize int4.

    Weights are rounded by GPTQ on texts that the model writes itself, so no data is needed. A model of half a billion
    weights takes minutes. The result goes into the cache folder. After an interruption, the same command continues from
    the last finished layer.
    """
    from drafttree.loading.int4.folder import Int4Folder
    from drafttree.loading.model_files import ModelFiles
    from drafttree.loading.pretrained import files_to_round
    from drafttree.loading.target_options import INT4, check_quantization

    check_quantization("quantize", INT4, torch.device("cpu"))
    files = files_to_round(ModelFiles.of_model(target))
    folder = Int4Folder(files, out)
    if not folder.is_own:
        advice = "name a new one" if out else "remove it, and give the command again"
        raise ConfigError(f"{folder.path} holds other files, or damaged ones; {advice}")
    seconds = None if folder.is_whole else _round(files, folder, dtype)
    _report(folder, target, seconds, json_, is_kept=out is None)


def _round(files: "ModelFiles", folder: "Int4Folder", dtype: str) -> "Seconds":
    """Round the model to four bits, and show the progress: in a bar on a terminal, else in lines."""
    from drafttree.loading.int4.quantize import Progress, quantize_int4
    from drafttree.loading.placement import find_placement
    from drafttree.loading.pretrained import load_model, load_tokenizer

    device, torch_dtype = find_placement(dtype, "cpu")
    module = load_model(files, torch_dtype, device)
    tokenizer = load_tokenizer(files)
    layers: int = module.config.get_text_config().num_hidden_layers
    is_terminal = sys.stderr.isatty()
    with progress(100 + layers) as advance:
        drawn_steps = 0

        def tell_texts(share: float) -> None:
            nonlocal drawn_steps
            while drawn_steps < int(100 * share):
                drawn_steps += 1
                advance("writing texts")

        def tell_layer(layer: "RoundedLayer") -> None:
            advance(f"layer {layer.number}")
            if not is_terminal:
                layer_seconds = layer.reading + layer.rounding
                print(f"layer {layer.number} of {layer.layers}: {layer_seconds:.1f} s", file=sys.stderr, flush=True)

        seconds = quantize_int4(module, tokenizer, folder, Progress(tell_texts, tell_layer))
        folder.finish(module, tokenizer)
    return seconds


def _report(folder: "Int4Folder", target: str, seconds: "Seconds | None", json_: bool, *, is_kept: bool) -> None:
    if json_:
        times = {} if seconds is None else vars(seconds)
        print_json({"folder": str(folder.path), "bytes": folder.nbytes, "seconds": times})
        return
    console = make_console()
    console.print(f"{folder.path} ({folder.nbytes / 1e9:.2f} GB)")
    if seconds:
        console.print(
            f"writing texts {seconds.sampling:.0f} s, reading them {seconds.reading:.0f} s, "
            f"rounding {seconds.rounding:.0f} s"
        )
    else:
        console.print("It was there already, so nothing was rounded.")
    name = target if is_kept else str(folder.path)
    console.print(f"Use it: drafttree chat --target {name} --quantize int4", soft_wrap=True)
