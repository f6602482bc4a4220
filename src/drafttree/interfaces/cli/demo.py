"""`drafttree demo`: plain and speculative decoding side by side, with the models of the package."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.text import Text

from drafttree.core.errors import ConfigError
from drafttree.core.sampling import Sampling
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import (
    AsJson,
    Device,
    Drafter,
    Dtype,
    Inflate,
    Length,
    Quantize,
    Seed,
    Temperature,
    complete_policy,
)
from drafttree.interfaces.console import make_console, print_json, working
from drafttree.loading import make_policy
from drafttree.measure.prompts import read_prompt
from drafttree.measure.shapes import find_shape

OPENING = '"Good morning," said the old man, and sat down by the fire. "I am glad to see you," said the boy.'
POLICY = "talon:budget=12,width=3"


@dataclass(frozen=True)
class DemoModels:
    """How much the target's passes cost, how its weights are held, and where the models compute."""

    inflated: Inflate = None
    quantize: Quantize = None
    dtype: Dtype = "float32"
    device: Device = "auto"


@grouped
def demo(
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="PROMPT", help='The prompt. "-" reads standard input.', show_default="the opening of a story"
        ),
    ] = OPENING,
    drafter: Drafter = "auto",
    policy: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="The tree policy. A fixed one needs no measurement.",
            autocompletion=complete_policy,
        ),
    ] = POLICY,
    max_new_tokens: Length = 128,
    temperature: Temperature = 0.5,
    seed: Seed = 0,
    *,
    models: DemoModels,
    json_: AsJson = False,
) -> None:
    """Show plain and speculative decoding side by side, live.

    The target is a toy model of 10 M parameters from the package, slowed down to the speed of a larger one. It computes
    in float32, in which both ways write the same text. Uses sampling (temperature 0.5), because greedy text from so
    small a model repeats itself and would make drafting look too good.
    """
    if models.inflated:
        find_shape(models.inflated)
    tree_policy = make_policy(policy)
    text = read_prompt(prompt)
    options: dict[str, Any] = {"temperature": temperature or 0.0, "seed": seed, "max_new_tokens": max_new_tokens}
    Sampling.from_options({"temperature": options["temperature"], "seed": seed})

    with working("Preparing the demo model ..."):
        from drafttree.evaluation import demo as shown
        from drafttree.evaluation.side_by_side import SideBySide
        from drafttree.interfaces.cli.decoders import hide_bars
        from drafttree.interfaces.demo_display import show_side_by_side

        hide_bars()
        target = shown.load_demo(drafter, models.dtype, models.device, models.quantize, models.inflated)
    decoder = target.decoder.with_policy(tree_policy)
    if decoder.drafter is None:
        raise ConfigError(f"--drafter {drafter} drafts nothing; name another, or leave it out")
    console = make_console()
    make_console(stderr=json_).print(Text(target.sentence), soft_wrap=True)
    if decoder.policy.uses_costs:
        with working("Measuring pass times (once per machine) ..."):
            decoder.costs(greedy=not temperature)
    race = SideBySide({shown.PLAIN: decoder.plain(), shown.DRAFTED: decoder}, text, **options)
    with nullcontext() if console.is_terminal else working("Writing both texts ..."):
        show_side_by_side(console, text, race)
    with working("Comparing the texts ...") if models.quantize else nullcontext():
        result = shown.judge(target, race.texts(), text, options)
    if json_:
        print_json(result.summary())
    else:
        console.print(*map(Text, result.lines), sep="\n", soft_wrap=True)
