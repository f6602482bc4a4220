"""`drafttree bench products` and `quantize`: the time of products by dtype, and the quality of quantised weights."""

from typing import Annotated

import typer

from drafttree.evaluation.shapes import SHAPES, find_shape
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import AsJson, Device, Repeats, Target
from drafttree.interfaces.console import print_json, progress
from drafttree_lab.commands.option_groups import PromptOptions

NO_SHAPE = "none"
LONGEST = 512
"""Tokens of a text that are scored at most."""


def bench_products_(
    inflate: Annotated[
        str, typer.Option(help=f'Model of whole passes: {", ".join(SHAPES)}, or "{NO_SHAPE}" for products alone.')
    ] = "300m",
    repeats: Repeats = 7,
    json_: AsJson = False,
) -> None:
    """Time matrix products on this CPU by data type and rows.

    Also prints their bandwidth and v(n) of whole passes.
    """
    shape = None if inflate == NO_SHAPE else inflate
    if shape:
        find_shape(shape)

    from drafttree_lab.display.products import show_products
    from drafttree_lab.micro.products import KINDS, bench_products

    with progress(len(KINDS) * (repeats + 1)) as advance:
        result = bench_products(shape=shape, repeats=repeats, progress=advance)
    print_json(result.summary()) if json_ else show_products(result)


@grouped
def bench_quantize_(
    prompts: PromptOptions,
    target: Target = "embedded",
    device: Device = "auto",
    json_: AsJson = False,
) -> None:
    """Compare the quality of int8 weights with the original.

    Prints the perplexity of texts and the share of best tokens that stay the same.
    """
    from drafttree.interfaces.cli.decoders import load_named
    from drafttree_lab.display.products import show_quality
    from drafttree_lab.experiment.quantized_quality import bench_quality

    kinds = {"float32": ("float32", None), "bfloat16": ("bfloat16", None), "int8": ("float32", "int8")}
    decoders = {
        kind: load_named(target, "none", dtype=dtype, device=device, quantize=quantize)
        for kind, (dtype, quantize) in kinds.items()
    }
    texts = [ids[:LONGEST] for ids in prompts.token_ids(decoders["float32"], 1)]
    with progress(len(texts) * len(kinds)) as advance:
        rows = bench_quality(decoders, texts, progress=advance)
    print_json({"rows": [row.summary() for row in rows]}) if json_ else show_quality(rows)
