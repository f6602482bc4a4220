"""Printing of the benches of products and of quantised weights."""

from collections.abc import Sequence

from drafttree.interfaces.console import make_console, make_table
from drafttree_lab.experiment.quantized_quality import QualityRow
from drafttree_lab.micro.products import INPUTS, OUTPUTS, ProductBench


def show_products(result: ProductBench) -> None:
    """Milliseconds of a product and of a pass by rows, with the bandwidth of one row and v of each pass."""
    sizes = [*(result.rows[0].product or ())]
    table = make_table("rows", *map(str, sizes), "GB/s at 1", right=len(sizes) + 1)
    copy = f"{result.threads} threads; a large copy moves {result.copy / 1e9:.1f} GB/s"
    table.title = f"ms of rows of {INPUTS} times a weight of {INPUTS} x {OUTPUTS}, {copy}"
    for row in result.rows:
        if row.product and row.bandwidth:
            cells = [f"{seconds * 1e3:.2f}" for seconds in row.product.values()]
            table.add_row(row.kind, *cells, f"{row.bandwidth / 1e9:.1f}")
    make_console().print(table, "")
    if result.shape:
        table = make_table(f"{result.shape}, nodes", *map(str, sizes), right=len(sizes))
        table.title = "ms of a pass, and v, its cost in passes over one node"
        for row in result.rows:
            for name, passes in ((row.kind, row.passes), (f"{row.kind}, native", row.native)):
                if passes:
                    table.add_row(name, *(f"{seconds * 1e3:.1f}" for seconds in passes.values()))
                    table.add_row("  v", *(f"{seconds / passes[sizes[0]]:.2f}" for seconds in passes.values()))
        make_console().print(table, "")
    has = "has" if result.multiplies_bfloat16 else "lacks"
    build = f"the build {result.build} of drafttree-native runs" if result.build else "drafttree-native is not here"
    print(f"this CPU {has} instructions for bfloat16; {build}")


def show_quality(rows: Sequence[QualityRow]) -> None:
    """Perplexity and kept tokens of every kind of weights."""
    table = make_table("weights", "perplexity", f"best tokens as {rows[0].kind}'s", "MB", right=3)
    table.title = f"{rows[0].tokens} tokens"
    for row in rows:
        table.add_row(row.kind, f"{row.perplexity:.4f}", f"{row.same_token:.2%}", f"{row.weight_bytes / 1e6:.1f}")
    make_console().print(table)
